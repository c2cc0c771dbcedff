//! Asking from inside of a cage, and the people who answer: what is given, what is not, and that
//! what was approved is what is opened.

use ironcage_tests::{Ran, Running, Stage, both, wait_until};
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const ASK: &str = "/.ironcage/bin/ironcage";

pub(crate) trait Tells {
    fn tells(self, text: &str) -> Self;
}

impl Tells for Ran {
    /// Checks what it printed.
    #[track_caller]
    fn tells(self, text: &str) -> Self {
        assert!(self.stdout().contains(text), "no {text:?} in {self:?}");
        self
    }
}

/// A cage that can be given things, ended when this is dropped.
struct Cage<'a> {
    stage: &'a Stage,
    id: String,
}

impl<'a> Cage<'a> {
    /// One whose ceiling gives `auto` at once, and `data` when it is asked for; below both is a
    /// file each.
    #[track_caller]
    fn start(stage: &'a Stage) -> Self {
        Cage::start_with(stage, "plain")
    }

    /// The same, with this way with shells.
    #[track_caller]
    fn start_with(stage: &'a Stage, shell: &str) -> Self {
        let at = |name: &str| stage.aside().join(name).display().to_string();
        stage.write(stage.aside().join("auto/file"), "automatic\n");
        stage.write(stage.aside().join("data/file"), "asked for\n");
        stage.write(stage.aside().join("data/deep/file"), "deep\n");
        stage.write(stage.aside().join("secret/file"), "secret\n");
        let policy = stage.base().join("asking.toml");
        let text = format!(
            "[ceiling.auto.files]\nread = [\"{}\"]\n[ceiling.ask.files]\nwrite = [\"{}\"]\n",
            at("auto"),
            at("data"),
        );
        stage.write(&policy, text);
        let policy = policy.to_str().expect("text");
        let args = ["run", "-q", "-d", "--workspace-mode", "direct", "--policy"];
        let mut run = stage.ironcage(args);
        let run = run.args([policy, "--shell", shell]);
        let ran = Running::start(run).finish(PATIENCE).ok();
        let id = ran.stdout().trim().to_owned();
        Cage { stage, id }
    }

    fn exec(&self, command: &[&str]) -> std::process::Command {
        let mut exec = self.stage.ironcage(["exec", &self.id, "--"]);
        exec.args(command);
        exec
    }

    #[track_caller]
    fn sh(&self, script: &str) -> Ran {
        Running::start(&mut self.exec(&["/bin/sh", "-c", script])).finish(PATIENCE)
    }

    /// A question of its own, as the one who says yes to it names it.
    fn question(&self, number: u32) -> String {
        format!("{}/{number}", self.id)
    }

    /// Asks inside.
    #[track_caller]
    fn ask(&self, args: &[&str]) -> Ran {
        let mut exec = self.exec(&[ASK, "ask"]);
        Running::start(exec.args(args)).finish(PATIENCE)
    }

    /// Asks inside, for a path aside.
    #[track_caller]
    fn ask_for(&self, flag: &str, name: &str) -> Ran {
        let path = self.aside(name);
        self.ask(&[flag, &path, "--reason", "for a test"])
    }

    fn aside(&self, name: &str) -> String {
        self.stage.aside().join(name).display().to_string()
    }

    /// Says something outside.
    #[track_caller]
    fn outside(&self, args: &[&str]) -> Ran {
        Running::start(&mut self.stage.ironcage(args)).finish(PATIENCE)
    }

    #[track_caller]
    fn pending(&self) -> String {
        self.outside(&["request", "list"]).ok().stdout()
    }

    #[track_caller]
    fn record(&self) -> String {
        self.outside(&["audit", "show", &self.id]).stdout()
    }

    /// Runs a program of Python's in the cage.
    #[track_caller]
    fn python(&self, script: &str) -> Ran {
        let place = self.stage.project().join("asks.py");
        self.stage.write(&place, script);
        Running::start(&mut self.exec(&["/usr/bin/python3", "asks.py"])).finish(PATIENCE)
    }
}

impl Drop for Cage<'_> {
    fn drop(&mut self) {
        let mut stop = self.stage.ironcage(["rm", "--force", &self.id]);
        Running::start(&mut stop).finish(PATIENCE);
    }
}

both! {
    fn what_is_asked_for_is_granted_denied_or_pending_as_the_ceiling_and_a_person_say(stage) {
        let cage = Cage::start(stage);
        cage.sh(&format!("cat {}/file", cage.aside("auto"))).ended(1);
        cage.ask_for("--read", "auto").ended(0).tells("granted: read");
        cage.sh(&format!("cat {}/file", cage.aside("auto"))).ok();
        // Asked for once more, it is there.
        cage.ask_for("--read", "auto").ended(0);
        cage.ask_for("--read", "secret").ended(1).tells("[lease-path-private]");
        cage.ask_for("--read", "data").ended(2).tells("request 1");
        cage.sh(&format!("cat {}/file", cage.aside("data"))).ended(1);
        // The same is not asked twice.
        cage.ask_for("--read", "data").ended(2).tells("request 1");
        assert!(cage.pending().contains("requested 2 times"));
        // A number alone may be another cage's by now; and an answer that cannot be carried out is none.
        cage.outside(&["approve", "1"]).ended(125).says("does not name a cage");
        cage.outside(&["approve", &cage.question(1), "--once"]).ended(125).denied("lease-uses-not-counted");
        cage.outside(&["approve", &cage.question(1), "--for", "10m"]).ok().tells("for 10 min, granted by the operator");
        cage.sh(&format!("cat {}/file", cage.aside("data"))).ok();
        cage.ask_for("--read", "data").ended(0);
        assert_eq!(cage.pending(), "no pending requests\n");
        // No is remembered.
        cage.outside(&["revoke", &cage.id, "--all"]).ok();
        cage.ask_for("--write", "data/deep").ended(2).tells("request 2");
        let name = format!("{}/2", cage.id);
        cage.outside(&["deny", &name, "--reason", "not today"]).ok();
        cage.ask_for("--write", "data/deep").ended(1).tells("not today");
        assert_eq!(cage.pending(), "no pending requests\n");
        cage.outside(&["approve", &name]).ended(125);
        let record = cage.record();
        for said in ["request 1: approved", "requested 2 times", "request 2: denied", "lease denied: read"] {
            assert!(record.contains(said), "{said}: {record}");
        }
    }

    fn who_waits_is_told_what_the_person_says(stage) {
        let cage = Cage::start(stage);
        for (number, verb, status, said) in [(1, "approve", 0, "granted"), (2, "deny", 1, "denied")] {
            let path = cage.aside(if verb == "approve" { "data/deep" } else { "data/file" });
            let mut exec = cage.exec(&[ASK, "ask", "--write", &path, "--wait", "600"]);
            let waits = Running::start(&mut exec);
            let is_asked = || cage.pending().contains(&path);
            assert!(wait_until(PATIENCE, is_asked), "nobody was asked");
            cage.outside(&[verb, &cage.question(number)]).ok();
            waits.finish(PATIENCE).ended(status).tells(said);
        }
        // Who went away has asked all the same, and can ask again.
        let path = cage.aside("data/other");
        stage.write(&path, "x");
        cage.python(&format!(
            "import socket, json\ns = socket.socket(socket.AF_UNIX)\ns.connect('/.ironcage/ask')\ns.sendall(json.dumps({{'read': '{path}', 'wait': 600}}).encode() + b'\\n')\ns.close()\n"
        )).ok();
        assert!(wait_until(PATIENCE, || cage.pending().contains(&path)), "nobody was asked");
        cage.outside(&["approve", &cage.question(3)]).ok();
        cage.sh(&format!("cat {path}")).ok();
    }

    fn what_is_approved_is_what_was_asked_about(stage) {
        let cage = Cage::start(stage);
        let aside = stage.aside();
        // Replaced by a link after it was asked about.
        cage.ask_for("--read", "data/deep").ended(2).tells("request 1");
        std::fs::rename(aside.join("data/deep"), aside.join("data/away")).expect("renamed");
        std::os::unix::fs::symlink(aside.join("secret"), aside.join("data/deep")).expect("linked");
        cage.outside(&["approve", &cage.question(1)]).ended(125).denied("lease-path-replaced");
        cage.sh(&format!("cat {}/file", cage.aside("data/deep"))).ended(1);
        cage.sh(&format!("cat {}/file", cage.aside("secret"))).ended(1);
        // What leads out of the ceiling cannot even be asked for.
        cage.ask_for("--read", "data/deep").ended(1).tells("[lease-path-not-found]");
        // An ancestor of it was renamed.
        stage.write(aside.join("data/around/inner/file"), "inner\n");
        cage.ask_for("--read", "data/around/inner").ended(2).tells("request 2");
        std::fs::rename(aside.join("data/around"), aside.join("data/elsewhere")).expect("renamed");
        stage.write(aside.join("data/around/inner/file"), "another\n");
        cage.outside(&["approve", &cage.question(2)]).ended(125).denied("lease-path-replaced");
        // Another of the same name is another question, and the old one is over.
        cage.ask_for("--read", "data/around/inner").ended(2).tells("request 3");
        std::fs::remove_dir_all(aside.join("data/around")).expect("removed");
        stage.write(aside.join("data/around/inner/file"), "a third\n");
        cage.ask_for("--read", "data/around/inner").ended(2).tells("request 4");
        assert!(!cage.pending().contains("/3 "));
        // Left alone, it opens.
        cage.outside(&["approve", &cage.question(4)]).ok();
        let read = cage.sh(&format!("cat {}/file", cage.aside("data/around/inner"))).ok();
        assert_eq!(read.stdout(), "a third\n");
        let record = cage.record();
        assert!(record.contains("request 1: approved, but not opened"), "{record}");
        assert!(record.contains("request 3: withdrawn"), "{record}");
    }

    fn what_is_approved_for_good_is_in_the_users_policy_and_not_asked_again(stage) {
        let config = stage.base().join("config/ironcage/config.toml");
        stage.write(&config, "# mine\n[limits]\npids = 400 # enough\n");
        let cage = Cage::start(stage);
        cage.ask_for("--read", "data/deep").ended(2).tells("request 1");
        let said = cage.outside(&["approve", &cage.question(1), "--always"]).ok().stdout();
        assert!(said.contains("ceiling.always.files.read += "), "{said}");
        let text = std::fs::read_to_string(&config).expect("the policy");
        for kept in ["# mine\n", "pids = 400 # enough\n", "request 1 of cage ", &cage.aside("data/deep")] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
        let again = Cage::start(stage);
        again.ask_for("--read", "data/deep").ended(0).tells("granted");
        again.ask_for("--read", "data/file").ended(2);
        // By itself it gives nothing: a cage whose ceiling does not name it has no more than before.
        let ran = stage.run(&["-q"], &["/bin/ls", "-d", "/.ironcage"]);
        ran.ended(2);
        // A policy that others can write is not the user's.
        again.ask_for("--read", "data/file").ended(2);
        std::fs::set_permissions(&config, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("changed");
        again.outside(&["approve", &format!("{}/1", again.id), "--always"]).ended(125).says("other users can write to it");
        assert_eq!(std::fs::read_to_string(&config).expect("the policy"), text);
    }

    fn a_command_of_the_users_is_told_of_each_question_and_its_failure_is_on_record(stage) {
        let told = stage.base().join("told");
        let config = stage.base().join("config/ironcage/config.toml");
        let command = format!("cat >> {}", told.display());
        stage.write(&config, format!("[questions]\nnotify = [\"/bin/sh\", \"-c\", \"{command}\"]\n"));
        let cage = Cage::start(stage);
        cage.ask_for("--read", "data").ended(2);
        let read = || std::fs::read_to_string(&told).unwrap_or_default();
        let whole = || serde_json::from_str::<serde_json::Value>(&read()).is_ok();
        assert!(wait_until(PATIENCE, whole), "{}", read());
        let question: serde_json::Value = serde_json::from_str(&read()).expect("JSON");
        assert_eq!(question["cage"], cage.id.as_str());
        assert_eq!(question["number"], 1);
        assert_eq!(question["reason"], "for a test");
        // Joined questions are not told twice; a command that fails is told of.
        cage.ask_for("--read", "data").ended(2);
        stage.write(&config, "[questions]\nnotify = [\"/bin/false\"]\nwebhook = \"http://127.0.0.1:1/\"\n");
        let fails = Cage::start(stage);
        fails.ask_for("--read", "data").ended(2);
        let on_record = || {
            let record = fails.record();
            record.contains("nobody was told by questions.notify: its program ended with status 1")
                && record.contains("nobody was told by questions.webhook")
        };
        assert!(wait_until(PATIENCE, on_record), "{}", fails.record());
        assert!(fails.pending().contains("nobody was told by"), "{}", fails.pending());
        assert!(!cage.record().contains("nobody was told by"), "{}", cage.record());
        assert!(whole(), "{}", read());
    }

    fn hostile_lines_are_refused_and_others_are_served_all_the_same(stage) {
        let cage = Cage::start(stage);
        let script = r#"
import socket
def said(data):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(60)
    s.connect('/.ironcage/ask')
    try:
        s.sendall(data)
    except BrokenPipeError:
        pass
    answer = b''
    try:
        while not answer.endswith(b'\n'):
            part = s.recv(65536)
            if not part:
                break
            answer += part
    except ConnectionResetError:
        pass
    return answer.decode()
for line in [b'', b'x', b'{}', b'[]', b'null', b'{"read": "/x", "write": "/x"}', b'{"read": "/x", "read": "/y"}',
             b'{"read": "/x", "approved": true}', b'{"read": "/a/../b"}', b'{"read": "relative"}', b'{"read": "//x"}',
             b'{"read": "/x\\u0000"}', b'{"host": "not a host"}', b'{"read": "/x", "wait": 1e99}', b'{"read": "/x", "wait": -1}',
             b'{"approve": {"number": 1}}', b'\x01\x00\x00\x00', b'\xff\xfe', b'{"read": "' + b'x' * 100000 + b'"}',
             b'{"read": "/x", "reason": "' + b'y' * 2000 + b'"}', b'[' * 5000]:
    answer = said(line + b'\n')
    # Of what is far too long nothing may come back but the end.
    assert '"invalid"' in answer or (answer == '' and len(line) > 8192), (line[:60], answer)
assert '"granted"' in said(b'{"read": "AUTO"}\n')
"#;
        cage.python(&script.replace("AUTO", &cage.aside("auto"))).ok();
        let names = ["/etc/shadow", "/", "/proc/1/root"];
        let own = [stage.state(), stage.run_dir()];
        for name in names.iter().map(Path::new).chain(own.iter().map(|own| own.as_path())) {
            let ran = cage.ask(&["--read", name.to_str().expect("text")]);
            assert_ne!(ran.code(), 2, "{}", name.display());
            assert!(!ran.stdout().starts_with("granted"), "{}", name.display());
        }
        assert_eq!(cage.pending(), "no pending requests\n");
    }

    fn a_flood_of_requests_neither_fills_the_record_nor_shuts_others_out(stage) {
        let cage = Cage::start(stage);
        for index in 0..30 {
            stage.write(stage.aside().join(format!("data/{index}")), "x");
        }
        let script = r#"
import socket, json
held = []
for round in range(4):
    for index in range(30):
        s = socket.socket(socket.AF_UNIX)
        s.setblocking(False)
        try:
            s.connect('/.ironcage/ask')
            path = 'DATA/%d' % index if round == 0 else '/outside/%d/%d' % (round, index)
            s.send(json.dumps({'read': path, 'reason': '\x1b[2J\x07'}).encode() + b'\n')
        except BlockingIOError:
            pass
        held.append(s)
"#;
        cage.python(&script.replace("DATA", &cage.aside("data"))).ok();
        // Whoever comes after them is served.
        cage.ask_for("--read", "auto").ended(0).tells("granted");
        let asked = cage.pending();
        let questions = asked.lines().filter(|line| line.contains(" asks for ")).count();
        assert!((1..=8).contains(&questions), "{asked}");
        assert!(!asked.contains('\u{1b}') && asked.contains("\\u{1b}"), "{asked}");
        let record = cage.record();
        let refused = record.lines().filter(|line| line.contains("lease denied")).count();
        assert!(refused <= 120, "{refused} refusals are on record");
    }

    fn a_supervisor_that_is_killed_takes_its_questions_with_it(stage) {
        let cage = Cage::start(stage);
        cage.ask_for("--read", "data").ended(2);
        let described = cage.outside(&["inspect", &cage.id]).ok().stdout();
        let described: serde_json::Value = serde_json::from_str(&described).expect("JSON");
        let pid = described["supervisor"].as_u64().expect("a number");
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
        let over = || cage.pending() == "no pending requests\n";
        assert!(wait_until(PATIENCE, over), "{}", cage.pending());
        cage.outside(&["approve", &cage.question(1)]).ended(125);
        assert!(cage.record().contains("request 1: a process in the cage asks for read"));
    }

    fn outside_of_a_cage_and_without_a_ceiling_there_is_nobody_to_ask(stage) {
        Running::start(&mut stage.ironcage(["ask", "--read", "/etc"])).finish(PATIENCE)
            .failed("not-in-a-cage");
        stage.sh("ls -d /.ironcage").ended(2);
    }

    fn a_command_of_the_shell_has_its_lease_while_it_runs_and_nobody_else_has(stage) {
        let cage = Cage::start_with(stage, "scoped");
        let file = format!("{}/file", cage.aside("auto"));
        let until = |file: &str| format!("until [ -e /tmp/{file} ]; do sleep 0.02; done");
        let script = format!(
            "$SHELL -c 'cat {file}; : > /tmp/ready; {}; cat {file}' & {}; cat {file} 2>&1; : > /tmp/go; wait $!; echo status $?; cat {file} 2>&1",
            until("go"),
            until("ready"),
        );
        let ran = cage.sh(&script).ended(1);
        let said = ran.stdout();
        // Beside it there is a place where something is mounted for others, and nothing in it.
        assert_eq!(said.matches("automatic").count(), 2, "{ran:?}");
        assert_eq!(said.matches("No such file").count(), 1, "{ran:?}");
        assert!(said.contains("status 0"), "{ran:?}");
        let record = cage.record();
        for said in ["shell command bash: read", "(in a scope)", "revoked after"] {
            assert!(record.contains(said), "{said}: {record}");
        }
        // Without the shell that stands ahead there is no lease.
        cage.sh(&format!("/bin/bash -c 'cat {file}'")).ended(1);
    }

    fn a_script_that_a_command_of_the_shell_executes_has_what_its_text_names(stage) {
        let cage = Cage::start_with(stage, "scoped");
        let file = format!("{}/file", cage.aside("auto"));
        let (place, name) = file.rsplit_once('/').expect("a path");
        let script = format!("import os\nprint(open(os.path.join('{place}', '{name}')).read(), end='')\n");
        cage.sh(&format!("cat > job.py <<'END'\n{script}END\n$SHELL -c 'python3 job.py'")).ok().tells("automatic");
        // Started without the shell, it has what the cage has.
        cage.sh("python3 job.py").ended(1);
        // A text that names something else gets no lease.
        cage.sh("echo 'print(open(\"/no/such/file\").read())' > other.py; $SHELL -c 'python3 other.py'").ended(1);
    }

    fn status_streams_place_and_variables_of_a_scoped_command_are_the_shells_own(stage) {
        let cage = Cage::start_with(stage, "scoped");
        let file = format!("{}/file", cage.aside("auto"));
        // What is left running, and not said to be, would hold the pipe: it ends with the scope.
        let ran = cage.sh(&format!(
            "mkdir -p ~/sub && cd ~/sub && echo kept > here && out=$(echo piped | FOO='b a r' $SHELL -c 'cat {file} - here; echo \"$FOO $PWD $1\"; echo errors >&2; python3 -c \"import os; os.fork() or os.execlp(\\\"sleep\\\", \\\"sleep\\\", \\\"1000\\\")\"; exit 7' zero one); echo \"$out\"; echo status $?; \
             out=$(echo piped | $SHELL -lc 'cat {file}; exit 7'); echo then $?; \
             $SHELL -c 'cat {file} >/dev/null; kill -9 $$'; echo killed $?"
        )).ok().says("errors");
        let home = stage.home().display().to_string();
        for said in ["automatic\npiped\nkept\n", &format!("b a r {home}/sub one\n"), "then 7", "killed 137"] {
            assert!(ran.stdout().contains(said), "{said:?}: {ran:?}");
        }
        // A signal for the shell is one for its command.
        let ran = cage.sh(&format!(
            "$SHELL -c 'trap \"echo caught; exit 3\" TERM; cat {file}; : > /tmp/up; while :; do sleep 0.02; done' & \
             until [ -e /tmp/up ]; do sleep 0.02; done; kill -TERM $!; wait $!; echo status $?"
        )).ok();
        assert!(ran.stdout().contains("caught\nstatus 3"), "{ran:?}");
    }

    fn what_a_command_of_the_shell_leaves_running_stays_in_the_cage_with_leases_of_the_cage(stage) {
        let cage = Cage::start_with(stage, "scoped");
        let file = format!("{}/file", cage.aside("auto"));
        let serve = format!("(while [ ! -e /tmp/stop ]; do cat {file} > /tmp/next && mv /tmp/next /tmp/served; sleep 0.05; done) > /dev/null 2>&1 & echo begun");
        cage.sh(&format!("$SHELL -c '{serve}'")).ok().tells("begun");
        cage.sh("until [ -s /tmp/served ]; do sleep 0.02; done; cat /tmp/served").ok().tells("automatic");
        let list = cage.outside(&["lease", "list", &cage.id]).ok().stdout();
        assert!(list.contains("auto") && !list.contains("in a scope"), "{list}");
        // One that waits for its jobs leaves nothing, and has its lease alone.
        let command = |number: u32, script: &str, ends: i32| {
            let waits = Running::start(&mut cage.exec(&["/bin/sh", "-c", &format!("$SHELL -c '{script}'")]));
            assert!(wait_until(PATIENCE, || cage.pending().contains("data")), "nobody was asked");
            let verb = if ends == 0 { "approve" } else { "deny" };
            cage.outside(&[verb, &cage.question(number)]).ok();
            waits.finish(PATIENCE).ended(ends)
        };
        let data = format!("{}/file", cage.aside("data"));
        command(1, &format!("cat {file} {data} & wait"), 0).tells("automatic\nasked for");
        cage.sh(&format!("cat {data}")).ended(1);
        // What a person does not give, it does not begin without.
        let leave = format!("cat {data} & echo begun");
        let ran = command(2, &leave, 126).says("the command was not run").denied("lease-denied-by-operator");
        assert_eq!(ran.stdout(), "");
        // A lease that ends takes what uses it along.
        cage.sh("rm /tmp/served").ok();
        cage.outside(&["lease", "revoke", &cage.id, "--all"]).ok();
        cage.sh(&format!("rm -f /tmp/served; cat {file}")).ended(1);
        cage.sh("touch /tmp/stop").ok();
        assert!(cage.record().contains("a command of bash that leaves something running"));
    }

    fn what_the_agent_left_in_its_home_is_met_by_its_own_shell_and_not_in_the_operators_scopes(stage) {
        let cage = Cage::start_with(stage, "scoped");
        cage.sh("echo planted > ~/.gitconfig; echo planted > /tmp/left").ok();
        let script = format!("cat {}/file ~/.gitconfig /tmp/left", cage.aside("auto"));
        cage.sh(&format!("$SHELL -c '{script}'")).ok().tells("automatic\nplanted\nplanted");
        let lease = format!("read={}", cage.aside("auto"));
        let args = ["exec", "--lease", &lease, &cage.id, "--", "/bin/sh", "-c", &script];
        let ran = cage.outside(&args).ended(1).tells("automatic");
        assert!(!ran.stdout().contains("planted"), "{ran:?}");
    }

    fn a_scoped_command_that_is_denied_says_why_and_one_that_is_asked_about_waits(stage) {
        let cage = Cage::start_with(stage, "scoped");
        let shell = |path: &str| format!("$SHELL -c 'cat {}/file; echo ran'", cage.aside(path));
        // What nobody can give: it runs without, as every command in a cage.
        cage.sh(&format!("$SHELL -c 'cat ~/keys {}/file'", cage.aside("auto"))).ended(1)
            .tells("automatic").denied("lease-path-private").says("ask --read");
        cage.sh("$SHELL -c 'cat ~/keys'").ended(1).denied("lease-path-private");
        for (number, verb) in [(1, "approve"), (2, "deny")] {
            let script = shell("data");
            let waits = Running::start(&mut cage.exec(&["/bin/sh", "-c", &script]));
            assert!(wait_until(PATIENCE, || cage.pending().contains("data")), "nobody was asked");
            cage.outside(&[verb, &cage.question(number)]).ok();
            let ran = waits.finish(PATIENCE);
            match verb {
                "approve" => drop(ran.ok().tells("asked for\nran")),
                _ => drop(ran.ended(126).says("the command was not run").says("denied")),
            }
            // A yes was for that command alone.
            cage.sh(&format!("cat {}/file", cage.aside("data"))).ended(1);
        }
        let record = cage.record();
        for said in ["request 1: approved", "request 2: denied", "by the operator: a command of bash"] {
            assert!(record.contains(said), "{said}: {record}");
        }
    }

    fn whoever_speaks_for_a_shell_and_makes_no_sense_is_refused(stage) {
        let cage = Cage::start_with(stage, "scoped");
        let path = cage.aside("auto/file");
        let script = format!(
            "import socket, json, array, os, struct\n\
             def scope():\n\
             \x20   s = socket.socket(socket.AF_UNIX); s.connect('/.ironcage/ask')\n\
             \x20   s.sendall(json.dumps({{'shell': {{'name': 'bash', 'reads': ['{path}']}}}}).encode() + b'\\n')\n\
             \x20   _, fds, _, _ = socket.recv_fds(s, 65536, 1)\n\
             \x20   return socket.socket(fileno=fds[0])\n\
             def told(argv, fds, streams='given'):\n\
             \x20   c = scope()\n\
             \x20   body = json.dumps({{'exec': {{'argv': argv, 'env': [], 'cwd': '/', 'streams': streams}}}}).encode()\n\
             \x20   socket.send_fds(c, [b'IC' + struct.pack('<H', 1) + struct.pack('<I', 0)[:4] + body], fds)\n\
             \x20   print(c.recv(65536).decode(errors='replace'))\n\
             told(['cat'], [0, 1, 2]); told([], [0, 1, 2]); told(['/bin/cat'], [0, 1]); told(['/bin/cat'], [0, 1, 2], 'detached')\n\
             c = scope(); c.send(b'x' * 9000); print(c.recv(65536)); c = scope(); c.close(); [scope() for _ in range(3)]\n"
        );
        let ran = cage.python(&script).ok();
        assert_eq!(ran.stdout().matches("refused").count(), 5, "{ran:?}");
        // The cage goes on, and so do its shells.
        cage.sh(&format!("$SHELL -c 'cat {path}'")).ok().tells("automatic");
    }
}
