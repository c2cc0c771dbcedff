//! The leases of a cage: what is open, until when, and how far the end of each has come.
//!
//! A lease is in the audit log before it is opened, and its end only when that is proved. In
//! between is what holds it, most often the mount helper, which does what is ordered and replies
//! later; nothing here waits for it. [`table`] is the part; here its effects are carried out.

mod decision;
mod facts;
mod mechanism;
mod pace;
mod requests;
mod table;

pub(crate) use facts::{LeaseSubject, SeenName, SeenPath, look, look_at_name};
pub(crate) use mechanism::unwatched;
pub(crate) use pace::RequestPace;
pub(crate) use requests::{LeaseRequest, Requester, shortened};
pub(crate) use table::{LeaseMatch, Leases, release};

use crate::RunError;
use crate::backends::backend;
use crate::supervise::Supervision;
use ironcage_backend::{LeaseOrder, MountHelperReply};
use ironcage_control::Reply;
use ironcage_lease::life::LeaseEvent;
use ironcage_model::{LeaseEndCause, LeaseReason, in_full};
use ironcage_sys::faults::lease_step as step;
use std::time::Instant;

/// Longest reason that is put on record.
pub(crate) const REASON: usize = 500;

impl Supervision<'_> {
    /// Every lease that is open, or whose end is not proved.
    pub(crate) fn list_leases(&mut self, key: u64, now: Instant) {
        let mut list = self.leases.describe(now);
        list.extend(self.scopes.describe_leases());
        self.control.reply(key, &Reply::Leases(list), &[]);
    }

    pub(crate) fn start_helper(&mut self) -> Result<(), LeaseReason> {
        if self.leases.helper().is_some() {
            return Ok(());
        }
        let backend = backend(self.plan.isolation_level.what.isolation);
        let helper = backend.mount_helper(self.plan, &self.cage);
        let helper = helper.map_err(|error| LeaseReason::NotOpened {
            error: in_full(&error),
        });
        self.leases.set_helper(helper?);
        Ok(())
    }

    /// Something happened to a lease.
    pub(crate) fn lease_event(
        &mut self,
        number: u32,
        event: LeaseEvent,
        now: Instant,
    ) -> Result<(), RunError> {
        step();
        let effects = self.leases.handle(number, event, now);
        self.apply(effects, now)
    }

    /// Begins the end of a lease; one that is being opened ends when it is open.
    pub(crate) fn end_lease(
        &mut self,
        number: u32,
        cause: LeaseEndCause,
        now: Instant,
    ) -> Result<(), RunError> {
        self.lease_event(number, LeaseEvent::TakenBack { cause }, now)
    }

    /// Somebody takes a lease back, or all of them.
    pub(crate) fn revoke(
        &mut self,
        key: u64,
        which: Option<u32>,
        now: Instant,
    ) -> Result<(), RunError> {
        let (own, effects) = self.leases.revoke(key, which, now);
        if let Some(which) = which
            && own == 0
            && !self.scopes.has_lease(Some(which))
        {
            let which = which.to_string();
            self.control.refuse(key, LeaseReason::NoSuchLease { which });
            return Ok(());
        }
        let in_scopes = self.scopes.revoke(key, which);
        let count = (own + in_scopes.len()) as u32;
        self.control.reply(key, &Reply::Revoking { count }, &[]);
        self.apply(effects, now)
    }

    /// Does what is due.
    pub(crate) fn look_at_leases(&mut self, now: Instant) -> Result<(), RunError> {
        let effects = self.leases.tick(now);
        self.apply(effects, now)
    }

    /// Gives an order to the mount helper. Where it takes none, its leases end with the cage.
    pub(crate) fn order(&mut self, order: &LeaseOrder, now: Instant) -> Result<(), RunError> {
        step();
        match self.leases.order(order) {
            true => Ok(()),
            false => self.lose_helper(now),
        }
    }

    /// Takes a reply of the mount helper.
    pub(crate) fn hear_helper(&mut self, now: Instant) -> Result<(), RunError> {
        let effects = match self.leases.hear_helper() {
            Ok(None) => return Ok(()),
            Ok(Some(MountHelperReply::Opened {
                number,
                failed: None,
            })) => self.leases.handle(number, LeaseEvent::Opened, now),
            Ok(Some(MountHelperReply::Opened {
                number,
                failed: Some(error),
            })) => {
                let reason = LeaseReason::NotOpened { error };
                self.leases.not_opened(number, reason.into(), now)
            }
            Ok(Some(MountHelperReply::Ended {
                number,
                progress,
                holders,
                ..
            })) => self.leases.released(number, progress, holders, now),
            Err(_) => return self.lose_helper(now),
        };
        step();
        self.apply(effects, now)
    }

    /// The mount helper is gone, or hangs: only the end of the cage is one of its leases.
    pub(crate) fn lose_helper(&mut self, now: Instant) -> Result<(), RunError> {
        let effects = self.leases.helper_lost(now);
        self.apply(effects, now)
    }

    /// Whether the command was stopped for the end of a lease, and by nobody else: then nobody
    /// stops with it.
    pub(crate) fn stopped_for_a_lease(&mut self, now: Instant) -> bool {
        let stopped = self.leases.stopped_by_us(now);
        if stopped && !self.leases.is_expelling() {
            // Should it have been the user after all, they stop it once more.
            self.let_go_on();
        }
        stopped
    }

    /// Stops the cage's processes while somebody is looked for who holds a lease.
    pub(crate) fn freeze_for_a_lease(&mut self, now: Instant) {
        let _ = self.cage.freeze();
        self.leases.note_stop(now);
    }

    /// Lets them go on.
    pub(crate) fn resume_after_a_lease(&mut self, now: Instant) {
        self.let_go_on();
        self.leases.note_stop(now);
    }

    /// Ends the cage, because a lease cannot be ended otherwise.
    pub(crate) fn kill_for_leases(&mut self, now: Instant) -> Result<(), RunError> {
        self.end_with_children()?;
        self.control.stop_by(now);
        self.finish_leases(LeaseEvent::CageKilled)
    }

    /// The cage is gone, or is as good as that, and with it every lease.
    pub(crate) fn finish_leases(&mut self, event: LeaseEvent) -> Result<(), RunError> {
        self.leases.end_helper();
        let now = Instant::now();
        let effects = self.leases.end_with_cage(event, now);
        self.apply(effects, now)
    }
}
