//! A child's side: what its supervisor has of its parent, and what the two say to each other.

use ironcage_backend::Sibling;
use ironcage_control::{Channel, ChildLine, Packet};
use ironcage_model::{CageId, Reason, SupervisorReason, Taint, Trust};
use ironcage_sys::clone::exit_now;
use ironcage_sys::process::close_all_but;
use ironcage_sys::rustix::fs::{FileType, Mode, OFlags, fstat, open};
use ironcage_sys::rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use ironcage_sys::rustix::stdio;
use ironcage_sys::rustix::thread::set_name;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

/// How long a child may take to end when nobody waits for it any more.
const GRACE: Duration = Duration::from_secs(2);

/// What a child's supervisor says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromChild {
    /// It is about to run: to be put on record. Answered by [`ToChild::Done`] or [`ToChild::No`].
    Announce(ChildAnnouncement),
    /// It does not start.
    Refused { reason: Reason },
    /// What it may have come into contact with.
    Tainted(Taint),
    /// It did something that its model had not said: what, in words.
    Differed(String),
    /// A person was asked for it.
    Asked,
    /// It, or a child of it, is there: with its process list, storage and segments come what it
    /// uses, which counts as the parent's.
    Count(CageId),
    /// That one is gone.
    Uncount(CageId),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ChildAnnouncement {
    pub(super) id: CageId,
    pub(super) command: Vec<String>,
    pub(super) workspace: String,
    pub(super) children: u32,
}

/// What a child has of its parent's history from its start.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct InheritedHistory {
    /// What the parent may have come into contact with.
    pub(crate) taint: Taint,
    /// How far it is trusted.
    pub(crate) trust: Trust,
    /// Questions that were asked within an hour.
    pub(crate) asked: u32,
}

/// What its parent's supervisor says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToChild {
    /// It is on record, and may run, with this of its parent.
    Done(InheritedHistory),
    No {
        reason: Reason,
    },
    End,
    /// What its parent may have come into contact with.
    Tainted(Taint),
    /// How far its parent is trusted.
    Trusted(Trust),
    /// So many questions were asked for others of its family.
    Asked(u32),
    /// It is to stand still, or not any more.
    Pause(bool),
}

/// What a child hears from its parent.
#[derive(Debug)]
pub(super) enum ParentMessage {
    /// It is to end, or has no parent any more: how long it may still take.
    End(Duration),
    /// What its parent may have come into contact with.
    Tainted(Taint),
    /// How far its parent is trusted.
    Trusted(Trust),
    /// So many questions were asked for others of its family.
    Asked(u32),
    /// It is to stand still, or not any more.
    Pause(bool),
}

/// What a child has of its parent.
#[derive(Debug)]
pub struct ParentLink {
    parent: CageId,
    /// What it has of its parent's history, once it is announced.
    inherited: InheritedHistory,
    sibling: Sibling,
    link: Channel,
    over: bool,
}

/// What a child is to be made from. Its words are the agent's.
#[derive(Debug)]
pub struct ChildSpec {
    pub wanted: ChildLine,
    /// What it has of its parent.
    pub parent: ParentLink,
}

/// Who makes the policy and the plan of a child, in a process that is its supervisor, and runs it.
/// Returns the exit status of that process.
pub type SpawnChild<'a> = dyn Fn(ChildSpec) -> u8 + 'a;

impl ParentLink {
    pub(super) fn new(parent: CageId, link: Channel, sibling: Sibling) -> ParentLink {
        ParentLink {
            parent,
            inherited: InheritedHistory::default(),
            sibling,
            link,
            over: false,
        }
    }

    pub(crate) fn parent(&self) -> &CageId {
        &self.parent
    }

    /// What the child has of its parent's history, once it is announced.
    pub(crate) fn inherited(&self) -> InheritedHistory {
        self.inherited
    }

    /// What the child shares with its parent.
    pub(crate) fn sibling(&self) -> &Sibling {
        &self.sibling
    }

    /// Where the parent's supervisor speaks, until it is gone.
    pub(crate) fn link(&self) -> Option<BorrowedFd<'_>> {
        (!self.over).then(|| self.link.as_fd())
    }

    /// Says that there will be no child, and why.
    pub fn refuse(&self, reason: Reason) {
        // A parent that is gone takes this process along.
        let _ = self.link.send(&FromChild::Refused { reason }, &[]);
    }

    /// Has the child put on its parent's record, and waits until it is.
    ///
    /// # Errors
    /// In words, where it may not be.
    pub(crate) fn announce(
        &mut self,
        id: &CageId,
        command: Vec<String>,
        workspace: &str,
        children: u32,
    ) -> Result<(), Reason> {
        let born = FromChild::Announce(ChildAnnouncement {
            id: id.clone(),
            command,
            workspace: workspace.to_owned(),
            children,
        });
        let gone = || SupervisorReason::ChildFailed {
            error: "the cage that opened it is gone".into(),
        };
        if self.link.send(&born, &[]).is_err() {
            return Err(gone().into());
        }
        loop {
            match self.link.receive::<ToChild>(true) {
                Ok(Some(Packet::Message(ToChild::Done(inherited), _))) => {
                    self.inherited = inherited;
                    return Ok(());
                }
                Ok(Some(Packet::Message(ToChild::No { reason }, _))) => return Err(reason),
                Ok(Some(Packet::Message(ToChild::End, _))) => {
                    let error = "nobody waits for it".into();
                    return Err(SupervisorReason::ChildFailed { error }.into());
                }
                // What is said before it may run is in what it then inherits.
                Ok(Some(Packet::Message(
                    ToChild::Tainted(_)
                    | ToChild::Trusted(_)
                    | ToChild::Asked(_)
                    | ToChild::Pause(_),
                    _,
                ))) => {}
                Ok(Some(Packet::Garbled(_) | Packet::Closed) | None) | Err(_) => {
                    return Err(gone().into());
                }
            }
        }
    }

    /// Takes what the parent's supervisor says.
    pub(super) fn hear(&mut self) -> Option<ParentMessage> {
        match self.link.receive::<ToChild>(false) {
            Ok(None | Some(Packet::Message(ToChild::Done(_) | ToChild::No { .. }, _))) => None,
            Ok(Some(Packet::Message(ToChild::Tainted(taint), _))) => {
                Some(ParentMessage::Tainted(taint))
            }
            Ok(Some(Packet::Message(ToChild::Trusted(trust), _))) => {
                Some(ParentMessage::Trusted(trust))
            }
            Ok(Some(Packet::Message(ToChild::Asked(times), _))) => {
                Some(ParentMessage::Asked(times))
            }
            Ok(Some(Packet::Message(ToChild::Pause(paused), _))) => {
                Some(ParentMessage::Pause(paused))
            }
            Ok(Some(Packet::Message(ToChild::End, _))) => Some(ParentMessage::End(GRACE)),
            Ok(Some(Packet::Garbled(_) | Packet::Closed)) | Err(_) => {
                self.over = true;
                Some(ParentMessage::End(Duration::ZERO))
            }
        }
    }

    /// Has what a cage uses counted as the parent's.
    ///
    /// # Errors
    /// Where it cannot be said: then nobody counts it.
    pub(crate) fn count(&self, id: &CageId, places: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.link.send(&FromChild::Count(id.clone()), places)
    }

    /// Says that a cage is gone whose use was counted.
    pub(super) fn uncount(&self, id: &CageId) {
        // A parent that is gone takes this process along.
        let _ = self.link.send(&FromChild::Uncount(id.clone()), &[]);
    }

    /// Says that a person was asked for the child.
    pub(super) fn tell_question(&self) {
        // A parent that is gone takes this process along.
        let _ = self.link.send(&FromChild::Asked, &[]);
    }

    /// Says what the child did that its model had not said.
    pub(super) fn tell_difference(&self, what: &str) {
        // A parent that is gone takes this process along.
        let _ = self.link.send(&FromChild::Differed(what.to_owned()), &[]);
    }

    /// Says what the child may have come into contact with.
    pub(super) fn tell_taint(&self, taint: Taint) {
        // A parent that is gone takes this process along.
        let _ = self.link.send(&FromChild::Tainted(taint), &[]);
    }
}

/// In the forked process: becomes the child's supervisor.
pub(super) fn begin(
    parent: Pid,
    spec: ChildSpec,
    streams: &[OwnedFd],
    spawn: &SpawnChild<'_>,
) -> ! {
    let tethered = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    if !tethered || getppid() != Some(parent) {
        exit_now(1);
    }
    if let Err(error) = settle(&spec.parent, streams) {
        let error = format!("its streams: {error}");
        let reason = SupervisorReason::ChildFailed { error };
        spec.parent.refuse(reason.into());
        exit_now(1);
    }
    let _ = set_name(c"ironcage-child");
    exit_now(i32::from(spawn(spec)))
}

/// A pipe of the agent's, opened anew so that it never blocks us. That it does not block belongs to
/// the open file: what we were handed the agent shares, and could let block again at any time, with
/// the child's supervisor in the middle of a read.
fn never_blocking(fd: &OwnedFd, how: OFlags) -> io::Result<OwnedFd> {
    if FileType::from_raw_mode(fstat(fd)?.st_mode) != FileType::Fifo {
        return Err(io::Error::other("a child's streams are pipes"));
    }
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = how | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

/// Takes the streams, and lets go of everything else of the parent's supervisor.
fn settle(parent: &ParentLink, streams: &[OwnedFd]) -> io::Result<()> {
    let [stdin, stdout, stderr] = streams else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    stdio::dup2_stdin(never_blocking(stdin, OFlags::RDONLY)?)?;
    stdio::dup2_stdout(never_blocking(stdout, OFlags::WRONLY)?)?;
    stdio::dup2_stderr(never_blocking(stderr, OFlags::WRONLY)?)?;
    let mut kept = parent.sibling.descriptors();
    kept.push(parent.link.as_fd());
    close_all_but(&kept)
}
