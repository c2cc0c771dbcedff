//! `bench memory`: what Ironcage's own processes cost while many cages sleep at once, and
//! whether they are all gone afterwards.
//!
//! Counted is what each process shares with no other (`Private_Clean` and `Private_Dirty`),
//! of Ironcage's processes only: what the command in the cage takes is its own affair.

use crate::process_tree::{Process, ProcessTree, private_memory, read_process, runs_program};
use crate::scratch::{Complaints, Scratch};
use crate::statistics::Summary;
use crate::table::{Table, number};
use crate::verdict::{Target, Verdict};
use crate::{ArmError, BenchError, HostFacts};
use ironcage_sys::bench::{Launch, Program, wait_for};
use ironcage_sys::rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a cage may cost.
const TARGET: Target = Target {
    at_most: 1.5,
    unit: "MB",
};
const SLEEP: &str = "/bin/sleep";
/// Programs of ours that run beside a cage.
const HELPERS: [&str; 2] = ["ironcage-egress", "ironcage-reader"];
/// Patience per cage on top of a fixed part: a loaded machine is slow, a hang is longer.
const PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE_PER_CAGE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(100);

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct MemoryRequest {
    /// The `ironcage` program.
    pub ironcage: PathBuf,
    /// How many cages sleep at once.
    pub cages: usize,
    /// Whether each has a network, and so an egress proxy.
    pub network: bool,
}

/// A host that each of them may reach, by a name that leads nowhere.
const HOST: &str = "bench.invalid";

#[derive(Debug, Clone, Serialize)]
pub struct MemoryReport {
    bench: &'static str,
    host: HostFacts,
    reproduce: String,
    cages: usize,
    alive: usize,
    seconds_until_all_slept: f64,
    processes_per_cage: f64,
    roles: Vec<RoleReport>,
    unreadable: BTreeMap<String, usize>,
    foreign: BTreeMap<String, usize>,
    per_cage_kb: Option<Spread>,
    left_behind: Vec<String>,
    verdicts: Vec<Verdict>,
}

/// Kilobytes.
#[derive(Debug, Clone, Copy, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

#[derive(Debug, Clone, Serialize)]
struct RoleReport {
    role: &'static str,
    processes: usize,
    private_kb: Spread,
}

impl Spread {
    fn of(samples: &[f64]) -> Option<Spread> {
        let summary = Summary::of(samples)?;
        Some(Spread {
            median: summary.median,
            min: summary.min,
            max: samples.iter().copied().fold(f64::MIN, f64::max),
        })
    }
}

impl MemoryReport {
    /// Whether every cage lived and nothing of them is left. A missed target is no failure.
    pub fn is_sound(&self) -> bool {
        self.alive == self.cages && self.left_behind.is_empty()
    }
}

/// Cages that were started; ended when this goes, whatever happened in between.
struct Herd {
    launched: Vec<Pid>,
    marker: String,
    complaints: Complaints,
}

impl Drop for Herd {
    fn drop(&mut self) {
        for pid in &self.launched {
            let _ = kill_process(*pid, Signal::KILL);
            let _ = wait_for(*pid);
        }
    }
}

/// Starts the cages, weighs them, ends them, looks for what is left.
pub fn bench_memory(request: &MemoryRequest) -> Result<MemoryReport, BenchError> {
    if request.cages == 0 {
        let why = "bench memory needs at least one cage";
        return Err(BenchError::Request(why.to_owned()));
    }
    let host = HostFacts::now();
    let scratch = Scratch::new()?;
    let started = Instant::now();
    let mut herd = start_herd(request, &scratch)?;
    let alive = wait_until_asleep(&mut herd, request.cages)?;
    let seconds_until_all_slept = started.elapsed().as_secs_f64();

    let tree = ProcessTree::now().map_err(BenchError::file("read", "/proc"))?;
    let mut scales = Scales::default();
    let mut seen: Vec<Process> = Vec::new();
    for pid in &herd.launched {
        let members = tree.below(pid.as_raw_nonzero().get());
        scales.weigh(&members, &request.ironcage);
        seen.extend(members.into_iter().cloned());
    }
    let left_behind = end_herd(&mut herd, &seen)?;
    drop(herd);

    let per_cage_kb = Spread::of(&scales.per_cage);
    let verdicts = per_cage_kb
        .map(|spread| {
            Verdict::new(
                "private memory per cage, the largest",
                spread.max / 1024.0,
                TARGET,
            )
        })
        .into_iter()
        .collect();
    Ok(MemoryReport {
        bench: "memory",
        host,
        reproduce: format!(
            "ironcage bench memory --cages {}{}",
            request.cages,
            if request.network { " --network" } else { "" }
        ),
        cages: request.cages,
        alive,
        seconds_until_all_slept,
        processes_per_cage: scales.own as f64 / request.cages as f64,
        roles: scales.roles(),
        unreadable: scales.unreadable,
        foreign: scales.foreign,
        per_cage_kb,
        left_behind,
        verdicts,
    })
}

fn start_herd(request: &MemoryRequest, scratch: &Scratch) -> Result<Herd, BenchError> {
    // A time to sleep that no one else asks for: it finds what belongs to this bench.
    let marker = format!("{}.{:09}", 100_000, std::process::id());
    // On the real files: all of them have the same workspace, and a change has one cage.
    let mode = "--workspace-mode";
    let network: &[&str] = match request.network {
        true => &["--allow-host", HOST],
        false => &[],
    };
    let mut words = vec!["run", "-q", mode, "direct"];
    words.extend(network);
    words.extend(["--", SLEEP, &marker]);
    let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
    let complaints = scratch.complaints("ironcage")?;
    let spawn_error = |source| BenchError::Spawn {
        program: "ironcage".to_owned(),
        source,
    };
    let program =
        Program::new(&request.ironcage, &arguments, scratch.environment()).map_err(spawn_error)?;
    let launch =
        Launch::new(program, scratch.work(), complaints.descriptor()?).map_err(spawn_error)?;
    let mut herd = Herd {
        launched: Vec::with_capacity(request.cages),
        marker,
        complaints,
    };
    for _ in 0..request.cages {
        herd.launched.push(launch.spawn().map_err(spawn_error)?);
    }
    Ok(herd)
}

/// Waits until each cage's command sleeps; fails as soon as one ended instead.
fn wait_until_asleep(herd: &mut Herd, cages: usize) -> Result<usize, BenchError> {
    let patience = PATIENCE + PATIENCE_PER_CAGE * u32::try_from(cages).unwrap_or(u32::MAX);
    let started = Instant::now();
    loop {
        let tree = ProcessTree::now().map_err(BenchError::file("read", "/proc"))?;
        let asleep = herd
            .launched
            .iter()
            .filter(|pid| {
                let members = tree.below(pid.as_raw_nonzero().get());
                members.iter().any(|process| is_command(process))
            })
            .count();
        if asleep == cages || started.elapsed() > patience {
            return Ok(asleep);
        }
        for index in 0..herd.launched.len() {
            let pid = herd.launched[index];
            let ended = waitpid(Some(pid), WaitOptions::NOHANG)
                .map_err(|errno| BenchError::call("waitpid")(errno.into()))?;
            if let Some((_, status)) = ended {
                herd.launched.remove(index);
                return Err(BenchError::Failed {
                    arm: "ironcage".to_owned(),
                    reason: ArmError::Result(format!(
                        "a cage ended before it was weighed, {asleep} of {cages} slept: status {:?}: {}",
                        status.exit_status(),
                        herd.complaints.take()
                    )),
                });
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// The caged command, not a process of Ironcage's. The name is the kernel's for the program
/// that was executed; Ironcage's processes have another.
fn is_command(process: &Process) -> bool {
    process.name == "sleep"
}

/// Adds up what was weighed.
#[derive(Debug, Default)]
struct Scales {
    own: usize,
    per_cage: Vec<f64>,
    by_role: BTreeMap<&'static str, Vec<f64>>,
    unreadable: BTreeMap<String, usize>,
    foreign: BTreeMap<String, usize>,
}

impl Scales {
    /// One cage: its launched process first, as `ProcessTree::below` gives them.
    fn weigh(&mut self, members: &[&Process], ironcage: &Path) {
        let mut total = 0.0;
        let mut complete = true;
        let before = self.own;
        for (index, process) in members.iter().enumerate() {
            if is_command(process) {
                continue;
            }
            let helper = |name| runs_program(process.pid, &ironcage.with_file_name(name));
            let is_helper = HELPERS.iter().any(|name| matches!(helper(name), Ok(true)));
            if !is_helper && let Ok(false) = runs_program(process.pid, ironcage) {
                *self.foreign.entry(process.name.clone()).or_default() += 1;
                continue;
            }
            self.own += 1;
            let role = match (index, is_helper) {
                (0, _) => "supervisor",
                (_, true) => "egress proxy",
                (_, false) => "below the supervisor",
            };
            match private_memory(process.pid) {
                Ok(bytes) => {
                    let kilobytes = bytes as f64 / 1024.0;
                    total += kilobytes;
                    self.by_role.entry(role).or_default().push(kilobytes);
                }
                Err(error) => {
                    complete = false;
                    let what = format!("smaps_rollup of a process ({role}): {error}");
                    *self.unreadable.entry(what).or_default() += 1;
                }
            }
        }
        // A sum with a part missing would flatter, and so would a cage without any.
        if complete && self.own > before {
            self.per_cage.push(total);
        }
    }

    fn roles(&self) -> Vec<RoleReport> {
        self.by_role
            .iter()
            .filter_map(|(role, samples)| {
                Some(RoleReport {
                    role,
                    processes: samples.len(),
                    private_kb: Spread::of(samples)?,
                })
            })
            .collect()
    }
}

/// Asks every cage to end, waits, and names what is still there.
fn end_herd(herd: &mut Herd, seen: &[Process]) -> Result<Vec<String>, BenchError> {
    let mut left = Vec::new();
    for pid in &herd.launched {
        // It may be gone already; then the wait says so.
        let _ = kill_process(*pid, Signal::TERM);
    }
    let deadline = Instant::now() + PATIENCE;
    let mut waiting = std::mem::take(&mut herd.launched);
    while !waiting.is_empty() && Instant::now() < deadline {
        waiting.retain(|pid| matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(None)));
        std::thread::sleep(PAUSE);
    }
    for pid in &waiting {
        left.push(format!("process {pid:?} did not end on SIGTERM"));
    }
    herd.launched = waiting;
    // The kernel takes a namespace down after its first process is gone.
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let remains = remains_of(seen, &herd.marker)?;
        if remains.is_empty() || Instant::now() > deadline {
            left.extend(remains);
            return Ok(left);
        }
        std::thread::sleep(PAUSE);
    }
}

fn remains_of(seen: &[Process], marker: &str) -> Result<Vec<String>, BenchError> {
    let mut remains: BTreeMap<i32, String> = seen
        .iter()
        .filter(|process| {
            read_process(process.pid).is_some_and(|now| now.started == process.started)
        })
        .map(|process| (process.pid, process.name.clone()))
        .collect();
    // One that left its tree before it was seen is found by what it was asked to do.
    let directory = fs::read_dir("/proc").map_err(BenchError::file("read", "/proc"))?;
    for entry in directory.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if words
            .split(|byte| *byte == 0)
            .any(|word| word == marker.as_bytes())
        {
            remains.insert(pid, marker.to_owned());
        }
    }
    let describe = |(pid, name): (i32, String)| format!("process {pid} ({name})");
    Ok(remains.into_iter().map(describe).collect())
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "memory of Ironcage's own processes, private, kilobytes")?;
        write!(f, "{}", self.host)?;
        writeln!(f, "command: {}\n", self.reproduce)?;
        writeln!(
            f,
            "{} of {} cages slept at once, {:.1} s after the first start; {:.2} processes of Ironcage's per cage\n",
            self.alive, self.cages, self.seconds_until_all_slept, self.processes_per_cage
        )?;
        let mut table = Table::new(["", "processes", "median", "min", "max"]);
        let mut row = |name: &str, count: String, spread: &Spread| {
            table.row([
                name.to_owned(),
                count,
                number(spread.median, 0),
                number(spread.min, 0),
                number(spread.max, 0),
            ]);
        };
        for role in &self.roles {
            row(role.role, role.processes.to_string(), &role.private_kb);
        }
        if let Some(spread) = &self.per_cage_kb {
            row("per cage", String::new(), spread);
        }
        writeln!(f, "{table}")?;
        for (what, count) in &self.unreadable {
            writeln!(f, "not counted: {what} ({count} processes)")?;
        }
        for (name, count) in &self.foreign {
            writeln!(f, "not Ironcage's: {name} ({count} processes)")?;
        }
        if self.left_behind.is_empty() {
            writeln!(f, "afterwards: no process is left")?;
        }
        for what in &self.left_behind {
            writeln!(f, "left behind: {what}")?;
        }
        for verdict in &self.verdicts {
            writeln!(f, "{verdict}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn herd_of(script: &str, scratch: &Scratch) -> Herd {
        let none: [(&str, &str); 0] = [];
        let program = Program::new(Path::new("/bin/sh"), ["-c", script], none).unwrap();
        let complaints = scratch.complaints("x").unwrap();
        let stderr = complaints.descriptor().unwrap();
        let launch = Launch::new(program, scratch.work(), stderr).unwrap();
        Herd {
            launched: vec![launch.spawn().unwrap()],
            marker: "no-such-marker".to_owned(),
            complaints,
        }
    }

    fn members(herd: &Herd) -> Vec<Process> {
        let tree = ProcessTree::now().unwrap();
        let top = herd.launched[0].as_raw_nonzero().get();
        tree.below(top).into_iter().cloned().collect()
    }

    #[test]
    fn a_tree_that_ends_leaves_nothing_and_one_that_stays_is_named() {
        let scratch = Scratch::new().unwrap();
        // The shell passes the end on, as the supervisor of a cage does.
        let mut tidy = herd_of("sleep 1000 & trap 'kill $!' TERM; wait", &scratch);
        assert_eq!(wait_until_asleep(&mut tidy, 1).unwrap(), 1);
        let seen = members(&tidy);
        assert_eq!(end_herd(&mut tidy, &seen).unwrap(), Vec::<String>::new());

        let mut untidy = herd_of("sleep 1000 & wait", &scratch);
        assert_eq!(wait_until_asleep(&mut untidy, 1).unwrap(), 1);
        let seen = members(&untidy);
        let left = end_herd(&mut untidy, &seen).unwrap();
        assert_eq!(left.len(), 1, "{left:?}");
        assert!(left[0].contains("sleep"), "{left:?}");
        let orphan = seen.iter().find(|process| is_command(process)).unwrap();
        kill_process(Pid::from_raw(orphan.pid).unwrap(), Signal::KILL).unwrap();
    }

    #[test]
    fn a_cage_that_ends_early_is_an_error_with_its_words() {
        let scratch = Scratch::new().unwrap();
        let mut herd = herd_of("echo no namespaces here >&2; exit 125", &scratch);
        let error = wait_until_asleep(&mut herd, 1).unwrap_err();
        assert!(error.to_string().contains("no namespaces here"), "{error}");
    }

    #[test]
    fn commands_are_not_weighed_and_programs_of_others_are_named() {
        let own = std::process::id().cast_signed();
        let process = |name: &str| Process {
            pid: own,
            parent: 1,
            started: 0,
            name: name.to_owned(),
        };
        let (ours, command) = (process("ironcage"), process("sleep"));
        let program = std::env::current_exe().unwrap();
        let mut scales = Scales::default();
        scales.weigh(&[&ours, &command], &program);
        assert_eq!((scales.own, scales.per_cage.len()), (1, 1));
        let mut scales = Scales::default();
        scales.weigh(&[&ours], Path::new("/bin/sh"));
        assert_eq!((scales.own, scales.foreign.len()), (0, 1));
        assert!(scales.per_cage.is_empty());
    }
}
