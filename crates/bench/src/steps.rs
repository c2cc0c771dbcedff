//! `bench start --steps`: where a start spends its system calls and its time, step by step.
//!
//! The start takes timestamps itself and writes them to a descriptor. One more start runs under
//! ptrace, which counts the calls between them; its times are not used.

use crate::scratch::Scratch;
use crate::statistics::Summary;
use crate::table::{Table, number};
use crate::{ArmError, BenchError, HostFacts, StartRequest};
use ironcage_sys::rustix::io::{FdFlags, fcntl_setfd};
use ironcage_sys::rustix::pipe::{PipeFlags, pipe_with};
use ironcage_sys::steps::{OF_INIT, VARIABLE};
use ironcage_sys::trace::{Calls, Traced, count_calls};
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::process::{Command, Stdio};

/// A number that nothing of a start has by chance.
const DESCRIPTOR: RawFd = 200;

/// Where a start spends what it costs.
#[derive(Debug, Clone, Serialize)]
pub struct StepsReport {
    bench: &'static str,
    host: HostFacts,
    reproduce: String,
    steps: Vec<Step>,
    calls: Totals,
}

#[derive(Debug, Clone, Serialize)]
struct Step {
    name: String,
    calls: u64,
    /// From the step before it in the same process.
    microseconds: Option<Summary>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Totals {
    launcher: u64,
    init: u64,
    others: u64,
    total: u64,
}

/// A mark as the start wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    nanoseconds: i64,
    name: String,
}

/// Runs the starts.
pub fn bench_steps(request: &StartRequest) -> Result<StepsReport, BenchError> {
    if request.runs == 0 || !request.command.is_absolute() {
        let why = "bench start needs at least one run and a command by its absolute path";
        return Err(BenchError::Request(why.to_owned()));
    }
    let host = HostFacts::now();
    let scratch = Scratch::new()?;
    let failed = |error: io::Error| BenchError::Failed {
        arm: "steps".to_owned(),
        reason: ArmError::Result(error.to_string()),
    };
    let mut samples: Vec<(String, Vec<f64>)> = Vec::new();
    // The first one fills caches and is not counted.
    for round in 0..=request.runs {
        let (marks, _) = start(request, &scratch, Measurement::Timed).map_err(failed)?;
        if round > 0 {
            add(&mut samples, &marks);
        }
    }
    let (marks, traced) = start(request, &scratch, Measurement::Traced).map_err(failed)?;
    let traced = traced.ok_or_else(|| failed(io::Error::other("nothing was traced")))?;
    let steps = steps(&samples, &marks, &traced);
    let launcher = traced.calls.get(&traced.pid).map_or(0, Calls::total);
    let init = of_init(&traced).map_or(0, Calls::total);
    let total = traced.calls.values().map(Calls::total).sum();
    let command = request.command.display();
    Ok(StepsReport {
        bench: "start-steps",
        host,
        reproduce: format!(
            "ironcage bench start --steps --runs {} --command {command}",
            request.runs
        ),
        steps,
        calls: Totals {
            launcher,
            init,
            others: total - launcher - init,
            total,
        },
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Measurement {
    Timed,
    Traced,
}

/// Starts once, and returns the marks; and the counts, where it is traced.
fn start(
    request: &StartRequest,
    scratch: &Scratch,
    way: Measurement,
) -> io::Result<(Vec<Mark>, Option<Traced>)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    let write = at(write, DESCRIPTOR)?;
    let mut command = Command::new(&request.ironcage);
    command
        .args(["run", "-q", "--"])
        .arg(&request.command)
        .current_dir(scratch.work())
        .env(VARIABLE, DESCRIPTOR.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let began =
        ironcage_sys::rustix::time::clock_gettime(ironcage_sys::rustix::time::ClockId::Monotonic);
    let (status, traced) = match way {
        Measurement::Timed => (command.status()?, None),
        Measurement::Traced => {
            let traced = count_calls(&mut command, DESCRIPTOR)?;
            (traced.status, Some(traced))
        }
    };
    drop(write);
    if !status.success() {
        return Err(io::Error::other(format!("the start ended with {status}")));
    }
    let mut text = String::new();
    File::from(read).read_to_string(&mut text)?;
    let mut marks = vec![Mark {
        nanoseconds: began.tv_sec * 1_000_000_000 + began.tv_nsec,
        name: BEGAN.to_owned(),
    }];
    marks.extend(text.lines().filter_map(mark));
    Ok((marks, traced))
}

/// The mark that the bench makes itself, before the start.
const BEGAN: &str = "spawn";

/// The descriptor under another number, which a program that is executed has too.
fn at(descriptor: OwnedFd, number: RawFd) -> io::Result<OwnedFd> {
    let copy = ironcage_sys::rustix::io::fcntl_dupfd_cloexec(&descriptor, number)?;
    if copy.as_raw_fd() != number {
        return Err(io::Error::other(format!("descriptor {number} is taken")));
    }
    fcntl_setfd(&copy, FdFlags::empty())?;
    Ok(copy)
}

fn mark(line: &str) -> Option<Mark> {
    let (nanoseconds, name) = line.split_once(' ')?;
    Some(Mark {
        nanoseconds: nanoseconds.parse().ok()?,
        name: name.to_owned(),
    })
}

/// Marks of one of the two processes, each with the microseconds since the one before it. The
/// first process of a cage begins when it is forked.
fn intervals(marks: &[Mark]) -> Vec<(String, f64)> {
    let mut found = Vec::new();
    for of_init in [false, true] {
        let own = |mark: &&Mark| mark.name.starts_with(OF_INIT) == of_init;
        let own: Vec<&Mark> = marks.iter().filter(own).collect();
        for pair in own.windows(2) {
            if let [before, after] = pair {
                let nanoseconds = (after.nanoseconds - before.nanoseconds) as f64;
                found.push((after.name.clone(), nanoseconds / 1000.0));
            }
        }
    }
    found
}

fn add(samples: &mut Vec<(String, Vec<f64>)>, marks: &[Mark]) {
    for (name, microseconds) in intervals(marks) {
        match samples.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => values.push(microseconds),
            None => samples.push((name, vec![microseconds])),
        }
    }
}

/// The process beside the launcher that made marks.
fn of_init(traced: &Traced) -> Option<&Calls> {
    let mut others = traced.calls.iter().filter(|(pid, _)| **pid != traced.pid);
    others
        .find(|(_, calls)| !calls.before_marks.is_empty())
        .map(|(_, calls)| calls)
}

fn steps(samples: &[(String, Vec<f64>)], marks: &[Mark], traced: &Traced) -> Vec<Step> {
    let mut found = Vec::new();
    let launcher = traced.calls.get(&traced.pid);
    for (is_init, calls) in [(false, launcher), (true, of_init(traced))] {
        let Some(calls) = calls else {
            continue;
        };
        let own = |mark: &&Mark| mark.name.starts_with(OF_INIT) == is_init && mark.name != BEGAN;
        let names = marks.iter().filter(own).map(|mark| mark.name.clone());
        for (name, calls) in names.zip(&calls.before_marks) {
            let values = samples.iter().find(|(known, _)| *known == name);
            found.push(Step {
                microseconds: values.and_then(|(_, values)| Summary::of(values)),
                name,
                calls: *calls,
            });
        }
        let process = match is_init {
            true => format!("{OF_INIT}its end"),
            false => "exit".to_owned(),
        };
        found.push(Step {
            name: process,
            calls: calls.after,
            microseconds: None,
        });
    }
    found
}

impl fmt::Display for StepsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "a start step by step: system calls, and microseconds since the step before"
        )?;
        write!(f, "{}", self.host)?;
        writeln!(f, "command: {}\n", self.reproduce)?;
        let mut table = Table::new(["step", "calls", "median us", "min us"]);
        for step in &self.steps {
            let time = |of: fn(&Summary) -> f64| {
                let summary = step.microseconds.as_ref();
                summary.map_or_else(String::new, |summary| number(of(summary), 0))
            };
            table.row([
                step.name.clone(),
                step.calls.to_string(),
                time(|summary| summary.median),
                time(|summary| summary.min),
            ]);
        }
        writeln!(f, "{table}")?;
        let Totals {
            launcher,
            init,
            others,
            total,
        } = self.calls;
        writeln!(
            f,
            "{total} system calls: {launcher} in the launcher, {init} in PID 1, {others} in helpers and the command"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_the_time_since_the_one_before_it_in_the_same_process() {
        let lines = ["5000 b", "6000 PID 1: x", "9000 c", "16000 PID 1: y", "no"];
        let mut marks = vec![Mark {
            nanoseconds: 1000,
            name: BEGAN.into(),
        }];
        marks.extend(lines.iter().filter_map(|line| mark(line)));
        let expected = [("b", 4.0), ("c", 4.0), ("PID 1: y", 10.0)];
        let expected = expected.map(|(name, time)| (name.to_owned(), time));
        assert_eq!(intervals(&marks), expected);
    }

    #[test]
    fn the_calls_of_a_program_and_its_children_are_counted() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "/bin/true; echo mark; exit 3"]);
        command.stdout(Stdio::null());
        let traced = count_calls(&mut command, 1).unwrap();
        assert_eq!(traced.status.code(), Some(3));
        assert_eq!(traced.calls.len(), 2);
        assert_eq!(traced.calls[&traced.pid].before_marks.len(), 1);
        assert!(traced.calls.values().all(|calls| calls.total() > 10));
    }
}
