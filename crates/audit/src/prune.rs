//! Removing old records, with their heads.
//!
//! Never one that is still being written, and never one that was changed: that is evidence,
//! and goes by hand.

use crate::containers::is_kept;
use crate::error::Error;
use crate::place::{head_path, log_path};
use crate::query::list;
use crate::reader::open_to_read;
use crate::verify::{Verdict, verify};
use ironcage_model::CageId;
use ironcage_sys::rustix;
use rustix::fs::FlockOperation;
use std::path::Path;
use std::time::SystemTime;

/// Which records go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prune {
    /// Those whose last line was written before this moment.
    Before(SystemTime),
    /// All but so many, by the time of their last line.
    AllBut(usize),
}

/// What became of the records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Removed, or to be removed where nothing was to be done.
    pub removed: Vec<CageId>,
    /// Would have gone, but are still being written.
    pub running: Vec<CageId>,
    /// Would have gone, but are not as they were written.
    pub broken: Vec<CageId>,
    /// How many stay for their age or number.
    pub kept: usize,
}

/// Removes records; with `dry` only says which.
pub fn prune(dir: &Path, which: Prune, dry: bool) -> Result<Pruned, Error> {
    let mut written = Vec::new();
    for heading in list(dir)? {
        let path = log_path(dir, &heading.id);
        let time = std::fs::symlink_metadata(&path).and_then(|metadata| metadata.modified());
        match time {
            Ok(time) => written.push((time, heading.id)),
            // Somebody else removed it meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::Read { path, source }),
        }
    }
    written.sort_by(|a, b| b.cmp(a));
    let mut pruned = Pruned::default();
    for (place, (time, id)) in written.into_iter().enumerate() {
        let goes = match which {
            Prune::Before(moment) => time < moment,
            Prune::AllBut(count) => place >= count,
        };
        if goes {
            remove(dir, id, dry, &mut pruned)?;
        } else {
            pruned.kept += 1;
        }
    }
    Ok(pruned)
}

fn remove(dir: &Path, id: CageId, dry: bool, pruned: &mut Pruned) -> Result<(), Error> {
    let path = log_path(dir, &id);
    let log = match open_to_read(&path) {
        Ok(Some(log)) => log,
        Ok(None) => return Ok(()),
        Err(Error::NotAFile { .. }) => {
            pruned.broken.push(id);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    match verify(dir, &id)? {
        Verdict::Intact { running: true, .. } => {
            pruned.running.push(id);
            return Ok(());
        }
        Verdict::Broken(_) => {
            pruned.broken.push(id);
            return Ok(());
        }
        Verdict::Intact { .. } | Verdict::TailUnproven(_) => {}
    }
    if is_kept(dir, &id)? {
        pruned.running.push(id);
        return Ok(());
    }
    // Its writer holds this lock as long as it lives; held here, nobody begins to write.
    match rustix::fs::flock(&log, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            pruned.running.push(id);
            return Ok(());
        }
        Err(errno) => {
            let source = errno.into();
            return Err(Error::Read { path, source });
        }
    }
    if !dry {
        // The head first: a log without one is an old record with an unproven tail, a head
        // without a log would look like a record that somebody took away.
        for path in [head_path(dir, &id), path] {
            match std::fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(Error::Remove { path, source }),
            }
        }
    }
    pruned.removed.push(id);
    Ok(())
}
