//! A change that is in memory while its cage runs: bounded hard, and written down at the end.

use ironcage_tests::{Ran, Running, Stage, both, wait_until};
use rustix::process::Signal;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);
const MEMORY: [&str; 2] = ["-q", "--in-memory"];

fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(DEADLINE)
}

/// How many files of changes are on disk.
fn on_disk(stage: &Stage) -> usize {
    let found =
        stage.sh_outside("find \"$XDG_STATE_HOME/ironcage/changes\" -path '*/upper/*' 2>/dev/null");
    found.stdout().lines().count()
}

both! {
    fn it_is_written_down_at_the_end_and_applied_as_any_other(stage) {
        stage.sh_outside("git init -q -b main . && git config user.name n && git config user.email e &&
            mkdir -p tree/deep && echo old > file && echo old > gone && echo old > tree/deep/file && git add . && git commit -q -m first").ok();
        let script = "echo new > file && rm gone && rm -r tree && mkdir tree && echo again > tree/file && ln -s file link &&
            ln file twin && echo evil > .envrc && git add file && git commit -q -m second && setfattr -n user.note -v here file";
        stage.sh_with(&MEMORY, script).ok();
        assert_eq!(stage.read("file").as_deref(), Some("old\n"));
        let diff = ironcage(stage, &["diff", "--name-only"]).ok().stdout();
        for name in ["file", "gone", "tree/deep/file", "tree/file", "link", "twin", ".envrc"] {
            assert!(diff.lines().any(|line| line == name), "{name}: {diff}");
        }
        // The next run goes on with it.
        stage.sh("test -e twin && test ! -e tree/deep").ok().says("goes on with");
        ironcage(stage, &["apply"]).ok();
        let seen = stage.sh_outside("cat file; git log --format=%s; stat -c %h file; getfattr --only-values -n user.note file; ls -A").ok();
        assert_eq!(seen.stdout(), "new\nsecond\nfirst\n2\nhere.git\nfile\nlink\ntree\ntwin\n");
    }

    fn the_disk_limit_is_hard_and_the_plan_says_so(stage) {
        stage.write(stage.project().join("file"), "old");
        let flags = [&MEMORY[..], &["--disk", "8M"]].concat();
        let script = "head -c 2000000 /dev/zero > fits && ! head -c 20000000 /dev/zero 2>&1 > large && rm large && echo goes on";
        let ran = stage.sh_with(&flags, script).ok();
        assert!(ran.stdout().ends_with("goes on\n"), "{ran:?}");
        assert!(ran.stdout().contains("No space left"), "{ran:?}");
        let shown = ironcage(stage, &["diff", "--stat"]).ok().stdout();
        assert!(shown.contains("fits") && !shown.contains("large"), "{shown}");
        let plan = |flags: &[&str]| ironcage(stage, &[&["plan"], flags, &["--", "true"]].concat()).ok().stdout();
        let full = |text: &str| text.lines().any(|line| line.split_whitespace().eq(["disk", "full"]));
        let (hard, soft) = (plan(&["--in-memory"]), plan(&[]));
        assert!(hard.contains("changes in memory"), "{hard}");
        assert!(full(&hard) && !full(&soft), "{hard}");
    }

    fn while_the_cage_runs_commands_say_where_it_is_and_do_nothing(stage) {
        stage.write(stage.project().join("file"), "old");
        let started = ironcage(stage, &["run", "-q", "-d", "--sticky", "--in-memory"]).ok();
        let id = started.stdout().trim().to_owned();
        ironcage(stage, &["exec", &id, "--", "/bin/sh", "-c", "echo new > file"]).ok();
        assert_eq!(on_disk(stage), 0);
        for args in [&["diff"][..], &["apply"]] {
            ironcage(stage, args).ended(125).says("in the memory of its cage");
        }
        assert_eq!(stage.read("file").as_deref(), Some("old"));
        ironcage(stage, &["exec", &id, "--", "/bin/sh", "-c", "test $(cat file) = new"]).ok();
        ironcage(stage, &["stop", &id]).ok();
        assert!(wait_until(DEADLINE, || on_disk(stage) > 0));
        ironcage(stage, &["apply"]).ok();
        assert_eq!(stage.read("file").as_deref(), Some("new\n"));
    }

    fn killed_with_its_supervisor_it_is_lost_and_that_is_said(stage) {
        stage.write(stage.project().join("file"), "old");
        let cage = Running::start(&mut stage.cage(&MEMORY, &["/bin/sh", "-c", "echo new > file; touch /tmp/x; sleep 1000"]));
        let recorded = || stage.sh_outside("grep -l '\"in_memory\": true' \"$XDG_STATE_HOME\"/ironcage/changes/*/w*/change.json").code() == 0;
        assert!(wait_until(DEADLINE, recorded));
        cage.signal(Signal::KILL);
        cage.finish(DEADLINE);
        stage.sh("test $(cat file) = old").ok().says("is lost");
        // Nothing is left of it.
        assert_eq!(on_disk(stage), 0);
        stage.sh("true").ok();
    }
}
