//! Attacks on asking: what a request that looks harmless would lay open, or tell.

use ironcage_tests::{Ran, Running, Stage, both};
use std::path::PathBuf;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Sockets that linger for an hour, put where a supervisor would close them: into what a shell is
/// handed while its request is refused, and beside a message to the supervisor of its scope. The
/// first argument is a file that can be leased.
const LINGERING: &str = r#"
import json, os, socket, struct, sys, time
def lingering():
    l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    l.bind(('127.0.0.1', 0)); l.listen(1)
    c = socket.create_connection(l.getsockname()); a, _ = l.accept(); c.setblocking(False)
    try:
        while True: c.send(bytes(65536))
    except BlockingIOError: pass
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 3600))
    return c, a
def scope():
    s = socket.socket(socket.AF_UNIX); s.connect('/.ironcage/ask')
    s.sendall(json.dumps({'shell': {'name': 'sh', 'reads': [sys.argv[1]]}}).encode() + bytes([10]))
    _, fds, _, _ = socket.recv_fds(s, 4096, 1)
    return socket.socket(fileno=fds[0]) if fds else None
def say(to, what, fds):
    socket.send_fds(to, [b'IC' + bytes([1, 0, 0, 0, 0, 0]) + json.dumps(what).encode()], fds)
handed = scope()
assert handed, 'no scope was handed out'
r, w = os.pipe(); n = os.open('/dev/null', os.O_RDWR)
loop = 'while :; do cat %s; sleep 0.1; done' % sys.argv[1]
say(handed, {'exec': {'argv': ['/bin/sh', '-c', loop], 'env': [['PATH', '/usr/bin:/bin']],
    'cwd': os.getcwd(), 'streams': 'given'}}, [n, w, w])
os.close(w)
print('read:', os.read(r, 4096).decode().split()[0], flush=True)
def attack(to, what):
    # By somebody else: where the supervisor was quicker, it is the sender who waits.
    if os.fork() == 0:
        c, a = lingering()
        try: say(to, what, [c.fileno()])
        except OSError: os._exit(0)
        c.close(); time.sleep(1000)
attack(handed, 'leave')
while os.read(r, 4096): pass
print('the scope ended', flush=True)
sent = 0
for _ in range(20):
    handed = scope()
    if handed: attack(handed, 'x'); handed.close(); sent += 1
print('sent:', sent > 0, flush=True)
"#;

/// A copy-on-write workspace whose surroundings can be leased for writing at once.
struct Cage<'a> {
    stage: &'a Stage,
    id: String,
    code: PathBuf,
}

impl<'a> Cage<'a> {
    #[track_caller]
    fn start(stage: &'a Stage) -> Self {
        let code = stage.aside().join("code");
        stage.write(code.join("project/file"), "real\n");
        stage.write(code.join("beside/file"), "beside\n");
        let policy = stage.base().join("around.toml");
        let text = format!("[ceiling.auto.files]\nwrite = [\"{}\"]\n", code.display());
        stage.write(&policy, text);
        let mut run = stage.ironcage(["run", "-q", "-d", "--policy"]);
        run.arg(&policy)
            .arg("--workspace")
            .arg(code.join("project"));
        run.current_dir(code.join("project"));
        let id = Running::start(&mut run).finish(PATIENCE).ok().stdout();
        let id = id.trim().to_owned();
        Cage { stage, id, code }
    }

    #[track_caller]
    fn exec(&self, command: &[&str]) -> Ran {
        let mut exec = self.stage.ironcage(["exec", &self.id, "--"]);
        Running::start(exec.args(command)).finish(PATIENCE)
    }

    #[track_caller]
    fn ask(&self, path: &str) -> Ran {
        let path = self.code.join(path).display().to_string();
        self.exec(&["/.ironcage/bin/ironcage", "ask", "--write", &path])
    }

    /// Says a line at the socket, as no program of ours would; the answer.
    #[track_caller]
    fn say(&self, path: &str) -> String {
        let path = self.code.join(path).display().to_string();
        let script = "import json, socket, sys\n\
                      s = socket.socket(socket.AF_UNIX); s.connect('/.ironcage/ask')\n\
                      s.sendall(json.dumps({'write': sys.argv[1]}).encode() + b'\\n')\n\
                      print(s.makefile().readline(), end='')";
        self.exec(&["/usr/bin/python3", "-c", script, &path])
            .ok()
            .stdout()
    }
}

impl Drop for Cage<'_> {
    fn drop(&mut self) {
        let mut stop = self.stage.ironcage(["rm", "--force", &self.id]);
        Running::start(&mut stop).finish(PATIENCE);
    }
}

both! {
    fn no_lease_lays_the_real_files_over_the_workspace(stage) {
        let cage = Cage::start(stage);
        let file = cage.code.join("project/file");
        let shown = file.display().to_string();
        cage.exec(&["/bin/sh", "-c", &format!("echo changed > {shown}")]).ok();
        // What is around it, by its name, and as the directory of something that is to be made there.
        for path in ["", "notes"] {
            let ran = cage.ask(path);
            assert_eq!(ran.code(), 1, "{ran:?}");
            assert!(ran.stdout().contains("project, and the lease would cover"), "{ran:?}");
        }
        // Beside it there is nothing to cover.
        let ran = cage.ask("beside");
        assert_eq!(ran.code(), 0, "{ran:?}");
        let beside = cage.code.join("beside/made").display().to_string();
        cage.exec(&["/bin/sh", "-c", &format!("echo made > {beside}; echo again > {shown}")]).ok();
        assert_eq!(std::fs::read_to_string(&beside).expect("a file"), "made\n");
        assert_eq!(std::fs::read_to_string(&file).expect("a file"), "real\n");
        let seen = cage.exec(&["/bin/cat", &shown]).ok().stdout();
        assert_eq!(seen, "again\n");
    }

    fn a_link_does_not_tell_what_there_is_on_the_host(stage) {
        let cage = Cage::start(stage);
        cage.ask("beside").ok();
        let beside = cage.code.join("beside").display().to_string();
        let script = format!(
            "cd {beside} && ln -s /etc/passwd there && ln -s /etc/nothing-of-this-name absent && ln -s /proc/self/root/etc magic"
        );
        cage.exec(&["/bin/sh", "-c", &script]).ok();
        let there = cage.say("beside/there");
        assert!(there.contains("denied"), "{there}");
        assert_eq!(cage.say("beside/absent"), there);
        assert_eq!(cage.say("beside/magic"), there);
        // What is really not there can be made.
        let made = cage.say("beside/new");
        assert!(made.contains("granted"), "{made}");
    }

    fn sockets_that_linger_stop_no_supervisor(stage) {
        let leased = stage.aside().join("leased/file");
        stage.write(&leased, "leased\n");
        let policy = stage.base().join("shell.toml");
        let around = stage.aside().join("leased");
        let text = format!(
            "[ceiling]\nshell = \"scoped\"\nlongest = \"2s\"\n[ceiling.auto.files]\nread = [\"{}\"]\n",
            around.display()
        );
        stage.write(&policy, text);
        let mut run = stage.ironcage(["run", "-q", "-d", "--policy"]);
        let id = Running::start(run.arg(&policy)).finish(PATIENCE).ok().stdout();
        let cage = Cage { stage, id: id.trim().to_owned(), code: around };
        let file = leased.display().to_string();
        let ran = cage.exec(&["/usr/bin/python3", "-c", LINGERING, &file]).ok();
        assert_eq!(ran.stdout(), "read: leased\nthe scope ended\nsent: True\n", "{ran:?}");
        let mut inspect = stage.ironcage(["inspect", &cage.id]);
        Running::start(&mut inspect).finish(PATIENCE).ok();
        let mut stop = stage.ironcage(["stop", &cage.id]);
        Running::start(&mut stop).finish(PATIENCE).ok();
    }

    fn what_a_shells_command_names_floods_no_record(stage) {
        let leased = stage.aside().join("leased/file");
        stage.write(&leased, "leased\n");
        let policy = stage.base().join("shell.toml");
        let text = format!(
            "[ceiling]\nshell = \"scoped\"\n[ceiling.auto.files]\nread = [\"{}\"]\n",
            stage.aside().join("leased").display()
        );
        stage.write(&policy, text);
        let long = ["y".repeat(200).as_str(); 4].join("/");
        let junk: Vec<String> = (0..60).map(|number| format!("/opt/{number}/{long}")).collect();
        let command = format!("cat {} {}", leased.display(), junk.join(" "));
        let policy = policy.display().to_string();
        let ran = stage.run(&["-q", "--policy", &policy], &["bash", "-c", &format!("bash -c '{command}'")]);
        // The allowing arm: what the ceiling gives is read all the same.
        assert_eq!(ran.stdout(), "leased\n", "{ran:?}");
        let mut show = stage.ironcage(["audit", "show", "last", "--json"]);
        let shown = Running::start(&mut show).finish(PATIENCE).ok().stdout();
        let of = |kind: &str| {
            let wanted = format!("\"event\":\"{kind}\"");
            let lines = shown.lines().filter(|line| line.contains(&wanted));
            lines.map(str::to_owned).collect::<Vec<String>>()
        };
        let refused = of("lease-refused");
        assert!((1..=16).contains(&refused.len()), "{} lines", refused.len());
        assert!(refused.iter().any(|line| line.contains("\"unrecorded\":52")), "{refused:?}");
        assert!(refused.iter().chain(&of("intent")).all(|line| line.len() < 8192));
    }
}
