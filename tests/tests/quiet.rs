//! What a run prints of its own: once, short, and nothing where there is nothing to decide.

use ironcage_tests::{Ran, Running, Screen, Stage, either, skip};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

#[track_caller]
fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(PATIENCE)
}

/// The lines of ours on standard error.
fn lines(ran: &Ran) -> Vec<&str> {
    let lines = ran.stderr.lines();
    lines
        .filter(|line| line.starts_with("ironcage:") || line.starts_with("  "))
        .collect()
}

fn repository(stage: &Stage) {
    stage.write(stage.project().join("file"), "content\n");
    stage.sh_outside("git init -q . && git add file && git -c user.name=a -c user.email=a@b.c commit -qm first").ok();
    // Another time than the index has: git writes it anew.
    stage.sh_outside("touch -d '2001-01-01' file").ok();
}

either! {
    fn git_status_leaves_no_change_and_one_line(stage) {
        repository(stage);
        let ran = ironcage(stage, &["run", "git", "status", "--short"]).ok();
        assert_eq!(lines(&ran).len(), 1, "{ran:?}");
        // The same note again is not printed.
        let ran = ironcage(stage, &["run", "git", "status", "--short"]).ok();
        assert!(lines(&ran).is_empty(), "{ran:?}");
        assert_eq!(ironcage(stage, &["change", "list"]).ok().stdout().matches("wk").count(), 0);
        // What is staged is a change, and is named.
        let ran = ironcage(stage, &["run", "sh", "-c", "echo more > file; git add file; git checkout -q HEAD -- . 2>/dev/null; echo x > new; git add new; rm new"]).ok();
        assert!(ran.stderr.contains("pending change"), "{ran:?}");
    }

    fn a_virtual_environment_is_one_line_without_a_prompt(stage) {
        let make = "mkdir -p venv/bin venv/lib && touch venv/pyvenv.cfg venv/bin/activate venv/bin/python venv/lib/module.py";
        let ran = ironcage(stage, &["run", "sh", "-c", make]).ok();
        let pending: Vec<&str> = ran.stderr.lines().filter(|line| !line.contains("profile")).collect();
        assert_eq!(pending.len(), 1, "{ran:?}");
        assert!(pending[0].contains("kept for the next run: venv"), "{ran:?}");
        // Beside something else it is a change to decide about.
        let ran = ironcage(stage, &["run", "sh", "-c", "echo x > notes"]).ok();
        assert!(ran.stderr.contains("`ironcage apply` to keep"), "{ran:?}");
        // Known, and not repeated.
        let ran = ironcage(stage, &["run", "true"]).ok();
        assert!(!ran.stderr.contains("`ironcage apply` to keep"), "{ran:?}");
        let Some(screen) = Screen::open(stage) else { return };
        let program = ironcage_tests::binary().display().to_string();
        screen.line(&format!("{program} run true; echo status=$?"));
        screen.shows("status=0");
        assert!(!screen.text().contains("[k]eep"), "{}", screen.text());
        screen.line(&format!("{program} run sh -c 'echo y > other'; echo status=$?"));
        screen.asks("discard? [k]");
        screen.keys(&["Enter"]);
        screen.shows("status=0");
    }

    fn a_plan_is_ten_lines_and_all_of_it_on_request(stage) {
        let short = ironcage(stage, &["plan", "-r", "/usr/share", "true"]).ok().stdout();
        assert!(short.lines().count() <= 10, "{short}");
        assert!(short.contains("/usr/share") && short.contains("--all"), "{short}");
        let all = ironcage(stage, &["plan", "--all", "true"]).ok().stdout();
        assert!(all.lines().count() > 60 && all.contains("[built in]"), "{all}");
    }

    fn why_and_audit_show_mean_the_last_cage_of_this_workspace(stage) {
        if !std::path::Path::new("/usr/bin/python3").exists() {
            return skip("python3 is not installed");
        }
        let denied = "import socket,sys\ntry: socket.create_connection(('192.0.2.1', 80), 1)\nexcept OSError: pass";
        ironcage(stage, &["run", "-q", "--allow-host", "example.com", "/usr/bin/python3", "-c", denied]).ok();
        let elsewhere = stage.aside().display().to_string();
        ironcage(stage, &["run", "-q", "--workspace", &elsewhere, "true"]).ok();
        let why = ironcage(stage, &["why"]).ok().stdout();
        assert!(why.contains("192.0.2.1"), "{why}");
        let shown = ironcage(stage, &["audit", "show"]).ok().stdout();
        let second = shown.lines().nth(1).unwrap_or_default();
        assert!(second.contains("status 0") && second.contains("connections denied"), "{shown}");
        let last = ironcage(stage, &["audit", "show", "last"]).ok().stdout();
        assert!(last.contains("nothing was denied"), "{last}");
    }
}
