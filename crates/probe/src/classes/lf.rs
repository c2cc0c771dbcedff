//! Start and end: what goes on after the sandbox is gone, and what it leaves.

use super::{
    Attempts, Class, Evidence, Inside, Observation, Oracle, Probe, Setup, Severity, Stage,
};
use crate::inside::publish;
use ironcage_sys::attack;
use ironcage_sys::rustix::process::{Signal, kill_process, setsid};
use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

const LF: Probe = Probe::of(Class::Lf);
const DIES: &str = "pid namespace: all die with its first process";

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "LF-01",
        title: "a daemon that outlives the sandbox",
        canary: "a heartbeat in the workspace, watched after the end",
        layers: &[DIES],
        references: &["ATT&CK T1564.011"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            attempts.note("setsid daemon", daemonise(inside, BEATS));
            wait_for_heartbeat(inside);
            attempts.done()
        },
        oracle: Oracle::Seen(survived),
        ..LF
    },
    Probe {
        id: "LF-02",
        title: "outlive a launcher that is killed",
        canary: "a heartbeat in the workspace, watched after the kill",
        layers: &["parent-death signal", DIES],
        references: &["ATT&CK T1564.011"],
        setup: Setup::LauncherKilled,
        inside: beat_and_stay,
        oracle: Oracle::Seen(survived),
        ..LF
    },
    Probe {
        id: "LF-04",
        severity: Severity::Medium,
        title: "outlive the time limit: ignoring TERM, stopped, fifty children",
        canary: "a heartbeat in the workspace, and the launcher's end",
        layers: &["time limit", DIES],
        references: &["ATT&CK T1499"],
        setup: Setup::Deadline,
        inside: outlive_deadline,
        oracle: Oracle::Seen(|stage, evidence| {
            let late = evidence
                .overdue
                .then(|| "the launcher did not end in time".to_owned());
            late.or_else(|| survived(stage, evidence))
        }),
        ..LF
    },
    Probe {
        id: "LF-05",
        severity: Severity::Medium,
        title: "fifty starts by an agent that leaves things behind",
        canary: "processes, mounts, files, queues, cgroups and descriptors before and after",
        layers: &[DIES, "private /tmp and /dev/shm", "ipc namespace"],
        references: &["ATT&CK T1499"],
        setup: Setup::Repeated(50),
        inside: leave_things,
        oracle: Oracle::Seen(left),
        ..LF
    },
    Probe {
        id: "LF-06",
        severity: Severity::Medium,
        title: "what a killed launcher leaves, after the next start",
        canary: "processes, mounts, files, queues, cgroups and descriptors before and after",
        layers: &[DIES, "the next start takes away what a killed one left"],
        references: &["ATT&CK T1499"],
        setup: Setup::LauncherKilledCounted,
        inside: beat_and_stay,
        oracle: Oracle::Seen(left),
        ..LF
    },
];

/// Longer than any look at it takes; the suite ends what is left.
const BEATS: u32 = 3000;

fn beat_and_stay(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    attempts.note("setsid daemon", daemonise(inside, BEATS));
    publish(&attempts.done());
    std::thread::sleep(Duration::from_secs(4));
    Observation::default()
}

fn left(_: &Stage, evidence: &Evidence) -> Option<String> {
    let first = evidence.leftovers.first()?;
    Some(format!(
        "{} things are left, such as {first}",
        evidence.leftovers.len()
    ))
}

fn survived(_: &Stage, evidence: &Evidence) -> Option<String> {
    evidence
        .survived
        .then(|| "the heartbeat goes on".to_owned())
}

fn heartbeat_path(inside: &Inside) -> std::path::PathBuf {
    inside.params.workspace.join(".suite/heartbeat")
}

/// One beat: tells the suite outside that the probe has come so far.
pub(crate) fn beat_once(inside: &Inside) {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(heartbeat_path(inside));
    if let Ok(mut file) = file {
        // A heartbeat that cannot be written is a heartbeat that the oracle does not see.
        let _ = file.write_all(b".");
    }
}

fn beat(inside: &Inside, times: u32) {
    for _ in 0..times {
        beat_once(inside);
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn wait_for_heartbeat(inside: &Inside) {
    for _ in 0..1000 {
        if heartbeat_path(inside).exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A daemon in a session of its own, twice forked, that beats a bounded number of times.
fn daemonise(inside: &Inside, times: u32) -> Result<(), ironcage_sys::rustix::io::Errno> {
    let first = attack::fork_start(|| {
        if setsid().is_err() {
            return 1;
        }
        let second = attack::fork_start(|| {
            close_streams();
            beat(inside, times);
            0
        });
        i32::from(second.is_err())
    })?;
    attack::wait_for(first).map(drop)
}

/// Lets go of the streams, so that nobody waits for their end.
fn close_streams() {
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        // Where there is no /dev/null the streams stay, which only costs the suite time.
        let _ = ironcage_sys::rustix::stdio::dup2_stdin(&null);
        let _ = ironcage_sys::rustix::stdio::dup2_stdout(&null);
        let _ = ironcage_sys::rustix::stdio::dup2_stderr(&null);
    }
}

fn outlive_deadline(inside: &Inside) -> Observation {
    const SIGTERM: i32 = ironcage_sys::rustix::process::Signal::TERM.as_raw();
    let mut attempts = Attempts::new();
    attack::block_signals(&[SIGTERM, 1, 2]);
    attempts.note("setsid daemon", daemonise(inside, BEATS));
    let mut stopped = 0;
    for _ in 0..50 {
        let child = attack::fork_start(|| {
            std::thread::sleep(Duration::from_secs(8));
            0
        });
        if let Ok(child) = child {
            stopped += u32::from(kill_process(child, Signal::STOP).is_ok());
        }
    }
    attempts.say(stopped > 0, format!("{stopped} stopped children"));
    publish(&attempts.done());
    std::thread::sleep(Duration::from_secs(8));
    Observation::default()
}

fn leave_things(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let tag = std::process::id();
    attempts.note(
        "file in /tmp",
        std::fs::write(format!("/tmp/left-{tag}"), "x"),
    );
    attempts.note(
        "file in /dev/shm",
        std::fs::write(format!("/dev/shm/left-{tag}"), "x"),
    );
    let home = inside.params.home.join(format!("left-{tag}"));
    attempts.note("file in HOME", std::fs::write(home, "x"));
    let key = 0x1e40_0000 | i32::try_from(tag & 0xffff).unwrap_or(0);
    attempts.note("shmget", attack::shared_memory_create(key, b"x"));
    let daemon = attack::fork_start(|| {
        close_streams();
        // Not a failure where it is refused: it leads a session already.
        let _ = setsid();
        std::thread::sleep(Duration::from_secs(3));
        0
    });
    attempts.note("daemon", daemon);
    attempts.done()
}
