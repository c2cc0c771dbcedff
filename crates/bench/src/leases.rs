//! `bench leases`: what a lease costs over the control socket of a cage, opened and revoked with
//! its proof, what a scope of its own costs a command, what leases cost the agent's task, and
//! whether many of them leave anything behind.

mod kernel;

use crate::exec::{Cage, dial, next, over_the_socket};
use crate::process_tree::{ProcessTree, private_memory};
use crate::scratch::Scratch;
use crate::statistics::Summary;
use crate::table::{Table, number};
use crate::task::{Arms, TaskArm, Worker, check_needs, in_turns};
use crate::verdict::{Target, Verdict};
use crate::{ArmError, BenchError, HostFacts};
use ironcage_control::{
    Channel, GrantRequest, LeaseTarget, Packet, Reply, Request, RuntimeDir, ScopeRequest,
};
use ironcage_model::{GrantedLease, LeaseEnd, LeaseOutcome, Right, Term};
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use serde::Serialize;
use std::fmt;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Leases of each kind that are thrown away first: the mount helper is started, caches fill, and both
/// processes come to the end of the memory for their first moments (`sys/src/arena.rs`).
const WARM_UP: usize = 150;
/// The same in a guest.
const WARM_UP_OF_A_GUEST: usize = 10;
/// What is executed in the cage, and in a scope beside it.
const COMMAND: &str = "/bin/true";
/// How much longer the agent's task may take with leases than without, and than bare.
const TARGET: Target = Target {
    at_most: 5.0,
    unit: "%",
};

/// What a grant and a revocation with its proof may take: half of what they took before this was
/// measured against a target (340 us to grant, 143 us to revoke).
const LEASE_TARGETS: [(&str, f64); 4] = [
    (GRANT_READ, 170.0),
    (REVOKE_READ, 71.5),
    (GRANT_WRITE, 170.0),
    (REVOKE_WRITE, 71.5),
];
const GRANT_READ: &str = "grant --read";
const REVOKE_READ: &str = "revoke (read)";
const GRANT_WRITE: &str = "grant --write";
const REVOKE_WRITE: &str = "revoke (write)";

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct LeasesRequest {
    /// The `ironcage` program.
    pub ironcage: PathBuf,
    /// How many leases of each kind.
    pub runs: usize,
    /// How often the agent's task is done bare, in a cage, and in one whose writing is leased.
    pub tasks: usize,
    /// How long leases are opened and revoked at a steady pace afterwards, if at all.
    pub soak: Option<Soak>,
}

/// Leases at a steady pace, for a while.
#[derive(Debug, Clone, Copy)]
pub struct Soak {
    /// For how long.
    pub time: Duration,
    pub per_minute: u32,
}

#[derive(Debug, Clone, Serialize)]
pub struct LeasesReport {
    bench: &'static str,
    host: HostFacts,
    reproduce: String,
    arms: Vec<ArmReport>,
    /// What supervisor and mount helper hold before the measured leases, and after.
    before: ResourceUsage,
    after: ResourceUsage,
    leases_per_minute: f64,
    lease_verdicts: Vec<Verdict>,
    task: Vec<TaskArm>,
    verdicts: Vec<Verdict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    soak: Option<SoakReport>,
}

/// What a steady pace left behind.
#[derive(Debug, Clone, Serialize)]
struct SoakReport {
    seconds: u64,
    wanted_per_minute: u32,
    leases: u64,
    leases_per_minute: f64,
    /// At the start, when a tenth was done, and at the end.
    held: [ResourceUsage; 3],
}

#[derive(Debug, Clone, Serialize)]
struct ArmReport {
    name: &'static str,
    microseconds: Summary,
}

/// What the processes beside a cage hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct ResourceUsage {
    descriptors: usize,
    private_bytes: u64,
    /// Mounts in the cage.
    mounts: usize,
}

fn failed(reason: impl fmt::Display) -> BenchError {
    BenchError::Failed {
        arm: "leases".to_owned(),
        reason: ArmError::Result(reason.to_string()),
    }
}

/// The supervisor and the mount helper, the only other process outside the cage.
fn held(channel: &Channel) -> Result<ResourceUsage, BenchError> {
    channel.send(&Request::Describe, &[]).map_err(failed)?;
    let (supervisor, init) = match next(channel).map_err(failed)? {
        Packet::Message(Reply::Description(told), _) => (told.supervisor, told.init),
        other => return Err(failed(format!("{other:?}"))),
    };
    let (supervisor, init) = (supervisor as i32, init as i32);
    let tree = ProcessTree::now().map_err(failed)?;
    let caged: Vec<i32> = tree.below(init).iter().map(|process| process.pid).collect();
    let beside = tree
        .below(supervisor)
        .into_iter()
        .map(|process| process.pid);
    let beside = beside.filter(|pid| *pid != init && !caged.contains(pid));
    let mut held = ResourceUsage {
        descriptors: 0,
        private_bytes: 0,
        mounts: std::fs::read_to_string(format!("/proc/{init}/mountinfo"))
            .map_or(0, |mounts| mounts.lines().count()),
    };
    for pid in beside {
        // The mount helper may be in another user namespace, which keeps a user from looking at it.
        if let Ok(list) = std::fs::read_dir(format!("/proc/{pid}/fd")) {
            held.descriptors += list.count();
            held.private_bytes += private_memory(pid).unwrap_or_default();
        }
    }
    Ok(held)
}

/// Opens a lease and revokes it; both in microseconds.
fn one(channel: &Channel, path: &Path, right: Right) -> Result<(f64, f64), BenchError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let handle = open(path, flags, Mode::empty()).map_err(failed)?;
    let request = Request::Grant(GrantRequest {
        wanted: LeaseTarget::Path { right },
        term: Term::UntilRevoked,
        uses: None,
        reason: String::new(),
    });
    let start = Instant::now();
    channel.send(&request, &[handle.as_fd()]).map_err(failed)?;
    let number = match next(channel).map_err(failed)? {
        Packet::Message(Reply::Lease(LeaseOutcome::Granted(GrantedLease::Open(lease))), _) => {
            lease.number
        }
        other => return Err(failed(format!("{other:?}"))),
    };
    let granted = start.elapsed();
    let start = Instant::now();
    let number = Some(number);
    channel
        .send(&Request::Revoke { number }, &[])
        .map_err(failed)?;
    loop {
        match next(channel).map_err(failed)? {
            Packet::Message(Reply::Revoking { .. }, _) => {}
            Packet::Message(
                Reply::LeaseEnded {
                    end: LeaseEnd::Revoked,
                    ..
                },
                _,
            ) => break,
            other => return Err(failed(format!("{other:?}"))),
        }
    }
    let revoked = start.elapsed();
    Ok((granted.as_secs_f64() * 1e6, revoked.as_secs_f64() * 1e6))
}

/// Opens and revokes leases, one after the other, in turns of each kind.
pub fn bench_leases(request: &LeasesRequest) -> Result<LeasesReport, BenchError> {
    if request.runs == 0 {
        let why = "bench leases needs at least one run";
        return Err(BenchError::Request(why.to_owned()));
    }
    let host = HostFacts::now();
    let scratch = Scratch::new()?;
    let data = scratch.folder("data")?;
    let policy = scratch.path("policy.toml");
    let text = format!(
        "[ceiling.ask.files]\nwrite = [{:?}]\n",
        data.display().to_string()
    );
    std::fs::write(&policy, text).map_err(failed)?;
    let policy = policy.display().to_string();
    let cage = Cage::start(&request.ironcage, &scratch, &["--policy", &policy])?;
    let place = RuntimeDir::of_user(&scratch.path("state").join("ironcage"));
    let channel = dial(&place, &cage.id).map_err(failed)?;
    for _ in 0..WARM_UP {
        one(&channel, &data, Right::Read)?;
        one(&channel, &data, Right::Write)?;
    }
    let before = held(&channel)?;
    let mut times: [Vec<f64>; 6] = Default::default();
    let start = Instant::now();
    for _ in 0..request.runs {
        for (first, right) in [(0, Right::Read), (2, Right::Write)] {
            let (granted, revoked) = one(&channel, &data, right)?;
            times[first].push(granted);
            times[first + 1].push(revoked);
        }
    }
    let minutes = start.elapsed().as_secs_f64() / 60.0;
    let after = held(&channel)?;
    for _ in 0..request.runs {
        for (index, scope) in [(4, None), (5, Some(ScopeRequest::default()))] {
            let took = over_the_socket(&place, &cage.id, Path::new(COMMAND), scope);
            times[index].push(took.map_err(failed)?.as_secs_f64() * 1e6);
        }
    }
    let soak = match request.soak {
        Some(soak) => Some(steadily(&channel, &data, soak)?),
        None => None,
    };
    let names = [
        GRANT_READ,
        REVOKE_READ,
        GRANT_WRITE,
        REVOKE_WRITE,
        "exec",
        "exec in a scope",
    ];
    let none = || BenchError::Request("no samples".to_owned());
    let mut arms = Vec::new();
    let place = scratch.folder("kernel")?;
    let kernel = kernel::measure(&data, &place, request.runs)?;
    let names = names.into_iter().chain(kernel::STEPS);
    for (name, times) in names.zip(times.iter().chain(&kernel)) {
        let microseconds = Summary::of(times).ok_or_else(none)?;
        arms.push(ArmReport { name, microseconds });
    }
    drop(cage);
    if scratch.copy_guest()? {
        arms.extend(in_a_guest(request, &scratch, (&policy, &data))?);
    }
    let task = task(request, &scratch)?;
    let of = |name: &str| task.iter().find(|arm| arm.name == name);
    let beside = |name: &str| {
        let (leases, other) = (of("leases")?, of(name)?);
        let more = (leases.ratio / other.ratio - 1.0) * 100.0;
        let what = format!("the task with leases, beside {name}, by round");
        Some(Verdict::new(what, more, TARGET))
    };
    let lease_verdicts = lease_verdicts(&arms);
    let verdicts = ["static", "bare"].into_iter().filter_map(beside).collect();
    Ok(LeasesReport {
        bench: "leases",
        host,
        reproduce: reproduce(request),
        arms,
        before,
        after,
        leases_per_minute: 2.0 * request.runs as f64 / minutes,
        lease_verdicts,
        task,
        verdicts,
        soak,
    })
}

/// The same in a microVM, whose file server closes what the guest has open before the proof.
fn in_a_guest(
    request: &LeasesRequest,
    scratch: &Scratch,
    (policy, data): (&str, &Path),
) -> Result<Vec<ArmReport>, BenchError> {
    let flags = ["--isolation", "microvm", "--memory", "800M"];
    let flags = [&flags[..], &["--policy", policy]].concat();
    let cage = Cage::start(&request.ironcage, scratch, &flags)?;
    let place = RuntimeDir::of_user(&scratch.path("state").join("ironcage"));
    let channel = dial(&place, &cage.id).map_err(failed)?;
    // It boots with its first command.
    let up = over_the_socket(&place, &cage.id, Path::new(COMMAND), None);
    up.map_err(failed)?;
    let mut times: [Vec<f64>; 2] = Default::default();
    for round in 0..WARM_UP_OF_A_GUEST + request.runs {
        let (granted, revoked) = one(&channel, data, Right::Write)?;
        if round >= WARM_UP_OF_A_GUEST {
            times[0].push(granted);
            times[1].push(revoked);
        }
    }
    let none = || BenchError::Request("no samples".to_owned());
    let names = [
        "grant --write (microvm, emulated)",
        "revoke (microvm, emulated)",
    ];
    let arms = names.into_iter().zip(&times).map(|(name, times)| {
        let microseconds = Summary::of(times).ok_or_else(none)?;
        Ok(ArmReport { name, microseconds })
    });
    arms.collect()
}

fn lease_verdicts(arms: &[ArmReport]) -> Vec<Verdict> {
    let judged = LEASE_TARGETS.iter().filter_map(|(name, at_most)| {
        let arm = arms.iter().find(|arm| arm.name == *name)?;
        let target = Target {
            at_most: *at_most,
            unit: "us",
        };
        let what = format!("{name}, by median");
        Some(Verdict::new(what, arm.microseconds.median, target))
    });
    judged.collect()
}

/// The agent's task bare, in a cage that may write its workspace from the start, and in one to
/// which a lease gives that while it runs.
fn task(request: &LeasesRequest, scratch: &Scratch) -> Result<Vec<TaskArm>, BenchError> {
    if request.tasks == 0 {
        return Ok(Vec::new());
    }
    check_needs()?;
    let ironcage = request.ironcage.as_path();
    let workers = vec![
        Worker::bare(scratch)?,
        Worker::caged("static", "cow", ironcage, scratch)?,
        Worker::leased("leases", ironcage, scratch)?,
    ];
    in_turns(workers, request.tasks, scratch)
}

fn reproduce(request: &LeasesRequest) -> String {
    let LeasesRequest { runs, tasks, .. } = request;
    let command = format!("ironcage bench leases --runs {runs} --tasks {tasks}");
    match request.soak {
        None => command,
        Some(Soak { time, per_minute }) => {
            format!(
                "{command} --soak {}s --rate {per_minute}/min",
                time.as_secs()
            )
        }
    }
}

/// Opens and revokes leases at a steady pace, reading and writing in turn.
fn steadily(channel: &Channel, data: &Path, soak: Soak) -> Result<SoakReport, BenchError> {
    if soak.per_minute == 0 {
        let why = "--rate needs at least one lease a minute";
        return Err(BenchError::Request(why.to_owned()));
    }
    let pause = Duration::from_secs(60) / soak.per_minute;
    let first = held(channel)?;
    let mut early = first;
    let start = Instant::now();
    let mut leases = 0_u64;
    while start.elapsed() < soak.time {
        let right = match leases % 2 {
            0 => Right::Read,
            _ => Right::Write,
        };
        one(channel, data, right)?;
        leases += 1;
        if early == first && start.elapsed() * 10 > soak.time {
            early = held(channel)?;
        }
        // From the beginning, not from the last one: a slow one is caught up with.
        let due = pause.mul_f64(leases as f64);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
    let taken = start.elapsed();
    Ok(SoakReport {
        seconds: taken.as_secs(),
        wanted_per_minute: soak.per_minute,
        leases,
        leases_per_minute: leases as f64 * 60.0 / taken.as_secs_f64(),
        held: [first, early, held(channel)?],
    })
}

impl fmt::Display for LeasesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.host)?;
        writeln!(f, "{}\n", self.reproduce)?;
        let mut table = Table::new(["what", "median us", "quartiles", "min us", "p99 us"]);
        for arm in &self.arms {
            table.row([
                arm.name.to_owned(),
                number(arm.microseconds.median, 1),
                arm.microseconds.spread(1),
                number(arm.microseconds.min, 1),
                number(arm.microseconds.p99, 1),
            ]);
        }
        write!(f, "{table}")?;
        writeln!(
            f,
            "\nleases: from a request on the control socket to its answer: decided, on record, mounted; and off again, with the proof"
        )?;
        writeln!(
            f,
            "exec: {COMMAND} over the control socket, from the connection to its end\nkernel: the same mounts by three system calls, with no cage, no decision and no record"
        )?;
        for verdict in &self.lease_verdicts {
            writeln!(f, "{verdict}")?;
        }
        writeln!(
            f,
            "leases a minute, opened and revoked: {:.0}",
            self.leases_per_minute
        )?;
        writeln!(
            f,
            "supervisor and mount helper, as far as they can be looked at: {} descriptors and {} KiB before, {} and {} after",
            self.before.descriptors,
            self.before.private_bytes / 1024,
            self.after.descriptors,
            self.after.private_bytes / 1024
        )?;
        if !self.task.is_empty() {
            writeln!(f, "\nthe agent's task, milliseconds\n")?;
            write!(f, "{}", Arms(&self.task))?;
            for verdict in &self.verdicts {
                writeln!(f, "{verdict}")?;
            }
        }
        let Some(soak) = &self.soak else {
            return Ok(());
        };
        writeln!(
            f,
            "\nat a steady pace: {} leases in {} s, {:.0} a minute (wanted {})",
            soak.leases, soak.seconds, soak.leases_per_minute, soak.wanted_per_minute
        )?;
        let mut table = Table::new(["", "descriptors", "private KiB", "mounts of the cage"]);
        for (when, held) in ["at its start", "after a tenth", "at its end"]
            .iter()
            .zip(soak.held)
        {
            table.row([
                (*when).to_owned(),
                held.descriptors.to_string(),
                (held.private_bytes / 1024).to_string(),
                held.mounts.to_string(),
            ]);
        }
        write!(f, "{table}")
    }
}
