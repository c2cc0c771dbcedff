//! Looks in a cage for who uses a mount of a scope's: handed over through the shared workspace.
//!
//! A scope's mount helper is above the scope and has no power over the cage. So this is done by a
//! short-lived process above the cage.

use crate::mount_helper::holders::{MountHolder, find, kill};
use crate::outer;
use ironcage_backend::{Sibling, Sought};
use ironcage_model::Holder;
use ironcage_plan::Plan;
use std::io;
use std::os::fd::AsFd;

/// Holders that are told by name.
const NAMED: usize = 16;

pub(crate) fn seek(plan: &Plan, sibling: &Sibling, sought: &Sought<'_>) -> io::Result<Vec<Holder>> {
    let found = outer::ask(|asker| asker.send(&look(plan, sibling, sought)?, &[]));
    found.map(|(holders, _)| holders)
}

fn look(plan: &Plan, sibling: &Sibling, sought: &Sought<'_>) -> io::Result<Vec<Holder>> {
    outer::enter(plan, sibling.mounts.as_fd())?;
    let found = find(sibling.proc.as_fd(), sought.mounts, sought.path)?;
    let mut holders = Vec::new();
    for MountHolder { holder, process } in found {
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
