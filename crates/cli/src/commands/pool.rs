//! `ironcage __pool`: starts a command from a pool of prepared cages, for
//! `ironcage bench start --resident`.
//!
//! The backend alone: no audit log, no control socket, no supervisor beside the cages. One line in,
//! one line out: `ok NUMBERS` or `failed REASON`. It ends when its standard input does, and every
//! cage with it.

use crate::cage_flags::CageFlags;
use crate::error::{CliError, CommandResult};
use ironcage_backend::{Backend, Cage, FromInit, PreparedCage, StartError, StreamKind, Streams};
use ironcage_host::CgroupHost;
use ironcage_model::CageId;
use ironcage_plan::{BindError, Bindings, Item, Plan, StaticPart, ViewOp};
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::rand::{GetRandomFlags, getrandom};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufRead as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a command may be silent.
const PATIENCE: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

/// Start a command from prepared cages, one for each line of standard input
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: CageFlags,
    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let prepared = args.flags.prepare(args.command)?;
    let overlay = |item: &Item<ViewOp>| matches!(item.what, ViewOp::Overlay { .. });
    if prepared.plan.view.iter().any(overlay) {
        return Err(
            CliError::new("cannot start cages from a pool with a copy-on-write workspace")
                .hint("use --workspace-mode direct"),
        );
    }
    let part = StaticPart::of(&prepared.plan).map_err(|error| CliError::from_error(&error))?;
    let mut pool = Pool {
        backend: ironcage_supervisor::backend(prepared.plan.isolation_level.what.isolation),
        plan: &prepared.plan,
        part: Arc::new(part),
        members: VecDeque::new(),
    };
    let failed = |error: io::Error| CliError::new(format!("cannot read requests: {error}"));
    let mut answers = io::stdout().lock();
    for request in io::stdin().lock().lines() {
        let request = request.map_err(failed)?;
        let mut words = request.split_whitespace();
        let (verb, count) = (words.next(), words.next());
        let answer = match (verb, count.and_then(|word| word.parse().ok())) {
            (None, _) => pool.one().map(|time| time.as_nanos().to_string()),
            (Some("fill"), Some(count)) => pool.fill(count).map(|()| "0".to_owned()),
            (Some("sustain"), Some(count)) => {
                pool.sustain(count).map(|time| time.as_nanos().to_string())
            }
            (Some("held"), _) => Ok(pool.held()),
            _ => Err(PoolError::UnknownRequest),
        };
        let written = match answer {
            Ok(answer) => writeln!(answers, "ok {answer}"),
            Err(error) => {
                let text = CliError::from_error(&error).to_string();
                writeln!(answers, "failed {}", text.replace('\n', "; "))
            }
        };
        written.and_then(|()| answers.flush()).map_err(failed)?;
    }
    Ok(0)
}

struct Pool<'a> {
    backend: &'static dyn Backend,
    plan: &'a Plan,
    part: Arc<StaticPart>,
    members: VecDeque<PreparedCage>,
}

/// A cage whose command runs.
struct Started {
    cage: Cage,
    _streams: Streams,
}

/// Why a request to the pool failed.
#[derive(Debug, thiserror::Error)]
enum PoolError {
    #[error("unknown request")]
    UnknownRequest,
    #[error("the pool is empty")]
    Empty,
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("cannot read what the cage reports")]
    Cage(#[from] io::Error),
    #[error("cannot remove the cage")]
    Remove(#[source] StartError),
    #[error("the command was silent for too long")]
    Silent,
    #[error("the command ended with status {0}")]
    Failed(i32),
    #[error("cannot execute the command")]
    NotExecuted(#[source] io::Error),
    #[error("the cage ended early")]
    Ended,
}

impl Pool<'_> {
    fn add(&mut self) -> Result<(), PoolError> {
        let mut random = [0_u8; 12];
        getrandom(&mut random, GetRandomFlags::empty()).map_err(io::Error::from)?;
        let id = CageId::from_entropy(random);
        let prepared = self.backend.prepare(&self.part, id);
        self.members.push_back(prepared?);
        Ok(())
    }

    /// Prepares cages until as many wait.
    fn fill(&mut self, count: usize) -> Result<(), PoolError> {
        while self.members.len() < count {
            self.add()?;
        }
        let mut members = self.members.iter_mut();
        members.try_for_each(|member| Ok(member.settle()?))
    }

    fn start(&mut self) -> Result<Started, PoolError> {
        let member = self.members.pop_front();
        let prepared = member.ok_or(PoolError::Empty)?;
        let id = prepared.id().clone();
        let bound = self.plan.bind(Bindings {
            cage: &id,
            processors: &[],
            change: None,
            files: Vec::new(),
        })?;
        let adopted = self.backend.adopt(prepared, &bound, StreamKind::Pipes);
        let ready = adopted.and_then(|starting| starting.await_ready(&bound));
        let (cage, streams) = ready?;
        Ok(Started {
            cage,
            _streams: streams,
        })
    }

    /// Starts the command in a cage of the pool; the time from the request to the exit status.
    fn one(&mut self) -> Result<Duration, PoolError> {
        let begun = Instant::now();
        let started = self.start()?;
        started.succeeded()?;
        let elapsed = begun.elapsed();
        started.remove()?;
        Ok(elapsed)
    }

    /// Starts the command as often, with as many at once as there are CPUs, and prepares a new
    /// cage for each; the time until all are gone.
    fn sustain(&mut self, count: usize) -> Result<Duration, PoolError> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        self.fill(2 * cpus)?;
        let mut running: VecDeque<Started> = VecDeque::new();
        let begun = Instant::now();
        for _ in 0..count {
            self.add()?;
            running.push_back(self.start()?);
            if running.len() >= cpus
                && let Some(first) = running.pop_front()
            {
                first.succeeded()?;
                first.remove()?;
            }
        }
        for started in running {
            started.succeeded()?;
            started.remove()?;
        }
        Ok(begun.elapsed())
    }

    /// Descriptors, mounts, cgroups, child processes and memory in KiB, of a pool without members.
    fn held(&mut self) -> String {
        self.members.clear();
        let entries = |path: &Path| std::fs::read_dir(path).map_or(0, Iterator::count);
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let parents: Vec<&Path> = match &self.plan.cgroup {
            CgroupHost::V1(v1) => v1.controllers.values().map(AsRef::as_ref).collect(),
            CgroupHost::V2 { parent, .. } => vec![parent],
            CgroupHost::None { .. } => Vec::new(),
        };
        let cgroups: usize = parents.into_iter().map(entries).sum();
        let own = std::process::id();
        let children = text(&format!("/proc/self/task/{own}/children"));
        let status = text("/proc/self/status");
        let memory = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let memory = memory.and_then(|rest| rest.split_whitespace().next());
        format!(
            "{} {} {cgroups} {} {}",
            entries(Path::new("/proc/self/fd")),
            text("/proc/self/mountinfo").lines().count(),
            children.split_whitespace().count(),
            memory.unwrap_or("0"),
        )
    }
}

impl Started {
    fn succeeded(&self) -> Result<(), PoolError> {
        loop {
            let mut fds = [PollFd::from_borrowed_fd(self.cage.control(), PollFlags::IN)];
            let ready = poll(&mut fds, Some(&PATIENCE)).map_err(io::Error::from)?;
            if ready == 0 {
                return Err(PoolError::Silent);
            }
            match self.cage.hear()? {
                Some(FromInit::Exited {
                    number: 0,
                    status: 0,
                }) => return Ok(()),
                Some(FromInit::Exited { status, .. }) => {
                    return Err(PoolError::Failed(status));
                }
                Some(FromInit::NotExecuted { errno, .. }) => {
                    let error = io::Error::from_raw_os_error(errno);
                    return Err(PoolError::NotExecuted(error));
                }
                Some(FromInit::Closed) => return Err(PoolError::Ended),
                Some(_) | None => {}
            }
        }
    }

    fn remove(self) -> Result<(), PoolError> {
        self.cage.remove().map_err(PoolError::Remove)
    }
}
