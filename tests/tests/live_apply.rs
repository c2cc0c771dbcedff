//! A change applied while its cage runs: the cage stands still for it, sees the real files anew, and goes on with
//! its open files and working directories.

use ironcage_tests::{Exit, Ran, Running, Stage, either, wait_until};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Goes on after every stop, by a signal from a timer, and writes a withheld file once its sibling stands still.
const WAKING: &str = r#"
import ctypes, mmap, os, signal, struct, time
libc = ctypes.CDLL(None, use_errno=True)
count = mmap.mmap(-1, 8)
beat = lambda: struct.unpack("Q", count[:8])[0]
sibling = os.fork()
if sibling == 0:
    while True:
        count[:8] = struct.pack("Q", beat() + 1)
        time.sleep(0.0005)
open("/tmp/pids", "w").write(f"{sibling} {os.getpid()}")
signal.signal(signal.SIGCONT, lambda *_: None)
# struct sigevent with SIGEV_SIGNAL; two struct timespec: every 40 ms.
event = (ctypes.c_char * 64).from_buffer_copy(struct.pack("Qii", 0, signal.SIGCONT, 0).ljust(64, b"\0"))
timer = ctypes.c_void_p()
assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0, ctypes.get_errno()
every = struct.pack("qqqq", 0, 40000000, 0, 40000000)
assert libc.timer_settime(timer, 0, every, None) == 0, ctypes.get_errno()
print("ready", flush=True)
while True:
    before = beat()
    time.sleep(0.05)
    if beat() == before:
        open(".envrc", "w").write("evil\n")
"#;

/// A sticky cage that is killed when this is dropped.
struct Cage<'a> {
    stage: &'a Stage,
    id: String,
}

impl<'a> Cage<'a> {
    #[track_caller]
    fn start(stage: &'a Stage) -> Self {
        let ran = ironcage(stage, &["run", "-q", "-d", "--sticky"]).ok();
        let id = ran.stdout().trim().to_owned();
        Cage { stage, id }
    }

    #[track_caller]
    fn exec(&self, flags: &[&str], script: &str) -> Ran {
        let mut args = vec!["exec"];
        args.extend(flags);
        args.extend([&*self.id, "--", "/bin/sh", "-c", script]);
        ironcage(self.stage, &args)
    }

    #[track_caller]
    fn sh(&self, script: &str) -> Ran {
        self.exec(&[], script)
    }
}

impl Drop for Cage<'_> {
    fn drop(&mut self) {
        ironcage(self.stage, &["rm", "--force", &self.id]);
    }
}

#[track_caller]
fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(PATIENCE)
}

fn put(stage: &Stage, name: &str, text: &str) {
    stage.write(stage.project().join(name), text);
}

/// How an editor saves.
fn save(stage: &Stage, name: &str, text: &str) {
    put(stage, "saved.tmp", text);
    stage.sh_outside(&format!("mv saved.tmp {name}")).ok();
}

either! {
    fn open_files_and_working_directories_stay_and_the_view_is_renewed(stage) {
        put(stage, "seen", "old\n");
        put(stage, "given", "old\n");
        stage.mkdir(stage.project().join("dir"));
        let cage = Cage::start(stage);
        // In a directory of the host's and in one of its own, with a file open for writing in each.
        let busy = "mkdir -p own; cat seen; test ! -e later; echo agent > given; \
            (cd dir; exec 3> open; echo 1 >&3; until test -e /tmp/go; do sleep 0.05; done; echo 2 >&3; pwd; echo x > beside) > /tmp/told & \
            (cd own; exec 3> open; echo 1 >&3; until test -e /tmp/go; do sleep 0.05; done; echo 2 >&3; echo x > beside) & \
            until test -s dir/open && test -s own/open; do sleep 0.05; done";
        cage.sh(busy).ok();
        save(stage, "seen", "new\n");
        put(stage, "later", "made\n");
        ironcage(stage, &["apply"]).ok();
        for (name, text) in [("given", "agent\n"), ("dir/open", "1\n"), ("own/open", "1\n")] {
            assert_eq!(stage.read(name).as_deref(), Some(text), "{name}");
        }
        // Saved by rename, and made after it was looked for: both are seen now.
        assert_eq!(cage.sh("cat seen later").ok().stdout(), "new\nmade\n");
        // The host's edit of what was applied is the host's.
        put(stage, "given", "host\n");
        let told = ironcage(stage, &["diff", "--stat"]).ok().stdout();
        assert!(!told.contains("given"), "{told}");
        cage.sh("touch /tmp/go; until test -e dir/beside && test -e own/beside; do sleep 0.05; done; cat /tmp/told").ok();
        ironcage(stage, &["apply"]).ok();
        for (name, text) in [("dir/open", "1\n2\n"), ("own/open", "1\n2\n"), ("dir/beside", "x\n"), ("own/beside", "x\n"), ("given", "host\n")] {
            assert_eq!(stage.read(name).as_deref(), Some(text), "{name}");
        }
        // What was applied is no change any more when the cage has ended.
        drop(cage);
        ironcage(stage, &["diff"]).failed("no-pending-change");
        assert_eq!(stage.sh("cat given dir/open own/beside").ok().stdout(), "host\n1\n2\nx\n");
    }

    fn what_both_changed_is_a_conflict_and_both_stay(stage) {
        put(stage, "given", "old\n");
        let cage = Cage::start(stage);
        cage.sh("echo agent > given; echo fine > fine").ok();
        ironcage(stage, &["apply"]).ok();
        put(stage, "given", "host\n");
        put(stage, "fine", "host\n");
        cage.sh("echo again > given").ok();
        ironcage(stage, &["apply"]).ended(1);
        assert_eq!(stage.read("given").as_deref(), Some("host\n"));
        assert_eq!(cage.sh("cat given").ok().stdout(), "again\n");
        ironcage(stage, &["apply", "--ours", "given"]).ended(125);
        ironcage(stage, &["apply", "--theirs", "given"]).ok();
        assert_eq!(stage.read("given").as_deref(), Some("again\n"));
        // Removed by one of them, it stays removed.
        std::fs::remove_file(stage.project().join("fine")).expect("the host removes it");
        cage.sh("rm given").ok();
        ironcage(stage, &["apply"]).ok();
        assert_eq!((stage.read("fine"), stage.read("given")), (None, None));
    }

    fn a_command_that_succeeds_is_committed(stage) {
        let cage = Cage::start(stage);
        cage.exec(&["--commit-on-success"], "echo 1 > failed; exit 3").ended(3);
        assert_eq!(stage.read("failed"), None);
        let ran = cage.exec(&["--commit-on-success"], "echo 1 > done; echo evil > .envrc; echo all: > Makefile").ok();
        ran.says("direnv").says("Makefile");
        assert_eq!(stage.read("done").as_deref(), Some("1\n"));
        assert_eq!(stage.read("failed").as_deref(), Some("1\n"), "the cage's change is one");
        assert_eq!((stage.read(".envrc"), stage.read("Makefile")), (None, None));
        // What the policy of the cage lists is not held.
        drop(cage);
        let flags = ["run", "-q", "-d", "--sticky", "--unprotect", ".envrc"];
        let lifted = Cage { stage, id: ironcage(stage, &flags).ok().stdout().trim().to_owned() };
        lifted.exec(&["--commit-on-success"], "echo 2 > .envrc; echo evil > .mcp.json").ok().says(".mcp.json");
        assert_eq!((stage.read(".envrc").as_deref(), stage.read(".mcp.json")), (Some("2\n"), None));
        let direct = ironcage(stage, &["run", "-q", "-d", "--sticky", "--workspace-mode", "direct"]).ok();
        let direct = Cage { stage, id: direct.stdout().trim().to_owned() };
        direct.exec(&["--commit-on-success"], "touch ran").ended(125).says("no pending change");
        assert_eq!(stage.read("ran"), None);
    }

    fn files_are_followed_and_commands_go_on_meanwhile(stage) {
        stage.sh_outside("git init -q .").ok();
        let cage = Cage::start(stage);
        cage.sh("echo 0 > count").ok();
        let follow = Running::start(&mut stage.ironcage(["apply", "--follow"]));
        for round in 1..=5 {
            let wanted = format!("{round}\n");
            cage.sh(&format!("echo {round} > count; echo x > .envrc; git add -A")).ok();
            assert!(wait_until(PATIENCE, || stage.read("count").as_ref() == Some(&wanted)), "round {round}");
        }
        assert_eq!(stage.read(".envrc"), None);
        let index = stage.project().join(".git/index");
        assert!(!index.exists(), "git directories are left for an apply");
        drop(cage);
        follow.finish(PATIENCE).ok();
        ironcage(stage, &["apply"]).ok();
        assert!(index.exists());
        assert_eq!(stage.read(".envrc"), None);
        ironcage(stage, &["apply", "--follow"]).ended(125).says("no running cage");
    }

    fn killed_at_any_step_the_cage_goes_on_and_the_next_apply_completes_it(stage) {
        put(stage, "given", "old\n");
        stage.sh_outside("git init -q -b main . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first").ok();
        let cage = Cage::start(stage);
        let write = |round: usize| {
            cage.sh(&format!("set -e; echo {round} > given; rm -rf own; mkdir own; echo {round} > own/new; \
                git add given; git -c user.name=a -c user.email=a@b commit -qm {round}")).ok();
        };
        // The two share the steps.
        for step in (usize::from(stage.uid() == 0)..400).step_by(2) {
            write(step);
            let mut killed = stage.ironcage(["apply"]);
            killed.env("IRONCAGE_FAULT", step.to_string());
            let ran = Running::start(&mut killed).finish(PATIENCE);
            let through = ran.exit == Exit::Code(0);
            // It runs, and what it writes now is not lost by completing the other.
            cage.sh(&format!("echo more >> given; test \"$(cat own/new)\" = {step}")).ok();
            ironcage(stage, &["apply"]).ok();
            let wanted = format!("{step}\nmore\n");
            assert_eq!(stage.read("given"), Some(wanted), "killed at {step}: {ran:?}");
            assert_eq!(stage.read("own/new"), Some(format!("{step}\n")), "killed at {step}");
            stage.sh_outside(&format!("git fsck --strict && test \"$(git log --format=%s -1)\" = {step}")).ok();
            if through {
                assert!(step > 10, "only {step} steps: is this a debug build?");
                return;
            }
        }
        panic!("no apply got through");
    }

    fn what_a_cage_writes_last_is_followed_too(stage) {
        let script = "echo 1 > first; until test -e /tmp/go; do sleep 0.05; done; echo evil > .envrc; echo 1 > last";
        let ran = ironcage(stage, &["run", "-q", "-d", "--", "/bin/sh", "-c", script]).ok();
        let cage = Cage { stage, id: ran.stdout().trim().to_owned() };
        let follow = Running::start(&mut stage.ironcage(["apply", "--follow"]));
        assert!(wait_until(PATIENCE, || stage.read("first").is_some()));
        cage.sh("touch /tmp/go");
        let told = follow.finish(PATIENCE).ok().stdout();
        assert_eq!((stage.read("last").as_deref(), stage.read(".envrc")), (Some("1\n"), None));
        assert!(told.contains("the cage has ended") && told.contains(".envrc"), "{told}");
    }

    fn a_process_that_wakes_itself_gets_nothing_past_what_was_judged(stage) {
        put(stage, ".envrc", "ours\n");
        put(stage, "waking.py", WAKING);
        let cage = Cage::start(stage);
        // Only touched, and so the same as the host's; behind a file that takes long to copy.
        cage.sh("echo fine > fine; head -c 25000000 /dev/urandom > .a-big; touch -d 2001-01-01 .envrc; \
            /usr/bin/python3 waking.py > /tmp/told 2>&1 & until grep -q ready /tmp/told; do sleep 0.05; done").ok();
        // Refused, unless all was over before it woke: both are right.
        let ran = ironcage(stage, &["apply"]);
        if ran.exit != Exit::Code(0) {
            ran.ended(125).says("process").says("nothing ");
            assert_eq!(stage.read("fine"), None);
        }
        assert_eq!(stage.read(".envrc").as_deref(), Some("ours\n"));
        // Without it all goes its way, and what it wrote is asked about.
        cage.sh("kill -9 $(cat /tmp/pids); until ! kill -0 $(cat /tmp/pids) 2> /dev/null; do sleep 0.05; done; echo evil > .envrc").ok();
        let told = ironcage(stage, &["apply"]).ok().stdout();
        assert!(told.contains(".envrc"), "{told}");
        assert_eq!((stage.read(".envrc").as_deref(), stage.read("fine").as_deref()), (Some("ours\n"), Some("fine\n")));
    }
}
