//! Cages in the background: started, listed, followed, joined, stopped, removed; and gone with their supervisor.

use ironcage_tests::{DIRECT, Ran, Running, Screen, Stage, either, tree, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

#[track_caller]
fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(PATIENCE)
}

/// Starts a cage in the background and returns its id.
#[track_caller]
fn start(stage: &Stage, flags: &[&str], command: &[&str]) -> String {
    let mut args = vec!["run", "-q", "-d", DIRECT[0], DIRECT[1]];
    args.extend(flags);
    if !command.is_empty() {
        args.push("--");
        args.extend(command);
    }
    let id = ironcage(stage, &args).ok().stdout().trim().to_owned();
    assert!(!id.is_empty(), "no id was printed");
    id
}

#[track_caller]
fn ps(stage: &Stage, flags: &[&str]) -> Vec<Value> {
    let mut args = vec!["ps", "--json"];
    args.extend(flags);
    let text = ironcage(stage, &args).ok().stdout();
    let mut lines: Vec<Value> =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    // Root sees its other cages on this host as well.
    let base = stage.base().display().to_string();
    lines.retain(|line| {
        line["workspace"]
            .as_str()
            .is_none_or(|at| at.starts_with(&base))
    });
    lines
}

#[track_caller]
fn status(stage: &Stage, id: &str) -> Option<String> {
    let lines = ps(stage, &["-a"]);
    let line = lines.iter().find(|line| line["id"] == *id)?;
    line["status"].as_str().map(str::to_owned)
}

fn kill(line: &Value) {
    let pid = line["supervisor"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(Pid::from_raw).expect("a supervisor");
    kill_process(pid, Signal::KILL).expect("the supervisor is there");
}

/// Whether a process of the host has this word among its arguments.
fn somebody_runs(word: &str) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return false;
    };
    processes.flatten().any(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|part| part == word.as_bytes())
    })
}

/// Sockets and names of cages.
fn sockets(stage: &Stage) -> Vec<std::path::PathBuf> {
    let files = tree(&stage.run_dir()).into_iter();
    files.filter(|path| !path.is_dir()).collect()
}

either! {
    fn a_cage_in_the_background_is_listed_followed_stopped_and_removed(stage) {
        let id = start(stage, &["--name", "web"], &["/bin/sh", "-c", "echo one; echo two; echo three; exec sleep 1000"]);
        let lines = ps(stage, &[]);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(lines[0]["id"], id);
        assert_eq!((&lines[0]["name"], &lines[0]["status"]), (&"web".into(), &"running".into()));
        assert_eq!(lines[0]["background"], true);
        let all_there = || ironcage(stage, &["logs", "web"]).ok().stdout().lines().count() == 3;
        assert!(wait_until(PATIENCE, all_there));
        assert_eq!(ironcage(stage, &["logs", "--tail", "1", &id[..6]]).ok().stdout(), "three\n");
        let shown: Value = serde_json::from_str(&ironcage(stage, &["inspect", "web"]).ok().stdout()).expect("JSON");
        assert_eq!(shown["id"], id);
        let used: Value = serde_json::from_str(&ironcage(stage, &["stats", "--json", "web"]).ok().stdout()).expect("JSON");
        assert!(used[0]["memory"].as_u64() > Some(0) && used[0]["pids"].as_u64() > Some(0), "{used}");
        ironcage(stage, &["rm", "web"]).failed("cage-running");
        ironcage(stage, &["stop", "web"]).ok();
        assert!(ps(stage, &[]).is_empty());
        assert_eq!(status(stage, &id).as_deref(), Some("signal 15"));
        ironcage(stage, &["wait", &id]).ended(143);
        ironcage(stage, &["exec", &id, "--", "/bin/true"]).failed("cage-not-running");
        ironcage(stage, &["rm", "web"]).ok();
        assert_eq!(status(stage, &id), None);
        ironcage(stage, &["logs", &id]).failed("output-not-kept");
        assert!(sockets(stage).is_empty(), "{:?}", sockets(stage));
    }

    fn what_fails_at_the_start_fails_in_front_of_the_caller(stage) {
        let ran = ironcage(stage, &["run", "-q", "-d", "--", "no-such-program"]).ended(127);
        assert_eq!(ran.stdout(), "");
        ran.says("cannot execute no-such-program");
        stage.write(stage.project().join("plain"), "no program");
        ironcage(stage, &["run", "-q", "-d", "--", "./plain"]).ended(126);
        ironcage(stage, &["run", "-q", "-d", "--workspace", "/no/such/place", "--", "true"]).ended(125).says("/no/such/place");
        ironcage(stage, &["run", "-q", "-d", "--sticky"]).ok();
        ironcage(stage, &["run", "-q", "--sticky", "--", "true"]).ended(125).says("add -d");
        let kept = ps(stage, &["-a"]);
        assert_eq!(kept.len(), 1, "nothing is kept of what did not start: {kept:?}");
        ironcage(stage, &["rm", "--force", kept[0]["id"].as_str().expect("an id")]).ok();
    }

    fn waiting_gives_the_exit_status_before_and_after_the_end(stage) {
        let id = start(stage, &[], &["/bin/sh", "-c", "while ! test -e go; do sleep 0.05; done; exit 7"]);
        let waiting = Running::start(&mut stage.ironcage(["wait", &id]));
        stage.write(stage.project().join("go"), "");
        waiting.finish(PATIENCE).ended(7);
        ironcage(stage, &["wait", &id]).ended(7);
        assert_eq!(status(stage, &id).as_deref(), Some("exit 7"));
    }

    fn following_the_output_ends_with_the_cage(stage) {
        let id = start(stage, &[], &["/bin/sh", "-c", "for n in 1 2 3 4 5; do echo line $n; sleep 0.1; done; echo done"]);
        let ran = ironcage(stage, &["logs", "-f", &id]).ok();
        assert_eq!(ran.stdout(), "line 1\nline 2\nline 3\nline 4\nline 5\ndone\n");
    }

    fn a_name_is_one_running_cages_and_a_beginning_must_be_clear(stage) {
        let first = start(stage, &["--name", "one"], &["/bin/sleep", "1000"]);
        ironcage(stage, &["run", "-q", "-d", "--name", "one", "--", "true"]).ended(125).denied("start-no-control-socket");
        ironcage(stage, &["run", "-q", "-d", "--name", "../x", "--", "true"]).ended(125).says("invalid cage name");
        let second = start(stage, &["--name", "two"], &["/bin/sleep", "1000"]);
        // Every id begins so.
        let ran = ironcage(stage, &["inspect", "c"]).ended(125).says(&first);
        ran.says(&second);
        ironcage(stage, &["inspect", "nobody"]).failed("no-such-cage");
        ironcage(stage, &["stop", "--time", "0", "one", &second]).ok();
        let again = start(stage, &["--name", "one"], &["/bin/sleep", "1000"]);
        ironcage(stage, &["rm", "--force", &again]).ok();
        assert!(ps(stage, &[]).is_empty());
    }

    fn a_sticky_cage_keeps_servers_alive_between_execs_until_it_is_stopped(stage) {
        let id = start(stage, &["--sticky"], &["/bin/sh", "-c", "echo first; exit 3"]);
        let waits = || status(stage, &id).as_deref() == Some("waiting");
        assert!(wait_until(PATIENCE, waits), "{:?}", status(stage, &id));
        ironcage(stage, &["exec", &id, "--", "/bin/sh", "-c", "sleep 1000 & echo $! > server"]).ok();
        ironcage(stage, &["exec", &id, "--", "/bin/sh", "-c", "kill -0 $(cat server)"]).ok();
        ironcage(stage, &["stop", &id]).ok();
        ironcage(stage, &["wait", &id]).ended(0);
        assert_eq!(status(stage, &id).as_deref(), Some("stopped"));
    }

    fn limits_of_time_hold_for_a_sticky_cage(stage) {
        let timed = start(stage, &["--time", "1s"], &[]);
        let idle = start(stage, &["--idle", "1s"], &[]);
        ironcage(stage, &["wait", &timed]).ended(124);
        ironcage(stage, &["wait", &idle]).ended(124);
        assert_eq!(status(stage, &timed).as_deref(), Some("limit time"));
        assert_eq!(status(stage, &idle).as_deref(), Some("limit idle"));
    }

    fn a_command_that_is_over_at_once_was_started_all_the_same(stage) {
        // Often enough that it ends before PID 1 has looked whether it was executed.
        for _ in 0..20 {
            let id = start(stage, &[], &["/bin/true"]);
            ironcage(stage, &["wait", &id]).ended(0);
        }
    }

    fn what_ignores_the_request_to_end_is_killed(stage) {
        let id = start(stage, &[], &["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1000; done"]);
        let ready = || ironcage(stage, &["logs", &id]).ok().stdout() == "ready\n";
        assert!(wait_until(PATIENCE, ready));
        ironcage(stage, &["stop", "--time", "0.2", &id]).ok();
        ironcage(stage, &["wait", &id]).ended(137);
    }

    fn a_killed_supervisor_takes_its_cage_along_and_ps_tells(stage) {
        let mark = format!("{}", 100_000 + std::process::id() + stage.uid());
        let id = start(stage, &["--name", "gone"], &["/bin/sh", "-c", &format!("(setsid sleep {mark} &); exec sleep {mark}")]);
        assert!(wait_until(PATIENCE, || somebody_runs(&mark)));
        kill(&ps(stage, &[])[0]);
        assert!(wait_until(PATIENCE, || !somebody_runs(&mark)), "processes of the cage outlive their supervisor");
        assert!(wait_until(PATIENCE, || ps(stage, &[]).is_empty()));
        assert_eq!(status(stage, &id).as_deref(), Some("killed"));
        ironcage(stage, &["wait", &id]).failed("cage-killed");
        ironcage(stage, &["stop", &id]).failed("cage-not-running");
        // Its name is free again, and its socket was removed by who looked.
        let next = start(stage, &["--name", "gone"], &["/bin/true"]);
        ironcage(stage, &["wait", &next]).ended(0);
        assert!(sockets(stage).is_empty(), "{:?}", sockets(stage));
    }

    fn a_cage_in_the_foreground_is_listed_too_and_nobody_joins_it(stage) {
        let mut running = Running::start(&mut stage.cage(&["-q"], &["/bin/cat"]));
        let listed = || !ps(stage, &[]).is_empty();
        assert!(wait_until(PATIENCE, listed));
        let id = ps(stage, &[])[0]["id"].as_str().expect("an id").to_owned();
        ironcage(stage, &["exec", &id, "--", "/bin/sh", "-c", "exit 5"]).ended(5);
        ironcage(stage, &["attach", &id]).ended(125).denied("cage-in-foreground");
        ironcage(stage, &["logs", &id]).failed("output-not-kept").says("foreground");
        drop(running.stdin());
        running.finish(PATIENCE).ok();
        assert!(ps(stage, &["-a"]).is_empty());
    }

    fn a_person_joins_a_terminal_leaves_it_and_comes_back(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let id = start(stage, &["-t", "--env", "PS1=in> "], &["/bin/sh"]);
        let binary = ironcage_tests::binary();
        let attach = format!("{} attach {id}; echo left=$?", binary.display());
        screen.line(&attach);
        screen.line("");
        screen.asks("in>");
        screen.line("tty; stty size; VALUE=kept");
        screen.shows("/dev/pts/0");
        screen.shows("30 100");
        screen.keys(&["C-p", "C-q"]);
        screen.shows("left=0");
        screen.line(&attach);
        screen.line("");
        screen.asks("in>");
        screen.line("echo value=$VALUE; exit 9");
        screen.shows("value=kept");
        screen.shows("left=9");
    }

    fn input_is_kept_open_for_who_attaches_only_where_that_was_asked_for(stage) {
        let closed = start(stage, &[], &["/bin/cat"]);
        ironcage(stage, &["wait", &closed]).ended(0);
        let open = start(stage, &["-i"], &["/usr/bin/head", "-n", "1"]);
        let ran = Running::start(&mut stage.ironcage(["attach", &open])).feed(b"hello\n".to_vec(), PATIENCE);
        assert_eq!(ran.ok().stdout(), "hello\n");
    }

    fn the_runtime_directory_is_private_and_no_cage_can_be_given_it(stage) {
        use std::os::unix::fs::PermissionsExt;
        let id = start(stage, &[], &["/bin/sleep", "1000"]);
        let own = stage.run_dir().join("ironcage");
        for directory in [own.clone(), own.join("cages")] {
            let mode = directory.metadata().expect("a directory").permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{}", directory.display());
        }
        let shown = own.display().to_string();
        ironcage(stage, &["run", "-q", "-r", &shown, "--", "/bin/true"]).ended(125);
        // Nor is it there in any other way.
        ironcage(stage, &["exec", &id, "--", "/bin/ls", &shown]).ended(2);
        // The allowing arm: another directory can be given.
        let aside = stage.aside().display().to_string();
        ironcage(stage, &["run", "-q", "-r", &aside, "--", "/bin/ls", &aside]).ok();
        ironcage(stage, &["stop", "--time", "0", &id]).ok();
    }

    fn a_peer_in_another_namespace_is_refused_and_recorded(stage) {
        let id = start(stage, &[], &["/bin/sleep", "1000"]);
        let cages = stage.run_dir().join("ironcage/cages");
        let socket = tree(&cages).into_iter().find(|path| !path.is_dir()).expect("a socket");
        let script = "import socket, sys\n\
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
            s.connect(sys.argv[1])\n\
            try: s.send(b'IC' + (1).to_bytes(2, 'little') + bytes(4) + b'\"describe\"')\n\
            except OSError: pass\n\
            try: got = s.recv(65536)\n\
            except ConnectionResetError: got = s.recv(65536)\n\
            print(got[8:].decode())\n";
        let ask = |before: &[&str]| {
            let mut words: Vec<&std::ffi::OsStr> = before.iter().map(|word| (*word).as_ref()).collect();
            words.extend(["/usr/bin/python3".as_ref(), "-c".as_ref(), script.as_ref()] as [&std::ffi::OsStr; 3]);
            words.push(socket.as_os_str());
            let mut command = stage.outside(words[0]);
            command.args(&words[1..]);
            Running::start(&mut command).finish(PATIENCE)
        };
        // The allowing arm: the same words from the host are answered.
        assert!(ask(&[]).ok().stdout().contains(&id));
        let user = ask(&["/usr/bin/unshare", "--user", "--map-current-user"]).ok().stdout();
        assert!(user.contains("refused") && user.contains("the supervisor's user namespace") && !user.contains(&id), "{user}");
        let pid = ask(&["/usr/bin/unshare", "--user", "--map-current-user", "--pid", "--fork"]).ok().stdout();
        assert!(pid.contains("refused") && !pid.contains(&id), "{pid}");
        ironcage(stage, &["stop", "--time", "0", &id]).ok();
        let record = ironcage(stage, &["audit", "show", &id]).ok().stdout();
        assert!(record.contains("denied a control connection"), "{record}");
    }

    fn noise_on_the_control_socket_disturbs_nobody(stage) {
        let id = start(stage, &[], &["/bin/sleep", "1000"]);
        let cages = stage.run_dir().join("ironcage/cages");
        let socket = tree(&cages).into_iter().find(|path| !path.is_dir()).expect("a socket");
        let script = "import os, random, socket, sys\n\
            held = []\n\
            for n in range(600):\n\
            \x20   s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
            \x20   s.connect(sys.argv[1])\n\
            \x20   try:\n\
            \x20       if n % 3 == 0: s.send(os.urandom(random.randrange(1, 40000)))\n\
            \x20       if n % 3 == 1: s.send(b'IC' + (1).to_bytes(2, 'little') + bytes(4) + os.urandom(50))\n\
            \x20       if n % 3 == 2: s.send(b'IC' + (9).to_bytes(2, 'little') + bytes(4) + b'\"describe\"')\n\
            \x20   except OSError: pass\n\
            \x20   if len(held) < 100: held.append(s)\n\
            print('sent')\n";
        let mut command = stage.outside("/usr/bin/python3");
        command.args(["-c", script]).arg(&socket);
        let ran = Running::start(&mut command).finish(PATIENCE).ok();
        assert_eq!(ran.stdout(), "sent\n");
        ironcage(stage, &["exec", &id, "--", "/bin/sh", "-c", "exit 6"]).ended(6);
        ironcage(stage, &["stop", "--time", "0", &id]).ok();
    }
}

either! {
    fn a_shell_is_offered_the_cages_that_there_are(stage) {
        let offered = |line: &[&str]| {
            let mut asking = stage.ironcage(["--", "ironcage"]);
            asking.args(line).envs([
                ("IRONCAGE_COMPLETE", "bash"),
                ("_CLAP_IFS", "\n"),
                ("_CLAP_COMPLETE_INDEX", &line.len().to_string()),
            ]);
            Running::start(&mut asking).finish(PATIENCE).ok().stdout()
        };
        let id = start(stage, &["--name", "tabbed"], &["sleep", "1000"]);
        for verb in ["exec", "stop", "logs"] {
            let names = offered(&[verb, "tab"]);
            assert!(
                names.lines().any(|name| name == "tabbed"),
                "{verb}: {names}"
            );
        }
        ironcage(stage, &["stop", "--time", "0", &id]).ok();
        let names = offered(&["exec", "tab"]);
        assert!(!names.contains("tabbed"), "{names}");
        let ids = offered(&["logs", ""]);
        assert!(ids.lines().any(|one| one == id), "{ids}");
        ironcage(stage, &["rm", &id]).ok();
    }
}
