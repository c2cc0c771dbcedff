//! Child cages: what somebody in a cage opens within what that cage has, seen from its supervisor.
//!
//! A child is a cage of its own, with an id, a record and a control socket, whose supervisor is
//! forked from this one and dies with it. It stands beside its parent as a scope does: in the same
//! cgroup, with the same ids, on the same workspace. What it may have is read and checked in the
//! forked process, never here: the text is the agent's.

mod kin;

pub use kin::{Birthright, Kin, Maker};

use crate::RunError;
use crate::asking::Came;
use crate::recorder::in_short;
use crate::strangers::let_go;
use crate::supervise::Supervision;
use ironcage_backend::{Ability, Answer, Sibling};
use ironcage_control::{Channel, ChildLine, Packet, pair};
use ironcage_model::{CageId, EventKind, Taint, Trust};
use ironcage_sys::clone::{Forked, Namespaces, fork};
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::net::{Shutdown, shutdown};
use ironcage_sys::rustix::process::{
    Signal, WaitId, WaitIdOptions, getpid, pidfd_send_signal, waitid,
};
use kin::{FromChild, Heard, Inherited, ToChild};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long children may take to end with their parent, all together, before they are killed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Refusals that are put on record.
const MOST_RECORDED: u32 = 64;

/// The children of one cage.
#[derive(Debug, Default)]
pub(crate) struct Children {
    living: Vec<Child>,
    refused: u32,
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
}

impl Children {
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

    pub(crate) fn is_any(&self) -> bool {
        !self.living.is_empty()
    }

    /// Whether one is being made: what the cage has at this moment is shared with it.
    pub(crate) fn is_one_being_made(&self) -> bool {
        self.living.iter().any(|child| child.id.is_none())
    }

    pub(crate) fn ids(&self) -> Vec<CageId> {
        let ids = self.living.iter().filter_map(|child| child.id.clone());
        ids.collect()
    }

    /// Asks every one to end.
    pub(crate) fn ask_to_end(&self) {
        for child in &self.living {
            // One that is gone has ended.
            let _ = child.channel.send(&ToChild::End, &[]);
        }
    }

    fn taken(&self) -> u32 {
        self.living.iter().map(|child| child.takes).sum()
    }

    fn get(&mut self, ticket: u64) -> Option<&mut Child> {
        self.living.iter_mut().find(|child| child.ticket == ticket)
    }
}

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
        let_go(streams);
        made
    }

    fn make_child(
        &mut self,
        ticket: u64,
        wanted: ChildLine,
        streams: &[OwnedFd],
        now: Instant,
    ) -> Result<(), RunError> {
        if !self.leases.pace.spend(now) {
            // Each is on two records, on a disk of the user's that no limit of the cage's holds.
            let reason = "too much was asked for within a short time; ask again later";
            let reason = reason.to_owned();
            self.tell_clerk(ticket, Came::Refused { reason });
            return Ok(());
        }
        if let Some(reason) = self.against_child() {
            return self.refuse_child(ticket, reason);
        }
        let prepared = self.sibling().and_then(|sibling| Ok((sibling, pair()?)));
        let (sibling, (ours, theirs)) = match prepared {
            Ok((Some(sibling), ends)) => (sibling, ends),
            Ok((None, _)) => {
                let reason = "this cage has nothing that a child could share";
                return self.refuse_child(ticket, reason.into());
            }
            Err(error) => return self.refuse_child(ticket, error.to_string()),
        };
        let Some(maker) = self.maker else {
            return self.refuse_child(ticket, "nobody makes children here".into());
        };
        let birthright = Birthright {
            wanted,
            kin: Kin::new(self.control.description.id.clone(), theirs, sibling),
        };
        let supervisor = getpid();
        match fork(Namespaces::NONE, None) {
            Err(error) => {
                let reason = format!("the child's supervisor cannot be started: {error}");
                self.refuse_child(ticket, reason)
            }
            Ok(Forked::Child) => kin::begin(supervisor, birthright, streams, maker),
            Ok(Forked::Parent { pidfd, .. }) => {
                self.children.living.push(Child {
                    ticket,
                    channel: ours,
                    pidfd,
                    born: now,
                    id: None,
                    takes: 1,
                });
                self.limits.sign_of_life(now);
                Ok(())
            }
        }
    }

    fn against_child(&self) -> Option<String> {
        let most = self.plan.children;
        if most == 0 {
            return Some(
                "its policy lets this cage open none: [ceiling] children = N would".into(),
            );
        }
        let isolation = self.plan.rung.what.isolation;
        if let Answer::No(reason) = crate::backend(isolation).can(Ability::Scope) {
            return Some(format!("this cage's isolation has no children: {reason}"));
        }
        if self.children.taken() >= most {
            return Some(format!(
                "the policy lets {most} live at once, with the children that these may have; one has to end first"
            ));
        }
        if self.control.stopping.is_some() {
            return Some("the cage is being stopped".into());
        }
        if self.is_held() {
            return Some("the cage is held at this moment; ask again later".into());
        }
        if self.intents.is_distrusted() {
            return Some(
                "what this cage did differs from what its model said; the user has to look at it first"
                    .into(),
            );
        }
        if self.network.is_narrowed() {
            return Some(
                "its network was narrowed while it ran, and a child would not know of it".into(),
            );
        }
        let lease = self.leases.in_places(&self.plan.shared_places())?;
        Some(format!(
            "lease {} ({}) is open in the workspace, which a child shares; it has to end first",
            lease.number, lease.resource
        ))
    }

    fn refuse_child(&mut self, ticket: u64, reason: String) -> Result<(), RunError> {
        self.children.refused = self.children.refused.saturating_add(1);
        if self.children.refused <= MOST_RECORDED {
            let reason = reason.clone();
            self.recorder.write(EventKind::ChildRefused { reason })?;
        }
        // Where the user's records and sockets are is nothing that the agent needs to know.
        let reason = match self.names_own_places(&reason) {
            true => "something on the host stands against it; the cage's record says what".into(),
            false => reason,
        };
        self.tell_clerk(ticket, Came::Refused { reason });
        Ok(())
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
        match &self.kin {
            Some(kin) => kin.sibling.with_views_of(&self.cage),
            None => Sibling::of(&self.cage),
        }
    }

    /// Takes what a child's supervisor says.
    pub(crate) fn hear_child(&mut self, ticket: u64, now: Instant) -> Result<(), RunError> {
        let taken = self.children.taken();
        let Some(child) = self.children.get(ticket) else {
            return Ok(());
        };
        match child.channel.receive::<FromChild>(false) {
            Ok(None) => Ok(()),
            Ok(Some(Packet::Message(FromChild::Born(born), _))) => {
                if child.id.is_some() {
                    return Ok(());
                }
                let most = self.plan.children;
                let wanted = born.children.saturating_add(1);
                if taken - child.takes + wanted > most {
                    let reason = format!(
                        "with the {} that it may have itself there would be more than the {most} that the policy lets live at once",
                        born.children
                    );
                    // One that is gone shows when it is looked at next.
                    let _ = child.channel.send(&ToChild::No { reason }, &[]);
                    return Ok(());
                }
                child.takes = wanted;
                child.id = Some(born.id.clone());
                // The record first: nothing of it runs before.
                self.recorder.write(EventKind::ChildOpened {
                    child: born.id,
                    command: in_short(born.command),
                    workspace: born.workspace,
                })?;
                // It has its parent's words and streams, whatever else it shares.
                let inherited = Inherited {
                    taint: self.tainted(now)?,
                    trust: self.intents.trust(),
                    asked: self.questions.within_an_hour(now),
                };
                if let Some(child) = self.children.get(ticket) {
                    let _ = child.channel.send(&ToChild::Done(inherited), &[]);
                }
                Ok(())
            }
            Ok(Some(Packet::Message(FromChild::Refused { reason }, _))) => {
                self.refuse_child(ticket, reason)
            }
            Ok(Some(Packet::Message(FromChild::Tainted(taint), _))) => {
                let id = child.id.clone();
                self.take_on_from_child(id.as_ref(), taint, now)
            }
            Ok(Some(Packet::Message(FromChild::Asked, _))) => {
                self.count_questions(1, Some(ticket), now);
                Ok(())
            }
            Ok(Some(Packet::Message(FromChild::Differed(what), _))) => {
                let id = child.id.clone();
                self.count_difference_of_child(id.as_ref(), &what)
            }
            Ok(Some(Packet::Garbled(_) | Packet::Closed)) | Err(_) => self.end_child(ticket),
        }
    }

    /// A child's supervisor is gone, or about to be: waits for it, and tells how it was.
    pub(crate) fn end_child(&mut self, ticket: u64) -> Result<(), RunError> {
        let Some(child) = self.children.get(ticket) else {
            return Ok(());
        };
        // What it said last is in the socket.
        let id = child.id.clone();
        let (mut refused, mut tainted, mut differed) = (None, Taint::NONE, Vec::new());
        let mut asked = 0;
        while let Ok(Some(Packet::Message(said, _))) = child.channel.receive::<FromChild>(false) {
            match said {
                FromChild::Refused { reason } => refused = Some(reason),
                FromChild::Tainted(taint) => tainted = tainted.with(taint),
                FromChild::Differed(what) => differed.push(what),
                FromChild::Asked => asked += 1,
                FromChild::Born(_) => {}
            }
        }
        self.count_questions(asked, Some(ticket), Instant::now());
        for what in differed {
            self.count_difference_of_child(id.as_ref(), &what)?;
        }
        if let Some(reason) = refused {
            self.refuse_child(ticket, reason)?;
        }
        self.take_on_from_child(id.as_ref(), tainted, Instant::now())?;
        let mut living = self.children.living.iter();
        let Some(index) = living.position(|child| child.ticket == ticket) else {
            return Ok(());
        };
        let child = self.children.living.swap_remove(index);
        let status = child.bury(None);
        let Some(id) = child.id else {
            // Who was told why does not hear this.
            let reason = "it did not start".to_owned();
            self.tell_clerk(ticket, Came::Refused { reason });
            return Ok(());
        };
        self.recorder.write(EventKind::ChildEnded {
            child: id.clone(),
            status,
            milliseconds: child.born.elapsed().as_millis() as u64,
        })?;
        self.tell_clerk(ticket, Came::Ended { child: id, status });
        Ok(())
    }

    /// Nobody waits for a child any more: it is asked to end.
    pub(crate) fn leave_child(&mut self, ticket: u64) {
        if let Some(child) = self.children.get(ticket) {
            let _ = child.channel.send(&ToChild::End, &[]);
        }
    }

    /// Ends the cage and its children: what was leased may have been handed to them through the
    /// workspace, so only then it is over.
    pub(crate) fn end_family(&mut self) -> Result<(), RunError> {
        self.cage.kill();
        self.finish_children()
    }

    /// Ends every child, and waits until they are gone.
    pub(crate) fn finish_children(&mut self) -> Result<(), RunError> {
        for child in &self.children.living {
            // It ends its cage when nobody hears it any more.
            let _ = shutdown(child.channel.as_fd(), Shutdown::Both);
        }
        let until = Instant::now() + PATIENCE;
        for child in std::mem::take(&mut self.children.living) {
            let status = child.bury(Some(until));
            if let Some(id) = child.id {
                self.recorder.write(EventKind::ChildEnded {
                    child: id,
                    status,
                    milliseconds: child.born.elapsed().as_millis() as u64,
                })?;
            }
        }
        Ok(())
    }

    /// This cage is a child, and its parent says something.
    pub(crate) fn hear_parent(&mut self, now: Instant) -> Result<(), RunError> {
        match self.kin.as_mut().and_then(Kin::hear) {
            Some(Heard::End(grace)) => self.begin_stop(grace, now),
            Some(Heard::Tainted(taint)) => self.take_on(taint, "its parent has it", now)?,
            Some(Heard::Trusted(trust)) => self.trust_no_further(trust),
            Some(Heard::Asked(times)) => {
                self.questions.count(times, now);
                self.tell_children_of_questions(times, None);
            }
            None => {}
        }
        Ok(())
    }

    /// What a child says goes to its parent, who reads its streams.
    fn take_on_from_child(
        &mut self,
        child: Option<&CageId>,
        taint: Taint,
        now: Instant,
    ) -> Result<(), RunError> {
        let because = match child {
            Some(child) => format!("its child {child} has it"),
            None => "a child of it has it".into(),
        };
        self.take_on(taint, &because, now)
    }

    /// What a child does is its parent's doing.
    fn count_difference_of_child(
        &mut self,
        child: Option<&CageId>,
        what: &str,
    ) -> Result<(), RunError> {
        let id = child.map(|id| format!(" {id}")).unwrap_or_default();
        self.count_difference(format!("in its child{id}: {what}"))
    }

    /// Tells the parent what was done that nobody had said.
    pub(crate) fn tell_parent_of_difference(&self, what: &str) {
        if let Some(kin) = &self.kin {
            kin.tell_difference(what);
        }
    }

    /// A person was asked for a child of this cage: nobody is asked more often for being asked by
    /// several.
    fn count_questions(&mut self, times: u32, from: Option<u64>, now: Instant) {
        self.questions.count(times, now);
        self.tell_family_of_questions(times, from);
    }

    /// Tells parent and children, but for the one that said so, that a person was asked.
    pub(crate) fn tell_family_of_questions(&self, times: u32, from: Option<u64>) {
        if let Some(kin) = &self.kin {
            (0..times).for_each(|_| kin.tell_question());
        }
        self.tell_children_of_questions(times, from);
    }

    fn tell_children_of_questions(&self, times: u32, from: Option<u64>) {
        let others = self.children.living.iter();
        let others = others.filter(|child| child.id.is_some() && Some(child.ticket) != from);
        for child in others.filter(|_| times > 0) {
            // One that is gone has ended.
            let _ = child.channel.send(&ToChild::Asked(times), &[]);
        }
    }

    /// Tells children how far their parent is trusted.
    pub(crate) fn tell_children_of_trust(&self, trust: Trust) {
        for child in self
            .children
            .living
            .iter()
            .filter(|child| child.id.is_some())
        {
            // One that is gone has ended.
            let _ = child.channel.send(&ToChild::Trusted(trust), &[]);
        }
    }

    /// Tells parent and children what the cage may have come into contact with.
    pub(crate) fn tell_kin_of_taint(&self) {
        if let Some(kin) = &self.kin {
            kin.tell_taint(self.taint);
        }
        for child in self
            .children
            .living
            .iter()
            .filter(|child| child.id.is_some())
        {
            // One that is gone has ended.
            let _ = child.channel.send(&ToChild::Tainted(self.taint), &[]);
        }
    }
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
