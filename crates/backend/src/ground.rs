//! What a cage stands on outside, whichever backend makes it: its ids, its cgroup, and the
//! channels to its first process.

use crate::cage::{Ends, make_cgroup};
use crate::faults::step;
use crate::ids::{self, Range, Reaped};
use crate::init::Inheritance;
use crate::{StartError, StreamKind, Streams};
use ironcage_layers::cgroup::Cgroup;
use ironcage_layers::view::OwnerMap;
use ironcage_model::CageId;
use ironcage_plan::{IdMap, Plan};
use ironcage_sys::rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use ironcage_sys::rustix::process::geteuid;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Streams and control socket, both ends of each.
#[derive(Debug)]
pub struct Channels {
    ends: Ends,
    /// The supervisor's end of the control socket.
    pub control: OwnedFd,
    control_inner: OwnedFd,
}

/// Two ends of a socket for packets.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), StartError> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    socketpair(family, kind, SocketFlags::CLOEXEC, None)
        .map_err(|error| StartError::Channel(error.into()))
}

impl Channels {
    /// Makes them.
    pub fn make(kind: StreamKind) -> Result<Channels, StartError> {
        let (control, control_inner) = pair()?;
        Ok(Channels {
            ends: Ends::make(kind).map_err(StartError::Channel)?,
            control,
            control_inner,
        })
    }
}

/// All of it, before the fork.
#[derive(Debug)]
pub struct Ground {
    /// The cage's ids, where root starts it.
    pub range: Option<Range>,
    agent_outside: (u32, u32),
    owner_maps: Vec<OwnerMap>,
    children: Vec<Reaped>,
    cgroup: Option<Cgroup>,
    cgroup_entries: Vec<OwnedFd>,
    channels: Channels,
}

/// What the supervisor keeps of it after the fork.
#[derive(Debug)]
pub struct Remains {
    /// The supervisor's end of the control socket.
    pub control: OwnedFd,
    /// Its ends of the streams, as far as they are made.
    pub streams: Option<Streams>,
    /// The cage's ids, where root starts it.
    pub range: Option<Range>,
    /// The cgroup, where there is one.
    pub cgroup: Option<Cgroup>,
    /// Children that end by themselves.
    pub children: Vec<Reaped>,
}

impl Ground {
    /// Claims ids and makes the cgroup.
    pub fn prepare(plan: &Plan, id: &CageId, channels: Channels) -> Result<Ground, StartError> {
        let (range, agent_outside) = match plan.identity.map {
            IdMap::Own { uid, gid } => (None, (uid, gid)),
            IdMap::Range { .. } => {
                let range = Range::claim()?;
                let identity = &plan.identity;
                let agent = (range.first + identity.uid, range.first + identity.gid);
                (Some(range), agent)
            }
        };
        if geteuid().as_raw() != agent_outside.0 {
            let given = channels.ends.give_to(agent_outside);
            given.map_err(StartError::Channel)?;
        }
        let (owner_maps, children) = match range {
            Some(_) => ids::owner_maps(&plan.view, agent_outside)?,
            None => Default::default(),
        };
        step();
        let cgroup = make_cgroup(plan, id)?;
        step();
        let cgroup_entries = match &cgroup {
            Some(cgroup) if cgroup.clone_fd().is_none() => cgroup.entries()?,
            _ => Vec::new(),
        };
        Ok(Ground {
            range,
            agent_outside,
            owner_maps,
            children,
            cgroup,
            cgroup_entries,
            channels,
        })
    }

    /// The group into which the first process is forked, where it is not entered by it.
    pub fn clone_fd(&self) -> Option<BorrowedFd<'_>> {
        self.cgroup.as_ref().and_then(Cgroup::clone_fd)
    }

    /// The first process's part, in the child; and the cgroup, into which a guardian forks. It
    /// is the supervisor's to remove. `authority` is the door's certificate, if it has one.
    pub fn inherit(
        self,
        guarded: bool,
        authority: String,
    ) -> (Inheritance, ManuallyDrop<Option<Cgroup>>) {
        // The supervisor's children, not this process's: it must not wait for them.
        std::mem::forget(self.children);
        // Its file is the supervisor's too, and so is the lock on it.
        drop(self.range);
        let Channels {
            ends,
            control,
            control_inner,
        } = self.channels;
        drop((control, ends.outer));
        let inheritance = Inheritance {
            control: control_inner,
            streams: ends.inner,
            owner_maps: self.owner_maps,
            authority,
            agent_outside: self.agent_outside,
            cgroup_entries: self.cgroup_entries,
            permitted: false.into(),
            guarded,
        };
        (inheritance, ManuallyDrop::new(self.cgroup))
    }

    /// The supervisor's part, after the fork.
    pub fn keep(self) -> Remains {
        Remains {
            control: self.channels.control,
            streams: self.channels.ends.outer,
            range: self.range,
            cgroup: self.cgroup,
            children: self.children,
        }
    }
}
