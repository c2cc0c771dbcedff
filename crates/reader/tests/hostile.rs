//! Code that was written to break the reader: it ends, and it says what it does not know.
#![forbid(unsafe_code)]
#![allow(clippy::expect_used)]

use ironcage_intent::{Context, Needs, Shell, Table, Unsure};
use ironcage_reader::Reader;
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::OnceLock;

fn read(command: &str) -> Needs {
    static TABLE: OnceLock<Table> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let reader = Reader::without_files().expect("the table of library calls");
        let table = Table::shipped().expect("the table of tools");
        table.following(Box::new(reader))
    });
    let context = Context {
        cwd: PathBuf::from("/w"),
        home: Some(PathBuf::from("/h")),
    };
    Shell::new(table).read(command, &context)
}

fn python(code: &str) -> Needs {
    read(&format!(
        "python3 - <<'IRONCAGE_END'\n{code}\nIRONCAGE_END\n"
    ))
}

fn javascript(code: &str) -> Needs {
    read(&format!("node - <<'IRONCAGE_END'\n{code}\nIRONCAGE_END\n"))
}

fn is_unknown(needs: &Needs) -> bool {
    let mut unknown = needs.unknown.iter();
    unknown.any(|unknown| unknown.what == Unsure::Everything)
}

#[test]
fn what_is_nested_too_deep_is_unknown() {
    for (open, close) in [
        ("(", ")"),
        ("[", "]"),
        ("f(", ")"),
        ("-", ""),
        ("not ", ""),
        ("lambda: ", ""),
    ] {
        let code = format!("x = {}1{}", open.repeat(1500), close.repeat(1500));
        assert!(is_unknown(&python(&code)), "{open}");
    }
    for (open, close) in [("(", ")"), ("[", "]"), ("f(", ")"), ("() => ", "0")] {
        let code = format!("x = {}1{}", open.repeat(1500), close.repeat(1500));
        assert!(is_unknown(&javascript(&code)), "{open}");
    }
    assert!(!is_unknown(&python("x = ((((1))))")));
}

#[test]
fn functions_that_call_themselves_end() {
    python("def f(x):\n    f(x + 'a')\n    f(x + 'b')\nf('/')\n");
    python("class A:\n    def m(self):\n        A().m()\nA()\n");
    javascript("const f = (x) => [f(x + 'a'), f(x + 'b')]; f('')");
    python("class A(B): pass\nclass B(A): pass\nA()\nB()\n");
}

#[test]
fn values_do_not_multiply_without_end() {
    let mut code = String::from("x = 'a' if c else 'b'\n");
    for _ in 0..40 {
        code.push_str("x = x + x\nx = [x, x]\nx = x[0] + x[1]\n");
    }
    code.push_str("open(x, 'w')\n");
    python(&code);
    let long = "x = x * 2\n".repeat(5000);
    assert!(python(&long).writes.is_empty());
}

#[test]
fn code_that_executes_text_is_unknown_unless_the_text_is_there() {
    assert!(is_unknown(&python("exec(input())")));
    assert!(is_unknown(&python("import os\nos.system(input())")));
    assert!(is_unknown(&python("import subprocess as s\ns.run(x)")));
    assert!(is_unknown(&javascript("eval(process.env.X)")));
    assert!(is_unknown(&python("def f(:\n")));
    let needs = python("exec(\"open('/a', 'w')\")");
    assert!(!is_unknown(&needs) && needs.writes.contains(&PathBuf::from("/a")));
    let needs = python("import os\nos.system('rm /b')");
    assert!(!is_unknown(&needs) && needs.writes.contains(&PathBuf::from("/b")));
}

#[test]
fn what_is_known_in_part_needs_its_directory() {
    let needs = python("import sys\nopen(f'/out/{len(sys.argv)}/x', 'w')");
    assert_eq!(
        needs.writes.iter().collect::<Vec<_>>(),
        [&PathBuf::from("/out")]
    );
    let needs = python("open(input(), 'w')");
    assert!(needs.writes.is_empty());
    assert!(
        needs
            .unknown
            .iter()
            .any(|unknown| unknown.what == Unsure::Writes)
    );
    assert!(!is_unknown(&needs));
    let needs = python("import requests\nrequests.get(input())");
    assert!(
        needs
            .unknown
            .iter()
            .all(|unknown| unknown.what == Unsure::Destinations)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn any_text_is_read_to_its_end(text in "\\PC{0,200}") {
        python(&text);
        javascript(&text);
    }

    /// Words and marks of Python in any order.
    #[test]
    fn any_order_of_its_marks_is_read_to_its_end(parts in prop::collection::vec(prop::sample::select(vec![
        "import os\n", "def f(a, *b):\n ", "class A:\n ", "open(", ")", "'/x'", "f'{a}/y'", "%", "+", "/", "for x in ", ":\n ", "[", "]", "{", "}", "lambda x:", "os.path.join", "(", ",", "=", "return ", "x", ".", "Path", "subprocess.run", "with ", " as ", "\n", "*", "if ", "else ", "é", "\"", "'",
    ]), 0..50)) {
        for path in python(&parts.concat()).writes {
            prop_assert!(path.is_absolute());
        }
    }
}
