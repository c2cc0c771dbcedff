//! Resources: small bombs, under small limits, watched from outside.

use super::{Attempts, Class, Control, Inside, Kind, Observation, Oracle, Probe, Setup, Severity};
use crate::inside::publish;
use crate::params::Limits;
use ironcage_sys::attack;
use ironcage_sys::rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use ironcage_sys::rustix::io::Errno;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

const RS: Probe = Probe {
    setup: Setup::Limits,
    ..Probe::of(Class::Rs)
};
const LIMITS: Limits = Limits::SMALL;
const CGROUP: &str = "cgroup, else the next best means";

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "RS-01",
        title: "more processes than allowed",
        canary: "processes of the probe, counted outside",
        layers: &[CGROUP, "RLIMIT_NPROC"],
        references: &["CIS Docker 5.28", "ATT&CK T1499.001"],
        inside: fork_many,
        oracle: Oracle::Seen(|_, evidence| {
            let tasks = evidence.samples.tasks;
            (tasks > LIMITS.pids).then(|| format!("{tasks} at once, {} allowed", LIMITS.pids))
        }),
        ..RS
    },
    Probe {
        id: "RS-02",
        title: "more memory than allowed",
        canary: "resident memory of the probe, measured outside",
        layers: &[CGROUP, "watchdog"],
        references: &["CIS Docker 5.10", "ATT&CK T1499"],
        inside: take_memory,
        oracle: Oracle::Seen(too_much_memory),
        ..RS
    },
    Probe {
        id: "RS-02t",
        title: "more memory than allowed, in files of /tmp, /dev/shm and memfds",
        canary: "resident memory of the probe, measured outside",
        layers: &[CGROUP, "size of the tmpfs", "watchdog"],
        references: &["ATT&CK T1499"],
        inside: take_file_memory,
        oracle: Oracle::Seen(too_much_memory),
        ..RS
    },
    Probe {
        id: "RS-03",
        title: "more bytes on disk than allowed",
        canary: "bytes in the workspace, counted outside, and in /tmp",
        layers: &["size of the tmpfs", "watchdog over the workspace"],
        references: &["CWE-400", "ATT&CK T1499"],
        inside: fill_disk,
        oracle: Oracle::Seen(|stage, evidence| {
            let allowed = LIMITS.disk_mib;
            let outside = bytes_in(&stage.layout.suite.join("large")) >> 20;
            let inside = evidence.observation().map_or(0, |seen| number(&seen.data));
            let most = outside.max(inside);
            (most >= allowed * 2).then(|| format!("{most} MiB, {allowed} allowed"))
        }),
        ..RS
    },
    Probe {
        id: "RS-04",
        severity: Severity::Medium,
        title: "more files than allowed",
        canary: "files in the workspace, counted outside, and in /tmp",
        layers: &["inodes of the tmpfs", "watchdog over the workspace"],
        references: &["CWE-400", "ATT&CK T1499"],
        inside: make_files,
        oracle: Oracle::Seen(|stage, evidence| {
            let allowed = LIMITS.inodes;
            let listed = fs::read_dir(stage.layout.suite.join("many"));
            let outside = listed.map_or(0, |entries| entries.count() as u64);
            let inside = evidence.observation().map_or(0, |seen| number(&seen.data));
            let most = outside.max(inside);
            (most >= allowed * 2).then(|| format!("{most} files, {allowed} allowed"))
        }),
        ..RS
    },
    Probe {
        id: "RS-05",
        severity: Severity::Medium,
        title: "more descriptors than allowed",
        canary: "descriptors of the probe, counted outside",
        layers: &["RLIMIT_NOFILE, the hard one"],
        references: &["CIS Docker 5.18", "ATT&CK T1499"],
        inside: open_many,
        oracle: Oracle::Seen(|_, evidence| {
            let most = evidence.samples.descriptors;
            (most > LIMITS.files).then(|| format!("{most} open, {} allowed", LIMITS.files))
        }),
        ..RS
    },
    Probe {
        id: "RS-06",
        kind: Kind::Surface,
        severity: Severity::Medium,
        title: "a real-time class or a higher priority",
        canary: "the class and nice value of the probe, read outside",
        layers: &["no capabilities", "rlimits"],
        references: &["ATT&CK T1499"],
        control: Control::Privileged,
        inside: |_| {
            let mut attempts = Attempts::new();
            attempts.note("nice -20", attack::nice_raise());
            attempts.note("SCHED_FIFO", attack::realtime_schedule());
            std::thread::sleep(Duration::from_millis(60));
            attempts.done()
        },
        oracle: Oracle::Seen(|_, evidence| {
            evidence
                .samples
                .boosted
                .then(|| "the priority was raised".to_owned())
        }),
        ..RS
    },
    Probe {
        id: "RS-08",
        severity: Severity::Medium,
        title: "flood the streams while nobody reads",
        canary: "resident memory of the launcher, measured outside",
        layers: &["bounded buffers with back-pressure"],
        references: &["CWE-779", "ATT&CK T1499"],
        setup: Setup::SlowReader,
        control: Control::FaultyLauncher,
        inside: flood,
        oracle: Oracle::Seen(|_, evidence| {
            let most = evidence.launcher_mib;
            (most > 48).then(|| format!("the launcher grew to {most} MiB"))
        }),
        ..RS
    },
    Probe {
        id: "RS-09",
        severity: Severity::Medium,
        title: "more processors than allowed",
        canary: "processor time of the probe, measured outside",
        layers: &[CGROUP, "a set of processors"],
        references: &["CIS Docker 5.11", "ATT&CK T1496"],
        inside: spin,
        oracle: Oracle::Seen(|_, evidence| too_much_time(evidence, LIMITS)),
        ..RS
    },
    Probe {
        id: "RS-09s",
        kind: Kind::Surface,
        severity: Severity::Medium,
        title: "more than the allowed share of one processor",
        canary: "processor time of the probe, measured outside",
        layers: &["cgroup"],
        references: &["CIS Docker 5.11", "ATT&CK T1496"],
        setup: Setup::CpuShare,
        inside: spin,
        oracle: Oracle::Seen(|_, evidence| too_much_time(evidence, Limits::SHARE)),
        ..RS
    },
];

fn too_much_time(evidence: &super::Evidence, limits: Limits) -> Option<String> {
    let allowed = limits.cpu_percent * SPIN_MS / 1000;
    let spent = evidence.samples.ticks;
    let free = evidence.samples.processor_percent.unwrap_or(0);
    // A fifth more is allowed for measuring, and for what a quota lets pass in its first period.
    if spent > allowed * 6 / 5 {
        return Some(format!("{spent} hundredths of a second, {allowed} allowed"));
    }
    // On a busy machine nobody gets more, so what it would be given counts as well.
    (free > limits.cpu_percent).then(|| {
        format!(
            "{free} % of a processor is free to it, {} allowed",
            limits.cpu_percent
        )
    })
}

fn number(text: &str) -> u64 {
    text.trim().parse().unwrap_or(0)
}

fn too_much_memory(_: &super::Stage, evidence: &super::Evidence) -> Option<String> {
    let (most, allowed) = (evidence.samples.resident_mib, LIMITS.memory_mib);
    // A watchdog is always a little late; twice the limit is no limit.
    (most >= allowed * 2).then(|| format!("{most} MiB resident, {allowed} allowed"))
}

fn fork_many(_: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let mut made = 0;
    for _ in 0..150 {
        let child = attack::fork_start(|| {
            std::thread::sleep(Duration::from_millis(500));
            0
        });
        match child {
            Ok(_) => made += 1,
            Err(error) => {
                attempts.note(&format!("fork after {made}"), Err::<(), _>(error));
                break;
            }
        }
    }
    std::thread::sleep(Duration::from_millis(150));
    attempts.say(made >= 150, format!("{made} children"));
    attempts.done()
}

/// Takes anonymous memory, all at once.
fn take_memory(_: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let taken = touch_slowly(None, 640 << 20);
    attempts.note("anonymous memory", taken);
    std::thread::sleep(Duration::from_millis(60));
    attempts.done()
}

fn touch_slowly(file: Option<&File>, size: usize) -> Result<(), Errno> {
    attack::touch_memory(file.map(AsFd::as_fd), size, |done| {
        // Not at full speed: what watches needs no more than the kernel's own pace.
        if done.is_multiple_of(32 << 20) {
            std::thread::sleep(Duration::from_millis(2));
        }
    })
}

/// Takes memory that belongs to no process: many files, each below every limit on one file.
fn take_file_memory(_: &Inside) -> Observation {
    const PIECE: usize = 24 << 20;
    let mut attempts = Attempts::new();
    let mut held = Vec::new();
    let in_directory = |path: String| -> std::io::Result<File> {
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        // Unlinked, so that nothing stays on the stage; the mapping keeps the memory.
        fs::remove_file(&path)?;
        Ok(file)
    };
    let unnamed = || memfd_create("probe", MemfdFlags::CLOEXEC).map(File::from);
    let mut take = |what: &str, opened: std::io::Result<File>| -> bool {
        let taken = opened.and_then(|file| {
            // Reserved first: a touch beyond what is there would be the end of the probe.
            fallocate(&file, FallocateFlags::empty(), 0, PIECE as u64)?;
            touch_slowly(Some(&file), PIECE)?;
            held.push(file);
            Ok(())
        });
        attempts.note(what, taken).is_some()
    };
    for place in ["/tmp", "/dev/shm"] {
        for piece in 0..4 {
            if !take(place, in_directory(format!("{place}/piece-{piece}"))) {
                break;
            }
        }
    }
    for _ in 0..24 {
        if !take("memfd", unnamed().map_err(std::io::Error::from)) {
            break;
        }
    }
    std::thread::sleep(Duration::from_millis(60));
    attempts.done()
}

/// Fills a directory with files that are each below every limit on one file.
fn fill(directory: &Path, mib: u64) -> (u64, std::io::Result<()>) {
    const PIECE: u64 = 12;
    let chunk = vec![0xa5u8; 1 << 20];
    let mut written = 0;
    let mut run = || -> std::io::Result<()> {
        fs::create_dir_all(directory)?;
        while written < mib {
            let mut file = File::create(directory.join(format!("piece-{written}")))?;
            for _ in 0..PIECE {
                file.write_all(&chunk)?;
                written += 1;
                // A pace that a disk has, and that a watchdog can follow.
                std::thread::sleep(Duration::from_millis(4));
            }
        }
        Ok(())
    };
    let done = run();
    (written, done)
}

fn fill_disk(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let (in_tmp, done) = fill(Path::new("/tmp/left-large"), 144);
    attempts.note("fill /tmp", done);
    let mut observation = attempts.done();
    observation.data = in_tmp.to_string();
    // Before the workspace, as a watchdog may end this process there.
    publish(&observation);
    let _ = fs::remove_dir_all("/tmp/left-large");
    let mut attempts = Attempts::new();
    let (_, done) = fill(&inside.params.workspace.join(".suite/large"), 144);
    attempts.note("fill the workspace", done);
    std::thread::sleep(Duration::from_millis(300));
    let mut last = attempts.done();
    last.data = observation.data;
    last
}

/// Bytes of the files in a directory.
fn bytes_in(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.metadata().ok())
        .map(|metadata| metadata.len())
        .sum()
}

fn files_in(directory: &Path, count: u64) -> (u64, std::io::Result<()>) {
    let mut made = 0;
    let mut run = || -> std::io::Result<()> {
        fs::create_dir_all(directory)?;
        while made < count {
            File::create(directory.join(made.to_string()))?;
            made += 1;
            if made % 250 == 0 {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(())
    };
    let done = run();
    (made, done)
}

fn make_files(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let (in_tmp, done) = files_in(Path::new("/tmp/left-many"), 10_500);
    attempts.note("files in /tmp", done);
    let mut observation = attempts.done();
    observation.data = in_tmp.to_string();
    publish(&observation);
    let _ = fs::remove_dir_all("/tmp/left-many");
    let mut attempts = Attempts::new();
    let (_, done) = files_in(&inside.params.workspace.join(".suite/many"), 10_500);
    attempts.note("files in the workspace", done);
    std::thread::sleep(Duration::from_millis(300));
    let mut last = attempts.done();
    last.data = observation.data;
    last
}

fn open_many(_: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    attempts.note("raise RLIMIT_NOFILE", raise_files());
    attempts = Attempts::new();
    let mut held = Vec::new();
    for _ in 0..1000 {
        match File::open("/dev/null") {
            Ok(file) => held.push(file),
            Err(error) => {
                attempts.note(&format!("open after {}", held.len()), Err::<(), _>(error));
                break;
            }
        }
    }
    std::thread::sleep(Duration::from_millis(100));
    attempts.say(held.len() >= 1000, format!("{} open", held.len()));
    attempts.done()
}

fn raise_files() -> Result<(), ironcage_sys::rustix::io::Errno> {
    use ironcage_sys::rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    // First beyond the hard limit, then up to it.
    let beyond = Rlimit {
        current: Some(4096),
        maximum: Some(4096),
    };
    if now.maximum.is_none_or(|hard| hard >= 4096) || setrlimit(Resource::Nofile, beyond).is_err() {
        return setrlimit(
            Resource::Nofile,
            Rlimit {
                current: now.maximum,
                ..now
            },
        );
    }
    Ok(())
}

fn flood(_: &Inside) -> Observation {
    let line = vec![b'x'; 1 << 20];
    let mut out = std::io::stdout();
    let started = Instant::now();
    let mut written = 0;
    while written < 160 && started.elapsed() < Duration::from_secs(6) {
        if out.write_all(&line).is_err() {
            break;
        }
        written += 1;
    }
    let _ = out.write_all(b"\n");
    let mut attempts = Attempts::new();
    attempts.say(written >= 160, format!("{written} MiB written"));
    attempts.done()
}

const SPIN_MS: u64 = 1500;

fn spin(_: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    let until = Instant::now() + Duration::from_millis(SPIN_MS);
    // Many, so that a busy machine gives them most of its time all the same.
    for _ in 0..(processors * 8).clamp(8, 32) {
        let child = attack::fork_start(|| {
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            0
        });
        attempts.note("spinner", child);
    }
    std::thread::sleep(Duration::from_millis(SPIN_MS - 30));
    attempts.done()
}
