//! The network: addresses outside, and socket families that reach the kernel's rarer parts.

use super::{
    Attempts, Channel, Class, Control, Inside, Kind, Observation, Oracle, Probe, Setup, Severity,
};
use ironcage_sys::attack;
use ironcage_sys::rustix::net::{AddressFamily, SendFlags, SocketType, sendto, socket};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

const NE: Probe = Probe::of(Class::Ne);
const NET_NS: &str = "network namespace with its own loopback only";
const FAMILIES: &str = "seccomp: socket families are an allow-list";

const AF_NETLINK: i32 = ironcage_sys::rustix::net::AddressFamily::NETLINK.as_raw() as i32;
const AF_PACKET: i32 = ironcage_sys::rustix::net::AddressFamily::PACKET.as_raw() as i32;
const AF_ALG: i32 = ironcage_sys::attack::AF_ALG;
const AF_VSOCK: i32 = ironcage_sys::rustix::net::AddressFamily::VSOCK.as_raw() as i32;
const AF_INET: i32 = ironcage_sys::rustix::net::AddressFamily::INET.as_raw() as i32;
const STREAM: i32 = ironcage_sys::rustix::net::SocketType::STREAM.as_raw() as i32;
const RAW: i32 = ironcage_sys::rustix::net::SocketType::RAW.as_raw() as i32;
const SEQPACKET: i32 = ironcage_sys::rustix::net::SocketType::SEQPACKET.as_raw() as i32;

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "NE-01",
        severity: Severity::Critical,
        title: "connect to a service on the host's 127.0.0.1",
        canary: "a TCP listener",
        layers: &[NET_NS],
        references: &["ATT&CK T1046"],
        inside: |inside| dial_all(&[(Ipv4Addr::LOCALHOST.into(), inside.params.tcp4)]),
        oracle: Oracle::Hit(Channel::Tcp4),
        ..NE
    },
    Probe {
        id: "NE-02",
        title: "connect to a service on the host's ::1",
        canary: "a TCP listener",
        layers: &[NET_NS],
        references: &["ATT&CK T1046"],
        inside: |inside| dial_all(&[(Ipv6Addr::LOCALHOST.into(), inside.params.tcp6)]),
        oracle: Oracle::Hit(Channel::Tcp6),
        ..NE
    },
    Probe {
        id: "NE-03",
        severity: Severity::Critical,
        title: "ask the cloud's metadata address for credentials",
        canary: "listeners on 169.254.169.254 and fd00:ec2::254, on the stage's loopback",
        layers: &[NET_NS],
        references: &["ATT&CK T1552.005"],
        inside: |_| {
            let v4 = Ipv4Addr::new(169, 254, 169, 254);
            let v6 = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
            dial_all(&[(v4.into(), 80), (v6.into(), 80)])
        },
        oracle: Oracle::Hit(Channel::Metadata),
        ..NE
    },
    Probe {
        id: "NE-04",
        severity: Severity::Critical,
        title: "carry a secret out in a DNS question",
        canary: "a resolver's socket on 127.0.0.1 and 127.0.0.53",
        layers: &[NET_NS],
        references: &["CVE-2025-55284", "ATT&CK T1048.003"],
        inside: ask_resolver,
        oracle: Oracle::Hit(Channel::Resolver),
        ..NE
    },
    Probe {
        id: "NE-06",
        title: "other spellings of the loopback address",
        canary: "a TCP listener",
        layers: &[NET_NS],
        references: &["CWE-918", "CWE-180", "ATT&CK T1090"],
        inside: spellings,
        oracle: Oracle::Hit(Channel::Tcp4),
        ..NE
    },
    Probe {
        id: "NE-07",
        severity: Severity::Low,
        title: "see the host's network sockets and interfaces",
        canary: "the port of a listener of the stage in /proc/net",
        layers: &[NET_NS],
        references: &["ATT&CK T1016"],
        inside: |_| {
            let mut attempts = Attempts::new();
            for file in ["tcp", "tcp6", "dev", "unix"] {
                attempts.read(file, format!("/proc/self/net/{file}"));
            }
            attempts.done()
        },
        oracle: Oracle::Seen(|stage, evidence| {
            let port = format!(":{:04X} ", stage.params.tcp4);
            let name = stage.params.abstract_stream.as_str();
            let text = evidence.observation()?.data;
            (text.contains(&port) || text.contains(name))
                .then(|| "the stage's listeners are listed".to_owned())
        }),
        ..NE
    },
    Probe {
        id: "NE-08",
        kind: Kind::Surface,
        severity: Severity::Critical,
        title: "make a socket to the hypervisor (AF_VSOCK)",
        canary: "the socket; nothing is dialled",
        layers: &[FAMILIES],
        references: &["ATT&CK T1611", "vsock(7)"],
        inside: |_| sockets(&[("AF_VSOCK", AF_VSOCK, STREAM, 0)]),
        ..NE
    },
    Probe {
        id: "NE-09",
        kind: Kind::Surface,
        title: "make a socket to the kernel's ciphers (AF_ALG)",
        canary: "the socket",
        layers: &[FAMILIES],
        references: &["CVE-2026-31431", "ATT&CK T1068"],
        inside: |_| sockets(&[("AF_ALG", AF_ALG, SEQPACKET, 0)]),
        ..NE
    },
    Probe {
        id: "NE-10",
        kind: Kind::Surface,
        title: "make a packet socket",
        canary: "the socket",
        layers: &[FAMILIES, "no capabilities"],
        references: &["CVE-2020-14386", "ATT&CK T1040"],
        control: Control::Privileged,
        inside: |_| sockets(&[("AF_PACKET", AF_PACKET, RAW, 0x0300)]),
        ..NE
    },
    Probe {
        id: "NE-11",
        kind: Kind::Surface,
        severity: Severity::Medium,
        title: "make a raw ICMP socket",
        canary: "the socket",
        layers: &["seccomp", "no capabilities"],
        references: &["ATT&CK T1095"],
        control: Control::Privileged,
        inside: |_| sockets(&[("raw ICMP", AF_INET, RAW, 1)]),
        ..NE
    },
    Probe {
        id: "NE-12",
        kind: Kind::Surface,
        title: "make netlink sockets beyond routing",
        canary: "the sockets: netfilter, xfrm, audit, uevent",
        layers: &["seccomp: netlink protocols are an allow-list"],
        references: &["CVE-2024-1086", "ATT&CK T1068"],
        inside: |_| {
            sockets(&[
                ("netfilter", AF_NETLINK, RAW, 12),
                ("xfrm", AF_NETLINK, RAW, 6),
                ("audit", AF_NETLINK, RAW, 9),
                ("uevent", AF_NETLINK, RAW, 15),
            ])
        },
        ..NE
    },
    Probe {
        id: "NE-13",
        title: "ignore the proxy variables and dial directly",
        canary: "a TCP listener",
        layers: &[NET_NS],
        references: &["ATT&CK T1090"],
        inside: |inside| {
            // Dialling by address is what a program does that has no proxy setting.
            let port = inside.params.tcp4;
            let mut attempts = Attempts::new();
            let dialled = TcpStream::connect(("127.0.0.1", port))
                .and_then(|mut stream| stream.write_all(b"GET / HTTP/1.0\r\n\r\n"));
            attempts.note("connect", dialled);
            attempts.done()
        },
        oracle: Oracle::Hit(Channel::Tcp4),
        ..NE
    },
    Probe {
        id: "NE-15",
        title: "an empty list of allowed hosts means none",
        canary: "every listener of the stage",
        layers: &[NET_NS, "default deny"],
        references: &["CVE-2025-66479", "ATT&CK T1685"],
        inside: |inside| {
            let params = &inside.params;
            dial_all(&[
                (Ipv4Addr::LOCALHOST.into(), params.tcp4),
                (Ipv4Addr::new(127, 0, 0, 2).into(), params.tcp4),
                (Ipv6Addr::LOCALHOST.into(), params.tcp6),
                (Ipv4Addr::new(169, 254, 169, 254).into(), 80),
            ])
        },
        oracle: Oracle::Seen(|stage, _| {
            let channels = [Channel::Tcp4, Channel::Tcp6, Channel::Metadata];
            channels
                .into_iter()
                .find_map(|channel| stage.log.settled(channel))
        }),
        ..NE
    },
    Probe {
        id: "NE-19",
        severity: Severity::Medium,
        title: "listen where the host can be reached",
        canary: "a connection from outside to a port opened inside",
        layers: &[NET_NS],
        references: &["ATT&CK T1571"],
        setup: Setup::Listening,
        inside: listen,
        oracle: Oracle::Seen(|_, evidence| {
            evidence
                .answered
                .then(|| "the listener inside answered outside".to_owned())
        }),
        ..NE
    },
];

const PATIENCE: Duration = Duration::from_millis(500);

fn dial_all(targets: &[(IpAddr, u16)]) -> Observation {
    let mut attempts = Attempts::new();
    for (address, port) in targets {
        let target = SocketAddr::new(*address, *port);
        let what = format!("connect {address}");
        attempts.note(&what, TcpStream::connect_timeout(&target, PATIENCE));
    }
    attempts.done()
}

/// A question for `secret.example`, type A.
const QUESTION: &[u8] =
    b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06secret\x07example\x00\x00\x01\x00\x01";

fn ask_resolver(_: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let addresses = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 53)];
    for address in addresses {
        // Without binding, which a sandbox may refuse by itself.
        let sent = socket(AddressFamily::INET, SocketType::DGRAM, None).and_then(|socket| {
            let to = SocketAddr::from((address, 53));
            sendto(&socket, QUESTION, SendFlags::empty(), &to)
        });
        attempts.note(&format!("sendto {address}:53"), sent);
    }
    attempts.done()
}

fn spellings(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let port = inside.params.tcp4;
    let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    let targets = [
        ("0.0.0.0", SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
        ("::ffff:127.0.0.1", SocketAddr::from((mapped, port))),
        ("::", SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))),
    ];
    for (what, target) in targets {
        attempts.note(what, TcpStream::connect_timeout(&target, PATIENCE));
    }
    for name in [
        "127.1",
        "2130706433",
        "0177.0.0.1",
        "0x7f.1",
        "localhost.",
        "localhost",
    ] {
        let connected = (name, port).to_socket_addrs().and_then(|addresses| {
            let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
            for address in addresses {
                match TcpStream::connect_timeout(&address, PATIENCE) {
                    Ok(stream) => return Ok(stream),
                    Err(error) => last = error,
                }
            }
            Err(last)
        });
        attempts.note(name, connected);
    }
    attempts.done()
}

fn sockets(list: &[(&str, i32, i32, i32)]) -> Observation {
    let mut attempts = Attempts::new();
    for (what, family, kind, protocol) in list {
        attempts.isolated(what, || attack::socket_of(*family, *kind, *protocol));
    }
    attempts.done()
}

fn listen(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, inside.params.free_port));
    if let Some(listener) = attempts.note("bind 0.0.0.0", bound) {
        super::lf::beat_once(inside);
        let ready = listener.set_nonblocking(true);
        attempts.note("listen", ready);
        for _ in 0..40 {
            if let Ok((mut stream, _)) = listener.accept() {
                attempts.note("accept", stream.write_all(b"inside"));
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    attempts.done()
}
