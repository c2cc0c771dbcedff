//! What an agent tries to learn of a secret that it has a placeholder of: by guesses that a server
//! says again, by the encoding of answers, and by going where there is no TLS.

use ironcage_tests::{Stage, TlsWeb, both};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

const VALUE: &str = "sk-Real0Value1Of2The3Token4ABCDEFGHIJ";
const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/echo_tls.py");
const PYTHON: &str = "/usr/bin/python3";

/// A client that sees answers as they come: `shape` is the sizes of their chunks.
const CLIENT: &str = r#"
import os, socket, ssl, sys
token, value = os.environ["TOKEN"], os.environ.get("GUESS", "")
def connect(name, port):
    plain = socket.create_connection((name, port), 60)
    return ssl.create_default_context().wrap_socket(plain, server_hostname=name)
def ask(name, port, request, body=b"", fields=""):
    s = connect(name, port)
    s.sendall(f"{request} HTTP/1.1\r\nHost: {name}:{port}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{fields}\r\n".encode() + body)
    said = b""
    while True:
        part = s.recv(65536)
        if not part: break
        said += part
    head, _, rest = said.partition(b"\r\n\r\n")
    return head, rest
def shape(name, port, *parts):
    body = "\n".join(f"{pause} {text.encode().hex()}" for pause, text in parts).encode()
    _, rest = ask(name, port, "POST /script", body)
    sizes = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        sizes.append(int(size, 16))
        rest = rest[int(size, 16) + 2:]
    return sizes
"#;

fn echo(stage: &Stage, name: &str) -> Option<TlsWeb> {
    TlsWeb::of(stage, name, PYTHON, SERVER)
}

fn python(script: &str) -> String {
    format!("{PYTHON} - <<'END'\n{CLIENT}\n{script}\nEND\n")
}

fn flags(server: &TlsWeb, name: &str) -> Vec<String> {
    let mut flags = server.place(name);
    let host = format!("{name}:{}", server.port);
    flags.extend(["--allow-host".to_owned(), host.clone()]);
    flags.extend(["--secret".to_owned(), format!("TOKEN@{host}")]);
    flags
}

/// The same server without TLS, on the host's loopback.
struct Plain {
    child: Child,
    port: u16,
    log: std::path::PathBuf,
}

impl Plain {
    fn start(stage: &Stage) -> Plain {
        let log = stage.aside().join("plain-log");
        let mut child = Command::new(PYTHON)
            .args([SERVER, "-", "-"])
            .arg(&log)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        output.read_line(&mut line).expect("a line");
        let port = line.trim().parse().expect("a port");
        Plain { child, port, log }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

both! {
    fn a_right_guess_at_a_part_of_a_secret_looks_like_a_wrong_one(stage) {
        let Some(server) = echo(stage, "api.test") else { return };
        let Some(other) = echo(stage, "other.test") else { return };
        let mut given = flags(&server, "api.test");
        given.extend(other.place("other.test"));
        given.extend(["--http-allow".to_owned(), format!("other.test:{}", other.port)]);
        let both = stage.aside().join("both.pem");
        let of = |server: &TlsWeb| std::fs::read(&server.authority).expect("an authority");
        std::fs::write(&both, [of(&server), of(&other)].concat()).expect("a file");
        // The attack as it was: a server says a guess again and pauses. Which chunks come tells
        // whether the proxy holds something back; here the agent is told the right guess.
        let script = python(&format!(r#"
holder, other = ("api.test", {}), ("other.test", {})
def differs(host, length):
    right, wrong = value[:length], value[:length - 1] + "~"
    # In one part or cut, before a pause, at the end, with and without a delimiter, escaped.
    tries = [
        lambda g: [(0, g), (200, " .")],
        lambda g: [(0, "a " + g), (10, g), (200, g), (0, " ")],
        lambda g: [(0, "x" * 5000 + g), (200, g)],
        lambda g: [(0, g.replace("0", "%30")), (200, ".")],
    ]
    return [n for n, t in enumerate(tries) if shape(*host, *t(right)) != shape(*host, *t(wrong))]
def report(when, host):
    found = [(length, differs(host, length)) for length in (1, 7, len(value) - 1)]
    print(when, [one for one in found if one[1]])
report("other", other)
report("before", holder)
head, rest = ask(*holder, "GET /echo", fields=f"Authorization: Bearer {{token}}\r\n")
print("covered", rest.decode() == "Bearer " + "*" * len(value))
report("after", holder)
report("other after", other)
# What is covered is a whole value, where it went, and nowhere else.
print("whole", shape(*holder, (0, value + " "))[:1])
_, rest = ask(*other, "POST /script", ("0 " + value.encode().hex()).encode())
print("elsewhere", value.encode() in rest)
"#, server.port, other.port));
        let both = both.display().to_string();
        let env = [("TOKEN", VALUE), ("SSL_CERT_FILE", both.as_str()), ("GUESS", VALUE)];
        given.extend(["--env".to_owned(), format!("GUESS={VALUE}")]);
        let ran = server.sh_env(stage, &given, &env, &script);
        let whole = VALUE.len() + 1;
        assert_eq!(
            ran.stdout(),
            format!("other []\nbefore []\ncovered True\nafter []\nother after []\nwhole [{whole}]\nelsewhere True\n"),
            "{ran:?}"
        );
    }

    fn an_echo_is_covered_or_refused_whatever_encoding_is_asked_for(stage) {
        let Some(server) = echo(stage, "api.test") else { return };
        let script = python(&format!(r#"
holder = ("api.test", {})
import gzip
def echo(fields, path="/echo"):
    head, rest = ask(*holder, f"GET {{path}}", fields=f"Authorization: Bearer {{token}}\r\n{{fields}}")
    readings = [rest, rest.replace(b"\0", b"")]
    try: readings.append(gzip.decompress(rest))
    except Exception: pass
    for charset in ("utf-7", "cp037"):
        try: readings.append(rest.decode(charset).encode())
        except Exception: pass
    secret = any(b"Real0Value1" in one for one in readings)
    status = head.split(b" ")[1].decode()
    whole = b"*" * 37 in rest.replace(b"\0", b"")
    print(status, "SHOWN" if secret else "covered" if whole else "nothing", fields.strip() or path)
echo("")
echo("Accept-Encoding: gzip\r\n")
echo("Accept_Encoding: gzip\r\n")
echo("Accept-Charset: utf-16\r\n")
echo("Accept: text/plain;charset=utf-16, */*\r\n")
echo("grpc-accept-encoding: gzip\r\n")
echo("Range: bytes=0-20\r\n")
echo("x-ms-range: bytes=0-20\r\n")
echo("", "/echo?as=utf-16")
echo("", "/echo?as=utf-32")
echo("", "/echo?as=utf-7")
echo("", "/echo?as=cp037")
echo("", "/echo?gzip")
"#, server.port));
        let ran = server.sh_env(stage, &flags(&server, "api.test"), &[("TOKEN", VALUE)], &script);
        let lines: Vec<String> = ran.stdout().lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
        let mut wanted = vec!["200 covered"; 10];
        wanted.extend(["502 nothing"; 3]);
        assert_eq!(lines, wanted, "{ran:?}");
        let log = server.log();
        assert_eq!(log.matches(VALUE).count(), 13, "{log}");
    }

    fn without_tls_a_secret_goes_to_a_named_port_of_the_host_and_nowhere_else(stage) {
        let server = Plain::start(stage);
        let port = server.port;
        let run = |hosts: &str, url: &str, more: &[&str]| {
            let mut given = vec!["--allow-host-port".to_owned(), port.to_string()];
            given.extend(["--secret".to_owned(), format!("TOKEN@{hosts}")]);
            given.extend(more.iter().map(|flag| (*flag).to_owned()));
            let given: Vec<&str> = given.iter().map(String::as_str).collect();
            let script = format!("curl -sS -m 60 -H \"Authorization: Bearer $TOKEN\" {url}/echo");
            let mut cage = stage.cage(&given, &["/bin/sh", "-c", &script]);
            cage.env("TOKEN", VALUE);
            ironcage_tests::Running::start(&mut cage).finish(std::time::Duration::from_secs(120))
        };
        let own = format!("http://host.ironcage:{port}");
        let ran = run(&own, &own, &[]);
        assert_eq!(ran.stdout(), format!("Bearer {}", "*".repeat(VALUE.len())), "{ran:?}");
        let log = std::fs::read_to_string(&server.log).expect("a log");
        assert_eq!(log.matches(VALUE).count(), 1, "{log}");
        // Without the word, and for another host, the start says what to write.
        for hosts in [format!("host.ironcage:{port}"), format!("http://api.test:{port}")] {
            let ran = run(&hosts, &own, &[]);
            assert_eq!(ran.code(), 125, "{ran:?}");
            assert!(ran.stderr.contains("http://host.ironcage:PORT"), "{ran:?}");
        }
        // The same server by another name, where a secret needs TLS.
        let place = format!("127.0.0.1:{port}");
        let named = format!("api.test:{port}");
        let more = ["--allow-host", &named, "--allow-host", &place, "--resolve", "api.test=127.0.0.1"];
        let ran = run(&named, &format!("http://{named}"), &more);
        assert!(ran.stdout().contains("\"code\":\"secret-tls-only\""), "{ran:?}");
        let why = stage.ironcage(["why"]).output().expect("why");
        let why = String::from_utf8_lossy(&why.stdout).into_owned();
        assert!(why.contains("https://") && !why.contains("--secret TOKEN@"), "{why}");
        let log = std::fs::read_to_string(&server.log).expect("a log");
        assert_eq!(log.matches(VALUE).count(), 1, "{log}");
    }

    fn a_port_that_the_cage_publishes_gets_no_secret(stage) {
        let port = Plain::start(stage).port;
        // Somebody in the cage listens where the secret goes to, as the service is not there.
        let server = "import http.server, sys\n\
            class Handler(http.server.BaseHTTPRequestHandler):\n\
            \x20   def do_GET(self):\n\
            \x20       self.send_response(200); self.end_headers()\n\
            \x20       self.wfile.write(self.headers.get('Authorization', 'nothing').encode())\n\
            http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()\n";
        stage.write(stage.project().join("server.py"), server);
        let script = format!(
            "{PYTHON} server.py 3000 2> /dev/null & pid=$!\n\
             until curl -s -m 5 http://host.ironcage:{port}/ > /dev/null; do sleep 0.2; done\n\
             curl -sS -m 60 http://host.ironcage:{port}/; echo\n\
             curl -sS -m 60 -H \"Authorization: Bearer $TOKEN\" http://host.ironcage:{port}/; kill $pid\n"
        );
        let (host, ports) = (format!("TOKEN@http://host.ironcage:{port}"), format!("{port}:3000"));
        let port = port.to_string();
        let given = ["--allow-host-port", &port, "--publish", &ports, "--secret", &host];
        let mut cage = stage.cage(&given, &["/bin/sh", "-c", &script]);
        cage.env("TOKEN", VALUE);
        let ran = ironcage_tests::Running::start(&mut cage).finish(std::time::Duration::from_secs(120));
        let out = ran.stdout();
        // Without the secret it is reached, and with it not.
        assert!(out.starts_with("nothing\n"), "{ran:?}");
        assert!(out.contains("this cage publishes that port itself"), "{ran:?}");
    }

    fn a_placeholder_is_the_same_in_each_run_of_a_workspace(stage) {
        let run = |workspace: Option<&str>| {
            let mut given = vec!["--allow-host", "api.test", "--secret", "TOKEN@api.test"];
            given.extend(workspace.into_iter().flat_map(|path| ["--workspace", path]));
            let mut cage = stage.cage(&given, &["/bin/sh", "-c", "echo $TOKEN"]);
            cage.env("TOKEN", VALUE);
            let ran = ironcage_tests::Running::start(&mut cage).finish(std::time::Duration::from_secs(120));
            assert!(ran.stdout().starts_with("ironcage-TOKEN-"), "{ran:?}");
            ran.stdout()
        };
        let first = run(None);
        assert_eq!(run(None), first);
        let other = stage.home().join("other-workspace");
        stage.write(other.join("file"), "x");
        assert_ne!(run(Some(&other.display().to_string())), first);
    }
}
