//! Limits while a cage runs: deadlines, the watchdog, and what the cgroup counted.

use crate::RunError;
use crate::watchdog::{
    ProcMount, ProcessFiles, Watchdog, WatchedLimits, WatchedPlaces, processor_ticks,
};
use ironcage_layers::cgroup::Cgroup;
use ironcage_model::{LimitHit, LimitKind, bytes_as_written};
use ironcage_namespace::Cage;
use ironcage_plan::{Plan, Resource};
use ironcage_sys::rustix::fs::{Mode, OFlags, fstatfs, open, openat};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Limits of one running cage.
#[derive(Debug)]
pub(crate) struct Limits {
    deadline: Option<(Instant, Duration)>,
    idle: Option<Duration>,
    last_sign: Instant,
    last_cpu: Option<u64>,
    watchdog: Option<Watchdog>,
    next_look: Option<Instant>,
    proc: ProcMount,
    processes: Option<usize>,
    full: bool,
}

fn failed(action: &'static str) -> impl FnOnce(ironcage_sys::rustix::io::Errno) -> RunError {
    move |error| RunError::Supervise {
        action,
        source: error.into(),
    }
}

impl Limits {
    /// Starts the clocks.
    pub(crate) fn new(plan: &Plan, cage: &Cage, now: Instant) -> Result<Self, RunError> {
        let proc = openat(
            cage.proc(),
            ".",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(failed("open the cage's process list"))?;
        let by_rlimit = |wanted| plan.rlimits.iter().any(|item| item.what.resource == wanted);
        let limits = WatchedLimits {
            memory: by_rlimit(Resource::Data).then_some(plan.bounds.memory.what.value),
            disk: Some(plan.bounds.disk.what.value),
            inodes: Some(plan.bounds.inodes.what.value),
        };
        let writable = plan
            .writable
            .iter()
            .filter_map(|path| {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                open(path, flags, Mode::empty()).ok()
            })
            .collect();
        let clone = |fd: std::os::fd::BorrowedFd<'_>| {
            fd.try_clone_to_owned()
                .map_err(|source| RunError::Supervise {
                    action: "keep a handle of the cage's storage",
                    source,
                })
        };
        let places = WatchedPlaces {
            proc: clone(proc.as_fd())?,
            tmpfs: vec![clone(cage.storage())?],
            writable,
        };
        let watchdog =
            Watchdog::new(limits, places, now).map_err(|source| RunError::Supervise {
                action: "take the watchdog's first look",
                source,
            })?;
        let idle = plan.bounds.idle.what.value;
        let proc = ProcMount::new(proc);
        Ok(Limits {
            deadline: plan
                .bounds
                .time
                .what
                .value
                .map(|limit| (now + limit, limit)),
            idle,
            last_sign: now,
            last_cpu: idle.and_then(|_| processor_ticks(&proc).ok()),
            // The first look comes a moment later: a command that is over by then is not
            // held up by it.
            next_look: watchdog.as_ref().map(|_| now + FIRST_LOOK),
            watchdog,
            proc,
            processes: by_rlimit(Resource::Processes)
                .then(|| usize::try_from(plan.bounds.pids.what.value).ok())
                .flatten(),
            full: false,
        })
    }

    /// The command said something, or was told something.
    pub(crate) fn sign_of_life(&mut self, now: Instant) {
        self.last_sign = now;
    }

    /// When to look again.
    pub(crate) fn next(&self) -> Option<Instant> {
        let deadline = self.deadline.map(|(at, _)| at);
        let idle = self.idle.map(|limit| self.last_sign + limit);
        [deadline, idle, self.next_look].into_iter().flatten().min()
    }

    /// Whether the bound on processes was seen to be reached. Without a cgroup nobody counts
    /// refused forks; a look that finds every place taken is the next best.
    pub(crate) fn processes_full(&self) -> bool {
        self.full
    }

    /// Looks at what is due. A hit means that the cage has to end.
    pub(crate) fn look(&mut self, now: Instant) -> Option<LimitHit> {
        let ended = |limit, value: Duration| LimitHit {
            limit,
            value: seconds(value),
            ended: true,
        };
        if let Some((at, limit)) = self.deadline
            && now >= at
        {
            return Some(ended(LimitKind::Time, limit));
        }
        if let Some(limit) = self.idle
            && now >= self.last_sign + limit
        {
            // A process list that cannot be read is no sign of life.
            let cpu = processor_ticks(&self.proc).ok();
            if cpu.is_none() || cpu == self.last_cpu {
                return Some(ended(LimitKind::Idle, limit));
            }
            self.last_cpu = cpu;
            self.last_sign = now;
        }
        if let Some(watchdog) = &mut self.watchdog
            && self.next_look.is_some_and(|at| now >= at)
        {
            if let (Some(most), false) = (self.processes, self.full) {
                self.full = self.proc.pids().is_ok_and(|pids| pids.len() >= most);
            }
            let tick = watchdog.tick(now);
            self.next_look = Some(tick.next);
            return tick.hit;
        }
        None
    }
}

const FIRST_LOOK: Duration = Duration::from_millis(20);

fn seconds(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 {
        format!("{}s", duration.as_secs())
    } else {
        format!("{}ms", duration.as_millis())
    }
}

/// What the kernel refused or ended for a limit, as far as it can be known afterwards.
pub(crate) fn counted(plan: &Plan, cage: &Cage) -> Vec<LimitHit> {
    let mut hits: Vec<LimitHit> = cage
        .cgroup()
        .map(Cgroup::hits)
        .and_then(Result::ok)
        .unwrap_or_default()
        .into_iter()
        .map(|hit| LimitHit {
            limit: hit.limit,
            value: hit.value,
            ended: false,
        })
        .collect();
    if let Ok(storage) = fstatfs(cage.storage()) {
        let mut full = |limit, value: u64| {
            hits.push(LimitHit {
                limit,
                value: if limit == LimitKind::Disk {
                    bytes_as_written(value)
                } else {
                    value.to_string()
                },
                ended: false,
            });
        };
        if storage.f_bavail == 0 {
            full(LimitKind::Disk, plan.bounds.disk.what.value);
        }
        if storage.f_ffree == 0 {
            full(LimitKind::Inodes, plan.bounds.inodes.what.value);
        }
    }
    hits
}
