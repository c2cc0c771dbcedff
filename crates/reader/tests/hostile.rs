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

#[test]
fn scripts_of_expect_are_read_and_bounded() {
    let script =
        "log_file /var/log/x\nspawn bash\nsend \"cp a b\\r\"\nspawn scp k host.example:/x\n";
    let needs = read(&format!("expect <<'END'\n{script}END\n"));
    assert!(needs.writes.contains(&PathBuf::from("/var/log/x")));
    assert!(needs.writes.contains(&PathBuf::from("/w/b")), "{needs:?}");
    assert!(needs.programs.contains("scp"), "{needs:?}");
    let long = "spawn cp a b\n".repeat(4000);
    assert!(is_unknown(&read(&format!("expect <<'END'\n{long}END\n"))));
    for text in [
        "{".repeat(20_000),
        "\"".repeat(9999),
        "$".repeat(9999),
        "spawn".to_owned(),
    ] {
        read(&format!("expect <<'END'\n{text}\nEND\n"));
    }
}

#[test]
fn variables_of_expect_and_names_of_a_source_do_not_grow_without_an_end() {
    let mut script = String::from("set a0 xxxxxxxxxxxxxxxx\n");
    for at in 1..60 {
        script.push_str(&format!("set a{at} $a{}$a{}\n", at - 1, at - 1));
    }
    read(&format!("expect <<'END'\n{script}spawn $a59\nEND\n"));
    let names: String = (0..1900)
        .map(|at| format!("char *n{at} = \"/data/{at}.bin\";\n"))
        .collect();
    read(&format!(
        "cat > x.c <<'END'\n{names}END\ngcc x.c && ./a.out && ./a.out"
    ));
    let nested = format!("x = {}0{}", "a[a.index(".repeat(60), ") + 1]".repeat(60));
    python(&nested);
}

#[test]
fn what_the_source_of_a_program_does_with_its_arguments_is_followed() {
    let source = "int main(int c, char **argv) { FILE *i = fopen(argv[1], \"r\"); FILE *o = fopen(argv[2], \"w\"); }";
    let needs = read(&format!(
        "cat > x.c <<'END'\n{source}\nEND\ngcc -o x x.c && ./x in.txt out.txt"
    ));
    let path = |name: &str| PathBuf::from("/w").join(name);
    assert!(needs.reads.contains(&path("in.txt")) && !needs.writes.contains(&path("in.txt")));
    assert!(needs.writes.contains(&path("out.txt")), "{needs:?}");
}

#[test]
fn keys_typed_into_a_terminal_are_commands_in_its_own_directory() {
    let needs = read(
        "tmux new -d -s a; tmux send-keys -t a 'cd sub' Enter; tmux send-keys -t a 'tee x < y' C-m; touch z",
    );
    assert!(
        needs.writes.contains(&PathBuf::from("/w/sub/x")),
        "{needs:?}"
    );
    assert!(needs.writes.contains(&PathBuf::from("/w/z")), "{needs:?}");
}

/// A text that only looks like a here-document hides nothing.
#[test]
fn marks_of_documents_in_strings_and_comments_hide_nothing() {
    let needs = read("cat > d <<'A'\n\\d(\nA\ntouch e\n");
    assert!(!is_unknown(&needs) && needs.writes.contains(&PathBuf::from("/w/e")));
    for open in ["echo \"<<'A'\"", "# <<'A'"] {
        let needs = read(&format!("{open}\nrm -rf /data\nA\n(\n"));
        let named = needs.writes.contains(&PathBuf::from("/data"));
        assert!(named || is_unknown(&needs), "{open}: {needs:?}");
    }
}

#[test]
fn containers_that_hold_themselves_stay_small() {
    let itself: String = (0..5000).map(|key| format!("d[{key}]=d\n")).collect();
    python(&format!("d={{}}\n{itself}open(d)\n"));
    python(&format!(
        "x=['/a']\n{}open(x[0], 'w')\n",
        "x.extend(x)\n".repeat(60)
    ));
    python(&format!(
        "x=['/a']\n{}open(x[0], 'w')\n",
        "x = x + x\n".repeat(60)
    ));
    // What no longer fits is not left out in silence.
    let many: String = (0..1100)
        .map(|name| format!("x.append('/a/{name}')\n"))
        .collect();
    let needs = python(&format!(
        "x=[]\n{many}for name in x:\n    open(name, 'w')\n"
    ));
    assert!(needs.may_do_more(), "{needs:?}");
    let few = python("x=[]\nx.append('/a/b')\nfor name in x:\n    open(name, 'w')\n");
    assert!(few.writes.contains(std::path::Path::new("/a/b")), "{few:?}");
}
