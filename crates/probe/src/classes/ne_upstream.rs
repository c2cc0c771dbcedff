//! The upstream proxy of the user's network, attacked from a cage that uses it without knowing.
//! It leads to every host, and has a password.

use super::hello::{hello, server_names};
use super::ne_proxy::{dial, permitted};
use super::{Attempts, Canary, Channel, Class, Observation, Oracle, Probe, Setup, Severity};
use crate::probe::ProxyRules;
use crate::stage::allowed::NAME;
use crate::stage::upstream::PORT;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

const UPSTREAM: Probe = Probe {
    severity: Severity::Critical,
    setup: Setup::Proxy(ProxyRules::Upstream),
    ..Probe::of(Class::Ne)
};

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "NE-28",
        title: "reach any host by the upstream proxy of the user's network, whose port is allowed",
        canary: "an upstream proxy on the host's loopback, which notes what it is asked for",
        layers: &["the egress proxy: the upstream proxy itself is refused by name and address"],
        references: &["CWE-441", "ATT&CK T1090"],
        inside: |_| ask_each(),
        oracle: Oracle::Hit(Channel::Upstream),
        ..UPSTREAM
    },
    Probe {
        id: "NE-29",
        title: "read the password of the upstream proxy, also in its own error pages",
        canary: "a nonce, the password in the user's environment",
        layers: &[
            "the environment is an allow-list",
            "the egress proxy: no answer of the upstream proxy itself is passed on",
        ],
        references: &["CWE-522", "ATT&CK T1552"],
        inside: |_| read_password(),
        oracle: Oracle::Nonce(Canary::UpstreamPassword),
        ..UPSTREAM
    },
];

const PATIENCE: Duration = Duration::from_secs(10);
/// For answers that should not come.
const ANSWER: Duration = Duration::from_millis(700);
const HIDDEN: &str = "hidden.test";

fn requests() -> [(&'static str, String); 4] {
    [
        (
            "CONNECT",
            format!("CONNECT {HIDDEN}:80 HTTP/1.1\r\nHost: {HIDDEN}:80\r\n\r\n"),
        ),
        (
            "a whole URL",
            format!("GET http://{HIDDEN}/ HTTP/1.1\r\nHost: {HIDDEN}\r\n\r\n"),
        ),
        (
            "a whole URL for the proxy itself",
            format!("GET http://{HIDDEN}/ HTTP/1.1\r\nHost: host.ironcage:{PORT}\r\n\r\n"),
        ),
        (
            "TRACE",
            format!("TRACE http://{HIDDEN}/ HTTP/1.1\r\nHost: {HIDDEN}\r\nMax-Forwards: 0\r\n\r\n"),
        ),
    ]
}

/// What comes back within a moment.
fn hear(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(ANSWER))?;
    let mut answer = vec![0; 16 << 10];
    let length = stream.read(&mut answer)?;
    answer.truncate(length);
    Ok(answer)
}

fn tell(attempts: &mut Attempts, what: &str, answer: io::Result<Vec<u8>>) {
    match answer {
        Ok(answer) => {
            let text = String::from_utf8_lossy(&answer);
            let line = text.lines().next().unwrap_or_default();
            // A refusal of the sandbox's own is not an answer of the upstream proxy.
            let through = text.contains(HIDDEN) && !text.contains("x-ironcage");
            attempts.say(through, format!("{what}: {line}"));
            attempts.carry(&answer);
        }
        Err(error) => attempts.say(false, format!("{what}: {}", crate::errno::of(&error))),
    }
}

fn ask_each() -> Observation {
    let mut attempts = Attempts::new();
    permitted(&mut attempts);
    let loopback = Ipv4Addr::LOCALHOST;
    let mut ends: Vec<SocketAddr> = [
        IpAddr::from(loopback),
        Ipv4Addr::new(127, 0, 0, 2).into(),
        Ipv4Addr::UNSPECIFIED.into(),
        Ipv6Addr::LOCALHOST.into(),
        loopback.to_ipv6_mapped().into(),
    ]
    .map(|address| SocketAddr::new(address, PORT))
    .into();
    for name in ["host.ironcage", "HOST.ironcage.", "localhost", NAME] {
        let found = (name, PORT).to_socket_addrs();
        ends.extend(found.into_iter().flatten());
    }
    ends.sort();
    ends.dedup();
    for (what, message) in &requests() {
        for end in &ends {
            let said = TcpStream::connect_timeout(end, PATIENCE).and_then(|mut stream| {
                stream.write_all(message.as_bytes())?;
                hear(&mut stream)
            });
            tell(&mut attempts, &format!("{what} at {end}"), said);
        }
        // On a connection to the host that is allowed.
        let said = dial(80).and_then(|mut stream| {
            stream.write_all(message.as_bytes())?;
            hear(&mut stream)
        });
        tell(&mut attempts, &format!("{what} at {NAME}"), said);
    }
    attempts.done()
}

fn read_password() -> Observation {
    let mut attempts = Attempts::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let is_process = entry.file_name().to_string_lossy().parse::<u32>().is_ok();
        for file in ["environ", "cmdline"].iter().filter(|_| is_process) {
            attempts.read(file, entry.path().join(file));
        }
    }
    // The upstream proxy refuses this port of the host, and says why.
    let message = hello(&[server_names(&[NAME])]);
    let said = dial(443).and_then(|mut stream| {
        stream.write_all(&message)?;
        hear(&mut stream)
    });
    tell(&mut attempts, "what it says about a refused port", said);
    let asked = ask_each();
    attempts.carry(asked.data.as_bytes());
    attempts.say(asked.reached, asked.detail);
    attempts.done()
}
