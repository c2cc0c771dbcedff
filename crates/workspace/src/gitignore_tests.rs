use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

fn ignored(rules: &str, path: &str) -> Option<bool> {
    let is_directory = path.ends_with('/');
    Gitignore::parse(Path::new(""), rules.as_bytes())?.judge(Path::new(path), is_directory)
}

#[test]
fn rules_mean_what_gits_manual_says() {
    for (rules, path, wanted) in [
        ("foo", "a/b/foo", Some(true)),
        ("/foo", "a/foo", None),
        ("a/foo", "b/a/foo", None),
        ("foo/", "a/foo", None),
        ("foo/", "a/foo/", Some(true)),
        ("*.o\n!keep.o", "keep.o", Some(false)),
        ("!keep.o\n*.o", "keep.o", Some(true)),
        ("**/foo/bar", "foo/bar", Some(true)),
        ("foo/**", "foo/", None),
        ("foo/**", "foo/a/b", Some(true)),
        ("a/**/b", "a/b", Some(true)),
        ("a/**/b", "a/x/y/b", Some(true)),
        ("a/*/b", "a/x/y/b", None),
        (r"\#a", "#a", Some(true)),
        ("#a", "#a", None),
        (r"a\ ", "a ", Some(true)),
        ("a  ", "a", Some(true)),
        ("[a-c]x", "bx", Some(true)),
        ("[!a-c]x", "bx", None),
        ("[]a]x", "]x", Some(true)),
        ("[[:digit:]]x", "7x", Some(true)),
        ("[a", "[a", None),
        ("a?c", "a/c", None),
        ("a*c", "abbbc", Some(true)),
    ] {
        assert_eq!(ignored(rules, path), wanted, "{rules:?} {path}");
    }
}

#[test]
fn rules_of_a_directory_are_about_what_lies_in_it() {
    let rules = Gitignore::parse(Path::new("a/b"), b"/c").expect("a rule");
    assert_eq!(rules.judge(Path::new("a/b/c"), false), Some(true));
    assert_eq!(rules.judge(Path::new("a/b/d/c"), false), None);
}

#[test]
fn stars_cost_no_more_than_their_length() {
    let rule = "*a".repeat(5_000);
    let name = "a".repeat(9_000) + "b";
    assert_eq!(ignored(&rule, &name), None);
    let deep = "**/a/".repeat(1_000) + "b";
    assert_eq!(ignored(&deep, &"a/".repeat(2_000)), None);
}

/// Every path of a small tree, directories with a slash behind.
fn tree() -> Vec<String> {
    let mut all = Vec::new();
    for one in ["a", "b", "ab", "a.b"] {
        for two in ["a", "b", "ab", ".a"] {
            all.push(format!("{one}/{two}/a"));
            all.push(format!("{one}/{two}/b.a"));
            all.push(format!("{one}/{two}/"));
        }
        all.push(format!("{one}/x"));
        all.push(format!("{one}/"));
    }
    all.push("f".to_owned());
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Git itself says what its rules mean. Left out is what nobody writes and git answers in
    /// strange ways: two slashes in a row, and `a**/`.
    #[test]
    fn rules_mean_what_git_says(lines in proptest::collection::vec(r"!?/?(\*\*|\*|\*?([abx.?]|\[ab\]|\[!a\]){1,2}\*?)(/(\*\*|\*|\*?([abx.?]|\[ab\]|\[!a\]){1,2}\*?)){0,2}/?", 1..4)) {
        let base = tempfile::tempdir().expect("a directory");
        let git = |words: &[&str]| {
            let mut git = Command::new("git");
            git.args(words).current_dir(base.path());
            git.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
            git.env("HOME", base.path()).env("GIT_CONFIG_NOSYSTEM", "1");
            git
        };
        assert!(git(&["init", "-q"]).status().expect("git").success());
        let paths = tree();
        for path in &paths {
            let path = base.path().join(path);
            match path.to_str().is_some_and(|text| text.ends_with('/')) {
                true => std::fs::create_dir_all(&path).expect("a directory"),
                false => {
                    std::fs::create_dir_all(path.parent().expect("above")).expect("a directory");
                    std::fs::write(&path, "").expect("a file");
                }
            }
        }
        let text = lines.join("\n");
        std::fs::write(base.path().join(".gitignore"), &text).expect("rules");
        let mut asked = git(&["check-ignore", "--no-index", "--stdin"]);
        let mut asked = asked.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("git");
        let mut into = asked.stdin.take().expect("a pipe");
        let asked_for: Vec<&str> = paths.iter().map(|path| path.trim_end_matches('/')).collect();
        into.write_all(asked_for.join("\n").as_bytes()).expect("it reads");
        drop(into);
        let said = asked.wait_with_output().expect("git");
        let said: BTreeSet<&str> = std::str::from_utf8(&said.stdout).expect("text").lines().collect();
        let rules = Gitignore::parse(Path::new(""), text.as_bytes());
        for path in &paths {
            // What lies in an ignored directory is ignored, whatever is said of it.
            let mut above = Path::new(path).ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
            let judge = |path: &Path, directory| rules.as_ref().and_then(|rules| rules.judge(path, directory)) == Some(true);
            let mine = above.any(|above| judge(above, true)) || judge(Path::new(path), path.ends_with('/'));
            prop_assert_eq!(mine, said.contains(path.trim_end_matches('/')), "{:?}: {}", text, path);
        }
    }
}
