//! The mount helper: a process beside a cage that gives leases to it and takes them back.
//!
//! It is started with the first lease, and does for one cage what needs to be in the cage's own
//! namespaces: clone, attach, flip, take off, find who holds on. This is the supervisor's side;
//! the backend has the process. Orders and answers have the lease's number, and nothing here
//! waits.

use ironcage_control::{Channel, Packet};
use ironcage_model::{Holder, Right};
use ironcage_sys::rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What the mount helper is told to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseOrder {
    /// Open a lease on a path.
    Open {
        number: u32,
        /// The real path, outside and inside.
        path: String,
        /// What is mounted there.
        from: LeasedFrom,
        right: Right,
    },
    /// End a lease if nobody uses it.
    Close { number: u32 },
    /// End a lease, and kill who uses it. The cage has been stopped.
    Expel {
        number: u32,
        /// Whether nobody but the cage's own processes can have anything of it.
        alone: bool,
    },
    /// End a lease as far as that goes without killing anybody.
    Leave { number: u32 },
}

/// Where what is leased comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeasedFrom {
    /// The host's own file or directory.
    Host {
        /// Its device, as it was decided upon.
        device: u64,
        inode: u64,
    },
    /// One name in a directory of the host, which may be there or not. The cage sees a directory with
    /// only the leased names, and they are put in their place when the lease ends.
    Name {
        /// The directory, as it was decided upon.
        device: u64,
        inode: u64,
        /// What has the name, by device and number.
        existing: Option<(u64, u64)>,
    },
    /// The cage's own view, which keeps changes aside.
    View,
    /// The same, of the cage that a scope is beside: the mount comes with the order.
    Beside,
}

/// How far an end came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    /// Nobody has anything of it, by the kernel's word.
    Revoked,
    /// Out of the view and read-only; who had something open for reading keeps that.
    Closed,
    /// Somebody uses it, and it is as it was.
    Busy,
}

/// What the mount helper answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountHelperReply {
    /// About an order to open.
    Opened {
        number: u32,
        /// Why it was not opened, if it was not.
        failed: Option<String>,
    },
    /// About an order to end.
    Ended {
        number: u32,
        progress: Progress,
        /// Who was found to use it.
        holders: Vec<Holder>,
        /// Its mounts, as the kernel numbers them, while somebody uses it.
        mounts: Vec<u64>,
        /// Why what was written under a leased name is not in its place.
        misplaced: Option<String>,
    },
}

/// The supervisor's side of a mount helper. Dropping it ends the process.
#[derive(Debug)]
pub struct MountHelper {
    /// Where orders go and answers come from.
    pub channel: Channel,
    pub pidfd: OwnedFd,
}

impl MountHelper {
    /// Gives an order.
    ///
    /// # Errors
    /// Where the mount helper is gone, or takes nothing.
    pub fn order(&self, order: &LeaseOrder) -> io::Result<()> {
        self.channel.send(order, &[])
    }

    /// Gives an order that something comes with.
    ///
    /// # Errors
    /// Where the mount helper is gone, or takes nothing.
    pub fn order_with(&self, order: &LeaseOrder, what: BorrowedFd<'_>) -> io::Result<()> {
        self.channel.send(order, &[what])
    }

    /// Takes an answer, if there is one.
    ///
    /// # Errors
    /// Where the mount helper is gone or says what makes no sense: nothing is known of its leases.
    pub fn hear(&self) -> io::Result<Option<MountHelperReply>> {
        match self.channel.receive::<MountHelperReply>(false)? {
            None => Ok(None),
            Some(Packet::Message(answer, _)) => Ok(Some(answer)),
            Some(Packet::Garbled(error)) => Err(io::Error::other(error)),
            Some(Packet::Closed) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl AsFd for MountHelper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for MountHelper {
    fn drop(&mut self) {
        // Both can only fail because it is gone already.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
    }
}

/// What mount helpers and scopes work with: handed over by PID 1 before anything of the agent's runs.
#[derive(Debug)]
pub struct MountContext {
    /// The cage's mount namespace.
    pub mounts: OwnedFd,
    /// The storage on which the cage's root is, writable for who holds this, where the plan has
    /// leases.
    pub storage: Option<OwnedFd>,
    /// The mount namespace in which the cage was built, where the plan has leases: there none of
    /// them is mounted, and no view is locked.
    pub built: Option<OwnedFd>,
    /// In a scope, the same of its cage, where both share that.
    pub beside: Option<OwnedFd>,
}

impl MountContext {
    /// All of it, to be closed together.
    pub(crate) fn into_descriptors(self) -> Vec<OwnedFd> {
        let others = [self.storage, self.built, self.beside];
        let others = others.into_iter().flatten();
        std::iter::once(self.mounts).chain(others).collect()
    }
}

/// Why a lease cannot be given at all.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The backend has none.
    #[error("leases are not available at this isolation level: {0}")]
    Unable(&'static str),
    /// The plan has none.
    #[error("the cage was started without a ceiling")]
    NoMountContext,
    /// The process cannot be started.
    #[error("cannot start the mount helper")]
    Start(#[source] io::Error),
}
