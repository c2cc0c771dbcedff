//! Kernel interfaces in /proc, /sys and /dev.

use super::{Attempts, Canary, Class, Inside, Kind, Observation, Oracle, Probe, Severity};
use ironcage_sys::rustix::fs::{Access, AtFlags, CWD, accessat};
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};

const KI: Probe = Probe {
    kind: Kind::Surface,
    ..Probe::of(Class::Ki)
};
const READ_ONLY_PROC: &str = "masked and read-only /proc";
const NO_SYS: &str = "no /sys";

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "KI-01",
        severity: Severity::Critical,
        title: "open for writing what makes the kernel run a program",
        canary: "core_pattern, modprobe, uevent_helper, binfmt_misc; opened, never written",
        layers: &[READ_ONLY_PROC, NO_SYS, "no capabilities"],
        references: &["CVE-2025-52881", "ATT&CK T1611"],
        inside: |_| {
            open_for_writing(&[
                "/proc/sys/kernel/core_pattern",
                "/proc/sys/kernel/modprobe",
                "/proc/sys/kernel/hotplug",
                "/sys/kernel/uevent_helper",
                "/proc/sys/fs/binfmt_misc/register",
                "/proc/sys/vm/panic_on_oom",
                "/proc/sys/kernel/randomize_va_space",
            ])
        },
        ..KI
    },
    Probe {
        id: "KI-02",
        severity: Severity::Critical,
        title: "open sysrq-trigger for writing",
        canary: "the descriptor; nothing is written",
        layers: &[READ_ONLY_PROC],
        references: &["ATT&CK T1529"],
        inside: |_| open_for_writing(&["/proc/sysrq-trigger"]),
        ..KI
    },
    Probe {
        id: "KI-03",
        title: "any writable file in /sys",
        canary: "the answer of access(2) on files of /sys",
        layers: &[NO_SYS],
        references: &["ATT&CK T1611"],
        inside: |_| {
            let mut attempts = Attempts::new();
            match writable_below(Path::new("/sys"), 4) {
                Some(path) => attempts.say(true, path.display().to_string()),
                None => attempts.say(false, "none"),
            }
            attempts.done()
        },
        ..KI
    },
    Probe {
        id: "KI-04",
        severity: Severity::Critical,
        title: "make a control group or write a release agent",
        canary: "a directory made, and removed, in a cgroup tree",
        layers: &["no cgroup tree in view", "cgroup namespace"],
        references: &["CVE-2022-0492", "ATT&CK T1611"],
        inside: control_groups,
        ..KI
    },
    Probe {
        id: "KI-05",
        title: "devices beyond the ordinary few",
        canary: "the names in /dev",
        layers: &["private /dev"],
        references: &["CIS Docker 5.17", "ATT&CK T1611"],
        inside: devices,
        ..KI
    },
    Probe {
        id: "KI-06",
        severity: Severity::Medium,
        title: "read kernel addresses and memory",
        canary: "values of kallsyms that are not zero; kcore, kpageflags that open",
        layers: &[READ_ONLY_PROC],
        references: &["OCI runtime specification, maskedPaths", "ATT&CK T1082"],
        inside: kernel_memory,
        ..KI
    },
    Probe {
        id: "KI-07",
        severity: Severity::Low,
        title: "take stock of the hardware in /sys",
        canary: "entries of /sys/class and /sys/devices",
        layers: &[NO_SYS],
        references: &["ATT&CK T1082"],
        inside: |_| {
            let mut attempts = Attempts::new();
            for directory in ["/sys/class", "/sys/devices", "/sys/block", "/sys/firmware"] {
                let count = fs::read_dir(directory).map_or(0, Iterator::count);
                attempts.say(count > 0, format!("{directory}: {count} entries"));
            }
            attempts.done()
        },
        ..KI
    },
    Probe {
        id: "KI-08",
        severity: Severity::Low,
        title: "see the host's devices and paths in the mount table",
        canary: "mounts of block devices in /proc/self/mountinfo",
        layers: &["minimal mounts"],
        references: &["ATT&CK T1082"],
        inside: |_| {
            let mut attempts = Attempts::new();
            let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            let sources = table
                .lines()
                .filter_map(|line| line.split(" - ").nth(1)?.split(' ').nth(1));
            match sources
                .into_iter()
                .find(|source| source.starts_with("/dev/"))
            {
                Some(source) => attempts.say(true, format!("source {source}")),
                None => attempts.say(false, "no device named"),
            }
            attempts.done()
        },
        ..KI
    },
    Probe {
        id: "KI-09",
        kind: Kind::Effect,
        severity: Severity::Critical,
        title: "reach the old root through the supervisor in /proc",
        canary: "~/.ssh/id_canary with a nonce",
        layers: &["supervisor pivoted and not dumpable"],
        references: &["CVE-2024-21626", "ATT&CK T1611"],
        control: super::Control::Privileged,
        inside: old_root,
        oracle: Oracle::Nonce(Canary::SshKey),
        ..KI
    },
];

fn open_for_writing(paths: &[&str]) -> Observation {
    let mut attempts = Attempts::new();
    for path in paths {
        attempts.note(path, OpenOptions::new().write(true).open(path));
    }
    attempts.done()
}

fn writable_below(directory: &Path, depth: u32) -> Option<PathBuf> {
    for entry in fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .take(400)
    {
        let (path, kind) = (entry.path(), entry.file_type().ok()?);
        if kind.is_file() && accessat(CWD, &path, Access::WRITE_OK, AtFlags::empty()).is_ok() {
            return Some(path);
        }
        // Control groups have a probe of their own.
        if kind.is_dir()
            && depth > 0
            && !path.ends_with("cgroup")
            && let Some(found) = writable_below(&path, depth - 1)
        {
            return Some(found);
        }
    }
    None
}

fn control_groups(_: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut places: Vec<PathBuf> = table
        .lines()
        .filter(|line| line.contains(" - cgroup"))
        .filter_map(|line| line.split(' ').nth(4).map(PathBuf::from))
        .collect();
    places.push(PathBuf::from("/sys/fs/cgroup"));
    for place in places {
        let made = place.join(format!("ironcage-probe-{}", std::process::id()));
        let what = format!("mkdir in {}", place.display());
        if attempts.note(&what, fs::create_dir(&made)).is_some() {
            // Made to see that it can be; not needed.
            let _ = fs::remove_dir(&made);
        }
        let agent = place.join("release_agent");
        if agent.exists() {
            let what = agent.display().to_string();
            attempts.note(&what, OpenOptions::new().write(true).open(&agent));
        }
    }
    attempts.done()
}

const ORDINARY: [&str; 20] = [
    "null", "zero", "full", "random", "urandom", "tty", "pts", "ptmx", "shm", "fd", "stdin",
    "stdout", "stderr", "core", "console", "mqueue", "log", "initctl", "char", "block",
];

fn devices(_: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let beyond: Vec<String> = names
        .into_iter()
        .filter(|name| !ORDINARY.contains(&name.as_str()))
        .collect();
    let shown = beyond
        .iter()
        .take(8)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    let text = if beyond.is_empty() {
        "none".to_owned()
    } else {
        format!("{} more: {shown}", beyond.len())
    };
    attempts.say(!beyond.is_empty(), text);
    attempts.done()
}

fn kernel_memory(_: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let mut text = Vec::new();
    let read = File::open("/proc/kallsyms").and_then(|file| file.take(4096).read_to_end(&mut text));
    if read.is_ok() {
        let shown = String::from_utf8_lossy(&text);
        let known = shown.lines().any(|line| {
            line.split(' ')
                .next()
                .is_some_and(|value| value.bytes().any(|byte| byte != b'0'))
        });
        attempts.say(
            known,
            if known {
                "kallsyms has addresses"
            } else {
                "kallsyms: zeros"
            },
        );
    } else {
        attempts.note("kallsyms", read);
    }
    for path in [
        "/proc/kcore",
        "/proc/kpageflags",
        "/proc/kpagecount",
        "/dev/mem",
        "/proc/kmsg",
    ] {
        // Opened without waiting for a message and not read: an empty mask opens too.
        let opened = File::open(path).and_then(|file| file.metadata());
        let real = opened.as_ref().is_ok_and(|metadata| {
            use std::os::unix::fs::FileTypeExt;
            let null = metadata.file_type().is_char_device() && path != "/dev/mem";
            !null
        });
        match opened {
            Ok(_) if real => attempts.say(true, format!("{path} opens")),
            Ok(_) => attempts.say(false, format!("{path}: masked")),
            Err(error) => {
                attempts.note(path, Err::<(), _>(error));
            }
        }
    }
    attempts.done()
}

fn old_root(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let secret = inside.params.home.join(".ssh/id_canary");
    let bare = secret.strip_prefix("/").unwrap_or(&secret).to_owned();
    for pid in super::pr::others() {
        for link in ["root", "cwd"] {
            let path = PathBuf::from(format!("/proc/{pid}/{link}")).join(&bare);
            attempts.read(&format!("/proc/{pid}/{link}"), path);
        }
        let held = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
            .flatten();
        for entry in held.take(64) {
            let path = entry.path();
            attempts.read(&format!("/proc/{pid}/fd"), path.join(&bare));
            attempts.read(&format!("/proc/{pid}/fd"), path.join(".ssh/id_canary"));
        }
    }
    attempts.done()
}
