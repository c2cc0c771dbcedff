//! Every limit holds, and the one who hits it is told which, its value, and the flag that raises it.

use ironcage_tests::{Ran, Running, Stage, Who, both, wait_until};
use serde_json::Value;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);

fn python(stage: &Stage, flags: &[&str], script: &str) -> Ran {
    stage.run(flags, &["/usr/bin/python3", "-c", script])
}

/// Forks so many children that live at once, for a moment; prints how many there were. The moment is there because
/// without a cgroup nobody counts refused forks: that all places are taken is seen by looking.
fn forks(count: usize) -> String {
    format!(
        "
import os, signal, sys, time
children = []
for _ in range({count}):
    try:
        child = os.fork()
    except OSError as error:
        break
    if child == 0:
        signal.pause()
    children.append(child)
print(len(children), flush=True)
time.sleep(0.5)
for child in children: os.kill(child, signal.SIGKILL)
for child in children: os.waitpid(child, 0)
"
    )
}

/// How often the kernel held back the cgroup of a process, if it has one for processors.
fn throttled(pid: &Value) -> Option<u64> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let mut stats = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (names, path) = (parts.next()?, parts.next()?);
        let place = match names.split(',').any(|name| name == "cpu") {
            true => "/sys/fs/cgroup/cpu",
            false if names.is_empty() => "/sys/fs/cgroup",
            false => return None,
        };
        std::fs::read_to_string(format!("{place}{path}/cpu.stat")).ok()
    });
    stats.find_map(|text| {
        let count = text
            .lines()
            .find_map(|line| line.strip_prefix("nr_throttled "))?;
        count.trim().parse().ok()
    })
}

/// What was counted for a limit that ended the last cage, by its record.
fn recorded(stage: &Stage, limit: &str) -> u64 {
    let mut show = stage.ironcage(["audit", "show", "last", "--json"]);
    let told = Running::start(&mut show).finish(DEADLINE).ok().stdout();
    let lines = told
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mut hits = lines
        .filter(|line| line["event"] == "limit" && line["limit"] == limit && line["ended"] == true);
    let hit = hits
        .next()
        .unwrap_or_else(|| panic!("no {limit} limit on record: {told}"));
    hit["used"].as_u64().expect("what was used")
}

fn allocates(megabytes: usize) -> String {
    format!(
        "b = bytearray({megabytes} << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\nprint('held')\nimport time\ntime.sleep(0.5)"
    )
}

/// A policy that allows two child cages.
fn two_children(stage: &Stage) -> String {
    let policy = stage.base().join("children.toml");
    stage.write(&policy, "[ceiling]\nchildren = 2\n");
    policy.display().to_string()
}

/// Runs a script in two child cages at once, with `NAME` for each. Ends with 9 if one of them failed.
fn in_two_children(script: &str) -> String {
    format!(
        "
import subprocess, sys
script = {script:?}
def child(name):
    words = ['/.ironcage/bin/ironcage', 'child', '--', '/usr/bin/python3', '-c', 'NAME = ' + repr(name) + script]
    return subprocess.Popen(words)
ended = [one.wait() for one in [child('a'), child('b')]]
sys.exit(9 if any(ended) else 0)
"
    )
}

both! {
    fn processes(stage) {
        assert_eq!(python(stage, &["--pids", "40"], &forks(20)).ok().stdout(), "20\n");
        let ran = python(stage, &["--pids", "40"], &forks(100)).ok().says("--pids").says("40");
        let made: usize = ran.stdout().trim().parse().expect("a number");
        assert!((20..40).contains(&made), "{made} processes with a limit of 40");
    }

    fn memory(stage) {
        assert_eq!(python(stage, &["--memory", "256M"], &allocates(64)).ok().stdout(), "held\n");
        python(stage, &["--memory", "256M"], &allocates(2048)).ended(137).says("memory").says("256").says("--memory");
    }

    fn memory_of_many_processes_together(stage) {
        // Each stays below the limit; together they do not. Ends with 9 when a child was killed and the command was not.
        let script = "
import os, time
for _ in range(6):
    if os.fork() == 0:
        held = bytearray(64 << 20)
        for i in range(0, len(held), 4096): held[i] = 1
        time.sleep(5)
        os._exit(0)
killed = [status for _, status in (os.wait() for _ in range(6)) if status != 0]
os._exit(9 if killed else 0)
";
        python(stage, &["--memory", "1G"], script).ok();
        let ran = python(stage, &["--memory", "192M"], script).says("--memory").says("192");
        assert!(matches!(ran.code(), 9 | 137), "{ran:?}");
    }

    fn memory_counts_files_in_memory(stage) {
        let fill = |megabytes: usize| format!("head -c {megabytes}M /dev/zero > /dev/shm/fill && sleep 1 && echo filled");
        assert_eq!(stage.sh_with(&["--memory", "256M"], &fill(16)).ok().stdout(), "filled\n");
        let ran = stage.sh_with(&["--memory", "128M", "--disk", "4G"], &fill(1024));
        assert_ne!(ran.code(), 0, "{ran:?}");
        assert!(!ran.stdout().contains("filled"), "{ran:?}");
    }

    fn disk(stage) {
        let fill = |megabytes: usize| format!("head -c {megabytes}M /dev/zero > /tmp/fill && echo filled");
        assert_eq!(stage.sh_with(&["--disk", "64M"], &fill(16)).ok().stdout(), "filled\n");
        let ran = stage.sh_with(&["--disk", "64M"], &fill(256)).says("--disk").says("64");
        assert_ne!(ran.code(), 0, "{ran:?}");
    }

    fn disk_of_the_workspace(stage) {
        // At full speed, and at its end at once: it may be over before anybody has looked.
        let fill = |files: usize| format!("for i in $(seq {files}); do fallocate -l 24M fill$i || exit 9; done; echo filled");
        for mode in ["cow", "direct"] {
            let flags = ["--workspace-mode", mode, "--fresh", "--disk", "64M"];
            assert_eq!(stage.sh_with(&flags, &fill(2)).ok().stdout(), "filled\n");
            stage.sh_outside("rm -f fill*").ok();
            stage.sh_with(&flags, &fill(6)).ended(137).says("--disk").says("64M ended the cage");
            let used = recorded(stage, "disk");
            assert!(used > 64 << 20, "{mode}: {used}");
            stage.sh_outside("rm -f fill*").ok();
        }
        // What is over a limit did not succeed, and is not applied unasked.
        let apply = ["--workspace-mode", "apply", "--fresh", "--disk", "64M"];
        stage.sh_with(&apply, &fill(6)).ended(137);
        assert!(!stage.project().join("fill1").exists());
        stage.sh_with(&apply, &fill(2)).ok();
        assert!(stage.project().join("fill1").exists());
    }

    fn a_command_that_is_done_before_anybody_watches_it(stage) {
        // A debug build sleeps here between the start of the command and the first look.
        let run = |mode: &str, files: usize| {
            let fill = format!("for i in $(seq {files}); do fallocate -l 24M fill$i || exit 9; done; echo filled");
            let flags = ["--workspace-mode", mode, "--fresh", "--disk", "64M"];
            let mut command = stage.cage(&flags, &["/bin/sh", "-c", &fill]);
            command.env("IRONCAGE_LACKING", "speed");
            let ran = Running::start(&mut command).finish(Duration::from_secs(60));
            stage.sh_outside("rm -f fill*").ok();
            ran
        };
        for mode in ["cow", "direct"] {
            run(mode, 2).ok();
            run(mode, 6).ended(137).says("64M ended the cage");
            let used = recorded(stage, "disk");
            assert_eq!(used, 144 << 20, "{mode}");
        }
    }

    fn inodes_of_the_workspace(stage) {
        let make = |count: usize| format!("for i in range({count}): open('f%d' % i, 'w').close()");
        for mode in ["cow", "direct"] {
            let flags = ["--workspace-mode", mode, "--fresh", "--inodes", "1000"];
            python(stage, &flags, &make(900)).ok();
            stage.sh_outside("rm -f f*").ok();
            python(stage, &flags, &make(3000)).ended(137).says("--inodes").says("1000 ended the cage");
            let used = recorded(stage, "inodes");
            assert!(used > 1000, "{mode}: {used}");
            stage.sh_outside("rm -f f*").ok();
        }
    }

    fn a_count_that_finds_nothing_too_much_lets_the_cage_go_on(stage) {
        // More is written than is allowed, over and over, and never more at once: it is counted each time.
        let churn = "for i in $(seq 12); do fallocate -l 24M fill && sleep 0.1 && rm fill || exit 9; done; echo done";
        let ran = stage.sh_with(&["--disk", "64M"], churn).ok();
        assert_eq!(ran.stdout(), "done\n");
    }

    fn memory_of_a_cage_and_its_children_together(stage) {
        let policy = stage.base().join("children.toml");
        stage.write(&policy, "[ceiling]\nchildren = 2\n");
        // Each stays below the limit. Without a cgroup somebody has to look, so they hold what they have.
        let script = |hold: u32| format!("
import subprocess, sys
inner = 'b = bytearray(300 << 20)\\nfor i in range(0, len(b), 4096): b[i] = 1\\nimport time; time.sleep({hold})'
child = ['/.ironcage/bin/ironcage', 'child', '--', '/usr/bin/python3', '-c', inner]
ended = [one.wait() for one in [subprocess.Popen(child) for _ in range(2)]]
sys.exit(9 if any(ended) else 0)
");
        let policy = policy.to_str().expect("text");
        python(stage, &["--policy", policy, "--memory", "2G"], &script(1)).ok();
        let ran = python(stage, &["--policy", policy, "--memory", "512M"], &script(10)).says("--memory").says("512M");
        assert!(matches!(ran.code(), 9 | 137), "{ran:?}");
    }

    fn processes_of_a_cage_and_its_children_together(stage) {
        // Each child stays below the limit, and holds what it has until the other has its part.
        let script = in_two_children("
import os, signal, time
children = []
for _ in range(60):
    try:
        child = os.fork()
    except OSError:
        break
    if child == 0:
        signal.pause()
    children.append(child)
print(len(children), flush=True)
time.sleep(3)
for child in children: os.kill(child, signal.SIGKILL)
");
        let policy = two_children(stage);
        let made = |ran: &Ran| -> usize {
            let text = ran.stdout();
            text.split_whitespace().map(|count| count.parse::<usize>().expect("a number")).sum()
        };
        let within = python(stage, &["--policy", &policy, "--pids", "300"], &script).ok();
        assert_eq!(made(&within), 120, "{within:?}");
        // Without a cgroup each has a count of its own, and the watchdog ends the cage for the sum.
        let beyond = python(stage, &["--policy", &policy, "--pids", "90"], &script).says("--pids").says("90");
        assert!(beyond.code() == 137 || (60..90).contains(&made(&beyond)), "{beyond:?}");
    }

    fn disk_and_inodes_of_a_cage_and_its_children_together(stage) {
        let fill = in_two_children("
import os, time
for number in range(300): open('f%d-%s' % (number, NAME), 'w').close()
with open('fill' + NAME, 'wb') as file: os.posix_fallocate(file.fileno(), 0, 40 << 20)
time.sleep(1)
");
        let policy = two_children(stage);
        for mode in ["cow", "direct"] {
            let flags = ["--policy", &policy, "--workspace-mode", mode, "--fresh"];
            let run = |limits: &[&str]| {
                let ran = python(stage, &[&flags[..], limits].concat(), &fill);
                stage.sh_outside("rm -f f*").ok();
                ran
            };
            run(&["--disk", "256M", "--inodes", "2000"]).ok();
            run(&["--disk", "64M", "--inodes", "2000"]).ended(137).says("--disk").says("64M ended the cage");
            run(&["--disk", "256M", "--inodes", "500"]).ended(137).says("--inodes").says("500 ended the cage");
        }
    }

    fn disk_in_one_file(stage) {
        let fill = |megabytes: usize| format!("head -c {megabytes}M /dev/zero > fill && sleep 3 && echo filled");
        assert_eq!(stage.sh_with(&["--disk", "64M"], &fill(16)).ok().stdout(), "filled\n");
        let ran = stage.sh_with(&["--disk", "64M"], &fill(512)).says("--disk").says("64");
        assert_ne!(ran.code(), 0, "{ran:?}");
    }

    fn inodes(stage) {
        let make = |count: usize| format!("cd /tmp && for i in $(seq {count}); do : > f$i || exit 9; done && echo made");
        assert_eq!(stage.sh_with(&["--inodes", "500"], &make(100)).ok().stdout(), "made\n");
        let ran = stage.sh_with(&["--inodes", "500"], &make(1000)).says("--inodes").says("500");
        assert_ne!(ran.code(), 0, "{ran:?}");
    }

    fn open_files(stage) {
        let open = |count: usize| format!("files = [open('/dev/null') for _ in range({count})]; print('open')");
        assert_eq!(python(stage, &["--files", "64"], &open(20)).ok().stdout(), "open\n");
        let ran = python(stage, &["--files", "64"], &open(100));
        assert!(ran.stderr.contains("Too many open files"), "{ran:?}");
        let raise = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))";
        assert_ne!(python(stage, &["--files", "64"], raise).code(), 0);
    }

    fn time(stage) {
        stage.sh_with(&["--time", "100s"], "echo quick").ok();
        stage.sh_with(&["--time", "1s"], "sleep 600").ended(124).says("time").says("1").says("--time");
        // A command that ignores the polite signal ends all the same.
        stage.sh_with(&["--time", "1s"], "trap '' TERM INT HUP; while :; do sleep 1; done").ended(124).says("--time");
    }

    fn idle(stage) {
        let talks = "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.4; done";
        assert!(stage.sh_with(&["--idle", "3s"], talks).ok().stdout().ends_with("10\n"));
        stage.sh_with(&["--idle", "1s"], "echo start; sleep 600").ended(124).says("idle").says("--idle");
    }

    fn processors(stage) {
        // How much a busy machine leaves says nothing: what counts is whether the kernel held the cage back.
        let held_back = |cpus: &str| {
            let script = "import time\nwhile time.process_time() < 0.5: pass\nprint('burned', flush=True)\ntime.sleep(600)";
            let mut run = stage.ironcage(["run", "-d", "--cpus", cpus, "--", "/usr/bin/python3", "-c", script]);
            let ran = Running::start(&mut run).finish(DEADLINE).ok();
            let id = ran.stdout().trim().to_owned();
            let ask = |verb: &str| Running::start(&mut stage.ironcage([verb, &id])).finish(DEADLINE).ok().stdout();
            let described: Value = serde_json::from_str(&ask("inspect")).expect("a description");
            let burned = wait_until(DEADLINE * 2, || ask("logs").contains("burned"));
            let throttled = throttled(&described["init"]);
            Running::start(&mut stage.ironcage(["rm", "--force", &id])).finish(DEADLINE).ok();
            assert!(burned, "half a second of a processor: {ran:?}");
            (throttled, ran.stderr.contains("cpu"))
        };
        let (limited, told) = held_back("0.1");
        let (free, free_told) = held_back("2");
        assert!(!free_told, "one thread needs no more");
        // Without a cgroup nothing holds it; then the one who asked is told.
        if !told {
            assert!(limited.is_some_and(|times| times > 0), "not held, and nothing said: {limited:?}");
            assert!(free.is_none_or(|times| times == 0), "one thread of two processors: {free:?}");
        }
    }

    fn a_writable_directory_that_nobody_can_watch_is_not_given(stage) {
        let place = stage.aside().join("sealed");
        stage.mkdir(&place);
        let flags = ["-w", place.to_str().expect("text")];
        stage.sh_with(&flags, "true").ok();
        // Its owner may write in it and not list it; root may always.
        stage.sh_outside("chmod 300 ../../aside/sealed").ok();
        let ran = stage.sh_with(&flags, "true");
        match stage.who() {
            Who::User => drop(ran.ended(125).says("disk limit")),
            Who::Root => drop(ran.ok()),
        }
    }

    fn defaults_are_a_share_of_the_host(stage) {
        let ran = stage.sh("ulimit -c; ulimit -n").ok();
        let text = ran.stdout();
        let mut lines = text.lines();
        assert!(matches!(lines.next(), Some("0" | "1")), "core files: {text}");
        let files: u64 = lines.next().and_then(|line| line.parse().ok()).expect("a limit on open files");
        assert!((256..=1 << 20).contains(&files), "{files}");
        assert_ne!(stage.sh("ulimit -Hc unlimited").code(), 0);
        let bomb = "import resource; soft, hard = resource.getrlimit(resource.RLIMIT_NPROC); print(hard)";
        let processes: i64 = python(stage, &[], bomb).ok().stdout().trim().parse().expect("a number");
        assert!(processes > 0, "no limit on processes");
    }
}
