//! Leases on files of a running cage: what is given, what is not, and that the end of one is an end.

use ironcage_tests::{Ran, Running, Screen, Stage, both, wait_until, wait_until_still};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A cage with a ceiling, killed when this is dropped.
struct Cage<'a> {
    stage: &'a Stage,
    id: String,
}

/// What stands aside, and a ceiling that gives `data`, `auto` and `link`, but `data/private`.
fn furnish(stage: &Stage, ceiling: &str) -> PathBuf {
    let aside = stage.aside();
    stage.write(aside.join("data/file"), "allowed\n");
    stage.write(aside.join("data/deep/other"), "deeper\n");
    stage.write(aside.join("data/private/key"), "private\n");
    stage.write(aside.join("secret/key"), "secret\n");
    let at = |name: &str| aside.join(name).display().to_string();
    let policy = stage.base().join("policy.toml");
    let text = format!(
        "[ceiling]\n{ceiling}\n[ceiling.ask.files]\nwrite = [\"{}\", \"{}\"]\n[ceiling.deny.files]\nread = [\"{}\"]\n",
        at("data"),
        at("swapped"),
        at("data/private"),
    );
    stage.write(&policy, text);
    policy
}

impl<'a> Cage<'a> {
    #[track_caller]
    fn start(stage: &'a Stage, ceiling: &str) -> Self {
        let policy = furnish(stage, ceiling);
        let policy = policy.to_str().expect("text");
        let args = [
            "run",
            "-q",
            "-d",
            "--workspace-mode",
            "direct",
            "--policy",
            policy,
        ];
        let ran = Running::start(&mut stage.ironcage(args))
            .finish(PATIENCE)
            .ok();
        let id = ran.stdout().trim().to_owned();
        Cage { stage, id }
    }

    fn ask(&self, verb: &str, args: &[&str]) -> std::process::Command {
        let mut command = self
            .stage
            .ironcage(verb.split(' ').chain([self.id.as_str()]));
        command.args(args);
        command
    }

    #[track_caller]
    fn says(&self, verb: &str, args: &[&str]) -> Ran {
        Running::start(&mut self.ask(verb, args)).finish(PATIENCE)
    }

    #[track_caller]
    fn grant(&self, right: &str, path: &Path) -> Ran {
        self.says(
            "grant",
            &[right, path.to_str().expect("text"), "--reason", "a test"],
        )
    }

    fn exec(&self, flags: &[&str], command: &[&str]) -> std::process::Command {
        let mut exec = self.stage.ironcage(["exec"]);
        exec.args(flags).arg(&self.id).arg("--").args(command);
        exec
    }

    #[track_caller]
    fn sh(&self, script: &str) -> Ran {
        Running::start(&mut self.exec(&[], &["/bin/sh", "-c", script])).finish(PATIENCE)
    }

    /// Starts a program in the cage that says in the workspace when it is ready, and waits for that.
    #[track_caller]
    fn hold(&self, script: &str) {
        let script = format!(
            "import os, sys, time, mmap, socket, array\nplace = os.getcwd() + '/'\n{script}\nopen(place + 'ready', 'w').close()\nwhile not os.path.exists(place + 'let-go'): time.sleep(0.02)\n"
        );
        self.stage
            .write(self.stage.project().join("hold.py"), script);
        Running::start(&mut self.exec(&["-d"], &["/usr/bin/python3", "hold.py"]))
            .finish(PATIENCE)
            .ok();
        assert!(
            wait_until(PATIENCE, || self.stage.project().join("ready").exists()),
            "it never got ready"
        );
    }

    fn running(&self) -> bool {
        let ran = Running::start(&mut self.stage.ironcage(["ps", "-q"]))
            .finish(PATIENCE)
            .ok();
        ran.stdout().lines().any(|id| id == self.id)
    }
}

impl Drop for Cage<'_> {
    fn drop(&mut self) {
        let mut stop = self.stage.ironcage(["rm", "--force", &self.id]);
        Running::start(&mut stop).finish(PATIENCE);
    }
}

fn record(cage: &Cage<'_>) -> String {
    let mut show = cage.stage.ironcage(["audit", "show", &cage.id]);
    Running::start(&mut show).finish(PATIENCE).stdout()
}

both! {
    fn a_lease_opens_a_path_with_just_its_right_and_its_end_closes_it(stage) {
        let cage = Cage::start(stage, "");
        let data = stage.aside().join("data");
        let deep = data.join("deep");
        let (shown, file) = (deep.display().to_string(), data.join("file"));
        cage.sh(&format!("ls {shown}")).ended(2);
        cage.grant("--read", &deep).ok();
        assert_eq!(cage.sh(&format!("cat {shown}/other; ls {}", data.display())).ok().stdout(), "deeper\ndeep\n");
        cage.sh(&format!("echo x > {shown}/new")).ended(2);
        cage.says("revoke", &["1"]).ok().says("");
        cage.sh(&format!("ls {shown}")).ended(2);
        // With the right to write, what is written is there at once, and belongs to the user.
        cage.grant("--write", &deep).ok();
        cage.sh(&format!("echo x > {shown}/new; rm {shown}/other")).ok();
        assert_eq!(std::fs::read_to_string(deep.join("new")).ok().as_deref(), Some("x\n"));
        assert!(!deep.join("other").exists());
        use std::os::unix::fs::MetadataExt;
        assert_eq!(std::fs::metadata(deep.join("new")).expect("metadata").uid(), stage.uid());
        assert_eq!(cage.says("revoke", &["--all"]).ok().stdout(), "lease 2: revoked\n");
        cage.sh(&format!("echo y > {shown}/new")).ended(2);
        // A single file.
        cage.grant("--read", &file).ok();
        assert_eq!(cage.sh(&format!("cat {}", file.display())).ok().stdout(), "allowed\n");
        assert_eq!(cage.says("revoke", &["3"]).ok().stdout(), "lease 3: revoked\n");
        cage.sh(&format!("cat {}", file.display())).ended(1);
        // Nothing is left of mount points, and the record has all of it.
        cage.sh(&format!("ls {}", stage.aside().display())).ended(2);
        let record = record(&cage);
        for said in ["lease 1: read", "lease 1: revoked", "lease 2: write", "lease 3: revoked", "a test", "log: intact"] {
            assert!(record.contains(said), "{said}: {record}");
        }
    }

    fn what_is_written_to_a_leased_directory_counts_for_the_limits(stage) {
        let cage = Cage::start(stage, "[limits]\ndisk = \"64M\"\n");
        let deep = stage.aside().join("data/deep");
        cage.grant("--write", &deep).ok();
        let fill = |files: usize| format!("cd {} && for i in $(seq {files}); do fallocate -l 24M fill$i; done", deep.display());
        cage.sh(&fill(2)).ok();
        assert!(cage.running());
        // Whoever is in it is ended with it.
        cage.sh(&fill(6));
        assert!(wait_until(PATIENCE, || !cage.running()), "it goes on: {}", record(&cage));
        assert!(record(&cage).contains("disk 64M: the cage was ended after using"), "{}", record(&cage));
    }

    fn no_page_of_a_file_outlives_its_lease_in_a_pipe(stage) {
        let script = "import os, socket, sys\n\
            file = os.open(sys.argv[1], os.O_RDONLY)\n\
            into, out = os.pipe(), socket.socketpair()\n\
            def tried(call):\n\
            \x20   try: call(); print('went')\n\
            \x20   except OSError as error: print(error.errno)\n\
            tried(lambda: os.splice(file, into[1], 4))\n\
            tried(lambda: os.sendfile(out[0].fileno(), file, 0, 4))\n\
            tcp = socket.socket()\n\
            tried(lambda: tcp.setsockopt(socket.SOL_SOCKET, 60, 1))\n\
            tried(lambda: tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1))\n";
        let cage = Cage::start(stage, "");
        let file = stage.aside().join("data/file");
        cage.grant("--read", &file).ok();
        let ran = cage.sh(&format!("/usr/bin/python3 -c \"{script}\" {}; cat {0} | cat", file.display())).ok();
        assert_eq!(ran.stdout(), "22\n22\n92\nwent\nallowed\n");
        assert_eq!(cage.says("revoke", &["--all"]).ok().stdout(), "lease 1: revoked\n");
        // Where nothing can be leased, nothing is refused.
        stage.write(stage.project().join("own"), "allowed\n");
        let ran = stage.run(&[], &["/usr/bin/python3", "-c", script, "own"]).ok();
        assert_eq!(ran.stdout(), "went\nwent\nwent\nwent\n");
    }

    fn nothing_outside_of_the_ceiling_is_given(stage) {
        let cage = Cage::start(stage, "");
        let aside = stage.aside();
        let outside = |path: &Path, right: &str, code: &str| {
            cage.grant(right, path).ended(125).denied(code);
        };
        outside(&aside.join("secret"), "--read", "lease-above-ceiling");
        outside(&aside.join("data/../secret"), "--read", "lease-above-ceiling");
        outside(&aside, "--read", "lease-denied-by-ceiling");
        outside(&aside.join("data"), "--read", "lease-denied-by-ceiling");
        outside(&aside.join("data/private"), "--read", "lease-denied-by-ceiling");
        outside(&aside.join("data/private/key"), "--write", "lease-denied-by-ceiling");
        // A link leads where it leads, whatever it is called.
        std::os::unix::fs::symlink(aside.join("secret"), aside.join("data/deep/link")).expect("a link");
        outside(&aside.join("data/deep/link"), "--read", "lease-above-ceiling");
        outside(&aside.join("data/deep/link/key"), "--write", "lease-above-ceiling");
        outside(&stage.state(), "--read", "lease-path-never");
        outside(Path::new("/proc/1"), "--read", "lease-path-never");
        // What the host executes when somebody works there.
        std::fs::create_dir_all(aside.join("data/deep/.git")).expect("a repository");
        outside(&aside.join("data/deep"), "--write", "lease-path-executed");
        outside(&aside.join("data/deep/.git"), "--write", "lease-path-never");
        cage.grant("--read", &aside.join("data/deep")).ok();
        // Twice, or around one another, is once.
        outside(&aside.join("data/deep/other"), "--read", "lease-overlaps");
        let list = cage.says("lease list", &["--json"]).ok().stdout();
        let all = Running::start(&mut stage.ironcage(["lease", "list"])).finish(PATIENCE).ok().stdout();
        assert!(all.contains(&format!("{}  lease 1", cage.id)), "{all}");
        assert_eq!(list.matches("\"number\"").count(), 1, "{list}");
    }

    fn time_ends_a_lease(stage) {
        let cage = Cage::start(stage, "");
        let deep = stage.aside().join("data/deep");
        let path = deep.to_str().expect("text");
        cage.says("grant", &["--read", path, "--for", "1s"]).ok();
        assert!(wait_until(PATIENCE, || cage.says("lease list", &[]).ok().stdout().contains("no leases")));
        cage.sh(&format!("ls {path}")).ended(2);
        assert!(record(&cage).contains("revoked after"), "{}", record(&cage));
        // Longer than the ceiling lets it is shortened.
        let said = cage.says("grant", &["--read", path, "--for", "9d"]).ok().stdout();
        assert!(said.contains("for 8 h"), "{said}");
    }

    fn who_holds_on_is_named_and_killed_and_then_it_is_revoked(stage) {
        for (holding, what) in [
            ("f = open('DEEP/other')", "descriptor"),
            ("f = open('DEEP/held', 'w')", "descriptor"),
            ("f = os.open('DEEP', os.O_RDONLY | os.O_DIRECTORY)", "descriptor"),
            ("os.chdir('DEEP')", "working directory"),
            ("f = open('DEEP/map', 'w+b')\nf.write(b'x' * 4096)\nf.flush()\nm = mmap.mmap(f.fileno(), 4096)\nf.close()\nos.closerange(3, 99)", "mapping"),
            ("f = open('DEEP/held', 'w')\nfor i in range(20):\n  if os.fork() == 0:\n    os.setsid()\n    break\ntime.sleep(0.05)", "descriptor"),
        ] {
            let cage = Cage::start(stage, "grace = \"1s\"");
            let deep = stage.aside().join("data/deep");
            cage.grant("--write", &deep).ok();
            cage.hold(&holding.replace("DEEP", deep.to_str().expect("text")));
            let said = cage.says("revoke", &["1"]).ok().stdout();
            assert!(said.starts_with("lease 1: revoked\n"), "{holding}: {said}");
            assert!(said.contains(what) && said.contains("python3") && said.contains("; killed"), "{holding}: {said}");
            // Others in the cage live on.
            assert_eq!(cage.sh("echo alive").ok().stdout(), "alive\n");
            let record = record(&cage);
            assert!(record.contains("lease 1: revoked") && record.contains("; killed"), "{record}");
            std::fs::remove_file(stage.project().join("ready")).expect("ready");
        }
    }

    fn what_cannot_be_found_ends_the_cage_and_is_not_called_revoked(stage) {
        let cage = Cage::start(stage, "grace = \"1s\"");
        let deep = stage.aside().join("data/deep");
        cage.grant("--write", &deep).ok();
        // A descriptor in flight: no process has it, and no list shows it.
        cage.hold(&format!(
            "a, b = socket.socketpair()\nf = open('{}/held', 'w')\na.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [f.fileno()]))])\nf.close()",
            deep.display()
        ));
        let said = cage.says("revoke", &["1"]).stdout();
        assert!(said.starts_with("lease 1: ended by killing the cage\n"), "{said}");
        assert!(wait_until(PATIENCE, || !cage.running()));
        assert!(record(&cage).contains("lease 1: ended by killing the cage"), "{}", record(&cage));
    }

    fn who_lets_go_in_time_is_not_killed(stage) {
        let cage = Cage::start(stage, "grace = \"9m\"");
        let deep = stage.aside().join("data/deep");
        cage.grant("--write", &deep).ok();
        cage.hold(&format!("f = open('{}/held', 'w')", deep.display()));
        let revoke = Running::start(&mut cage.ask("revoke", &["1"]));
        assert!(wait_until(PATIENCE, || cage.says("lease list", &[]).ok().stdout().contains("ending")));
        stage.write(stage.project().join("let-go"), "");
        assert_eq!(revoke.finish(PATIENCE).ok().stdout(), "lease 1: revoked\n");
        assert!(!record(&cage).contains("still used it"), "{}", record(&cage));
    }

    fn who_is_left_alone_reads_on_and_the_record_says_no_more_than_that(stage) {
        let cage = Cage::start(stage, "grace = \"1s\"\nholders = \"keep\"");
        let deep = stage.aside().join("data/deep");
        cage.grant("--write", &deep).ok();
        let script = format!(
            "f = open('{0}/other')\nwhile os.path.exists('{0}/other'): time.sleep(0.02)\nsaid = f.read()\n\
             try:\n  os.open('/proc/self/fd/%d' % f.fileno(), os.O_WRONLY)\n  said += 'reopened for writing'\n\
             except OSError as error: said += 'refused'\n",
            deep.display()
        );
        stage.write(stage.project().join("reader.py"), format!("import os, time\nopen('begun', 'w').close()\n{script}open('part', 'w').write(said)\nos.rename('part', 'said')\n"));
        Running::start(&mut cage.exec(&["-d"], &["/usr/bin/python3", "reader.py"])).finish(PATIENCE).ok();
        assert!(wait_until(PATIENCE, || stage.project().join("begun").exists()));
        // Until it has the file open, nobody holds on to anything.
        let shown = format!("ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c {}/other", deep.display());
        assert!(wait_until(PATIENCE, || cage.sh(&shown).stdout().trim() != "0"));
        let said = cage.says("revoke", &["1"]).ok().stdout();
        assert!(said.starts_with("lease 1: closed to new opens\n") && said.contains("left running"), "{said}");
        assert!(wait_until(PATIENCE, || stage.read("said").is_some()));
        assert_eq!(stage.read("said").as_deref(), Some("deeper\nrefused"));
        assert!(!record(&cage).contains("lease 1: revoked"), "{}", record(&cage));
    }

    fn a_cage_on_a_terminal_goes_on_when_a_lease_ends_by_killing(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let policy = furnish(stage, "grace = \"1s\"");
        let binary = ironcage_tests::binary();
        let flags = "run -q -t --name leased --workspace-mode direct --env PS1='in> ' --policy";
        screen.line(&format!("{} {flags} {} -- /bin/sh; echo status=$?", binary.display(), policy.display()));
        screen.asks("in>");
        let cage = Cage { stage, id: "leased".into() };
        let deep = stage.aside().join("data/deep");
        cage.grant("--write", &deep).ok();
        cage.hold(&format!("f = open('{}/held', 'w')", deep.display()));
        let said = cage.says("revoke", &["1"]).ok().stdout();
        assert!(said.starts_with("lease 1: revoked\n") && said.contains("; killed"), "{said}");
        // Everything in the cage was stopped meanwhile; neither it nor its supervisor is any more.
        assert_eq!(cage.sh("echo alive").ok().stdout(), "alive\n");
        screen.line("echo $((20 + 22))");
        screen.shows("42");
        screen.asks("in>");
        screen.line("exit 7");
        screen.shows("status=7");
    }

    fn a_path_that_is_swapped_all_the_while_yields_nothing_else(stage) {
        let cage = Cage::start(stage, "");
        let aside = stage.aside();
        let swapped = aside.join("swapped");
        stage.write(aside.join("real/file"), "allowed\n");
        let script = "import os, sys\nos.chdir(sys.argv[1])\nwhile not os.path.exists('stop'):\n  os.rename('real', 'swapped')\n  os.rename('swapped', 'real')\n  os.symlink('secret', 'swapped')\n  os.unlink('swapped')\n";
        let swapper = Running::start(stage.outside("/usr/bin/python3").args(["-c", script]).arg(&aside));
        let mut given = 0;
        for _ in 0..60 {
            let ran = cage.grant("--read", &swapped);
            if ran.code() == 0 {
                given += 1;
                let seen = cage.sh(&format!("cat {}/*", swapped.display())).stdout();
                assert!(!seen.contains("secret"), "{seen}");
                // Its mount point may have gone along with what was renamed.
                cage.says("revoke", &["--all"]).ok();
            }
            assert!(!cage.sh(&format!("cat {}/secret/key {}/swapped/key", aside.display(), aside.display())).stdout().contains("secret"));
        }
        stage.write(aside.join("stop"), "");
        swapper.finish(PATIENCE).ok();
        // The allowing arm: what stands still is given.
        std::fs::rename(aside.join("real"), &swapped).expect("a rename");
        cage.grant("--read", &swapped).ok();
        let seen = cage.sh(&format!("cat {}/file", swapped.display())).ok().stdout();
        assert_eq!(seen, "allowed\n", "{given} were given before");
    }

    fn a_lease_is_its_cages_alone_and_gone_with_it(stage) {
        let cage = Cage::start(stage, "");
        let other = Cage::start(stage, "");
        let deep = stage.aside().join("data/deep");
        cage.grant("--read", &deep).ok();
        cage.sh(&format!("cat {}/other", deep.display())).ok();
        other.sh(&format!("cat {}/other", deep.display())).ended(1);
        other.says("revoke", &["1"]).ended(125).denied("lease-no-such-lease");
        Running::start(&mut stage.ironcage(["stop", &cage.id])).finish(PATIENCE).ok();
        assert!(record(&cage).contains("lease 1: ended with its cage"), "{}", record(&cage));
    }

    fn many_leases_leave_nothing_behind(stage) {
        let cage = Cage::start(stage, "");
        let deep = stage.aside().join("data/deep");
        let described = cage.says("inspect", &[]).ok().stdout();
        let described: serde_json::Value = serde_json::from_str(&described).expect("JSON");
        let supervisor = described["supervisor"].as_u64().expect("a process");
        let count = |what: &str| {
            let script = format!("ls /proc/{supervisor}/{what} | wc -l; cat /proc/{supervisor}/task/*/children | wc -w");
            stage.sh_outside(&script).ok().stdout() + &cage.sh("wc -l < /proc/self/mountinfo; find / -xdev 2>/dev/null | wc -l").ok().stdout()
        };
        cage.grant("--write", &deep).ok();
        cage.says("revoke", &["--all"]).ok();
        let before = count("fd");
        for _ in 0..40 {
            cage.grant("--write", &deep).ok();
            cage.says("revoke", &["--all"]).ok();
        }
        // The last client's connection may just be closing.
        let mut after = String::new();
        wait_until(PATIENCE, || { after = count("fd"); after == before });
        assert_eq!(after, before);
    }

    fn a_coding_agent_can_be_given_another_project_to_read_and_no_more(stage) {
        let mut run = stage.ironcage(["run", "-q", "-d", "--profile", "coding-agent"]);
        let id = Running::start(&mut run).finish(PATIENCE).ok().stdout().trim().to_owned();
        let cage = Cage { stage, id };
        let other = stage.home().join("other");
        stage.write(other.join("file"), "other\n");
        stage.write(stage.home().join(".ssh/key"), "secret\n");
        cage.sh(&format!("cat {}/file", other.display())).ended(1);
        cage.grant("--read", &other).ok();
        assert_eq!(cage.sh(&format!("cat {}/file", other.display())).ok().stdout(), "other\n");
        cage.grant("--read", &stage.home().join(".ssh")).ended(125).says("secrets");
        cage.grant("--read", &stage.home()).ended(125).says("cannot lease");
        cage.grant("--write", &stage.aside()).ended(125).denied("lease-above-ceiling");
        assert_eq!(cage.says("revoke", &["1"]).ok().stdout(), "lease 1: revoked\n");
        cage.sh(&format!("cat {}/file", other.display())).ended(1);
    }

    fn without_a_ceiling_nothing_is_given(stage) {
        let mut args = stage.ironcage(["run", "-q", "-d", "--workspace-mode", "direct"]);
        let id = Running::start(&mut args).finish(PATIENCE).ok().stdout().trim().to_owned();
        let cage = Cage { stage, id };
        stage.write(stage.aside().join("file"), "x");
        cage.grant("--read", &stage.aside().join("file")).ended(125).denied("lease-no-ceiling");
        cage.grant("--read", &stage.project()).ended(125).denied("lease-no-ceiling");
    }
}

/// A cage whose workspace is leased to write, with a file in it that is hidden.
fn locked(stage: &Stage) -> Cage<'_> {
    let project = stage.project();
    stage.write(project.join("src/file"), "real\n");
    stage.write(project.join("deep/key"), "secret\n");
    let policy = stage.base().join("locked.toml");
    let text = format!(
        "[workspace]\nmode = \"leased\"\n[files]\nhide = [\"{}\"]\n[ceiling]\ngrace = \"1s\"\n[ceiling.auto.files]\nwrite = [\"@workspace\"]\n",
        project.join("deep/key").display()
    );
    stage.write(&policy, text);
    let mut start = stage.ironcage(["run", "-q", "-d", "--policy"]);
    let ran = Running::start(start.arg(&policy)).finish(PATIENCE).ok();
    let id = ran.stdout().trim().to_owned();
    Cage { stage, id }
}

both! {
    fn in_a_leased_workspace_a_lease_writes_to_the_change_and_never_to_the_real_tree(stage) {
        let cage = locked(stage);
        let src = stage.project().join("src");
        let write = "echo caged > src/file";
        let refused = |script: &str| cage.sh(script).ended(2).says("Read-only file system");
        refused(write);
        assert_eq!(cage.sh("cat src/file").ok().stdout(), "real\n");
        assert!(cage.grant("--read", &src).ok().stdout().contains("already"));
        cage.grant("--write", &src).ok();
        cage.sh(write).ok();
        cage.sh("echo new > src/new && mv src/new src/kept").ok();
        refused("echo beside > beside");
        assert_eq!(cage.says("revoke", &["1"]).ok().stdout(), "lease 1: revoked\n");
        refused(write);
        refused("echo caged > src/kept");
        assert_eq!(cage.sh("cat src/file src/kept").ok().stdout(), "caged\nnew\n");
        // What is hidden stays so in what is leased around it, and is not leased itself.
        let deep = stage.project().join("deep");
        cage.grant("--write", &deep.join("key")).ended(125).says("hides");
        cage.grant("--write", &deep).ok();
        cage.sh("cat deep/key").ended(1);
        cage.sh("echo mine > deep/key").ended(2);
        cage.sh("echo mine > deep/own").ok();
        // With what hides something in it, it goes in one piece, of which the kernel says less.
        assert_eq!(cage.says("revoke", &["2"]).ok().stdout(), "lease 2: closed to new opens\n");
        refused("echo mine > deep/own");
        // One command, and a tool's call, have it for themselves, also the whole of it.
        let scoped = |lease: &str, script: &str| {
            let flags = ["--lease", lease];
            Running::start(&mut cage.exec(&flags, &["/bin/sh", "-c", script])).finish(PATIENCE)
        };
        scoped("write=src", "echo scoped > src/scoped && ! echo no 2>&- > no").ok();
        scoped("write=.", "echo top > top").ok();
        refused("echo caged > top");
        let call = stage.base().join("call.json");
        let path = stage.project().join("made/of/words");
        let text = format!("{{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"Write\",\"input\":{{\"file_path\":\"{}\",\"content\":\"said\\n\"}}}}", path.display());
        stage.write(&call, text);
        cage.says("exec", &["--intent", call.to_str().expect("text")]).ok();
        assert_eq!(cage.sh("cat src/scoped top made/of/words").ok().stdout(), "scoped\ntop\nsaid\n");
        Running::start(&mut stage.ironcage(["stop", &cage.id])).finish(PATIENCE).ok();
        let diff = Running::start(&mut stage.ironcage(["diff", "--stat"])).finish(PATIENCE).ok().stdout();
        for name in ["src/file", "src/kept", "src/scoped", "top", "made/of/words"] {
            assert!(diff.contains(name), "{name}: {diff}");
        }
        assert_eq!(stage.read("src/file").as_deref(), Some("real\n"));
        for name in ["src/kept", "src/scoped", "top", "made", "no", "beside"] {
            assert!(!stage.project().join(name).exists(), "{name} is real");
        }
        let record = record(&cage);
        assert_eq!(record.matches("closed to new opens").count(), 1, "{record}");
        assert!(!record.contains("killing"), "{record}");
    }

    fn a_scope_starts_beside_an_open_lease_and_has_nothing_of_it(stage) {
        stage.write(stage.project().join("out/file"), "real\n");
        let cage = locked(stage);
        let src = stage.project().join("src");
        cage.grant("--write", &src).ok();
        cage.sh("echo caged > src/file").ok();
        let script = "cat src/file; echo no > src/file; echo scoped > out/file && : > out/up; until [ -e src/go ]; do sleep 0.02; done; cat out/file";
        let scope = Running::start(&mut cage.exec(&["--lease", "write=out"], &["/bin/sh", "-c", script]));
        assert!(wait_until(PATIENCE, || cage.sh("test -e out/up").code() == 0));
        // The cage still writes by its lease, and the end of that is proved while the scope runs.
        cage.sh("echo again > src/file").ok();
        assert_eq!(cage.says("revoke", &["1"]).ok().stdout(), "lease 1: revoked\n");
        cage.sh("echo caged > src/file").ended(2).says("Read-only file system");
        // Also one that is opened while it runs.
        cage.grant("--write", &src).ok();
        cage.sh(": > src/go").ok();
        let ran = scope.finish(PATIENCE).ok().says("Read-only file system");
        assert_eq!(ran.stdout(), "caged\nscoped\n");
    }

    fn who_writes_on_in_a_leased_workspace_is_killed_and_who_reads_is_not(stage) {
        let cage = locked(stage);
        let src = stage.project().join("src");
        let hold = |what: &str| {
            let script = format!("import ctypes, mmap, os, time\n{what}\nprint('ready', flush=True)\ntime.sleep(600)\n");
            let mut held = Running::start(&mut cage.exec(&[], &["/usr/bin/python3", "-c", &script]));
            let mut said = String::new();
            let mut out = BufReader::new(held.stdout());
            out.read_line(&mut said).expect("what it says");
            assert_eq!(said, "ready\n");
            held
        };
        // The file that only it has open, as its directory is nowhere in the view any more.
        let reads = || cage.sh("ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c ' -> .*/only-read$'").stdout() == "1\n";
        cage.grant("--write", &src).ok();
        cage.sh("echo only > src/only-read").ok();
        let _reader = hold("os.chdir('src'); f = open('only-read')");
        assert!(reads(), "it does not read");
        // The descriptor is closed: only a mapping is left, which the flip alone does not see, and
        // which can be made writable at any moment.
        let mapped = "f = os.open('src/file', os.O_RDWR)\nc = ctypes.CDLL(None)\nc.mmap.restype = ctypes.c_void_p\nassert c.mmap(None, ctypes.c_size_t(4096), 1, mmap.MAP_SHARED, f, ctypes.c_long(0)) != ctypes.c_void_p(-1).value\nos.close(f)";
        let writer = hold(mapped);
        let said = cage.says("revoke", &["1"]).ok().stdout();
        assert!(said.starts_with("lease 1: closed to new opens\n") && said.contains("mapping of"), "{said}");
        assert_eq!(writer.finish(PATIENCE).code(), 137);
        assert!(reads(), "who only read was killed");
        // Alone, who has it open to write, too.
        cage.grant("--write", &src).ok();
        let writer = hold("f = open('src/file', 'a')");
        let said = cage.says("revoke", &["2"]).ok().stdout();
        assert!(said.starts_with("lease 2: revoked\n") && said.contains("descriptor of"), "{said}");
        assert_eq!(writer.finish(PATIENCE).code(), 137);
        assert!(reads(), "who only read was killed");
    }
}

/// Kills whoever comes to each step of giving a lease and taking it back.
fn killed_at_every_step(stage: &Stage) {
    let policy = furnish(stage, "grace = \"1s\"");
    let deep = stage.aside().join("data/deep");
    let log = deep.join("log");
    let writer = format!("while :; do echo x >> {}; sleep 0.01; done", log.display());
    let mut steps = 0;
    loop {
        let mut start =
            stage.ironcage(["run", "-q", "-d", "--workspace-mode", "direct", "--policy"]);
        start.arg(&policy).args(["--", "/bin/sh", "-c", &writer]);
        start.env("IRONCAGE_FAULT", format!("lease:{steps}"));
        let id = Running::start(&mut start)
            .finish(PATIENCE)
            .ok()
            .stdout()
            .trim()
            .to_owned();
        let cage = Cage { stage, id };
        let granted = cage.grant("--write", &deep).code() == 0;
        // Used before it is taken back, unless somebody was killed meanwhile.
        wait_until(PATIENCE, || !granted || log.exists() || !cage.running());
        let revoked = granted && {
            let ran = cage.says("revoke", &["1"]);
            ran.code() == 0 && ran.stdout().starts_with("lease 1: revoked")
        };
        if granted && revoked && cage.running() {
            // Nobody was killed: the allowing arm, in which the cage lives on without the lease.
            assert!(log.exists(), "it was never written");
            break;
        }
        assert!(
            wait_until(PATIENCE, || !cage.running()),
            "killed at step {steps}, the cage runs on"
        );
        // Whoever wrote is gone: what is there now does not change any more.
        assert!(
            wait_until_still(&log, PATIENCE),
            "killed at step {steps}, somebody writes on"
        );
        let record = record(&cage);
        let known = record.contains("lease 1: write");
        assert!(
            known || std::fs::metadata(&log).map_or(0, |file| file.len()) == 0,
            "killed at step {steps}, it was written without a lease on record"
        );
        if record.contains("lease 1: revoked") {
            assert!(!record.contains("killing the cage"), "{record}");
        }
        let _ = std::fs::remove_file(&log);
        steps += 1;
        assert!(steps < 200, "no lease got through");
    }
    assert!(steps > 10, "only {steps} steps: is this a debug build?");
}

both! {
    fn a_lease_killed_at_any_step_leaves_nothing_open(stage) {
        killed_at_every_step(stage);
    }
}
