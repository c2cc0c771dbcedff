//! Leases on hosts, requests, secrets, sockets, ports and limits of a running cage: what is
//! given, what is not, and that nothing of it is left when one ends.

use ironcage_tests::web::Web;
use ironcage_tests::{Ran, Running, Stage, TlsWeb, both, wait_until};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::time::Duration;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A cage with a ceiling, killed when this is dropped.
pub(crate) struct Cage<'a> {
    stage: &'a Stage,
    pub(crate) id: String,
}

/// Says in a line what came of each connection, and holds the last one.
const HOLD: &str = "import socket, sys\n\
    if sys.argv[1].startswith('/'):\n\
    \x20   s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n\
    else: s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)\n\
    s.sendall(b'raw 1\\n'); s.settimeout(60)\n\
    f = s.makefile(); print(f.readline().strip(), flush=True)\n\
    try: print('end', repr(f.readline()), flush=True)\n\
    except OSError as e: print('end', type(e).__name__, flush=True)\n";

/// What a socket of the host's says.
const ASK: &str = "import socket, sys\n\
    s = socket.socket(socket.AF_UNIX); s.settimeout(60)\n\
    try:\n\
    \x20   s.connect(sys.argv[1]); s.sendall(b'hello\\n'); print(s.makefile().readline().strip() or 'no')\n\
    except OSError: print('no')\n";

impl<'a> Cage<'a> {
    #[track_caller]
    fn start(stage: &'a Stage, ceiling: &str, flags: &[String]) -> Self {
        Self::start_with(stage, ceiling, flags, &[])
    }

    #[track_caller]
    pub(crate) fn start_with(
        stage: &'a Stage,
        ceiling: &str,
        flags: &[String],
        env: &[(&str, &str)],
    ) -> Self {
        stage.write(stage.project().join("hold.py"), HOLD);
        stage.write(stage.project().join("ask.py"), ASK);
        let policy = stage.base().join("policy.toml");
        stage.write(&policy, ceiling);
        let mut run = stage.ironcage(["run", "-q", "-d", "--workspace-mode", "direct"]);
        run.arg("--policy").arg(policy).args(flags);
        run.envs(env.iter().copied());
        let ran = Running::start(&mut run).finish(PATIENCE).ok();
        Cage {
            stage,
            id: ran.stdout().trim().to_owned(),
        }
    }

    #[track_caller]
    pub(crate) fn says(&self, verb: &str, args: &[&str]) -> Ran {
        let mut command = self
            .stage
            .ironcage(verb.split(' ').chain([self.id.as_str()]));
        Running::start(command.args(args)).finish(PATIENCE)
    }

    #[track_caller]
    pub(crate) fn sh(&self, script: &str) -> String {
        let mut exec = self.stage.ironcage(["exec", &self.id, "--"]);
        exec.args(["/bin/sh", "-c", script]);
        Running::start(&mut exec).finish(PATIENCE).stdout()
    }

    /// Holds a connection; its first line has come.
    #[track_caller]
    fn hold(&self, args: &[&str]) -> (Running, BufReader<Box<dyn Read>>) {
        let mut exec = self.stage.ironcage(["exec", &self.id, "--"]);
        exec.args(["/usr/bin/python3", "hold.py"]).args(args);
        let mut holding = Running::start(&mut exec);
        let output: Box<dyn Read> = Box::new(holding.stdout());
        let mut said = BufReader::new(output);
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        assert_eq!(line, "got raw 1\n");
        (holding, said)
    }

    pub(crate) fn record(&self) -> String {
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

fn rest(mut said: BufReader<Box<dyn Read>>) -> String {
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("the rest");
    rest
}

/// Cgroups of scopes of a cage that have limits of their own.
fn groups(id: &str) -> Vec<std::path::PathBuf> {
    let (mut found, mut places) = (Vec::new(), vec![Path::new("/sys/fs/cgroup").to_owned()]);
    while let Some(place) = places.pop() {
        for entry in std::fs::read_dir(&place).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                match entry
                    .file_name()
                    .to_string_lossy()
                    .ends_with(&format!("{id}.scope"))
                {
                    true => found.push(entry.path()),
                    false => places.push(entry.path()),
                }
            }
        }
    }
    found
}

/// A name that leads to a server of the test's, which no rule allows.
pub(crate) fn led(web: &Web, name: &str) -> Vec<String> {
    let (ip, port) = (web.address.ip(), web.address.port());
    [
        "--allow-host",
        &format!("{ip}:{port}"),
        "--resolve",
        &format!("{name}={ip}"),
    ]
    .map(str::to_owned)
    .to_vec()
}

/// A socket of the host's that answers lines.
pub(crate) fn serve(path: &Path) {
    let listener = std::os::unix::net::UnixListener::bind(path).expect("a socket");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(path, mode).expect("its mode");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let lines = BufReader::new(stream.try_clone().expect("a copy")).lines();
                for line in lines.map_while(Result::ok) {
                    let _ = writeln!(&stream, "got {line}");
                }
            });
        }
    });
}

both! {
    fn a_host_is_reached_while_there_is_a_lease_and_its_connections_end_with_it(stage) {
        let web = Web::start(0);
        let port = web.address.port();
        let ceiling = format!("[ceiling.ask.network]\nallow = [\"*.test:{port}\"]\n[ceiling.deny.network]\nallow = [\"never.test\"]\n");
        let cage = Cage::start(stage, &ceiling, &led(&web, "web.test"));
        let get = format!("curl -sS -m 30 http://web.test:{port}/ || echo no");
        assert_eq!(cage.sh(&get), "no\n");
        let host = format!("web.test:{port}");
        let said = cage.says("grant", &["--host", &host, "--for", "10m", "--reason", "a test"]).ok();
        assert_eq!(said.stdout(), format!("lease 1: host {host} for 10 min, granted by the operator\n"));
        assert_eq!(cage.sh(&get), format!("hello {host}\n"));
        let (_holding, said) = cage.hold(&["web.test", &port.to_string()]);
        assert_eq!(cage.says("revoke", &["1"]).ok().stdout(), "lease 1: revoked\n");
        assert!(rest(said).starts_with("end "));
        assert_eq!(cage.sh(&get), "no\n");
        let record = cage.record();
        assert!(record.contains(&format!("lease 1: host {host}")) && record.contains("lease 1: revoked"), "{record}");
        // What the ceiling does not name, what it denies, and what brings that along.
        for outside in ["web.test:1", "other.com", &format!("never.test:{port}"), "host.ironcage:22", "127.0.0.1", &format!("*.test:{}", port.wrapping_add(1))] {
            cage.says("grant", &["--host", outside]).ended(125).says("cannot grant");
        }
        cage.says("grant", &["--host", &format!("*.test:{port}")]).ended(125).says("denies");
        assert!(cage.record().contains("lease denied: host other.com"));
    }

    fn a_host_can_be_had_for_a_number_of_connections(stage) {
        let web = Web::start(0);
        let port = web.address.port();
        let ceiling = format!("[ceiling.auto.network]\nallow = [\"web.test:{port}\"]\n");
        let cage = Cage::start(stage, &ceiling, &led(&web, "web.test"));
        let host = format!("web.test:{port}");
        let said = cage.says("grant", &["--host", &host, "--count", "2"]).ok().stdout();
        assert!(said.contains("2 times, granted by the policy"), "{said}");
        let get = format!("curl -sS -m 30 http://{host}/ || echo no");
        let hello = format!("hello {host}\n");
        assert_eq!(cage.sh(&format!("{get}; {get}; {get}")), format!("{hello}{hello}no\n"));
        assert!(cage.says("net", &[]).ok().stdout().contains("used up"));
        // What nobody counts is not given by number.
        cage.says("grant", &["--read", "/usr", "--count", "2"]).ended(125).denied("lease-uses-not-counted");
    }

    fn requests_and_a_secret_are_had_while_there_is_a_lease(stage) {
        let value = "real-value-of-the-token-0123456789";
        let Some(server) = TlsWeb::start(stage, "api.test") else { return };
        let port = server.port;
        let ceiling = format!(
            "[ceiling.ask.network]\nhttp = [\"GET api.test:{port}/reflect/**\"]\n\
             [ceiling.ask.network.secrets.TOKEN]\nhosts = [\"api.test:{port}\"]\n"
        );
        let authority = server.authority.display().to_string();
        let env = [("TOKEN", value), ("SSL_CERT_FILE", authority.as_str())];
        let cage = Cage::start_with(stage, &ceiling, &server.place("api.test"), &env);
        let get = |path: &str| format!("curl -sS -m 60 -o /dev/null -w '%{{http_code}}\\n' -H \"Authorization: Bearer $TOKEN\" https://api.test:{port}{path} 2>/dev/null || echo no");
        let plain = |path: &str| format!("curl -sS -m 60 -o /dev/null -w '%{{http_code}}\\n' https://api.test:{port}{path} 2>/dev/null || echo no");
        assert!(cage.sh(&plain("/reflect/a")).ends_with("no\n"));
        let requests = format!("GET api.test:{port}/reflect/a/**");
        cage.says("grant", &["--http", &requests]).ok();
        assert_eq!(cage.sh(&format!("{}; {}", plain("/reflect/a/x"), plain("/reflect/b"))), "200\n403\n");
        // The placeholder alone is nothing, and goes nowhere.
        assert_eq!(cage.sh(&get("/reflect/a/x")), "403\n");
        cage.says("grant", &["--secret", "TOKEN", "--count", "1"]).ok();
        assert_eq!(cage.sh(&format!("{0}; {0}", get("/reflect/a/x"))), "200\n403\n");
        assert_eq!(cage.says("revoke", &["2"]).ok().stdout(), "lease 2: revoked\n");
        assert_eq!(cage.sh(&get("/reflect/a/x")), "403\n");
        let log = server.log();
        assert_eq!(log.matches(&format!("Bearer {value}")).count(), 1, "{log}");
        assert!(!log.contains("ironcage-TOKEN"), "{log}");
        for (flag, what) in [
            ("--http", format!("POST api.test:{port}/reflect/a")),
            ("--http", format!("GET api.test:{port}/**")),
            ("--host", format!("api.test:{port}")),
            ("--secret", "OTHER".to_owned()),
        ] {
            cage.says("grant", &[flag, &what]).ended(125).denied("lease-above-ceiling");
        }
        assert_eq!(cage.says("revoke", &["--all"]).ok().stdout(), "lease 1: revoked\n");
        assert!(cage.sh(&plain("/reflect/a/x")).ends_with("no\n"));
        assert!(!cage.record().contains(value));
    }

    fn a_socket_is_reached_while_there_is_a_lease_and_its_connections_end_with_it(stage) {
        let (given, other) = (stage.aside().join("given"), stage.aside().join("other"));
        serve(&given);
        serve(&other);
        let ceiling = format!("[ceiling.ask.network]\nsockets = [\"{}\"]\n", given.display());
        let cage = Cage::start(stage, &ceiling, &[]);
        let (given, other) = (given.display().to_string(), other.display().to_string());
        let ask = |path: &str| cage.sh(&format!("python3 ask.py {path}"));
        assert_eq!(ask(&given), "no\n");
        cage.says("grant", &["--socket", &given]).ok();
        assert_eq!(ask(&given), "got hello\n");
        assert_eq!(ask(&other), "no\n");
        cage.says("grant", &["--socket", &other]).ended(125).denied("lease-above-ceiling");
        let (_holding, said) = cage.hold(&[&given]);
        assert_eq!(cage.says("revoke", &["1"]).ok().stdout(), "lease 1: revoked\n");
        assert!(rest(said).starts_with("end "));
        assert_eq!(ask(&given), "no\n");
        cage.says("grant", &["--socket", &given, "--count", "1"]).ok();
        assert_eq!(ask(&given) + &ask(&given), "got hello\nno\n");
        assert!(cage.says("lease list", &[]).ok().stdout().contains("0 uses left"));
    }

    fn a_port_is_published_while_there_is_a_lease(stage) {
        let cage = Cage::start(stage, "[ceiling.ask.network]\npublish = [\"*:3000\"]\n", &[]);
        let mut server = stage.ironcage(["exec", "-d", &cage.id, "--", "/usr/bin/python3", "-m", "http.server", "3000"]);
        Running::start(&mut server).finish(PATIENCE).ok();
        let said = cage.says("grant", &["--publish", "0:3000"]).ok().stdout();
        let port: u16 = said
            .strip_prefix("lease 1: port ")
            .and_then(|rest| rest.split(':').next())
            .and_then(|port| port.parse().ok())
            .unwrap_or_else(|| panic!("{said}"));
        let get = || {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
            stream.write_all(b"GET /ask.py HTTP/1.0\r\n\r\n").ok()?;
            let mut text = String::new();
            stream.read_to_string(&mut text).ok()?;
            Some(text.contains("hello"))
        };
        assert!(wait_until(PATIENCE, || get() == Some(true)));
        cage.says("grant", &["--publish", "0:3001"]).ended(125).denied("lease-above-ceiling");
        assert_eq!(cage.says("revoke", &["1"]).ok().stdout(), "lease 1: revoked\n");
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    }

    fn limits_are_raised_by_a_lease_where_a_cgroup_holds_them(stage) {
        let ceiling = "[limits]\nmemory = \"200M\"\npids = 40\n[ceiling.ask.limits]\nmemory = \"400M\"\npids = 80\n";
        let cage = Cage::start(stage, ceiling, &[]);
        let stats = |name: &str| {
            let text = cage.says("stats", &["--json"]).ok().stdout();
            let stats: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let stats = stats.as_array().and_then(|all| all.first()).cloned().unwrap_or(stats);
            stats[name].to_string()
        };
        let held = stats("counted_by") == "\"cgroup\"";
        cage.says("grant", &["--pids", "81"]).ended(125).denied("lease-above-ceiling");
        assert!(cage.says("grant", &["--pids", "40"]).ok().stdout().contains("no lease needed"));
        let granted = cage.says("grant", &["--pids", "80", "--memory", "400M"]);
        if !held {
            granted.ended(125).denied("lease-limit-without-cgroup");
            return;
        }
        granted.ok();
        assert!(wait_until(PATIENCE, || stats("pids_limit") == "80"), "{}", stats("pids_limit"));
        // Fifty at once are more than the base gives.
        let crowd = "all=; trap 'kill $all' EXIT; for i in $(seq 50); do sleep 100 & all=\"$all $!\"; done; echo $i";
        assert_eq!(cage.sh(crowd).trim(), "50");
        assert!(wait_until(PATIENCE, || stats("pids").parse::<u64>().is_ok_and(|pids| pids < 40)));
        let said = cage.says("revoke", &["--all"]).ok().stdout();
        assert!(said.contains("lease 2: revoked"), "{said}");
        assert_ne!(cage.sh(crowd).trim(), "50");
    }

    fn a_command_has_limits_of_its_own_beside_the_cages(stage) {
        let ceiling = "[limits]\nmemory = \"200M\"\npids = 40\n[ceiling.ask.limits]\nmemory = \"400M\"\npids = 80\n";
        let cage = Cage::start(stage, ceiling, &[]);
        let crowd = "all=; trap 'kill $all' EXIT; for i in $(seq 50); do sleep 100 & all=\"$all $!\"; done; echo $i";
        let with = |lease: &str, script: &str| cage.says("exec", &["--lease", lease, "--", "/bin/sh", "-c", script]);
        with("pids=81", "true").ended(125).denied("lease-above-ceiling");
        with("memory=50%", "true").ended(125).says("name an amount");
        let given = with("pids=80", crowd);
        if cage.says("stats", &["--json"]).ok().stdout().contains("\"processes\"") {
            given.ended(125).denied("lease-limit-without-cgroup");
            return;
        }
        assert_eq!(given.ok().stdout().trim(), "50");
        // It was that command's: neither the cage nor another scope has it.
        assert_ne!(cage.sh(crowd).trim(), "50");
        assert_ne!(cage.says("exec", &["--scope", "--", "/bin/sh", "-c", crowd]).stdout().trim(), "50");
        let fill = "/usr/bin/python3 -c 'len(bytearray(300 << 20)); print(\"filled\")'";
        assert_eq!(with("memory=400M", fill).ok().stdout().trim(), "filled");
        assert_ne!(cage.sh(fill).trim(), "filled");
        // One at a time, so that all of them together have no more than the ceiling gives.
        let mut first = cage.stage.ironcage(["exec", &cage.id, "--lease", "pids=80", "--"]);
        let mut first = Running::start(first.args(["/bin/sh", "-c", "echo up; exec sleep 600"]));
        let mut line = String::new();
        BufReader::new(first.stdout()).read_line(&mut line).expect("a line");
        assert_eq!(line, "up\n");
        with("pids=80", "true").ended(125).says("has its own limits");
        assert!(!groups(&cage.id).is_empty());
        let numbers = cage.says("lease list", &[]).ok().stdout();
        let number = numbers.split_whitespace().find(|word| word.parse::<u32>().is_ok()).expect("a lease").to_owned();
        cage.says("revoke", &[&number]).ok();
        assert_ne!(first.finish(PATIENCE).code(), 0);
        assert!(wait_until(PATIENCE, || groups(&cage.id).is_empty()), "{:?}", groups(&cage.id));
        with("pids=80", "true").ok();
        let record = cage.record();
        assert!(record.contains("pids 80") && record.contains("lease 2: revoked"), "{record}");
    }

    fn what_the_proxy_held_is_over_when_the_proxy_is_gone(stage) {
        let web = Web::start(0);
        let port = web.address.port();
        let ceiling = format!("[ceiling.ask.network]\nallow = [\"web.test:{port}\"]\n");
        let cage = Cage::start(stage, &ceiling, &led(&web, "web.test"));
        let host = format!("web.test:{port}");
        cage.says("grant", &["--host", &host]).ok();
        let described: serde_json::Value = serde_json::from_str(&cage.says("inspect", &[]).ok().stdout()).expect("JSON");
        let supervisor = described["supervisor"].as_u64().expect("a process");
        let children = format!("/proc/{supervisor}/task/{supervisor}/children");
        let children = std::fs::read_to_string(children).expect("children");
        let is_proxy = |pid: &&str| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.trim() == "ironcage-egress")
        };
        let proxy = children.split_whitespace().find(is_proxy).expect("a proxy");
        stage.sh_outside(&format!("kill -9 {proxy}")).ok();
        assert!(wait_until(PATIENCE, || cage.record().contains("lease 1: revoked")), "{}", cage.record());
        assert!(cage.record().contains("the egress proxy ended"));
        assert_eq!(cage.sh(&format!("curl -sS -m 30 http://{host}/ 2>/dev/null || echo no")), "no\n");
        cage.says("grant", &["--host", &host]).ended(125).says("proxy of this cage has ended");
    }
}

both! {
    fn a_command_has_a_host_of_its_own_and_a_tool_that_fetches_has_one_too(stage) {
        let web = Web::start(0);
        let host = format!("web.test:{}", web.address.port());
        let ceiling = format!("[ceiling.auto.network]\nallow = [\"{host}\"]\n");
        let cage = Cage::start(stage, &ceiling, &led(&web, "web.test"));
        let get = format!("curl -sS -m 60 http://{host}/ 2>/dev/null || echo no");
        assert_eq!(cage.sh(&get), "no\n");
        let scoped = cage.says("exec", &["--lease", &format!("host={host}"), "--", "/bin/sh", "-c", &get]).ok();
        assert_eq!(scoped.stdout(), format!("hello {host}\n"));
        assert_eq!(cage.sh(&get), "no\n");
        cage.says("exec", &["--lease", "host=other.test", "--", "/bin/sh", "-c", "echo ran"])
            .ended(125)
            .denied("lease-above-ceiling");
        let fetch = |url: &str| {
            let call = stage.base().join("call.json");
            let text = format!("{{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"WebFetch\",\"input\":{{\"url\":\"{url}\"}}}}");
            stage.write(&call, text);
            cage.says("exec", &["--intent", call.to_str().expect("text")])
        };
        let got = fetch(&format!("http://{host}/")).ok().stdout();
        assert!(got.contains(&format!("hello {host}")), "{got}");
        let refused = fetch("http://other.test/");
        assert_ne!(refused.code(), 0);
        assert!(refused.stdout().contains("the cage's ceiling"), "{refused:?}");
        assert_eq!(cage.sh(&get), "no\n");
        let record = cage.record();
        assert_eq!(record.matches(": revoked").count(), 2, "{record}");
    }

    fn a_command_has_calls_and_a_capability_and_the_next_has_neither(stage) {
        let ceiling = "[ceiling.ask.syscalls]\ngroups = [\"debug\"]\n[ceiling.ask.process]\ncapabilities = [\"CAP_KILL\"]\n";
        let cage = Cage::start(stage, ceiling, &[]);
        let traced = "import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(0, 0, 0, 0) != 0)";
        // Kept over the start of a program, and so of use.
        let capable = "import sys; sys.exit('CapEff:\\t0000000000000020' not in open('/proc/self/status').read())";
        for (lease, script) in [("syscalls=debug", traced), ("capability=CAP_KILL", capable)] {
            let run = |flags: &[&str]| {
                let command = ["--", "/usr/bin/python3", "-c", script];
                cage.says("exec", &[flags, &command[..]].concat()).code()
            };
            assert_eq!(run(&["--scope"]), 1, "{lease}");
            assert_eq!(run(&["--lease", lease]), 0, "{lease}");
            assert_eq!(run(&["--scope"]), 1, "{lease}");
        }
        for lease in ["syscalls=perf", "capability=CAP_CHOWN"] {
            let refused = cage.says("exec", &["--lease", lease, "--", "/bin/sh", "-c", "echo ran"]).ended(125);
            assert_eq!(refused.stdout(), "");
        }
        let record = cage.record();
        assert!(record.contains("lease 1: revoked") && record.contains("lease 2: revoked"), "{record}");
    }

    fn a_command_has_requests_a_secret_a_socket_and_a_port_of_its_own(stage) {
        let value = "real-value-of-the-token-0123456789";
        let Some(server) = TlsWeb::start(stage, "api.test") else { return };
        let port = server.port;
        let given = stage.aside().join("given");
        serve(&given);
        let given = given.display().to_string();
        let ceiling = format!(
            "[ceiling.ask.network]\nhttp = [\"GET api.test:{port}/reflect/**\"]\nsockets = [\"{given}\"]\npublish = [\"*:3000\"]\n\
             [ceiling.ask.network.secrets.TOKEN]\nhosts = [\"api.test:{port}\"]\n"
        );
        let authority = server.authority.display().to_string();
        let env = [("TOKEN", value), ("SSL_CERT_FILE", authority.as_str())];
        let cage = Cage::start_with(stage, &ceiling, &server.place("api.test"), &env);
        let get = |path: &str, header: &str| format!("curl -sS -m 60 -o /dev/null -w '%{{http_code}}\\n' {header} https://api.test:{port}{path} 2>/dev/null || echo no");
        let bearer = "-H \"Authorization: Bearer $TOKEN\"";
        let scoped = |leases: &[&str], script: &str| {
            let flags = leases.iter().flat_map(|lease| ["--lease", lease]);
            let args: Vec<&str> = flags.chain(["--", "/bin/sh", "-c", script]).collect();
            cage.says("exec", &args).stdout()
        };
        let requests = format!("http=GET api.test:{port}/reflect/a/**");
        let both = format!("{}; {}", get("/reflect/a/x", ""), get("/reflect/b", ""));
        assert_eq!(scoped(&[&requests], &both), "200\n403\n");
        // The placeholder alone goes nowhere; with the secret's own lease it is the value.
        assert_eq!(scoped(&[&requests], &get("/reflect/a/x", bearer)), "403\n");
        assert_eq!(scoped(&[&requests, "secret=TOKEN"], &get("/reflect/a/x", bearer)), "200\n");
        assert!(cage.sh(&get("/reflect/a/x", "")).ends_with("no\n"));
        let log = server.log();
        assert_eq!(log.matches(&format!("Bearer {value}")).count(), 1, "{log}");
        let ask = format!("python3 ask.py {given}");
        assert_eq!(scoped(&[&format!("socket={given}")], &ask), "got hello\n");
        assert_eq!(cage.sh(&ask), "no\n");
        let serving = ["exec", &cage.id, "--lease", "publish=0:3000", "--", "/usr/bin/python3", "-m", "http.server", "3000"];
        let serving = Running::start(&mut stage.ironcage(serving));
        let outer = || {
            let listed = cage.says("lease list", &[]).ok().stdout();
            let (_, after) = listed.split_once("port ")?;
            after.split(':').next()?.parse::<u16>().ok()
        };
        assert!(wait_until(PATIENCE, || outer().is_some()), "no port is leased");
        let outer = outer().expect("a port");
        let get = || {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", outer)).ok()?;
            stream.write_all(b"GET /ask.py HTTP/1.0\r\n\r\n").ok()?;
            let mut text = String::new();
            stream.read_to_string(&mut text).ok()?;
            Some(text.contains("hello"))
        };
        assert!(wait_until(PATIENCE, || get() == Some(true)), "nobody answers at {outer}");
        assert!(cage.says("revoke", &["--all"]).ok().stdout().contains("revoked"));
        serving.finish(PATIENCE).ended(137);
        assert_eq!(get(), None);
        let record = cage.record();
        assert_eq!(record.matches(": revoked").count(), 6, "{record}");
        assert!(!record.contains(value));
    }
}
