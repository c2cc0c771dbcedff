//! The children of one cage: a part of the supervisor. It owns the connections to their supervisors
//! and what is known of each.
//!
//! The messages of a child are believed no further than a cage within its parent's may be: it
//! counts against the parent, and opens nothing there.

use super::parent_link::{FromChild, InheritedHistory, ToChild};
use crate::audit_writer::in_short;
use crate::effects::Effect;
use crate::log_budget::LogBudget;
use crate::request_reader::ReaderReply;
use ironcage_control::{Channel, Packet};
use ironcage_model::{CageId, EventKind, Reason, SupervisorReason, Taint, Trust};
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::net::{Shutdown, shutdown};
use ironcage_sys::rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long children may take to end with their parent, all together, before they are killed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Denials that are put on record at once; then one a minute.
const MOST_RECORDED: u32 = 64;

/// Something that the children have to know.
#[derive(Debug)]
pub(crate) enum ChildEvent {
    /// The supervisor of a child was forked.
    Started {
        /// Who waits for its end.
        ticket: u64,
        channel: Channel,
        pidfd: OwnedFd,
    },
    Denied {
        ticket: u64,
        reason: Reason,
    },
    /// A child that is on record may run, with this of its parent.
    Admitted {
        ticket: u64,
        inherited: InheritedHistory,
    },
    /// A child's supervisor has said something.
    Message(u64),
    /// It is gone.
    Exited(u64),
    /// Nobody waits for a child any more.
    Left(u64),
    /// What the cage may have come into contact with.
    Tainted(Taint),
    /// How far the cage is trusted.
    Trusted(Trust),
    /// A person was asked for others than one of them.
    Requested {
        times: u32,
        except: Option<u64>,
    },
    /// They are to stand still, or not any more.
    Pause(bool),
    End,
}

/// The children of one cage.
#[derive(Debug)]
pub(crate) struct Children {
    /// How many the plan allows, with those that they may have.
    most: u32,
    living: Vec<Child>,
    denied: LogBudget,
}

#[derive(Debug)]
struct Child {
    /// Who waits for its end.
    ticket: u64,
    channel: Channel,
    pidfd: OwnedFd,
    born: Instant,
    /// Once it is on record.
    id: Option<CageId>,
    /// It, and the children that it may have.
    takes: u32,
    /// A cage whose use is to be counted, with its process list, storage and segments.
    places: Option<(CageId, Vec<OwnedFd>)>,
}

impl Children {
    pub(crate) fn new(most: u32) -> Self {
        Children {
            most,
            living: Vec::new(),
            denied: LogBudget::new(MOST_RECORDED),
        }
    }

    /// Where the children's supervisors speak.
    pub(crate) fn links(&self) -> impl Iterator<Item = (u64, BorrowedFd<'_>)> {
        let living = self.living.iter();
        living.map(|child| (child.ticket, child.channel.as_fd()))
    }

    /// What becomes readable when one is gone.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (u64, BorrowedFd<'_>)> {
        let living = self.living.iter();
        living.map(|child| (child.ticket, child.pidfd.as_fd()))
    }

    /// Denials that have no line on record.
    pub(crate) fn unrecorded(&self) -> u64 {
        self.denied.unrecorded()
    }

    pub(crate) fn is_any(&self) -> bool {
        !self.living.is_empty()
    }

    /// Whether there is no place for another.
    pub(crate) fn is_full(&self) -> bool {
        self.taken() >= self.most
    }

    /// Whether one is being made: what the cage has at this moment is shared with it.
    pub(crate) fn is_one_being_made(&self) -> bool {
        self.living.iter().any(|child| child.id.is_none())
    }

    pub(crate) fn ids(&self) -> Vec<CageId> {
        let ids = self.living.iter().filter_map(|child| child.id.clone());
        ids.collect()
    }

    fn taken(&self) -> u32 {
        self.living.iter().map(|child| child.takes).sum()
    }

    fn get(&mut self, ticket: u64) -> Option<&mut Child> {
        self.living.iter_mut().find(|child| child.ticket == ticket)
    }

    /// What a child has counted, by its ticket. The descriptors are handed over.
    pub(crate) fn take_places(&mut self, ticket: u64) -> Option<(CageId, Vec<OwnedFd>)> {
        self.get(ticket)?.places.take()
    }

    /// Says something to every child that is on record. One that is gone has ended.
    fn tell(&self, message: &ToChild, except: Option<u64>) {
        let known = self.living.iter().filter(|child| child.id.is_some());
        for child in known.filter(|child| Some(child.ticket) != except) {
            let _ = child.channel.send(message, &[]);
        }
    }

    /// The same to all of them.
    fn tell_all(&self, message: &ToChild) {
        for child in &self.living {
            let _ = child.channel.send(message, &[]);
        }
    }

    pub(crate) fn handle(&mut self, event: ChildEvent, now: Instant) -> Vec<Effect> {
        match event {
            ChildEvent::Started {
                ticket,
                channel,
                pidfd,
            } => self.living.push(Child {
                ticket,
                channel,
                pidfd,
                born: now,
                id: None,
                takes: 1,
                places: None,
            }),
            ChildEvent::Denied { ticket, reason } => return self.deny(ticket, reason, now),
            ChildEvent::Admitted { ticket, inherited } => {
                if let Some(child) = self.get(ticket) {
                    let _ = child.channel.send(&ToChild::Done(inherited), &[]);
                }
            }
            ChildEvent::Message(ticket) => return self.message(ticket, now),
            ChildEvent::Exited(ticket) => return self.exited(ticket, now),
            ChildEvent::Left(ticket) => {
                if let Some(child) = self.get(ticket) {
                    let _ = child.channel.send(&ToChild::End, &[]);
                }
            }
            ChildEvent::Tainted(taint) => self.tell(&ToChild::Tainted(taint), None),
            ChildEvent::Trusted(trust) => self.tell(&ToChild::Trusted(trust), None),
            ChildEvent::Requested { times: 0, .. } => {}
            ChildEvent::Requested { times, except } => self.tell(&ToChild::Asked(times), except),
            ChildEvent::Pause(paused) => self.tell_all(&ToChild::Pause(paused)),
            ChildEvent::End => self.tell_all(&ToChild::End),
        }
        Vec::new()
    }

    fn deny(&mut self, ticket: u64, reason: Reason, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.denied.spend(now) {
            let reason = reason.clone();
            effects.push(Effect::Audit(EventKind::ChildRefused { reason }));
        }
        effects.push(Effect::DenyChild { ticket, reason });
        effects
    }

    /// Takes what a child's supervisor says.
    fn message(&mut self, ticket: u64, now: Instant) -> Vec<Effect> {
        let (taken, most) = (self.taken(), self.most);
        let Some(child) = self.get(ticket) else {
            return Vec::new();
        };
        match child.channel.receive::<FromChild>(false) {
            Ok(None) => Vec::new(),
            Ok(Some(Packet::Message(FromChild::Announce(announced), _))) => {
                if child.id.is_some() {
                    return Vec::new();
                }
                let wanted = announced.children.saturating_add(1);
                if taken - child.takes + wanted > most {
                    let reason = SupervisorReason::TooManyGrandchildren {
                        own: announced.children.into(),
                        limit: most.into(),
                    };
                    let reason = reason.into();
                    // One that is gone shows when it is looked at next.
                    let _ = child.channel.send(&ToChild::No { reason }, &[]);
                    return Vec::new();
                }
                child.takes = wanted;
                child.id = Some(announced.id.clone());
                // The audit log first: nothing of it runs before.
                vec![
                    Effect::Audit(EventKind::ChildOpened {
                        child: announced.id,
                        command: in_short(announced.command),
                        workspace: announced.workspace,
                    }),
                    Effect::AdmitChild(ticket),
                ]
            }
            Ok(Some(Packet::Message(FromChild::Refused { reason }, _))) => {
                self.deny(ticket, reason, now)
            }
            Ok(Some(Packet::Message(FromChild::Tainted(taint), _))) => {
                vec![take_on(child.id.as_ref(), taint)]
            }
            Ok(Some(Packet::Message(FromChild::Asked, _))) => vec![Effect::CountRequests {
                times: 1,
                from: ticket,
            }],
            Ok(Some(Packet::Message(FromChild::Differed(what), _))) => {
                vec![drift(child.id.as_ref(), &what)]
            }
            Ok(Some(Packet::Message(FromChild::Count(id), places))) => {
                child.places = Some((id, places));
                vec![Effect::CountChild(ticket)]
            }
            Ok(Some(Packet::Message(FromChild::Uncount(id), _))) => vec![Effect::UncountChild(id)],
            Ok(Some(Packet::Garbled(_) | Packet::Closed)) | Err(_) => self.exited(ticket, now),
        }
    }

    /// A child's supervisor is gone, or about to be: waits for it, and tells how it was.
    fn exited(&mut self, ticket: u64, now: Instant) -> Vec<Effect> {
        let mut living = self.living.iter();
        let Some(index) = living.position(|child| child.ticket == ticket) else {
            return Vec::new();
        };
        let child = self.living.swap_remove(index);
        let id = child.id.as_ref();
        let (mut denied, mut tainted, mut asked) = (None, Taint::NONE, 0);
        let mut differed = Vec::new();
        let mut effects: Vec<Effect> = id.cloned().map(Effect::UncountChild).into_iter().collect();
        // What it said last is in the socket.
        while let Ok(Some(Packet::Message(said, _))) = child.channel.receive::<FromChild>(false) {
            match said {
                FromChild::Refused { reason } => denied = Some(reason),
                FromChild::Tainted(taint) => tainted = tainted.with(taint),
                FromChild::Differed(what) => differed.push(drift(id, &what)),
                FromChild::Asked => asked += 1,
                FromChild::Uncount(id) => effects.push(Effect::UncountChild(id)),
                FromChild::Announce(_) | FromChild::Count(_) => {}
            }
        }
        if asked > 0 {
            effects.push(Effect::CountRequests {
                times: asked,
                from: ticket,
            });
        }
        effects.extend(differed);
        if let Some(reason) = denied {
            effects.extend(self.deny(ticket, reason, now));
        }
        effects.push(take_on(id, tainted));
        let status = child.bury(None);
        let reply = match child.id {
            Some(id) => {
                effects.push(Effect::Audit(EventKind::ChildEnded {
                    child: id.clone(),
                    status,
                    milliseconds: child.born.elapsed().as_millis() as u64,
                }));
                ReaderReply::Ended { child: id, status }
            }
            // Who was told why does not hear this.
            None => ReaderReply::denied(SupervisorReason::ChildFailed {
                error: "it ended before its command was started".into(),
            }),
        };
        effects.push(Effect::ReplyReader { ticket, reply });
        effects
    }

    /// Ends every child, and waits until they are gone.
    pub(crate) fn finish(&mut self) -> Vec<Effect> {
        for child in &self.living {
            // It ends its cage when nobody hears it any more.
            let _ = shutdown(child.channel.as_fd(), Shutdown::Both);
        }
        let until = Instant::now() + PATIENCE;
        let mut effects = Vec::new();
        for child in std::mem::take(&mut self.living) {
            let status = child.bury(Some(until));
            if let Some(id) = child.id {
                effects.push(Effect::Audit(EventKind::ChildEnded {
                    child: id,
                    status,
                    milliseconds: child.born.elapsed().as_millis() as u64,
                }));
            }
        }
        effects
    }
}

/// What a child says goes to its parent, who reads its streams.
fn take_on(child: Option<&CageId>, taint: Taint) -> Effect {
    let because = match child {
        Some(child) => format!("its child {child} has it"),
        None => "a child of it has it".into(),
    };
    Effect::TakeOn { taint, because }
}

/// What a child does is its parent's doing.
fn drift(child: Option<&CageId>, what: &str) -> Effect {
    let id = child.map(|id| format!(" {id}")).unwrap_or_default();
    Effect::CountDrift(format!("in its child{id}: {what}"))
}

impl Child {
    /// Waits for its supervisor, and kills it where that takes longer than it may.
    fn bury(&self, until: Option<Instant>) -> u8 {
        if let Some(until) = until {
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap_or_default();
            if !matches!(poll(&mut fds, Some(&left)), Ok(1)) {
                let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
            }
        }
        let waited = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
        let status = waited.ok().flatten();
        let code = status.and_then(|status| status.exit_status());
        // Killed, it had no status to give.
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(137)
    }
}

#[cfg(test)]
#[path = "part_tests.rs"]
mod tests;
