//! `bench start --resident`: starts from a pool of prepared cages, from the request to the exit
//! status, beside the bare command and bwrap; how many a second with the pool refilled; and what
//! is left after many.

use crate::arm::Arm;
use crate::peers::{BwrapView, bwrap_arguments, find_program};
use crate::resident::Resident;
use crate::scratch::Scratch;
use crate::statistics::{Shuffle, Summary};
use crate::table::{Table, number};
use crate::verdict::{Target, Verdict};
use crate::{ArmError, BenchError, HostFacts, StartRequest};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a start from the pool may add to a bare one, as a share of what bwrap adds.
const ADDED: Target = Target {
    at_most: 0.3,
    unit: "",
};
/// How long a start with refill may take, as a share of bwrap's: twice its rate.
const SUSTAINED: Target = Target {
    at_most: 0.5,
    unit: "",
};
const NO_GROWTH: Target = Target {
    at_most: 0.0,
    unit: "",
};
/// What the allocator may keep of a larger moment: a leak of two bytes a start would show after
/// 100,000.
const MEMORY_GROWTH: Target = Target {
    at_most: 256.0,
    unit: "KiB",
};
/// Starts one after the other from a pool that is not refilled meanwhile.
const BURST: usize = 200;
const WARM_UP: usize = 5;
/// Rounds in which both rates are taken, one after the other.
const ROUNDS: usize = 5;
/// Starts in one of them.
const IN_A_ROUND: usize = 100;

#[derive(Debug, Clone, Serialize)]
pub struct PoolReport {
    bench: &'static str,
    host: HostFacts,
    reproduce: String,
    arms: Vec<PoolArm>,
    /// The same, each arm [`BURST`] times without the others between.
    burst: Vec<PoolArm>,
    rates: Vec<Rate>,
    before: PoolUsage,
    after: PoolUsage,
    soak: usize,
    verdicts: Vec<Verdict>,
}

#[derive(Debug, Clone, Serialize)]
struct PoolArm {
    name: &'static str,
    milliseconds: Summary,
}

/// Starts a second, in each round.
#[derive(Debug, Clone, Serialize)]
struct Rate {
    name: &'static str,
    per_second: Summary,
}

/// What the owner of the pool holds while it has no member.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct PoolUsage {
    descriptors: u64,
    mounts: u64,
    cgroups: u64,
    children: u64,
    kilobytes: u64,
}

/// Measures a pool. `soak` is the number of starts after which nothing may have grown.
pub fn bench_pool(request: &StartRequest, soak: usize) -> Result<PoolReport, BenchError> {
    if request.runs == 0 || !request.command.is_absolute() {
        let why = "bench start needs at least one run and a command by its absolute path";
        return Err(BenchError::Request(why.to_owned()));
    }
    let Some(bwrap) = find_program("bwrap") else {
        return Err(BenchError::Request(
            "bwrap is not installed (package bubblewrap)".to_owned(),
        ));
    };
    let host = HostFacts::now();
    let scratch = Scratch::new()?;
    let command = request.command.as_path();
    let mut words = bwrap_arguments(BwrapView {
        workspace: scratch.work(),
        with_etc: false,
    });
    words.push(command.into());
    let mut arms = [
        (
            "bare",
            Arm::spawned("bare", command, &[], scratch.work(), &scratch)?,
        ),
        (
            "bwrap",
            Arm::spawned("bwrap", &bwrap, &words, scratch.work(), &scratch)?,
        ),
        ("pool", Arm::Resident(pool(request, &scratch)?)),
    ];
    let starts = WARM_UP + request.runs;
    ask(&mut arms, &format!("fill {starts}"))?;
    let times = times(&mut arms, starts)?;
    let mut verdicts = added("added by a start from the pool / added by bwrap", &times);
    ask(&mut arms, &format!("fill {BURST}"))?;
    let burst = burst(&mut arms)?;
    verdicts.extend(added("the same in a burst", &burst));
    let rates = rates(&mut arms, (&bwrap, &words))?;
    if let [theirs, ours] = rates.as_slice() {
        verdicts.push(Verdict::new(
            "time of a start with refill / of bwrap, as many at once as CPUs",
            theirs.per_second.median / ours.per_second.median,
            SUSTAINED,
        ));
    }
    // Whatever is made once, is made by now.
    let before = held(&mut arms)?;
    ask(&mut arms, &format!("sustain {soak}"))?;
    let after = held(&mut arms)?;
    verdicts.push(Verdict::new(
        format!("descriptors, mounts, cgroups and processes more after {soak} starts"),
        after.count() - before.count(),
        NO_GROWTH,
    ));
    verdicts.push(Verdict::new(
        format!("private memory more after {soak} starts"),
        after.kilobytes as f64 - before.kilobytes as f64,
        MEMORY_GROWTH,
    ));
    Ok(PoolReport {
        bench: "start-resident",
        host,
        reproduce: format!(
            "ironcage bench start --resident --runs {} --command {} --soak {soak}",
            request.runs,
            command.display()
        ),
        arms: named(times),
        burst: named(burst),
        rates,
        before,
        after,
        soak,
        verdicts,
    })
}

fn named(times: [Summary; 3]) -> Vec<PoolArm> {
    let named = ["bare", "bwrap", "pool"].into_iter().zip(times);
    named
        .map(|(name, milliseconds)| PoolArm { name, milliseconds })
        .collect()
}

/// What the pool adds to a bare start, as a share of what bwrap adds.
fn added(what: &str, [bare, wrapped, pooled]: &[Summary; 3]) -> Vec<Verdict> {
    let added = |of: &Summary| (of.median - bare.median, of.min - bare.min);
    let (theirs, ours) = (added(wrapped), added(pooled));
    vec![
        Verdict::new(format!("{what}, by median"), ours.0 / theirs.0, ADDED),
        Verdict::new(format!("{what}, by min"), ours.1 / theirs.1, ADDED),
    ]
}

/// Each arm many times, one after the other.
fn burst(arms: &mut [(&'static str, Arm); 3]) -> Result<[Summary; 3], BenchError> {
    let mut times: [Vec<Duration>; 3] = Default::default();
    for ((name, arm), times) in arms.iter_mut().zip(&mut times) {
        for _ in 0..BURST {
            times.push(arm.measure()?.map_err(|reason| BenchError::Failed {
                arm: (*name).to_owned(),
                reason,
            })?);
        }
    }
    summaries(times)
}

fn summaries(times: [Vec<Duration>; 3]) -> Result<[Summary; 3], BenchError> {
    let none = || BenchError::Request("no samples".to_owned());
    let [bare, bwrap, pool] = times.map(|times| Summary::of_times(&times));
    Ok([
        bare.ok_or_else(none)?,
        bwrap.ok_or_else(none)?,
        pool.ok_or_else(none)?,
    ])
}

fn pool(request: &StartRequest, scratch: &Scratch) -> Result<Resident, BenchError> {
    let words = ["__pool", "--workspace-mode", "direct", "--"];
    let words = words.iter().map(OsString::from);
    let words: Vec<OsString> = words.chain([request.command.clone().into()]).collect();
    Resident::start("pool", &request.ironcage, &words, scratch)
}

/// Asks the pool, which is the last arm.
fn ask(arms: &mut [(&'static str, Arm)], request: &str) -> Result<String, BenchError> {
    let failed = |reason: ArmError| BenchError::Failed {
        arm: "pool".to_owned(),
        reason,
    };
    match arms.last_mut() {
        Some((_, Arm::Resident(resident))) => resident.ask(request)?.map_err(failed),
        _ => Err(failed(ArmError::NotInstalled {
            package: "ironcage",
        })),
    }
}

/// Each arm once in every round, in a shuffled order.
fn times(arms: &mut [(&'static str, Arm); 3], starts: usize) -> Result<[Summary; 3], BenchError> {
    let mut times: [Vec<Duration>; 3] = Default::default();
    let mut shuffle = Shuffle::new();
    for round in 0..starts {
        for index in shuffle.order(arms.len()) {
            let (name, arm) = &mut arms[index];
            let failed = |reason| BenchError::Failed {
                arm: (*name).to_owned(),
                reason,
            };
            let elapsed = arm.measure()?.map_err(failed)?;
            if round >= WARM_UP {
                times[index].push(elapsed);
            }
        }
    }
    summaries(times)
}

fn rates(
    arms: &mut [(&'static str, Arm)],
    (bwrap, words): (&Path, &[OsString]),
) -> Result<Vec<Rate>, BenchError> {
    let mut samples: [Vec<f64>; 2] = Default::default();
    for _ in 0..ROUNDS {
        let time = together(bwrap, words)?;
        samples[0].push(IN_A_ROUND as f64 / time.as_secs_f64());
        let answer = ask(arms, &format!("sustain {IN_A_ROUND}"))?;
        let nanoseconds: f64 = answer.parse().map_err(|_| BenchError::Protocol {
            arm: "pool".to_owned(),
            answer,
        })?;
        samples[1].push(IN_A_ROUND as f64 / (nanoseconds / 1e9));
    }
    let names = ["bwrap", "pool with refill"];
    Ok((names.into_iter().zip(samples))
        .filter_map(|(name, samples)| {
            let per_second = Summary::of(&samples)?;
            Some(Rate { name, per_second })
        })
        .collect())
}

/// Starts bwrap as often, with as many at once as there are CPUs.
fn together(program: &Path, words: &[OsString]) -> Result<Duration, BenchError> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let begun = Instant::now();
    let each = |count: usize| {
        for _ in 0..count {
            let mut command = Command::new(program);
            command
                .args(words)
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            let status = command.stderr(Stdio::null()).status();
            if !status.is_ok_and(|status| status.success()) {
                return false;
            }
        }
        true
    };
    let done = std::thread::scope(|scope| {
        let share = |worker: usize| (IN_A_ROUND + worker) / cpus;
        let workers: Vec<_> = (0..cpus)
            .map(|w| scope.spawn(move || each(share(w))))
            .collect();
        let mut ended = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or(false));
        ended.all(|done| done)
    });
    match done {
        true => Ok(begun.elapsed()),
        false => Err(BenchError::Failed {
            arm: "bwrap".to_owned(),
            reason: ArmError::Result("a start failed".to_owned()),
        }),
    }
}

fn held(arms: &mut [(&'static str, Arm)]) -> Result<PoolUsage, BenchError> {
    let answer = ask(arms, "held")?;
    let numbers = answer.split_whitespace().map(str::parse);
    let numbers: Result<Vec<u64>, _> = numbers.collect();
    match numbers.as_deref() {
        Ok(&[descriptors, mounts, cgroups, children, kilobytes]) => Ok(PoolUsage {
            descriptors,
            mounts,
            cgroups,
            children,
            kilobytes,
        }),
        _ => Err(BenchError::Protocol {
            arm: "pool".to_owned(),
            answer,
        }),
    }
}

impl PoolUsage {
    fn count(self) -> f64 {
        (self.descriptors + self.mounts + self.cgroups + self.children) as f64
    }
}

impl fmt::Display for PoolUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} descriptors, {} mounts, {} cgroups, {} children, {} KiB of private memory",
            self.descriptors, self.mounts, self.cgroups, self.children, self.kilobytes
        )
    }
}

impl fmt::Display for PoolReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "start of a command from prepared cages, request to exit status, milliseconds"
        )?;
        write!(f, "{}", self.host)?;
        writeln!(f, "command: {}\n", self.reproduce)?;
        let mut table = Table::new(["", "median", "quartiles", "min", "p99"]);
        let in_turns = self.arms.iter().map(|arm| ("in turns", arm));
        let burst = self.burst.iter().map(|arm| ("in a burst", arm));
        for (how, PoolArm { name, milliseconds }) in in_turns.chain(burst) {
            table.row([
                format!("{name}, {how}"),
                number(milliseconds.median, 2),
                milliseconds.spread(2),
                number(milliseconds.min, 2),
                number(milliseconds.p99, 2),
            ]);
        }
        writeln!(f, "{table}")?;
        writeln!(
            f,
            "pool: on the real files; no supervisor and no audit log is in it, both are the service's"
        )?;
        for Rate { name, per_second } in &self.rates {
            writeln!(f, "{name}: {:.0} starts a second", per_second.median)?;
        }
        writeln!(f, "before {} starts: {}", self.soak, self.before)?;
        writeln!(f, "after them: {}\n", self.after)?;
        self.verdicts
            .iter()
            .try_for_each(|verdict| writeln!(f, "{verdict}"))
    }
}
