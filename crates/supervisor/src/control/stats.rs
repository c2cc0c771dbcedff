//! Counts what a cage uses, from its cgroup or from a look at its processes.

use crate::supervise::Supervision;
use ironcage_backend::Cage;
use ironcage_control::Stats;
use ironcage_layers::cgroup::Cgroup;
use ironcage_model::LimitKind;
use ironcage_sys::rustix::fs::fstatfs;
use std::time::{Duration, Instant};

/// How long an answer is good for: asking often costs the supervisor no more than this often.
const FRESH: Duration = Duration::from_millis(200);

impl Supervision<'_> {
    pub(super) fn stats(&mut self, now: Instant) -> Stats {
        if let Some((at, stats)) = &self.control.stats
            && now.duration_since(*at) < FRESH
        {
            return stats.clone();
        }
        let bounds = &self.plan.bounds;
        let counted = self.cage.cgroup().map(Cgroup::stats).unwrap_or_default();
        let by_cgroup = counted.memory.is_some();
        // Each process is looked at only where nothing else counts.
        let complete = by_cgroup && counted.cpu_microseconds.is_some() && counted.pids.is_some();
        let look = match complete {
            true => Default::default(),
            false => self.limits.usage(),
        };
        let stats = Stats {
            memory: counted.memory.or(look.memory),
            memory_limit: (self.leases.limit(LimitKind::Memory))
                .unwrap_or(bounds.memory.what.value),
            memory_peak: counted.memory_peak,
            cpu_microseconds: counted.cpu_microseconds.or(look.cpu_microseconds),
            pids: counted.pids.or(look.tasks),
            pids_limit: (self.leases.limit(LimitKind::Pids)).unwrap_or(bounds.pids.what.value),
            storage: storage(&self.cage),
            counted_by: if by_cgroup { "cgroup" } else { "processes" }.into(),
        };
        self.control.stats = Some((now, stats.clone()));
        stats
    }
}

fn storage(cage: &Cage) -> Option<u64> {
    let stat = fstatfs(cage.storage()?).ok()?;
    let used = stat.f_blocks.checked_sub(stat.f_bfree)?;
    used.checked_mul(u64::try_from(stat.f_bsize).ok()?)
}
