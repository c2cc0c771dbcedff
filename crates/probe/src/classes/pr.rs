//! Processes outside the sandbox, and the sandbox's own supervisor.

use super::{
    Attempts, Canary, Channel, Class, Control, Inside, Observation, Oracle, Probe, Setup, Severity,
};
use ironcage_sys::attack;
use ironcage_sys::rustix::fs::{CWD, Mode, OFlags, openat};
use ironcage_sys::rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open,
    setpriority_process,
};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

const PR: Probe = Probe::of(Class::Pr);
const PID_NS: &str = "pid namespace with a /proc of its own";
const SECCOMP: &str = "seccomp";
const HIDDEN: &str = "supervisor not dumpable or outside the namespace";

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "PR-01",
        severity: Severity::Medium,
        title: "read the arguments of processes outside",
        canary: "the canary process's arguments with a nonce",
        layers: &[PID_NS],
        references: &["CIS Docker 5.15", "ATT&CK T1057"],
        inside: |inside| each_process(inside, "cmdline"),
        oracle: Oracle::Nonce(Canary::Arguments),
        ..PR
    },
    Probe {
        id: "PR-02",
        severity: Severity::Critical,
        title: "read the environment of processes outside",
        canary: "the canary process's environment with a nonce",
        layers: &[PID_NS],
        references: &["ATT&CK T1552"],
        control: Control::Privileged,
        inside: |inside| each_process(inside, "environ"),
        oracle: Oracle::Nonce(Canary::ProcessEnvironment),
        ..PR
    },
    Probe {
        id: "PR-03",
        severity: Severity::Critical,
        title: "read files through another process's root",
        canary: "~/.ssh/id_canary with a nonce",
        layers: &[PID_NS, "mount namespace with an allow-listed view"],
        references: &["ATT&CK T1611"],
        control: Control::Privileged,
        inside: |inside| {
            let secret = inside.params.home.join(".ssh/id_canary");
            let path = secret.strip_prefix("/").unwrap_or(&secret);
            each_process(inside, &format!("root/{}", path.display()))
        },
        oracle: Oracle::Nonce(Canary::SshKey),
        ..PR
    },
    Probe {
        id: "PR-04",
        severity: Severity::Critical,
        title: "read the memory of a process outside",
        canary: "the canary process's memory with a nonce",
        layers: &[PID_NS, SECCOMP],
        references: &["CWE-668", "ATT&CK T1003"],
        control: Control::Privileged,
        inside: read_memory,
        oracle: Oracle::Nonce(Canary::Memory),
        ..PR
    },
    Probe {
        id: "PR-05",
        severity: Severity::Critical,
        title: "trace a process outside",
        canary: "the canary process, which notes a tracer",
        layers: &[PID_NS, SECCOMP],
        references: &["ATT&CK T1055.008"],
        control: Control::Privileged,
        inside: |inside| {
            let mut attempts = Attempts::new();
            if let Some(pid) = victim(inside)
                && attempts
                    .note("PTRACE_SEIZE", attack::ptrace_seize(pid))
                    .is_some()
            {
                std::thread::sleep(Duration::from_millis(120));
            }
            attempts.done()
        },
        oracle: Oracle::Hit(Channel::Traced),
        ..PR
    },
    Probe {
        id: "PR-06",
        title: "signal a process outside",
        canary: "the canary process, which notes signals",
        layers: &[PID_NS, "Landlock scope on signals"],
        references: &["ATT&CK T1489"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            if let Some(pid) = victim(inside) {
                attempts.note("kill", kill_process(pid, Signal::USR2));
            }
            attempts.done()
        },
        oracle: Oracle::Hit(Channel::Signal),
        ..PR
    },
    Probe {
        id: "PR-07",
        severity: Severity::Critical,
        title: "take a descriptor from a process outside",
        canary: "a deleted file with a nonce, open in the canary process",
        layers: &[PID_NS, SECCOMP],
        references: &["pidfd_getfd(2)", "ATT&CK T1055"],
        control: Control::Privileged,
        inside: steal_descriptor,
        oracle: Oracle::Nonce(Canary::HeldFile),
        ..PR
    },
    Probe {
        id: "PR-08",
        title: "signal every process at once",
        canary: "the canary process, which notes signals",
        layers: &[PID_NS, "Landlock scope on signals"],
        references: &["CWE-284", "ATT&CK T1489"],
        inside: |_| {
            const SIGURG: i32 = ironcage_sys::rustix::process::Signal::URG.as_raw();
            let mut attempts = Attempts::new();
            attempts.note("kill(-1)", attack::kill_everyone(SIGURG));
            attempts.done()
        },
        oracle: Oracle::Hit(Channel::Signal),
        ..PR
    },
    Probe {
        id: "PR-09",
        title: "trace the supervisor, or any process in view",
        canary: "the tracer of every process on the stage, watched outside",
        layers: &[HIDDEN, SECCOMP],
        references: &["ATT&CK T1055.008"],
        setup: Setup::Watched,
        control: Control::Privileged,
        inside: trace_supervisor,
        oracle: Oracle::Seen(|_, evidence| {
            let traced = evidence.samples.traced.first()?;
            Some(format!("process {traced} had a tracer"))
        }),
        ..PR
    },
    Probe {
        id: "PR-10",
        title: "open the memory of the supervisor for writing",
        canary: "open descriptors of the probe, watched outside",
        layers: &[HIDDEN, SECCOMP],
        references: &["CWE-250", "ATT&CK T1055"],
        setup: Setup::Watched,
        control: Control::Privileged,
        inside: open_supervisor_memory,
        oracle: Oracle::Seen(|_, evidence| {
            let memory = evidence.samples.memories.first()?;
            Some(format!("{} was open", memory.display()))
        }),
        ..PR
    },
    Probe {
        id: "PR-12",
        severity: Severity::Critical,
        title: "overwrite the launcher's program",
        canary: "the launcher's file, compared outside",
        layers: &[
            "program in a sealed memory file or on a read-only mount",
            "pid namespace",
        ],
        references: &["CVE-2019-5736", "ATT&CK T1611"],
        inside: overwrite_launcher,
        oracle: Oracle::Seen(|stage, _| {
            std::thread::sleep(Duration::from_millis(300));
            let content = fs::read(&stage.params.launcher).ok()?;
            content
                .ends_with(OVERWRITTEN)
                .then(|| "the launcher's file changed".to_owned())
        }),
        ..PR
    },
    Probe {
        id: "PR-13",
        severity: Severity::Medium,
        title: "switch a filter off by tracing",
        canary: "a child of its own, traced with PTRACE_O_SUSPEND_SECCOMP",
        layers: &["no capabilities", SECCOMP],
        references: &["ptrace(2)", "ATT&CK T1685"],
        control: Control::Privileged,
        inside: suspend_seccomp,
        oracle: Oracle::Reached,
        ..PR
    },
    Probe {
        id: "PR-14",
        severity: Severity::Medium,
        title: "change the priority of a process outside",
        canary: "the nice value of the canary process",
        layers: &[PID_NS],
        references: &["setpriority(2)", "ATT&CK T1499"],
        inside: |inside| {
            let mut attempts = Attempts::new();
            let pid = Pid::from_raw(inside.params.victim.pid);
            attempts.note(
                "setpriority",
                setpriority_process(pid, inside.params.victim_nice),
            );
            attempts.done()
        },
        oracle: Oracle::Seen(|stage, _| {
            let wanted = i64::from(stage.params.victim_nice);
            let now = crate::sampler::nice_value(stage.params.victim.pid)?;
            (now >= wanted).then(|| format!("the nice value is {now}"))
        }),
        ..PR
    },
];

/// What the probe appends to the launcher's file.
const OVERWRITTEN: &[u8] = b"\noverwritten by a probe\n";

fn victim(inside: &Inside) -> Option<Pid> {
    Pid::from_raw(inside.params.victim.pid)
}

/// Process ids in view, without the caller and its parent.
pub(crate) fn others() -> Vec<i32> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| pid.unsigned_abs() != own)
        .collect()
}

/// Reads one file of every process in view, and of the canary process by its number outside.
pub(crate) fn each_process(inside: &Inside, file: &str) -> Observation {
    let mut attempts = Attempts::new();
    let mut pids = others();
    pids.push(inside.params.victim.pid);
    for pid in pids {
        attempts.read(
            &format!("/proc/{pid}/{file}"),
            format!("/proc/{pid}/{file}"),
        );
    }
    attempts.done()
}

fn read_memory(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let Some(pid) = victim(inside) else {
        return attempts.done();
    };
    let address = inside.params.victim.address;
    let read = attack::read_memory(pid, address, 64);
    if let Some(content) = attempts.note("process_vm_readv", read) {
        attempts.carry(&content);
    }
    let by_file =
        File::open(format!("/proc/{}/mem", inside.params.victim.pid)).and_then(|mut file| {
            file.seek(SeekFrom::Start(address))?;
            let mut content = [0u8; 38];
            file.read_exact(&mut content)?;
            Ok(content)
        });
    if let Some(content) = attempts.note("/proc/PID/mem", by_file) {
        attempts.carry(&content);
    }
    attempts.done()
}

fn steal_descriptor(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let Some(pid) = victim(inside) else {
        return attempts.done();
    };
    let number = inside.params.victim.descriptor;
    if let Some(process) = attempts.note("pidfd_open", pidfd_open(pid, PidfdFlags::empty())) {
        let taken = pidfd_getfd(process.as_fd(), number, PidfdGetfdFlags::empty());
        if let Some(file) = attempts.note("pidfd_getfd", taken) {
            let mut content = Vec::new();
            let mut file = File::from(file);
            // The offset is shared with the owner, who has written to the end.
            let read = file
                .seek(SeekFrom::Start(0))
                .and_then(|_| file.read_to_end(&mut content));
            attempts.note("read", read);
            attempts.carry(&content);
        }
    }
    let path = format!("/proc/{}/fd/{number}", inside.params.victim.pid);
    attempts.read("/proc/PID/fd", path);
    attempts.done()
}

fn trace_supervisor(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let mut seized = Vec::new();
    for pid in others().into_iter().filter_map(Pid::from_raw) {
        let what = format!("PTRACE_SEIZE {}", pid.as_raw_nonzero());
        if attempts.note(&what, attack::ptrace_seize(pid)).is_some() {
            seized.push(pid);
            break;
        }
    }
    if !seized.is_empty() {
        inside.hold();
    }
    attempts.done()
}

fn open_supervisor_memory(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let mut held = Vec::new();
    for pid in others() {
        let path = format!("/proc/{pid}/mem");
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        held.extend(attempts.note(&path, opened));
    }
    if !held.is_empty() {
        inside.hold();
    }
    attempts.done()
}

/// Keeps a descriptor of the program of every process in view, and of the launcher by its path,
/// and writes to it as soon as it no longer runs.
fn overwrite_launcher(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let mut paths: Vec<String> = others()
        .into_iter()
        .map(|pid| format!("/proc/{pid}/exe"))
        .collect();
    paths.push(inside.params.launcher.to_string_lossy().into_owned());
    let mut held = Vec::new();
    for path in paths {
        let opened = openat(CWD, &path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let Some(file) = attempts.note(&path, opened.map(File::from)) else {
            continue;
        };
        // Nothing but the stage's copy of the launcher is ever written to.
        let metadata = file.metadata();
        let inode = metadata.map(|metadata| (metadata.dev(), metadata.ino()));
        if inode.is_ok_and(|inode| inode == inside.params.launcher_inode) {
            held.push(file);
        }
    }
    let reached = !held.is_empty();
    let started = attack::fork_start(|| {
        for _ in 0..40 {
            for file in &held {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                let opened = OpenOptions::new().append(true).open(path);
                if opened.is_ok_and(|mut file| file.write_all(OVERWRITTEN).is_ok()) {
                    return 0;
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        1
    });
    let mut attempts = Attempts::new();
    attempts.say(
        reached && started.is_ok(),
        "a descriptor of the launcher's program",
    );
    attempts.done()
}

fn suspend_seccomp(_: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let child = attack::fork_start(|| {
        std::thread::sleep(Duration::from_millis(300));
        0
    });
    if let Some(child) = attempts.note("fork", child) {
        attempts = Attempts::new();
        let seized = attack::ptrace_seize_suspending_seccomp(child);
        attempts.note("PTRACE_O_SUSPEND_SECCOMP", seized);
        // It is our own; its end is not of interest.
        let _ = kill_process(child, Signal::KILL);
        let _ = attack::wait_for(child);
    }
    attempts.done()
}
