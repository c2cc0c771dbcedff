//! Sockets, shared memory and queues of the host.

use super::{Attempts, Canary, Channel, Class, Inside, Observation, Oracle, Probe, Severity};
use ironcage_sys::attack;
use std::ffi::CString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};

const IP: Probe = Probe::of(Class::Ip);
const IPC_NS: &str = "ipc namespace";
const NO_PATH: &str = "mount namespace with an allow-listed view: the socket is not there";

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "IP-01",
        severity: Severity::Critical,
        title: "connect to an abstract socket of the host",
        canary: "a listener with an abstract name",
        layers: &["network namespace", "Landlock scope on abstract sockets"],
        references: &["CVE-2020-15257", "ATT&CK T1559"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            let name = inside.params.abstract_stream.as_bytes();
            let connected = SocketAddr::from_abstract_name(name)
                .and_then(|address| UnixStream::connect_addr(&address));
            attempts.note("connect", connected);
            attempts.done()
        },
        oracle: Oracle::Hit(Channel::Abstract),
        ..IP
    },
    Probe {
        id: "IP-01d",
        title: "send a datagram to an abstract socket of the host",
        canary: "a datagram socket with an abstract name",
        layers: &["network namespace", "Landlock scope on abstract sockets"],
        references: &["CVE-2020-15257", "ATT&CK T1559"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            let name = inside.params.abstract_datagram.as_bytes();
            let sent = UnixDatagram::unbound().and_then(|socket| {
                socket.send_to_addr(b"x", &SocketAddr::from_abstract_name(name)?)
            });
            attempts.note("sendto", sent);
            attempts.done()
        },
        oracle: Oracle::Hit(Channel::AbstractDatagram),
        ..IP
    },
    Probe {
        id: "IP-02",
        severity: Severity::Critical,
        title: "connect to the host's docker, agent, bus and display sockets",
        canary: "listeners at their usual paths",
        layers: &[NO_PATH],
        references: &["ATT&CK T1552.004"],
        inside: connect_paths,
        oracle: Oracle::Hit(Channel::Pathname),
        ..IP
    },
    Probe {
        id: "IP-02d",
        title: "send a datagram to a socket at a path of the host",
        canary: "a datagram socket in the runtime directory",
        layers: &[NO_PATH],
        references: &["CWE-668", "ATT&CK T1559"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            let sent = UnixDatagram::unbound()
                .and_then(|socket| socket.send_to(b"x", &inside.params.datagram_path));
            attempts.note("sendto", sent);
            attempts.done()
        },
        oracle: Oracle::Hit(Channel::PathDatagram),
        ..IP
    },
    Probe {
        id: "IP-03",
        title: "read a System V shared memory segment of the host",
        canary: "a segment with a nonce",
        layers: &[IPC_NS],
        references: &["CIS Docker 5.16", "ATT&CK T1559"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            let found = attack::shared_memory_find(inside.params.shm_key);
            if let Some(id) = attempts.note("shmget", found)
                && let Some(content) = attempts.note("shmat", attack::shared_memory_read(id, 64))
            {
                attempts.carry(&content);
            }
            attempts.done()
        },
        oracle: Oracle::Nonce(Canary::SharedMemory),
        ..IP
    },
    Probe {
        id: "IP-04",
        title: "read a file in the host's /dev/shm",
        canary: "a file in /dev/shm with a nonce",
        layers: &["private /dev/shm"],
        references: &["ATT&CK T1559"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            attempts.read("open", &inside.params.shm_secret);
            attempts.done()
        },
        oracle: Oracle::Nonce(Canary::ShmFile),
        ..IP
    },
    Probe {
        id: "IP-05",
        severity: Severity::Medium,
        title: "find a System V message queue of the host",
        canary: "a queue with a random key",
        layers: &[IPC_NS],
        references: &["ATT&CK T1559"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            attempts.note("msgget", attack::sysv_queue_find(inside.params.queue_key));
            attempts.done()
        },
        oracle: Oracle::Reached,
        ..IP
    },
    Probe {
        id: "IP-06",
        severity: Severity::Medium,
        title: "take a message from a POSIX queue of the host",
        canary: "a queue that holds a nonce",
        layers: &[IPC_NS],
        references: &["ATT&CK T1559"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            let name = CString::new(inside.params.queue_name.clone()).unwrap_or_default();
            if let Some(message) = attempts.note("mq_open", attack::message_queue_open(&name)) {
                attempts.carry(&message);
            }
            attempts.done()
        },
        oracle: Oracle::Nonce(Canary::MessageQueue),
        ..IP
    },
];

fn connect_paths(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    for path in &inside.params.socket_paths {
        let what = format!("connect {}", path.display());
        attempts.note(&what, UnixStream::connect(path));
    }
    attempts.done()
}
