//! The network of a running cage: rules and limits that change, what is told as it happens.

use ironcage_tests::web::{Web, refs};
use ironcage_tests::{DIRECT, Ran, Running, Stage, TlsWeb, either, tree, wait_until};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

#[track_caller]
fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(MINUTE)
}

/// A cage in the background that only waits; its id.
#[track_caller]
fn start(stage: &Stage, flags: &[&str]) -> String {
    start_with(stage, flags, &[])
}

/// The same with variables of the caller's.
#[track_caller]
fn start_with(stage: &Stage, flags: &[&str], env: &[(&str, &str)]) -> String {
    // Before the start: what is below a layer must not change while it is used.
    stage.write(stage.project().join("hold.py"), HOLD);
    stage.write(stage.project().join("hold_tls.py"), HOLD_TLS);
    stage.write(stage.project().join("upload.py"), UPLOAD);
    let mut args = vec!["run", "-q", "-d", "--sticky"];
    args.extend(flags);
    let mut run = stage.ironcage(&args);
    let ran = Running::start(run.envs(env.iter().copied())).finish(MINUTE);
    let id = ran.ok().stdout().trim().to_owned();
    assert!(!id.is_empty(), "no id was printed");
    id
}

fn exec(stage: &Stage, id: &str, script: &str) -> Ran {
    ironcage(stage, &["exec", id, "--", "/bin/sh", "-c", script])
}

fn records(stage: &Stage, id: &str) -> Vec<Value> {
    let text = ironcage(stage, &["audit", "show", "--json", id])
        .ok()
        .stdout();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// What one client inside says of a connection that it holds: a line when it is open, and
/// another when it ended.
const HOLD: &str = "import socket, sys\n\
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)\n\
    s.sendall(b'raw 1\\n'); s.settimeout(60)\n\
    f = s.makefile(); print(f.readline().strip(), flush=True)\n\
    try: print('end', repr(f.readline()), flush=True)\n\
    except OSError as e: print('end', type(e).__name__, flush=True)\n";

/// The same over TLS, with a request that is answered and a connection that is kept.
const HOLD_TLS: &str = "import socket, ssl, sys\n\
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)\n\
    s = ssl.create_default_context().wrap_socket(s, server_hostname=sys.argv[1])\n\
    s.sendall(('GET /v1/kept HTTP/1.1\\r\\nHost: %s:%s\\r\\n\\r\\n' % (sys.argv[1], sys.argv[2])).encode())\n\
    print(s.recv(12).decode(), flush=True)\n\
    try:\n\
    \x20   while s.recv(4096): pass\n\
    except OSError: pass\n\
    print('end', flush=True)\n";

/// Sends so many bytes in one line, and says whether it was answered.
const UPLOAD: &str = "import socket, sys\n\
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60); s.settimeout(60)\n\
    try:\n\
    \x20   s.sendall(b'raw ' + b'x' * int(sys.argv[3]) + b'\\n')\n\
    \x20   print('answered' if s.recv(3) else 'no')\n\
    except OSError: print('no')\n";

either! {
    fn rules_of_a_running_cage_change_at_once_and_what_no_longer_matches_is_closed(stage) {
        let web = Web::start(0);
        let (ip, port) = (web.address.ip(), web.address.port());
        let resolve = format!("web.test={ip}");
        let id = start(stage, &["--network", "live", "--resolve", &resolve]);
        let get = format!("curl -sS -m 30 http://web.test:{port}/ || echo no");
        assert_eq!(exec(stage, &id, &get).stdout(), "no\n");

        let (name, address) = (format!("web.test:{port}"), format!("{ip}:{port}"));
        let added = ironcage(stage, &["net", "allow", &id, &name]).ok();
        assert_eq!(added.stdout(), "added rule 1\n");
        ironcage(stage, &["net", "allow", &id, &address]).ok();
        let hello = format!("hello web.test:{port}\n");
        assert_eq!(exec(stage, &id, &get).stdout(), hello);

        // Denying wins, and takes the open connection with it.
        let port_text = port.to_string();
        let hold = ["exec", &id, "--", "/usr/bin/python3", "hold.py", "web.test", &port_text];
        let mut holding = Running::start(&mut stage.ironcage(hold));
        let mut said = BufReader::new(holding.stdout());
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        assert_eq!(line, "got raw 1\n");
        let denied = ironcage(stage, &["net", "deny", &id, "web.test"]).ok();
        assert_eq!(denied.stdout(), "added rule 3; closed 1 open connection\n");
        let mut rest = String::new();
        said.read_to_string(&mut rest).expect("the rest");
        assert!(rest.starts_with("end "), "{rest}");
        assert_eq!(exec(stage, &id, &get).stdout(), "no\n");

        // Another rule's connection stays when one goes that it does not need.
        ironcage(stage, &["net", "remove", &id, "3"]).ok();
        let mut holding = Running::start(&mut stage.ironcage(hold));
        let mut said = BufReader::new(holding.stdout());
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        let other = ironcage(stage, &["net", "deny", &id, "other.test"]).ok();
        assert_eq!(other.stdout(), "added rule 4\n");
        let reset = ironcage(stage, &["net", "reset", &id]).ok();
        assert_eq!(reset.stdout(), "removed rules 1, 2, 4; closed 1 open connection\n");
        said.read_to_string(&mut line).expect("the rest");
        assert!(line.contains("end "), "{line}");
        assert_eq!(exec(stage, &id, &get).stdout(), "no\n");
        assert!(ironcage(stage, &["net", "remove", &id, "1"]).stderr.contains("no rule 1 was added"));

        ironcage(stage, &["stop", &id]).ok();
        let changes: Vec<String> = records(stage, &id)
            .iter()
            .filter(|record| record["event"] == "network-rule")
            .map(|record| format!("{} {} {}", record["change"], record["rule"], record["closed"]))
            .collect();
        assert_eq!(changes.len(), 8, "{changes:?}");
        assert_eq!(changes[0], format!("\"added\" \"{name}\" 0"));
        assert_eq!(changes[2], "\"added\" \"web.test:*\" 1");
    }

    fn a_proxy_that_gave_up_ports_says_so_and_a_cage_without_one_too(stage) {
        let web = Web::start(0);
        let id = start(stage, &refs(&web.flags("web.test")));
        let refused = ironcage(stage, &["net", "allow", &id, "other.test:1"]);
        assert!(refused.stderr.contains("--network live"), "{refused:?}");
        let port = web.address.port();
        ironcage(stage, &["net", "allow", &id, &format!("other.test:{port}")]).ok();
        let rules = ironcage(stage, &["net", "rules", "--json", &id]).ok().stdout();
        let rules: Value = serde_json::from_str(&rules).expect("JSON");
        assert_eq!(rules["live"][0]["rule"], format!("other.test:{port}"), "{rules}");
        assert_eq!(rules["allow"][0], format!("web.test:{port}"), "{rules}");
        ironcage(stage, &["stop", &id]).ok();
        let id = start(stage, &[]);
        let refused = ironcage(stage, &["net", "allow", &id, "other.test"]);
        assert!(refused.stderr.contains("without a network"), "{refused:?}");
        ironcage(stage, &["stop", &id]).ok();
    }

    fn requests_of_a_running_cage_are_narrowed_and_what_they_allowed_ends_with_them(stage) {
        let Some(server) = TlsWeb::start(stage, "api.test") else { return };
        let host = format!("api.test:{}", server.port);
        let address = format!("127.0.0.1:{}", server.port);
        let authority = server.authority.display().to_string();
        let flags = ["--network", "live", "--resolve", "api.test=127.0.0.1"];
        let id = start_with(stage, &flags, &[("SSL_CERT_FILE", &authority)]);
        ironcage(stage, &["net", "allow", &id, &address]).ok();
        let ask = |method: &str, path: &str| {
            let script = format!("curl -sS -m 30 -o /dev/null -w '%{{http_code}}' -X {method} https://{host}{path}");
            exec(stage, &id, &script).stdout()
        };
        assert_eq!(ask("GET", "/v1/x"), "000", "no rule allows it");
        ironcage(stage, &["net", "allow", &id, "--http", &format!("GET {host}/v1/**")]).ok();
        assert_eq!(ask("GET", "/v1/x"), "200");
        assert_eq!((ask("POST", "/v1/x"), ask("GET", "/admin")), ("403".into(), "403".into()));

        let port = server.port.to_string();
        let hold = ["exec", &id, "--", "/usr/bin/python3", "hold_tls.py", "api.test", &port];
        let mut holding = Running::start(&mut stage.ironcage(hold));
        let mut said = BufReader::new(holding.stdout());
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        assert_eq!(line, "HTTP/1.1 200\n");
        // More is allowed: what is open stays, and is held to the rules as they are.
        let added = ironcage(stage, &["net", "allow", &id, "--http", &format!("POST {host}/v1/x")]).ok();
        assert_eq!(added.stdout(), "added rule 3\n");
        assert_eq!(ask("POST", "/v1/x"), "200");
        let rules = ironcage(stage, &["net", "rules", &id]).ok().stdout();
        assert!(rules.contains(&format!("live 2   allow  GET {host}/v1/**  (operator)")), "{rules}");
        // Less is: the connection with the request that was allowed ends.
        let removed = ironcage(stage, &["net", "remove", &id, "2"]).ok();
        assert_eq!(removed.stdout(), "removed rule 2; closed 1 open connection\n");
        let mut rest = String::new();
        said.read_to_string(&mut rest).expect("the rest");
        assert_eq!(rest, "end\n");
        assert_eq!((ask("GET", "/v1/x"), ask("POST", "/v1/x")), ("403".into(), "200".into()));
        ironcage(stage, &["stop", &id]).ok();
        let log = server.log();
        assert_eq!(log.lines().count(), 4, "{log}");

        // Where programs know no authority of the cage's, TLS cannot be opened later.
        let id = start(stage, &["--allow-host", &host, "--allow-host", "api.test:80"]);
        let http = format!("GET {host}/v1/**");
        let refused = ironcage(stage, &["net", "allow", &id, "--http", &http]);
        assert!(refused.stderr.contains("start the cage with --network live"), "{refused:?}");
        ironcage(stage, &["net", "allow", &id, "--http", "GET api.test:80/v1/**"]).ok();
        ironcage(stage, &["stop", &id]).ok();
    }

    fn connections_and_requests_are_told_as_they_happen(stage) {
        let web = Web::start(0);
        let port = web.address.port();
        let id = start(stage, &refs(&web.flags("web.test")));
        let mut watching = Running::start(&mut stage.ironcage(["net", "-f", "--json", &id]));
        let told = BufReader::new(watching.stdout());
        let lines = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            for line in told.lines().map_while(Result::ok) {
                let flow: Value = serde_json::from_str(&line).expect("JSON");
                heard.lock().expect("a list").push(flow);
            }
        });
        let get = format!("curl -sS -m 30 'http://web.test:{port}/some/path?secret=1'; curl -sS -m 3 http://other.test/");
        // The watch may begin after the first tries.
        assert!(wait_until(MINUTE, || {
            exec(stage, &id, &get);
            let flows = lines.lock().expect("a list");
            ["opened", "request", "closed", "refused"]
                .iter()
                .all(|step| flows.iter().any(|flow| flow["step"] == *step))
        }));
        let flows = lines.lock().expect("a list").clone();
        let step = |step: &str| flows.iter().find(|flow| flow["step"] == step).unwrap_or_else(|| panic!("no {step} in {flows:?}"));
        assert_eq!(step("opened")["host"], "web.test");
        assert_eq!(step("opened")["rule"], format!("web.test:{port}"));
        assert_eq!(step("request")["request"]["method"], "GET");
        assert_eq!(step("request")["request"]["path"], "/some/path");
        assert_eq!(step("request")["request"]["status"], 200);
        assert!(step("closed")["sent"].as_u64() > Some(0), "{flows:?}");
        assert_eq!(step("refused")["host"], "other.test");
        ironcage(stage, &["stop", &id]).ok();
        assert_eq!(watching.finish(MINUTE).code(), 0);
        reader.join().expect("a reader");
    }

    fn what_goes_out_is_bounded_told_and_recorded(stage) {
        let web = Web::start(0);
        let port = web.address.port();
        let mut flags = web.flags("web.test");
        flags.extend(web.flags("second.test"));
        flags.extend(["--network-limit", "bytes-out-per-host=64K", "--network-limit", "new-hosts-per-minute=1"].map(str::to_owned));
        let id = start(stage, &refs(&flags));
        let get = format!("curl -sS -m 30 http://web.test:{port}/ || echo no");
        let hello = format!("hello web.test:{port}\n");
        assert_eq!(exec(stage, &id, &get).stdout(), hello);
        // More bytes than may go out: the server does not get the end of its line.
        let upload = |bytes: u32| exec(stage, &id, &format!("python3 upload.py web.test {port} {bytes}")).stdout();
        assert_eq!(upload(100), "answered\n");
        assert_eq!(upload(200_000), "no\n");
        // It is another host, and one was new in this minute.
        let second = format!("curl -sS -m 30 http://second.test:{port}/ || echo no");
        assert_eq!(exec(stage, &id, &second).stdout(), "no\n");
        ironcage(stage, &["net", "limit", &id, "new-hosts-per-minute=5", "requests-per-second=1000"]).ok();
        assert_eq!(exec(stage, &id, &second).stdout(), format!("hello second.test:{port}\n"));
        // The body of one request, said before and found out.
        ironcage(stage, &["net", "limit", &id, "body=1K", "bytes-out-per-host=1G"]).ok();
        let said = format!("head -c 2000 /dev/zero | curl -sS -m 30 --data-binary @- -o /dev/null -w '%{{http_code}}' http://web.test:{port}/");
        assert_eq!(exec(stage, &id, &said).stdout(), "413");
        let found = format!("head -c 2000 /dev/zero | curl -sS -m 30 -H 'Transfer-Encoding: chunked' --data-binary @- http://web.test:{port}/ || echo no");
        assert_eq!(exec(stage, &id, &found).stdout(), "no\n");
        let rules = ironcage(stage, &["net", "rules", &id]).ok().stdout();
        assert!(rules.contains("1G out to each host, 5 new hosts a minute, 1K in a body"), "{rules}");
        ironcage(stage, &["stop", &id]).ok();
        let shown = ironcage(stage, &["net", &id]).ok().stdout();
        for reason in ["more than 64K out to this host", "more than 1 new hosts in a minute", "more than 1K in a body"] {
            assert!(shown.contains(reason), "{reason}: {shown}");
        }
        let limits = records(stage, &id).iter().filter(|record| record["event"] == "network-limits").count();
        assert_eq!(limits, 2);
    }

    fn ports_of_cages_are_reached_at_the_hosts_loopback(stage) {
        // Both have the same port inside; the host's ports are any that are free.
        let serve = ["/usr/bin/python3", "-m", "http.server", "--bind", "127.0.0.1", "3000"];
        let served = |text: &str| {
            let directory = stage.project().join(text);
            stage.mkdir(&directory);
            stage.write(directory.join("page"), text);
            let project = directory.display().to_string();
            let mut args = vec!["run", "-q", "-d", "--workspace", &project, "--publish", "0:3000", "--"];
            args.extend(serve);
            ironcage(stage, &args).ok().stdout().trim().to_owned()
        };
        let (one, two) = (served("one"), served("two"));
        let port = |id: &str| {
            let shown = ironcage(stage, &["net", "publish", id]).ok().stdout();
            let port = shown.strip_prefix("127.0.0.1:").and_then(|rest| rest.split(' ').next());
            port.and_then(|port| port.parse::<u16>().ok()).unwrap_or_else(|| panic!("{shown}"))
        };
        let get = |port: u16| {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
            stream.set_read_timeout(Some(MINUTE)).ok()?;
            stream.write_all(b"GET /page HTTP/1.0\r\n\r\n").ok()?;
            let mut text = String::new();
            stream.read_to_string(&mut text).ok()?;
            text.rsplit("\r\n").next().map(str::to_owned)
        };
        // The servers inside may still be starting.
        assert!(wait_until(MINUTE, || get(port(&one)).as_deref() == Some("one")));
        assert!(wait_until(MINUTE, || get(port(&two)).as_deref() == Some("two")));

        // On a running cage, by IPv6 inside, and taken away again.
        let six = ["exec", "-d", &two, "--", "/usr/bin/python3", "-m", "http.server", "--bind", "::1", "3001"];
        ironcage(stage, &six).ok();
        let added = ironcage(stage, &["net", "publish", &two, "0:3001"]).ok().stdout();
        let added: u16 = added
            .strip_prefix("127.0.0.1:")
            .and_then(|rest| rest.split(' ').next())
            .and_then(|port| port.parse().ok())
            .unwrap_or_else(|| panic!("{added}"));
        assert!(wait_until(MINUTE, || get(added).as_deref() == Some("two")));
        ironcage(stage, &["net", "publish", &two, "--remove", &added.to_string()]).ok();
        assert!(wait_until(MINUTE, || std::net::TcpStream::connect(("127.0.0.1", added)).is_err()));
        assert_eq!(get(port(&two)).as_deref(), Some("two"));

        // A port that is taken is named before anything starts.
        let taken = format!("{}:3000", port(&one));
        let refused = stage.run(&["--publish", &taken], &["/bin/true"]);
        assert!(refused.stderr.contains("cannot publish port 3000"), "{refused:?}");
        ironcage(stage, &["stop", &one, &two]).ok();
        let shown = ironcage(stage, &["net", &two]).ok().stdout();
        assert!(shown.contains("rule publish "), "{shown}");
        let ports = records(stage, &two).iter().filter(|record| record["event"] == "published").count();
        assert_eq!(ports, 3);
    }

    fn one_socket_of_the_host_is_reached_and_no_other(stage) {
        let serve = |name: &str| {
            let path = stage.aside().join(name);
            let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
            std::fs::set_permissions(&path, mode).expect("its mode");
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let mut lines = BufReader::new(stream.try_clone().expect("a copy")).lines();
                    if let Some(Ok(line)) = lines.next() {
                        let _ = writeln!(&stream, "got {line}");
                    }
                }
            });
            path.display().to_string()
        };
        let (given, other, docker) = (serve("given"), serve("other"), serve("docker.sock"));
        let script = "import socket, sys\n\
            for path in sys.argv[1:]:\n\
            \x20   s = socket.socket(socket.AF_UNIX); s.settimeout(60)\n\
            \x20   try:\n\
            \x20       s.connect(path); s.sendall(b'hello\\n'); print(s.makefile().readline().strip())\n\
            \x20   except OSError: print('no')\n";
        let ask = |flags: &[&str]| {
            let command = ["/usr/bin/python3", "-c", script, &given, &other, &docker];
            stage.run(flags, &command)
        };
        assert_eq!(ask(&[]).stdout(), "no\nno\nno\n");
        let ran = ask(&["--allow-socket", &given]);
        assert_eq!(ran.stdout(), "got hello\nno\nno\n", "{ran:?}");
        let shown = ironcage(stage, &["net", "last"]).ok().stdout();
        assert!(shown.contains("unix  ") && shown.contains("6 bytes out, 10 in"), "{shown}");
        // What commands the host needs a word more, and is named so.
        let refused = ask(&["--allow-socket", &docker]);
        assert!(refused.stderr.contains("--i-know"), "{refused:?}");
        let ran = ask(&["--allow-socket", &docker, "--i-know"]);
        assert_eq!(ran.stdout(), "no\nno\ngot hello\n", "{ran:?}");
        let plan = ironcage(stage, &["plan", "--all", "--allow-socket", &docker, "--i-know", "--", "true"]).ok().stdout();
        assert!(plan.contains("CONTROLS Docker (root on this host)"), "{plan}");
        // Nothing of it is left where sockets are kept.
        let kept = tree(&stage.run_dir()).into_iter().filter(|path| !path.is_dir()).count();
        assert_eq!(kept, 0);
    }
}

either! {
    fn another_socket_cannot_be_put_in_the_place_of_the_one_that_was_given(stage) {
        let serve = |path: std::path::PathBuf, answer: &'static str| {
            let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
            std::fs::set_permissions(&path, mode).expect("its mode");
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let _ = writeln!(&stream, "{answer}");
                }
            });
            path.display().to_string()
        };
        let run = stage.project().join("run");
        std::fs::create_dir(&run).expect("a directory");
        std::os::unix::fs::chown(&run, Some(stage.uid()), None).expect("the agent's");
        let given = serve(run.join("app.sock"), "given");
        let other = serve(stage.aside().join("other"), "not given");
        let script = "import os, socket, sys\n\
            def ask(path):\n\
            \x20   s = socket.socket(socket.AF_UNIX); s.settimeout(60)\n\
            \x20   s.connect(path); print(s.makefile().readline().strip())\n\
            ask('run/app.sock')\n\
            os.rename('run', 'moved'); os.mkdir('run'); os.symlink(sys.argv[1], 'run/app.sock')\n\
            ask('moved/app.sock')\n";
        let ran = stage.run(
            &[DIRECT[0], DIRECT[1], "--allow-socket", &given],
            &["/usr/bin/python3", "-c", script, &other],
        );
        // The renamed directory leads to the one that was given, wherever it lies.
        assert_eq!(ran.stdout(), "given\ngiven\n", "{ran:?}");
    }
}
