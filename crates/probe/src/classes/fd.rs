//! Descriptors that reached the sandbox by mistake, and streams that are host files.

use super::{
    Attempts, Canary, Channel, Class, Control, Inside, Observation, Oracle, Probe, Setup, Severity,
};
use ironcage_sys::attack;
use ironcage_sys::rustix::fs::{Mode, OFlags, openat};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use ironcage_sys::rustix::process::{Signal, pidfd_send_signal};
use std::fs::{File, OpenOptions};
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

const FD: Probe = Probe::of(Class::Fd);
const CLOSED: &str = "close_range: no descriptor but the three streams";

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "FD-01",
        severity: Severity::Critical,
        title: "read a secret through a leaked directory",
        canary: "~/.ssh/id_canary with a nonce, below the leaked descriptor",
        layers: &[CLOSED],
        references: &["CVE-2024-21626", "ATT&CK T1611"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            if let Some(home) = inherited(&mut attempts, inside.params.leaks.directory) {
                let opened = openat(&home, ".ssh/id_canary", OFlags::RDONLY, Mode::empty());
                read_all(&mut attempts, "openat", opened);
            }
            attempts.done()
        },
        oracle: Oracle::Nonce(Canary::SshKey),
        ..FD
    },
    Probe {
        id: "FD-02",
        severity: Severity::Critical,
        title: "create a file through a leaked directory",
        canary: "~/planted, watched outside",
        layers: &[CLOSED, "Landlock on writes"],
        references: &["CVE-2024-21626", "ATT&CK T1611"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            if let Some(home) = inherited(&mut attempts, inside.params.leaks.directory) {
                let flags = OFlags::CREATE | OFlags::WRONLY;
                let opened = openat(&home, "planted", flags, Mode::from_raw_mode(0o644));
                attempts.note("openat(O_CREAT)", opened);
            }
            attempts.done()
        },
        oracle: Oracle::Appears(|stage| stage.params.home.join("planted")),
        ..FD
    },
    Probe {
        id: "FD-03",
        title: "signal a process through a leaked pidfd",
        canary: "the canary process, which notes signals",
        layers: &[CLOSED, "pid namespace", "Landlock scope on signals"],
        references: &["pidfd_send_signal(2)", "ATT&CK T1489"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            if let Some(process) = inherited(&mut attempts, inside.params.leaks.pidfd) {
                attempts.note(
                    "pidfd_send_signal",
                    pidfd_send_signal(&process, Signal::USR1),
                );
            }
            attempts.done()
        },
        oracle: Oracle::Hit(Channel::Signal),
        ..FD
    },
    Probe {
        id: "FD-04",
        severity: Severity::Critical,
        title: "enter a network through a leaked namespace descriptor",
        canary: "a listener in that network",
        layers: &[CLOSED, "no capabilities", "seccomp"],
        references: &["CVE-2024-21626", "ATT&CK T1611"],
        control: Control::Privileged,
        inside: |inside| {
            let mut attempts = Attempts::new();
            if let Some(network) = inherited(&mut attempts, inside.params.leaks.network) {
                let entered = attack::enter_namespace(network.as_fd());
                if attempts.note("setns", entered).is_some() {
                    let address = (Ipv4Addr::LOCALHOST, inside.params.network_tcp);
                    attempts.note("connect", TcpStream::connect(address));
                }
            }
            attempts.done()
        },
        oracle: Oracle::Hit(Channel::OtherNetwork),
        ..FD
    },
    Probe {
        id: "FD-05",
        title: "receive a directory through a leaked socket pair",
        canary: "the other end, which notes bytes and answers with the home directory",
        layers: &[CLOSED],
        references: &["unix(7) SCM_RIGHTS", "ATT&CK T1559"],
        inside: receive_directory,
        oracle: Oracle::Hit(Channel::LeakedPair),
        ..FD
    },
    Probe {
        id: "FD-06",
        title: "write to a leaked TCP connection",
        canary: "the other end of the connection",
        layers: &[CLOSED],
        references: &["CWE-403", "ATT&CK T1071"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            if let Some(socket) = inherited(&mut attempts, inside.params.leaks.tcp) {
                attempts.note("write", File::from(socket).write_all(b"from inside"));
            }
            attempts.done()
        },
        oracle: Oracle::Hit(Channel::LeakedTcp),
        ..FD
    },
    Probe {
        id: "FD-07",
        title: "hold any descriptor beyond the three streams at entry",
        canary: "the list of open descriptors",
        layers: &[CLOSED],
        references: &["CWE-403", "ATT&CK T1082"],
        inside: list_descriptors,
        oracle: Oracle::Reached,
        ..FD
    },
    Probe {
        id: "FD-08",
        title: "climb out of a working directory that lies outside",
        canary: "~/.ssh/id_canary with a nonce, beside the launcher's directory",
        layers: &[
            "chdir after pivot_root",
            "mount namespace with an allow-listed view",
        ],
        references: &["CVE-2024-21626", "ATT&CK T1611"],
        setup: Setup::OutsideCwd,
        inside: |_| {
            let mut attempts = Attempts::new();
            attempts.read("../.ssh", "../.ssh/id_canary");
            attempts.read("/proc/self/cwd/../.ssh", "/proc/self/cwd/../.ssh/id_canary");
            attempts.read("../../.ssh", "../../.ssh/id_canary");
            attempts.done()
        },
        oracle: Oracle::Nonce(Canary::SshKey),
        ..FD
    },
    Probe {
        id: "FD-09",
        severity: Severity::Medium,
        title: "write to the host file that is standard input",
        canary: "a host file given as standard input, compared outside",
        layers: &["streams are pipes"],
        references: &["ATT&CK T1565"],
        setup: Setup::HostStdin,
        inside: |_| {
            let mut attempts = Attempts::new();
            let reopened = OpenOptions::new().write(true).open("/proc/self/fd/0");
            let written = reopened.and_then(|mut file| file.write_all(b"CHANGED"));
            attempts.note("reopen /proc/self/fd/0 for writing", written);
            let direct = ironcage_sys::rustix::io::write(std::io::stdin(), b"CHANGED");
            attempts.note("write to descriptor 0", direct);
            attempts.done()
        },
        oracle: Oracle::OutsideChanged,
        ..FD
    },
];

/// A copy of an inherited descriptor, if it is there.
pub(crate) fn inherited(attempts: &mut Attempts, number: i32) -> Option<OwnedFd> {
    let listed = std::fs::read_link(format!("/proc/self/fd/{number}"));
    let Ok(_) = listed else {
        attempts.note(&format!("descriptor {number}"), Err::<(), _>(Errno::BADF));
        return None;
    };
    match attack::duplicate(number) {
        Ok(copy) => Some(copy),
        Err(error) => {
            attempts.note(&format!("descriptor {number}"), Err::<(), _>(error));
            None
        }
    }
}

/// Reads what an attempt opened and carries it out.
pub(crate) fn read_all(attempts: &mut Attempts, what: &str, opened: Result<OwnedFd, Errno>) {
    if let Some(file) = attempts.note(what, opened) {
        let mut content = Vec::new();
        if File::from(file)
            .take(64 << 10)
            .read_to_end(&mut content)
            .is_ok()
        {
            attempts.carry(&content);
        }
    }
}

fn receive_directory(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let Some(socket) = inherited(&mut attempts, inside.params.leaks.socket_pair) else {
        return attempts.done();
    };
    attempts.note(
        "write",
        ironcage_sys::rustix::io::write(&socket, b"a directory, please"),
    );
    let mut space = [const { MaybeUninit::uninit() }; 64];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    let received = recvmsg(
        &socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::empty(),
    );
    attempts.note("recvmsg", received);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            for directory in descriptors {
                let opened = openat(&directory, ".ssh/id_canary", OFlags::RDONLY, Mode::empty());
                read_all(&mut attempts, "openat", opened);
            }
        }
    }
    attempts.done()
}

fn list_descriptors(_: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let Ok(directory) = File::open("/proc/self/fd") else {
        // Without /proc: numbers that a leak would have.
        for number in 3..256 {
            if attack::duplicate(number).is_ok() {
                attempts.say(true, format!("descriptor {number}"));
            }
        }
        return attempts.done();
    };
    drop(directory);
    let listed = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten();
    let numbers: Vec<i32> = listed
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for number in numbers {
        // The listing itself holds one, which is closed by now.
        let target = std::fs::read_link(format!("/proc/self/fd/{number}"));
        if let (3.., Ok(target)) = (number, target) {
            attempts.say(true, format!("{number} is {}", target.display()));
        }
    }
    if !attempts.any() {
        attempts.say(false, "only 0, 1 and 2");
    }
    attempts.done()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_descriptor_that_is_not_open_is_answered_with_ebadf() {
        let mut attempts = Attempts::new();
        assert!(inherited(&mut attempts, 9999).is_none());
        assert!(attempts.done().detail.contains("EBADF"));
        let file = File::open("/dev/null").unwrap();
        assert!(inherited(&mut Attempts::new(), file.as_raw_fd()).is_some());
    }
}
