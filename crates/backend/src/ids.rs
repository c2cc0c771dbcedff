//! Ids of a cage that root starts: a range that no other cage has, and maps that make the
//! owner of files outside the agent inside.

use crate::StartError;
use crate::init::{Inheritance, failed};
use crate::wire;
use ironcage_layers::LayerError;
use ironcage_layers::identity::{MapLine, write_maps, write_maps_at};
use ironcage_layers::view::OwnerMap;
use ironcage_model::{CageId, Layer};
use ironcage_plan::{Access, Item, Owner, ViewOp};
use ironcage_sys::clone::{Namespaces, fork_and_end};
use ironcage_sys::lock::try_lock_byte;
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::process::{WaitId, WaitIdOptions, waitid};
use ironcage_sys::spent::close_later;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Ids in one range: enough for an ordinary system's users inside.
const RANGE: u32 = 65_536;
/// Above what distributions give to users, systemd to containers, below the sign bit.
const FIRST: u32 = 0x7000_0000;
const RANGES: u32 = 0x0fff;

const DIRECTORY: &str = "/run/ironcage";
const FILE: &str = "/run/ironcage/ids";

/// A range of ids that is this cage's as long as this value lives.
#[derive(Debug)]
pub struct Range {
    pub first: u32,
    /// Not there where another process holds the claim.
    _lock: Option<OwnedFd>,
}

impl Range {
    /// Its last id, which nobody inside has: the egress proxy's.
    pub fn last(&self) -> u32 {
        self.first + (RANGE - 1)
    }

    /// A range that is claimed by a process which outlives this one.
    pub(crate) fn lent(first: u32) -> Range {
        Range { first, _lock: None }
    }

    /// Claims a free range. Which ones are taken is told by locks on the bytes of one file:
    /// they end with their owner, however it dies. The cage's ID says where the search begins, so
    /// that cages seldom meet.
    pub fn claim(id: &CageId) -> Result<Range, StartError> {
        Range::try_claim(id).map_err(|source| StartError::Ids { path: FILE, source })
    }

    fn try_claim(id: &CageId) -> io::Result<Range> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = match open(FILE, flags, mode) {
            Ok(file) => file,
            Err(_) => {
                std::fs::create_dir_all(DIRECTORY)?;
                open(FILE, flags, mode)?
            }
        };
        let bytes = id.as_str().bytes();
        let start = bytes.fold(0_u32, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u32::from(byte))
        });
        for step in 0..RANGES {
            let slot = start.wrapping_add(step) % RANGES;
            if try_lock_byte(file.as_fd(), i64::from(slot))? {
                return Ok(Range {
                    first: FIRST + slot * RANGE,
                    _lock: Some(file),
                });
            }
        }
        Err(io::Error::other(
            "all ranges are taken by running cages; stop some",
        ))
    }
}

/// A child that ends by itself, and is waited for when this is dropped: nobody has to wait
/// while there is work to do.
#[derive(Debug)]
pub struct Reaped(Option<OwnedFd>);

impl Reaped {
    /// A child that does.
    pub fn new(pidfd: OwnedFd) -> Reaped {
        Reaped(Some(pidfd))
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        if let Some(pidfd) = self.0.take() {
            // It can only fail because the child is gone.
            let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
            close_later(pidfd);
        }
    }
}

/// Makes one map for each owner that the view's binds name.
pub fn owner_maps(
    view: &[Item<ViewOp>],
    agent: (u32, u32),
) -> Result<(Vec<OwnerMap>, Vec<Reaped>), StartError> {
    let mut maps: Vec<OwnerMap> = Vec::new();
    let mut children = Vec::new();
    for item in view {
        let (ViewOp::Bind {
            owner: Some(owner),
            access: Access::Read | Access::Write,
            ..
        }
        | ViewOp::Overlay {
            owner: Some(owner), ..
        }) = &item.what
        else {
            continue;
        };
        if maps.iter().all(|map| map.owner != *owner) {
            let (namespace, child) =
                owner_map(*owner, agent).map_err(|source| StartError::OwnerMap {
                    owner: owner.uid,
                    source,
                })?;
            children.push(child);
            maps.push(OwnerMap {
                owner: *owner,
                namespace,
            });
        }
    }
    Ok((maps, children))
}

/// A user namespace lives as long as somebody is in it or holds it open. A child makes it and ends
/// at once; until we wait for it, it is still in it, and we map and open it.
pub fn owner_map(owner: Owner, agent: (u32, u32)) -> io::Result<(OwnedFd, Reaped)> {
    let (pid, pidfd) = fork_and_end(Namespaces::USER)?;
    let child = Reaped::new(pidfd);
    let process = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let line = |inside, outside| MapLine {
        inside,
        outside,
        count: 1,
    };
    let (mut uid, mut gid) = (line(owner.uid, agent.0), line(owner.gid, agent.1));
    if owner.all {
        // The agent is user 0 there, and has the first id of the range.
        (uid, gid) = (line(0, agent.0), line(0, agent.1));
        // The last one is the egress proxy's.
        (uid.count, gid.count) = (RANGE - 1, RANGE - 1);
    }
    write_maps(&process, uid, gid, false).map_err(|error| error.source)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let namespace = open(process.join("ns/user"), flags, Mode::empty())?;
    Ok((namespace, child))
}

/// Inside: maps the caller's own ids, inside and outside. `proc` is a handle of a process file
/// system, where none is seen any more.
pub fn map_own(
    proc: Option<BorrowedFd<'_>>,
    (uid_inside, uid): (u32, u32),
    (gid_inside, gid): (u32, u32),
) -> Result<(), LayerError> {
    let line = |inside, outside| MapLine {
        inside,
        outside,
        count: 1,
    };
    let (uid, gid) = (line(uid_inside, uid), line(gid_inside, gid));
    match proc {
        Some(proc) => write_maps_at(proc, Path::new("self"), (uid, gid), true),
        None => write_maps(Path::new("/proc/self"), uid, gid, true),
    }
}

/// Inside: asks the supervisor for the maps of this process's user namespace, and waits.
pub fn await_maps(inheritance: &Inheritance) -> Result<(), LayerError> {
    wire::say_unshared(inheritance.control.as_fd())
        .map_err(|error| failed(Layer::UserNs, "ask for the id maps", error))?;
    while !inheritance.hear_go() {}
    Ok(())
}
