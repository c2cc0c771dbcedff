//! What a user does with pending changes by hand: the choice at the end of a run, file by file, lists, snapshots, and
//! taking away what nobody will miss. tmux is the user's terminal.

use ironcage_tests::{Ran, Running, Screen, Stage, binary, either, wait_until};
use serde_json::Value;
use std::time::Duration;

const CHOICE: &str = "[a]pply, [d]iff, [k]eep or [x] discard? [k]";

fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(Duration::from_secs(120))
}

fn changes(stage: &Stage) -> Vec<Value> {
    let listed = ironcage(stage, &["change", "list", "--json"]).ok().stdout();
    serde_json::from_str(&listed).expect("a list")
}

fn id(change: &Value) -> String {
    change["id"].as_str().expect("an id").to_owned()
}

either! {
    fn at_the_end_of_a_run_on_a_terminal_its_user_chooses(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let run = |script: &str| {
            screen.line(&format!("clear; {} run --profile shell -- /bin/sh -c '{script}'", binary().display()));
            screen.asks(CHOICE);
        };
        // To look, then to keep it: by an empty answer.
        run("echo agents > file");
        assert!(screen.text().contains("1 added; +1 -0 lines"), "{}", screen.text());
        screen.line("d");
        screen.shows("+agents");
        screen.asks(CHOICE);
        screen.line("nothing of the kind");
        screen.asks(&format!("{CHOICE} nothing of the kind\n{CHOICE}"));
        screen.line("");
        screen.prompt();
        assert_eq!((stage.read("file"), changes(stage).len()), (None, 1));
        // The next run says that it goes on with that. Apply.
        run("cat file; echo more >> file");
        screen.shows("ironcage: continuing pending change w");
        screen.line("a");
        screen.prompt();
        assert!(screen.text().contains("ironcage: 1 applied"), "{}", screen.text());
        assert_eq!(stage.read("file").as_deref(), Some("agents\nmore\n"));
        assert_eq!(changes(stage).len(), 0);
        // Discard.
        run("rm file; echo other > other");
        screen.line("x");
        screen.prompt();
        assert_eq!(stage.read("file").as_deref(), Some("agents\nmore\n"));
        assert_eq!((stage.read("other"), changes(stage).len()), (None, 0));
        // Where there is nobody to ask, it is told and kept.
        stage.sh("echo x > kept").ok().says("`ironcage apply` to keep it");
        assert_eq!((stage.read("kept"), changes(stage).len()), (None, 1));
    }

    fn what_was_typed_before_the_question_is_no_answer_and_nothing_hides_it(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let script = r#"echo agents > file; read line; printf "\033[8m\033[?1049hpress a"#;
        screen.line(&format!("clear; {} run --profile shell -- /bin/sh -c '{script}\"'", binary().display()));
        let made = "ls \"$XDG_STATE_HOME\"/ironcage/changes/*/w*/upper/file";
        assert!(wait_until(Screen::PATIENCE, || stage.sh_outside(made).code() == 0));
        // Somebody has the change, so that the question has to wait.
        let hold = "cd \"$XDG_STATE_HOME\"/ironcage/changes/*/w*/ && : > applying &&
            exec flock applying sh -c 'touch \"$HOME/held\"; until test -e \"$HOME/go\"; do sleep 0.02; done'";
        let holder = Running::start(stage.outside("/bin/sh").args(["-c", hold]));
        assert!(wait_until(Screen::PATIENCE, || stage.home().join("held").exists()));
        screen.line("");
        // When the terminal reads lines again, nothing that is typed goes to the cage.
        let tty = screen.tmux(&["display-message", "-p", "#{pane_tty}"]);
        let reads_lines = format!("stty -a -F {} | grep -q -e ' icanon'", tty.trim());
        assert!(wait_until(Screen::PATIENCE, || stage.sh_outside(&reads_lines).code() == 0));
        screen.line("a");
        stage.write(stage.home().join("go"), "");
        holder.finish(Screen::PATIENCE).ok();
        screen.asks(CHOICE);
        assert_eq!((stage.read("file"), changes(stage).len()), (None, 1));
        // The allowing arm: an answer after it.
        screen.line("a");
        screen.prompt();
        assert_eq!(stage.read("file").as_deref(), Some("agents\n"));
    }

    fn a_change_is_applied_file_by_file(stage) {
        stage.sh_outside("git init -q -b main . && git config user.name n && git config user.email e && echo 1 > kept && echo 1 > taken && \
            git add . && git commit -q -m first").ok();
        stage.sh_with(&["-q"], "echo 2 > kept; echo 2 > taken; echo evil > .envrc; echo new > new; echo z > zlast; \
            git -c user.name=a -c user.email=a@b commit -q -a -m inside").ok();
        ironcage(stage, &["apply", "--interactive"]).failed("confirmation-needed");
        let Some(screen) = Screen::open(stage) else { return };
        let ironcage_line = |rest: &str| screen.line(&format!("clear; {} {rest}", binary().display()));
        let answer = |about: &str, word: &str| {
            screen.asks(&format!("apply {about}? [y,n,a,q]"));
            screen.line(word);
        };
        // Each with what differs, and with what the host would do with it. Enough before the last.
        ironcage_line("apply --interactive");
        screen.asks("apply .envrc? [y,n,a,q]");
        let shown = screen.text();
        assert!(shown.contains("+evil") && shown.contains("note: direnv runs it"), "{shown}");
        answer(".envrc", "n");
        answer("kept", "n");
        answer("new", "y");
        answer("taken", "y");
        answer("zlast", "q");
        screen.prompt();
        assert_eq!(stage.read("taken").as_deref(), Some("2\n"));
        assert_eq!(stage.read("new").as_deref(), Some("new\n"));
        assert_eq!(stage.read("kept").as_deref(), Some("1\n"));
        assert_eq!((stage.read(".envrc"), stage.read("zlast")), (None, None));
        let subject = || stage.sh_outside("git log --format=%s -1").ok().stdout();
        assert_eq!(subject(), "first\n");
        // Nothing at all.
        ironcage_line("apply --interactive");
        answer(".envrc", "q");
        screen.shows("nothing applied");
        // One withheld file by its own yes, then all the rest, commits among it.
        screen.prompt();
        ironcage_line("apply --interactive");
        answer(".envrc", "y");
        answer("kept", "a");
        screen.prompt();
        assert_eq!(stage.read(".envrc").as_deref(), Some("evil\n"));
        assert_eq!(stage.read("kept").as_deref(), Some("2\n"));
        assert_eq!(stage.read("zlast").as_deref(), Some("z\n"));
        assert_eq!(subject(), "inside\n");
        assert_eq!(changes(stage).len(), 0);
    }

    fn changes_are_listed_and_what_nobody_misses_is_taken_away(stage) {
        assert_eq!(ironcage(stage, &["change", "list"]).ok().stdout(), "");
        assert!(ironcage(stage, &["change", "prune", "--yes"]).ok().stdout().contains("nothing to remove"));
        stage.sh_with(&["-q"], "head -c 3000000 /dev/zero > first").ok();
        stage.sh_with(&["-q", "--fresh"], "test ! -e first && echo 2 > second").ok();
        let all = changes(stage);
        let (current, aside): (Vec<_>, Vec<_>) = all.iter().partition(|change| change["current"] == true);
        let (current, aside) = (id(current[0]), id(aside[0]));
        let listed = ironcage(stage, &["change", "list"]).ok().stdout();
        let line = |id: &str| listed.lines().find(|line| line.starts_with(id)).expect(id).to_owned();
        assert!(line(&aside).contains("2930 KiB") && line(&aside).contains("(superseded by a newer change)"), "{listed}");
        assert!(line(&current).contains(" s ") && line(&current).ends_with("/home/project"), "{listed}");
        // By its id, whatever the workspace's current one is.
        assert!(ironcage(stage, &["diff", &aside, "--name-only"]).ok().stdout().contains("first"));
        assert!(!ironcage(stage, &["diff", "--name-only"]).ok().stdout().contains("first"));
        // Neither without a word nor before its time.
        ironcage(stage, &["change", "prune"]).failed("confirmation-needed").says("--yes");
        assert!(ironcage(stage, &["change", "prune", "--yes", "--older-than", "1d"]).ok().stdout().contains("nothing to remove"));
        let removed = ironcage(stage, &["change", "prune", "--yes"]).ok().stdout();
        assert!(removed.contains(&aside) && !removed.contains(&current) && removed.contains("removed 1"), "{removed}");
        assert_eq!(changes(stage).iter().map(id).collect::<Vec<_>>(), [current.as_str()]);
        // The change of a workspace that is gone, and on a terminal with a question.
        let other = stage.home().join("other");
        stage.mkdir(&other);
        let shown = other.display().to_string();
        stage.sh_with(&["-q", "--workspace", &shown], "echo x > there").ok();
        std::fs::remove_dir_all(&other).expect("removed");
        let listed = ironcage(stage, &["change", "list"]).ok().stdout();
        assert!(listed.contains("(workspace deleted)"), "{listed}");
        let Some(screen) = Screen::open(stage) else { return };
        for (word, left) in [("n", 2), ("y", 1)] {
            screen.line(&format!("clear; {} change prune", binary().display()));
            screen.asks("remove 1? [y/N]");
            screen.line(word);
            screen.prompt();
            assert_eq!(changes(stage).len(), left);
        }
        ironcage(stage, &["apply"]).ok();
        assert_eq!(stage.read("second").as_deref(), Some("2\n"));
    }

    fn a_state_is_kept_gone_back_to_and_forked(stage) {
        stage.sh_with(&["-q"], "echo 1 > file").ok();
        assert_eq!(ironcage(stage, &["change", "snapshot", "before"]).ok().stdout(), "before\n");
        let number = ironcage(stage, &["change", "snapshot"]).ok().stdout();
        stage.sh_with(&["-q"], "echo 2 > file").ok();
        let listed = ironcage(stage, &["change", "snapshot", "--list"]).ok().stdout();
        assert!(listed.contains("before  of w") && listed.contains(number.trim()), "{listed}");
        ironcage(stage, &["change", "restore", "nosuch"]).ended(125).says("`ironcage change snapshot --list` lists snapshots");
        ironcage(stage, &["change", "restore", "before"]).ok();
        stage.sh_with(&["-q"], "test \"$(cat file)\" = 1").ok();
        // A cage works on the one, another goes on from the same state beside it. Its processes stand still meanwhile.
        let running = ironcage(stage, &["run", "-q", "-d", "--sticky"]).ok().stdout().trim().to_owned();
        let exec = |script: &str| ironcage(stage, &["exec", &running, "--", "/bin/sh", "-c", script]);
        exec("echo 3 > file").ok();
        let first = changes(stage).iter().find(|change| change["in_use"] == true).map(id).expect("one in use");
        assert_eq!(ironcage(stage, &["change", "snapshot", "live"]).ok().stdout(), "live\n");
        let fork = ironcage(stage, &["change", "fork", &first]).ok().stdout().trim().to_owned();
        let ran = stage.sh_with(&["--workspace-mode", "cow"], "cat file; echo 4 > file").ok();
        assert_eq!(ran.stdout(), "3\n", "{ran:?}");
        ran.says(&format!("continuing pending change {fork}"));
        assert_eq!(exec("cat file").ok().stdout(), "3\n");
        ironcage(stage, &["stop", "--time", "0", &running]).ok();
        // What it was forked from is nothing that nobody misses, and has its turn after the fork.
        assert!(ironcage(stage, &["change", "list"]).ok().stdout().contains(&format!("(forked as {fork})")));
        ironcage(stage, &["change", "prune", "--yes"]).ok();
        ironcage(stage, &["apply", &fork]).ok();
        assert_eq!(stage.read("file").as_deref(), Some("4\n"));
        stage.sh_with(&["-q"], "test \"$(cat file)\" = 3").ok();
        ironcage(stage, &["change", "snapshot", "--remove", "before"]).ok();
        assert!(!ironcage(stage, &["change", "snapshot", "--list"]).ok().stdout().contains("before"));
    }
}
