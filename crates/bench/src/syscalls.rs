//! `bench syscalls`: what the cage adds to a system call, in nanoseconds.
//!
//! The same program times the same calls bare and in the cage, in turns. It is a copy of
//! `ironcage` in the workspace, so that both sides run the same file at the same path.

use crate::arm::Arm;
use crate::scratch::Scratch;
use crate::statistics::{Shuffle, median};
use crate::table::{Table, number};
use crate::verdict::{Target, Verdict};
use crate::{BenchError, HostFacts, own_program};
use ironcage_sys::bench::fork_and_wait;
use ironcage_sys::rustix::fs::{Mode, OFlags, open, stat};
use ironcage_sys::rustix::io::write;
use ironcage_sys::rustix::process::getppid;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What the cage may add to the cheapest call.
const TARGET: Target = Target {
    at_most: 60.0,
    unit: "ns",
};
const SUBJECT: &str = "subject";
pub(crate) const RESULT: &str = "times.json";
/// The program in the workspace, and what it is told.
pub(crate) const PROGRAM: &str = "ironcage";
pub(crate) const TIMER: &str = "__bench-syscalls";
/// Batches per call and process; the median of them is that process's answer. Many short
/// ones: a batch of a fraction of a millisecond is seldom interrupted, a long one always is.
const BATCHES: u32 = 101;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct SyscallsRequest {
    /// The `ironcage` program.
    pub ironcage: PathBuf,
    /// How many times each side is started.
    pub rounds: usize,
}

/// Nanoseconds per call, as one process saw them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SyscallTimes(Vec<(String, f64)>);

#[derive(Debug, Clone, Serialize)]
pub struct SyscallsReport {
    bench: &'static str,
    host: HostFacts,
    reproduce: String,
    rounds: usize,
    calls: Vec<CallReport>,
    verdicts: Vec<Verdict>,
}

#[derive(Debug, Clone, Serialize)]
struct CallReport {
    name: String,
    bare_ns: f64,
    caged_ns: f64,
    added_ns: f64,
    ratio: f64,
}

fn per_call(calls: u32, mut call: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let mut batches = Vec::new();
    // One batch more than is counted: the first meets cold caches.
    for _ in 0..=BATCHES {
        let started = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        batches.push(started.elapsed().as_secs_f64() * 1e9 / f64::from(calls));
    }
    median(&batches[1..]).ok_or_else(|| io::Error::other("no batch was timed"))
}

/// Times each call in this process and leaves the answer in the current directory, whose
/// file `subject` is the one that is opened. rustix makes the calls without the C library.
pub fn time_syscalls() -> Result<(), BenchError> {
    let subject = c"subject";
    let read = OFlags::RDONLY | OFlags::CLOEXEC;
    let null = open(
        c"/dev/null",
        OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|errno| BenchError::file("open", "/dev/null")(errno.into()))?;
    let timed = |name: &'static str, result: io::Result<f64>| {
        let value = result.map_err(BenchError::call(name))?;
        Ok((name.to_owned(), value))
    };
    let times = SyscallTimes(vec![
        timed(
            "getppid",
            per_call(2_000, || {
                let _ = getppid();
                Ok(())
            }),
        )?,
        timed(
            "open+close",
            per_call(200, || {
                open(subject, read, Mode::empty())?;
                Ok(())
            }),
        )?,
        timed(
            "stat",
            per_call(500, || {
                stat(subject)?;
                Ok(())
            }),
        )?,
        timed(
            "write",
            per_call(1_000, || {
                write(&null, b"x")?;
                Ok(())
            }),
        )?,
        timed("fork+wait", per_call(5, fork_and_wait))?,
    ]);
    let text = serde_json::to_string(&times)
        .map_err(|error| BenchError::call("writing JSON")(error.into()))?;
    std::fs::write(RESULT, text).map_err(BenchError::file("write", RESULT))
}

/// Runs both sides in turns and compares the medians.
pub fn bench_syscalls(request: &SyscallsRequest) -> Result<SyscallsReport, BenchError> {
    if request.rounds == 0 {
        let why = "bench syscalls needs at least one round";
        return Err(BenchError::Request(why.to_owned()));
    }
    let host = HostFacts::now();
    let scratch = Scratch::new()?;
    let work = scratch.work();
    let program = lay_out(&scratch)?;

    let timer: OsString = TIMER.into();
    let caged: Vec<OsString> = vec![
        "run".into(),
        "-q".into(),
        // On the real files, where both sides leave their results; `bench workspace` has the other.
        "--workspace-mode".into(),
        "direct".into(),
        "--".into(),
        program.clone().into(),
        timer.clone(),
    ];
    let mut sides = [
        Arm::spawned("bare", &program, &[timer], work, &scratch)?,
        Arm::spawned("ironcage", &request.ironcage, &caged, work, &scratch)?,
    ];
    let mut seen: [Vec<SyscallTimes>; 2] = [Vec::new(), Vec::new()];
    let mut shuffle = Shuffle::new();
    for _ in 0..request.rounds {
        for side in shuffle.order(2) {
            let name = if side == 0 { "bare" } else { "ironcage" };
            sides[side]
                .measure()?
                .map_err(|reason| BenchError::Failed {
                    arm: name.to_owned(),
                    reason,
                })?;
            seen[side].push(collect(&work.join(RESULT))?);
        }
    }
    let calls = compare(&seen[0], &seen[1]);
    let verdicts = calls
        .iter()
        .filter(|call| call.name == "getppid")
        .map(|call| Verdict::new("added to getppid", call.added_ns, TARGET))
        .collect();
    Ok(SyscallsReport {
        bench: "syscalls",
        host,
        reproduce: format!("ironcage bench syscalls --rounds {}", request.rounds),
        rounds: request.rounds,
        calls,
        verdicts,
    })
}

/// Puts the program and the file that it opens into the workspace; gives the program's path.
pub(crate) fn lay_out(scratch: &Scratch) -> Result<PathBuf, BenchError> {
    let program = scratch.work().join(PROGRAM);
    std::fs::copy(own_program()?, &program).map_err(BenchError::file("copy to", &program))?;
    let subject = scratch.work().join(SUBJECT);
    std::fs::write(&subject, "subject").map_err(BenchError::file("write", &subject))?;
    Ok(program)
}

impl SyscallTimes {
    /// Nanoseconds of the call with this name.
    pub(crate) fn of(&self, name: &str) -> Option<f64> {
        let found = self.0.iter().find(|(call, _)| call == name);
        found.map(|(_, value)| *value)
    }
}

/// Reads an answer and takes it away, so that no round can count the one before it.
pub(crate) fn collect(path: &Path) -> Result<SyscallTimes, BenchError> {
    let text = std::fs::read(path).map_err(BenchError::file("read", path))?;
    std::fs::remove_file(path).map_err(BenchError::file("remove", path))?;
    serde_json::from_slice(&text)
        .map_err(|error| BenchError::file("understand", path)(error.into()))
}

fn compare(bare: &[SyscallTimes], caged: &[SyscallTimes]) -> Vec<CallReport> {
    let values = |side: &[SyscallTimes], name: &str| {
        let all: Vec<f64> = side
            .iter()
            .flat_map(|times| &times.0)
            .filter(|(call, _)| call == name)
            .map(|(_, value)| *value)
            .collect();
        median(&all)
    };
    let names = bare.first().map(|times| times.0.as_slice());
    names
        .unwrap_or_default()
        .iter()
        .filter_map(|(name, _)| {
            let (bare_ns, caged_ns) = (values(bare, name)?, values(caged, name)?);
            Some(CallReport {
                name: name.clone(),
                bare_ns,
                caged_ns,
                added_ns: caged_ns - bare_ns,
                ratio: caged_ns / bare_ns,
            })
        })
        .collect()
}

impl fmt::Display for SyscallsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = self.rounds;
        writeln!(
            f,
            "system calls, nanoseconds per call, median of {rounds} rounds"
        )?;
        write!(f, "{}", self.host)?;
        writeln!(f, "command: {}\n", self.reproduce)?;
        let mut table = Table::new(["", "bare", "in the cage", "added", "ratio"]);
        for call in &self.calls {
            table.row([
                call.name.clone(),
                number(call.bare_ns, 0),
                number(call.caged_ns, 0),
                number(call.added_ns, 0),
                number(call.ratio, 2),
            ]);
        }
        writeln!(f, "{table}")?;
        for verdict in &self.verdicts {
            writeln!(f, "{verdict}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(getppid: f64, stat: f64) -> SyscallTimes {
        SyscallTimes(vec![("getppid".into(), getppid), ("stat".into(), stat)])
    }

    #[test]
    fn sides_are_compared_call_by_call_on_their_medians() {
        let bare = [times(50.0, 300.0), times(60.0, 310.0), times(900.0, 305.0)];
        let caged = [
            times(100.0, 320.0),
            times(110.0, 330.0),
            times(120.0, 325.0),
        ];
        let calls = compare(&bare, &caged);
        assert_eq!(calls[0].name, "getppid");
        assert_eq!((calls[0].bare_ns, calls[0].caged_ns), (60.0, 110.0));
        assert_eq!((calls[0].added_ns, calls[1].added_ns), (50.0, 20.0));
    }

    #[test]
    fn per_call_counts_each_call_and_passes_errors_on() {
        let mut count = 0;
        per_call(10, || {
            count += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(count, 10 * (BATCHES + 1));
        assert!(per_call(1, || Err(io::Error::other("no"))).is_err());
    }
}
