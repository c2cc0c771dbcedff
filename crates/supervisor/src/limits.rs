//! Limits while a cage runs: deadlines, the watchdog, and what the cgroup counted.
//!
//! [`Limits`] is a part of the supervisor: it owns its clocks and counters, takes [`LimitEvent`]s
//! and returns effects. [`guests`](crate::guests) is how the loop gives it what it needs.

use crate::RunError;
use crate::effects::Effect;
use ironcage_backend::Cage;
use ironcage_layers::cgroup::{Cgroup, Peaks};
use ironcage_model::{LimitHit, LimitKind, bytes_as_written};
use ironcage_plan::{Plan, Resource};
use ironcage_sys::rustix::fs::{Mode, OFlags, fstatfs, open, openat};
use ironcage_sys::rustix::io::Errno;
use ironcage_watchdog::{
    Guest, GuestPlaces, Guests, MemoryPlaces, ProcMount, ProcessFiles, StorageBaseline, Together,
    Watchdog, WatchedLimits, WatchedPlaces, anonymous_memory, processor_ticks, tasks,
};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Limits of one running cage.
#[derive(Debug)]
pub(crate) struct Limits {
    deadline: Option<(Instant, Duration)>,
    idle: Option<Duration>,
    last_sign: Instant,
    last_cpu: Option<u64>,
    watchdog: Watchdog,
    /// Nothing is looked at before this.
    first_look: Instant,
    proc: ProcMount,
    /// Who uses what the cage has besides it, where no cgroup holds them together.
    guests: Guests,
    /// Whether memory or processes are watched.
    counts: bool,
    tasks: Option<TaskWatch>,
    sampled: Peaks,
    next_sample: Instant,
    /// The limit for which the cage ends.
    hit: Option<LimitHit>,
    /// Whether the cage is stopped while somebody counts what it wrote.
    paused: bool,
    /// Whether its parent counts, which has what this cage writes counted with its own.
    parent_counts: bool,
}

/// Something that the limits have to know.
#[derive(Debug)]
pub(crate) enum LimitEvent {
    /// The command said something, or was told something.
    SignOfLife,
    /// Somebody beside the cage has what they use counted as the cage's. Process list, storage and
    /// shared memory come as descriptors.
    GuestJoined {
        guest: Guest,
        places: Vec<OwnedFd>,
    },
    GuestLeft(Guest),
    /// The cage's parent counts what both have written, or is done with it.
    ParentCounts(bool),
    /// Time has passed.
    Tick {
        /// Whether the cage is stopped for another reason, so that it must not be resumed.
        stopped: bool,
        /// In a scope: whether the cage that it stands beside counts.
        cage_counts: bool,
    },
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
    /// Returns how many there are where that is more than may be: each of those beside the cage
    /// has the bound to itself, and the sum is watched.
    fn look(&mut self, now: Instant, own: &dyn ProcessFiles, guests: &Guests) -> Option<usize> {
        if (self.full && guests.is_empty()) || now < self.next {
            return None;
        }
        let start = Instant::now();
        // The first process of each is Ironcage's own.
        let enough = self.most + guests.places().count();
        let count = tasks(&Together { own, guests }, enough + 1);
        self.full |= count >= self.most;
        self.next = now + until_full(self.most - count.min(self.most), start.elapsed());
        (!guests.is_empty() && count > enough).then_some(count)
    }

    /// Nobody needs to be told twice that it is full; but a sum can still grow.
    fn due(&self, guests: &Guests) -> Option<Instant> {
        (!self.full || !guests.is_empty()).then_some(self.next)
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

fn unmeasured(source: io::Error) -> RunError {
    RunError::Supervise {
        action: "take the watchdog's first look",
        source,
    }
}

/// How the writable directories of a plan are. To be taken before the start is permitted.
pub(crate) fn baseline(plan: &Plan) -> Result<StorageBaseline, RunError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut directories = Vec::with_capacity(plan.writable.len());
    for path in &plan.writable {
        match open(path, flags, Mode::empty()) {
            Ok(directory) => directories.push(directory),
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
    StorageBaseline::take(directories).map_err(unmeasured)
}

impl Limits {
    /// Starts the clocks. `writable` was taken before the command could begin.
    pub(crate) fn new(
        plan: &Plan,
        cage: &Cage,
        mut writable: StorageBaseline,
        now: Instant,
    ) -> Result<Self, RunError> {
        let proc = openat(
            cage.proc(),
            ".",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(failed("open the cage's process list"))?;
        let proc = ProcMount::new(proc, cage.above());
        let by_rlimit = |wanted| plan.rlimits.iter().any(|item| item.what.resource == wanted);
        let limits = WatchedLimits {
            memory: by_rlimit(Resource::Data).then_some(plan.bounds.memory.what.value),
            disk: Some(plan.bounds.disk.what.value),
            inodes: Some(plan.bounds.inodes.what.value),
        };
        if let Some(own) = cage.directory() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let own = openat(own, ".", flags, Mode::empty())
                .map_err(failed("open the cage's own directory"))?;
            writable.add(own).map_err(unmeasured)?;
        }
        let clone = |fd: std::os::fd::BorrowedFd<'_>| {
            fd.try_clone_to_owned()
                .map_err(|source| RunError::Supervise {
                    action: "keep a handle of the cage's storage",
                    source,
                })
        };
        // Handles of what is counted as memory, where nothing but this counts it.
        let memory = match limits.memory {
            Some(_) => MemoryPlaces {
                tmpfs: cage.storage().map(clone).transpose()?.into_iter().collect(),
                segments: cage.shared_memory().map(clone).transpose()?,
                sockets: cage.sockets().map(clone).transpose()?,
            },
            None => MemoryPlaces::default(),
        };
        let places = WatchedPlaces {
            proc: proc.clone(),
            memory,
            writable,
        };
        let watchdog = Watchdog::new(limits, places, now).map_err(unmeasured)?;
        let idle = plan.bounds.idle.what.value;
        Ok(Limits {
            hit: None,
            paused: false,
            parent_counts: false,
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
            first_look: now + FIRST_LOOK,
            watchdog,
            proc,
            guests: Guests::default(),
            counts: by_rlimit(Resource::Data) || by_rlimit(Resource::Processes),
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

    pub(crate) fn handle(&mut self, event: LimitEvent, now: Instant) -> Vec<Effect> {
        match event {
            LimitEvent::SignOfLife => self.last_sign = now,
            LimitEvent::GuestJoined { guest, places } => {
                if self.add_guest(guest, places).is_err() {
                    // What cannot be counted must not run.
                    return vec![Effect::StopNow];
                }
            }
            LimitEvent::GuestLeft(guest) => self.guests.remove(&guest),
            LimitEvent::ParentCounts(counts) => self.parent_counts = counts,
            LimitEvent::Tick {
                stopped,
                cage_counts,
            } => {
                self.hit = self.look(now);
                if self.hit.is_none() {
                    return self.stand_still(stopped, cage_counts);
                }
            }
        }
        Vec::new()
    }

    /// Whether the command has run long enough to be looked at.
    pub(crate) fn looks_at(&self, now: Instant) -> bool {
        now >= self.first_look
    }

    /// The limit for which the cage ends, where one was reached.
    pub(crate) fn hit(&self) -> Option<&LimitHit> {
        self.hit.as_ref()
    }

    /// Stops the cage while somebody counts what it wrote: so that nothing is added meanwhile, and
    /// that the count comes to its end.
    fn stand_still(&mut self, stopped: bool, cage_counts: bool) -> Vec<Effect> {
        let counting = self.watchdog.is_counting() || self.parent_counts || cage_counts;
        if counting == self.paused || (!counting && stopped) {
            return Vec::new();
        }
        self.paused = counting;
        vec![Effect::PauseForCount(counting)]
    }

    /// When to look again.
    pub(crate) fn next(&self) -> Option<Instant> {
        let deadline = self.deadline.map(|(at, _)| at);
        let idle = self.idle.map(|limit| self.last_sign + limit);
        let due = |tasks: &TaskWatch| tasks.due(&self.guests);
        let tasks = self.tasks.as_ref().and_then(due);
        let watchdog = self.watchdog.next().map(|at| at.max(self.first_look));
        [deadline, idle, watchdog, tasks]
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
    fn look(&mut self, now: Instant) -> Option<LimitHit> {
        let ended = |limit, value: Duration| LimitHit {
            limit,
            value: seconds(value),
            ended: true,
            used: None,
        };
        if let Some(tasks) = &mut self.tasks
            && let Some(used) = tasks.look(now, &self.proc, &self.guests)
        {
            return Some(LimitHit {
                limit: LimitKind::Pids,
                value: tasks.most.to_string(),
                ended: true,
                used: u64::try_from(used).ok(),
            });
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
        match now >= self.first_look {
            true => self.watchdog.look(&self.guests, now),
            false => None,
        }
    }

    /// Whether what a scope or a child uses is to be counted as this cage's: where a cgroup holds
    /// both, the kernel does.
    pub(crate) fn counts_guests(&self) -> bool {
        self.counts
    }

    fn add_guest(&mut self, guest: Guest, places: Vec<OwnedFd>) -> io::Result<()> {
        let mut places = places.into_iter();
        // Fewer came than were sent: there were more descriptors than this process may have.
        let (Some(proc), Some(tmpfs)) = (places.next(), places.next()) else {
            return Err(Errno::MFILE.into());
        };
        let places = GuestPlaces {
            proc: ProcMount::new(proc, None),
            tmpfs,
            segments: places.next(),
            sockets: places.next(),
        };
        self.guests.add(guest, places)
    }

    /// Watches a directory of the host that the cage is about to be given for writing.
    ///
    /// # Errors
    /// Where it cannot be watched; then it must not be given.
    pub(crate) fn watch_directory(&mut self, path: &Path, now: Instant) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match open(path, flags, Mode::empty()) {
            Ok(directory) => self.watchdog.watch_directory(directory, now),
            // A single file: the bound on the size of a file holds it.
            Err(Errno::NOTDIR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds what the cage has written beyond its limits to those that were hit. To be called when
    /// no process of it is left: then nothing is written after the count, and nobody can have
    /// been too fast for it.
    pub(crate) fn last_count(&mut self, hits: &mut Vec<LimitHit>) {
        for overrun in self.watchdog.last_count() {
            let found = overrun.ended();
            match hits.iter_mut().find(|hit| hit.limit == found.limit) {
                Some(hit) => *hit = found,
                None => hits.push(found),
            }
        }
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
            used: None,
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
                used: None,
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
#[path = "limits_tests.rs"]
mod tests;
