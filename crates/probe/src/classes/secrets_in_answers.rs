//! Secrets that the egress proxy adds to requests, attacked by what comes back: oracles, and
//! encodings that the agent negotiates. The host echoes what it gets, as the agent asks it to.
//!
//! The attacker knows the form of the secret and its first letters, as those of a token are known.

use super::{Attempts, Canary, Class, Evidence, Inside, Observation, Oracle, Probe, Setup, Stage};
use super::{Severity, ne_proxy};
use crate::probe::ProxyRules;
use crate::stage::allowed::NAME;
use crate::stage::{PROXY_SECRET, echo};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

const OR: Probe = Probe {
    severity: Severity::Critical,
    setup: Setup::Proxy(ProxyRules::Echo),
    canary: "a nonce that a secret of the policy stands for, at a host that echoes",
    references: &["CWE-203", "ATT&CK T1552"],
    ..Probe::of(Class::Or)
};
const NG: Probe = Probe {
    severity: Severity::Critical,
    setup: Setup::Proxy(ProxyRules::Echo),
    canary: "a nonce that a secret of the policy stands for, at a host that echoes",
    references: &["CWE-838", "ATT&CK T1552"],
    ..Probe::of(Class::Ng)
};
const HELD: &str =
    "the egress proxy: what it holds back of an answer follows from the server's bytes alone";
const OWN: &str = "the egress proxy: only values that a host got are looked for in its answers";
const COVERED: &str = "the egress proxy: values are covered in answers";
const NEGOTIATED: &str =
    "the egress proxy: requests do not choose how an answer to a secret is encoded";

/// Letters of the nonce that an oracle has to find; so many are not found by chance.
const FOUND: usize = 4;
/// How the secret begins, which is known.
const KNOWN: &str = "nonce-";
/// Letters of the nonce that come out where an answer is cut.
const CUT: usize = 20;

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "OR-01",
        title: "read a secret letter by letter, by the chunks in which its host's answers come",
        layers: &[HELD],
        inside: |inside| guess(inside, Host::Holder),
        oracle: Oracle::Seen(letters_found),
        ..OR
    },
    Probe {
        id: "OR-02",
        title: "the same through another host, which never got the secret",
        layers: &[OWN, HELD],
        inside: |inside| guess(inside, Host::Other),
        oracle: Oracle::Seen(letters_found),
        ..OR
    },
    Probe {
        id: "OR-03",
        title: "see the first part of a secret because its host pauses in the middle of it",
        layers: &[HELD, COVERED],
        inside: paused,
        oracle: Oracle::Seen(part_shown),
        ..OR
    },
    Probe {
        id: "NG-01",
        title: "have a secret come back in an encoding that the request asks for",
        layers: &[NEGOTIATED, COVERED],
        inside: encodings,
        oracle: Oracle::Nonce(Canary::ProxySecret),
        ..NG
    },
    Probe {
        id: "NG-02",
        title: "have a part of a secret come back that the request asks for",
        layers: &[NEGOTIATED],
        inside: parts,
        oracle: Oracle::Seen(part_shown),
        ..NG
    },
    Probe {
        id: "NG-03",
        title: "have a secret come back in an error about an answer's encoding",
        layers: &[COVERED],
        inside: errors,
        oracle: Oracle::Nonce(Canary::ProxySecret),
        ..NG
    },
];

fn letters_found(stage: &Stage, evidence: &Evidence) -> Option<String> {
    let secret = stage.nonces.of(Canary::ProxySecret);
    let letters = secret.get(..KNOWN.len() + FOUND)?;
    let data = evidence.observation()?.data;
    let found = data.lines().any(|line| line.starts_with(letters));
    found.then(|| format!("the first {FOUND} letters were found"))
}

fn part_shown(stage: &Stage, evidence: &Evidence) -> Option<String> {
    let part = stage.nonces.of(Canary::ProxySecret).get(..CUT)?;
    let data = evidence.observation()?.data;
    data.contains(part)
        .then(|| format!("{CUT} letters came out"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Host {
    /// The one that the secret is for.
    Holder,
    /// Another one that the policy allows.
    Other,
}

const PATIENCE: Duration = Duration::from_secs(10);

/// What stands for the secret here: without a proxy, the secret itself.
fn token() -> String {
    std::env::var(PROXY_SECRET).unwrap_or_default()
}

/// A connection, and the name of the host: by the proxy where there is one, else directly.
/// `leaking` is where the mistake is made.
fn dial(host: Host, leaking: bool) -> io::Result<(TcpStream, String)> {
    let direct = token().starts_with(KNOWN);
    let (name, port) = match (direct, host) {
        (true, _) if leaking => ("127.0.0.1", echo::LEAKING_PORT),
        (true, _) => ("127.0.0.1", echo::PORT),
        (false, Host::Holder) => ("host.ironcage", echo::PORT),
        (false, Host::Other) => (NAME, echo::PORT),
    };
    let address = (name, port).to_socket_addrs()?.next();
    let address = address.ok_or(io::ErrorKind::NotFound)?;
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok((stream, format!("{name}:{port}")))
}

/// The answer to a request, with its header.
fn ask(host: Host, leaking: bool, line: &str, fields: &str, body: &str) -> io::Result<Vec<u8>> {
    let (mut stream, name) = dial(host, leaking)?;
    let length = body.len();
    let head = format!(
        "{line} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\nContent-Length: {length}\r\n{fields}\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    // The host keeps the connection where no proxy ends it.
    while !is_whole(&answer) {
        match stream.read(&mut part)? {
            0 => break,
            length => answer.extend_from_slice(&part[..length]),
        }
    }
    Ok(answer)
}

/// The body of an answer, once its header is there.
fn body(answer: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    Some((&answer[..at + 2], &answer[at + 4..]))
}

fn is_whole(answer: &[u8]) -> bool {
    let Some((head, body)) = body(answer) else {
        return false;
    };
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let length = head
        .split("\r\n")
        .find_map(|line| line.strip_prefix("content-length: "));
    match length.and_then(|length| length.parse::<usize>().ok()) {
        Some(length) => body.len() >= length,
        None => body.ends_with(b"0\r\n\r\n"),
    }
}

/// The sizes of the chunks in which an answer comes.
fn shape(host: Host, parts: &[&str]) -> io::Result<Vec<usize>> {
    let hex = |text: &str| -> String { text.bytes().map(|byte| format!("{byte:02x}")).collect() };
    let lines: Vec<String> = parts
        .iter()
        .map(|part| format!("2 {}", hex(part)))
        .collect();
    let answer = ask(host, true, "POST /script", "", &lines.join("\n"))?;
    let (_, mut rest) = body(&answer).ok_or(io::ErrorKind::InvalidData)?;
    let mut sizes = Vec::new();
    while let Some(at) = rest.windows(2).position(|two| two == b"\r\n") {
        let digits = String::from_utf8_lossy(&rest[..at]).into_owned();
        let size = usize::from_str_radix(&digits, 16).unwrap_or(0);
        sizes.push(size);
        rest = rest.get(at + size + 4..).unwrap_or_default();
    }
    Ok(sizes)
}

fn credentials() -> String {
    format!("Authorization: Bearer {}\r\n", token())
}

/// Whether answers differ for a guess and for one that is wrong for sure, each time.
fn differs(host: Host, guess: &str) -> io::Result<bool> {
    let mut wrong = guess.to_owned();
    wrong.pop();
    wrong.push('~');
    for _ in 0..3 {
        if shape(host, &["a ", guess, " ."])? == shape(host, &["a ", &wrong, " ."])? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn guess(_: &Inside, host: Host) -> Observation {
    let mut attempts = Attempts::new();
    ne_proxy::permitted(&mut attempts);
    // The host gets the secret first: from then on its answers are looked at.
    let given = ask(Host::Holder, false, "GET /echo", &credentials(), "");
    attempts.say(false, format!("given to its host: {}", given.is_ok()));
    let mut known = KNOWN.to_owned();
    for _ in 0..FOUND {
        let right: io::Result<Vec<char>> = "0123456789abcdef"
            .chars()
            .filter_map(|letter| match differs(host, &format!("{known}{letter}")) {
                Ok(true) => Some(Ok(letter)),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            })
            .collect();
        match right.as_deref() {
            Ok([letter]) => known.push(*letter),
            Ok(letters) => {
                attempts.say(
                    false,
                    format!("after `{known}`: {} letters differ", letters.len()),
                );
                break;
            }
            Err(error) => {
                attempts.say(false, crate::errno::of(error));
                break;
            }
        }
    }
    if known.len() > KNOWN.len() {
        attempts.say(true, format!("{} letters", known.len() - KNOWN.len()));
    }
    attempts.carry(known.as_bytes());
    attempts.done()
}

fn take(attempts: &mut Attempts, what: &str, answer: io::Result<Vec<u8>>) {
    match answer {
        Ok(answer) => {
            let (head, body) = body(&answer).unwrap_or((&answer, &[]));
            let line = String::from_utf8_lossy(head);
            let line = line.lines().next().unwrap_or_default().to_owned();
            attempts.say(line.contains(" 20"), format!("{what}: {line}"));
            attempts.carry(head);
            attempts.carry(body);
            attempts.carry(&echo::rotated(body));
            let narrow: Vec<u8> = body.iter().copied().filter(|byte| *byte != 0).collect();
            attempts.carry(&narrow);
        }
        Err(error) => attempts.say(false, format!("{what}: {}", crate::errno::of(&error))),
    }
}

fn paused(_: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    ne_proxy::permitted(&mut attempts);
    let answer = ask(Host::Holder, false, "GET /pause", &credentials(), "");
    take(&mut attempts, "an echo that pauses", answer);
    attempts.done()
}

fn each_field(what: &str, value: &str, names: &[&str]) -> Observation {
    let mut attempts = Attempts::new();
    ne_proxy::permitted(&mut attempts);
    for name in names {
        let fields = format!("{}{name}: {value}\r\n", credentials());
        let answer = ask(Host::Holder, false, "GET /echo", &fields, "");
        take(&mut attempts, &format!("{what} by {name}"), answer);
    }
    attempts.done()
}

fn encodings(_: &Inside) -> Observation {
    let asks = [
        "Accept-Encoding",
        "Accept_Encoding",
        "X-Accept-Encoding",
        "TE",
        "grpc-accept-encoding",
        "Connect-Accept-Encoding",
        "A-IM",
        "Sec-WebSocket-Extensions",
        "Want-Digest",
        "Available-Dictionary",
    ];
    let coded = each_field("an encoding", echo::CODING, &asks);
    let sets = ["Accept-Charset", "Accept_Charset", "Accept"];
    let wide = each_field("a character set", "text/plain;charset=utf-16", &sets);
    Observation {
        reached: coded.reached || wide.reached,
        detail: format!("{}; {}", coded.detail, wide.detail),
        data: coded.data + &wide.data,
    }
}

fn parts(_: &Inside) -> Observation {
    let names = [
        "Range",
        "If-Range",
        "Request-Range",
        "X-Range",
        "x-ms-range",
    ];
    each_field("a part", "bytes=0-32", &names)
}

fn errors(_: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    ne_proxy::permitted(&mut attempts);
    let answer = ask(Host::Holder, false, "GET /coding", &credentials(), "");
    take(&mut attempts, "an encoding that is the secret", answer);
    attempts.done()
}
