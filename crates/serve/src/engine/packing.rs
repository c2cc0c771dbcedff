//! The count and the bytes of snapshots of a project while others of it are being written: an archive
//! counts with its first byte, and not once it is stored.

use crate::error::{ApiError, ApiResult, Code};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Snapshots of one project, and bytes of all of them.
const MOST_SNAPSHOTS: usize = 256;
const MOST_BYTES: u64 = 16 << 30;

/// What a project uses.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct SnapshotUse {
    pub(super) count: usize,
    pub(super) bytes: u64,
}

/// A project of which archives are being written.
#[derive(Debug, Default)]
struct ProjectPacking {
    writers: usize,
    /// What was stored when the first of them began, and all that was written since: also what was
    /// given up, until the last of them is over.
    used: SnapshotUse,
}

/// The projects of which archives are being written.
#[derive(Debug, Default)]
pub(super) struct Packings(Mutex<HashMap<String, ProjectPacking>>);

/// One archive that is being written, until it is stored or given up.
#[derive(Debug)]
pub(super) struct Packing<'a> {
    packings: &'a Packings,
    project: String,
}

impl Packings {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, ProjectPacking>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an archive. `stored` tells what the project has.
    ///
    /// # Errors
    /// If it has as many snapshots as it may have.
    pub(super) fn begin(
        &self,
        project: &str,
        stored: impl FnOnce() -> ApiResult<SnapshotUse>,
    ) -> ApiResult<Packing<'_>> {
        let mut all = self.lock();
        let used = match all.get(project) {
            Some(packing) => packing.used,
            None => stored()?,
        };
        if used.count >= MOST_SNAPSHOTS {
            let message = format!(
                "project {project} has {} snapshots, as many as it may have",
                used.count
            );
            return Err(ApiError::new(Code::LimitReached, message)
                .hint("delete snapshots that are not needed"));
        }
        let packing = all
            .entry(project.to_owned())
            .or_insert(ProjectPacking { writers: 0, used });
        packing.writers += 1;
        packing.used.count += 1;
        Ok(Packing {
            packings: self,
            project: project.to_owned(),
        })
    }
}

impl Packing<'_> {
    /// Counts bytes before they are written.
    ///
    /// # Errors
    /// If they are more than the project may have.
    pub(super) fn add(&self, bytes: usize) -> ApiResult<()> {
        let mut all = self.packings.lock();
        let used = all.entry(self.project.clone()).or_default();
        let with = used.used.bytes.saturating_add(bytes as u64);
        if with > MOST_BYTES {
            let most = MOST_BYTES >> 30;
            let message = format!("the snapshots of a project have at most {most} GiB");
            return Err(
                ApiError::new(Code::NoSpace, message).hint("delete snapshots that are not needed")
            );
        }
        used.used.bytes = with;
        Ok(())
    }
}

impl Drop for Packing<'_> {
    fn drop(&mut self) {
        let mut all = self.packings.lock();
        let Some(packing) = all.get_mut(&self.project) else {
            return;
        };
        packing.writers = packing.writers.saturating_sub(1);
        if packing.writers == 0 {
            all.remove(&self.project);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(count: usize, bytes: u64) -> ApiResult<SnapshotUse> {
        Ok(SnapshotUse { count, bytes })
    }

    #[test]
    fn archives_that_are_written_at_once_share_what_a_project_may_have() {
        let packings = Packings::default();
        let begin = |project| packings.begin(project, || stored(1, MOST_BYTES - 10));
        let (one, two) = (begin("a").unwrap(), begin("a").unwrap());
        one.add(6).unwrap();
        assert_eq!(two.add(6).unwrap_err().code, Code::NoSpace);
        two.add(4).unwrap();
        // Another project is not held to it.
        begin("b").unwrap().add(10).unwrap();
        // What one of them wrote counts while the other is there, stored or not.
        drop(one);
        assert!(two.add(1).is_err());
        drop(two);
        begin("a").unwrap().add(10).unwrap();
    }

    #[test]
    fn as_many_as_there_may_be_are_begun() {
        let packings = Packings::default();
        let begin = || packings.begin("a", || stored(MOST_SNAPSHOTS - 2, 0));
        let (_one, _two) = (begin().unwrap(), begin().unwrap());
        assert_eq!(begin().unwrap_err().code, Code::LimitReached);
    }
}
