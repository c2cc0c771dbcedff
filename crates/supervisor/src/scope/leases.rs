//! The leases of one scope: decided before it is made ([`super::deciding`]), opened before its command runs, and ended
//! when every process in it is dead.
//!
//! The life of each is the state machine of [`ironcage_lease::life`], as of the cage's own leases.
//! It is driven here by a process that may wait for each answer. When it ends, whoever still holds
//! something of a lease is outside the scope: it was handed over in a socket of the shared
//! workspace. The kernel reports that somebody does; who it is, is searched for in the cage.

use super::link::FromScope;
use super::supervisor::ScopeState;
use crate::RunError;
use crate::audit_writer::AuditWriter;
use crate::backends::backend;
use crate::leases::{SeenName, SeenPath, release};
use crate::supervise::{Supervision, failed};
use ironcage_backend::{LeaseOrder, LeasedFrom, MountHelper, MountHelperReply, Sought};
use ironcage_lease::life::{LeaseEffect, LeaseEvent, LeaseLife, LeasePhase};
use ironcage_model::{
    EventKind, Holder, Lease, LeaseEndCause, LeaseReason, NetworkReason, Reason, Resource, Right,
    Taint,
};
use ironcage_sys::faults::lease_step as step;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

/// How long the mount helper may take for an order.
const PATIENCE: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

/// Why a lease was not opened that is on record.
const NOT_STARTED: LeaseEvent = LeaseEvent::NotOpened {
    cause: LeaseEndCause::ScopeNotStarted,
};

/// A lease of a scope.
#[derive(Debug)]
pub(super) struct ScopeLease {
    pub(super) lease: Lease,
    pub(super) life: LeaseLife,
    /// What was seen, where it is a path: then the mount helper holds it. Everything else is a part
    /// of the scope's plan, and ends with the scope.
    pub(super) seen: Option<SeenPath>,
    /// The listening socket, where it is a port.
    pub(super) listener: Option<OwnedFd>,
    /// What the cage takes on with it.
    pub(super) brings: Taint,
    /// The mounts by which it was last found in use.
    pub(super) mounts: Vec<u64>,
    /// Who was found to use it while it ended.
    pub(super) holders: Vec<Holder>,
    /// Why it could not be opened.
    pub(super) failure: Option<Reason>,
    /// Why what was written under its name is not in its place.
    pub(super) misplaced: Option<String>,
}

impl ScopeLease {
    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What the cage takes on with it.
    pub(super) fn brings(&self) -> Taint {
        self.brings
    }

    /// The path of the host to which it lets the scope write: of a name, the directory around it.
    pub(super) fn written_path(&self) -> Option<String> {
        let Resource::Path {
            path,
            right: Right::Write,
        } = &self.lease.resource
        else {
            return None;
        };
        let named = self.seen.as_ref().and_then(|seen| seen.name);
        let around = Path::new(path).parent().filter(|_| named.is_some());
        let written = around.unwrap_or(Path::new(path));
        Some(written.to_string_lossy().into_owned())
    }

    /// Puts it on record, before anything is open: whoever kills us now leaves no lease that the
    /// audit log does not know.
    pub(super) fn record(&mut self, audit: &mut AuditWriter) -> Result<(), RunError> {
        for effect in self.life.handle(LeaseEvent::Decided, Instant::now()) {
            if effect == LeaseEffect::Record {
                audit.write(EventKind::Lease(self.lease.clone()))?;
                step();
            }
        }
        Ok(())
    }

    /// Its scope did not start, or another lease of it could not be opened.
    pub(super) fn abandon(&mut self, audit: &mut AuditWriter) -> Result<(), RunError> {
        let now = Instant::now();
        self.life.handle(LeaseEvent::Recorded, now);
        for effect in self.life.handle(NOT_STARTED, now) {
            self.record_end(effect, audit)?;
        }
        Ok(())
    }

    /// What was written is not where it was leased: nothing of that is silent.
    fn record_misplaced(&mut self, audit: &mut AuditWriter) -> Result<(), RunError> {
        let Some(error) = self.misplaced.take() else {
            return Ok(());
        };
        audit.write(EventKind::LeaseRefused {
            resource: self.lease.resource.clone(),
            origin: self.lease.origin,
            reason: LeaseReason::NotPlaced { error }.into(),
            unrecorded: 0,
        })
    }

    fn record_end(&self, effect: LeaseEffect, audit: &mut AuditWriter) -> Result<(), RunError> {
        let LeaseEffect::End { end, cause, open } = effect else {
            return Ok(());
        };
        audit.write(EventKind::LeaseEnd {
            number: self.lease.number,
            end,
            cause: cause.into(),
            holders: self.holders.clone(),
            milliseconds: open.as_millis() as u64,
        })
    }
}

fn from_host(seen: &SeenPath) -> LeasedFrom {
    match seen.name {
        Some(SeenName {
            directory,
            existing,
        }) => LeasedFrom::Name {
            device: directory.device,
            inode: directory.inode,
            existing: existing.map(|file| (file.device, file.inode)),
        },
        None => LeasedFrom::Host {
            device: seen.identity.device,
            inode: seen.identity.inode,
        },
    }
}

fn not_opened(error: &dyn std::fmt::Display) -> Reason {
    let error = error.to_string();
    LeaseReason::NotOpened { error }.into()
}

/// Waits for what came of an order.
fn answer(helper: &MountHelper) -> io::Result<MountHelperReply> {
    loop {
        if let Some(answer) = helper.hear()? {
            return Ok(answer);
        }
        let mut fds = [PollFd::new(helper, PollFlags::IN)];
        if poll(&mut fds, Some(&PATIENCE)).is_ok_and(|ready| ready == 0) {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

impl Supervision<'_> {
    fn side(&mut self) -> Result<&mut ScopeState, RunError> {
        let none = || io::Error::other("this process is not a scope");
        self.scope
            .as_mut()
            .ok_or_else(|| failed("look after a scope")(none()))
    }

    /// Opens what was decided. Returns why it could not, if it could not.
    pub(super) fn open_scope_leases(
        &mut self,
        leases: Vec<ScopeLease>,
    ) -> Result<Option<Reason>, RunError> {
        let mut leases = leases.into_iter();
        while let Some(mut lease) = leases.next() {
            self.drive(&mut lease, LeaseEvent::Recorded)?;
            if let Some(reason) = lease.failure.take() {
                for mut lease in leases {
                    lease.abandon(&mut self.audit)?;
                }
                return Ok(Some(reason));
            }
            let side = self.side()?;
            if let Some(at) = lease.life.until() {
                side.deadline = Some(side.deadline.map_or(at, |known| known.min(at)));
            }
            side.leases.push(lease);
        }
        Ok(None)
    }

    /// Ends every lease of the scope. Its processes are dead: the kernel proves that nobody has
    /// anything of a lease, or somebody outside has.
    pub(super) fn end_scope_leases(&mut self) -> Result<(), RunError> {
        let cause = match &self.scope {
            Some(side) if side.ended.is_some() => LeaseEndCause::ScopeCommandEnded,
            Some(side) if side.deadline.is_some_and(|at| Instant::now() >= at) => {
                LeaseEndCause::TimeUp
            }
            _ => LeaseEndCause::ScopeEnded,
        };
        // One that lies in another was opened after it, and goes before it.
        for mut lease in std::mem::take(&mut self.side()?.leases).into_iter().rev() {
            step();
            self.drive(&mut lease, LeaseEvent::TakenBack { cause })?;
        }
        // With it goes the last process in the scope's mount namespace.
        self.side()?.helper = None;
        Ok(())
    }

    /// Takes an event of a lease, and everything that follows from it, until the lease is open or
    /// over.
    fn drive(&mut self, lease: &mut ScopeLease, event: LeaseEvent) -> Result<(), RunError> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in lease.life.handle(event, Instant::now()) {
                step();
                events.extend(self.carry_out(lease, effect)?);
            }
            if events.is_empty() && lease.life.phase() == LeasePhase::Ending {
                let due = lease.life.next().unwrap_or_else(Instant::now);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                events.push_back(LeaseEvent::Tick);
            }
        }
        Ok(())
    }

    /// Carries out one effect. Returns what came of it.
    fn carry_out(
        &mut self,
        lease: &mut ScopeLease,
        effect: LeaseEffect,
    ) -> Result<Option<LeaseEvent>, RunError> {
        let number = lease.lease.number;
        Ok(match effect {
            // Done by `record`, and nobody else waits for it.
            LeaseEffect::Record | LeaseEffect::ReportOpen => None,
            LeaseEffect::Open => {
                lease.failure = self.open_one(lease)?;
                Some(match lease.failure {
                    None => LeaseEvent::Opened,
                    Some(_) => NOT_STARTED,
                })
            }
            LeaseEffect::Close { .. } => {
                Some(self.release_by(lease, &LeaseOrder::Close { number }))
            }
            LeaseEffect::Leave => Some(self.release_by(lease, &LeaseOrder::Leave { number })),
            LeaseEffect::Search { kill } => {
                for holder in self.seek(lease, kill) {
                    if lease.holders.iter().all(|known| known.pid != holder.pid) {
                        lease.holders.push(holder);
                    }
                }
                Some(LeaseEvent::Searched)
            }
            LeaseEffect::Freeze => {
                self.ask_cage(&FromScope::Freeze)?;
                None
            }
            LeaseEffect::Resume => {
                self.ask_cage(&FromScope::Resume)?;
                None
            }
            LeaseEffect::KillCage => {
                self.ask_cage(&FromScope::EndCage)?;
                Some(LeaseEvent::CageKilled)
            }
            // Holders are in the cage, where this helper does not see them.
            LeaseEffect::Expel | LeaseEffect::GiveUpMechanism => Some(LeaseEvent::MechanismLost),
            LeaseEffect::End { .. } => {
                lease.record_end(effect, &mut self.audit)?;
                lease.record_misplaced(&mut self.audit)?;
                step();
                None
            }
        })
    }

    fn ask_cage(&mut self, report: &FromScope) -> Result<(), RunError> {
        let link = self.side()?.link.clone();
        link.ask(report).map_err(failed("end a lease"))
    }

    /// Opens a lease. Returns why it could not, if it could not.
    fn open_one(&mut self, lease: &ScopeLease) -> Result<Option<Reason>, RunError> {
        match (&lease.lease.resource, &lease.seen) {
            (Resource::Path { .. }, Some(seen)) => self.open_path(&lease.lease, seen),
            (Resource::Port { publish }, _) => Ok(match &lease.listener {
                Some(listener) => {
                    let published = self.network.publish(None, *publish, listener);
                    published.err().map(Reason::from)
                }
                None => Some(NetworkReason::NotAListener.into()),
            }),
            _ => Ok(None),
        }
    }

    fn open_path(&mut self, lease: &Lease, seen: &SeenPath) -> Result<Option<Reason>, RunError> {
        let Resource::Path { path, right } = &lease.resource else {
            return Ok(None);
        };
        if self.side()?.helper.is_none() {
            let backend = backend(self.plan.isolation_level.what.isolation);
            match backend.mount_helper(self.plan, &self.cage) {
                Ok(helper) => self.side()?.helper = Some(helper),
                Err(error) => return Ok(Some(not_opened(&error))),
            }
        }
        step();
        // What is read there is hidden in the view, and the host's own.
        let part = match *right == Right::Write && self.plan.is_locked(Path::new(path)) {
            false => None,
            true => {
                let backend = backend(self.plan.isolation_level.what.isolation);
                let cloned = backend.part(self.plan, &self.side()?.sibling, Path::new(path));
                match cloned {
                    Ok(part) => Some(part),
                    Err(error) => {
                        return Ok(Some(not_opened(&error)));
                    }
                }
            }
        };
        step();
        let Some(helper) = &self.side()?.helper else {
            return Ok(None);
        };
        let opening = LeaseOrder::Open {
            number: lease.number,
            path: path.clone(),
            from: match part {
                Some(_) => LeasedFrom::Beside,
                None => from_host(seen),
            },
            right: *right,
        };
        let given = match &part {
            Some(part) => helper.order_with(&opening, part.as_fd()),
            None => helper.order(&opening),
        };
        // Ours would be a user like any other.
        drop(part);
        match given.and_then(|()| answer(helper)) {
            Ok(MountHelperReply::Opened { failed, .. }) => {
                Ok(failed.map(|error| LeaseReason::NotOpened { error }.into()))
            }
            Ok(MountHelperReply::Ended { .. }) => {
                Ok(Some(not_opened(&"the mount helper is confused")))
            }
            Err(error) => Ok(Some(not_opened(&format!(
                "the mount helper is gone: {error}"
            )))),
        }
    }

    /// Who in the cage uses a lease of the scope's.
    fn seek(&self, lease: &ScopeLease, kill: bool) -> Vec<Holder> {
        let (Some(side), Resource::Path { path, .. }) = (&self.scope, &lease.lease.resource) else {
            return Vec::new();
        };
        let backend = backend(self.plan.isolation_level.what.isolation);
        let sought = Sought {
            mounts: &lease.mounts,
            path,
            kill,
        };
        // Who cannot be looked for is not found.
        let found = backend.seek(self.plan, &side.sibling, &sought);
        found.unwrap_or_default()
    }

    /// What came of an order to end a lease.
    fn release_by(&mut self, lease: &mut ScopeLease, order: &LeaseOrder) -> LeaseEvent {
        if lease.seen.is_none() {
            // A part of the scope's plan, which went with its processes.
            return LeaseEvent::Released(ironcage_lease::life::Release::Revoked);
        }
        let helper = self.scope.as_ref().and_then(|side| side.helper.as_ref());
        let Some(helper) = helper else {
            return LeaseEvent::MechanismLost;
        };
        match helper.order(order).and_then(|()| answer(helper)) {
            Ok(MountHelperReply::Ended {
                progress,
                mounts,
                misplaced,
                ..
            }) => {
                lease.mounts = mounts;
                lease.misplaced = misplaced;
                LeaseEvent::Released(release(progress))
            }
            Ok(MountHelperReply::Opened { .. }) | Err(_) => LeaseEvent::MechanismLost,
        }
    }
}
