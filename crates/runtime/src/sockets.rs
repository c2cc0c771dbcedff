//! Unix sockets of the host's, from inside: one of the supervisor's own stands in the cage in
//! the place of each. A connection there becomes one to the real socket, which the supervisor
//! makes with its own name and rights, and the door carries the bytes and records them.

use crate::RunError;
use crate::supervise::Supervision;
use ironcage_control::{Listener, RuntimeDir};
use ironcage_egress::Order;
use ironcage_model::{CageId, EventKind, NetworkVerdict, Printable, Protocol, Resource, Traffic};
use ironcage_plan::{Access, Item, NodeKind, Plan, ViewOp};
use ironcage_sys::mount::open_source;
use ironcage_sys::rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, socket_with,
};
use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A socket that stands in the cage for one of the host's.
#[derive(Debug)]
pub(crate) struct StandIn {
    listener: Listener,
    real: PathBuf,
    /// The directory of the real one, as it was when the plan was made: an agent that can write
    /// above it could put another in its place. The server may make its socket anew there.
    directory: OwnedFd,
    name: OsString,
    /// Whether connections are taken, where that needs a lease.
    leased: Option<bool>,
}

impl StandIn {
    /// Whether it is there for leases on this socket.
    pub(crate) fn stands_for(&self, path: &str) -> bool {
        self.leased.is_some() && self.real.as_os_str() == path
    }

    /// Where connections come in.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Makes a stand-in for every socket of the plan, and puts them into its view.
pub(crate) fn stand_in(
    plan: &mut Cow<'_, Plan>,
    runtime: &RuntimeDir,
    id: &CageId,
) -> Result<Vec<StandIn>, RunError> {
    let sockets = match &plan.network {
        Some(network) if !network.sockets.is_empty() => network.sockets.clone(),
        _ => return Ok(Vec::new()),
    };
    let mut made = Vec::new();
    for (index, Item { what, origin }) in sockets.into_iter().enumerate() {
        let (directory, name) = hold(&what.path)?;
        let (listener, source) = runtime.listen_for_cage(id, index)?;
        let op = ViewOp::Bind {
            source,
            target: what.path.clone(),
            access: Access::Read,
            kind: NodeKind::File,
            owner: None,
        };
        let view = &mut plan.to_mut().view;
        let seal = view.iter().position(|op| matches!(op.what, ViewOp::Seal));
        view.insert(seal.unwrap_or(view.len()), Item { what: op, origin });
        made.push(StandIn {
            listener,
            real: what.path,
            directory,
            name,
            leased: what.leased.then_some(false),
        });
    }
    Ok(made)
}

/// Holds the directory of a socket.
fn hold(path: &Path) -> Result<(OwnedFd, OsString), RunError> {
    let refuse = |source| RunError::Socket {
        path: path.to_owned(),
        source,
    };
    let not_there = || refuse(io::Error::from(io::ErrorKind::NotFound));
    let name = path.file_name().ok_or_else(not_there)?;
    let directory = path.parent().ok_or_else(not_there)?;
    let directory = open_source(directory).map_err(refuse)?;
    Ok((directory, name.to_owned()))
}

/// The cage has them in its view: nobody needs their names outside any more.
pub(crate) fn hide(made: &[StandIn]) {
    for stand_in in made {
        stand_in.listener.hide();
    }
}

impl Supervision<'_> {
    /// A lease on a socket begins or ends.
    pub(crate) fn set_socket(&mut self, path: &str, open: bool) {
        for stand_in in self.sockets.iter_mut().filter(|s| s.stands_for(path)) {
            stand_in.leased = Some(open);
        }
    }

    /// Takes one connection to a stand-in.
    pub(crate) fn accept_at(&mut self, index: usize) -> Result<(), RunError> {
        let Some(stand_in) = self.sockets.get(index) else {
            return Ok(());
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(inside) = accept_with(&stand_in.listener, flags) else {
            return Ok(());
        };
        let name = Printable::new(&stand_in.real).to_string();
        let real = stand_in.real.clone();
        let given = match stand_in.leased {
            None => true,
            Some(open) => {
                let is_it = |resource: &Resource| matches!(resource, Resource::Socket { path } if real.as_os_str() == path.as_str());
                open && self.use_lease(is_it)
            }
        };
        if !given {
            self.traffic.count(Instant::now());
            return self.recorder.write(EventKind::Network(Traffic {
                verdict: NetworkVerdict::Denied,
                reason: Some("no lease on it is open, or it is used up".into()),
                ..unconnected(name)
            }));
        }
        let Some(stand_in) = self.sockets.get(index) else {
            return Ok(());
        };
        let carried = dial(stand_in)
            .map_err(|error| error.to_string())
            .and_then(|outside| {
                let order = Order::Carry { name: name.clone() };
                self.tell_door(&order, &[inside.as_fd(), outside.as_fd()])
            });
        let Err(reason) = carried else {
            return Ok(());
        };
        self.traffic.count(Instant::now());
        self.recorder.write(EventKind::Network(Traffic {
            reason: Some(format!("cannot connect: {reason}")),
            ..unconnected(name)
        }))
    }
}

/// A connection to a socket of the host's that did not come about.
fn unconnected(name: String) -> Traffic {
    Traffic {
        verdict: NetworkVerdict::Allowed,
        rule: Some(name.clone()),
        host: name,
        port: 0,
        protocol: Protocol::Unix,
        address: None,
        request: None,
        status: None,
        reason: None,
        connections: 1,
        sent: 0,
        received: 0,
    }
}

/// A connection to the real socket, which comes about at once or not at all. What is connected
/// to is what was looked at: no name is resolved twice, and no link followed.
fn dial(stand_in: &StandIn) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let real = openat(&stand_in.directory, &stand_in.name, flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&real)?.st_mode) != FileType::Socket {
        return Err(Errno::NOTSOCK);
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let itself = format!("/proc/self/fd/{}", real.as_raw_fd());
    connect(&socket, &SocketAddrUnix::new(itself.as_str())?)?;
    Ok(socket)
}
