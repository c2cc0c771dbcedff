//! The end of a lease: closed where nobody uses it, else after a grace by what the policy says
//! of those who do.

use super::means::Means;
use super::{Held, PATIENCE, Stage};
use crate::RunError;
use crate::supervise::Supervision;
use ironcage_backend::{LeaseOrder, Progress};
use ironcage_control::Reply;
use ironcage_model::{EventKind, Holder, Holders, LeaseEnd, LeaseOrigin, Term};
use ironcage_sys::faults::lease_step as step;
use std::time::{Duration, Instant};

/// How often it is tried again while somebody may still let go.
const AGAIN: Duration = Duration::from_millis(20);
/// How late PID 1 may tell that the command was stopped.
const LATE: Duration = Duration::from_secs(2);
/// And where they are left alone as long as they write.
const LATER: Duration = Duration::from_millis(500);

impl Supervision<'_> {
    /// Somebody takes a lease back, or all of them.
    pub(crate) fn revoke(
        &mut self,
        key: u64,
        which: Option<u32>,
        now: Instant,
    ) -> Result<(), RunError> {
        let held = self.leases.held.iter();
        let numbers: Vec<u32> = held
            .map(|held| held.lease.number)
            .filter(|number| which.is_none_or(|which| which == *number))
            .collect();
        let none = numbers.is_empty() && !self.scopes.has_lease(which);
        if let (Some(which), true) = (which, none) {
            self.control
                .refuse(key, format!("no lease {which} is open in this cage"));
            return Ok(());
        }
        let in_scopes = self.scopes.revoke(key, which);
        let count = (numbers.len() + in_scopes.len()) as u32;
        self.control.reply(key, &Reply::Revoking { count }, &[]);
        for number in numbers {
            if let Some(held) = self.held(number) {
                held.waiting.push(key);
            }
            self.end_lease(number, "taken back by the operator", now)?;
        }
        Ok(())
    }

    /// Does what is due.
    pub(crate) fn look_at_leases(&mut self, now: Instant) -> Result<(), RunError> {
        let mut due = Vec::new();
        for held in &self.leases.held {
            let at = match held.stage {
                Stage::Open => held.until,
                Stage::Draining { next, .. } => Some(next),
                Stage::Opening { by, .. }
                | Stage::Closing { by, .. }
                | Stage::Expelling { by }
                | Stage::Leaving { by } => Some(by),
            };
            if at.is_some_and(|at| now >= at) {
                due.push((held.lease.number, held.stage));
            }
        }
        for (number, stage) in due {
            match stage {
                Stage::Open => self.end_lease(number, "its time was up", now)?,
                Stage::Draining { grace, .. } => self.close_lease(number, grace, now)?,
                Stage::Opening { .. }
                | Stage::Closing { .. }
                | Stage::Expelling { .. }
                | Stage::Leaving { .. } => return self.lose_means(number),
            }
        }
        Ok(())
    }

    /// Who was told something of a lease does not answer.
    fn lose_means(&mut self, number: u32) -> Result<(), RunError> {
        match self.held(number).map(|held| &held.means) {
            Some(Means::Door { .. }) => self.lose_door("it did not answer an order".into()),
            _ => self.lose_keeper(),
        }
    }

    pub(super) fn held(&mut self, number: u32) -> Option<&mut Held> {
        let index = self.leases.position(number)?;
        self.leases.held.get_mut(index)
    }

    /// Begins the end of a lease; one that is being opened ends when it is open.
    pub(crate) fn end_lease(
        &mut self,
        number: u32,
        cause: &'static str,
        now: Instant,
    ) -> Result<(), RunError> {
        let grace = self.plan.leases.as_ref().map(|leases| leases.grace);
        let Some(held) = self.held(number).filter(|held| held.stage == Stage::Open) else {
            // It is ending already, or will be looked at when it is open.
            if let Some(held) = self.held(number) {
                held.until = Some(now);
            }
            return Ok(());
        };
        held.cause = cause;
        let far = now + Duration::from_secs(365 * 24 * 3600);
        let grace = now.checked_add(grace.unwrap_or_default()).unwrap_or(far);
        self.close_lease(number, grace, now)
    }

    fn close_lease(&mut self, number: u32, grace: Instant, now: Instant) -> Result<(), RunError> {
        let Some(held) = self.held(number) else {
            return Ok(());
        };
        held.stage = Stage::Closing {
            by: now + PATIENCE,
            grace,
        };
        let means = held.means.clone();
        self.close_means(number, means, (grace, now))
    }

    /// The keeper has told how far the end of a lease came.
    pub(super) fn came(
        &mut self,
        number: u32,
        progress: Progress,
        mut holders: Vec<Holder>,
        now: Instant,
    ) -> Result<(), RunError> {
        step();
        let policy = self.plan.leases.as_ref().map(|leases| leases.holders);
        let Some(held) = self.held(number) else {
            return Ok(());
        };
        held.holders.append(&mut holders);
        let stage = held.stage;
        if matches!(stage, Stage::Expelling { .. }) {
            // Whatever came of it, the others go on.
            self.let_go_on();
            if let Some(stopped) = &mut self.leases.stopped {
                *stopped = now;
            }
        }
        let next = match (progress, stage) {
            (Progress::Revoked, _) => return self.finish_lease(number, LeaseEnd::Revoked),
            (Progress::Closed, _) => return self.finish_lease(number, LeaseEnd::ClosedToNewOpens),
            (Progress::Busy, Stage::Closing { grace, .. }) if now < grace => Stage::Draining {
                next: grace.min(now + AGAIN),
                grace,
            },
            (Progress::Busy, Stage::Closing { .. }) => match policy {
                Some(Holders::Keep) => Stage::Leaving { by: now + PATIENCE },
                Some(Holders::Kill) | None => Stage::Expelling { by: now + PATIENCE },
            },
            // They write on, and are left alone: so it stays until they have done.
            (Progress::Busy, Stage::Leaving { .. }) => Stage::Draining {
                next: now + LATER,
                grace: now,
            },
            // Killed, and still somebody has it: only the end of all of them is one of it.
            (Progress::Busy, _) => return self.kill_for_leases(),
        };
        if let Some(held) = self.held(number) {
            held.stage = next;
        }
        match next {
            Stage::Expelling { .. } => {
                // Stopped, so that nobody hands on what others are killed for.
                let _ = self.cage.freeze();
                self.leases.stopped = Some(now);
                let alone = !self.scopes.is_any() && !self.children.is_any();
                self.order(&LeaseOrder::Expel { number, alone })
            }
            Stage::Leaving { .. } => self.order(&LeaseOrder::Leave { number }),
            _ => Ok(()),
        }
    }

    /// Whether the command was stopped for the end of a lease, and by nobody else: then nobody
    /// stops with it. PID 1 tells it as it tells a stop at the terminal, and may tell it late.
    pub(crate) fn stopped_for_a_lease(&mut self, now: Instant) -> bool {
        let Some(at) = self.leases.stopped else {
            return false;
        };
        let mut held = self.leases.held.iter();
        let expelling = held.any(|held| matches!(held.stage, Stage::Expelling { .. }));
        if !expelling && now.duration_since(at) > LATE {
            self.leases.stopped = None;
            return false;
        }
        if !expelling {
            // Should it have been the user after all, they stop it once more.
            self.let_go_on();
        }
        true
    }

    /// Stops the cage's processes while somebody is looked for who holds a lease.
    pub(crate) fn freeze_for_a_lease(&mut self, now: Instant) {
        let _ = self.cage.freeze();
        self.leases.stopped = Some(now);
    }

    /// Lets them go on.
    pub(crate) fn resume_after_a_lease(&mut self, now: Instant) {
        self.let_go_on();
        self.leases.stopped = Some(now);
    }

    pub(super) fn finish_lease(&mut self, number: u32, end: LeaseEnd) -> Result<(), RunError> {
        let Some(index) = self.leases.position(number) else {
            return Ok(());
        };
        let held = self.leases.held.remove(index);
        self.tell_end(&held, end)
    }

    /// A lease that was on record could not be opened.
    pub(super) fn not_opened(&mut self, index: usize) -> Result<(), RunError> {
        let held = self.leases.held.remove(index);
        self.tell_end(&held, LeaseEnd::NotOpened)
    }

    fn tell_end(&mut self, held: &Held, end: LeaseEnd) -> Result<(), RunError> {
        if held.lease.origin == LeaseOrigin::Answer && end != LeaseEnd::NotOpened {
            let lent = &mut self.leases.lent;
            let open = u64::try_from(held.born.elapsed().as_millis()).unwrap_or(u64::MAX);
            let given = match held.lease.term {
                Term::Milliseconds(given) => given,
                Term::UntilRevoked => open,
            };
            lent.leases = lent.leases.saturating_add(1);
            lent.given_milliseconds = lent.given_milliseconds.saturating_add(given);
            lent.open_milliseconds = lent.open_milliseconds.saturating_add(open);
        }
        // The record first: who is told may act on it.
        self.recorder.write(EventKind::LeaseEnd {
            number: held.lease.number,
            end: end.clone(),
            cause: held.cause.to_owned(),
            holders: held.holders.clone(),
            milliseconds: held.born.elapsed().as_millis() as u64,
        })?;
        step();
        let told = Reply::LeaseEnded {
            number: held.lease.number,
            end,
            holders: held.holders.clone(),
        };
        for key in &held.waiting {
            self.control.reply(*key, &told, &[]);
        }
        Ok(())
    }

    /// The keeper is gone, or hangs: nothing is known of its leases, and only the end of the
    /// cage is one of them.
    pub(super) fn lose_keeper(&mut self) -> Result<(), RunError> {
        drop(self.leases.keeper.take());
        if self.leases.held.is_empty() {
            return Ok(());
        }
        self.kill_for_leases()
    }

    /// Ends the cage, because a lease cannot be ended otherwise.
    pub(super) fn kill_for_leases(&mut self) -> Result<(), RunError> {
        self.end_family()?;
        self.control.stopping = Some(Instant::now());
        self.finish_leases(LeaseEnd::CageKilled)
    }

    /// The cage is gone, and with it every lease.
    pub(crate) fn finish_leases(&mut self, end: LeaseEnd) -> Result<(), RunError> {
        drop(self.leases.keeper.take());
        for mut held in std::mem::take(&mut self.leases.held) {
            if end == LeaseEnd::CageEnded {
                held.cause = "the cage ended";
            }
            self.tell_end(&held, end.clone())?;
        }
        Ok(())
    }
}
