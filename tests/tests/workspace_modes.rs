//! What each mode of the workspace does to the real files, from end to end; and repositories whose git directory is not
//! a plain one.

use ironcage_tests::{Ran, Running, Screen, Stage, binary, both, skip};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(Duration::from_secs(120))
}

/// Commands of a user who owns nothing here; none where this process cannot become another user.
fn stranger() -> Option<impl Fn(&str) -> bool> {
    const NOBODY: u32 = 65534;
    if !std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        skip("needs root, to become another user");
        return None;
    }
    Some(|script: &str| {
        let mut shell = Command::new("/bin/sh");
        let status = shell.args(["-c", script]).uid(NOBODY).gid(NOBODY).status();
        status.expect("a shell").success()
    })
}

const PLANT: &str = "echo agents > file; echo all: > Makefile; echo evil > .envrc";

both! {
    fn apply_brings_over_at_a_successful_end_what_nobody_would_execute(stage) {
        stage.write(stage.project().join("file"), "mine\n");
        let mode = ["--workspace-mode", "apply"];
        // Not after a failure.
        stage.sh_with(&mode, &format!("{PLANT}; exit 3")).ended(3).says("pending change w");
        assert_eq!(stage.read("file").as_deref(), Some("mine\n"));
        stage.sh_with(&mode, "true").ok().says("pending   .envrc").says("pending   Makefile");
        assert_eq!(stage.read("file").as_deref(), Some("agents\n"));
        assert_eq!((stage.read("Makefile"), stage.read(".envrc")), (None, None));
        // What the policy lists comes over too, what it does not list stays.
        stage.write(stage.project().join("ironcage.toml"), "[workspace]\nmode = \"apply\"\nunprotect = [\"Makefile\"]\n");
        ironcage(stage, &["trust", "--yes", "ironcage.toml"]).ok();
        stage.sh("true").ok().says("pending   .envrc");
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
        assert_eq!(ironcage(stage, &["change", "list"]).ok().stdout(), "");
        mode("direct", "echo direct > file").ok();
        assert_eq!(stage.read("file").as_deref(), Some("direct\n"));
    }

    /// A second user of the host says what he can do before and after.
    fn no_other_user_gains_by_the_modes_of_a_change(stage) {
        let Some(stranger) = stranger() else { return };
        stage.sh_outside("umask 022; echo a > file; echo b > script; mkdir dir sticky; echo c > dir/in; chmod 1777 sticky; echo d > private; chmod 600 private; echo e > shared; chmod 666 shared").ok();
        let can = |test: &str, name: &str| {
            let script = format!("test {test} {}", stage.project().join(name).display());
            stranger(&script)
        };
        assert!(!can("-w", "file") && !can("-w", "dir") && !can("-r", "private"));
        // The allowing arm: the oracle can tell.
        assert!(can("-w", "shared") && can("-w", "sticky") && can("-r", "file"));
        stage.sh_with(&["-q"], "umask 0; chmod 777 file dir; chmod 755 script; chmod 777 sticky; echo n > new; mkdir made; echo m > made/in; chmod 644 private; echo E > shared").ok();
        let diff = ironcage(stage, &["diff"]).ok().stdout();
        assert!(diff.contains("new mode 100777"), "{diff}");
        let told = ironcage(stage, &["apply"]).ok().stdout();
        for name in ["file", "dir", "new", "made", "made/in"] {
            assert!(!can("-w", name), "{name}: {told}");
        }
        assert!(can("-k", "sticky"), "{told}");
        // What he can do now is named: reading. What he could before he can still.
        assert!(told.contains("applied   private: "), "{told}");
        assert!(can("-r", "private") && can("-w", "shared") && can("-x", "script"), "{told}");
        assert_eq!(stage.read("shared").as_deref(), Some("E\n"));
        for told_of in ["applied   file: ", "applied   dir: ", "pending   sticky: "] {
            assert!(told.contains(told_of), "{told_of}: {told}");
        }
        ironcage(stage, &["apply", "sticky"]).ok();
        assert!(!can("-k", "sticky") && can("-w", "sticky"));
    }

    fn the_umask_of_the_user_holds_for_what_is_new(stage) {
        stage.sh_with(&["-q"], "echo n > new; mkdir made; echo m > made/in; echo x > tool.sh; chmod 755 tool.sh").ok();
        stage.sh_outside(&format!("umask 077; {} apply", binary().display())).ok();
        let modes = stage.sh_outside("stat -c %a new made made/in tool.sh").ok().stdout();
        assert_eq!(modes, "600\n700\n600\n700\n");
        stage.sh_with(&["-q"], "echo n > later").ok();
        stage.sh_outside(&format!("umask 022; {} apply", binary().display())).ok();
        assert_eq!(stage.sh_outside("stat -c %a later").ok().stdout(), "644\n");
    }

    fn commits_in_submodules_and_shallow_clones_come_over(stage) {
        let identity = "git config user.name n && git config user.email e";
        stage.sh_outside(&format!("git init -q -b main ../library && cd ../library && {identity} && echo 1 > file && git add . && git commit -q -m first &&
            git commit -q --allow-empty -m second && cd ../project && git init -q -b main . && {identity} &&
            git -c protocol.file.allow=always submodule -q add ../library lib && git commit -q -m module && cd lib && {identity} &&
            cd ../.. && git clone -q --depth 1 \"file://$PWD/library\" shallow && cd shallow && {identity}")).ok();
        stage.sh_with(&["-q"], "set -e; cd lib; echo 2 >> file; git commit -qam inner; cd ..; git commit -qam outer; echo x > .git/modules/lib/hooks/pre-commit").ok();
        let applied = ironcage(stage, &["apply"]).ok().stdout();
        assert!(applied.contains("pending   .git/modules/lib/hooks"), "{applied}");
        let log = "git log --format=%s -1; git -C lib log --format=%s -1; git status --porcelain; git fsck --strict 2>&1";
        assert_eq!(stage.sh_outside(log).ok().stdout(), "outer\ninner\n");
        assert!(stage.read(".git/modules/lib/hooks/pre-commit").is_none());
        let shallow = stage.home().join("shallow").display().to_string();
        stage.sh_with(&["-q", "--workspace", &shallow], "echo 3 >> file && git commit -qam inside").ok();
        let applied = ironcage(stage, &["apply", "--workspace", &shallow]).ok().stdout();
        assert!(!applied.contains("pending"), "{applied}");
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
