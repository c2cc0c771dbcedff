//! The supervisor's handling of hostile names, and a second sandbox of the same user.

use super::{Attempts, Class, Inside, Observation, Oracle, Probe, Setup, Severity};
use ironcage_sys::attack;
use ironcage_sys::rustix::fs::inotify;
use ironcage_sys::rustix::process::{Pid, Signal, kill_process};
use std::ffi::{CString, OsStr};
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

const SU: Probe = Probe::of(Class::Su);

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "SU-07",
        severity: Severity::Medium,
        title: "hostile file names: the wrong file is touched, or escapes reach the terminal",
        canary: "host files, compared outside, and the launcher's own messages",
        layers: &[
            "names are bytes from end to end",
            "messages are printed escaped",
        ],
        references: &["CWE-116", "ATT&CK T1036"],
        control: super::Control::SameUser,
        inside: hostile_names,
        oracle: Oracle::Seen(|stage, evidence| {
            let changed = stage
                .layout
                .first_change(|path| !path.starts_with(&stage.params.workspace));
            let escape = evidence.errors.contains(&0x1b);
            match (changed, escape) {
                (Some(path), _) => Some(format!("{} changed", path.display())),
                (None, true) => Some("an escape sequence reached standard error".to_owned()),
                (None, false) => None,
            }
        }),
        ..SU
    },
    Probe {
        id: "SU-08",
        severity: Severity::Medium,
        title: "see, signal, trace or reach a second sandbox",
        canary: "the second sandbox, which notes signals, tracers and connections",
        layers: &["namespaces of its own for each", "Landlock scopes"],
        references: &["ATT&CK T1055"],
        setup: Setup::Sibling,
        inside: attack_sibling,
        oracle: Oracle::Seen(|_, evidence| {
            evidence
                .sibling
                .lines()
                .find_map(|line| line.strip_prefix("hit "))
                .map(str::to_owned)
        }),
        ..SU
    },
    Probe {
        id: "SU-10",
        severity: Severity::Medium,
        title: "use up what the user's sandboxes share: inotify, message queues",
        canary: "the second sandbox, which goes on making one of each",
        layers: &["a share of the user's counters for each", "ipc namespace"],
        references: &["ATT&CK T1499"],
        setup: Setup::Sibling,
        inside: use_up,
        oracle: Oracle::Seen(|_, evidence| {
            let starved = |line: &str| line.strip_prefix("hit starved of ").map(str::to_owned);
            let what = evidence.sibling.lines().find_map(starved)?;
            Some(format!("the second sandbox got no more of {what}"))
        }),
        ..SU
    },
];

/// More than the stage has.
const MANY: usize = 300;

/// Takes what there is and holds it for a while.
fn use_up(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    if !inside.params.own_counters {
        attempts.say(
            false,
            "the counters of root are the machine's: left alone".to_owned(),
        );
        return attempts.done();
    }
    let mut taken = Vec::new();
    while let Ok(instance) = inotify::init(inotify::CreateFlags::CLOEXEC) {
        taken.push(instance);
        if taken.len() == MANY {
            break;
        }
    }
    attempts.say(false, format!("{} inotify instances", taken.len()));
    let queues: Vec<CString> = (0..MANY)
        .filter_map(|number| CString::new(format!("/hog-{number}")).ok())
        .take_while(|name| attack::message_queue_create(name, b"x", 1).is_ok())
        .collect();
    attempts.say(false, format!("{} queues", queues.len()));
    std::thread::sleep(Duration::from_millis(600));
    for name in &queues {
        // The namespace takes what stays.
        let _ = attack::message_queue_unlink(name);
    }
    attempts.done()
}

/// What a sandbox can make one more of.
type Attempt = fn() -> bool;

const SHARED: [(&str, Attempt); 2] = [
    ("inotify", || {
        inotify::init(inotify::CreateFlags::CLOEXEC).is_ok()
    }),
    ("message queues", || {
        let name = c"/one-more";
        let made = attack::message_queue_create(name, b"x", 1).is_ok();
        // It is there only if it was made.
        let _ = attack::message_queue_unlink(name);
        made
    }),
];

fn hostile_names(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let long = vec![b'n'; 255];
    let names: [&[u8]; 6] = [
        b"not-utf8-\xff\xfe",
        b"line\nbreak",
        b"\x1b]0;title\x07\x1b[31m",
        b"--workspace=x",
        b"..\x08\x08",
        &long,
    ];
    for name in names {
        let path = inside.params.workspace.join(OsStr::from_bytes(name));
        let made = std::fs::write(&path, "x");
        if let Err(error) = made {
            attempts.note("create", Err::<(), _>(error));
        }
    }
    // A name that climbs: where it is joined as text, it is a file outside.
    let climbing = "../outside/host.txt";
    let target = inside.params.workspace.join(climbing);
    attempts.note("write by ..", std::fs::write(target, "climbed\n"));
    // A program whose name is an escape sequence, calling what a filter refuses: its name must
    // not reach the user's terminal unescaped.
    let named = inside
        .params
        .workspace
        .join(OsStr::from_bytes(b"\x1b[31mred"));
    if std::fs::copy(&inside.program, &named).is_ok() {
        // Refused or not, what counts is what the launcher prints.
        let _ = std::process::Command::new(&named)
            .args(["probe", "role", "inside", "SY-07"])
            .arg(inside.params.workspace.join(".suite/params.json"))
            .output();
    }
    attempts.done()
}

fn attack_sibling(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let params = &inside.params;
    let mut pids = super::pr::others();
    pids.push(params.sibling_pid);
    let name = SocketAddr::from_abstract_name(params.sibling_abstract.as_bytes());
    attempts.note(
        "connect abstract",
        name.and_then(|name| UnixStream::connect_addr(&name)),
    );
    let address = (Ipv4Addr::LOCALHOST, params.sibling_port);
    attempts.note("connect TCP", TcpStream::connect(address));
    for pid in pids {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_sibling = line.windows(7).any(|word| word == b"sibling");
        if (is_sibling || pid == params.sibling_pid)
            && let Some(pid) = Pid::from_raw(pid)
        {
            attempts.note("kill", kill_process(pid, Signal::USR1));
            attempts.note("PTRACE_SEIZE", attack::ptrace_seize(pid));
        }
    }
    attempts.done()
}

/// The second sandbox: notes what reaches it, for at most ten seconds.
pub(crate) fn sibling(name: &str, port: &str) -> io::Result<()> {
    const NOTED: [i32; 2] = [10, 12];
    attack::block_signals(&NOTED);
    let address = SocketAddr::from_abstract_name(name.as_bytes())?;
    // A sandbox may refuse sockets: then nobody reaches them.
    let unix = UnixListener::bind_addr(&address).ok();
    let port = port.parse().map_err(io::Error::other)?;
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok();
    if let Some(unix) = &unix {
        unix.set_nonblocking(true)?;
    }
    if let Some(tcp) = &tcp {
        tcp.set_nonblocking(true)?;
    }
    // What is refused from the beginning cannot be used up.
    let mut shared: Vec<_> = SHARED
        .into_iter()
        .filter(|(_, attempt)| attempt())
        .collect();
    let mut out = io::stdout();
    writeln!(out, "ready")?;
    out.flush()?;
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        let signal = attack::wait_signal(&NOTED, Duration::from_millis(5));
        let hit = signal
            .map(|signal| format!("signal {}", signal.0))
            .or_else(|| {
                let accepted = unix.as_ref()?.accept().ok();
                accepted.map(|_| "abstract connection".to_owned())
            })
            .or_else(|| {
                let accepted = tcp.as_ref()?.accept().ok();
                accepted.map(|_| "TCP connection".to_owned())
            })
            .or_else(|| {
                let starved = shared.iter().position(|(_, attempt)| !attempt())?;
                Some(format!("starved of {}", shared.remove(starved).0))
            });
        if let Some(hit) = hit {
            writeln!(out, "hit {hit}")?;
            out.flush()?;
        }
    }
    Ok(())
}
