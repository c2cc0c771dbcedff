//! What of the cage a guest reaches by relays: the ask socket, host sockets, host ports and published ports; and
//! scopes, which are second guests.

use crate::microvm::{DEADLINE, Guest, finish, set_up};
use crate::permission_requests::Tells as _;
use ironcage_tests::{Running, both, wait_until};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

const ASK: &str = "/.ironcage/bin/ironcage";

/// Answers each line with `got LINE`, as long as the test runs.
fn answer<S: std::io::Read>(streams: impl Iterator<Item = S> + Send + 'static)
where
    for<'a> &'a S: std::io::Read + std::io::Write,
{
    std::thread::spawn(move || {
        for stream in streams {
            let mut line = String::new();
            if BufReader::new(&stream).read_line(&mut line).is_ok() {
                let _ = write!(&stream, "got {line}");
            }
        }
    });
}

/// A port of the loopback with a server, and one that is free.
fn ports() -> (u16, u16) {
    let served = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = served.local_addr().expect("its number").port();
    std::thread::spawn(move || {
        for stream in served.incoming().flatten() {
            let mut line = String::new();
            if BufReader::new(&stream).read_line(&mut line).is_ok() {
                let _ = write!(&stream, "got {line}");
            }
        }
    });
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    (port, free.local_addr().expect("its number").port())
}

both! {
    fn a_guest_asks_and_reaches_sockets_and_ports_as_its_policy_says(stage) {
        if !set_up(stage) {
            return;
        }
        let data = stage.aside().join("data");
        stage.write(data.join("file"), "asked for");
        let secret = stage.aside().join("secret");
        stage.write(secret.join("file"), "never");
        let serve = |name: &str| {
            let path = stage.aside().join(name);
            let listener = UnixListener::bind(&path).expect("a socket");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).expect("its mode");
            answer(std::iter::from_fn(move || listener.accept().ok().map(|(stream, _)| stream)));
            path.display().to_string()
        };
        let (given, other) = (serve("given"), serve("other"));
        let (served, outer) = ports();
        let (unlisted, _) = ports();
        let policy = stage.base().join("policy.toml");
        stage.write(&policy, format!("[ceiling.ask.files]\nread = [\"{}\"]\n", data.display()));
        let (served_text, published) = (served.to_string(), format!("{outer}:3000"));
        let guest = Guest::start(stage, &[
            "--policy", &policy.to_string_lossy(), "--allow-socket", &given,
            "--allow-host-port", &served_text, "--publish", &published,
        ]);

        // A request from inside, answered by a person; one above the ceiling is denied at once.
        let ask = |path: &std::path::Path| guest.exec(&format!("{ASK} ask --read {} --reason 'for a test'", path.display()));
        ask(&secret).ended(1).tells("denied");
        ask(&data).ended(2).tells("request 1");
        guest.exec(&format!("cat {}/file", data.display())).ended(1);
        let pending = guest.ironcage(&["request", "list"]).ok().stdout();
        assert!(pending.contains("for a test"), "{pending}");
        let waits = format!("{ASK} ask --read {} --wait 600 && cat {0}/file", data.display());
        let mut waiting = stage.ironcage(["exec", "guest", "--", "/bin/sh", "-c", &waits]);
        let waiting = Running::start(&mut waiting);
        let twice = || guest.ironcage(&["request", "list"]).stdout().contains("requested 2 times");
        assert!(wait_until(DEADLINE, twice), "the one that waits has asked");
        guest.ironcage(&["approve", "guest/1"]).ok();
        waiting.finish(DEADLINE).ok().tells("asked for");
        // Its end is that of every lease.
        guest.ironcage(&["revoke", "guest", "--all"]).ok();
        guest.exec(&format!("cat {}/file", data.display())).ended(1);

        // Sockets and ports: what is listed, and nothing else.
        let script = "import socket, sys\n\
            def say(kind, to):\n\
            \x20   s = socket.socket(kind); s.settimeout(60)\n\
            \x20   try:\n\
            \x20       s.connect(to); s.sendall(b'hello\\n'); print(s.makefile().readline().strip())\n\
            \x20   except OSError: print('no')\n\
            for path in sys.argv[1:3]: say(socket.AF_UNIX, path)\n\
            for port in sys.argv[3:]: say(socket.AF_INET, ('127.0.0.1', int(port)))\n";
        let reached = finish(&mut stage.ironcage([
            "exec", "guest", "--", "/usr/bin/python3", "-c", script, &given, &other, &served_text, &unlisted.to_string(),
        ]));
        assert_eq!(reached.stdout(), "got hello\nno\ngot hello\nno\n", "{reached:?}");

        // A published port: many bytes both ways, and the end of each direction.
        let server = "import socket\n\
            l = socket.socket(); l.bind(('127.0.0.1', 3000)); l.listen(); print('listens', flush=True)\n\
            c, _ = l.accept()\n\
            n = 0\n\
            while b := c.recv(65536): n += len(b)\n\
            c.sendall(b'x' * 300000 + b'%d' % n); c.close()\n";
        let mut serving = stage.ironcage(["exec", "guest", "--", "/usr/bin/python3", "-c", server]);
        let serving = Running::start(&mut serving);
        let listens = || guest.exec("grep -q ':0BB8 .* 0A ' /proc/net/tcp").code() == 0;
        assert!(wait_until(DEADLINE, listens), "the server listens");
        let mut client = TcpStream::connect(("127.0.0.1", outer)).expect("the published port");
        client.write_all(&[7; 500_000]).expect("it takes bytes");
        client.shutdown(std::net::Shutdown::Write).expect("an end");
        let mut got = String::new();
        client.read_to_string(&mut got).expect("its answer");
        assert!(got.len() == 300_006 && got.ends_with("500000"), "{} bytes", got.len());
        serving.finish(DEADLINE).ok();
        // Nobody listens any more: the connection ends without a byte.
        let mut client = TcpStream::connect(("127.0.0.1", outer)).expect("the published port");
        assert!(matches!(client.read(&mut [0; 1]), Ok(0) | Err(_)));
        // The guest goes on after all of this.
        guest.exec("true").ok();
    }

    fn a_command_with_leases_runs_in_a_guest_of_its_own_beside_the_first(stage) {
        if !set_up(stage) {
            return;
        }
        let data = stage.aside().join("data");
        stage.write(data.join("file"), "leased");
        let policy = stage.base().join("policy.toml");
        stage.write(&policy, format!("[ceiling.ask.files]\nwrite = [\"{}\"]\n", data.display()));
        let guest = Guest::start(stage, &["--policy", &policy.to_string_lossy()]);
        guest.exec("echo of the guest > shared").ok();
        let path = data.display().to_string();
        let lease = format!("write={path}");
        let script = format!("cat {path}/file shared; echo written > {path}/made; test -e {ASK} && test ! -e /.ironcage/ask; cat /proc/sys/kernel/random/boot_id");
        let mut scoped = stage.ironcage(["exec", "--lease", &lease, "guest", "--", "/bin/sh", "-c", &script]);
        let seen = finish(&mut scoped).ok().stdout();
        assert!(seen.starts_with("leasedof the guest\n"), "{seen}");
        assert_eq!(std::fs::read_to_string(data.join("made")).expect("what it wrote"), "written\n");
        // Another kernel than the first guest's, which has never seen the lease.
        let own = guest.exec("cat /proc/sys/kernel/random/boot_id").ok().stdout();
        assert!(!seen.ends_with(&own), "{seen}");
        guest.exec(&format!("ls {path}")).ended(2);
        let outside = format!("write={}", stage.base().display());
        finish(&mut stage.ironcage(["exec", "--lease", &outside, "guest", "--", "true"])).ended(125);
    }
}
