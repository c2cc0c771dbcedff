//! Limits while a cage runs: deadlines, the watchdog, and what the cgroup counted.

use crate::RunError;
use crate::watchdog::{
    ProcMount, ProcessFiles, Watchdog, WatchedLimits, WatchedPlaces, anonymous_memory,
    processor_ticks, tasks,
};
use ironcage_backend::Cage;
use ironcage_layers::cgroup::{Cgroup, Peaks};
use ironcage_model::{LimitHit, LimitKind, bytes_as_written};
use ironcage_plan::{Plan, Resource};
use ironcage_sys::rustix::fs::{Mode, OFlags, fstatfs, open, openat};
use ironcage_sys::rustix::io::Errno;
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
    tasks: Option<TaskWatch>,
    sampled: Peaks,
    next_sample: Instant,
}

/// What a cage's processes use.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// Bytes of memory that is theirs alone; shared and file-backed memory is not counted.
    pub(crate) memory: Option<u64>,
    /// Processor time of those that live, and of children that they have waited for.
    pub(crate) cpu_microseconds: Option<u64>,
    /// Processes and threads.
    pub(crate) tasks: Option<u64>,
}

/// Every kernel of this architecture counts a hundred ticks a second for programs.
const MICROSECONDS_PER_TICK: u64 = 10_000;

/// Watches the bound on processes and threads where an rlimit holds it. Nobody counts refused
/// forks then; a look that finds every place taken is the next best. So the looks come in less
/// time than it takes to fill the places that are left, within reason.
#[derive(Debug)]
struct TaskWatch {
    most: usize,
    next: Instant,
    full: bool,
}

impl TaskWatch {
    fn look(&mut self, now: Instant, processes: &dyn ProcessFiles) {
        if self.full || now < self.next {
            return;
        }
        let start = Instant::now();
        let count = tasks(processes, self.most);
        self.full = count >= self.most;
        self.next = now + until_full(self.most - count.min(self.most), start.elapsed());
    }

    fn due(&self) -> Option<Instant> {
        (!self.full).then_some(self.next)
    }
}

/// The pause before the next look: a fork or a new thread takes some fifty microseconds at
/// least, and looking may take a tenth of the time.
fn until_full(left: usize, cost: Duration) -> Duration {
    let to_fill = Duration::from_micros(50).saturating_mul(u32::try_from(left).unwrap_or(u32::MAX));
    to_fill
        .clamp(Duration::from_millis(2), Duration::from_millis(500))
        .max(cost * 10)
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
        let mut writable = Vec::new();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Some(own) = cage.directory() {
            let own = openat(own, ".", flags, Mode::empty());
            writable.push(own.map_err(failed("open the cage's own directory"))?);
        }
        for path in &plan.writable {
            match open(path, flags, Mode::empty()) {
                Ok(directory) => writable.push(directory),
                // A single file: the bound on the size of a file holds it.
                Err(Errno::NOTDIR) => {}
                Err(error) => {
                    return Err(RunError::Unwatched {
                        path: path.clone(),
                        source: error.into(),
                    });
                }
            }
        }
        let clone = |fd: std::os::fd::BorrowedFd<'_>| {
            fd.try_clone_to_owned()
                .map_err(|source| RunError::Supervise {
                    action: "keep a handle of the cage's storage",
                    source,
                })
        };
        let places = WatchedPlaces {
            proc: ProcMount::new(clone(proc.as_fd())?, cage.above()),
            tmpfs: cage.storage().map(clone).transpose()?.into_iter().collect(),
            segments: cage.shared_memory().map(clone).transpose()?,
            writable,
        };
        let watchdog =
            Watchdog::new(limits, places, now).map_err(|source| RunError::Supervise {
                action: "take the watchdog's first look",
                source,
            })?;
        let idle = plan.bounds.idle.what.value;
        let proc = ProcMount::new(proc, cage.above());
        Ok(Limits {
            sampled: Peaks::default(),
            next_sample: now,
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
            tasks: by_rlimit(Resource::Processes)
                .then(|| usize::try_from(plan.bounds.pids.what.value).ok())
                .flatten()
                .map(|most| TaskWatch {
                    most,
                    next: now + FIRST_LOOK,
                    full: false,
                }),
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
        let tasks = self.tasks.as_ref().and_then(TaskWatch::due);
        [deadline, idle, self.next_look, tasks]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether the bound on processes was seen to be reached.
    pub(crate) fn processes_full(&self) -> bool {
        self.tasks.as_ref().is_some_and(|tasks| tasks.full)
    }

    /// What the cage's processes use now, from a look at each of them: for where nothing counts.
    pub(crate) fn usage(&self) -> Usage {
        Usage {
            memory: anonymous_memory(&self.proc).ok(),
            cpu_microseconds: processor_ticks(&self.proc)
                .ok()
                .map(|ticks| ticks * MICROSECONDS_PER_TICK),
            tasks: Some(tasks(&self.proc, usize::MAX) as u64),
        }
    }

    /// Looks what is used now, where nobody else keeps the most of it; not too often.
    pub(crate) fn sample(&mut self, cage: &Cage, now: Instant) {
        if now < self.next_sample {
            return;
        }
        let start = Instant::now();
        let counted = cage.cgroup().map(Cgroup::stats).unwrap_or_default();
        let look = match counted.memory.and(counted.pids) {
            Some(_) => Usage::default(),
            None => self.usage(),
        };
        let most = &mut self.sampled;
        most.memory = most.memory.max(counted.memory.or(look.memory));
        most.pids = most.pids.max(counted.pids.or(look.tasks));
        self.next_sample = now + SAMPLES.max(start.elapsed() * 10);
    }

    /// The most that was seen.
    pub(crate) fn peaks(&self) -> Peaks {
        self.sampled
    }

    /// Whether PID 1 is the only process.
    pub(crate) fn is_empty(&self) -> bool {
        self.proc.pids().is_ok_and(|pids| pids.len() <= 1)
    }

    /// Looks at what is due. A hit means that the cage has to end.
    pub(crate) fn look(&mut self, now: Instant) -> Option<LimitHit> {
        let ended = |limit, value: Duration| LimitHit {
            limit,
            value: seconds(value),
            ended: true,
        };
        if let Some(tasks) = &mut self.tasks {
            tasks.look(now, &self.proc);
        }
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
            let tick = watchdog.tick(now);
            self.next_look = Some(tick.next);
            return tick.hit;
        }
        None
    }
}

/// How often it is looked what an observed run uses.
const SAMPLES: Duration = Duration::from_millis(20);
const FIRST_LOOK: Duration = Duration::from_millis(20);

fn seconds(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 {
        format!("{}s", duration.as_secs())
    } else {
        format!("{}ms", duration.as_millis())
    }
}

/// What the kernel refused or ended for a limit of the cage's own group.
pub(crate) fn counted_by_cgroup(cage: &Cage) -> Vec<LimitHit> {
    cage.cgroup()
        .map(Cgroup::hits)
        .and_then(Result::ok)
        .unwrap_or_default()
        .into_iter()
        .map(|hit| LimitHit {
            limit: hit.limit,
            value: hit.value,
            ended: false,
        })
        .collect()
}

/// What the kernel refused or ended for a limit, as far as it can be known afterwards.
pub(crate) fn counted(plan: &Plan, cage: &Cage) -> Vec<LimitHit> {
    let mut hits = counted_by_cgroup(cage);
    if let Some(Ok(storage)) = cage.storage().map(fstatfs) {
        let mut full = |limit, value: u64| {
            hits.push(LimitHit {
                limit,
                value: if matches!(limit, LimitKind::Disk | LimitKind::Memory) {
                    bytes_as_written(value)
                } else {
                    value.to_string()
                },
                ended: false,
            });
        };
        if storage.f_bavail == 0 {
            let (disk, memory) = (plan.bounds.disk.what.value, plan.bounds.memory.what.value);
            // It is memory, and so never more than that.
            match memory < disk {
                true => full(LimitKind::Memory, memory),
                false => full(LimitKind::Disk, disk),
            }
        }
        if storage.f_ffree == 0 {
            full(LimitKind::Inodes, plan.bounds.inodes.what.value);
        }
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[derive(Default)]
    struct Threads(Vec<usize>);

    impl ProcessFiles for Threads {
        fn pids(&self) -> io::Result<Vec<u32>> {
            Ok((0..self.0.len() as u32).collect())
        }
        fn read(&self, pid: u32, _: &str) -> io::Result<String> {
            let threads = self.0.get(pid as usize).ok_or(io::ErrorKind::NotFound)?;
            Ok(format!(
                "7 (x) y) S 1 7 7 0 -1 0 0 0 0 0 1 2 3 4 20 0 {threads} 0 99"
            ))
        }
        fn open_files(&self, _: u32) -> io::Result<crate::watchdog::OpenFiles> {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    #[test]
    fn threads_take_places_as_processes_do_and_a_full_house_is_remembered() {
        let now = Instant::now();
        let mut watch = TaskWatch {
            most: 10,
            next: now,
            full: false,
        };
        watch.look(now, &Threads(vec![1, 1, 7]));
        assert!(!watch.full && watch.due() > Some(now));
        // Not before its time.
        watch.look(now, &Threads(vec![1, 1, 8]));
        assert!(!watch.full);
        let later = now + Duration::from_secs(1);
        watch.look(later, &Threads(vec![1, 1, 8]));
        assert!(watch.full && watch.due().is_none());
        watch.look(later + Duration::from_secs(1), &Threads(vec![1]));
        assert!(watch.full);
    }

    #[test]
    fn the_fewer_places_are_left_the_sooner_the_next_look_but_not_at_any_price() {
        let none = Duration::ZERO;
        assert!(until_full(200, none) > until_full(100, none));
        assert_eq!(until_full(0, none), Duration::from_millis(2));
        assert_eq!(until_full(usize::MAX, none), Duration::from_millis(500));
        let dear = Duration::from_millis(7);
        assert_eq!(until_full(0, dear), Duration::from_millis(70));
    }
}
