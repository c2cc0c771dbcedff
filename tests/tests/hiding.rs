//! What a policy hides by patterns: at any depth, in a copy-on-write workspace and in one of real
//! files, as it is when the cage starts.

use ironcage_tests::{DIRECT, Stage, both};
use std::os::unix::fs::{PermissionsExt, symlink};

const COW: [&str; 2] = ["--workspace-mode", "cow"];

fn fill(stage: &Stage) {
    for (name, text) in [
        ("plain", "open"),
        (".env", "CANARY"),
        ("a/b/.env", "CANARY"),
        ("a/b/.envrc.example", "open"),
        ("a/key.pem", "CANARY"),
        ("a/certs.pem/inner", "CANARY"),
        ("conf/one.key", "CANARY"),
        ("conf/deep/two.key", "open"),
    ] {
        stage.write(stage.project().join(name), text);
    }
}

/// Everything that can be read below the workspace, in one line.
const READ_ALL: &str = "cat $(find . -type f) 2>/dev/null | tr -d '\\n'";

both! {
    fn patterns_hide_at_any_depth_and_nothing_else(stage) {
        fill(stage);
        for mode in [COW, DIRECT] {
            // The arm that shows what is there to be seen.
            let all = stage.sh_with(&mode, READ_ALL);
            assert_eq!(all.stdout().matches("CANARY").count(), 5, "{all:?}");
            let flags = [&mode[..], &["--hide", "**/.env", "--hide", "*.pem", "--hide", "conf/*.key"]].concat();
            let ran = stage.sh_with(&flags, READ_ALL);
            assert!(!ran.stdout().contains("CANARY"), "{ran:?}");
            assert_eq!(ran.stdout().matches("open").count(), 3, "{ran:?}");
            // Once for a workspace: the second mode has the same note.
            let noted = ran.stderr.contains("**/.env hides 2 of ")
                && ran.stderr.contains("files that appear later stay visible");
            assert_eq!(noted, mode == COW, "{ran:?}");
        }
    }

    fn a_policy_file_hides_by_patterns_and_the_plan_shows_what(stage) {
        fill(stage);
        stage.write(stage.project().join("ironcage.toml"), "[files]\nhide = [\"**/.env\", \"conf/*.key\"]\n");
        let ran = stage.sh(READ_ALL);
        assert_eq!(ran.stdout().matches("CANARY").count(), 2, "{ran:?}");
        let plan = ironcage_tests::Running::start(&mut stage.ironcage(["plan", "--all", "--", "true"]));
        let plan = plan.finish(std::time::Duration::from_secs(60)).ok().stdout();
        for name in ["project/a/b/.env", "project/conf/one.key"] {
            assert!(plan.contains(name), "{name}: {plan}");
        }
        assert!(!plan.contains("two.key"), "{plan}");
    }

    fn what_is_hidden_is_neither_moved_nor_removed_nor_replaced(stage) {
        fill(stage);
        let script = "rm -rf a .env; mv a other; echo mine > .env; mv a/b c; ln a/b/.env linked; cat linked c/.env other/b/.env; true";
        for mode in [COW, DIRECT] {
            let flags = [&mode[..], &["--hide", "**/.env"]].concat();
            let ran = stage.sh_with(&flags, script).ok();
            assert!(!format!("{ran:?}").contains("CANARY"), "{ran:?}");
            if mode == COW {
                let apply = ironcage_tests::Running::start(&mut stage.ironcage(["apply"]));
                apply.finish(std::time::Duration::from_secs(60)).ok();
            }
            assert_eq!(stage.read(".env").as_deref(), Some("CANARY"));
            assert_eq!(stage.read("a/b/.env").as_deref(), Some("CANARY"));
            // The next run hides them as well.
            let again = stage.sh_with(&flags, "cat .env a/b/.env");
            assert!(!again.stdout().contains("CANARY"), "{again:?}");
        }
    }

    fn links_that_fit_hide_what_they_lead_to_and_closed_directories_are_hidden(stage) {
        fill(stage);
        stage.write(stage.project().join("elsewhere/real"), "CANARY");
        symlink("elsewhere/real", stage.project().join("x.pem")).expect("a link");
        symlink(".", stage.project().join("y.pem")).expect("a link");
        stage.write(stage.project().join("shut/z.pem"), "CANARY");
        let shut = stage.project().join("shut");
        std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o000)).expect("closed");
        let flags = [&COW[..], &["--hide", "*.pem", "--hide", "**/.env", "--hide", "conf/*.key"]].concat();
        let ran = stage.sh_with(&flags, &format!("chmod 700 shut; {READ_ALL}; cat elsewhere/real plain"));
        assert!(!ran.stdout().contains("CANARY") && ran.stdout().ends_with("open"), "{ran:?}");
        std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o700)).expect("opened");
    }

    fn a_change_that_lacks_what_is_hidden_can_be_gone_on_with(stage) {
        fill(stage);
        stage.sh_with(&COW, "rm -r a .env && mkdir .env").ok();
        let flags = [&COW[..], &["--hide", "**/.env"]].concat();
        stage.sh_with(&flags, "test ! -e a && ! ls .env/ && cat plain").ok().says("continuing pending change");
    }

    fn what_is_no_pattern_is_refused(stage) {
        stage.sh_with(&["--hide", "a**b"], "true").ended(125).says("invalid pattern");
        stage.sh_with(&["--hide", "*.pem"], "true").ok();
    }
}
