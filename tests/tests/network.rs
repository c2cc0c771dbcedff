//! The egress proxy: what is allowed works with programs as they are, nothing goes around it,
//! and without it there is no network.
//!
//! All traffic stays on the host's loopback: names lead there by `--resolve`, and the address
//! is allowed beside the name, as the rules for special addresses want it.

use ironcage_tests::web::{Web, own_address, refs};
use ironcage_tests::{DIRECT, Running, Stage, both, skip, wait_until};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// A web server behind TLS on port 443 of an address of its own, with a certificate that its
/// file vouches for.
struct Tls {
    child: Child,
    address: Ipv4Addr,
    log: PathBuf,
}

impl Drop for Tls {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Tls {
    /// `None`, which counts as skipped, where port 443 cannot be had.
    fn start(stage: &Stage, name: &str) -> Option<Tls> {
        if !rustix::process::getuid().is_root() {
            skip("port 443 needs root");
            return None;
        }
        let at = |file: &str| stage.aside().join(file);
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
            ])
            .args(["-nodes", "-days", "2", "-subj"])
            .arg(format!("/CN={name}"))
            .arg("-addext")
            .arg(format!("subjectAltName=DNS:{name}"))
            .arg("-keyout")
            .arg(at("key.pem"))
            .arg("-out")
            .arg(stage.project().join("ca.pem"))
            .stderr(Stdio::null())
            .status();
        assert!(made.expect("openssl").success(), "a certificate");
        let address = own_address();
        let root = at("root");
        std::fs::create_dir_all(&root).expect("a directory");
        std::fs::write(root.join("page"), "the page\n").expect("a page");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/tls_server.py");
        let mut child = Command::new("/usr/bin/python3")
            .arg(script)
            .arg(address.to_string())
            .arg("443")
            .arg(stage.project().join("ca.pem"))
            .arg(at("key.pem"))
            .arg(&root)
            .arg(at("requests"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut ready = String::new();
        BufReader::new(child.stdout.take().expect("its output"))
            .read_line(&mut ready)
            .expect("a line");
        assert_eq!(ready, "ready\n");
        Some(Tls {
            child,
            address,
            log: at("requests"),
        })
    }

    fn flags(&self, name: &str) -> Vec<String> {
        let address = self.address;
        [
            "--allow-host",
            name,
            "--allow-host",
            &format!("{address}:443"),
            "--resolve",
            &format!("{name}={address}"),
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn requests(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// The process of the proxy that a launcher has, and every field of its status.
fn proxy_of(launcher: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children"));
    children
        .unwrap_or_default()
        .split_whitespace()
        .find_map(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            (name.trim() == "ironcage-egress").then(|| pid.parse().ok())?
        })
}

both! {
    fn programs_reach_what_is_allowed_as_they_are(stage) {
        let web = Web::start(0);
        let port = web.address.port();
        let script = format!(
            "set -e\n\
             curl -sS -m 20 http://web.test:{port}/\n\
             curl -sS -m 20 -6 http://WEB.test.:{port}/\n\
             wget -q -O - -T 20 http://web.test:{port}/\n\
             /usr/bin/python3 -c 'import urllib.request as u; print(u.urlopen(\"http://web.test:{port}/\", timeout=20).read().decode(), end=\"\")'\n\
             /usr/bin/python3 -c 'import socket; s=socket.create_connection((\"web.test\", {port}), 20); s.sendall(b\"raw bytes\\n\"); print(s.makefile().readline(), end=\"\")'\n"
        );
        let ran = stage.sh_with(&refs(&web.flags("web.test")), &script);
        let hello = format!("hello web.test:{port}\n");
        assert_eq!(ran.stdout(), format!("{hello}{hello}{hello}{hello}got raw bytes\n"), "{ran:?}");
        // The same without the rule: nobody is reached.
        let before = web.heard().len();
        let ran = stage.sh(&format!("curl -sS -m 20 http://web.test:{port}/"));
        assert_ne!(ran.code(), 0);
        assert_eq!(web.heard().len(), before);
    }

    fn tls_is_carried_for_its_name_only(stage) {
        let Some(server) = Tls::start(stage, "web.test") else { return };
        let mut flags = server.flags("web.test");
        flags.extend(["--allow-host", "other.test", "--resolve"].map(str::to_owned));
        flags.push(format!("other.test={}", server.address));
        let script = "set -e\n\
             curl -sS -m 20 --cacert ca.pem https://web.test/page\n\
             wget -q -O - -T 20 --ca-certificate=ca.pem https://web.test/page\n\
             /usr/bin/python3 -c 'import ssl, urllib.request as u; print(u.urlopen(\"https://web.test/page\", timeout=20, context=ssl.create_default_context(cafile=\"ca.pem\")).read().decode(), end=\"\")'\n\
             NODE_EXTRA_CA_CERTS=$PWD/ca.pem node -e 'require(\"https\").get(\"https://web.test/page\", r => r.pipe(process.stdout))'\n";
        let ran = stage.sh_with(&refs(&flags), script);
        assert_eq!(ran.stdout(), "the page\n".repeat(4), "{ran:?}");
        let before = server.requests();
        // Another name in the first message than the one that was asked for; then none at all.
        let script = "python() { /usr/bin/python3 -c \"$1\"; }\n\
             python 'import socket, ssl; c=ssl._create_unverified_context(); c.wrap_socket(socket.create_connection((\"web.test\", 443), 20), server_hostname=\"other.test\")' 2>&1 | tail -n 1\n\
             python 'import socket, ssl; c=ssl._create_unverified_context(); c.wrap_socket(socket.create_connection((\"web.test\", 443), 20))' 2>&1 | tail -n 1\n\
             python 'import socket; s=socket.create_connection((\"web.test\", 443), 20); s.sendall(b\"GET / HTTP/1.1\\r\\n\\r\\n\"); print(len(s.recv(100)))'\n";
        let ran = stage.sh_with(&refs(&flags), script);
        let out = ran.stdout();
        assert_eq!(out.matches("ACCESS_DENIED").count(), 2, "{ran:?}");
        assert!(out.ends_with("\n7\n"), "{ran:?}");
        assert_eq!(server.requests(), before);
        let told = stage.ironcage(["why"]).output().expect("why");
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(told.contains("this is TLS for other.test"), "{told}");
        assert!(told.contains("this is TLS without a server name"), "{told}");
    }

    fn git_works_over_https(stage) {
        let Some(server) = Tls::start(stage, "code.test") else { return };
        let root = stage.aside().join("root");
        let made = Command::new("/bin/sh")
            .current_dir(&root)
            .args(["-c", "export HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1; g() { git -c user.name=a -c user.email=a@b.c \"$@\"; }; \
                   g init -q work && cd work && echo text > file && g add file && g commit -qm one && cd .. && \
                   g clone -q --bare work repo.git && cd repo.git && g update-server-info"])
            .output()
            .expect("git");
        assert!(made.status.success(), "{made:?}");
        let script = "GIT_SSL_CAINFO=$PWD/ca.pem git clone -q https://code.test/repo.git 2>&1 && cat repo/file";
        let ran = stage.sh_with(&refs(&server.flags("code.test")), script);
        assert_eq!(ran.stdout(), "text\n", "{ran:?}");
    }

    fn requests_are_for_the_name_every_one_of_them(stage) {
        let web = Web::start(0);
        let port = web.address.port();
        let good = format!("GET / HTTP/1.1\\r\\nHost: web.test:{port}\\r\\n\\r\\n");
        let script = format!(
            "import re, socket\n\
             def say(text):\n\
             \x20   s = socket.create_connection(('web.test', {port}), 20); s.sendall(text.encode()); s.settimeout(20)\n\
             \x20   got = b''\n\
             \x20   while True:\n\
             \x20       try: part = s.recv(4096)\n\
             \x20       except OSError: break\n\
             \x20       if not part: break\n\
             \x20       got += part\n\
             \x20       if got.count(b'hello') == 2: break\n\
             \x20   print(re.findall('HTTP/1.1 [^\\r]*', got.decode()))\n\
             say('{good}{good}')\n\
             say('{good}GET / HTTP/1.1\\r\\nHost: evil.test\\r\\n\\r\\n')\n\
             say('GET http://evil.test/ HTTP/1.1\\r\\nHost: web.test:{port}\\r\\n\\r\\n')\n\
             say('CONNECT evil.test:80 HTTP/1.1\\r\\nHost: web.test:{port}\\r\\n\\r\\n')\n\
             say('POST / HTTP/1.1\\r\\nHost: web.test:{port}\\r\\nContent-Length: 4\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n')\n"
        );
        stage.write(stage.project().join("say.py"), script);
        let flags = web.flags("web.test");
        let ran = stage.run(&refs(&flags), &["/usr/bin/python3", "say.py"]);
        let ok = "HTTP/1.1 200 OK";
        let wanted = format!(
            "['{ok}', '{ok}']\n['{ok}', 'HTTP/1.1 403 Forbidden']\n['HTTP/1.1 403 Forbidden']\n\
             ['HTTP/1.1 405 Method Not Allowed']\n['HTTP/1.1 400 Bad Request']\n"
        );
        assert_eq!(ran.stdout(), wanted, "{ran:?}");
        let own = format!("web.test:{port}");
        assert_eq!(web.heard(), vec![own; 3]);
    }

    fn a_request_is_one_however_it_begins(stage) {
        let web = Web::start(0);
        let port = web.address.port();
        let script = format!(
            "import socket, time\n\
             def say(*parts):\n\
             \x20   s = socket.create_connection(('web.test', {port}), 20); s.settimeout(20)\n\
             \x20   got = b''\n\
             \x20   try:\n\
             \x20       for part in parts: s.sendall(part.encode()); time.sleep(0.5 if len(parts) > 1 else 0)\n\
             \x20       while b'\\n' not in got:\n\
             \x20           part = s.recv(4096)\n\
             \x20           if not part: break\n\
             \x20           got += part\n\
             \x20   except OSError: got = b'reset'\n\
             \x20   print(got.decode().split('\\r')[0].strip())\n\
             own, evil = 'Host: web.test:{port}\\r\\n\\r\\n', 'Host: evil.test\\r\\n\\r\\n'\n\
             for host in (own, evil):\n\
             \x20   say('\\r\\nGET / HTTP/1.1\\r\\n' + host)\n\
             \x20   say('PROPFIND / HTTP/1.1\\r\\n' + host)\n\
             \x20   say('get / HTTP/1.1\\r\\n' + host)\n\
             say('get / http/1.1\\r\\n' + evil)\n\
             say('FOO http://evil.test/ HTTP/1.1\\r\\n' + own)\n\
             say('PROXY TCP4 1.1.1.1 1.1.1.1 1 1\\r\\nGET / HTTP/1.1\\r\\n' + evil)\n\
             say('FOO / HT', 'TP/1.1\\r\\n' + evil)\n\
             say('GET\\x0b/ HTTP/1.1\\r\\n' + evil)\n\
             say('G@T / HTTP/1.1\\r\\n' + evil)\n\
             say('SOURCE / ICE/1.0\\r\\n' + evil)\n\
             say('raw bytes\\n')\n\
             say('raw ', 'bytes\\n')\n"
        );
        stage.write(stage.project().join("say.py"), script);
        let flags = web.flags("web.test");
        let ran = stage.run(&refs(&flags), &["/usr/bin/python3", "say.py"]);
        let (ok, forbidden) = ("HTTP/1.1 200 OK\n", "HTTP/1.1 403 Forbidden\n");
        let wanted = format!(
            "{ok}{ok}{ok}{forbidden}{forbidden}{forbidden}HTTP/1.1 505 HTTP Version Not Supported\n{forbidden}\
             HTTP/1.1 400 Bad Request\nreset\nHTTP/1.1 400 Bad Request\nHTTP/1.1 400 Bad Request\n\
             HTTP/1.1 505 HTTP Version Not Supported\ngot raw bytes\ngot raw bytes\n"
        );
        assert_eq!(ran.stdout(), wanted, "{ran:?}");
        let own = format!("web.test:{port}");
        let raw = "raw bytes".to_owned();
        assert_eq!(web.heard(), [own.clone(), own.clone(), own, raw.clone(), raw]);
    }

    fn nothing_goes_around_the_proxy(stage) {
        let web = Web::start(0);
        let port = web.address.port();
        let ip = web.address.ip();
        let datagrams = UdpSocket::bind((own_address(), 0)).expect("a socket");
        datagrams.set_nonblocking(true).expect("a socket");
        let udp = datagrams.local_addr().expect("an address");
        let script = format!(
            "import socket\n\
             def tcp(host, port):\n\
             \x20   try:\n\
             \x20       s = socket.create_connection((host, port), 20); s.sendall(b'raw\\n'); got = s.makefile('rb').readline()\n\
             \x20       print(host, got)\n\
             \x20   except OSError as e: print(host, 'refused')\n\
             def udp(host, port):\n\
             \x20   s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((host, port)); s.settimeout(20)\n\
             \x20   try: s.send(b'x'); s.recv(9); print('answered')\n\
             \x20   except ConnectionRefusedError: print('refused at once')\n\
             tcp('{ip}', {port})\n\
             tcp('127.0.0.1', {port})\n\
             tcp('localhost', {port})\n\
             tcp('host.ironcage', {port})\n\
             tcp('::ffff:{ip}', {port})\n\
             tcp('169.254.169.254', 8080)\n\
             tcp('web.test', {port})\n\
             udp('{}', {})\n\
             udp('192.0.2.1', 123)\n",
            udp.ip(),
            udp.port()
        );
        stage.write(stage.project().join("around.py"), script);
        let run = |flags: &[&str]| {
            let ran = stage.run(flags, &["/usr/bin/python3", "around.py"]);
            assert_eq!(ran.code(), 0, "{ran:?}");
            ran.stdout()
        };
        let name = format!("web.test:{port}");
        let led = format!("web.test={ip}");
        // The name is allowed, but where it leads is the host's own; nothing else is allowed.
        let out = run(&["--allow-host", &name, "--resolve", &led]);
        let refused = |host: &str| format!("{host} refused\n");
        for host in [
            &ip.to_string(),
            "127.0.0.1",
            "localhost",
            "host.ironcage",
            &format!("::ffff:{ip}"),
            "169.254.169.254",
            "web.test",
        ] {
            assert!(out.contains(&refused(host)), "{host}: {out}");
        }
        assert_eq!(out.matches("refused at once").count(), 2, "{out}");
        assert!(web.heard().is_empty());
        assert!(datagrams.recv(&mut [0; 9]).is_err());
        // Open is open to the internet, not to the host.
        let out = run(&["--network", "open", "--resolve", &led]);
        assert!(out.contains("web.test refused"), "{out}");
        assert!(web.heard().is_empty());
        // The arm that shows that each could have been reached.
        let host = format!("{ip}:{port}");
        let out = run(&["--allow-host", &name, "--allow-host", &host, "--resolve", &led]);
        assert!(out.contains("web.test b'got raw"), "{out}");
        // By its address it is the cage's own loopback, even where a rule names it.
        assert_eq!(web.heard().len(), 1);
    }

    fn ports_of_the_host_are_reached_by_explicit_word_unless_somebody_inside_listens(stage) {
        let web = Web::on(TcpListener::bind(("127.0.0.1", 0)).expect("a port"));
        let port = web.address.port();
        let flag = port.to_string();
        let get = |host: &str| format!("curl -sS -m 20 http://{host}:{port}/\n");
        let script = format!("{}{}{}", get("host.ironcage"), get("127.0.0.1"), get("localhost"));
        let ran = stage.sh_with(&["--allow-host-port", &flag], &script);
        let wanted = format!("hello host.ironcage:{port}\nhello 127.0.0.1:{port}\nhello localhost:{port}\n");
        assert_eq!(ran.stdout(), wanted, "{ran:?}");
        // Another port is not reached.
        let other = if port == 1024 { 1025 } else { port - 1 }.to_string();
        let before = web.heard().len();
        let ran = stage.sh_with(&["--allow-host-port", &other], &script);
        assert_eq!(ran.stdout(), "", "{ran:?}");
        assert_eq!(web.heard().len(), before);
        // A server inside has its own loopback.
        let inside = format!(
            "/usr/bin/python3 -c 'import socket\ns=socket.create_server((\"127.0.0.1\", {port})); print(\"up\", flush=True)\n\
             c,_=s.accept(); c.recv(999); c.sendall(b\"HTTP/1.1 200 OK\\r\\nContent-Length: 7\\r\\n\\r\\ninside\\n\")' > up & \
             while ! grep -q up up 2>/dev/null; do sleep 0.05; done; {}",
            get("127.0.0.1")
        );
        let ran = stage.sh_with(&["--allow-host-port", &flag], &inside);
        assert_eq!(ran.stdout(), "inside\n", "{ran:?}");
        assert_eq!(web.heard().len(), before);
    }

    fn denying_wins_and_an_untrusted_file_only_narrows(stage) {
        let web = Web::start(0);
        let port = web.address.port();
        let get = format!("curl -sS -m 20 http://a.web.test:{port}/ || echo no");
        let mut flags = web.flags("a.web.test");
        flags.extend(["--allow-host".to_owned(), format!("**.web.test:{port}")]);
        let ran = stage.sh_with(&refs(&flags), &get);
        assert!(ran.stdout().starts_with("hello"), "{ran:?}");
        let mut denied = flags.clone();
        denied.extend(["--deny-host", "*.web.test"].map(str::to_owned));
        assert_eq!(stage.sh_with(&refs(&denied), &get).stdout(), "no\n");
        let mut off = flags.clone();
        off.extend(["--network", "off"].map(str::to_owned));
        let file = stage.project().join("ironcage.toml");
        stage.write(&file, format!("[network]\ndeny = [\"a.web.test:{port}\"]\n"));
        let ran = stage.sh_with(&refs(&flags), &get);
        assert_eq!(ran.stdout(), "no\n", "{ran:?}");
        // It cannot allow.
        stage.write(&file, format!("[network]\nallow = [\"a.web.test:{port}\"]\nmode = \"open\"\nhost-ports = [{port}]\n"));
        let resolve = format!("a.web.test={}", web.address.ip());
        let ran = stage.sh_with(&["--resolve", &resolve], &get);
        assert_eq!(ran.stdout(), "no\n", "{ran:?}");
        assert!(ran.stderr.contains("not granted: network.allow"), "{ran:?}");
        assert!(ran.stderr.contains("not granted: network.mode open"), "{ran:?}");
        assert!(ran.stderr.contains("not granted: network.host-ports"), "{ran:?}");
        let ran = stage.sh_with(&["--profile", "strict", "--network", "open"], "true");
        assert_eq!(ran.code(), 125, "{ran:?}");
        assert!(ran.stderr.contains("--allow-host"), "{ran:?}");
    }

    fn the_proxy_is_confined_and_without_it_there_is_no_network(stage) {
        let web = Web::start(0);
        let port = web.address.port();
        let flags = web.flags("web.test");
        let get = format!("curl -sS -m 20 http://web.test:{port}/ || echo no");
        let script = format!("({get}) > first; read line; {get}; curl -sS -m 20 http://{}:{port}/ || echo no", web.address.ip());
        let mut flags = refs(&flags);
        flags.extend(DIRECT);
        let mut command = stage.cage(&flags, &["/bin/sh", "-c", &script]);
        let mut running = Running::start(&mut command);
        let hello = format!("hello web.test:{port}\n");
        assert!(wait_until(MINUTE, || stage.read("first").as_ref() == Some(&hello)));
        // `env` has executed the launcher in its own place.
        let proxy = proxy_of(running.pid()).expect("a proxy");
        let status = std::fs::read_to_string(format!("/proc/{proxy}/status")).expect("its status");
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        for (name, value) in [
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
            ("CapEff", "0000000000000000"),
            ("CapPrm", "0000000000000000"),
            ("Threads", "1"),
        ] {
            assert_eq!(field(name), value, "{name}");
        }
        let uid = field("Uid");
        let uid = uid.split_whitespace().next().unwrap_or_default();
        assert_ne!(uid, "0", "{status}");
        let memory: u64 = field("RssAnon").trim_end_matches(" kB").parse().expect("a number");
        assert!(memory < 8 * 1024, "{memory} kB");
        if let Ok(files) = std::fs::read_dir(format!("/proc/{proxy}/fd")) {
            let mut pipes = std::collections::BTreeSet::new();
            for file in files.flatten() {
                let what = std::fs::read_link(file.path()).unwrap_or_default();
                let what = what.to_string_lossy().into_owned();
                let known = ["socket:", "anon_inode:[event", "/dev/null", "pipe:"];
                assert!(known.iter().any(|known| what.starts_with(known)), "{what}");
                if what.starts_with("pipe:") {
                    pipes.insert(what);
                }
            }
            // Its own, through which large streams are moved.
            assert!(pipes.len() <= 1, "{pipes:?}");
        }
        let pid = rustix::process::Pid::from_raw(proxy as i32).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("a signal");
        assert!(wait_until(MINUTE, || proxy_of(running.pid()).is_none()));
        let mut stdin = running.stdin();
        stdin.write_all(b"go\n").expect("a line");
        drop(stdin);
        let ran = running.finish(MINUTE);
        assert_eq!(ran.stdout(), "no\nno\n", "{ran:?}");
        assert_eq!(web.heard().len(), 1);
        let told = stage.ironcage(["net"]).output().expect("net");
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(told.contains("the egress proxy ended before the cage"), "{told}");
        assert!(told.contains(&format!("rule web.test:{port}")), "{told}");
    }

    fn the_proxy_ends_with_its_launcher(stage) {
        let web = Web::start(0);
        let mut command = stage.cage(&refs(&web.flags("web.test")), &["/bin/sh", "-c", "echo up; sleep 60"]);
        let mut running = Running::start(&mut command);
        let mut up = [0; 3];
        running.stdout().read_exact(&mut up).expect("a word");
        let proxy = proxy_of(running.pid()).expect("a proxy");
        running.signal(rustix::process::Signal::KILL);
        let place = PathBuf::from(format!("/proc/{proxy}"));
        assert!(wait_until(MINUTE, || {
            // Gone, or dead and not yet waited for by whoever inherited it.
            let status = std::fs::read_to_string(place.join("status")).unwrap_or_default();
            status.is_empty() || status.contains("State:\tZ")
        }));
    }

    fn a_host_that_cannot_deliver_every_port_is_said_to_and_rules_for_all_are_refused(stage) {
        let web = Web::start(0);
        let (port, lacking) = (web.address.port(), ("IRONCAGE_LACKING", "nf_tables"));
        let script = format!(
            "curl -sS -m 20 http://web.test:{port}/; echo; curl -sS -m 5 http://web.test:{}/ && echo reached", port ^ 1
        );
        let run = |more: &[&str], without: bool| {
            let flags = web.flags("web.test");
            let flags = [&refs(&flags), more].concat();
            let mut command = stage.cage(&flags, &["/bin/sh", "-c", &script]);
            if without {
                command.env(lacking.0, lacking.1);
            }
            Running::start(&mut command).finish(MINUTE)
        };
        let body = format!("hello web.test:{port}");
        let narrow = run(&[], true);
        assert!(narrow.stdout().contains(&body) && !narrow.stdout().contains("reached"), "{narrow:?}");
        assert!(narrow.stderr.contains("listened only on the ports that rules name"), "{narrow:?}");
        let told = stage.ironcage(["audit", "show", "last"]).output().expect("ironcage");
        assert!(String::from_utf8_lossy(&told.stdout).contains("listens on single ports only"), "{told:?}");
        let wide = run(&[], false);
        assert!(wide.stdout().contains(&body) && !wide.stderr.contains("ports of the rules"), "{wide:?}");

        // A rule for all ports needs what is missing.
        let refused = run(&["--allow-host", "other.test:*"], true);
        assert_eq!(refused.code(), 125, "{refused:?}");
        assert!(refused.stderr.contains("modprobe nft_tproxy"), "{refused:?}");

        let doctor = |without: bool| {
            let mut command = stage.ironcage(["doctor"]);
            if without {
                command.env(lacking.0, lacking.1);
            }
            let said = command.output().expect("ironcage");
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            let line = said.lines().find(|line| line.contains("egress proxy on every port"));
            line.map(str::to_owned).unwrap_or(said)
        };
        assert!(doctor(false).contains("tried"), "{}", doctor(false));
        assert!(doctor(true).contains("modprobe nft_tproxy"), "{}", doctor(true));
    }

    fn a_cage_without_rules_has_no_proxy(stage) {
        let mut command = stage.cage(&[], &["/bin/sh", "-c", "echo up; read line"]);
        let mut running = Running::start(&mut command);
        let mut up = [0; 3];
        running.stdout().read_exact(&mut up).expect("a word");
        assert_eq!(proxy_of(running.pid()), None);
        assert_eq!(running.finish(MINUTE).code(), 1);
    }

    fn many_connections_are_carried_and_idle_ones_do_not_stop_others(stage) {
        let web = Web::start(0);
        let port = web.address.port();
        let script = format!(
            "import socket, threading\n\
             idle = [socket.create_connection(('web.test', {port}), 30) for _ in range(300)]\n\
             good = 0\n\
             def one(i):\n\
             \x20   global good\n\
             \x20   s = socket.create_connection(('web.test', {port}), 30); s.sendall(b'raw %d\\n' % i); s.settimeout(30)\n\
             \x20   if s.makefile().readline() == 'got raw %d\\n' % i: good += 1\n\
             for lot in range(4):\n\
             \x20   ts = [threading.Thread(target=one, args=(i,)) for i in range(50)]\n\
             \x20   [t.start() for t in ts]; [t.join() for t in ts]\n\
             print(good)\n"
        );
        stage.write(stage.project().join("many.py"), script);
        let ran = stage.run(&refs(&web.flags("web.test")), &["/usr/bin/python3", "many.py"]);
        assert_eq!(ran.stdout(), "200\n", "{ran:?}");
    }
}
