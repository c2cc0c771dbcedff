//! What a run uses is put on record, becomes the least policy, and is tried against another one.

use ironcage_tests::web::Web;
use ironcage_tests::{Ran, Running, Stage, either};
use std::path::PathBuf;
use std::time::Duration;

#[track_caller]
fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(Duration::from_secs(60))
}

fn text(path: PathBuf) -> String {
    path.to_string_lossy().into_owned()
}

/// Two directories beside the project, with a file in each and a file that nobody reads.
fn data(stage: &Stage) -> (String, String) {
    stage.write(stage.aside().join("used/rows"), "rows\n");
    stage.write(stage.aside().join("used/other"), "other\n");
    stage.write(stage.aside().join("unused/secret"), "secret\n");
    (
        text(stage.aside().join("used")),
        text(stage.aside().join("unused")),
    )
}

/// The policy without the lines that hold a text.
fn without(stage: &Stage, policy: &str, part: &str) -> String {
    let whole = std::fs::read_to_string(policy).expect("the policy");
    let lines: Vec<&str> = whole.lines().filter(|line| !line.contains(part)).collect();
    assert!(lines.len() < whole.lines().count(), "{part}: {whole}");
    let path = stage.aside().join("less.toml");
    stage.write(&path, lines.join("\n"));
    text(path)
}

either! {
    fn what_was_learned_is_enough_and_not_more_than_that(stage) {
        let (used, unused) = data(stage);
        let policy = text(stage.aside().join("learned.toml"));
        let script = "cat \"$1/rows\" && echo done > answer";
        let command = ["--", "/bin/sh", "-c", script, "sh", &used];
        let learn = ["learn", "-o", &policy, "-r", &used, "-r", &unused];
        let learned = ironcage(stage, &[&learn[..], &command[..]].concat()).ok();
        assert_eq!(learned.stdout(), "rows\n");
        let written = std::fs::read_to_string(&policy).expect("the policy");
        for part in ["used/rows\"", "read by cat", "mode = \"cow\"", "# Written by `ironcage learn`"] {
            assert!(written.contains(part), "{part}: {written}");
        }
        for part in ["unused", "used/other", "network"] {
            assert!(!written.contains(part), "{part}: {written}");
        }
        ironcage(stage, &["policy", "check", &policy]).ok();
        let run = |policy: &str| {
            let flags = ["run", "-q", "--fresh", "--policy", policy];
            ironcage(stage, &[&flags[..], &command[..]].concat())
        };
        assert_eq!(run(&policy).ok().stdout(), "rows\n");
        // Each entry is needed: without one of them it does not work.
        assert_ne!(run(&without(stage, &policy, "used/rows\"")).code(), 0);
        let less = without(stage, &policy, "mode = \"cow\"");
        let read_only = std::fs::read_to_string(&less).expect("a policy");
        stage.write(&less, read_only.replace("[workspace]", "[workspace]\nmode = \"read-only\""));
        assert_ne!(run(&less).code(), 0);
        // The real tree is as it was.
        assert_eq!(stage.read("answer"), None);
    }

    fn junk_does_not_crowd_uses_out_of_what_is_learned_and_what_is_missing_is_told(stage) {
        let (used, _) = data(stage);
        let policy = text(stage.aside().join("learned.toml"));
        let script = "i=0; while [ $i -lt 2500 ]; do [ -e /junk-$i ]; i=$((i+1)); done; cat \"$1/rows\"";
        let command = ["--", "/bin/sh", "-c", script, "sh", &used];
        let learn = ["learn", "-q", "-o", &policy, "-r", &used];
        ironcage(stage, &[&learn[..], &command[..]].concat()).ok();
        let written = std::fs::read_to_string(&policy).expect("the policy");
        assert!(written.contains("used/rows\""), "{written}");
        assert!(written.contains("# Incomplete: "), "{written}");
        let told = ironcage(stage, &["policy", "tighten"]).ok().stdout();
        assert!(told.contains("more files and programs than the audit log lists"), "{told}");
        let tried = ironcage(stage, &["policy", "test", "--policy", &policy]);
        assert!(tried.stdout().contains("were not tested"), "{tried:?}");
        // With less of it nothing is missing.
        let command = ["--", "/bin/sh", "-c", "cat \"$1/rows\"", "sh", &used];
        ironcage(stage, &[&learn[..], &["--force"], &command[..]].concat()).ok();
        let written = std::fs::read_to_string(&policy).expect("the policy");
        assert!(written.contains("used/rows\"") && !written.contains("Incomplete"), "{written}");
    }

    fn a_file_that_is_written_and_then_read_is_given_once(stage) {
        let out = stage.aside().join("out");
        stage.write(out.join("before"), "b\n");
        let policy = text(stage.aside().join("learned.toml"));
        let given = format!("{}:direct", out.display());
        let script = "echo made > \"$1/made\" && cat \"$1/made\"";
        let command = ["--", "/bin/sh", "-c", script, "sh", &text(out.clone())];
        let learn = ["learn", "-q", "-o", &policy, "-w", &given];
        ironcage(stage, &[&learn[..], &command[..]].concat()).ok();
        let written = std::fs::read_to_string(&policy).expect("the policy");
        assert!(written.contains("write-direct"), "{written}");
        assert!(!written.contains("read = ["), "{written}");
        // From a fresh stage, where the output is not there yet.
        std::fs::remove_file(out.join("made")).expect("removed");
        let run = ["run", "-q", "--policy", &policy];
        let ran = ironcage(stage, &[&run[..], &command[..]].concat()).ok();
        assert_eq!(ran.stdout(), "made\n");
    }

    fn a_directory_with_a_sensitive_file_is_not_given_for_three_others(stage) {
        let data = stage.aside().join("data");
        for name in ["a", "b", "c", ".env"] {
            stage.write(data.join(name), format!("{name}\n"));
        }
        let policy = text(stage.aside().join("learned.toml"));
        let shown = text(data.clone());
        let script = "cat \"$1/a\" \"$1/b\" \"$1/c\"";
        let command = ["--", "/bin/sh", "-c", script, "sh", &shown];
        let learn = |policy: &str| {
            let flags = ["learn", "-q", "-o", policy, "--force", "-r", &shown];
            ironcage(stage, &[&flags[..], &command[..]].concat()).ok();
            std::fs::read_to_string(policy).expect("the policy")
        };
        let written = learn(&policy);
        assert!(written.contains("data/a\""), "{written}");
        assert!(!written.contains("data\""), "{written}");
        // Without it, three files of a directory become the directory.
        std::fs::remove_file(data.join(".env")).expect("removed");
        assert!(learn(&policy).contains("data\""));
    }

    fn a_file_is_never_replaced_without_a_word(stage) {
        let policy = stage.aside().join("mine.toml");
        stage.write(&policy, "# mine\n");
        let shown = text(policy.clone());
        let learn = |flags: &[&str]| {
            let begin = ["learn", "-q", "-o", &shown];
            let marker = ["--", "/bin/sh", "-c", "echo ran"];
            ironcage(stage, &[&begin[..], flags, &marker[..]].concat())
        };
        let refused = learn(&[]).failed("file-exists").says("--force");
        // It is said before the run, not after it.
        assert_eq!(refused.stdout(), "");
        assert_eq!(std::fs::read_to_string(&policy).expect("mine"), "# mine\n");
        assert_eq!(learn(&["--force"]).ok().stdout(), "ran\n");
        assert!(std::fs::read_to_string(&policy).expect("learned").contains("extends"));
        let mut left = std::fs::read_dir(stage.aside()).expect("a directory");
        assert!(left.all(|entry| entry.expect("an entry").path() == policy));
    }

    fn nothing_beyond_the_bound_is_given_and_what_was_tried_is_a_comment(stage) {
        let (used, _) = data(stage);
        stage.write(stage.home().join(".ssh/id_rsa"), "key\n");
        let bound = text(stage.aside().join("bound.toml"));
        let asked = text(stage.aside().join("asked"));
        stage.write(stage.aside().join("asked/x"), "x\n");
        stage.write(&bound, format!(
            "extends = \"shell\"\n[limits]\nmemory = \"300M\"\n[ceiling.ask.files]\nread = [\"{asked}\"]\n"
        ));
        let policy = text(stage.aside().join("learned.toml"));
        let script = "cat \"$1/rows\"; cat \"$2/x\"; cat ~/.ssh/id_rsa; unshare -U true; cat a; exit 5";
        let learn = ["learn", "-q", "-o", &policy, "--max", &bound, "--"];
        let command = ["/bin/sh", "-c", script, "sh", &used, &asked];
        ironcage(stage, &[&learn[..], &command[..]].concat()).ended(5);
        let written = std::fs::read_to_string(&policy).expect("the policy");
        let line = |part: &str| {
            let found = written.lines().find(|line| line.contains(part));
            found.unwrap_or_else(|| panic!("{part}: {written}")).trim().to_owned()
        };
        assert!(line("used/rows\"").starts_with("# "), "{written}");
        assert!(line("id_rsa, not proposed").starts_with("# cat tried"));
        assert!(line("unshare was").starts_with("# "));
        assert!(line("asked/x\"").starts_with('"'));
        assert!(written.contains("[ceiling.ask.files]"), "{written}");
        // Less than twice the most would have been too much: the bound is less.
        assert!(line("memory = ").contains("300M"), "{written}");
        ironcage(stage, &["policy", "check", &policy]).ok();
    }

    fn hosts_that_were_contacted_are_learned_and_no_others(stage) {
        let web = Web::start(0);
        let (address, port) = (web.address.ip().to_string(), web.address.port().to_string());
        let resolve = format!("web.test={address}");
        let (host, here) = (format!("web.test:{port}"), format!("{address}:{port}"));
        let flags = ["--allow-host", &host, "--allow-host", &here, "--allow-host", "idle.test", "--resolve", &resolve];
        let policy = text(stage.aside().join("learned.toml"));
        let url = format!("http://web.test:{port}/");
        let command = ["--", "curl", "-sS", "-o", "/dev/null", &url];
        let learn = ["learn", "-q", "-o", &policy, "--max", "shell"];
        ironcage(stage, &[&learn[..], &flags[..], &command[..]].concat()).ok();
        let written = std::fs::read_to_string(&policy).expect("the policy");
        assert!(written.contains(&format!("\"{host}\"")), "{written}");
        assert!(!written.contains("idle.test"), "{written}");
        // The name leads to the host's own loopback, which a rule has to name too.
        assert!(written.contains(&format!("\"{here}\"")), "{written}");
        let run = |policy: &str| {
            let run = ["run", "-q", "--policy", policy];
            ironcage(stage, &[&run[..], &command[..]].concat())
        };
        run(&policy).ok();
        assert_ne!(run(&without(stage, &policy, &host)).code(), 0);
        assert_eq!(web.heard().len(), 2);
    }

    fn what_was_given_and_never_used_is_told_as_a_change_of_the_policy(stage) {
        let (used, unused) = data(stage);
        let policy = stage.aside().join("wide.toml");
        stage.write(&policy, format!(
            "extends = \"shell\"\n[files]\nread = [\n  \"{used}\",\n  \"{unused}\",\n]\n[syscalls]\ngroups = [\"debug\"]\n[network]\nallow = [\"idle.test\"]\n"
        ));
        let shown = text(policy.clone());
        let script = format!("cat {used}/rows; echo x > made");
        let run = ["run", "-q", "--observe", "--policy", &shown, "--", "/bin/sh", "-c", &script];
        ironcage(stage, &run).ok();
        let told = ironcage(stage, &["policy", "tighten"]).ok().stdout();
        for part in [&*format!("-  \"{unused}\","), "-groups = [\"debug\"]", "+groups = []", "-allow = [\"idle.test\"]"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(!told.contains(&format!("-  \"{used}\",")), "{told}");
        assert!(told.contains("this covers one run"), "{told}");
        // Nothing was written, and the change is one that `patch` takes.
        assert!(std::fs::read_to_string(&policy).expect("it").contains("unused"));
        // Without observing, nothing is claimed of files.
        let run = ["run", "-q", "--policy", &shown, "--", "/bin/sh", "-c", "true"];
        ironcage(stage, &run).ok();
        let told = ironcage(stage, &["policy", "tighten"]).ok().stdout();
        assert!(told.contains("did not observe") && !told.contains(&format!("-  \"{unused}\"")), "{told}");
        assert!(told.contains("-allow = [\"idle.test\"]"), "{told}");
    }

    fn a_policy_is_tried_against_a_run_that_is_over(stage) {
        let (used, unused) = data(stage);
        let script = format!("cat {used}/rows; cat {unused}/secret; echo x > made");
        let run = ["run", "-q", "--observe", "-r", &used, "--", "/bin/sh", "-c", &script];
        ironcage(stage, &run);
        let with = |content: String| {
            let path = stage.aside().join("try.toml");
            stage.write(&path, content);
            ironcage(stage, &["policy", "test", "last", "--policy", &text(path)])
        };
        let same = with(format!("[files]\nread = [\"{used}\"]\n")).ok();
        assert!(same.stdout().contains("same outcome as the run"), "{same:?}");
        let wider = with(format!("[files]\nread = [\"{used}\", \"{unused}\"]\n")).ok();
        assert!(wider.stdout().contains("allowed  (was refused)"), "{wider:?}");
        let less = with("[files]\nread = []\n".into()).ended(1);
        assert!(less.stdout().contains("refused  (was allowed)"), "{less:?}");
        let asks = with(format!("[ceiling.ask.files]\nread = [\"{used}\"]\n")).ended(1);
        assert!(asks.stdout().contains("asked    (was allowed)"), "{asks:?}");
        let read_only = with(format!("[workspace]\nmode = \"read-only\"\n[files]\nread = [\"{used}\"]\n")).ended(1);
        assert!(read_only.stdout().contains("write") && read_only.stdout().contains("made"), "{read_only:?}");
    }

    fn each_use_is_put_on_record_once_and_an_unobserved_run_leaves_none_of_it(stage) {
        stage.sh_with(&["--observe"], "for i in 1 2 3; do for f in a b; do : > ~/$f; done; done").ok();
        let shown = ironcage(stage, &["audit", "show"]).ok().stdout();
        let seen = shown.lines().filter(|line| line.contains(" seen    write ")).count();
        assert_eq!(seen, 2, "{shown}");
        ironcage(stage, &["audit", "verify"]).ok();
        stage.sh("cat /etc/hosts").ok();
        let shown = ironcage(stage, &["audit", "show"]).ok().stdout();
        assert!(!shown.contains(" seen "), "{shown}");
    }
}
