//! A backend is a strength of isolation that can start a cage, and says what else it can.

use crate::{
    Cage, LeaseError, MountHelper, PreparedCage, Sibling, StartError, StartingCage, StreamKind,
};
use ironcage_model::{CageId, Holder, Isolation};
use ironcage_plan::{BoundPlan, Plan, StaticPart};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// Something that may be done with a cage, besides starting it and waiting for its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// A terminal of the cage's own.
    Terminal,
    /// Sending a signal to the command.
    Signal,
    /// Stopping every process of the cage, and letting them go on.
    Freeze,
    /// Ending every process of the cage, those that left their parents included.
    Kill,
    /// Bounding what the cage uses, and telling which bound was reached.
    Limits,
    /// Recording system calls that were refused.
    Refusals,
    /// Another command in the running cage.
    Exec,
    /// A permission given to the running cage.
    Lease,
    /// A given permission narrowed or widened in place.
    Flip,
    /// A given permission taken back, with the proof that it is gone.
    Revoke,
    /// One command with permissions of its own beside the cage.
    Scope,
}

impl Ability {
    /// Every ability, in the order in which tables list them.
    pub const ALL: [Ability; 11] = [
        Ability::Terminal,
        Ability::Signal,
        Ability::Freeze,
        Ability::Kill,
        Ability::Limits,
        Ability::Refusals,
        Ability::Exec,
        Ability::Lease,
        Ability::Flip,
        Ability::Revoke,
        Ability::Scope,
    ];

    /// Its name in tables and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Ability::Terminal => "terminal",
            Ability::Signal => "signal",
            Ability::Freeze => "freeze",
            Ability::Kill => "kill",
            Ability::Limits => "limits",
            Ability::Refusals => "refusals",
            Ability::Exec => "exec",
            Ability::Lease => "lease",
            Ability::Flip => "flip",
            Ability::Revoke => "revoke",
            Ability::Scope => "scope",
        }
    }
}

/// Whether a backend can do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It can; the text says how.
    Yes(&'static str),
    /// It refuses; the text says why.
    No(&'static str),
}

/// Who is looked for in a cage.
#[derive(Debug, Clone, Copy)]
pub struct Sought<'a> {
    /// Who uses one of these mounts,
    pub mounts: &'a [u64],
    /// or has mapped something that is called so.
    pub path: &'a str,
    pub kill: bool,
}

/// A strength of isolation. How far each layer holds with it on a host is the plan's to say,
/// before anything is started.
pub trait Backend: std::fmt::Debug + Sync {
    fn isolation(&self) -> Isolation;

    /// Whether it can do something, and how, or why not.
    fn can(&self, ability: Ability) -> Support;

    /// Starts the process that gives leases to a cage and takes them back. It dies with the
    /// calling process, which has one thread.
    ///
    /// # Errors
    /// Where the backend, or the cage's plan, has no leases.
    fn mount_helper(&self, plan: &Plan, cage: &Cage) -> Result<MountHelper, LeaseError> {
        let _ = (plan, cage);
        Err(LeaseError::Unable(match self.can(Ability::Lease) {
            Support::Yes(reason) | Support::No(reason) => reason,
        }))
    }

    /// Starts a scope: a second start by the plan of a cage ([`Plan::scoped`]), beside it and not
    /// in it. It has the cage's ids, its cgroup where it has no limits of its own, and the shared
    /// part of its view, and everything else for itself. The caller goes on as with a cage.
    ///
    /// Preconditions: the calling process has one thread; its end is the scope's end.
    ///
    /// # Errors
    /// Where the backend has no scopes, or this one cannot be made.
    fn scope(
        &self,
        plan: &BoundPlan<'_>,
        id: &CageId,
        sibling: &Sibling,
    ) -> Result<StartingCage, StartError> {
        let _ = (plan, id, sibling);
        Err(StartError::NoScope(match self.can(Ability::Scope) {
            Support::Yes(reason) | Support::No(reason) => reason,
        }))
    }

    /// Clones a part of a view of the cage's that is locked: writable, and attached nowhere.
    ///
    /// Preconditions: the calling process has one thread.
    ///
    /// # Errors
    /// Where the backend has no scopes, or nothing is there.
    fn part(&self, plan: &Plan, sibling: &Sibling, path: &Path) -> io::Result<OwnedFd> {
        let _ = (plan, sibling, path);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Looks in a cage for who uses one of these mounts, of which the first is seen at `path` in a
    /// scope beside it, and kills them if told to.
    ///
    /// Preconditions: the calling process has one thread.
    ///
    /// # Errors
    /// Where the backend has no scopes, or it cannot be looked.
    fn seek(&self, plan: &Plan, sibling: &Sibling, sought: &Sought<'_>) -> io::Result<Vec<Holder>> {
        let _ = (plan, sibling, sought);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Prepares a cage: carries out what plans of one kind have in common, and waits. The cage has
    /// this ID from now on, ids that no other cage has, and nothing of a tenant.
    ///
    /// Preconditions: the calling process has one thread and holds no data of a tenant; its end is
    /// the cage's end.
    ///
    /// # Errors
    /// Where the backend prepares no cages.
    fn prepare(&self, part: &Arc<StaticPart>, id: CageId) -> Result<PreparedCage, StartError> {
        let _ = (part, id);
        Err(StartError::NoPrepared)
    }

    /// Starts a cage that was prepared. The caller goes on with [`StartingCage::await_ready`].
    ///
    /// Preconditions: as for [`start`](Backend::start); the caller prepared it.
    ///
    /// # Errors
    /// Where the plan is not like the one by which the cage was prepared. The cage is ended then.
    fn adopt(
        &self,
        prepared: PreparedCage,
        plan: &BoundPlan<'_>,
        kind: StreamKind,
    ) -> Result<StartingCage, StartError> {
        let _ = (prepared, plan, kind);
        Err(StartError::NoPrepared)
    }

    /// Starts a cage. The caller goes on with [`StartingCage::await_ready`]; what it does before is done
    /// while the cage is being built.
    ///
    /// Preconditions: the calling process has one thread; its end is the cage's end.
    fn start(
        &self,
        plan: &BoundPlan<'_>,
        id: &CageId,
        kind: StreamKind,
    ) -> Result<StartingCage, StartError>;
}
