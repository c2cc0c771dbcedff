//! The end of a cage: how it ended, what is recorded of it, and what is removed.

use crate::RunError;
use crate::control::ExitNotifier;
use crate::limits;
use crate::run::exit;
use crate::supervise::{Supervision, failed};
use ironcage_host::{HostFiles as _, SystemFiles};
use ironcage_layers::cgroup::{Cgroup, sweep};
use ironcage_lease::life::LeaseEvent;
use ironcage_model::{
    Ending, EventKind, Grant, LeftOut, LimitHit, LimitKind, Outcome, Usage, bytes_as_written,
};
use ironcage_sys::process::close_together;
use libc::{SIGKILL, SIGXFSZ};
use std::path::PathBuf;
use std::time::Instant;

/// How a program ended, from its status as waitpid encodes it.
pub(crate) fn of_status(status: i32) -> Ending {
    match status & 0x7f {
        0 => Ending::Exited {
            code: (status >> 8) as u8,
        },
        signal => Ending::Signalled { signal },
    }
}

impl Supervision<'_> {
    pub(crate) fn ending(&self) -> Ending {
        if let Some(error) = &self.command.failure {
            return Ending::Failed {
                reason: error.reason(),
            };
        }
        if let Some(hit) = self.limits.hit() {
            return Ending::Limit { hit: hit.clone() };
        }
        if let Some(errno) = self.command.not_executed {
            return Ending::NotExecuted { errno };
        }
        if self.plan.sticky && self.control.stop_deadline().is_some() {
            return Ending::Stopped;
        }
        match self.command.status {
            Some(status) if !self.plan.sticky => of_status(status),
            _ => Ending::Signalled { signal: SIGKILL },
        }
    }

    /// What was given, and the most that was used of what somebody counts.
    pub(crate) fn usage(&self, (granted, more): (Vec<Grant>, bool)) -> Usage {
        let counted = self.cage.cgroup().map(Cgroup::peaks).unwrap_or_default();
        let sampled = self.limits.peaks();
        Usage {
            memory: counted.memory.or(sampled.memory),
            memory_limit: Some(self.plan.bounds.memory.what.value),
            pids: counted.pids.or(sampled.pids),
            pids_limit: Some(self.plan.bounds.pids.what.value),
            observed: self.denials.observes(),
            granted,
            more,
        }
    }

    /// Says how much the cage caused that has no line of its own.
    fn record_left_out(&mut self) -> Result<(), RunError> {
        let counted = [
            (LeftOut::Connection, self.control.unrecorded()),
            (LeftOut::Child, self.children.unrecorded()),
            (LeftOut::Message, self.channels.unrecorded()),
            (LeftOut::LeaseRequest, self.requests.unrecorded()),
            (LeftOut::KeyUse, self.key_uses.unrecorded()),
            (LeftOut::ObservedUse, self.denials.unrecorded()),
        ];
        for (what, times) in counted.into_iter().filter(|(_, times)| *times > 0) {
            self.audit.write(EventKind::LeftOut { what, times })?;
        }
        Ok(())
    }

    /// Writes the end of the record and removes what is left of the cage.
    pub(crate) fn close(
        mut self,
        mut ending: Ending,
        born: Instant,
        usage: Usage,
    ) -> Result<(Outcome, ExitNotifier), RunError> {
        let plan = self.plan;
        let mut hits = limits::counted(plan, &self.cage);
        let mut told = |limit, value| {
            hits.push(LimitHit {
                limit,
                value,
                ended: false,
                used: None,
            });
        };
        if self.limits.processes_full() {
            told(LimitKind::Pids, plan.bounds.pids.what.value.to_string());
        }
        if file_too_large(&ending) {
            told(
                LimitKind::Disk,
                bytes_as_written(plan.bounds.disk.what.value),
            );
        }
        // Killed, and the group ran out of memory: that is why.
        let killed = ending == Ending::Signalled { signal: SIGKILL };
        for hit in &mut hits {
            if killed && hit.limit == LimitKind::Memory {
                hit.ended = true;
                ending = Ending::Limit { hit: hit.clone() };
            }
        }
        if let Ending::Limit { hit } = &ending
            && !hits.contains(hit)
        {
            hits.push(hit.clone());
        }
        for denial in self.denials.remainder() {
            self.audit.write(EventKind::Denied(denial))?;
        }
        for traffic in self.denials.connects() {
            self.audit.write(EventKind::Network(traffic))?;
        }
        // What supervisors that were killed have left, where one left its socket or nobody has
        // looked for long. Done while the kernel takes the cage down, as is the rest where nothing
        // depends on its end.
        if self.runtime.sweep_is_due() || self.control.sees_a_dead_one() {
            sweep(&plan.cgroup);
            // A directory that cannot be read now is told about where somebody needs it.
            let _ = self.runtime.sweep();
        }
        let somebody_asks = !plan.absent.is_empty()
            || !plan.writable.is_empty()
            || self.network.has_proxy()
            || self.execs.count() > 0
            || self.leases.is_any()
            || self.scopes.is_any()
            || self.children.is_any();
        if somebody_asks {
            // Nobody is left to plant anything after the look, or to send anything.
            self.cage.kill();
        } else {
            // Before PID 1 is gone: then taking down the cage's mounts is a part of its end, for
            // which nothing of what follows waits.
            let mounts = self.cage.release_mounts();
            close_together(mounts).map_err(failed("close descriptors"))?;
        }
        // Before the leases: what is open of one may have been handed to them.
        self.finish_children()?;
        self.finish_scopes()?;
        self.limits.last_count(&mut hits);
        ending = with_overruns(ending, &hits);
        for hit in &hits {
            self.audit.write(EventKind::Limit(hit.clone()))?;
        }
        self.finish_leases(LeaseEvent::CageEnded)?;
        self.finish_questions()?;
        self.stop_reader();
        self.stop_key_filter()?;
        self.close_proxy()?;
        let resolver = self.close_resolver()?;
        let planted = planted(&plan.absent);
        if !planted.is_empty() {
            let paths = planted.clone();
            self.audit.write(EventKind::Planted { paths })?;
        }
        self.record_left_out()?;
        self.finish_execs(&Ending::Signalled { signal: SIGKILL })?;
        let usage = Some(Box::new(usage));
        self.audit.write(exit(ending.clone(), born, usage))?;
        let door_narrowed = self.cage.per_port().map(str::to_owned);
        // Here at the latest all of it is gone.
        let mut closing = self.cage.bury()?;
        let (exit_notifier, listener) = self.control.close(ending.clone());
        closing.extend(listener);
        closing.push(self.signals);
        closing.extend(resolver);
        let (denials, log) = self.audit.close();
        closing.extend(log);
        close_together(closing).map_err(failed("close descriptors"))?;
        // This process ends soon, and the kernel closes what these hold at once.
        std::mem::forget(self.limits);
        if let Some(error) = self.command.failure {
            return Err(error.into());
        }
        let (network_denied, network_denied_more) = denials.into_all();
        let outcome = Outcome {
            network_denied,
            network_denied_more,
            syscalls_denied: self.denials.all(),
            ending,
            layers: plan.layers.clone(),
            limits: hits,
            planted,
            door_narrowed,
            lent: self.leases.lent(),
        };
        Ok((outcome, exit_notifier))
    }
}

/// How a cage ended, after it was counted what it had written: a command that ended by itself
/// with more than it may have did not end well.
fn with_overruns(ending: Ending, hits: &[LimitHit]) -> Ending {
    let counted = |limit| hits.iter().find(|hit| hit.limit == limit && hit.ended);
    let passed = match &ending {
        Ending::Failed { .. } => None,
        Ending::Limit { hit } => counted(hit.limit),
        _ => counted(LimitKind::Disk).or_else(|| counted(LimitKind::Inodes)),
    };
    match passed {
        Some(hit) => Ending::Limit { hit: hit.clone() },
        None => ending,
    }
}

/// Names that have appeared, each without what lies in it. Existence alone is asked for, and
/// no link is followed at the name itself: what the agent made there is not read.
fn planted(absent: &[PathBuf]) -> Vec<String> {
    let mut found: Vec<&PathBuf> = Vec::new();
    let files = SystemFiles::default();
    for path in absent {
        let told = found.iter().any(|known| path.starts_with(known));
        if !told && files.node(path).is_some() {
            found.push(path);
        }
    }
    found
        .into_iter()
        .map(|path| path.to_string_lossy().into_owned())
        .collect()
}

/// Whether the command ended because a file would have grown beyond the bound on the size of a
/// file, which is the disk limit. A shell whose last program was ended by the signal says so by
/// its own status.
fn file_too_large(ending: &Ending) -> bool {
    match ending {
        Ending::Signalled { signal } => *signal == SIGXFSZ,
        Ending::Exited { code } => i32::from(*code) == 128 + SIGXFSZ,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_ended_over_a_limit_ended_by_it() {
        let hit = |limit, ended| LimitHit {
            limit,
            value: "1".into(),
            ended,
            used: ended.then_some(2),
        };
        let well = || Ending::Exited { code: 0 };
        assert_eq!(with_overruns(well(), &[]), well());
        // A full tmpfs was refused by the kernel, and the command may have gone on.
        let refused = [hit(LimitKind::Disk, false)];
        assert_eq!(with_overruns(well(), &refused), well());
        let over = [hit(LimitKind::Inodes, true)];
        let ending = with_overruns(well(), &over);
        assert_eq!(ending.exit_code(), 137);
        // What ended it first stays, with what was counted in the end.
        let time = Ending::Limit {
            hit: hit(LimitKind::Time, true),
        };
        assert_eq!(with_overruns(time.clone(), &over), time);
        let earlier = Ending::Limit {
            hit: LimitHit {
                used: None,
                ..hit(LimitKind::Inodes, true)
            },
        };
        assert_eq!(with_overruns(earlier, &over), ending);
    }

    #[test]
    fn a_file_that_grew_too_large_is_known_by_the_signal_and_by_a_shells_word_for_it() {
        assert!(file_too_large(&Ending::Signalled { signal: SIGXFSZ }));
        assert!(file_too_large(&Ending::Exited { code: 153 }));
        assert!(!file_too_large(&Ending::Signalled { signal: SIGKILL }));
        assert!(!file_too_large(&Ending::Exited { code: 25 }));
    }
}
