//! Scopes: commands beside a cage. What they share with it, what neither sees of the other, and
//! that all of one ends with its command.

use ironcage_tests::{Ran, Running, Screen, Stage, Who, both, wait_until, wait_until_still};
use std::path::PathBuf;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A cage in the background, killed when this is dropped.
struct Cage<'a> {
    stage: &'a Stage,
    id: String,
}

impl<'a> Cage<'a> {
    /// With a ceiling that gives `data` beside the workspace, but `data/private`.
    #[track_caller]
    fn start(stage: &'a Stage, mode: &str, ceiling: &str) -> Self {
        let policy = furnish(stage, ceiling);
        Cage::with(stage, &["--workspace-mode", mode, "--policy", &policy])
    }

    #[track_caller]
    fn with(stage: &'a Stage, flags: &[&str]) -> Self {
        let mut run = stage.ironcage(["run", "-q", "-d"]);
        run.args(flags);
        let ran = Running::start(&mut run).finish(PATIENCE).ok();
        let id = ran.stdout().trim().to_owned();
        Cage { stage, id }
    }

    fn exec(&self, flags: &[&str], command: &[&str]) -> std::process::Command {
        let mut exec = self.stage.ironcage(["exec"]);
        exec.args(flags).arg(&self.id).arg("--").args(command);
        exec
    }

    fn sh_in(&self, flags: &[&str], script: &str) -> std::process::Command {
        self.exec(flags, &["/bin/sh", "-c", script])
    }

    #[track_caller]
    fn sh(&self, flags: &[&str], script: &str) -> Ran {
        Running::start(&mut self.sh_in(flags, script)).finish(PATIENCE)
    }

    /// Starts a program in the cage and waits until it says in the workspace that it is ready.
    #[track_caller]
    fn leave_running(&self, script: &str) {
        Running::start(&mut self.exec(&["-d"], &["/usr/bin/python3", "-c", script]))
            .finish(PATIENCE)
            .ok();
        assert!(
            wait_until(PATIENCE, || self.sh(&[], "test -e ready").code() == 0),
            "it never got ready"
        );
    }

    #[track_caller]
    fn says(&self, verb: &str, args: &[&str]) -> Ran {
        let mut command = self
            .stage
            .ironcage(verb.split(' ').chain([self.id.as_str()]));
        command.args(args);
        Running::start(&mut command).finish(PATIENCE)
    }

    fn running(&self) -> bool {
        let ran = Running::start(&mut self.stage.ironcage(["ps", "-q"]))
            .finish(PATIENCE)
            .ok();
        ran.stdout().lines().any(|id| id == self.id)
    }

    fn record(&self) -> String {
        let mut show = self.stage.ironcage(["audit", "show", &self.id]);
        Running::start(&mut show).finish(PATIENCE).stdout()
    }
}

impl Drop for Cage<'_> {
    fn drop(&mut self) {
        let mut stop = self.stage.ironcage(["rm", "--force", &self.id]);
        Running::start(&mut stop).finish(PATIENCE);
    }
}

fn furnish(stage: &Stage, ceiling: &str) -> String {
    let aside = stage.aside();
    stage.write(aside.join("data/deep/file"), "leased\n");
    stage.write(aside.join("data/private/key"), "private\n");
    stage.write(aside.join("secret/key"), "secret\n");
    let at = |name: &str| aside.join(name).display().to_string();
    let policy = stage.base().join("policy.toml");
    let text = format!(
        "[ceiling]\n{ceiling}\n[ceiling.ask.files]\nwrite = [\"{}\"]\n[ceiling.deny.files]\nread = [\"{}\"]\n",
        at("data"),
        at("data/private"),
    );
    stage.write(&policy, text);
    policy.display().to_string()
}

fn deep(stage: &Stage) -> PathBuf {
    stage.aside().join("data/deep")
}

fn lease(right: &str, path: &std::path::Path) -> String {
    format!("{right}={}", path.display())
}

/// Cgroups of a cage and of its scopes.
fn groups(id: &str) -> Vec<PathBuf> {
    let (mut found, mut places) = (Vec::new(), vec![PathBuf::from("/sys/fs/cgroup")]);
    while let Some(place) = places.pop() {
        for entry in std::fs::read_dir(&place).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                match entry.file_name().to_string_lossy().contains(id) {
                    true => found.push(entry.path()),
                    false => places.push(entry.path()),
                }
            }
        }
    }
    found
}

/// Every process of the host whose arguments have this word in them.
fn with_word(word: &str) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let own = entry.file_name() == std::process::id().to_string().as_str();
        let found = line.windows(word.len()).any(|part| part == word.as_bytes());
        count += usize::from(found && !own && !line.starts_with(b"/proc"));
    }
    count
}

both! {
    fn a_scope_shares_the_workspace_and_nothing_else(stage) {
        for mode in ["cow", "direct"] {
            let cage = Cage::start(stage, mode, "");
            cage.sh(&[], "echo of-the-cage > shared; echo x > /tmp/private; mkdir .git; echo y > .git/config").ok();
            let ran = cage.sh(&["--scope"], "cat shared; echo of-the-scope > back; ls /tmp/private 2>/dev/null; id -u; exit 7");
            assert_eq!(ran.ended(7).stdout(), "of-the-cage\n1000\n", "{mode}");
            assert_eq!(cage.sh(&[], "cat back").ok().stdout(), "of-the-scope\n", "{mode}");
            // What is copy-on-write for the cage is so for the scope.
            assert_eq!(stage.project().join("back").exists(), mode == "direct");
            // And what is withheld from the one is from the other.
            let closed = "touch /usr/x 2>&1; cat /etc/shadow 2>&1; ls / | tr '\\n' ' '; grep -c . /proc/self/status; grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status; ulimit -a; cat /proc/sys/user/max_user_namespaces";
            let (inside, beside) = (cage.sh(&[], closed), cage.sh(&["--scope"], closed));
            assert_eq!(inside.ok().stdout(), beside.ok().stdout(), "{mode}");
            let record = cage.record();
            assert!(record.contains("(in a scope)") && record.contains("status 7"), "{record}");
        }
    }

    fn every_namespace_is_its_own(stage) {
        let cage = Cage::start(stage, "cow", "");
        let look = "for n in user mnt pid net ipc uts cgroup time; do echo $n $(readlink /proc/self/ns/$n); done";
        let of_cage = cage.sh(&[], look).ok().stdout();
        let of_scope = cage.sh(&["--scope"], look).ok().stdout();
        assert_eq!(of_cage.lines().count(), 8);
        for (inside, beside) in of_cage.lines().zip(of_scope.lines()) {
            assert!(inside.contains('['), "{inside}");
            assert_ne!(inside, beside);
        }
        // The allowing arm: two commands in the cage have the same ones.
        assert_eq!(cage.sh(&[], look).ok().stdout(), of_cage);
    }

    fn neither_sees_reaches_or_signals_the_other(stage) {
        let cage = Cage::start(stage, "cow", "");
        // In the cage: a process with a name, a port, an abstract socket and shared memory.
        let stay = "import socket, time, os, mmap\n\
            s = socket.socket(); s.bind(('127.0.0.1', 4711)); s.listen()\n\
            u = socket.socket(socket.AF_UNIX); u.bind('\\0let-go'); u.listen()\n\
            open('/dev/shm/let-go', 'w').close()\n\
            open('ready', 'w').close()\n\
            while not os.path.exists('let-go'): time.sleep(0.02)\n";
        cage.leave_running(stay);
        let look = "import socket, os, sys\n\
            found = []\n\
            for pid in filter(str.isdigit, os.listdir('/proc')):\n\
            \x20 line = open('/proc/%s/cmdline' % pid, 'rb').read()\n\
            \x20 if b'let-go' in line and int(pid) != os.getpid():\n\
            \x20   found.append('process')\n\
            \x20   try: os.kill(int(pid), 0); found.append('signal')\n\
            \x20   except OSError: pass\n\
            \x20   try: os.listdir('/proc/%s/root' % pid); found.append('root')\n\
            \x20   except OSError: pass\n\
            for name, family, where in [('port', socket.AF_INET, ('127.0.0.1', 4711)), ('abstract', socket.AF_UNIX, '\\0let-go')]:\n\
            \x20 try: socket.socket(family).connect(where); found.append(name)\n\
            \x20 except OSError: pass\n\
            if os.path.exists('/dev/shm/let-go'): found.append('shm')\n\
            print(' '.join(found))\n";
        let python = |flags: &[&str]| {
            Running::start(&mut cage.exec(flags, &["/usr/bin/python3", "-c", look])).finish(PATIENCE).ok().stdout()
        };
        assert_eq!(python(&["--scope"]), "\n");
        // The allowing arm: another command in the cage finds all of it.
        assert_eq!(python(&[]), "process signal root port abstract shm\n");
        cage.sh(&[], "touch let-go; rm ready").ok();
        // The other way round.
        let other = |script: &str| script.replace("let-go", "leave").replace("4711", "4712");
        let scope = Running::start(&mut cage.exec(&["--scope"], &["/usr/bin/python3", "-c", &other(stay)]));
        assert!(wait_until(PATIENCE, || cage.sh(&[], "test -e ready").code() == 0));
        let seen = Running::start(&mut cage.exec(&[], &["/usr/bin/python3", "-c", &other(look)])).finish(PATIENCE).ok().stdout();
        assert_eq!(seen, "\n");
        // Nor one scope of another.
        let seen = Running::start(&mut cage.exec(&["--scope"], &["/usr/bin/python3", "-c", &other(look)])).finish(PATIENCE).ok().stdout();
        assert_eq!(seen, "\n");
        // No id that the cage could try reaches it: those of the host's are not its own.
        cage.sh(&[], "for p in $(seq 2 40); do kill -9 $p 2>/dev/null; done; true");
        cage.sh(&[], "touch leave").ok();
        scope.finish(PATIENCE).ok();
    }

    fn all_of_a_scope_ends_with_its_command(stage) {
        let cage = Cage::start(stage, "cow", "");
        // A daemon that holds a lock on a file of the workspace.
        let daemon = "(setsid flock -x lock sh -c 'touch locked; exec sleep 600' > /dev/null 2>&1 < /dev/null &) ; while ! test -e locked; do sleep 0.02; done; flock -n lock true && echo free || echo held";
        assert_eq!(cage.sh(&["--scope"], daemon).ok().stdout(), "held\n");
        assert_eq!(cage.sh(&[], "flock -n lock true && echo free || echo held").ok().stdout(), "free\n");
        // The allowing arm: in the cage a daemon stays.
        cage.sh(&[], "rm locked lock").ok();
        assert_eq!(cage.sh(&[], daemon).ok().stdout(), "held\n");
        assert_eq!(cage.sh(&[], "flock -n lock true && echo free || echo held").ok().stdout(), "held\n");
    }

    fn streams_signals_and_refusals_are_those_of_exec(stage) {
        let cage = Cage::start(stage, "cow", "");
        let mut cat = cage.exec(&["--scope", "-i"], &["/bin/cat"]);
        let said = Running::start(&mut cat).feed(b"through the scope".to_vec(), PATIENCE).ok().stdout();
        assert_eq!(said, "through the scope");
        cage.sh(&["--scope"], "kill -TERM $$").ended(143);
        let missing = Running::start(&mut cage.exec(&["--scope"], &["/no/such/program"])).finish(PATIENCE);
        missing.ended(127).says("cannot execute");
        cage.sh(&["--scope", "--cwd", "sub"], "pwd").ended(127);
        // A client that is gone takes its scope along.
        let waits = Running::start(&mut cage.sh_in(&["--scope"], "touch begun; exec sleep 600"));
        assert!(wait_until(PATIENCE, || cage.sh(&[], "test -e begun").code() == 0));
        waits.signal(rustix::process::Signal::KILL);
        assert!(wait_until(PATIENCE, || !cage.says("inspect", &[]).ok().stdout().contains("sleep 600")));
        cage.sh(&["-d", "--scope"], "true").ended(125);
        assert!(cage.running());
    }

    fn a_scope_can_have_a_terminal(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let cage = Cage::start(stage, "cow", "");
        let binary = ironcage_tests::binary();
        screen.line(&format!("{} exec -it --scope --env PS1='beside> ' {} -- /bin/sh; echo status=$?", binary.display(), cage.id));
        screen.asks("beside>");
        screen.line("tty; echo $((20 + 22))");
        screen.shows("/dev/pts/0");
        screen.shows("42");
        screen.line("exit 5");
        screen.shows("status=5");
    }

    fn a_lease_of_a_scope_is_its_own_and_ends_with_it(stage) {
        for mode in ["cow", "direct"] {
            let cage = Cage::start(stage, mode, "");
            let deep = deep(stage);
            let shown = deep.display();
            let scope = Running::start(&mut cage.sh_in(
                &["--lease", &lease("write", &deep), "--reason", "a test"],
                &format!("cat {shown}/file; echo {mode} > {shown}/new; touch open; while ! test -e close; do sleep 0.02; done"),
            ));
            assert!(wait_until(PATIENCE, || cage.sh(&[], "test -e open").code() == 0));
            // Open in the scope, and nowhere else.
            cage.sh(&[], &format!("ls {shown}")).ended(2);
            cage.sh(&["--scope"], &format!("ls {shown}")).ended(2);
            let list = cage.says("lease list", &[]).ok().stdout();
            assert!(list.contains("write") && list.contains("data/deep"), "{list}");
            cage.sh(&[], "touch close").ok();
            assert_eq!(scope.finish(PATIENCE).ok().stdout(), "leased\n");
            assert_eq!(std::fs::read_to_string(deep.join("new")).expect("written"), format!("{mode}\n"));
            assert!(cage.says("lease list", &[]).ok().stdout().contains("no leases"));
            // With the right to read, just that.
            let only = cage.sh(&["--lease", &lease("read", &deep)], &format!("cat {shown}/file; echo x > {shown}/file"));
            assert_eq!(only.ended(2).stdout(), "leased\n");
            let record = cage.record();
            for said in ["lease 1: write", "lease 1: revoked", "its command ended", "lease 2: revoked", "a test", "log: intact"] {
                assert!(record.contains(said), "{said}: {record}");
            }
        }
    }

    fn nothing_outside_of_the_ceiling_is_given_to_a_scope(stage) {
        let cage = Cage::start(stage, "cow", "");
        let aside = stage.aside();
        for (path, right, code) in [
            (aside.join("secret"), "read", "lease-above-ceiling"),
            (aside.join("data/../secret"), "read", "lease-above-ceiling"),
            (aside.join("data/private"), "read", "lease-denied-by-ceiling"),
            (aside.join("data"), "write", "lease-denied-by-ceiling"),
            (stage.state(), "read", "lease-path-never"),
        ] {
            cage.sh(&["--lease", &lease(right, &path)], "echo ran").ended(125).denied(code);
        }
        // One that is refused takes the others along: nothing runs with half of what it needs.
        let both = format!("read={}:{}", deep(stage).display(), aside.join("secret").display());
        let ran = cage.sh(&["--lease", &both], "echo ran").ended(125);
        assert_eq!(ran.stdout(), "");
        cage.sh(&["--lease", "read"], "true").ended(125).says("read=PATH");
        assert!(cage.record().contains("lease denied"), "{}", cage.record());
        assert_eq!(cage.sh(&["--lease", &lease("read", &deep(stage))], "echo ran").ok().stdout(), "ran\n");
    }

    fn what_a_scope_hands_to_its_cage_is_found_and_its_holder_killed(stage) {
        let cage = Cage::start(stage, "cow", "");
        // In the cage: takes a descriptor, and keeps it.
        cage.leave_running(
            "import socket, time, array\n\
             s = socket.socket(socket.AF_UNIX); s.bind('handed'); s.listen(); open('ready', 'w').close()\n\
             c, _ = s.accept(); m, a, f, _ = c.recvmsg(1, 64)\n\
             open('taken', 'w').close()\n\
             time.sleep(600)\n",
        );
        let hand = format!(
            "import socket, array, os, time\n\
             f = open('{}/file', 'a'); c = socket.socket(socket.AF_UNIX); c.connect('handed')\n\
             c.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [f.fileno()]))])\n\
             while not os.path.exists('taken'): time.sleep(0.02)\n",
            deep(stage).display()
        );
        let flags = ["--lease", &lease("write", &deep(stage))];
        Running::start(&mut cage.exec(&flags, &["/usr/bin/python3", "-c", &hand])).finish(PATIENCE).ok();
        let record = cage.record();
        assert!(record.contains("lease 1: revoked") && record.contains("; killed"), "{record}");
        // Others in the cage live on, and the socket's owner does not.
        let dial = "import socket\ntry: socket.socket(socket.AF_UNIX).connect('handed'); print('there')\nexcept ConnectionRefusedError: print('gone')";
        let said = Running::start(&mut cage.exec(&[], &["/usr/bin/python3", "-c", dial])).finish(PATIENCE).ok().stdout();
        assert_eq!(said, "gone\n");
    }

    fn what_a_scope_leaves_in_a_socket_of_its_cage_ends_the_cage(stage) {
        let cage = Cage::start(stage, "cow", "");
        cage.leave_running(
            "import socket, time\n\
             s = socket.socket(socket.AF_UNIX); s.bind('handed'); s.listen(); open('ready', 'w').close()\n\
             c, _ = s.accept(); time.sleep(600)\n",
        );
        let hand = format!(
            "import socket, array\n\
             f = open('{}/file', 'a'); c = socket.socket(socket.AF_UNIX); c.connect('handed')\n\
             c.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [f.fileno()]))])\n",
            deep(stage).display()
        );
        let flags = ["--lease", &lease("write", &deep(stage))];
        Running::start(&mut cage.exec(&flags, &["/usr/bin/python3", "-c", &hand])).finish(PATIENCE);
        assert!(wait_until(PATIENCE, || !cage.running()));
        let record = cage.record();
        assert!(record.contains("lease 1: ended by killing the cage") && !record.contains("lease 1: revoked"), "{record}");
    }

    fn revoking_a_lease_of_a_scope_ends_the_scope(stage) {
        let cage = Cage::start(stage, "cow", "");
        let scope = Running::start(&mut cage.sh_in(&["--lease", &lease("write", &deep(stage))], "touch open; exec sleep 600"));
        assert!(wait_until(PATIENCE, || cage.sh(&[], "test -e open").code() == 0));
        assert_eq!(cage.says("revoke", &["1"]).ok().stdout(), "lease 1: revoked\n");
        scope.finish(PATIENCE).ended(137);
        assert!(cage.running());
        cage.says("revoke", &["1"]).ended(125).denied("lease-no-such-lease");
    }

    fn the_end_of_the_cage_or_of_its_supervisor_is_the_end_of_its_scopes(stage) {
        for way in ["stop", "kill"] {
            let cage = Cage::start(stage, "cow", "");
            let word = format!("scopes-{way}-{}", stage.base().display()).replace('/', "-");
            let script = format!("touch open; exec python3 -c 'import time; time.sleep(600)' {word}");
            let scope = Running::start(&mut cage.sh_in(&["--lease", &lease("write", &deep(stage))], &script));
            assert!(wait_until(PATIENCE, || cage.sh(&[], "test -e open").code() == 0));
            // The scope's program, and the client that asked for it.
            assert!(wait_until(PATIENCE, || with_word(&word) >= 2), "it does not run");
            match way {
                "stop" => {
                    Running::start(&mut stage.ironcage(["stop", &cage.id])).finish(PATIENCE).ok();
                }
                _ => {
                    let described = cage.says("inspect", &[]).ok().stdout();
                    let described: serde_json::Value = serde_json::from_str(&described).expect("JSON");
                    let supervisor = described["supervisor"].as_u64().expect("a process");
                    stage.sh_outside(&format!("kill -9 {supervisor}")).ok();
                }
            }
            scope.finish(PATIENCE);
            assert!(wait_until(PATIENCE, || with_word(&word) == 0), "{way}: something of the scope is left");
            let record = cage.record();
            assert!(!record.contains("lease 1: revoked"), "{way}: {record}");
            if way == "stop" {
                assert!(record.contains("lease 1: ended with its cage"), "{record}");
            }
        }
    }

    fn a_scope_killed_at_any_step_leaves_nothing_open(stage) {
        killed_at_every_step(stage);
    }

    fn what_has_no_scopes_says_so(stage) {
        if stage.who() == Who::Root {
            // Its workspace is root's own, which this isolation does not take; the other arm does.
            return;
        }
        let cage = Cage::with(stage, &["--isolation", "landlock", "--allow-degraded", "user-ns,mount-ns,pid-ns,uts-ns", "--workspace-mode", "direct"]);
        cage.sh(&["--scope"], "true").ended(125).denied("scope-not-supported");
        cage.sh(&[], "true").ok();
    }

    fn a_change_is_applied_when_the_command_in_a_scope_succeeds(stage) {
        let cage = Cage::with(stage, &["--workspace-mode", "cow"]);
        cage.sh(&["--scope", "--commit-on-success"], "echo applied > applied").ok();
        assert_eq!(stage.read("applied").as_deref(), Some("applied\n"));
        // While one runs, its files may change under who applies.
        let scope = Running::start(&mut cage.sh_in(&["--scope"], "touch begun; while ! test -e enough; do sleep 0.02; done"));
        assert!(wait_until(PATIENCE, || cage.sh(&[], "test -e begun").code() == 0));
        cage.sh(&["--commit-on-success"], "true").ended(125).says("a scope of it");
        cage.sh(&[], "touch enough").ok();
        scope.finish(PATIENCE).ok();
        cage.sh(&["--commit-on-success"], "true").ok();
        assert!(stage.read("begun").is_some());
    }
}

/// Kills whoever comes to each step of making a scope with a lease and ending it.
fn killed_at_every_step(stage: &Stage) {
    let limits = "[limits]\npids = 500\n[ceiling.ask.limits]\npids = 900\n";
    let policy = furnish(stage, limits);
    // Where a cgroup holds the limits, the scope has one of its own, too.
    let own_limits = {
        let cage = Cage::with(stage, &["--policy", &policy]);
        let stats = cage.says("stats", &["--json"]).ok().stdout();
        !stats.contains("\"processes\"")
    };
    let mut ids = Vec::new();
    let log = deep(stage).join("log");
    let writer = format!(
        "(while :; do echo x >> {0}; sleep 0.01; done) & while ! test -e {0}; do sleep 0.01; done",
        log.display()
    );
    let mut steps = 0;
    loop {
        let mut start =
            stage.ironcage(["run", "-q", "-d", "--workspace-mode", "direct", "--policy"]);
        start.arg(&policy);
        start.env("IRONCAGE_FAULT", format!("lease:{steps}"));
        let ran = Running::start(&mut start).finish(PATIENCE).ok();
        let id = ran.stdout().trim().to_owned();
        ids.push(id.clone());
        let cage = Cage { stage, id };
        let written = lease("write", &deep(stage));
        let mut flags = vec!["--lease", &written];
        if own_limits {
            flags.extend(["--lease", "pids=900"]);
        }
        let done = cage.sh(&flags, &writer).code() == 0;
        if done && cage.record().contains("lease 1: revoked") && cage.running() {
            // Nobody was killed: the allowing arm, in which the cage lives on without the lease.
            assert!(log.exists(), "it was never written");
            break;
        }
        // Whoever wrote is gone: what is there now does not change any more.
        assert!(
            wait_until_still(&log, PATIENCE),
            "killed at step {steps}, somebody writes on"
        );
        let record = cage.record();
        let known = record.contains("lease 1: write");
        assert!(
            known || std::fs::metadata(&log).map_or(0, |file| file.len()) == 0,
            "killed at step {steps}, it was written without a lease on record"
        );
        // A lease on record has an end on record, or its cage is gone and with it everything.
        let ended = record.contains("lease 1: revoked") || record.contains("lease 1: not opened");
        assert!(
            !known || ended || wait_until(PATIENCE, || !cage.running()),
            "killed at step {steps}, the cage runs on with a lease whose end is not proved"
        );
        let _ = std::fs::remove_file(&log);
        steps += 1;
        assert!(steps < 200, "no scope got through");
    }
    assert!(steps > 10, "only {steps} steps: is this a debug build?");
    // Whoever was killed removes nothing: the end of another cage does.
    for id in ids {
        let gone = || {
            let gone = groups(&id).is_empty();
            if !gone {
                stage.run(&[], &["/bin/true"]).ok();
            }
            gone
        };
        assert!(wait_until(PATIENCE, gone), "{:?}", groups(&id));
    }
}
