//! Limits over a cage and those beside it: who has what it uses counted, who counts it, and who
//! stands still meanwhile.

use crate::RunError;
use crate::children::ChildEvent;
use crate::limits::LimitEvent;
use crate::scope::{ScopeEvent, ScopeLink, ScopeState};
use crate::supervise::{Supervision, failed};
use ironcage_sys::spent::close_spent;
use ironcage_watchdog::Guest;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

impl Supervision<'_> {
    /// In a scope or a child, where no cgroup holds the limits of both: has what it uses counted
    /// by the cage that it stands beside.
    pub(crate) fn be_counted(&self) -> io::Result<()> {
        if !self.limits.counts_guests() {
            return Ok(());
        }
        let Some(storage) = self.cage.storage() else {
            return Ok(());
        };
        let mut places = vec![self.cage.proc(), storage];
        // By their order: without the first of the two there is no second.
        if let Some(segments) = self.cage.shared_memory() {
            places.push(segments);
            places.extend(self.cage.sockets());
        }
        if let Some(side) = &self.scope {
            return side.link().count(&places);
        }
        match &self.parent {
            Some(parent) => parent.count(self.control.id(), &places),
            None => Ok(()),
        }
    }

    /// Gives an event to the limits.
    pub(crate) fn limit_event(&mut self, event: LimitEvent, now: Instant) -> Result<(), RunError> {
        let effects = self.limits.handle(event, now);
        self.apply(effects, now)
    }

    /// The command said something, or was told something; or somebody works beside the cage.
    pub(crate) fn sign_of_life(&mut self, now: Instant) {
        self.limits.handle(LimitEvent::SignOfLife, now);
    }

    /// Looks whether a limit is reached, and whether the cage is to stand still for a count.
    pub(crate) fn look_at_limits(&mut self, now: Instant) -> Result<(), RunError> {
        if self.limits.looks_at(now) {
            // What the start has read, which a command that was soon over did not wait for.
            close_spent().map_err(failed("close descriptors"))?;
        }
        let link = self.scope.as_ref().map(ScopeState::link);
        let tick = LimitEvent::Tick {
            stopped: self.is_held() || self.leases.is_expelling(),
            cage_counts: link.is_some_and(ScopeLink::is_paused),
        };
        self.limit_event(tick, now)
    }

    /// Counts what somebody beside this cage uses: here, and in the cage that this one itself
    /// stands beside.
    pub(crate) fn count_guest(
        &mut self,
        guest: Guest,
        places: Vec<OwnedFd>,
        now: Instant,
    ) -> Result<(), RunError> {
        if let (Some(parent), Guest::Child(id)) = (&self.parent, &guest) {
            let above: Vec<BorrowedFd<'_>> = places.iter().map(AsFd::as_fd).collect();
            // A parent that is gone takes this process along.
            let _ = parent.count(id, &above);
        }
        self.limit_event(LimitEvent::GuestJoined { guest, places }, now)
    }

    /// Stops everything that writes to what is counted, or lets it go on.
    pub(crate) fn pause_for_count(&mut self, paused: bool, now: Instant) -> Result<(), RunError> {
        // A cage that is just ending needs neither.
        let _ = match paused {
            true => self.cage.pause(),
            false => self.cage.unpause(),
        };
        // They write to the same directories.
        self.scope_event(ScopeEvent::Pause(paused), now)?;
        self.child_event(ChildEvent::Pause(paused), now)
    }
}
