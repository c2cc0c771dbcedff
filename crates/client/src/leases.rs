//! Leases of a running cage, asked for and taken back from outside.

use crate::{ClientError, Connection};
use ironcage_control::{
    ApproveRequest, GrantRequest, LeaseDescription, LeaseTarget, PermissionRequestDescription,
    Reply, Request,
};
use ironcage_model::{Holder, LeaseEnd, Publish, RequestOutcome, Resource};
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the supervisor may take to open a lease: it gives up before that.
const PATIENCE: Duration = Duration::from_secs(60);

/// A lease that is over.
#[derive(Debug)]
pub struct Ended {
    pub number: u32,
    /// What can be said of it.
    pub end: LeaseEnd,
    pub holders: Vec<Holder>,
}

fn unexpected(reply: &Reply) -> ClientError {
    ClientError::Answer(format!("{reply:?}"))
}

/// What a path leads to now, for a lease on it.
pub fn open_path(path: &Path) -> Result<OwnedFd, ClientError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).map_err(|error| ClientError::Path {
        path: path.to_owned(),
        source: error.into(),
    })
}

/// Asks for a lease on a path, and waits until it is open. What the path leads to now is what is
/// asked for, whatever takes its place meanwhile.
pub fn grant_path(
    connection: &Connection,
    path: &Path,
    request: GrantRequest,
) -> Result<RequestOutcome, ClientError> {
    let handle = open_path(path)?;
    grant(connection, request, &[handle.as_fd()])
}

/// Listens for a port inside, at any of the host's loopback that is free where none is named.
pub(super) fn listen(publish: Publish) -> Result<(Publish, OwnedFd), ClientError> {
    ironcage_control::listen_on_loopback(publish).map_err(|source| ClientError::System {
        action: "listen on the host's loopback",
        source,
    })
}

/// Asks for a lease on a port, which is listened on here, at any that is free where none is
/// named.
pub fn grant_port(
    connection: &Connection,
    publish: Publish,
    request: GrantRequest,
) -> Result<RequestOutcome, ClientError> {
    let (publish, listener) = listen(publish)?;
    let wanted = LeaseTarget::Other(Resource::Port { publish });
    grant(
        connection,
        GrantRequest { wanted, ..request },
        &[listener.as_fd()],
    )
}

/// Asks for a lease, and waits until it is open.
pub fn grant(
    connection: &Connection,
    request: GrantRequest,
    descriptors: &[BorrowedFd<'_>],
) -> Result<RequestOutcome, ClientError> {
    connection.send_with(&Request::Grant(request), descriptors)?;
    granted(connection)
}

/// Asks for a lease for a tool call, and waits until it is open, or a person would have to be asked.
pub fn grant_for_call(
    connection: &Connection,
    request: GrantRequest,
    descriptors: &[BorrowedFd<'_>],
) -> Result<RequestOutcome, ClientError> {
    connection.send_with(&Request::GrantForCall(request), descriptors)?;
    granted(connection)
}

fn granted(connection: &Connection) -> Result<RequestOutcome, ClientError> {
    match connection.receive(Some(Instant::now() + PATIENCE))?.0 {
        Reply::Lease(outcome) => Ok(outcome),
        other => Err(unexpected(&other)),
    }
}

/// Takes a lease back, or all of them, and waits until each is over; each is told as it ends.
pub fn revoke(
    connection: &Connection,
    number: Option<u32>,
    mut told: impl FnMut(Ended),
) -> Result<(), ClientError> {
    let count = match connection.ask(&Request::Revoke { number })? {
        Reply::Revoking { count } => count,
        other => return Err(unexpected(&other)),
    };
    for _ in 0..count {
        match connection.receive(None)?.0 {
            Reply::LeaseEnded {
                number,
                end,
                holders,
            } => told(Ended {
                number,
                end,
                holders,
            }),
            other => return Err(unexpected(&other)),
        }
    }
    Ok(())
}

/// The leases of a cage that are open, or whose end is not proved yet.
pub fn leases(connection: &Connection) -> Result<Vec<LeaseDescription>, ClientError> {
    match connection.ask(&Request::Leases)? {
        Reply::Leases(leases) => Ok(leases),
        other => Err(unexpected(&other)),
    }
}

/// The questions of a cage that wait for an answer.
pub fn questions(
    connection: &Connection,
) -> Result<Vec<PermissionRequestDescription>, ClientError> {
    match connection.ask(&Request::Questions)? {
        Reply::Questions(questions) => Ok(questions),
        other => Err(unexpected(&other)),
    }
}

/// Says yes to a question, and waits until the lease is open.
pub fn approve(
    connection: &Connection,
    request: ApproveRequest,
) -> Result<RequestOutcome, ClientError> {
    connection.send_with(&Request::Approve(request), &[])?;
    granted(connection)
}

/// Says no to a question.
pub fn deny(connection: &Connection, number: u32, reason: String) -> Result<(), ClientError> {
    match connection.ask(&Request::Deny { number, reason })? {
        Reply::Denied { .. } => Ok(()),
        // Nothing waits under this number.
        Reply::Lease(RequestOutcome::Denied { reason }) => Err(ClientError::Refused { reason }),
        other => Err(unexpected(&other)),
    }
}
