//! Rules over requests: TLS is opened with an authority of the cage's own, programs as they
//! are find it, and every request is decided, whichever version of HTTP carries it.

use ironcage_tests::{Stage, TlsWeb, either};

fn flags(server: &TlsWeb, rules: &[&str]) -> Vec<String> {
    let mut flags = server.place("api.test");
    for rule in rules {
        let rule = rule.replace("api.test", &format!("api.test:{}", server.port));
        flags.extend(["--http-allow".to_owned(), rule]);
    }
    flags
}

/// What the record says of the last cage's network.
fn told(stage: &Stage) -> String {
    let told = stage.ironcage(["net"]).output().expect("net");
    String::from_utf8_lossy(&told.stdout).into_owned()
}

/// A client in Python: its own TLS towards api.test, a few functions for the scripts below.
const CLIENT: &str = r#"
import os, socket, ssl, sys
port = int(os.environ["PORT"])
def tls(name="api.test", alpn=None):
    context = ssl.create_default_context()
    if alpn: context.set_alpn_protocols(alpn)
    return context.wrap_socket(socket.create_connection(("api.test", port), 60), server_hostname=name)
def talk(text, stream=None):
    stream = stream or tls()
    stream.sendall(text.replace("\n", "\r\n").encode())
    said = b""
    while True:
        try: part = stream.recv(65536)
        except (ConnectionResetError, ssl.SSLEOFError): break
        if not part: break
        said += part
    return said.decode(errors="replace")
HOST = f"Host: api.test:{port}\n"
"#;

fn python(server: &TlsWeb, script: &str) -> String {
    format!(
        "export PORT={}; /usr/bin/python3 - <<'END'\n{CLIENT}\n{script}\nEND\n",
        server.port
    )
}

either! {
    fn programs_trust_the_cages_authority_and_rules_hold(stage) {
        let Some(server) = TlsWeb::start(stage, "api.test") else { return };
        let port = server.port;
        let script = format!(
            "set -e; u=https://api.test:{port}/v1\n\
             curl -sS -m 60 --http1.1 $u/curl1\n\
             curl -sS -m 60 --http2 $u/curl2\n\
             wget -q -O - -T 60 $u/wget\n\
             /usr/bin/python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=60).read().decode(), end=\"\")' $u/python\n\
             node -e 'fetch(process.argv[1]).then(r => r.text()).then(t => process.stdout.write(t))' $u/node\n\
             for header in -X\\ POST -X\\ DELETE; do curl -sS -m 60 $header $u/x; done\n\
             curl -sS -m 60 https://api.test:{port}/admin\n\
             curl -sS -m 60 --path-as-is https://api.test:{port}/v1/../admin\n\
             curl -sS -m 60 --http1.1 -w '%{{http_code}}\\n' https://api.test:{port}/v1/%2e%2e/admin\n"
        );
        let ran = server.sh(stage, &flags(&server, &["GET,HEAD api.test/v1/**"]), &script);
        let out = ran.stdout();
        for (version, path) in [("1.1", "curl1"), ("2.0", "curl2"), ("1.1", "wget"), ("1.1", "python"), ("1.1", "node")] {
            let line = format!(r#"{{"version":"{version}","method":"GET","url":"/v1/{path}","length":0}}"#);
            assert!(out.contains(&line), "{path}: {ran:?}");
        }
        assert!(out.contains("no rule allows POST /v1/x here"), "{ran:?}");
        assert!(out.contains("no rule allows DELETE /v1/x here"), "{ran:?}");
        assert!(out.contains("no rule allows GET /admin here"), "{ran:?}");
        assert_eq!(out.matches("\"http-request-not-allowed\"").count(), 3, "{ran:?}");
        assert_eq!(out.matches("\"http-path-ambiguous\"").count(), 2, "{ran:?}");
        assert!(out.ends_with("403\n"), "{ran:?}");
        let log = server.log();
        assert_eq!(log.lines().count(), 5, "{log}");
        let told = told(stage);
        assert!(told.contains(&format!("allowed  https  api.test:{port} GET /v1/curl2 200")), "{told}");
        assert!(told.contains(&format!("to allow it:     --http-allow 'POST api.test:{port}/v1/x'")), "{told}");
    }

    fn every_version_streams_and_what_follows_a_body_comes_too(stage) {
        let Some(server) = TlsWeb::start(stage, "api.test") else { return };
        let port = server.port;
        let script = format!(
            "set -e; u=https://api.test:{port}\n\
             head -c 16777216 /dev/zero > body\n\
             for v in --http1.1 --http2; do\n\
             curl -sS -m 120 $v --data-binary @body -D head $u/large | wc -c; grep -i x-length head | tr -d '\\r'\n\
             curl -sSN -m 60 $v $u/events\n\
             done\n\
             curl -sS -m 60 --http2 -D - -o message $u/unary | grep -i grpc | tr -d '\\r'; od -An -tx1 message\n"
        );
        let ran = server.sh(stage, &flags(&server, &["api.test"]), &script);
        let one = "16777216\nx-length: 16777216\ndata: event 1\n\ndata: event 2\n\ndata: event 3\n\n";
        assert_eq!(
            ran.stdout(),
            format!("{one}{one}content-type: application/grpc\ngrpc-status: 0\n 00 00 00 00 02 08 01\n"),
            "{ran:?}"
        );
        let web_socket = python(&server, r#"
s = tls()
s.sendall((f"GET /socket HTTP/1.1\n{HOST}Connection: Upgrade\nUpgrade: websocket\n"
           "Sec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n\n").replace("\n", "\r\n").encode())
said = b""
while b"\r\n\r\n" not in said: said += s.recv(1)
print(said.split(b"\r\n")[0].decode(), b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in said)
s.sendall(bytes([0x81, 0x85, 1, 2, 3, 4]) + bytes(b ^ m for b, m in zip(b"hello", [1, 2, 3, 4, 1])))
got = b""
while len(got) < 7: got += s.recv(100)
print(got[2:].decode())
"#);
        let ran = server.sh(stage, &flags(&server, &["GET api.test/socket"]), &web_socket);
        assert_eq!(ran.stdout(), "HTTP/1.1 101 Switching Protocols True\nhello\n", "{ran:?}");
    }

    fn what_could_be_read_in_two_ways_or_is_for_another_is_refused(stage) {
        let Some(server) = TlsWeb::start(stage, "api.test") else { return };
        let script = python(&server, r#"
def status(text): return talk(text).split("\r\n")[0]
GET = "GET /v1/x HTTP/1.1\n"
print(status(f"{GET}{HOST}Connection: close\n\n"))
print("other host", status(f"{GET}Host: other.test\n\n"))
print("absolute", status(f"GET https://other.test/v1/x HTTP/1.1\n{HOST}\n"))
print("both lengths", status(f"POST /v1/x HTTP/1.1\n{HOST}Content-Length: 4\nTransfer-Encoding: chunked\n\n0\n\n"))
print("folded", status(f"{GET}{HOST}X: a\n b\n\n"))
print("long", status(f"{GET}{HOST}X: {'a' * 70000}\n\n"))
print("override", status(f"{GET}{HOST}X-HTTP-Method-Override: DELETE\n\n"))
second = talk(f"{GET}{HOST}\nGET /secret HTTP/1.1\n{HOST}\n")
import re
print("second", re.findall("HTTP/1.1 ... [A-Z]\\w+", second))
print("chunk", "200" in status(f"POST /v1/x HTTP/1.1\n{HOST}Transfer-Encoding: chunked\n\n-1\nx\n0\n\n"))
for name in ["other.test", None]:
    try:
        context = ssl._create_unverified_context()
        s = socket.create_connection(("api.test", port), 60)
        context.wrap_socket(s, server_hostname=name)
        print("connected")
    except ssl.SSLError as error: print(error.reason)
s = socket.create_connection(("api.test", port), 60)
try:
    s.sendall(b"SSH-2.0-x\r\n")
    print("raw", s.recv(10))
except ConnectionResetError: print("raw reset")
"#);
        let ran = server.sh(stage, &flags(&server, &["GET,POST api.test/v1/**"]), &script);
        assert_eq!(
            ran.stdout(),
            "HTTP/1.1 200 OK\n\
             other host HTTP/1.1 403 Forbidden\n\
             absolute HTTP/1.1 403 Forbidden\n\
             both lengths HTTP/1.1 400 Bad Request\n\
             folded HTTP/1.1 400 Bad Request\n\
             long HTTP/1.1 431 Request Header Fields Too Large\n\
             override HTTP/1.1 403 Forbidden\n\
             second ['HTTP/1.1 200 OK', 'HTTP/1.1 403 Forbidden']\n\
             chunk False\n\
             TLSV1_ALERT_ACCESS_DENIED\n\
             TLSV1_ALERT_ACCESS_DENIED\n\
             raw reset\n",
            "{ran:?}"
        );
        let log = server.log();
        assert!(!log.contains("secret") && !log.contains("other"), "{log}");
        let told = told(stage);
        assert!(told.contains("the request is for other.test, the connection for api.test"), "{told}");
        assert!(told.contains("this is TLS for other.test"), "{told}");
    }

    fn an_authority_is_made_only_where_a_rule_needs_it_and_servers_are_verified(stage) {
        let Some(server) = TlsWeb::start(stage, "api.test") else { return };
        let port = server.port;
        let look = "ls /run/ironcage; env | grep -c /run/ironcage; openssl x509 -noout -subject -in /run/ironcage/authority.pem; grep -c BEGIN /run/ironcage/authority.pem";
        let place = server.place("api.test");
        let place: Vec<&str> = place.iter().map(String::as_str).collect();
        let ran = stage.sh_with(&place, look);
        assert_eq!(ran.stdout(), "0\n", "{ran:?}");
        // An authority of the caller's own is passed on, and none is made beside it.
        let ran = server.sh(stage, &server.place("api.test"), look);
        assert!(ran.stdout().ends_with("subject=CN = authority of the test\n1\n"), "{ran:?}");
        let ask = format!("{look}; grep -rl PRIVATE /run /etc/ssl/certs/ca-certificates.crt; curl -sS -m 60 https://api.test:{port}/");
        let given = flags(&server, &["api.test"]);
        let out = server.sh(stage, &given, &ask).stdout();
        assert!(out.starts_with("authorities.jks\nauthorities.pem\nauthority.pem\n9\nsubject="), "{out}");
        assert!(out.contains("authority of the test\n2\n"), "the cage's own beside the caller's: {out}");
        assert!(out.contains(r#""method":"GET""#) && !out.contains("PRIVATE"), "{out}");
        // Another cage has another authority.
        let again = "cat /run/ironcage/authority.pem";
        let first = server.sh(stage, &given, again).stdout();
        assert!(first.contains("BEGIN CERTIFICATE"), "{first}");
        assert_ne!(first, server.sh(stage, &given, again).stdout());
        // Who does not trust the server's authority gets nothing from it, and is told so.
        let flags: Vec<&str> = given.iter().map(String::as_str).collect();
        let ran = stage.sh_with(&flags, &format!("curl -sS -m 60 https://api.test:{port}/"));
        assert!(ran.stdout().contains("\"code\":\"tls-unknown-issuer\""), "{ran:?}");
    }

    fn a_name_at_the_server_of_another_is_held_to_itself(stage) {
        let Some(server) = TlsWeb::start(stage, "*.example.test") else { return };
        let port = server.port;
        let mut flags = server.place("other.example.test");
        flags.extend(["--resolve", "api.example.test=127.0.0.1", "--allow-host"].map(str::to_owned));
        flags.push(format!("other.example.test:{port}"));
        let script = format!(
            "u=https://other.example.test:{port}; w='%{{http_code}}\\n'; o='-sS -m 60 -o /dev/null'\n\
             for v in --http1.1 --http2; do\n\
             curl $o $v -w \"$w\" -X DELETE $u/own\n\
             curl $o $v -w \"$w\" -X DELETE -H 'Host: api.example.test:{port}' $u/fronted\n\
             done\n"
        );
        flags.extend(["--http-allow".to_owned(), format!("GET api.example.test:{port}/pub/**")]);
        let ran = server.sh(stage, &flags, &script);
        assert_eq!(ran.stdout(), "200\n403\n200\n403\n", "{ran:?}");
        let log = server.log();
        assert!(log.contains("/own") && !log.contains("/fronted"), "{log}");
    }

    fn what_goes_out_in_opened_requests_is_bounded(stage) {
        let Some(server) = TlsWeb::start(stage, "api.test") else { return };
        let port = server.port;
        let limited = |limits: &[&str]| {
            let mut flags = flags(&server, &["api.test"]);
            flags.extend(limits.iter().flat_map(|limit| ["--network-limit".to_owned(), (*limit).to_owned()]));
            flags
        };
        // The length that is said, and the one that is found out; exactly the limit still goes.
        let script = format!(
            "u=https://api.test:{port}/echo; w='%{{http_code}} '\n\
             head -c 4096 /dev/zero > most; head -c 4097 /dev/zero > more\n\
             for v in --http1.1 --http2; do for f in most more; do\n\
             curl -sS -m 60 $v -o /dev/null -w \"$w\" --data-binary @$f $u\n\
             curl -sS -m 60 $v -o /dev/null -w \"$w\" -H 'Transfer-Encoding: chunked' -T - $u < $f 2>/dev/null || echo stopped\n\
             done; done\n"
        );
        let ran = server.sh(stage, &limited(&["body=4K"]), &script);
        let one = "200 200 413 ";
        let out = ran.stdout();
        assert!(out.starts_with(one) && out.matches(one).count() == 2, "{ran:?}");
        let log = server.log();
        assert_eq!(log.lines().filter(|line| line.contains("\"content-length\":\"4097\"")).count(), 0, "{log}");
        assert!(told(stage).contains("more than 4K in a body"), "{ran:?}");

        // Bytes in total: what is over the bound does not arrive, whichever version carries it.
        for version in ["--http1.1", "--http2"] {
            let script = format!(
                "u=https://api.test:{port}/echo; head -c 1000 /dev/zero > few; head -c 200000 /dev/zero > many\n\
                 curl -sS -m 60 {version} --data-binary @few $u | grep -o '\"length\":1000'\n\
                 curl -sS -m 60 {version} --data-binary @many $u 2>/dev/null | grep -c '\"length\":200000'\n"
            );
            let ran = server.sh(stage, &limited(&["bytes-out=64K"]), &script);
            assert_eq!(ran.stdout(), "\"length\":1000\n0\n", "{version}: {ran:?}");
            let told = told(stage);
            assert!(told.contains("more than 64K out"), "{told}");
        }

        // Requests a second, on one connection and on many: some go, and not all at once.
        let script = python(&server, r#"
import http.client
def ask(connection):
    connection.request("GET", "/echo")
    answer = connection.getresponse(); answer.read()
    return answer.status
connection = http.client.HTTPSConnection("api.test", port, timeout=60)
first = last = ask(connection)
for _ in range(2000):
    if last == 429: break
    # Too many connections are reset, and this one ends with an answer of 429.
    try: last = ask(connection)
    except (OSError, http.client.HTTPException): connection.close()
print(first, last)
"#);
        let ran = server.sh(stage, &limited(&["requests-per-second=1"]), &script);
        assert_eq!(ran.stdout(), "200 429\n", "{ran:?}");
        assert!(told(stage).contains("more than 1 requests a second"), "{ran:?}");

        // Connections at once.
        let script = python(&server, r#"
import time
first = tls(); second = None
try: second = tls()
except OSError: pass
print("second" if second else "refused")
first.close()
for _ in range(600):
    try: tls(); print("again"); break
    except OSError: time.sleep(0.1)
"#);
        let ran = server.sh(stage, &limited(&["connections=1"]), &script);
        assert_eq!(ran.stdout(), "refused\nagain\n", "{ran:?}");
        assert!(told(stage).contains("more than 1 connections at once"), "{ran:?}");
    }
}
