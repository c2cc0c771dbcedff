//! Other commands in a running cage: their streams, their status, what holds them, and when they end.

use ironcage_tests::{DIRECT, Ran, Running, Screen, Stage, either, wait_until};
use rustix::process::Signal;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A sticky cage that is killed when this is dropped.
struct Cage<'a> {
    stage: &'a Stage,
    id: String,
}

impl<'a> Cage<'a> {
    #[track_caller]
    fn start(stage: &'a Stage, flags: &[&str]) -> Self {
        // On the real files: what commands write there is looked at while they run.
        let mut args = vec!["run", "-q", "-d", DIRECT[0], DIRECT[1]];
        args.extend(flags);
        let ran = Running::start(&mut stage.ironcage(args))
            .finish(PATIENCE)
            .ok();
        let id = ran.stdout().trim().to_owned();
        Cage { stage, id }
    }

    fn command(&self, flags: &[&str], command: &[&str]) -> std::process::Command {
        let mut exec = self.stage.ironcage(["exec"]);
        exec.args(flags).arg(&self.id).arg("--").args(command);
        exec
    }

    #[track_caller]
    fn exec(&self, flags: &[&str], command: &[&str]) -> Ran {
        Running::start(&mut self.command(flags, command)).finish(PATIENCE)
    }

    #[track_caller]
    fn sh(&self, script: &str) -> Ran {
        self.exec(&[], &["/bin/sh", "-c", script])
    }
}

impl Drop for Cage<'_> {
    fn drop(&mut self) {
        let mut stop = self.stage.ironcage(["rm", "--force", &self.id]);
        Running::start(&mut stop).finish(PATIENCE);
    }
}

either! {
    fn streams_and_status_are_the_commands_own(stage) {
        let cage = Cage::start(stage, &[]);
        let ran = cage.sh("echo out; echo err >&2; exit 42").ended(42);
        assert_eq!((ran.stdout().as_str(), ran.stderr.as_str()), ("out\n", "err\n"));
        let input = vec![b'x'; 1 << 20];
        let ran = Running::start(&mut cage.command(&["-i"], &["/bin/cat"])).feed(input.clone(), PATIENCE).ok();
        assert_eq!(ran.bytes.len(), input.len());
        assert_eq!(ran.bytes, input);
        // Without -i there is no input to wait for.
        assert_eq!(cage.exec(&[], &["/bin/cat"]).ok().stdout(), "");
        cage.sh("kill -9 $$").ended(137);
        cage.exec(&[], &["no-such-program"]).ended(127).says("cannot execute no-such-program");
        stage.write(stage.project().join("plain"), "no program");
        cage.exec(&[], &["./plain"]).ended(126);
    }

    fn its_environment_is_the_cages_with_what_was_given_on_top(stage) {
        let cage = Cage::start(stage, &["--env", "FROM=run"]);
        let mut command = cage.command(&["--env", "GIVEN=1", "--env", "PASSED"], &["/usr/bin/env"]);
        command.env("GITHUB_TOKEN", "secret-of-the-caller").env("PASSED", "by name");
        let shown = Running::start(&mut command).finish(PATIENCE).ok().stdout();
        for line in ["FROM=run", "GIVEN=1", "PASSED=by name", "IRONCAGE=1"] {
            assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
        }
        assert!(!shown.contains("secret-of-the-caller"), "{shown}");
        assert_eq!(cage.exec(&["--cwd", "/tmp"], &["/bin/pwd"]).ok().stdout(), "/tmp\n");
        let project = format!("{}\n", stage.project().display());
        assert_eq!(cage.exec(&[], &["/bin/pwd"]).ok().stdout(), project);
        cage.exec(&["--cwd", "/no/such/place"], &["/bin/pwd"]).ended(127);
    }

    fn everything_that_holds_the_cage_holds_it(stage) {
        let script = "for kind in user mnt pid net ipc uts cgroup; do readlink /proc/self/ns/$kind; done; \
            grep -E '^(NoNewPrivs|Seccomp|CapEff|CapBnd|Uid|Gid):' /proc/self/status; ulimit -a; \
            cat /proc/self/cgroup; head -n 1 /proc/self/mountinfo";
        stage.write(stage.project().join("look"), script);
        let cage = Cage::start(stage, &["--sticky", "--", "/bin/sh", "-c", ". ./look > part; mv part first"]);
        assert!(wait_until(PATIENCE, || stage.read("first").is_some()));
        let first = stage.read("first").expect("what the first command saw");
        assert!(first.contains("Seccomp:\t2") && first.contains("NoNewPrivs:\t1"), "{first}");
        assert_eq!(cage.sh(". ./look").ok().stdout(), first);
        // No descriptor but its streams, and the one that `ls` has open.
        assert_eq!(cage.exec(&[], &["/bin/ls", "/proc/self/fd"]).ok().stdout(), "0\n1\n2\n3\n");
        cage.sh("mount -t tmpfs none /mnt 2>/dev/null").ended(32);
    }

    fn long_arguments_and_environments_arrive_whole(stage) {
        let cage = Cage::start(stage, &[]);
        let word = "w".repeat(100_000);
        let variable = format!("LONG={}", "v".repeat(100_000));
        let script = "test \"${#1} ${#2} ${#3} ${#LONG}\" = '100000 100000 100000 100000' && echo whole";
        let ran = cage.exec(&["--env", &variable], &["/bin/sh", "-c", script, "sh", &word, &word, &word]).ok();
        assert_eq!(ran.stdout(), "whole\n");
    }

    fn a_terminal_is_the_cages_own(stage) {
        let cage = Cage::start(stage, &[]);
        assert_eq!(cage.exec(&[], &["/usr/bin/tty"]).ended(1).stdout(), "not a tty\n");
        let ran = cage.exec(&["-t"], &["/bin/sh", "-c", "tty; stty size; exit 8"]).ended(8);
        assert_eq!(ran.stdout().replace('\r', ""), "/dev/pts/0\n24 80\n");
        let Some(screen) = Screen::open(stage) else { return };
        let binary = ironcage_tests::binary();
        screen.line(&format!("{} exec -it --env PS1='in> ' {} -- /bin/sh; echo status=$?", binary.display(), cage.id));
        screen.asks("in>");
        screen.line("stty size");
        screen.shows("30 100");
        screen.asks("in>");
        screen.tmux(&["resize-window", "-x", "90", "-y", "20"]);
        screen.line("while [ \"$(stty size)\" != '20 90' ]; do sleep 0.1; done; stty size");
        screen.shows("20 90");
        screen.asks("in>");
        // It runs before it is interrupted: an interrupt also drops what nobody has read yet.
        screen.line("echo run''ning; sleep 1000");
        screen.shows("running");
        screen.keys(&["C-c"]);
        screen.asks("in>");
        screen.line("exit 4");
        screen.shows("status=4");
    }

    fn a_signal_to_the_client_reaches_the_command(stage) {
        let cage = Cage::start(stage, &[]);
        let script = "trap 'echo caught; exit 3' TERM; echo ready > ready; while :; do sleep 0.05; done";
        let running = Running::start(&mut cage.command(&[], &["/bin/sh", "-c", script]));
        assert!(wait_until(PATIENCE, || stage.read("ready").is_some()));
        running.signal(Signal::TERM);
        assert_eq!(running.finish(PATIENCE).ended(3).stdout(), "caught\n");
    }

    fn it_ends_with_its_client_unless_it_was_detached(stage) {
        let cage = Cage::start(stage, &[]);
        let beat = |name: &str| format!("trap '' HUP; while :; do echo x >> {name}; sleep 0.05; done");
        let running = Running::start(&mut cage.command(&[], &["/bin/sh", "-c", &beat("held")]));
        cage.exec(&["-d"], &["/bin/sh", "-c", &beat("free")]).ok();
        cage.exec(&["-d"], &["no-such-program"]).ended(127);
        assert!(wait_until(PATIENCE, || stage.read("held").is_some() && stage.read("free").is_some()));
        // Killed, not asked.
        drop(running);
        let length = |name: &str| stage.read(name).unwrap_or_default().len();
        let still = || {
            let before = length("held");
            std::thread::sleep(Duration::from_millis(300));
            length("held") == before
        };
        assert!(wait_until(PATIENCE, still), "the command outlives its client");
        let before = length("free");
        assert!(wait_until(PATIENCE, || length("free") > before), "the detached command ended too");
    }

    fn what_it_leaves_behind_can_go_on_writing(stage) {
        let cage = Cage::start(stage, &[]);
        let script = "(while ! test -e go; do sleep 0.05; done; echo late; echo later; touch survived; sleep 1000) & echo early";
        assert_eq!(cage.sh(script).ok().stdout(), "early\n");
        stage.write(stage.project().join("go"), "");
        assert!(wait_until(PATIENCE, || stage.read("survived").is_some()), "it was ended by its first word");
        let logged = || {
            let mut logs = stage.ironcage(["logs", &cage.id]);
            Running::start(&mut logs).finish(PATIENCE).ok().stdout() == "late\nlater\n"
        };
        assert!(wait_until(PATIENCE, logged));
    }

    fn nobody_reads_any_more_and_the_command_learns_it(stage) {
        let cage = Cage::start(stage, &[]);
        let script = format!("{} exec {} -- yes | head -n 1", ironcage_tests::binary().display(), cage.id);
        assert_eq!(stage.sh_outside(&script).ok().stdout(), "y\n");
    }

    fn where_one_program_may_be_executed_there_is_no_second(stage) {
        let cage = Cage::start(stage, &["--syscalls", "minimal"]);
        cage.exec(&[], &["/bin/true"]).ended(125).denied("exec-one-program-only");
    }

    fn starts_and_ends_are_on_record(stage) {
        let cage = Cage::start(stage, &[]);
        cage.sh("exit 3").ended(3);
        let mut show = stage.ironcage(["audit", "show", &cage.id]);
        let record = Running::start(&mut show).finish(PATIENCE).ok().stdout();
        assert!(record.contains("exec    1: /bin/sh -c 'exit 3'"), "{record}");
        assert!(record.contains("exec    1: status 3"), "{record}");
    }

    fn many_at_once_all_get_their_own_answer(stage) {
        let cage = Cage::start(stage, &[]);
        let running: Vec<(i32, Running)> = (0..40)
            .map(|n| (n, Running::start(&mut cage.command(&[], &["/bin/sh", "-c", &format!("echo {n}; exit {n}")]))))
            .collect();
        for (n, running) in running {
            assert_eq!(running.finish(PATIENCE).ended(n).stdout(), format!("{n}\n"));
        }
    }
}

either! {
    fn time_up_kills_the_process_group_and_the_status_file_tells_who_ended_it(stage) {
        let cage = Cage::start(stage, &[]);
        let file = stage.home().join("status.json");
        let status = format!("--status-file={}", file.display());
        let read = || std::fs::read_to_string(&file).expect("the status file");
        let script = "echo begun; trap '' HUP TERM; sleep 975 & sleep 975";
        let ran = cage.exec(&["--time=4500ms", &status], &["/bin/sh", "-c", script]).ended(124);
        assert_eq!(ran.stdout(), "begun\n");
        assert!(read().contains("\"timed_out\":true"), "{}", read());
        let left = cage.sh("grep -l '^sleep' /proc/[0-9]*/comm | wc -l").ok();
        assert_eq!(left.stdout().trim(), "0");
        // In time, and a status that is also Ironcage's own.
        cage.exec(&["--time=60s", &status], &["/bin/sh", "-c", "exit 125"]).ended(125);
        assert_eq!(read(), "{\"code\":125,\"ending\":\"exited\",\"exit_code\":125,\"timed_out\":false}\n");
        cage.exec(&[&status], &["/no/program"]).ended(127);
        assert!(read().contains("\"ending\":\"not-executed\""), "{}", read());
        let mut gone = stage.ironcage(["exec", &status, "no-such-cage", "--", "true"]);
        Running::start(&mut gone).finish(PATIENCE).ended(125);
        assert!(read().contains("\"code\":\"no-such-cage\""), "{}", read());
        // A command whose end cannot be reported does not run.
        let made = stage.project().join("made");
        cage.exec(&["--status-file=/no/directory/status"], &["/usr/bin/touch", &made.to_string_lossy()]).ended(125);
        assert!(!made.exists());
        cage.exec(&[&status], &["/usr/bin/touch", &made.to_string_lossy()]).ok();
        assert!(made.exists());
    }
}
