//! Child cages: what somebody in a cage opens within what that cage has, seen from its supervisor.
//!
//! A child is a cage of its own, with an id, a record and a control socket, whose supervisor is
//! forked from this one and dies with it. It stands beside its parent as a scope does: in the same
//! cgroup, with the same ids, on the same workspace. Its policy is read and checked in the
//! forked process, never here: the text is the agent's.
//!
//! [`part`] owns what is known of the children; here the loop forks them and asks other parts.

mod parent_link;
mod part;

pub use parent_link::{ChildSpec, ParentLink, SpawnChild};
pub(crate) use part::{ChildEvent, Children};

use crate::RunError;
use crate::intents::IntentEvent;
use crate::limits::LimitEvent;
use crate::request_reader::ReaderReply;
use crate::supervise::Supervision;
use crate::untrusted_fds::close_elsewhere;
use ironcage_backend::{Ability, Sibling, Support};
use ironcage_control::{ChildLine, pair};
use ironcage_model::{CageId, Reason, SupervisorReason};
use ironcage_sys::clone::{Forked, Namespaces, fork};
use ironcage_sys::rustix::process::getpid;
use ironcage_watchdog::Guest;
use parent_link::{InheritedHistory, ParentMessage};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

impl Supervision<'_> {
    /// Somebody in the cage wants a child.
    pub(crate) fn open_child(
        &mut self,
        ticket: u64,
        wanted: ChildLine,
        streams: Vec<OwnedFd>,
        now: Instant,
    ) -> Result<(), RunError> {
        let made = self.make_child(ticket, wanted, &streams, now);
        close_elsewhere(streams);
        made
    }

    fn make_child(
        &mut self,
        ticket: u64,
        wanted: ChildLine,
        streams: &[OwnedFd],
        now: Instant,
    ) -> Result<(), RunError> {
        if !self.requests.spend(now) {
            // Each is on two records, on a disk of the user's that no limit of the cage's holds.
            self.reply_to_reader(ticket, ReaderReply::denied(SupervisorReason::RequestRate));
            return Ok(());
        }
        if let Some(reason) = self.against_child() {
            return self.deny_child(ticket, reason.into(), now);
        }
        let prepared = self.sibling().and_then(|sibling| Ok((sibling, pair()?)));
        let (sibling, (ours, theirs)) = match prepared {
            Ok((Some(sibling), ends)) => (sibling, ends),
            Ok((None, _)) => {
                let error = "this cage has nothing that a child could share".into();
                let reason = SupervisorReason::ChildFailed { error };
                return self.deny_child(ticket, reason.into(), now);
            }
            Err(error) => {
                let error = error.to_string();
                let reason = SupervisorReason::ChildFailed { error };
                return self.deny_child(ticket, reason.into(), now);
            }
        };
        let Some(spawner) = self.callbacks.child_spawner else {
            return self.deny_child(ticket, SupervisorReason::NoChildren.into(), now);
        };
        let spec = ChildSpec {
            wanted,
            parent: ParentLink::new(self.control.id().clone(), theirs, sibling),
        };
        let supervisor = getpid();
        match fork(Namespaces::NONE, None) {
            Err(error) => {
                let error = error.to_string();
                let reason = SupervisorReason::ChildFailed { error };
                self.deny_child(ticket, reason.into(), now)
            }
            Ok(Forked::Child) => parent_link::begin(supervisor, spec, streams, spawner),
            Ok(Forked::Parent { pidfd, .. }) => {
                let started = ChildEvent::Started {
                    ticket,
                    channel: ours,
                    pidfd,
                };
                self.sign_of_life(now);
                self.child_event(started, now)
            }
        }
    }

    fn against_child(&self) -> Option<SupervisorReason> {
        let most = self.plan.children;
        if most == 0 {
            return Some(SupervisorReason::NoChildren);
        }
        let isolation = self.plan.isolation_level.what.isolation;
        if let Support::No(why) = crate::backend(isolation).can(Ability::Scope) {
            let why = why.to_string();
            return Some(SupervisorReason::ChildrenUnsupported { why });
        }
        if self.children.is_full() {
            let limit = most.into();
            return Some(SupervisorReason::TooManyChildren { limit });
        }
        if self.control.stop_deadline().is_some() {
            return Some(SupervisorReason::Stopping);
        }
        if self.is_held() {
            return Some(SupervisorReason::ChangeInProgress);
        }
        if self.intents.is_distrusted() {
            return Some(SupervisorReason::ChildAfterDrift);
        }
        if self.network.is_narrowed() {
            return Some(SupervisorReason::NetworkNarrowed);
        }
        self.against_shared_lease(&self.plan.shared_places())
    }

    /// Whether what is started beside this cage gets clones of its own mounts, with the leases that
    /// are open in them: a child cage is not started by its own supervisor's handles.
    pub(crate) fn clones_leases(&self) -> bool {
        let built = self
            .cage
            .mount_context()
            .is_some_and(|mounts| mounts.built.is_some());
        self.parent.is_some() || !built
    }

    /// A lease of this cage that would be cloned, and whose end would be proved without the clone.
    pub(crate) fn against_shared_lease(&self, places: &[&Path]) -> Option<SupervisorReason> {
        if !self.clones_leases() {
            return None;
        }
        let lease = self.leases.in_places(places)?;
        Some(SupervisorReason::LeaseShared {
            lease: lease.number.into(),
            resource: lease.resource.to_string(),
        })
    }

    fn deny_child(&mut self, ticket: u64, reason: Reason, now: Instant) -> Result<(), RunError> {
        self.child_event(ChildEvent::Denied { ticket, reason }, now)
    }

    /// Tells somebody in the cage that there is no child.
    pub(crate) fn tell_of_denied_child(&mut self, ticket: u64, reason: Reason) {
        // Where the user's records and sockets are is nothing that the agent needs to know.
        let reason = match self.names_own_places(&reason.to_string()) {
            true => SupervisorReason::ChildFailedOnHost.into(),
            false => reason,
        };
        self.reply_to_reader(ticket, ReaderReply::denied(reason));
    }

    /// A child is on record: it may run, with what it has of its parent's history.
    pub(crate) fn admit_child(&mut self, ticket: u64, now: Instant) -> Result<(), RunError> {
        // It has its parent's words and streams, whatever else it shares.
        let inherited = InheritedHistory {
            taint: self.tainted(now)?,
            trust: self.intents.trust(),
            asked: self.permission_requests.within_an_hour(now),
        };
        self.child_event(ChildEvent::Admitted { ticket, inherited }, now)
    }

    /// Counts what a child, or a child of it, uses.
    pub(crate) fn count_child(&mut self, ticket: u64, now: Instant) -> Result<(), RunError> {
        match self.children.take_places(ticket) {
            Some((id, places)) => self.count_guest(Guest::Child(id), places, now),
            None => Ok(()),
        }
    }

    /// Whether a text names a directory of Ironcage's own.
    fn names_own_places(&self, text: &str) -> bool {
        let state = ironcage_audit::state_dir().ok();
        let mut own = state
            .iter()
            .map(PathBuf::as_path)
            .chain(self.runtime.paths());
        own.any(|path| path.to_str().is_none_or(|path| text.contains(path)))
    }

    /// What another cage or scope beside this one shares with it.
    pub(crate) fn sibling(&self) -> io::Result<Option<Sibling>> {
        match &self.parent {
            Some(parent) => parent.sibling().with_views_of(&self.cage),
            None => Sibling::of(&self.cage),
        }
    }

    /// Ends the cage and its children: what was leased may have been handed to them through the
    /// workspace, so only then it is over.
    pub(crate) fn end_with_children(&mut self) -> Result<(), RunError> {
        self.cage.kill();
        self.finish_children()
    }

    /// Ends every child, and waits until they are gone.
    pub(crate) fn finish_children(&mut self) -> Result<(), RunError> {
        let effects = self.children.finish();
        self.apply(effects, Instant::now())
    }

    /// This cage is a child, and its parent says something.
    pub(crate) fn hear_parent(&mut self, now: Instant) -> Result<(), RunError> {
        match self.parent.as_mut().and_then(ParentLink::hear) {
            Some(ParentMessage::End(grace)) => self.begin_stop(grace, now),
            Some(ParentMessage::Tainted(taint)) => self.take_on(taint, "its parent has it", now)?,
            Some(ParentMessage::Trusted(trust)) => {
                self.intent_event(IntentEvent::ParentTrust(trust), now)?;
            }
            Some(ParentMessage::Asked(times)) => {
                self.permission_requests.count(times, now);
                let except = None;
                self.child_event(ChildEvent::Requested { times, except }, now)?;
            }
            Some(ParentMessage::Pause(paused)) => {
                self.limit_event(LimitEvent::ParentCounts(paused), now)?;
            }
            None => {}
        }
        Ok(())
    }

    /// A child, or a child of it, is gone whose use was counted.
    pub(crate) fn uncount_child(&mut self, id: &CageId) {
        let gone = LimitEvent::GuestLeft(Guest::Child(id.clone()));
        self.limits.handle(gone, Instant::now());
        if let Some(parent) = &self.parent {
            parent.uncount(id);
        }
    }

    /// Tells the parent what was done that nobody had said.
    pub(crate) fn tell_parent_of_difference(&self, what: &str) {
        if let Some(parent) = &self.parent {
            parent.tell_difference(what);
        }
    }

    /// A person was asked for a child of this cage: nobody is asked more often for being asked by
    /// several.
    pub(crate) fn count_requests(
        &mut self,
        times: u32,
        from: u64,
        now: Instant,
    ) -> Result<(), RunError> {
        self.permission_requests.count(times, now);
        self.tell_relatives_of_requests(times, Some(from), now)
    }

    /// Tells parent and children, but for the one that said so, that a person was asked.
    pub(crate) fn tell_relatives_of_requests(
        &mut self,
        times: u32,
        except: Option<u64>,
        now: Instant,
    ) -> Result<(), RunError> {
        if let Some(parent) = &self.parent {
            (0..times).for_each(|_| parent.tell_question());
        }
        self.child_event(ChildEvent::Requested { times, except }, now)
    }

    /// Tells parent and children what the cage may have come into contact with.
    pub(crate) fn tell_relatives_of_taint(&mut self, now: Instant) -> Result<(), RunError> {
        let taint = self.taint.current();
        if let Some(parent) = &self.parent {
            parent.tell_taint(taint);
        }
        self.child_event(ChildEvent::Tainted(taint), now)
    }

    /// Gives an event to the children.
    pub(crate) fn child_event(&mut self, event: ChildEvent, now: Instant) -> Result<(), RunError> {
        let effects = self.children.handle(event, now);
        self.apply(effects, now)
    }
}
