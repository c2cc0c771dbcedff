//! Asking for leases: requests that say one thing and mean another, too many of them, and what
//! is not a request at all.
//!
//! The probe has a lease on a directory, in which it can make whatever it likes, and the socket at
//! which an agent asks for more. It wants a key that no policy gives.

use super::le::{hear, say};
use super::{
    Attempts, Canary, Class, Evidence, Inside, Observation, Oracle, Probe, Setup, Severity, Stage,
};
use crate::stage::control::REQUEST;
use ironcage_sys::attack;
use ironcage_sys::rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

const LE: Probe = Probe {
    setup: Setup::Leased,
    layers: &[
        "nothing is given beyond the ceiling, whoever asks",
        DESCRIPTOR,
    ],
    oracle: Oracle::Seen(|stage, evidence| fell_over(evidence).or_else(|| key(stage, evidence))),
    ..Probe::of(Class::Le)
};
const DESCRIPTOR: &str = "what is decided about is what is mounted, by its descriptor";
const PACED: &str = "requests are read by a process of their own, paced and bounded";

/// Where an agent asks.
pub(super) const SOCKET: &str = "/.ironcage/ask";
/// How long an answer is waited for.
const ANSWER: Duration = Duration::from_secs(5);
/// The most that a launcher may take of memory while it is flooded.
const MOST_MIB: u64 = 128;

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "LE-11",
        severity: Severity::Critical,
        title: "ask for a path that leads elsewhere: by dots, links, empty and hidden names",
        canary: "a key in the home directory, beside what can be leased",
        references: &["CWE-22", "CWE-61"],
        inside: by_dots,
        ..LE
    },
    Probe {
        id: "LE-12",
        severity: Severity::Critical,
        title: "swap a directory for a link between the decision and the mount",
        canary: "a key in the home directory, where the link leads",
        references: &["CWE-367"],
        inside: swapped,
        ..LE
    },
    Probe {
        id: "LE-13",
        title: "ask as fast as can be, from many connections, and read no answer",
        canary: "the launcher: its memory and its end; a key in the home directory",
        layers: &[PACED],
        references: &["CWE-770", "ATT&CK T1499"],
        inside: flood,
        ..LE
    },
    Probe {
        id: "LE-14",
        title: "forged, huge and partial messages to whoever reads requests",
        canary: "the launcher's own end; a key in the home directory",
        layers: &[PACED, "what is not understood is an error"],
        references: &["CWE-20", "ATT&CK T1499"],
        inside: forged,
        ..LE
    },
];

pub(super) fn key(stage: &Stage, evidence: &Evidence) -> Option<String> {
    let nonce = stage.nonces.of(Canary::SshKey).as_bytes();
    let read = crate::oracle::contains(&evidence.output, nonce);
    read.then(|| "the key came out".to_owned())
}

pub(super) fn fell_over(evidence: &Evidence) -> Option<String> {
    let errors = String::from_utf8_lossy(&evidence.errors);
    if evidence.overdue {
        return Some("the launcher hangs".to_owned());
    }
    if errors.contains("panicked at") || evidence.status == -6 || evidence.status == 134 {
        return Some("the launcher fell over".to_owned());
    }
    let mib = evidence.launcher_mib;
    (mib > MOST_MIB).then(|| format!("the launcher took {mib} MiB"))
}

/// Does something with a lease in hand, and lets it be ended.
fn with_a_lease(inside: &Inside, work: impl FnOnce(&mut Attempts, &Path)) -> Observation {
    let mut attempts = Attempts::new();
    let leased = &inside.params.leased;
    say(inside, "wants");
    hear(inside, "given");
    // The suite looks whether the lease could be used.
    let _ = fs::write(leased.join("used"), b"");
    work(&mut attempts, leased);
    attempts.read("read the key", inside.params.home.join(".ssh/id_canary"));
    say(inside, "holds");
    hear(inside, "ended");
    attempts.done()
}

/// Asks for a path, and hears the answer.
fn ask(right: &str, path: &str) -> io::Result<String> {
    let mut socket = UnixStream::connect(SOCKET)?;
    socket.set_read_timeout(Some(ANSWER))?;
    let request = serde_json::json!({ right: path });
    socket.write_all(format!("{request}\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(socket).read_line(&mut answer)?;
    Ok(answer)
}

fn by_dots(inside: &Inside) -> Observation {
    with_a_lease(inside, |attempts, leased| {
        let home = inside.params.home.display();
        let link = leased.join("link");
        // Where it cannot be made, there is one way less.
        let _ = symlink("../.ssh", &link);
        let leased = leased.display();
        let paths = [
            format!("{leased}/../.ssh"),
            format!("{leased}/./../.ssh/id_canary"),
            format!("{leased}/deep/../../.ssh"),
            format!("{leased}/link"),
            format!("{leased}/link/id_canary"),
            format!("//{home}/.ssh"),
            format!("{home}/.ssh/"),
            format!("{home}"),
            format!("{leased}\u{0}/../.ssh"),
            "/proc/self/root".to_owned(),
            String::new(),
        ];
        for path in paths {
            // An answer is no success: what can be read afterwards is.
            let _ = ask("read", &path);
            let _ = ask("write", &path);
            attempts.read("by the path", Path::new(&path).join("id_canary"));
            attempts.read("the path itself", &path);
        }
    })
}

fn swapped(inside: &Inside) -> Observation {
    const TIMES: usize = 12;
    with_a_lease(inside, |attempts, leased| {
        let (place, other) = (leased.join("place"), leased.join("other"));
        let made = fs::create_dir(&place).and_then(|()| symlink("../.ssh", &other));
        if let Err(error) = made {
            attempts.say(false, format!("prepare: {error}"));
            return;
        }
        let over = inside.program.with_file_name("over");
        let swapper = attack::fork_start(|| {
            let started = Instant::now();
            while !over.exists() && started.elapsed() < super::le::PATIENCE {
                let _ = renameat_with(CWD, &place, CWD, &other, RenameFlags::EXCHANGE);
            }
            0
        });
        for _ in 0..TIMES {
            let _ = ask("read", &place.to_string_lossy());
            for name in [&place, &other] {
                attempts.read("by what was swapped", name.join("id_canary"));
            }
        }
        say(inside, "over");
        if let Ok(swapper) = swapper {
            let _ = attack::wait_for(swapper);
        }
    })
}

fn flood(inside: &Inside) -> Observation {
    const CONNECTIONS: usize = 16;
    const TIME: Duration = Duration::from_millis(400);
    with_a_lease(inside, |attempts, leased| {
        let line = format!(
            "{{\"read\":{:?}}}\n",
            leased.join("..").display().to_string()
        );
        let mut sockets: Vec<UnixStream> = (0..CONNECTIONS)
            .filter_map(|_| {
                let socket = UnixStream::connect(SOCKET).ok()?;
                socket.set_nonblocking(true).ok()?;
                Some(socket)
            })
            .collect();
        let started = Instant::now();
        let mut sent = 0_u64;
        while started.elapsed() < TIME {
            for socket in &mut sockets {
                sent += u64::from(socket.write_all(line.as_bytes()).is_ok());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        attempts.say(false, format!("{sent} requests were taken"));
    })
}

fn forged(inside: &Inside) -> Observation {
    with_a_lease(inside, |attempts, _| {
        let key = inside.params.home.join(".ssh").display().to_string();
        let deep = "[".repeat(100_000);
        let messages: [Vec<u8>; 10] = [
            REQUEST.to_vec(),
            vec![0; 4096],
            vec![b'x'; 2 << 20],
            deep.into_bytes(),
            format!("{{\"granted\":{{\"read\":{key:?}}}}}\n").into_bytes(),
            format!("{{\"approve\":1,\"read\":{key:?},\"approver\":\"user\"}}\n").into_bytes(),
            format!("{{\"read\":{key:?},\"read\":{key:?}}}\n").into_bytes(),
            b"{\"read\":5}\n".to_vec(),
            b"\xff\xfe{\"read\":\"/\"}\n".to_vec(),
            b"{\"read\":\"/".to_vec(),
        ];
        for message in messages {
            let said = UnixStream::connect(SOCKET).and_then(|mut socket| {
                socket.set_write_timeout(Some(ANSWER))?;
                socket.set_read_timeout(Some(Duration::from_millis(50)))?;
                socket.write_all(&message)?;
                let mut answer = String::new();
                let _ = BufReader::new(socket).read_line(&mut answer);
                Ok(())
            });
            attempts.say(false, format!("{} bytes: {:?}", message.len(), said.err()));
        }
    })
}
