//! Leases: what was open for a while, kept beyond its end; and what belongs to another scope.
//!
//! The suite opens a lease on a directory, lets the probe take hold of it, ends it, and only then
//! puts the secret there and the file back as it was. Any read or write from then on is
//! through. Uncaged there is no lease, and nothing ends.

use super::{
    Attempts, Canary, Class, Evidence, Inside, Observation, Oracle, Probe, Setup, Severity, Stage,
};
use ironcage_sys::attack::{self, SharedMapping};
use ironcage_sys::packet;
use ironcage_sys::rustix::fs::{CWD, Mode, OFlags, RenameFlags, openat, renameat_with};
use ironcage_sys::rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use ironcage_sys::rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open, setsid,
};
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

const LE: Probe = Probe {
    setup: Setup::Leased,
    layers: &[MOUNT, PROOF],
    oracle: Oracle::Seen(used_after_its_end),
    ..Probe::of(Class::Le)
};
const MOUNT: &str = "a lease is a mount of its own, read-only before it is taken off";
const PROOF: &str = "who still holds something of it is found and ended, or the cage is";

/// What is in the leased file when the lease has ended.
pub(crate) const CONTENT: &[u8] = b"content of a leased file, as it was\n";
/// What a probe writes.
const WRITTEN: &[u8] = b"written by the agent\n";
/// How long a probe waits for the suite, and the suite for a probe.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long something that goes on by itself is let go on after the end.
const A_WHILE: Duration = Duration::from_millis(150);

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "LE-01",
        severity: Severity::Critical,
        title: "use a file and a directory that were opened while they were leased",
        canary: "a leased directory after the end of its lease: a secret, a file, a new name",
        references: &["CWE-672", "ATT&CK T1005"],
        inside: held,
        ..LE
    },
    Probe {
        id: "LE-02",
        title: "write through a mapping of a leased file after the end of the lease",
        canary: "the file, compared after the end",
        references: &["CWE-672", "ATT&CK T1565.001"],
        inside: mapped,
        ..LE
    },
    Probe {
        id: "LE-03",
        title: "put a descriptor of a leased file into a socket, and take it out after the end",
        canary: "the file, compared after the end",
        references: &["CWE-672", "unix(7) SCM_RIGHTS"],
        inside: in_flight,
        ..LE
    },
    Probe {
        id: "LE-04",
        title: "reopen what was leased by /proc/self/fd, /proc/PID/root and a working directory",
        canary: "a secret that came into the directory after the end",
        references: &["CWE-672", "CVE-2024-21626"],
        inside: reopened,
        ..LE
    },
    Probe {
        id: "LE-05",
        title: "fork without end while a lease is revoked, each child with the file open",
        canary: "the file, compared after the end",
        references: &["CWE-362", "ATT&CK T1499"],
        inside: forking,
        ..LE
    },
    Probe {
        id: "LE-06",
        title: "leave a daemon behind that goes on writing to a leased file",
        canary: "the file, compared after the end",
        references: &["CWE-672", "ATT&CK T1564.011"],
        inside: daemon,
        ..LE
    },
    Probe {
        id: "LE-07",
        title: "rename and replace what is leased, and what is above it, while it is leased",
        canary: "a host file outside the lease to which a link leads, compared afterwards",
        references: &["CWE-367", "CWE-61"],
        inside: renamed,
        oracle: Oracle::Seen(|stage, _| {
            let outside = stage.params.outside.clone();
            let changed = stage.layout.first_change(|path| path.starts_with(&outside));
            changed.map(|path| format!("{} changed", path.display()))
        }),
        ..LE
    },
    Probe {
        id: "LE-08",
        title: "steer the unmount by renames and links that change all the time",
        canary: "files of the workspace that the host trusts, and the leased directory",
        references: &["CWE-367", "ATT&CK T1546"],
        inside: steered,
        oracle: Oracle::Seen(|stage, evidence| {
            let changed = stage
                .layout
                .first_change(|path| stage.layout.is_trusted(path));
            changed
                .map(|path| format!("{} changed", path.display()))
                .or_else(|| used_after_its_end(stage, evidence))
        }),
        ..LE
    },
    Probe {
        id: "LE-09",
        severity: Severity::Critical,
        title: "reach into a scope that has a lease: pidfd_getfd, /proc/PID/fd and root, its path",
        canary: "a secret that is leased to another scope",
        layers: &["a scope is a sibling of the cage: neither sees the other"],
        references: &["pidfd_getfd(2)", "ATT&CK T1055"],
        setup: Setup::Scoped,
        inside: into_a_scope,
        ..LE
    },
    Probe {
        id: "LE-10",
        title: "take a descriptor from a scope that passes it on, and use it after its end",
        canary: "the leased file, compared after the end of the scope",
        layers: &["a scope ends whole, and who in the cage holds something of it too"],
        references: &["CWE-672", "unix(7) SCM_RIGHTS"],
        setup: Setup::Scoped,
        inside: from_a_scope,
        ..LE
    },
];

/// What shows that a lease was used after its end.
fn used_after_its_end(stage: &Stage, evidence: &Evidence) -> Option<String> {
    let nonce = stage.nonces.of(Canary::Leased).as_bytes();
    if crate::oracle::contains(&evidence.output, nonce) {
        return Some("the secret came out".to_owned());
    }
    let leased = &stage.params.leased;
    if fs::read(leased.join("file")).is_ok_and(|content| content != CONTENT) {
        return Some("the file was written to".to_owned());
    }
    let made = leased.join("planted").symlink_metadata().is_ok();
    made.then(|| "a file was made".to_owned())
}

/// Says a word to the suite.
pub(super) fn say(inside: &Inside, word: &str) {
    // Without it the suite waits in vain, and says so.
    let _ = fs::write(inside.program.with_file_name(word), b"");
}

/// Waits for a word of the suite's.
pub(super) fn hear(inside: &Inside, word: &str) {
    let path = inside.program.with_file_name(word);
    let started = Instant::now();
    while !path.exists() && started.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Takes hold of something while it is leased, and tries to use it afterwards.
fn beyond<T>(
    inside: &Inside,
    take: impl FnOnce(&Path) -> io::Result<T>,
    then: impl FnOnce(&mut Attempts, T),
) -> Observation {
    let mut attempts = Attempts::new();
    let leased = &inside.params.leased;
    say(inside, "wants");
    hear(inside, "given");
    let used = fs::write(leased.join("used"), b"");
    let taken = used.and_then(|()| take(leased));
    say(inside, "holds");
    hear(inside, "ended");
    match taken {
        Ok(taken) => then(&mut attempts, taken),
        Err(error) => attempts.say(false, format!("take hold: {error}")),
    }
    attempts.done()
}

fn writable(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// Reads a file below an open directory, and carries it out.
fn read_below(attempts: &mut Attempts, what: &str, directory: BorrowedFd<'_>, name: &str) {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = openat(directory, name, flags, Mode::empty());
    if let Some(file) = attempts.note(what, opened) {
        let mut content = Vec::new();
        let read = File::from(file).take(1 << 16).read_to_end(&mut content);
        attempts.note("read it", read);
        attempts.carry(&content);
    }
}

fn held(inside: &Inside) -> Observation {
    let take = |leased: &Path| Ok((writable(&leased.join("file"))?, directory(leased)?));
    beyond(inside, take, |attempts, (mut file, directory)| {
        attempts.note("write to the file", file.write_all(WRITTEN));
        read_below(
            attempts,
            "open below the directory",
            directory.as_fd(),
            "late",
        );
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let made = openat(&directory, "planted", flags, Mode::RUSR);
        attempts.note("make a file below the directory", made);
    })
}

fn mapped(inside: &Inside) -> Observation {
    let take = |leased: &Path| {
        let file = writable(&leased.join("file"))?;
        Ok(SharedMapping::of(file.as_fd())?)
    };
    beyond(inside, take, |attempts, mut mapping: SharedMapping| {
        mapping.write(WRITTEN);
        attempts.say(true, "wrote through the mapping");
    })
}

fn pass(socket: impl AsFd, file: impl AsFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); packet::ancillary_space(1)];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [file.as_fd()];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(
        socket,
        &[IoSlice::new(b"x")],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

fn take_passed(socket: impl AsFd) -> io::Result<File> {
    let packet = packet::receive(socket.as_fd(), true, 16, 1)?.unwrap_or_default();
    let first = packet.descriptors.into_iter().next();
    first
        .map(File::from)
        .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

fn in_flight(inside: &Inside) -> Observation {
    let take = |leased: &Path| {
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let (ours, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        pass(&ours, &writable(&leased.join("file"))?)?;
        // Nobody has it open now: it is in the socket.
        Ok((ours, theirs))
    };
    beyond(inside, take, |attempts, (_ours, theirs)| {
        let taken = attempts.note("take it out", take_passed(&theirs));
        if let Some(mut file) = taken {
            attempts.note("write to the file", file.write_all(WRITTEN));
        }
    })
}

fn reopened(inside: &Inside) -> Observation {
    let take = |leased: &Path| {
        let held = directory(leased)?;
        std::env::set_current_dir(leased)?;
        Ok(held)
    };
    beyond(inside, take, |attempts, held| {
        use std::os::fd::AsRawFd as _;
        let number = held.as_raw_fd();
        attempts.read("by /proc/self/fd", format!("/proc/self/fd/{number}/late"));
        attempts.read("by the working directory", "late");
        attempts.read("by /proc/self/cwd", "/proc/self/cwd/late");
        let leased = inside.params.leased.display().to_string();
        for process in ["self", "1"] {
            attempts.read("by a root", format!("/proc/{process}/root{leased}/late"));
        }
    })
}

/// A child that writes to the file again and again, until it is ended.
fn writer(file: &File) -> i32 {
    let Ok(mut file) = file.try_clone() else {
        return 1;
    };
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if file.write_all(WRITTEN).is_err() {
            return 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    0
}

fn end(children: Vec<Pid>) {
    for child in children {
        let _ = kill_process(child, Signal::KILL);
        let _ = attack::wait_for(child);
    }
}

fn forking(inside: &Inside) -> Observation {
    const AT_ONCE: usize = 8;
    let take = |leased: &Path| {
        let file = writable(&leased.join("file"))?;
        let parent = attack::fork_start(|| {
            let started = Instant::now();
            let mut children = Vec::new();
            while started.elapsed() < PATIENCE && !inside.program.with_file_name("over").exists() {
                if children.len() >= AT_ONCE {
                    end(children.drain(..1).collect());
                }
                children.extend(attack::fork_start(|| writer(&file)).ok());
                std::thread::sleep(Duration::from_millis(1));
            }
            end(children);
            0
        })?;
        Ok(parent)
    };
    beyond(inside, take, |attempts, parent| {
        std::thread::sleep(A_WHILE);
        say(inside, "over");
        attempts.note("children with the file", attack::wait_for(parent));
    })
}

fn daemon(inside: &Inside) -> Observation {
    let take = |leased: &Path| {
        let file = writable(&leased.join("file"))?;
        let middle = attack::fork_start(|| {
            let _ = setsid();
            let left = attack::fork_start(|| {
                let Ok(mut file) = file.try_clone() else {
                    return 1;
                };
                let started = Instant::now();
                let over = inside.program.with_file_name("over");
                while started.elapsed() < PATIENCE && !over.exists() {
                    if file.write_all(WRITTEN).is_err() {
                        return 1;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                0
            });
            i32::from(left.is_err())
        })?;
        drop(file);
        Ok(attack::wait_for(middle)?)
    };
    beyond(inside, take, |attempts, _| {
        std::thread::sleep(A_WHILE);
        say(inside, "over");
        attempts.say(false, "a daemon was left");
    })
}

fn renamed(inside: &Inside) -> Observation {
    let take = |leased: &Path| {
        let deep = leased.join("deep");
        fs::create_dir(&deep)?;
        fs::write(deep.join("host.txt"), b"")?;
        fs::rename(&deep, leased.join("moved"))?;
        // Where the cage has nothing, and the host a file.
        symlink("../outside", &deep)?;
        let mut moved = Vec::new();
        for (from, to) in [
            (leased.to_owned(), "left-lease"),
            (inside.params.home.clone(), "left-home"),
        ] {
            let target = from.with_file_name(to);
            if fs::rename(&from, &target).is_ok() {
                moved.push((target, from));
            }
        }
        for (target, from) in moved.into_iter().rev() {
            fs::rename(target, from)?;
        }
        Ok(deep)
    };
    beyond(inside, take, |attempts, deep| {
        let answer = fs::write(deep.join("host.txt"), WRITTEN);
        attempts.note(
            "write by the link that took the place of a directory",
            answer,
        );
    })
}

fn steered(inside: &Inside) -> Observation {
    let take = |leased: &Path| {
        let (one, other) = (leased.join("one"), leased.join("other"));
        fs::create_dir(&one)?;
        symlink("../project", &other)?;
        let swapper = attack::fork_start(|| {
            let started = Instant::now();
            let over = inside.program.with_file_name("over");
            let parent = leased.with_file_name("left-lease");
            while started.elapsed() < PATIENCE && !over.exists() {
                let _ = renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE);
                if fs::rename(leased, &parent).is_ok() {
                    let _ = symlink(&inside.params.workspace, leased);
                    let _ = fs::remove_file(leased);
                    let _ = fs::rename(&parent, leased);
                }
            }
            0
        })?;
        Ok(swapper)
    };
    beyond(inside, take, |attempts, swapper| {
        say(inside, "over");
        attempts.note("the one who swaps", attack::wait_for(swapper));
        for name in [".envrc", ".git/hooks/pre-commit"] {
            let path = inside.params.workspace.join(name);
            attempts.note(name, fs::write(path, WRITTEN));
        }
        attempts.read("read what was leased", inside.params.leased.join("late"));
    })
}

/// The process of a scope: has its lease in hand, hands it on where somebody listens, and waits.
pub(crate) fn scope(params: &Path) -> io::Result<()> {
    let suite = params.parent().unwrap_or(params);
    let params: crate::params::Params = serde_json::from_slice(&fs::read(params)?)?;
    let file = writable(&params.leased.join("file"))?;
    let _secret = File::open(params.leased.join("late"))?;
    fs::write(params.leased.join("used"), b"")?;
    if let Ok(socket) = UnixStream::connect(suite.join("pass")) {
        pass(&socket, &file)?;
    }
    fs::write(suite.join("held"), b"")?;
    let started = Instant::now();
    while !suite.join("over").exists() && started.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn into_a_scope(inside: &Inside) -> Observation {
    const DESCRIPTORS: std::ops::Range<i32> = 3..12;
    let mut attempts = Attempts::new();
    say(inside, "wants");
    hear(inside, "given");
    let late = inside.params.leased.join("late");
    attempts.read("by its path", &late);
    let own = std::process::id();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name
            .parse::<i32>()
            .ok()
            .filter(|pid| pid.unsigned_abs() != own)
        else {
            continue;
        };
        attempts.read("by a root", format!("/proc/{pid}/root{}", late.display()));
        let process = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
        for number in DESCRIPTORS {
            let path = format!("/proc/{pid}/fd/{number}");
            // What is no plain file may keep its reader waiting.
            if fs::metadata(&path).is_ok_and(|file| file.is_file()) {
                attempts.read("by /proc/PID/fd", path);
            }
            let Some(Ok(process)) = &process else {
                continue;
            };
            let taken = pidfd_getfd(process, number, PidfdGetfdFlags::empty());
            if let Some(file) = attempts.note("pidfd_getfd", taken) {
                let file = File::from(file);
                if file.metadata().is_ok_and(|file| file.is_file()) {
                    let mut content = Vec::new();
                    let _ = file.take(1 << 16).read_to_end(&mut content);
                    attempts.carry(&content);
                }
            }
        }
    }
    say(inside, "holds");
    hear(inside, "ended");
    attempts.done()
}

fn from_a_scope(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let listener = UnixListener::bind(inside.program.with_file_name("pass"));
    let listener = attempts.note("listen", listener);
    say(inside, "wants");
    hear(inside, "given");
    let passed = listener.and_then(|listener| {
        let nonblocking = listener
            .set_nonblocking(true)
            .and_then(|()| listener.accept());
        attempts.note("accept", nonblocking)
    });
    let file = passed.and_then(|(socket, _)| {
        let waiting = socket.set_nonblocking(false);
        attempts.note("take it", waiting.and_then(|()| take_passed(&socket)))
    });
    say(inside, "holds");
    hear(inside, "ended");
    let mut after = Attempts::new();
    match file {
        Some(mut file) => {
            after.note("write to the file", file.write_all(WRITTEN));
        }
        None => after.say(false, attempts.done().detail),
    }
    after.done()
}
