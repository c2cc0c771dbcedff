//! The host resources of a cage, whichever backend makes it: its ids, its cgroup, and the
//! channels to its first process.

use crate::cage::{Ends, make_init_cgroup, make_scope_cgroup};
use crate::faults::step;
use crate::ids::{self, Range, Reaped};
use crate::init::{Inheritance, InnerStreams};
use crate::{Sibling, StartError, StreamKind, Streams};
use ironcage_layers::cgroup::Cgroup;
use ironcage_layers::view::{OwnerMap, Shared};
use ironcage_model::CageId;
use ironcage_plan::{IdMap, Plan};
use ironcage_sys::faults::lease_step;
use ironcage_sys::process::{close_together, started_as};
use ironcage_sys::rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use ironcage_sys::spent::close_later;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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
    packet_pair().map_err(StartError::Channel)
}

fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(socketpair(family, kind, SocketFlags::CLOEXEC, None)?)
}

impl Channels {
    pub fn make(kind: StreamKind) -> Result<Channels, StartError> {
        let made = Ends::make_around(kind, packet_pair).map_err(StartError::Channel)?;
        let (ends, (control_inner, control)) = made;
        Ok(Channels {
            ends,
            control,
            control_inner,
        })
    }
}

/// All of it, before the fork.
#[derive(Debug)]
pub struct HostResources {
    /// The cage's ids, where root starts it.
    pub range: Option<Range>,
    agent_outside: (u32, u32),
    owner_maps: Vec<OwnerMap>,
    children: Vec<Reaped>,
    cgroup: Option<Cgroup>,
    cgroup_entries: Vec<OwnedFd>,
    /// The group of the cage, where this is a scope of one.
    lent_group: Option<OwnedFd>,
    shared: Vec<Shared>,
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

impl HostResources {
    /// Claims ids and makes the cgroup.
    pub fn prepare(
        plan: &Plan,
        id: &CageId,
        channels: Channels,
    ) -> Result<HostResources, StartError> {
        let range = match plan.identity.map {
            IdMap::Own { .. } => None,
            IdMap::Range { .. } => Some(Range::claim(id)?),
        };
        let mut resources = HostResources::with_ids(plan, range, channels)?;
        let owner = resources.range.as_ref().map(|_| resources.agent_outside);
        let cgroup = make_init_cgroup(plan, id, owner)?;
        step();
        resources.cgroup = cgroup;
        Ok(resources)
    }

    /// What a scope stands on: ids are its cage's, and so is the cgroup where it has no limits of
    /// its own; and `shared` of the view.
    pub fn beside(
        plan: &Plan,
        id: &CageId,
        sibling: &Sibling,
        shared: Vec<Shared>,
        channels: Channels,
    ) -> Result<HostResources, StartError> {
        let mut resources = HostResources::with_ids(plan, sibling.range(), channels)?;
        if sibling.own_limits {
            let cgroup = make_scope_cgroup(plan, id)?;
            lease_step();
            resources.cgroup = Some(cgroup);
        } else {
            let copy = |fd: &OwnedFd| fd.try_clone().map_err(StartError::Channel);
            resources.cgroup_entries =
                sibling.entries.iter().map(copy).collect::<Result<_, _>>()?;
            resources.lent_group = sibling.group.as_ref().map(copy).transpose()?;
        }
        resources.shared = shared;
        Ok(resources)
    }

    fn with_ids(
        plan: &Plan,
        range: Option<Range>,
        channels: Channels,
    ) -> Result<HostResources, StartError> {
        let identity = &plan.identity;
        let agent_outside = match (&range, identity.map) {
            (Some(range), _) => (range.first + identity.uid, range.first + identity.gid),
            (None, IdMap::Own { uid, gid }) => (uid, gid),
            // The cage would not be there without one.
            (None, IdMap::Range { .. }) => return Err(StartError::Died),
        };
        if started_as() != agent_outside.0 {
            let given = channels.ends.give_to(agent_outside);
            given.map_err(StartError::Channel)?;
        }
        let (owner_maps, children) = match range {
            Some(_) => ids::owner_maps(&plan.view, agent_outside)?,
            None => Default::default(),
        };
        step();
        Ok(HostResources {
            range,
            agent_outside,
            owner_maps,
            children,
            cgroup: None,
            cgroup_entries: Vec::new(),
            lent_group: None,
            shared: Vec::new(),
            channels,
        })
    }

    /// The group into which the first process is forked, where it is not entered by it.
    pub fn clone_fd(&self) -> Option<BorrowedFd<'_>> {
        let own = self.cgroup.as_ref().and_then(Cgroup::clone_fd);
        own.or(self.lent_group.as_ref().map(AsFd::as_fd))
    }

    /// The first process's part, in the child; and the cgroup, into which a subreaper forks. It
    /// is the supervisor's to remove. `authority` is the proxy's certificate, if it has one.
    pub fn inherit(
        mut self,
        guarded: bool,
        authority: String,
    ) -> (Inheritance, ManuallyDrop<Option<Cgroup>>) {
        // The supervisor's children, not this process's: it must not wait for them.
        std::mem::forget(self.children);
        let Channels {
            ends,
            control,
            control_inner,
        } = self.channels;
        // As long as this process holds both ends of it, it would not hear that the other is gone.
        drop(control);
        // The supervisor's too, of which this process closes all that it has not named in a few
        // calls: these, and the file of its ids with the lock on it.
        std::mem::forget((ends.outer, self.range));
        if let Some(cgroup) = self.cgroup.as_mut().filter(|own| own.clone_fd().is_none()) {
            self.cgroup_entries = cgroup.take_entries();
        }
        let init = self.cgroup.as_mut().and_then(Cgroup::take_init_entry);
        self.cgroup_entries.extend(init);
        let inheritance = Inheritance {
            control: control_inner,
            streams: ends.inner,
            owner_maps: self.owner_maps,
            shared: self.shared,
            authority,
            agent_outside: self.agent_outside,
            cgroup_entries: self.cgroup_entries,
            permitted: false.into(),
            guarded,
        };
        (inheritance, ManuallyDrop::new(self.cgroup))
    }

    /// The supervisor's part, after the fork. The cage's ends are closed at once: as long as this
    /// process holds them, it does not learn that the cage has closed them.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn keep(self) -> Result<Remains, StartError> {
        let Channels {
            ends,
            control,
            control_inner,
        } = self.channels;
        let mut inner = vec![control_inner];
        if let InnerStreams::Pipes {
            stdin,
            stdout,
            stderr,
        } = ends.inner
        {
            inner.extend([stdin, stdout, stderr]);
        }
        close_together(inner).map_err(StartError::Channel)?;
        for map in self.owner_maps {
            close_later(map.namespace);
        }
        Ok(Remains {
            control,
            streams: ends.outer,
            range: self.range,
            cgroup: self.cgroup,
            children: self.children,
        })
    }
}
