//! Looks in a cage for who uses a mount of a scope's: handed over through the shared workspace.
//!
//! A scope's keeper is above the scope and has no power over the cage. So this is done by a
//! short-lived process above the cage.

use crate::keeper::holders::{Found, find, kill};
use crate::outer;
use ironcage_backend::ids::Reaped;
use ironcage_backend::{Sibling, Sought};
use ironcage_control::{Packet, pair};
use ironcage_model::Holder;
use ironcage_plan::Plan;
use ironcage_sys::clone::{Forked, Namespaces, exit_now, fork};
use ironcage_sys::rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use std::io;
use std::os::fd::AsFd;

/// Holders that are told by name.
const NAMED: usize = 16;

pub(crate) fn seek(plan: &Plan, sibling: &Sibling, sought: &Sought<'_>) -> io::Result<Vec<Holder>> {
    let (ours, theirs) = pair()?;
    let parent = getpid();
    match fork(Namespaces::NONE, None)? {
        Forked::Child => {
            drop(ours);
            let tethered = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
            if !tethered || getppid() != Some(parent) {
                exit_now(1);
            }
            let told = look(plan, sibling, sought).and_then(|found| theirs.send(&found, &[]));
            exit_now(i32::from(told.is_err()))
        }
        Forked::Parent { pidfd, .. } => {
            drop(theirs);
            let _process = Reaped::new(pidfd);
            match ours.receive(true)? {
                Some(Packet::Message(holders, _)) => Ok(holders),
                Some(Packet::Garbled(_) | Packet::Closed) | None => {
                    Err(io::ErrorKind::UnexpectedEof.into())
                }
            }
        }
    }
}

fn look(plan: &Plan, sibling: &Sibling, sought: &Sought<'_>) -> io::Result<Vec<Holder>> {
    outer::enter(plan, sibling.mounts.as_fd())?;
    let found = find(sibling.proc.as_fd(), sought.mounts, sought.path)?;
    let mut holders = Vec::new();
    for Found { holder, process } in found {
        if sought.kill {
            kill(process.as_fd());
        }
        holders.push(Holder {
            killed: sought.kill,
            ..holder
        });
    }
    holders.truncate(NAMED);
    Ok(holders)
}
