//! Keys stay outside: ssh and gpg in a cage sign with the keys of the user's agents, for what the
//! policy names and for nothing else.

use ironcage_tests::web::own_address;
use ironcage_tests::{Ran, Running, Screen, Stage, both, either, skip, wait_until};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const OWN_PORT: u16 = 2222;
const FOREIGN_PORT: u16 = 2223;

/// A process that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An ssh-agent outside with two keys: `own`, and `other`, which no cage gets.
struct SshAgent<'a> {
    stage: &'a Stage,
    socket: String,
    _agent: Server,
}

impl<'a> SshAgent<'a> {
    fn start(stage: &'a Stage) -> Option<Self> {
        if !Path::new("/usr/bin/ssh-agent").exists() || !Path::new("/usr/sbin/sshd").exists() {
            skip("needs openssh-client and openssh-server: ./scripts/test installs them");
            return None;
        }
        let socket = stage.aside().join("agent").display().to_string();
        let mut agent = stage.outside("ssh-agent");
        let agent = agent.args(["-D", "-a", &socket]).stdout(Stdio::null());
        let agent = Server(agent.spawn().expect("ssh-agent"));
        assert!(wait_until(MINUTE, || Path::new(&socket).exists()));
        let made = SshAgent {
            stage,
            socket,
            _agent: agent,
        };
        let keys = "set -e; mkdir -p -m 700 ~/.ssh; cd ~/.ssh\n\
                    for key in own other; do ssh-keygen -q -t ed25519 -N '' -C $key -f $key; ssh-add -q $key; done\n\
                    git config --global user.name Ann; git config --global user.email ann@example.org\n\
                    git config --global init.defaultBranch main; cd ~/project; git init -q; echo text > file";
        made.outside(keys).ok();
        Some(made)
    }

    fn outside(&self, script: &str) -> Ran {
        let mut shell = self.stage.outside("/bin/sh");
        let shell = shell
            .args(["-c", script])
            .env("SSH_AUTH_SOCK", &self.socket);
        Running::start(shell).finish(MINUTE)
    }

    fn cage(&self, flags: &[&str], script: &str) -> Ran {
        let mut cage = self.stage.cage(flags, &["/bin/sh", "-c", script]);
        Running::start(cage.env("SSH_AUTH_SOCK", &self.socket)).finish(MINUTE * 2)
    }

    /// The key, as a flag names it.
    fn key(&self, name: &str) -> String {
        let path = self.stage.home().join(format!(".ssh/{name}.pub"));
        path.display().to_string()
    }

    /// The log of the last cage.
    fn log(&self) -> String {
        let mut show = self.stage.ironcage(["audit", "show", "--json", "last"]);
        Running::start(&mut show).finish(MINUTE).ok().stdout()
    }

    fn why(&self) -> String {
        let mut why = self.stage.ironcage(["why", "last"]);
        Running::start(&mut why).finish(MINUTE).ok().stdout()
    }
}

/// Two servers that both keys may log in to, each with a host key of its own that the user knows:
/// `code.test` and `foreign.test`.
fn servers(agent: &SshAgent<'_>, address: Ipv4Addr) -> Vec<Server> {
    let stage = agent.stage;
    let aside = stage.aside().display().to_string();
    let prepared = format!(
        "set -e; cd {aside}; git clone -q --bare ~/project demo.git 2> /dev/null; cat ~/.ssh/*.pub > authorized\n\
         for host in code foreign; do ssh-keygen -q -t ed25519 -N '' -C '' -f $host; done\n\
         echo \"[code.test]:{OWN_PORT} $(cat code.pub)\" > ~/.ssh/known_hosts\n\
         echo \"[foreign.test]:{FOREIGN_PORT} $(cat foreign.pub)\" >> ~/.ssh/known_hosts\n\
         test $(id -u) != 0 || mkdir -p /run/sshd\n"
    );
    agent.outside(&prepared).ok();
    let start = |(host, port): (&str, u16)| {
        let settings = format!(
            "ListenAddress {address}:{port}\nHostKey {aside}/{host}\nAuthorizedKeysFile {aside}/authorized\n\
             StrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\n"
        );
        let file = stage.aside().join(format!("{host}.conf"));
        stage.write(&file, settings);
        let mut sshd = stage.outside("/usr/sbin/sshd");
        let sshd = sshd
            .args(["-D", "-e", "-f"])
            .arg(file)
            .stderr(Stdio::null());
        let server = Server(sshd.spawn().expect("sshd"));
        let up = wait_until(MINUTE, || TcpStream::connect((address, port)).is_ok());
        assert!(up, "sshd of {host} does not listen");
        server
    };
    [("code", OWN_PORT), ("foreign", FOREIGN_PORT)]
        .map(start)
        .into()
}

/// The network of a cage that reaches both servers.
fn network(address: Ipv4Addr) -> Vec<String> {
    [
        "--resolve".to_owned(),
        format!("code.test={address}"),
        "--resolve".to_owned(),
        format!("foreign.test={address}"),
        "--allow-host".to_owned(),
        format!("code.test:{OWN_PORT}"),
        "--allow-host".to_owned(),
        format!("foreign.test:{FOREIGN_PORT}"),
        "--allow-host".to_owned(),
        format!("{address}:{OWN_PORT}"),
        "--allow-host".to_owned(),
        format!("{address}:{FOREIGN_PORT}"),
    ]
    .into()
}

fn refs(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

/// A client of an agent that says what ssh would not. `ask` prints the number of the answer.
const CLIENT: &str = r#"
import os, socket, struct, sys
def ask(message, length=None):
    s = socket.socket(socket.AF_UNIX); s.connect(os.environ["SSH_AUTH_SOCK"])
    s.sendall(struct.pack(">I", len(message) if length is None else length) + message)
    print(len(s.recv(5)) and "answered" or "closed"); s.close()
def text(b): return struct.pack(">I", len(b)) + b
ask(bytes([22]) + text(b"locked"))
ask(bytes([19]))
ask(bytes([27]) + text(b"query"))
ask(bytes([13]) + text(b"another key") + text(b"data") + bytes(4))
ask(b"", 1 << 24)
many = [socket.socket(socket.AF_UNIX) for _ in range(40)]
for s in many: s.connect(os.environ["SSH_AUTH_SOCK"])
for s in many: s.close()
ask(bytes([11]))
"#;

/// Writes denied requests in large pieces, and reads answers only to make room.
const FLOOD: &str = r#"
import os, socket, struct, threading
one = struct.pack(">I", 1) + bytes([19])
def flood():
    s = socket.socket(socket.AF_UNIX); s.connect(os.environ["SSH_AUTH_SOCK"])
    for _ in range(3):
        s.sendall(one * 800)
        left = 800 * 5
        while left > 0: left -= len(s.recv(left)) or left
    s.close()
all = [threading.Thread(target=flood) for _ in range(8)]
for t in all: t.start()
for t in all: t.join()
print("sent")
"#;

both! {
    fn git_pushes_over_ssh_with_a_key_that_stays_outside(stage) {
        let Some(agent) = SshAgent::start(stage) else { return };
        let address = own_address();
        agent.outside("cd ~/project && git add file && git commit -qm one").ok();
        let _servers = servers(&agent, address);
        let who = stage.sh_outside("id -un").ok().stdout().trim().to_owned();
        let key = format!("{}@code.test:{OWN_PORT}", agent.key("own"));
        let mut flags = network(address);
        flags.extend(["--ssh-key".into(), key]);
        let (remote, aside) = (format!("{who}@code.test:{OWN_PORT}"), stage.aside());
        let script = format!(
            "set -e; ssh-add -L | cut -d ' ' -f 1; test ! -e ~/.ssh/own\n\
             git clone -q ssh://{remote}{}/demo.git demo; cd demo; echo more >> file; git commit -qam more; git push -q origin HEAD:main",
            aside.display()
        );
        let ran = agent.cage(&refs(&flags), &script);
        assert_eq!(ran.stdout(), "ssh-ed25519\n", "one key of two: {ran:?}");
        let pushed = agent.outside(&format!("git -C {}/demo.git log --format=%s -1 main", aside.display()));
        assert_eq!(pushed.stdout(), "more\n", "{ran:?}");
        let log = agent.log();
        let uses = log.lines().filter(|line| line.contains("\"key-use\"")).count();
        assert_eq!(uses, 2, "a clone and a push: {log}");
        assert!(log.contains("\"host\":\"code.test:2222\"") && log.contains(&format!("\"user\":\"{who}\"")), "{log}");
        // The same key, the same agent, another server that would let it in.
        let login = |host: &str, port: u16, more: &str| {
            format!("ssh -o BatchMode=yes {more} -p {port} {who}@{host} echo in || echo out")
        };
        let foreign = agent.cage(&refs(&flags), &login("foreign.test", FOREIGN_PORT, ""));
        assert_eq!(foreign.stdout(), "out\n", "{foreign:?}");
        assert!(agent.log().contains("key-host-not-allowed"), "{}", agent.log());
        let why = agent.why();
        assert!(why.contains("belongs to none of the hosts") && why.contains("--ssh-key"), "{why}");
        let outside = agent.outside(&login("foreign.test", FOREIGN_PORT, &format!("-o HostName={address} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null")));
        assert_eq!(outside.stdout(), "in\n", "the server itself lets it in: {outside:?}");
        let own = agent.cage(&refs(&flags), &login("code.test", OWN_PORT, ""));
        assert_eq!(own.stdout(), "in\n", "{own:?}");
    }

    fn git_signs_with_an_ssh_key_that_stays_outside(stage) {
        let Some(agent) = SshAgent::start(stage) else { return };
        let sign = format!("ssh:{}", agent.key("own"));
        let flags = ["--sign-key", &sign, "--workspace-mode", "direct"];
        let ran = agent.cage(&flags, "git add file && git commit -S -qm signed");
        assert_eq!(ran.code(), 0, "{ran:?}");
        let verify = "cd ~/project; echo \"ann@example.org $(cat ~/.ssh/own.pub)\" > ~/signers; \
                      git -c gpg.ssh.allowedSignersFile=$HOME/signers verify-commit -v HEAD 2>&1";
        agent.outside(verify).ok();
        assert!(agent.log().contains("\"for\":\"git\""), "{}", agent.log());
        // A signature over a file is another namespace; another key is not there at all.
        let refused = "echo x > f; ssh-keygen -q -Y sign -n file -U -f own.pub f; echo $?; ssh-keygen -q -Y sign -n git -U -f other.pub f; echo $?; \
                       ssh-keygen -q -Y sign -n git -U -f own.pub f; echo $?";
        agent.outside("cp ~/.ssh/own.pub ~/.ssh/other.pub ~/project").ok();
        let ran = agent.cage(&flags, refused);
        assert_eq!(ran.stdout(), "255\n255\n0\n", "{ran:?}");
        let log = agent.log();
        assert!(log.contains("key-other-namespace"), "{log}");
        let all = agent.outside("cd ~/project; rm -f f.sig; for key in own other; do ssh-keygen -q -Y sign -n file -U -f $key.pub - < f > /dev/null && echo $key; done");
        assert_eq!(all.stdout(), "own\nother\n", "the agent itself signs all: {all:?}");
    }

    fn git_signs_with_a_gpg_key_that_stays_outside(stage) {
        if !Path::new("/usr/bin/gpg").exists() {
            skip("needs gnupg: ./scripts/test installs it");
            return;
        }
        /// Ends the agent that gpg starts by itself.
        struct GpgHome<'a>(&'a Stage);
        impl Drop for GpgHome<'_> {
            fn drop(&mut self) {
                self.0.sh_outside("gpgconf --kill all");
            }
        }
        let _home = GpgHome(stage);
        let prepared = "set -e; mkdir -m 700 ~/.gnupg; for who in ann bob; do gpg -q --batch --passphrase '' --quick-gen-key $who@example.org ed25519 default never 2> /dev/null; done\n\
                        git config --global user.name Ann; git config --global user.email ann@example.org; git config --global commit.gpgSign true\n\
                        git init -q; echo text > file; gpg --with-colons -K bob@example.org | grep fpr | head -1 | cut -d: -f10 > bob";
        stage.sh_outside(prepared).ok();
        let flags = ["--sign-key", "gpg:ann@example.org", "--workspace-mode", "direct"];
        // Signed by the user's own setting, without a flag.
        let ran = stage.sh_with(&flags, "git add file && git commit -qm signed && git verify-commit HEAD && gpg -K --with-colons | grep -c ^sec");
        assert_eq!((ran.stdout().as_str(), ran.code()), ("1\n", 0), "{ran:?}");
        stage.sh_outside("git verify-commit HEAD && git log -1 --format=%GS | grep -q ann@example.org").ok();
        let decrypt = "echo x | gpg -q -e -r ann@example.org --trust-model always > x.gpg; gpg --batch -d x.gpg; echo $?; \
                       gpg --batch -bu $(cat bob) file; echo $?; gpg --batch -bu ann@example.org file; echo $?; \
                       for line in 'SIGKEY 0000000000000000000000000000000000000000' 'EXPORT_KEY x' 'PKDECRYPT' 'SCD SERIALNO' 'KILLAGENT'; do echo $line; done | \
                       gpg-connect-agent --no-autostart -S $GNUPGHOME/S.gpg-agent | grep -c ^ERR";
        let ran = stage.sh_with(&flags, decrypt);
        assert_eq!(ran.stdout(), "2\n2\n0\n5\n", "{ran:?}");
        let mut show = stage.ironcage(["audit", "show", "--json", "last"]);
        let log = Running::start(&mut show).finish(MINUTE).ok().stdout();
        assert!(log.contains("key-not-given") && log.contains("key-request-not-allowed") && log.contains("\"for\":\"open-pgp\""), "{log}");
        // Without a key nothing is signed, and a commit works all the same.
        let ran = stage.sh_with(&["--workspace-mode", "direct"], "git commit -qm plain --allow-empty && git log -1 --format=%G?");
        assert_eq!(ran.stdout(), "N\n", "{ran:?}");
    }
}

either! {
    fn an_agent_is_not_changed_and_a_flood_does_not_end_it(stage) {
        let Some(agent) = SshAgent::start(stage) else { return };
        let sign = format!("ssh:{}", agent.key("own"));
        stage.write(stage.project().join("client.py"), CLIENT);
        let script = "python3 client.py; ssh-add -q -D; echo $?; ssh-keygen -q -t ed25519 -N '' -f new; ssh-add -q new; echo $?; ssh-add -L | wc -l";
        let ran = agent.cage(&["--sign-key", &sign], script);
        assert_eq!(ran.stdout(), "answered\nanswered\nanswered\nanswered\nclosed\nanswered\n1\n1\n1\n", "{ran:?}");
        let log = agent.log();
        assert!(log.contains("key-request-not-allowed") && log.contains("key-request-too-long") && log.contains("key-not-given"), "{log}");
        assert_eq!(agent.outside("ssh-add -L | wc -l").stdout(), "2\n", "not locked, nothing gone");
        let without = agent.cage(&[], "ssh-add -L; echo $?; env | grep -c SSH_AUTH_SOCK");
        assert_eq!(without.stdout(), "2\n0\n", "no key without a flag: {without:?}");
    }

    fn a_flood_of_denials_ends_no_key_filter_and_fills_no_log(stage) {
        let Some(agent) = SshAgent::start(stage) else { return };
        let sign = format!("ssh:{}", agent.key("own"));
        agent.outside("cp ~/.ssh/own.pub ~/project").ok();
        stage.write(stage.project().join("flood.py"), FLOOD);
        let script = "python3 flood.py; echo x > f; ssh-keygen -q -Y sign -n git -U -f own.pub f; echo $?; ssh-add -L | wc -l";
        let ran = agent.cage(&["--sign-key", &sign], script);
        assert_eq!(ran.stdout(), "sent\n0\n1\n", "{ran:?}");
        let log = agent.log();
        let denied = log.lines().filter(|line| line.contains("key-request-not-allowed")).count();
        assert!(denied > 0 && denied <= 256, "{denied} lines");
        assert!(log.contains("\"what\":\"key-use\""), "the rest is counted: {}", log.lines().last().unwrap_or_default());
        assert!(log.contains("\"for\":\"git\""), "a use behind the flood is logged");
    }

    fn the_key_filter_opens_connects_and_starts_nothing(stage) {
        let Some(agent) = SshAgent::start(stage) else { return };
        let sign = format!("ssh:{}", agent.key("own"));
        let mut cage = stage.cage(&["--sign-key", &sign], &["/bin/sh", "-c", "ssh-add -L > listed; echo up; read line; true"]);
        let mut running = Running::start(cage.env("SSH_AUTH_SOCK", &agent.socket));
        let supervisor = running.pid();
        let found = || {
            let all = std::fs::read_dir("/proc").expect("/proc").flatten();
            let status = all.filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok());
            let mut own = status.filter(|status| status.contains(&format!("\nPPid:\t{supervisor}\n")));
            own.find(|status| status.starts_with("Name:\tironcage-keys\n"))
        };
        assert!(wait_until(MINUTE, || found().is_some_and(|status| status.contains("\nSeccomp:\t2\n"))), "{:?}", found());
        let status = found().expect("the key filter");
        assert!(status.contains("\nNoNewPrivs:\t1\n") && status.contains("\nCapEff:\t0000000000000000\n"), "{status}");
        drop(running.stdin());
        running.finish(MINUTE).ok();
    }

    fn a_person_is_asked_before_each_use(stage) {
        let Some(agent) = SshAgent::start(stage) else { return };
        let sign = format!("ssh:{}", agent.key("own"));
        agent.outside("cp ~/.ssh/own.pub ~/project").ok();
        let script = "for file in a b c; do echo $file > $file; ssh-keygen -q -Y sign -n git -U -f own.pub $file; echo $?; done";
        let mut cage = stage.cage(&["--sign-key", &sign, "--confirm-keys"], &["/bin/sh", "-c", script]);
        let running = Running::start(cage.env("SSH_AUTH_SOCK", &agent.socket));
        let answer = |words: &[&str], code: i32, says: &str| {
            let pending = || {
                let mut list = stage.ironcage(["request", "list"]);
                Running::start(&mut list).finish(MINUTE).stdout()
            };
            assert!(wait_until(MINUTE, || pending().contains("sign a commit or tag")), "{}", pending());
            let list = pending();
            let line = list.lines().find(|line| line.contains("sign a commit")).expect("a request");
            let number = line.split_whitespace().next().expect("its number").to_owned();
            let mut command = stage.ironcage(["request"]);
            let ran = Running::start(command.args(&words[..1]).arg(&number).args(&words[1..])).finish(MINUTE);
            assert_eq!(ran.code(), code, "{ran:?}");
            assert!(ran.stdout().contains(says) || ran.stderr.contains(says), "{ran:?}");
            number
        };
        // A key is approved use by use.
        answer(&["approve", "--for", "5m"], 125, "one use at a time");
        answer(&["approve", "--always"], 125, "one use at a time");
        let first = answer(&["approve"], 0, "approved for one use");
        let second = answer(&["deny"], 0, "");
        let ran = running.finish(MINUTE);
        // Without a terminal the run itself says that it waits, and the command that answers.
        for number in [first, second] {
            let line = format!("`ironcage approve {number}` or `ironcage deny {number}`");
            assert!(ran.stderr.contains(&line), "{line}: {ran:?}");
        }
        // What was denied is not asked about again for a while.
        assert_eq!(ran.stdout(), "0\n255\n255\n", "{ran:?}");
        let log = agent.log();
        assert!(log.contains("lease-denied-by-operator") && log.contains("lease-denied-before"), "{log}");
        let why = agent.why();
        assert!(why.contains("--confirm-keys") && !why.contains("[ceiling."), "{why}");
    }

    fn a_push_over_ssh_takes_the_two_flags_that_are_told(stage) {
        let Some(agent) = SshAgent::start(stage) else { return };
        agent.outside("cd ~/project && git add file && git commit -qm one").ok();
        let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
        let aside = stage.aside().display().to_string();
        let prepared = format!(
            "set -e; cd {aside}; git init -q --bare demo.git; cat ~/.ssh/own.pub > authorized; ssh-keygen -q -t ed25519 -N '' -C '' -f host\n\
             echo \"[localhost]:{port} $(cat host.pub)\" > ~/.ssh/known_hosts; test $(id -u) != 0 || mkdir -p /run/sshd"
        );
        agent.outside(&prepared).ok();
        let settings = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {aside}/host\nAuthorizedKeysFile {aside}/authorized\nStrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        );
        let file = stage.aside().join("sshd.conf");
        stage.write(&file, settings);
        let mut sshd = stage.outside("/usr/sbin/sshd");
        let sshd = sshd.args(["-D", "-e", "-f"]).arg(file).stderr(Stdio::null());
        let _server = Server(sshd.spawn().expect("sshd"));
        assert!(wait_until(MINUTE, || TcpStream::connect(("127.0.0.1", port)).is_ok()));
        let Some(screen) = Screen::open(stage) else { return };
        let binary = ironcage_tests::binary().display();
        let who = stage.sh_outside("id -un").ok().stdout().trim().to_owned();
        screen.line(&format!("export SSH_AUTH_SOCK={}; cd {}", agent.socket, stage.project().display()));
        let push = |flags: &str, turn: u32| {
            screen.line(&format!(
                "clear; {binary} run --workspace-mode direct{flags} git push -q ssh://{who}@localhost:{port}{aside}/demo.git HEAD:main; echo turn-{turn}=$?"
            ));
            screen.shows(&format!("turn-{turn}="));
            // One line of the terminal is shorter than what is told.
            screen.tmux(&["capture-pane", "-p", "-J", "-S", "-200"])
        };
        let told = |shown: &str, words: &str| {
            let (_, rest) = shown.split_once(words).unwrap_or_else(|| panic!("no {words:?}: {shown}"));
            format!(" {}", rest.lines().next().unwrap_or_default().trim())
        };
        let first = push("", 1);
        let mut flags = told(&first, "to allow: ");
        assert_eq!(flags, format!(" --allow-host-port {port}"), "{first}");
        let second = push(&flags, 2);
        flags.push_str(&told(&second, "; add "));
        assert!(flags.ends_with(&format!(" --ssh-key ~/.ssh/own.pub@localhost:{port}")), "{second}");
        let third = push(&flags, 3);
        assert!(third.contains("turn-3=0"), "{third}");
        let pushed = agent.outside(&format!("git -C {aside}/demo.git log --format=%s -1 main"));
        assert_eq!(pushed.stdout(), "one\n");
    }

    fn keys_that_cannot_be_used_stop_the_start_with_what_to_do(stage) {
        let Some(agent) = SshAgent::start(stage) else { return };
        let own = agent.key("own");
        let fails = |flags: &[&str], cause: &str, hint: &str| {
            agent.cage(flags, "echo started").ended(125).says(cause).says(hint)
        };
        fails(&["--ssh-key", &format!("{own}@code.test")], "known_hosts has no key of code.test", "connect to it once");
        agent.outside("ssh-add -q -d ~/.ssh/other").ok();
        fails(&["--sign-key", &format!("ssh:{}", agent.key("other"))], "does not have it", "ssh-add");
        fails(&["--sign-key", "ssh:/none.pub"], "cannot read its public key", "ssh-add -l");
        fails(&["--sign-key", "gpg:nobody@example.org"], "gpg", "gpg-agent");
        let flag = format!("ssh:{own}");
        let mut without = stage.cage(&["--sign-key", &flag], &["true"]);
        Running::start(without.env_remove("SSH_AUTH_SOCK")).finish(MINUTE).ended(125).says("SSH_AUTH_SOCK");
        // A file of the workspace that nobody trusts gives no key.
        stage.write(stage.project().join("ironcage.toml"), format!("[keys]\nsign = [\"ssh:{own}\"]\n"));
        let ran = agent.cage(&[], "ssh-add -L; echo $?").says("keys.sign");
        assert_eq!(ran.stdout(), "2\n", "{ran:?}");
    }

    fn commands_in_scopes_have_the_keys_too(stage) {
        let Some(agent) = SshAgent::start(stage) else { return };
        let sign = format!("ssh:{}", agent.key("own"));
        let data = stage.aside().join("data");
        stage.write(data.join("file"), "leased\n");
        let policy = stage.base().join("scoped.toml");
        stage.write(&policy, format!("[ceiling.auto.files]\nread = [\"{}\"]\n", data.display()));
        let flags = ["--policy", policy.to_str().expect("text"), "--shell", "scoped", "--sign-key", &sign];
        let script = format!("sh -c 'cat {}/file && ssh-add -L | wc -l'", data.display());
        let ran = agent.cage(&flags, &script);
        assert_eq!(ran.stdout(), "leased\n1\n", "{ran:?}");
    }
}
