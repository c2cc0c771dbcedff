//! `bench table`: the field's table, on this host: a system call, memory, an agent's task and a
//! start in each sandbox, in turns, and how many escapes it stops.
//!
//! The escapes are counted by the containment suite, which the caller runs: this room times.

mod contestants;
mod page;

pub use contestants::Suspect;

use crate::process_tree::{ProcessTree, private_memory};
use crate::scratch::Scratch;
use crate::statistics::{Shuffle, Summary, median};
use crate::syscalls;
use crate::table::{Table, number};
use crate::task;
use crate::{ArmError, BenchError, HostFacts};
use contestants::Contestant;
use ironcage_sys::bench::{Launch, Program, wait_for};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct FieldRequest {
    /// The `ironcage` program.
    pub ironcage: PathBuf,
    /// How often each is started, and does the task a tenth as often.
    pub runs: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct FieldReport {
    bench: &'static str,
    host: HostFacts,
    reproduce: String,
    rows: Vec<FieldRow>,
    absent: Vec<(String, String)>,
    quoted: Vec<Quoted>,
}

/// One sandbox.
#[derive(Debug, Clone, Serialize)]
struct FieldRow {
    name: String,
    about: String,
    /// open and close of a file, microseconds.
    syscall_us: f64,
    /// Private memory of the sandbox's own processes around a sleeping command.
    memory_mb: Option<f64>,
    task_s: f64,
    task_ratio: f64,
    start_ms: f64,
    escapes: Option<Escapes>,
    #[serde(skip)]
    suspect: Option<Suspect>,
}

/// What the containment suite found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Escapes {
    /// Effect probes that did not get through.
    pub blocked: usize,
    /// Effect probes that tell the difference.
    pub of: usize,
}

/// What the field says of itself.
#[derive(Debug, Clone, Copy, Serialize)]
struct Quoted {
    name: &'static str,
    syscall_us: f64,
    memory_mb: f64,
    task_s: f64,
    escapes: &'static str,
}

const QUOTED: [Quoted; 5] = [
    quoted("no sandbox", 0.3, 0.0, 2.1, "0 of 10"),
    quoted("Docker", 1.2, 15.0, 2.4, "3 of 10"),
    quoted("user and mount namespaces", 1.5, 22.0, 2.6, "7 of 10"),
    quoted("full static sandbox", 2.8, 35.0, 3.1, "10 of 10"),
    quoted("dynamic sandbox", 4.1, 48.0, 3.8, "10 of 10"),
];

const fn quoted(
    name: &'static str,
    syscall_us: f64,
    memory_mb: f64,
    task_s: f64,
    escapes: &'static str,
) -> Quoted {
    Quoted {
        name,
        syscall_us,
        memory_mb,
        task_s,
        escapes,
    }
}

/// A sandbox while it is measured.
struct Runner {
    contestant: Contestant,
    start: Vec<Duration>,
    task: Vec<Duration>,
    syscall: Vec<f64>,
    memory: Option<f64>,
}

/// How long the weighed command sleeps: it ends by itself, because not every sandbox takes its
/// command along when its launcher is killed.
const SLEEP: Duration = Duration::from_secs(4);
const SYSCALL: &str = "open+close";

/// Measures every sandbox of the field that is here.
pub fn bench_field(request: &FieldRequest) -> Result<FieldReport, BenchError> {
    if request.runs == 0 {
        let why = "bench table needs at least one run";
        return Err(BenchError::Request(why.to_owned()));
    }
    task::check_needs()?;
    let host = HostFacts::now();
    let scratch = Scratch::new()?;
    let ironcage = request.ironcage.as_path();
    let (contestants, missing) = contestants::all(ironcage);
    let mut absent: Vec<(String, String)> = missing
        .into_iter()
        .map(|(name, reason)| (name.to_owned(), reason.to_string()))
        .collect();
    let mut runners = Vec::new();
    for mut contestant in contestants {
        match contestant.try_out(&scratch)? {
            Ok(()) => runners.push(Runner {
                contestant,
                start: Vec::new(),
                task: Vec::new(),
                syscall: Vec::new(),
                memory: None,
            }),
            Err(reason) if contestant.is_required() => {
                return Err(BenchError::Failed {
                    arm: contestant.name.to_owned(),
                    reason,
                });
            }
            Err(reason) => absent.push((contestant.name.to_owned(), reason.to_string())),
        }
    }
    time_starts(&mut runners, &scratch, request)?;
    time_calls(&mut runners, &scratch, request)?;
    for runner in &mut runners {
        runner.memory = weigh(&runner.contestant, &scratch)?;
    }
    time_tasks(&mut runners, &scratch, request)?;
    Ok(FieldReport {
        bench: "table",
        host,
        reproduce: format!("ironcage bench table --runs {}", request.runs),
        rows: rows(&runners),
        absent,
        quoted: QUOTED.to_vec(),
    })
}

fn failed(contestant: &Contestant) -> impl FnOnce(ArmError) -> BenchError {
    let arm = contestant.name.to_owned();
    move |reason| BenchError::Failed { arm, reason }
}

fn time_starts(
    runners: &mut [Runner],
    scratch: &Scratch,
    request: &FieldRequest,
) -> Result<(), BenchError> {
    let command = [OsString::from("/bin/true")];
    let mut arms = Vec::new();
    for runner in runners.iter() {
        let contestant = &runner.contestant;
        arms.push(contestant.arm(scratch, "start", &command)?);
    }
    let mut shuffle = Shuffle::new();
    for _ in 0..request.runs {
        for index in shuffle.order(arms.len()) {
            let runner = &mut runners[index];
            let elapsed = arms[index].measure()?.map_err(failed(&runner.contestant))?;
            runner.start.push(elapsed);
        }
    }
    Ok(())
}

fn time_calls(
    runners: &mut [Runner],
    scratch: &Scratch,
    request: &FieldRequest,
) -> Result<(), BenchError> {
    syscalls::lay_out(scratch)?;
    let mut arms = Vec::new();
    for runner in runners.iter() {
        let contestant = &runner.contestant;
        let program = contestant.work(scratch).join(syscalls::PROGRAM);
        let command = [program.into(), OsString::from(syscalls::TIMER)];
        arms.push(contestant.arm(scratch, "calls", &command)?);
    }
    let mut shuffle = Shuffle::new();
    for _ in 0..rounds(request) {
        for index in shuffle.order(arms.len()) {
            let runner = &mut runners[index];
            arms[index].measure()?.map_err(failed(&runner.contestant))?;
            if let Some(mut fetch) = runner.contestant.fetch(scratch, syscalls::RESULT)? {
                fetch.measure()?.map_err(failed(&runner.contestant))?;
            }
            let times = syscalls::collect(&scratch.work().join(syscalls::RESULT))?;
            runner.syscall.extend(times.of(SYSCALL));
        }
    }
    Ok(())
}

fn rounds(request: &FieldRequest) -> usize {
    request.runs.div_ceil(10).max(3)
}

fn time_tasks(
    runners: &mut [Runner],
    scratch: &Scratch,
    request: &FieldRequest,
) -> Result<(), BenchError> {
    let mut workers = Vec::new();
    for runner in runners.iter() {
        let contestant = &runner.contestant;
        let command = ["/bin/sh", "task.sh"].map(OsString::from);
        let arm = contestant.arm(scratch, "task", &command)?;
        let (name, about) = (contestant.name, contestant.about.clone());
        let fetch = contestant.fetch(scratch, "result")?;
        workers.push(task::Worker::new(name, about, arm).with_fetch(fetch));
    }
    let mut expected = None;
    let mut shuffle = Shuffle::new();
    // The first round fills the caches and is not counted.
    for round in 0..=rounds(request) {
        for index in shuffle.order(workers.len()) {
            let elapsed = task::work_once(&mut workers[index], scratch, &mut expected)?;
            if round > 0 {
                runners[index].task.push(elapsed);
            }
        }
    }
    Ok(())
}

/// Private memory of everything below the launcher but the sleeping command, in megabytes.
fn weigh(contestant: &Contestant, scratch: &Scratch) -> Result<Option<f64>, BenchError> {
    let seconds = SLEEP.as_secs().to_string();
    let command = [OsString::from("/bin/sleep"), seconds.into()];
    let (program, arguments) = contestant.whole_line(scratch, "weigh", &command)?;
    let spawn_error = |source| BenchError::Spawn {
        program: contestant.name.to_owned(),
        source,
    };
    let mut complaints = scratch.complaints("weigh")?;
    let program = Program::new(&program, &arguments, scratch.environment()).map_err(spawn_error)?;
    let launch =
        Launch::new(program, scratch.work(), complaints.descriptor()?).map_err(spawn_error)?;
    let pid = launch.spawn().map_err(spawn_error)?;
    let started = Instant::now();
    let mut weighed = None;
    // Until late in its sleep: some take long to come up, and what they need meanwhile is theirs.
    while started.elapsed() < SLEEP.mul_f64(0.75) {
        std::thread::sleep(Duration::from_millis(250));
        let tree = ProcessTree::now().map_err(BenchError::file("read", "/proc"))?;
        let own = tree.below(pid.as_raw_nonzero().get());
        let own = own.iter().filter(|process| process.name != "sleep");
        let sum: Result<u64, std::io::Error> = own.map(|process| private_memory(process.pid)).sum();
        weighed = sum.ok().map(|bytes| bytes as f64 / 1024.0 / 1024.0);
    }
    let status = wait_for(pid).map_err(BenchError::call("waitpid"))?;
    if !status.success() {
        return Err(failed(contestant)(ArmError::Status {
            status: status.to_string(),
            complaints: complaints.take(),
        }));
    }
    Ok(weighed)
}

fn rows(runners: &[Runner]) -> Vec<FieldRow> {
    let task = |runner: &Runner| Summary::of_times(&runner.task).map(|summary| summary.median);
    let bare = runners
        .iter()
        .find(|runner| runner.contestant.name == "none")
        .and_then(task);
    runners
        .iter()
        .filter_map(|runner| {
            let task = task(runner)?;
            Some(FieldRow {
                name: runner.contestant.name.to_owned(),
                about: runner.contestant.about.clone(),
                syscall_us: median(&runner.syscall)? / 1e3,
                memory_mb: runner.memory,
                task_s: task / 1e3,
                task_ratio: task / bare?,
                start_ms: Summary::of_times(&runner.start)?.median,
                escapes: None,
                suspect: Some(runner.contestant.suspect()),
            })
        })
        .collect()
}

impl FieldReport {
    /// The sandboxes that the suite is still to be pointed at, by their place in the table.
    pub fn suspects(&self) -> Vec<(usize, String, Suspect)> {
        let rows = self.rows.iter().enumerate();
        rows.filter_map(|(index, row)| Some((index, row.name.clone(), row.suspect.clone()?)))
            .collect()
    }

    /// Enters what the suite found about one.
    pub fn enter(&mut self, index: usize, escapes: Escapes) {
        if let Some(row) = self.rows.get_mut(index) {
            row.escapes = Some(escapes);
        }
    }

    /// What safety costs, in one line.
    pub fn safety_tax(&self) -> Option<String> {
        let own = self.rows.iter().find(|row| row.name == "Ironcage")?;
        let stopped = own.escapes.map_or(String::new(), |escapes| {
            format!(
                ", for {} of {} escapes stopped",
                escapes.blocked, escapes.of
            )
        });
        Some(format!(
            "the safety tax: {:+.1} % on the agent's task{stopped}",
            (own.task_ratio - 1.0) * 100.0
        ))
    }
}

fn megabytes(value: Option<f64>) -> String {
    value.map_or_else(|| "?".to_owned(), |value| number(value, 1))
}

fn escapes(value: Option<Escapes>) -> String {
    value.map_or_else(
        || "not run".to_owned(),
        |escapes| format!("{} of {}", escapes.blocked, escapes.of),
    )
}

impl fmt::Display for FieldReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the field on this host (medians)")?;
        write!(f, "{}", self.host)?;
        writeln!(f, "command: {}\n", self.reproduce)?;
        let mut table = Table::new([
            "sandbox",
            "syscall (us)",
            "memory (MB)",
            "task (s)",
            "ratio",
            "start (ms)",
            "escapes blocked",
        ]);
        for row in &self.rows {
            table.row([
                row.name.clone(),
                number(row.syscall_us, 2),
                megabytes(row.memory_mb),
                number(row.task_s, 3),
                number(row.task_ratio, 2),
                number(row.start_ms, 1),
                escapes(row.escapes),
            ]);
        }
        writeln!(f, "{table}")?;
        for row in &self.rows {
            writeln!(f, "{}: {}", row.name, row.about)?;
        }
        for (name, reason) in &self.absent {
            writeln!(f, "{name}: not measured: {reason}")?;
        }
        writeln!(
            f,
            "\nwhat the field quotes, on machines and for tasks of its own"
        )?;
        let mut table = Table::new(["", "syscall (us)", "memory (MB)", "task (s)", "blocked"]);
        for quoted in &self.quoted {
            table.row([
                quoted.name.to_owned(),
                number(quoted.syscall_us, 1),
                number(quoted.memory_mb, 0),
                number(quoted.task_s, 1),
                quoted.escapes.to_owned(),
            ]);
        }
        writeln!(f, "{table}")?;
        match self.safety_tax() {
            Some(line) => writeln!(f, "{line}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
