//! The resources that a scope shares with its cage.

use crate::Cage;
use crate::ids::Range;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What a scope takes over from its cage, held apart from it: the process that makes a scope is
/// not the one that has the cage.
#[derive(Debug)]
pub struct Sibling {
    /// The cage's mount namespace.
    pub mounts: OwnedFd,
    /// The one in which it was built, without leases and locks.
    pub built: Option<OwnedFd>,
    /// The process file system that shows the cage's processes.
    pub proc: OwnedFd,
    /// The cage's own storage, writable for who holds this, where scopes share it.
    pub(crate) storage: Option<OwnedFd>,
    /// The first of the cage's ids, where root started it.
    pub(crate) first_id: Option<u32>,
    /// Its cgroup, where processes are forked into one.
    pub(crate) group: Option<OwnedFd>,
    /// Files by which its cgroups are entered, where they are not.
    pub(crate) entries: Vec<OwnedFd>,
    /// Whether the scope has its own limits, and so a cgroup beside the cage's.
    pub own_limits: bool,
}

impl Sibling {
    /// Takes what a scope of this cage needs; `None` where its backend has no scopes.
    ///
    /// # Errors
    /// Where descriptors cannot be had, or the cage's cgroup is gone.
    pub fn of(cage: &Cage) -> io::Result<Option<Sibling>> {
        let Some(mount_context) = cage.mount_context() else {
            return Ok(None);
        };
        let group = match cage.cgroup().and_then(|group| group.clone_fd()) {
            Some(group) => Some(group.try_clone_to_owned()?),
            None => None,
        };
        let entries = match cage.cgroup() {
            Some(cgroup) if group.is_none() => cgroup.entries()?,
            _ => Vec::new(),
        };
        Ok(Some(Sibling {
            mounts: mount_context.mounts.try_clone()?,
            built: match &mount_context.built {
                Some(built) => Some(built.try_clone()?),
                None => None,
            },
            proc: cage.proc().try_clone_to_owned()?,
            storage: match &mount_context.storage {
                Some(storage) => Some(storage.try_clone()?),
                None => None,
            },
            first_id: cage.range().map(|range| range.first),
            group,
            entries,
            own_limits: false,
        }))
    }

    /// What stands beside a cage that itself stands beside this one: its views, and the ids and
    /// the cgroup that are common to all.
    ///
    /// # Errors
    /// Where descriptors cannot be had.
    pub fn with_views_of(&self, cage: &Cage) -> io::Result<Option<Sibling>> {
        let Some(mount_context) = cage.mount_context() else {
            return Ok(None);
        };
        let copies = self.entries.iter().map(OwnedFd::try_clone);
        Ok(Some(Sibling {
            mounts: mount_context.mounts.try_clone()?,
            // Its workspace is another's, who leases it.
            built: None,
            proc: cage.proc().try_clone_to_owned()?,
            storage: match &mount_context.storage {
                Some(storage) => Some(storage.try_clone()?),
                None => None,
            },
            first_id: self.first_id,
            group: self.group.as_ref().map(OwnedFd::try_clone).transpose()?,
            entries: copies.collect::<Result<_, _>>()?,
            own_limits: false,
        }))
    }

    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = vec![self.mounts.as_fd(), self.proc.as_fd()];
        all.extend(self.built.iter().map(AsFd::as_fd));
        all.extend(self.storage.iter().map(AsFd::as_fd));
        all.extend(self.group.iter().map(AsFd::as_fd));
        all.extend(self.entries.iter().map(AsFd::as_fd));
        all
    }

    /// The cage's ids. They are claimed by the supervisor, which outlives every scope.
    pub(crate) fn range(&self) -> Option<Range> {
        self.first_id.map(Range::lent)
    }
}
