//! Commands that were written to break the reader: it ends, and it says what it does not know.
#![forbid(unsafe_code)]
#![allow(clippy::expect_used)]

use ironcage_intent::{Context, Mention, Mentions, Needs, Shell, Table, Unsure};
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::OnceLock;

fn read(command: &str) -> Needs {
    static TABLE: OnceLock<Table> = OnceLock::new();
    let table = TABLE.get_or_init(|| Table::shipped().expect("the table"));
    let context = Context {
        cwd: PathBuf::from("/w"),
        home: None,
    };
    Shell::new(table).read(command, &context)
}

fn is_unknown(needs: &Needs) -> bool {
    needs
        .unknown
        .iter()
        .any(|unknown| unknown.what == Unsure::Everything)
}

#[test]
fn what_is_too_deep_is_unknown() {
    for (open, close) in [
        ("(", ")"),
        ("$(", ")"),
        ("{ ", "; }"),
        ("if ", ""),
        ("\"$(", ")\""),
        ("`", "`"),
        ("((", "))"),
        ("! ", ""),
    ] {
        let command = format!("{}rm x{}", open.repeat(2000), close.repeat(2000));
        let needs = read(&command);
        assert!(is_unknown(&needs), "{open}");
    }
}

#[test]
fn what_has_too_many_parts_is_unknown() {
    for part in [
        "a|", "a||", "a&&", "a;", "a\n", "a&", "$(a)", "(a)|", "<<a\n",
    ] {
        let many = part.repeat(60_000 / part.len());
        assert!(is_unknown(&read(&many)), "{part}");
    }
    assert!(!is_unknown(&read(&format!(
        "{}rm x",
        "cat y | ".repeat(50)
    ))));
}

#[test]
fn what_is_too_long_is_unknown() {
    let long = "rm x; ".repeat(20_000);
    assert!(is_unknown(&read(&long)));
    // And what is not too long is read.
    assert!(!is_unknown(&read("rm x; rm y")));
}

#[test]
fn many_names_are_kept_up_to_a_bound_and_then_unknown() {
    let names: Vec<String> = (0..5000).map(|number| format!("f{number}")).collect();
    let needs = read(&format!("rm {}", names.join(" ")));
    assert!(needs.writes.len() <= 1024);
    assert!(is_unknown(&needs));
}

#[test]
fn alternatives_do_not_multiply_without_end() {
    let needs = read(&format!("rm {}", "{a,b}".repeat(40)));
    assert!(needs.may_do_more());
    let values = "1 2 3 4 5 6 7 8 9";
    let loops = |names: &[&str]| {
        let open = names
            .iter()
            .map(|name| format!("for {name} in {values}; do "));
        let body: String = names.iter().map(|name| format!("${name}")).collect();
        format!(
            "{}rm {body}; {}",
            open.collect::<String>(),
            "done; ".repeat(names.len())
        )
    };
    // Two loops are followed value by value, and those inside them by alternatives.
    let needs = read(&loops(&["x", "y"]));
    assert!(!needs.may_do_more() && needs.writes.len() == 81);
    let needs = read(&loops(&["x", "y", "z", "w", "v"]));
    assert!(needs.may_do_more());
}

#[test]
fn functions_that_call_themselves_end() {
    for command in [
        "f() { f; f; }; f",
        "a() { b; b; }; b() { a; a; }; a",
        "eval 'eval \"eval x\"'",
    ] {
        read(command);
    }
    assert!(is_unknown(&read("f() { f; f; }; f")));
}

#[test]
fn a_nul_is_not_read_over() {
    assert!(is_unknown(&read("echo a\0; rm x")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_text_is_read_to_its_end(text in "\\PC{0,300}") {
        read(&text);
    }

    /// Words and marks of the shell in any order.
    #[test]
    fn any_order_of_its_marks_is_read_to_its_end(parts in prop::collection::vec(prop::sample::select(vec![
        "rm", "x", " ", ";", "|", "&&", "||", "&", "(", ")", "{", "}", "$(", "`", "\"", "'", "$", "${", "}", "<", ">", ">>", "<<", "EOF", "\n", "if", "then", "fi", "for", "in", "do", "done", "case", "esac", "=", "\\", "[[", "]]", "((", "))", "*", "~", "#", "eval", "sh -c", "find . -exec", "xargs", "git", "é",
    ]), 0..60)) {
        read(&parts.concat());
    }

    /// A program that is not in the table is never passed over in silence.
    #[test]
    fn a_program_that_is_not_known_is_marked(name in "[a-z]{12,16}", argument in "[a-z/]{0,9}") {
        let needs = read(&format!("{name} {argument}"));
        prop_assert!(is_unknown(&needs));
        prop_assert!(needs.programs.contains(&name));
    }

    /// What is written by a redirection is found wherever it stands.
    #[test]
    fn a_redirection_is_found(before in prop::sample::select(vec!["", "true && ", "if true; then ", "( ", "{ ", "for i in 1; do ", "x=$(", "! ", "f() { true; }; "])) {
        let after = match before.trim() {
            "if true; then" => "; fi",
            "(" | "x=$(" => ")",
            "{" => "; }",
            "for i in 1; do" => "; done",
            _ => "",
        };
        let needs = read(&format!("{before}echo a > out{after}"));
        prop_assert!(needs.writes.contains(&PathBuf::from("/w/out")), "{before}");
    }

    /// What free text names is the same in whatever pieces it comes, bounded, and never relative.
    #[test]
    fn words_are_read_to_their_end_in_any_pieces(parts in prop::collection::vec(prop_oneof![
        prop::sample::select(vec![
            "/", "..", "~/", "http://", "a.b", "@", ":", ".", " ", "`", "(", ")", "\n", "\u{0}", "é", "/etc/passwd", "x", "://", "?", "#", "-",
        ]).prop_map(str::to_owned),
        ".{0,8}",
    ], 0..80)) {
        let context = Context { cwd: PathBuf::from("/w"), home: Some(PathBuf::from("/h")) };
        let found = |pieces: &mut dyn Iterator<Item = String>| {
            let mut mentions = Mentions::default();
            for piece in pieces {
                mentions.read(&piece, &context);
            }
            mentions.pause(&context);
            mentions.take()
        };
        let text = parts.concat();
        let whole = found(&mut std::iter::once(text.clone()));
        prop_assert_eq!(&whole, &found(&mut text.chars().map(String::from)));
        prop_assert!(whole.len() <= 64);
        for mention in whole {
            match mention {
                Mention::Path(path) => prop_assert!(path.is_absolute() && !path.ends_with("..")),
                Mention::Host(name) => prop_assert!(name.len() <= 256 && name.is_ascii()),
            }
        }
    }
}

#[test]
fn values_that_double_with_each_line_stay_short() {
    let doubled = "x=$x$x\n".repeat(300);
    for text in [
        format!("x=a\n{doubled}cat $x\n"),
        format!(
            "x=a\n{}cat {}\n",
            "x=$x$x\n".repeat(15),
            "$x ".repeat(10_000)
        ),
        format!(
            "x=a\n{}cat {}\n",
            "x=\"$x$x\"\n".repeat(15),
            "\"$x\"".repeat(10_000)
        ),
        format!(
            "x=a\n{}sh <<E\n{}\nE\n",
            "x=$x$x\n".repeat(15),
            "$x ".repeat(10_000)
        ),
        format!(
            "x=a\n{}y=${{x//a/{}}}\ncat $y\n",
            "x=$x$x\n".repeat(15),
            "b".repeat(20_000)
        ),
        format!(
            "f() {{ f \"$@\" \"$@\"; }}\nx=a\n{}f $x $x\n",
            "x=$x$x\n".repeat(15)
        ),
    ] {
        let needs = read(&text);
        let longest = needs.reads.iter().map(|path| path.as_os_str().len()).max();
        assert!(longest.unwrap_or_default() <= 64 * 1024 + 16, "{longest:?}");
        assert!(
            needs.may_do_more() || !needs.unknown.is_empty(),
            "{}",
            text.len()
        );
    }
    // What is short is known.
    let needs = read("x=a\nx=$x$x\nx=$x$x\ncat $x\n");
    assert!(needs.reads.iter().any(|path| path.ends_with("aaaa")) && needs.unknown.is_empty());
}
