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
        stage.sh("test -e twin && test ! -e tree/deep").ok().says("continuing pending change");
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
        let plan = |flags: &[&str]| ironcage(stage, &[&["plan", "--all"], flags, &["--", "true"]].concat()).ok().stdout();
        let full = |text: &str| text.lines().any(|line| line.split_whitespace().eq(["disk", "full"]));
        let (hard, soft) = (plan(&["--in-memory"]), plan(&[]));
        assert!(hard.contains("changes in memory"), "{hard}");
        assert!(full(&hard) && !full(&soft), "{hard}");
    }

    fn bytes_and_files_are_held_to_the_last_one(stage) {
        // All that is written anywhere, as the kernel counts it, and as it is written down.
        let count = "import os
def grow(place):
    made = 0
    try:
        while True:
            with open(place + '/f%d' % made, 'wb', 0) as file:
                made += 1
                while SIZE and file.write(b'x' * 65536): pass
                if made > 9999: return made
    except OSError: return made
made = [grow(place) for place in (os.getcwd(), '/tmp')]
kept = [os.stat(os.path.join(place, name)) for place in (os.getcwd(), '/tmp') for name in os.listdir(place)]
print(sum(stat.st_blocks for stat in kept) * 512, len(kept))";
        let run = |limit: [&str; 2], size: &str| {
            let flags = [&MEMORY[..], &["--fresh"], &limit].concat();
            let script = count.replace("SIZE", size);
            let ran = stage.run(&flags, &["/usr/bin/python3", "-c", &script]).ok();
            let told = ran.stdout();
            let (bytes, files) = told.trim().split_once(' ').expect("two numbers");
            let down = stage.sh_outside("find \"$XDG_STATE_HOME/ironcage/changes\" -path '*/upper/*' -name 'f*' -printf '%s\\n'").stdout();
            let down: Vec<u64> = down.lines().map(|size| size.parse().expect("a size")).collect();
            ironcage(stage, &["discard", "--yes"]).ok();
            let number = |text: &str| -> u64 { text.parse().expect("a number") };
            (number(bytes).max(down.iter().sum()), number(files).max(down.len() as u64))
        };
        let (bytes, _) = run(["--disk", "8M"], "True");
        assert!((4 << 20..=8 << 20).contains(&bytes), "{bytes}");
        let (_, files) = run(["--inodes", "2000"], "False");
        assert!((1000..=2000).contains(&files), "{files}");
    }

    fn a_plan_with_leases_or_children_does_not_say_that_the_limit_is_hard(stage) {
        let plan = |text: &str, flags: &[&str]| {
            let path = stage.base().join("policy.toml");
            stage.write(&path, text);
            let args = ["plan", "--all", "--in-memory", "--policy", path.to_str().expect("text")];
            let shown = ironcage(stage, &[&args[..], flags, &["--", "true"]].concat()).ok().stdout();
            shown.lines().any(|line| line.split_whitespace().eq(["disk", "full"]))
        };
        assert!(plan("", &[]));
        assert!(!plan("[ceiling]\nchildren = 1\n", &[]));
        let aside = stage.aside().display().to_string();
        assert!(!plan(&format!("[ceiling.auto.files]\nwrite = [\"{aside}\"]\n"), &[]));
        assert!(!plan("", &["-w", &format!("{aside}:direct")]));
    }

    fn while_the_cage_runs_commands_say_where_it_is_and_do_nothing(stage) {
        stage.write(stage.project().join("file"), "old");
        let started = ironcage(stage, &["run", "-q", "-d", "--sticky", "--in-memory"]).ok();
        let id = started.stdout().trim().to_owned();
        ironcage(stage, &["exec", &id, "--", "/bin/sh", "-c", "echo new > file"]).ok();
        assert_eq!(on_disk(stage), 0);
        for args in [&["diff"][..], &["apply"]] {
            ironcage(stage, args).failed("change-in-memory");
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
        stage.sh("test $(cat file) = old").ok().says("are lost");
        // Nothing is left of it.
        assert_eq!(on_disk(stage), 0);
        stage.sh("true").ok();
    }
}
