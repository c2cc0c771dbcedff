//! Resources: small bombs, under small limits, watched from outside.

use super::{Attempts, Class, Control, Inside, Kind, Observation, Oracle, Probe, Setup, Severity};
use crate::inside::publish;
use crate::params::Limits;
use ironcage_model::{Layer, LimitKind};
use ironcage_sys::attack;
use ironcage_sys::rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::getppid;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
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
        canary: "resident memory of the probe, measured outside; where that is more, the record of the end",
        layers: &[CGROUP, "watchdog"],
        references: &["CIS Docker 5.10", "ATT&CK T1499"],
        setup: Setup::LimitsUntilEnded,
        inside: take_memory,
        oracle: Oracle::Seen(too_much_memory),
        ..RS
    },
    Probe {
        id: "RS-02t",
        title: "more memory than allowed, in files of /tmp, /dev/shm and memfds",
        canary: "resident memory of the probe, measured outside; where that is more, the record of the end",
        layers: &[CGROUP, "size of the tmpfs", "watchdog"],
        references: &["ATT&CK T1499"],
        setup: Setup::LimitsUntilEnded,
        inside: take_file_memory,
        oracle: Oracle::Seen(too_much_memory),
        ..RS
    },
    Probe {
        id: "RS-02s",
        title: "more memory than allowed, in the buffers of sockets",
        canary: "bytes that the probe sent and nobody read; where that is more, the record of the end",
        layers: &[CGROUP, "watchdog"],
        references: &["ATT&CK T1499"],
        setup: Setup::LimitsUntilEnded,
        inside: take_socket_memory,
        oracle: Oracle::Seen(|_, evidence| {
            let sent = evidence.observation().map_or(0, |seen| number(&seen.data));
            MEMORY.held_or_ended(evidence, sent)
        }),
        ..RS
    },
    Probe {
        id: "RS-03",
        title: "more bytes on disk than allowed",
        canary: "bytes in the workspace, counted outside, and the record of the end; bytes in /tmp",
        layers: &["size of the tmpfs", "watchdog over the workspace"],
        references: &["CWE-400", "ATT&CK T1499"],
        inside: fill_disk,
        oracle: Oracle::Seen(|stage, evidence| {
            let outside = bytes_in(&stage.layout.suite.join("large"));
            too_much_on_disk(evidence, &DISK, outside)
        }),
        ..RS
    },
    Probe {
        id: "RS-03m",
        title: "more bytes than allowed, with the workspace in memory",
        canary: "bytes in the workspace and in /tmp, and what is written down of them at the end",
        layers: &["size of the tmpfs"],
        references: &["CWE-400", "ATT&CK T1499"],
        setup: Setup::LimitsInMemory,
        inside: fill_both,
        oracle: Oracle::Seen(|stage, evidence| {
            let outside =
                bytes_in(&stage.layout.suite.join("large")).max(written_down(stage, "large").0);
            too_much_in_memory(evidence, &DISK, outside)
        }),
        ..RS
    },
    Probe {
        id: "RS-04",
        severity: Severity::Medium,
        title: "more files than allowed",
        canary: "files in the workspace, counted outside, and the record of the end; files in /tmp",
        layers: &["inodes of the tmpfs", "watchdog over the workspace"],
        references: &["CWE-400", "ATT&CK T1499"],
        inside: make_files,
        oracle: Oracle::Seen(|stage, evidence| {
            too_much_on_disk(evidence, &FILES, files_in(&stage.layout.suite.join("many")))
        }),
        ..RS
    },
    Probe {
        id: "RS-04m",
        severity: Severity::Medium,
        title: "more files than allowed, with the workspace in memory",
        canary: "files in the workspace and in /tmp, and what is written down of them at the end",
        layers: &["inodes of the tmpfs"],
        references: &["CWE-400", "ATT&CK T1499"],
        setup: Setup::LimitsInMemory,
        inside: make_files_in_both,
        oracle: Oracle::Seen(|stage, evidence| {
            let outside =
                files_in(&stage.layout.suite.join("many")).max(written_down(stage, "many").1);
            too_much_in_memory(evidence, &FILES, outside)
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
        inside: |inside| {
            let mut attempts = Attempts::new();
            attempts.note("nice -20", attack::nice_raise());
            attempts.note("SCHED_FIFO", attack::realtime_schedule());
            inside.hold();
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
    Probe {
        id: "RS-10",
        kind: Kind::Surface,
        severity: Severity::Medium,
        title: "huge pages from the host's pool, which no memory limit counts",
        canary: "the memfd",
        layers: &["seccomp"],
        references: &["memfd_create(2)", "ATT&CK T1499"],
        setup: Setup::Plain,
        inside: |_| {
            let mut attempts = Attempts::new();
            let huge = memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB);
            attempts.note("memfd_create with MFD_HUGETLB", huge);
            attempts.done()
        },
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

/// A limit, as the record and the layers name it.
struct Bound {
    kind: LimitKind,
    layer: Layer,
    allowed: u64,
    unit: &'static str,
}

const MEMORY: Bound = Bound {
    kind: LimitKind::Memory,
    layer: Layer::Memory,
    allowed: LIMITS.memory_mib << 20,
    unit: "bytes resident",
};
const DISK: Bound = Bound {
    kind: LimitKind::Disk,
    layer: Layer::Disk,
    allowed: LIMITS.disk_mib << 20,
    unit: "bytes",
};
const FILES: Bound = Bound {
    kind: LimitKind::Inodes,
    layer: Layer::Inodes,
    allowed: LIMITS.inodes,
    unit: "files",
};

impl Bound {
    /// What is more than the bound, in words.
    fn passed(&self, seen: u64) -> Option<String> {
        let (allowed, unit) = (self.allowed, self.unit);
        (seen > allowed).then(|| format!("{seen} {unit}, {allowed} allowed"))
    }

    /// A bound that the kernel holds is not passed by a byte. One that is watched may be, by
    /// whoever is faster than the watch; then the run is ended, and its record says by how much.
    fn held_or_ended(&self, evidence: &super::Evidence, seen: u64) -> Option<String> {
        let passed = self.passed(seen)?;
        if evidence.full.contains(&self.layer) {
            return Some(format!("{passed}, although the limit is reported as full"));
        }
        let ended = evidence.was_ended_for(self.kind);
        (!ended).then(|| format!("{passed}, and the record knows of no end for it"))
    }
}

fn too_much_memory(_: &super::Stage, evidence: &super::Evidence) -> Option<String> {
    MEMORY.held_or_ended(evidence, evidence.samples.resident_mib << 20)
}

/// On disk: what was left there, and what the probe says of /tmp, which is a tmpfs.
fn too_much_on_disk(evidence: &super::Evidence, bound: &Bound, outside: u64) -> Option<String> {
    let in_tmp = evidence.observation().map_or(0, |seen| number(&seen.data));
    let found = bound
        .passed(in_tmp)
        .map(|passed| format!("{passed} in /tmp"));
    found.or_else(|| bound.held_or_ended(evidence, outside))
}

/// In memory: the kernel holds the bound over everything together.
fn too_much_in_memory(evidence: &super::Evidence, bound: &Bound, outside: u64) -> Option<String> {
    let inside = evidence.observation().map_or(0, |seen| number(&seen.data));
    bound.passed(outside.max(inside))
}

/// Waits in a child until its parent is gone.
fn outlive_parent() -> i32 {
    let parent = getppid();
    while getppid() == parent {
        std::thread::sleep(Duration::from_millis(5));
    }
    0
}

fn fork_many(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let mut made = 0;
    for _ in 0..150 {
        match attack::fork_start(outlive_parent) {
            Ok(_) => made += 1,
            Err(error) => {
                attempts.note(&format!("fork after {made}"), Err::<(), _>(error));
                break;
            }
        }
    }
    inside.hold();
    attempts.say(made >= 150, format!("{made} children"));
    attempts.done()
}

/// Takes anonymous memory, all at once.
fn take_memory(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let taken = touch(None, 640 << 20);
    attempts.note("anonymous memory", taken);
    inside.hold();
    attempts.done()
}

/// Takes memory of the kernel's: what was sent and nobody reads, in several processes, because each
/// may have few descriptors.
fn take_socket_memory(inside: &Inside) -> Observation {
    const PROCESSES: usize = 12;
    let mut attempts = Attempts::new();
    let Some((mut told, tell)) = attempts.note("a pair of sockets", UnixStream::pair()) else {
        return attempts.done();
    };
    let mut started = 0;
    for _ in 0..PROCESSES {
        let child = || {
            let (sent, _held) = fill_sockets(64 << 20);
            let _ = (&tell).write_all(&sent.to_le_bytes());
            outlive_parent()
        };
        if attempts.note("fork", attack::fork_start(child)).is_some() {
            started += 1;
        }
    }
    let mut sent = 0;
    for _ in 0..started {
        let mut bytes = [0; 8];
        if told.read_exact(&mut bytes).is_ok() {
            sent += u64::from_le_bytes(bytes);
        }
    }
    inside.hold();
    attempts.say(sent > MEMORY.allowed, format!("{sent} bytes unread"));
    let mut observation = attempts.done();
    observation.data = sent.to_string();
    observation
}

/// Fills pairs of sockets, both ways, up to some bytes or the last descriptor.
fn fill_sockets(most: u64) -> (u64, Vec<UnixStream>) {
    let chunk = [0xa5; 32 << 10];
    let (mut sent, mut held) = (0, Vec::new());
    while let (true, Ok((a, b))) = (sent < most, UnixStream::pair()) {
        for mut socket in [a, b] {
            let _ = socket.set_nonblocking(true);
            while let Ok(bytes) = socket.write(&chunk) {
                sent += bytes as u64;
            }
            held.push(socket);
        }
    }
    (sent, held)
}

fn touch(file: Option<&File>, size: usize) -> Result<(), Errno> {
    attack::touch_memory(file.map(AsFd::as_fd), size, |_| {})
}

/// Takes memory that belongs to no process: many files, each below every limit on one file.
fn take_file_memory(inside: &Inside) -> Observation {
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
            touch(Some(&file), PIECE)?;
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
    inside.hold();
    attempts.done()
}

/// Fills a directory with files that are each below every limit on one file, as fast as can be.
fn fill(directory: &Path, mib: u64) -> std::io::Result<()> {
    const PIECE: u64 = 12;
    let chunk = vec![0xa5u8; 1 << 20];
    fs::create_dir_all(directory)?;
    for piece in 0..mib / PIECE {
        let mut file = File::create(directory.join(format!("piece-{piece}")))?;
        for _ in 0..PIECE {
            file.write_all(&chunk)?;
        }
    }
    Ok(())
}

/// Makes empty files in a directory, as fast as can be.
fn make(directory: &Path, count: u64) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    for number in 0..count {
        File::create(directory.join(number.to_string()))?;
    }
    Ok(())
}

/// Tries /tmp, tells what came of it, makes room there, and tries the workspace: whatever ends
/// the probe there comes after its word. Then it ends by itself, as if nothing had happened.
fn one_after_the_other(
    (tmp, workspace): (&Path, &Path),
    attack: impl Fn(&Path) -> std::io::Result<()>,
    count: impl Fn(&Path) -> u64,
) -> Observation {
    let mut attempts = Attempts::new();
    attempts.note("in /tmp", attack(tmp));
    let mut observation = attempts.done();
    observation.data = count(tmp).to_string();
    publish(&observation);
    let _ = fs::remove_dir_all(tmp);
    let mut attempts = Attempts::new();
    attempts.note("in the workspace", attack(workspace));
    let mut last = attempts.done();
    last.data = observation.data;
    last
}

/// Tries both, and keeps what there is in both.
fn in_both(
    places: (&Path, &Path),
    attack: impl Fn(&Path) -> std::io::Result<()>,
    count: impl Fn(&Path) -> u64,
) -> Observation {
    let mut attempts = Attempts::new();
    attempts.note("in the workspace", attack(places.1));
    attempts.note("in /tmp", attack(places.0));
    let mut observation = attempts.done();
    observation.data = (count(places.0) + count(places.1)).to_string();
    observation
}

fn fill_disk(inside: &Inside) -> Observation {
    let workspace = inside.params.workspace.join(".suite/large");
    let places = (Path::new("/tmp/left-large"), workspace.as_path());
    one_after_the_other(places, |path| fill(path, 144), bytes_in)
}

fn fill_both(inside: &Inside) -> Observation {
    let workspace = inside.params.workspace.join(".suite/large");
    let places = (Path::new("/tmp/left-large"), workspace.as_path());
    in_both(places, |path| fill(path, 144), bytes_in)
}

fn make_files(inside: &Inside) -> Observation {
    let workspace = inside.params.workspace.join(".suite/many");
    let places = (Path::new("/tmp/left-many"), workspace.as_path());
    one_after_the_other(places, |path| make(path, 10_500), files_in)
}

fn make_files_in_both(inside: &Inside) -> Observation {
    let workspace = inside.params.workspace.join(".suite/many");
    let places = (Path::new("/tmp/left-many"), workspace.as_path());
    in_both(places, |path| make(path, 10_500), files_in)
}

/// Bytes and files below a directory; what a link leads to is not counted.
fn counted(directory: &Path) -> (u64, u64) {
    let (mut bytes, mut files) = (0, 0);
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        files += 1;
        if metadata.is_dir() {
            let below = counted(&entry.path());
            bytes += below.0;
            files += below.1;
        } else {
            bytes += metadata.len();
        }
    }
    (bytes, files)
}

fn bytes_in(directory: &Path) -> u64 {
    counted(directory).0
}

fn files_in(directory: &Path) -> u64 {
    counted(directory).1
}

/// Where Ironcage writes changes down on the stage.
pub(crate) fn changes(stage: &super::Stage) -> PathBuf {
    stage.params.home.join(".local/state/ironcage/changes")
}

/// Bytes and files of the directories of that name in changes that were written down.
fn written_down(stage: &super::Stage, name: &str) -> (u64, u64) {
    let places = places_named(&changes(stage), name);
    let found = places.iter().map(|place| counted(place));
    found.fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1))
}

/// Directories of that name at any depth.
fn places_named(directory: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        match entry.file_name() == name {
            true => found.push(entry.path()),
            false => found.extend(places_named(&entry.path(), name)),
        }
    }
    found
}

fn open_many(inside: &Inside) -> Observation {
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
    inside.hold();
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
