//! Clients that are slow, endless, half open or split: the egress proxy neither passes what it
//! should not nor falls over, and goes on serving who is in order.
//!
//! Nothing here asserts how long something took; what would hang is ended by the deadlines.

use ironcage_tests::web::{Web, refs};
use ironcage_tests::{TlsWeb, both};

/// Tools for what follows: one request in order, and what a server says to raw bytes.
const TOOLS: &str = r#"
import socket, sys
NAME, PORT = sys.argv[1], int(sys.argv[2])
def dial():
    s = socket.create_connection((NAME, PORT), 60); s.settimeout(60); return s
def rest(s):
    got = b''
    while True:
        try: part = s.recv(65536)
        except OSError: return got
        if not part: return got
        got += part
def good():
    s = dial(); s.sendall(f'GET / HTTP/1.1\r\nHost: {NAME}:{PORT}\r\nConnection: close\r\n\r\n'.encode())
    got = b''
    while b'hello' not in got:
        part = s.recv(4096)
        if not part: break
        got += part
    return got.split(b' ')[1].decode() if got else 'nothing'
def send(s, parts):
    try:
        for part in parts: s.sendall(part)
        return True
    except OSError: return False
"#;

both! {
    fn endless_slow_and_half_open_clients_are_refused_or_waited_for_and_nobody_else_is(stage) {
        let web = Web::start(0);
        let port = web.address.port();
        let script = format!("{TOOLS}{}", r#"
head = f'GET / HTTP/1.1\r\nHost: {NAME}:{PORT}\r\n'.encode()
def status(parts):
    s = dial(); send(s, parts)
    got = rest(s)
    return got.split(b'\r\n')[0].decode()[:12] or 'closed'
# One field without an end, then fields without an end, then a target without one.
print(status([head, b'X: ', *[b'y' * 65536] * 64]))
print(status([head, *[b'X-Field: value\r\n' * 4096] * 64]))
print(status([b'GET /', *[b'z' * 65536] * 64]))
# Slow ones: a head that comes byte by byte and is never whole. They are held while others are served.
slow = [dial() for _ in range(50)]
for number in range(3):
    for s in slow: send(s, [head[number:number + 1]])
    print(good())
# Half open: the client has said all that it will, which is half of a request; or nothing.
for parts in ([head], []):
    s = dial(); send(s, parts); s.shutdown(socket.SHUT_WR)
    print(rest(s)[:12] in (b'', b'HTTP/1.1 400'))
# Gone in the middle of a body.
s = dial(); send(s, [b'POST / HTTP/1.1\r\nHost: %b:%d\r\nContent-Length: 1000000\r\n\r\nx' % (NAME.encode(), PORT)]); s.close()
print(good())
"#);
        stage.write(stage.project().join("clients.py"), script);
        let flags = web.flags("web.test");
        let ran = stage.run(&refs(&flags), &["/usr/bin/python3", "clients.py", "web.test", &port.to_string()]);
        let out = ran.stdout();
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 9, "{ran:?}");
        for refused in &lines[..3] {
            // What was being sent when the proxy closed may take its answer along.
            assert!(["HTTP/1.1 400", "HTTP/1.1 431", "closed"].contains(refused), "{ran:?}");
        }
        assert_eq!(lines[3..], ["200", "200", "200", "True", "True", "200"], "{ran:?}");
        // Four that were in order, and one whose body never came whole.
        let own = format!("web.test:{port}");
        let heard = web.heard();
        assert!((4..=5).contains(&heard.len()) && heard.iter().all(|host| *host == own), "{heard:?}");
    }

    fn a_first_message_of_tls_in_pieces_is_put_together(stage) {
        let Some(server) = TlsWeb::start(stage, "web.test") else { return };
        let port = server.port;
        // By hand, so that each record has one byte of the message, and each segment one of those.
        let script = format!("{TOOLS}{}", r#"
import ssl
def attempt(name):
    context = ssl._create_unverified_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    try: tls.do_handshake()
    except ssl.SSLWantReadError: pass
    record = outgoing.read()
    message = record[5:]
    s = dial(); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        for at in range(0, len(message), 40):
            part = message[at:at + 40]
            s.sendall(record[:3] + len(part).to_bytes(2, 'big') + part)
        return s.recv(1)[0]
    except OSError: return 0
# 22 is the server's handshake, 21 an alert.
print(attempt(NAME), attempt('other.test') in (0, 21))
"#);
        stage.write(stage.project().join("pieces.py"), script);
        let mut flags = server.place("web.test");
        flags.extend(["--allow-host".to_owned(), format!("web.test:{port}")]);
        let ran = stage.run(&refs(&flags), &["/usr/bin/python3", "pieces.py", "web.test", &port.to_string()]);
        assert_eq!(ran.stdout(), "22 True\n", "{ran:?}");
    }
}
