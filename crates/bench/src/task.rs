//! `bench task`: what the cage adds to work, not to a start: a mixed task of an agent's
//! (files, grep, git, gcc, Python) bare, in `bwrap` and in the cage, in turns.
//!
//! The task leaves a checksum of what it did; an arm that did something else fails.

use crate::arm::Arm;
use crate::peers::{BwrapView, bwrap_arguments, find_program, version};
use crate::scratch::Scratch;
use crate::statistics::{Shuffle, Summary, median, median_interval};
use crate::table::{Table, number};
use crate::verdict::{Target, Verdict};
use crate::{ArmError, BenchError, HostFacts, own_program};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How much longer the task may take in the cage.
const TARGET: Target = Target {
    at_most: 3.0,
    unit: "%",
};
const FILES: [(&str, &str); 5] = [
    ("setting.sh", include_str!("../task/setting.sh")),
    ("task.sh", include_str!("../task/task.sh")),
    ("agent.sh", include_str!("../task/agent.sh")),
    ("program.c", include_str!("../task/program.c")),
    ("summary.py", include_str!("../task/summary.py")),
];
/// What the task calls, with the package that brings it.
const NEEDS: [(&str, &str); 5] = [
    ("/bin/bash", "bash"),
    ("/usr/bin/git", "git"),
    ("/usr/bin/gcc", "gcc"),
    ("/usr/bin/python3", "python3"),
    ("/usr/bin/grep", "grep"),
];

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct TaskRequest {
    /// The `ironcage` program.
    pub ironcage: PathBuf,
    /// How often each arm does the task.
    pub runs: usize,
    /// Whether cages with means against side channels do it, too.
    pub side_channels: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct TaskReport {
    bench: &'static str,
    host: HostFacts,
    reproduce: String,
    arms: Vec<TaskArm>,
    notes: Vec<String>,
    verdicts: Vec<Verdict>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct TaskArm {
    pub(crate) name: &'static str,
    about: String,
    milliseconds: Summary,
    /// Of its time to bare's in the same round: the median of the rounds.
    pub(crate) ratio: f64,
    /// Where the true median lies, in 95 of 100 benches.
    ratio_interval: (f64, f64),
    pub(crate) ratio_min: f64,
}

/// The arms as a table.
pub(crate) struct Arms<'a>(pub(crate) &'a [TaskArm]);

/// One that does the task.
pub(crate) struct Worker {
    name: &'static str,
    about: String,
    arm: Arm,
    /// What brings the result over from where the arm keeps it aside; not timed.
    fetch: Option<Arm>,
    times: Vec<Duration>,
}

impl Worker {
    pub(crate) fn new(name: &'static str, about: String, arm: Arm) -> Worker {
        Worker {
            name,
            about,
            arm,
            fetch: None,
            times: Vec::new(),
        }
    }

    /// The same, with what brings its result over.
    pub(crate) fn with_fetch(self, fetch: Option<Arm>) -> Worker {
        Worker { fetch, ..self }
    }

    /// The task in a cage whose workspace is in some mode.
    pub(crate) fn caged(
        name: &'static str,
        mode: &str,
        ironcage: &Path,
        scratch: &Scratch,
    ) -> Result<Worker, BenchError> {
        // A change of its own each time, so that none finds what the one before it left.
        let words = ["run", "-q", "--fresh", "--workspace-mode", mode, "--"];
        let words = words.into_iter().chain(["/bin/sh", "task.sh"]);
        let arguments: Vec<OsString> = words.map(OsString::from).collect();
        let arm = Arm::spawned(name, ironcage, &arguments, scratch.work(), scratch)?;
        let about = format!("run -q --workspace-mode {mode}, all layers");
        let fetch = match mode {
            "direct" => None,
            _ => Some(fetch(ironcage, scratch, "result")?),
        };
        Ok(Worker::new(name, about, arm).with_fetch(fetch))
    }

    /// The task in a cage to which a lease gives its workspace while it runs.
    pub(crate) fn leased(
        name: &'static str,
        ironcage: &Path,
        scratch: &Scratch,
    ) -> Result<Worker, BenchError> {
        let mut arguments = leased_line(ironcage, scratch.work());
        arguments.extend(["/bin/sh", "task.sh"].map(OsString::from));
        let arm = Arm::spawned(name, &own_program()?, &arguments, scratch.work(), scratch)?;
        let fetch = fetch(ironcage, scratch, "result")?;
        Ok(Worker::new(name, LEASED.to_owned(), arm).with_fetch(Some(fetch)))
    }

    /// The task without any cage.
    pub(crate) fn bare(scratch: &Scratch) -> Result<Worker, BenchError> {
        let (shell, script) = (Path::new("/bin/sh"), [OsString::from("task.sh")]);
        let arm = Arm::spawned("bare", shell, &script, scratch.work(), scratch)?;
        Ok(Worker::new("bare", "sh task.sh".into(), arm))
    }
}

/// What a cage with leases is.
pub(crate) const LEASED: &str = "ironcage run --profile coding-agent-locked, writing in the workspace leased by `ironcage grant` while it runs, what is written kept aside";

/// The arguments, to this program, of a cage whose workspace is leased while a command runs, up to that command.
pub(crate) fn leased_line(ironcage: &Path, work: &Path) -> Vec<OsString> {
    let words = ["probe", "role", "leases"];
    let words = words.into_iter().map(OsString::from);
    words
        .chain([ironcage.into(), work.into(), "--".into()])
        .collect()
}

/// What brings a file over from where a cage keeps it aside.
pub(crate) fn fetch(ironcage: &Path, scratch: &Scratch, file: &str) -> Result<Arm, BenchError> {
    let arguments = ["apply", file].map(OsString::from);
    Arm::spawned("fetch", ironcage, &arguments, scratch.work(), scratch)
}

/// The task by each arm in turns, so many rounds, compared with the arm `bare`.
pub(crate) fn in_turns(
    mut workers: Vec<Worker>,
    rounds: usize,
    scratch: &Scratch,
) -> Result<Vec<TaskArm>, BenchError> {
    let mut expected = None;
    let mut shuffle = Shuffle::new();
    // The first of several fills the caches and is not counted.
    let before = usize::from(rounds > 1);
    for round in 0..before + rounds {
        for index in shuffle.order(workers.len()) {
            let worker = &mut workers[index];
            let elapsed = work_once(worker, scratch, &mut expected)?;
            if round >= before {
                worker.times.push(elapsed);
            }
        }
    }
    Ok(summarise(workers))
}

/// Fails if something is not installed that the task calls.
pub(crate) fn check_needs() -> Result<(), BenchError> {
    let missing = NEEDS
        .into_iter()
        .filter(|(path, _)| !Path::new(path).exists());
    let names: Vec<String> = missing
        .map(|(path, package)| format!("{path} (package {package})"))
        .collect();
    if names.is_empty() {
        Ok(())
    } else {
        Err(BenchError::Missing { names })
    }
}

/// Does the task once per arm and round, and compares.
pub fn bench_task(request: &TaskRequest) -> Result<TaskReport, BenchError> {
    if request.runs == 0 {
        let why = "bench task needs at least one run";
        return Err(BenchError::Request(why.to_owned()));
    }
    check_needs()?;
    let host = HostFacts::now();
    let scratch = Scratch::new()?;
    let mut notes = Vec::new();
    let workers = workers(request, &scratch, &mut notes)?;
    let arms = in_turns(workers, request.runs, &scratch)?;
    let verdicts = arms
        .iter()
        .filter(|arm| arm.name == "ironcage")
        .flat_map(|arm| [("by round", arm.ratio), ("by min", arm.ratio_min)])
        .map(|(by, ratio)| {
            Verdict::new(
                format!("added by ironcage, {by}"),
                (ratio - 1.0) * 100.0,
                TARGET,
            )
        })
        .collect();
    Ok(TaskReport {
        bench: "task",
        host,
        reproduce: format!(
            "ironcage bench task --runs {}{}",
            request.runs,
            if request.side_channels {
                " --side-channels"
            } else {
                ""
            }
        ),
        arms,
        notes,
        verdicts,
    })
}

fn workers(
    request: &TaskRequest,
    scratch: &Scratch,
    notes: &mut Vec<String>,
) -> Result<Vec<Worker>, BenchError> {
    let work = scratch.work();
    let shell = Path::new("/bin/sh");
    let script = || [OsString::from(shell), "task.sh".into()];
    let worker = |name, about: String, program: &Path, arguments: &[OsString]| {
        let arm = Arm::spawned(name, program, arguments, work, scratch)?;
        Ok::<_, BenchError>(Worker::new(name, about, arm))
    };
    let mut workers = vec![Worker::bare(scratch)?];
    match find_program("bwrap") {
        Some(program) => {
            let mut arguments = bwrap_arguments(BwrapView {
                workspace: work,
                with_etc: true,
            });
            arguments.extend(script());
            workers.push(worker("bwrap", version(&program), &program, &arguments)?);
        }
        None => notes.push("bwrap: not measured: not installed (package bubblewrap)".to_owned()),
    }
    // On the real files, like the others; `bench workspace` measures the copy-on-write view.
    workers.push(Worker::caged(
        "ironcage",
        "direct",
        &request.ironcage,
        scratch,
    )?);
    if !request.side_channels {
        return Ok(workers);
    }
    for (name, means) in [("cores", "cores"), ("hardened", "hardened")] {
        let flags = ["run", "-q", "--side-channels", means];
        let flags = flags
            .into_iter()
            .chain(["--workspace-mode", "direct", "--"]);
        let mut arguments: Vec<OsString> = flags.map(OsString::from).collect();
        arguments.extend(script());
        let mut tried = std::process::Command::new(&request.ironcage);
        let tried = tried
            .args(["run", "-q", "--side-channels", means, "--", "/bin/true"])
            .current_dir(work)
            .output();
        match tried {
            Ok(output) if output.status.success() => {
                let about = format!("the same with --side-channels {means}");
                workers.push(worker(name, about, &request.ironcage, &arguments)?);
            }
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                let why = said.lines().next().unwrap_or("no reason given");
                notes.push(format!("{name}: not measured: {why}"));
            }
            Err(error) => notes.push(format!("{name}: not measured: {error}")),
        }
    }
    Ok(workers)
}

/// One run in a workspace made anew, checked against what the others did.
pub(crate) fn work_once(
    worker: &mut Worker,
    scratch: &Scratch,
    expected: &mut Option<String>,
) -> Result<Duration, BenchError> {
    let work = scratch.work();
    scratch.put_aside(work)?;
    std::fs::create_dir(work).map_err(BenchError::file("make", work))?;
    for (name, text) in FILES {
        let path = work.join(name);
        std::fs::write(&path, text).map_err(BenchError::file("write", &path))?;
    }
    let failed = |reason: ArmError| BenchError::Failed {
        arm: worker.name.to_owned(),
        reason,
    };
    let elapsed = worker.arm.measure()?.map_err(failed)?;
    if let Some(fetch) = &mut worker.fetch {
        fetch.measure()?.map_err(failed)?;
    }
    let path = work.join("result");
    let result = std::fs::read_to_string(&path).map_err(BenchError::file("read", &path))?;
    let expected = expected.get_or_insert_with(|| result.clone());
    if *expected != result {
        return Err(failed(ArmError::Answer {
            expected: "the checksum of the task before",
            got: format!("something else: {result:?}, not {expected:?}"),
        }));
    }
    Ok(elapsed)
}

/// Compares round by round: the machine's speed changes in the minutes that a bench takes, but
/// little within a round, where each arm ran once.
fn summarise(workers: Vec<Worker>) -> Vec<TaskArm> {
    let bare = workers.iter().find(|worker| worker.name == "bare");
    let bare = bare.map_or_else(Vec::new, |worker| worker.times.clone());
    let least = Summary::of_times(&bare);
    workers
        .into_iter()
        .filter_map(|worker| {
            let milliseconds = Summary::of_times(&worker.times)?;
            let rounds = worker.times.iter().zip(&bare);
            let ratios: Vec<f64> = rounds
                .map(|(time, bare)| time.as_secs_f64() / bare.as_secs_f64())
                .collect();
            Some(TaskArm {
                name: worker.name,
                about: worker.about,
                milliseconds,
                ratio: median(&ratios)?,
                ratio_interval: median_interval(&ratios)?,
                ratio_min: milliseconds.min / least?.min,
            })
        })
        .collect()
}

impl fmt::Display for TaskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "a mixed task (200 files, grep, git, gcc, Python), milliseconds"
        )?;
        write!(f, "{}", self.host)?;
        writeln!(f, "command: {}\n", self.reproduce)?;
        write!(f, "{}", Arms(&self.arms))?;
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        writeln!(f)?;
        for verdict in &self.verdicts {
            writeln!(f, "{verdict}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Arms<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new([
            "",
            "median",
            "min",
            "p99",
            "ratio (by round)",
            "95 %",
            "ratio (min)",
        ]);
        for arm in self.0 {
            table.row([
                arm.name.to_owned(),
                number(arm.milliseconds.median, 1),
                number(arm.milliseconds.min, 1),
                number(arm.milliseconds.p99, 1),
                number(arm.ratio, 3),
                format!(
                    "{}..{}",
                    number(arm.ratio_interval.0, 3),
                    number(arm.ratio_interval.1, 3)
                ),
                number(arm.ratio_min, 3),
            ]);
        }
        writeln!(f, "{table}")?;
        for arm in self.0 {
            writeln!(
                f,
                "{}: {} ({} runs)",
                arm.name, arm.about, arm.milliseconds.runs
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(arguments: &[&str], scratch: &Scratch) -> Worker {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let shell = Path::new("/bin/sh");
        let arm = Arm::spawned("bare", shell, &arguments, scratch.work(), scratch).unwrap();
        Worker::new("bare", String::new(), arm)
    }

    #[test]
    fn an_arm_that_did_something_else_is_found() {
        let scratch = Scratch::new().unwrap();
        let mut expected = None;
        let mut honest = worker(&["-c", "echo 1 > result"], &scratch);
        work_once(&mut honest, &scratch, &mut expected).unwrap();
        work_once(&mut honest, &scratch, &mut expected).unwrap();
        let mut other = worker(&["-c", "echo 2 > result"], &scratch);
        let error = work_once(&mut other, &scratch, &mut expected).unwrap_err();
        assert!(error.to_string().contains("something else"), "{error}");
    }

    #[test]
    fn a_machine_that_becomes_slower_meanwhile_does_not_change_the_ratio() {
        let scratch = Scratch::new().unwrap();
        let arm = |name, times: [u64; 3]| Worker {
            name,
            times: times.map(Duration::from_millis).to_vec(),
            ..worker(&[], &scratch)
        };
        let arms = summarise(vec![
            arm("bare", [100, 400, 200]),
            arm("ironcage", [110, 440, 220]),
        ]);
        let ratios: Vec<f64> = arms.iter().map(|arm| arm.ratio).collect();
        assert!((ratios[0] - 1.0).abs() < 1e-9 && (ratios[1] - 1.1).abs() < 1e-9);
    }

    #[test]
    fn a_failing_task_is_reported_with_its_standard_error() {
        let scratch = Scratch::new().unwrap();
        let mut broken = worker(&["-c", "echo no compiler >&2; exit 3"], &scratch);
        let error = work_once(&mut broken, &scratch, &mut None).unwrap_err();
        assert!(error.to_string().contains("no compiler"), "{error}");
    }

    #[test]
    fn the_workspace_of_each_run_is_new() {
        let scratch = Scratch::new().unwrap();
        let script = "test ! -e left && touch left && echo 1 > result";
        let mut tidy = worker(&["-c", script], &scratch);
        let mut expected = None;
        work_once(&mut tidy, &scratch, &mut expected).unwrap();
        work_once(&mut tidy, &scratch, &mut expected).unwrap();
    }
}
