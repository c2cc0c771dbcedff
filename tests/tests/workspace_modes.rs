//! What each mode of the workspace does to the real files, from end to end; and repositories whose git directory is not
//! a plain one.
#![forbid(unsafe_code)]

use ironcage_tests::{Ran, Running, Screen, Stage, binary, both};
use std::time::Duration;

fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(Duration::from_secs(120))
}

const PLANT: &str = "echo agents > file; echo all: > Makefile; echo evil > .envrc";

both! {
    fn apply_brings_over_at_a_successful_end_what_nobody_would_execute(stage) {
        stage.write(stage.project().join("file"), "mine\n");
        let mode = ["--workspace-mode", "apply"];
        // Not after a failure.
        stage.sh_with(&mode, &format!("{PLANT}; exit 3")).ended(3).says("kept aside");
        assert_eq!(stage.read("file").as_deref(), Some("mine\n"));
        stage.sh_with(&mode, "true").ok().says("aside     .envrc").says("aside     Makefile");
        assert_eq!(stage.read("file").as_deref(), Some("agents\n"));
        assert_eq!((stage.read("Makefile"), stage.read(".envrc")), (None, None));
        // What the policy lists comes over too, what it does not list stays.
        stage.write(stage.project().join("ironcage.toml"), "[workspace]\nmode = \"apply\"\nunprotect = [\"Makefile\"]\n");
        ironcage(stage, &["trust", "--yes", "ironcage.toml"]).ok();
        stage.sh("true").ok().says("aside     .envrc");
        assert_eq!((stage.read("Makefile").as_deref(), stage.read(".envrc")), (Some("all:\n"), None));
        ironcage(stage, &["apply", ".envrc"]).ok();
        assert_eq!(stage.read(".envrc").as_deref(), Some("evil\n"));
    }

    fn direct_writes_the_real_files_read_only_none_and_scratch_has_none(stage) {
        stage.write(stage.project().join("file"), "mine\n");
        let mode = |mode: &str, script: &str| stage.sh_with(&["-q", "--workspace-mode", mode], script);
        let ran = mode("read-only", "cat file; echo x > file; echo x > new; test ! -e new && test \"$(cat file)\" = mine").ok();
        assert!(ran.stdout() == "mine\n" && ran.stderr.contains("Read-only"), "{ran:?}");
        mode("scratch", "test ! -e file && test -z \"$(ls -A)\" && echo x > new && cat new").ok();
        mode("scratch", "test ! -e new").ok();
        assert_eq!((stage.read("file").as_deref(), stage.read("new")), (Some("mine\n"), None));
        assert_eq!(ironcage(stage, &["changes"]).ok().stdout(), "");
        mode("direct", "echo direct > file").ok();
        assert_eq!(stage.read("file").as_deref(), Some("direct\n"));
    }

    fn commits_in_submodules_and_shallow_clones_come_over(stage) {
        let identity = "git config user.name n && git config user.email e";
        stage.sh_outside(&format!("git init -q -b main ../library && cd ../library && {identity} && echo 1 > file && git add . && git commit -q -m first &&
            git commit -q --allow-empty -m second && cd ../project && git init -q -b main . && {identity} &&
            git -c protocol.file.allow=always submodule -q add ../library lib && git commit -q -m module && cd lib && {identity} &&
            cd ../.. && git clone -q --depth 1 \"file://$PWD/library\" shallow && cd shallow && {identity}")).ok();
        stage.sh_with(&["-q"], "set -e; cd lib; echo 2 >> file; git commit -qam inner; cd ..; git commit -qam outer; echo x > .git/modules/lib/hooks/pre-commit").ok();
        let applied = ironcage(stage, &["apply"]).ok().stdout();
        assert!(applied.contains("aside     .git/modules/lib/hooks"), "{applied}");
        let log = "git log --format=%s -1; git -C lib log --format=%s -1; git status --porcelain; git fsck --strict 2>&1";
        assert_eq!(stage.sh_outside(log).ok().stdout(), "outer\ninner\n");
        assert!(stage.read(".git/modules/lib/hooks/pre-commit").is_none());
        let shallow = stage.home().join("shallow").display().to_string();
        stage.sh_with(&["-q", "--workspace", &shallow], "echo 3 >> file && git commit -qam inside").ok();
        let applied = ironcage(stage, &["apply", "--workspace", &shallow]).ok().stdout();
        assert!(!applied.contains("aside"), "{applied}");
        let log = "cd ../shallow; git log --format=%s; git status --porcelain; git fsck --strict 2>&1";
        assert_eq!(stage.sh_outside(log).ok().stdout(), "inside\nsecond\n");
    }

    fn a_diff_is_paged_and_coloured_on_a_terminal_alone(stage) {
        stage.write(stage.project().join("file"), "mine\n");
        stage.sh_with(&["-q"], "printf 'agents\\033]0;title\\007\\n' > file").ok();
        let plain = ironcage(stage, &["diff"]).ok().stdout();
        assert!(plain.contains("-mine\n+agents") && !plain.contains('\u{1b}'), "{plain}");
        let Some(screen) = Screen::open(stage) else { return };
        let diff = |pager: &str| screen.line(&format!("clear; PAGER='{pager}' {} diff", binary().display()));
        diff("sed s/^/paged:/ | cat -v");
        screen.shows("paged:^[[31m-mine");
        screen.prompt();
        assert!(!screen.text().contains("^[]0;title"), "{}", screen.text());
        // Without such a program it is shown all the same.
        diff("no-such-pager");
        screen.shows("-mine");
        screen.prompt();
    }
}
