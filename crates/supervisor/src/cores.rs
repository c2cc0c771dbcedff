//! Processor cores that one cage has for itself, among those of its user that ask for it.
//!
//! A core is a file in Ironcage's own directory, locked while a cage has it: when its supervisor
//! is gone, so is the lock, whatever ended it. A core comes with all of its threads.

use crate::RunError;
use ironcage_sys::rustix::fs::{FlockOperation, flock};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

#[derive(Debug)]
pub(crate) struct Cores {
    pub(crate) processors: Vec<u32>,
    _locks: Vec<File>,
}

impl Cores {
    /// Takes whole cores with at least so many processors, or says how many are free.
    pub(crate) fn claim(state: &Path, wanted: u32) -> Result<Cores, RunError> {
        let directory = state.join("cores");
        let failed = |source: std::io::Error| RunError::CoreFile {
            path: directory.clone(),
            source,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(failed)?;
        let mut cores = Cores {
            processors: Vec::new(),
            _locks: Vec::new(),
        };
        for threads in usable_cores().map_err(failed)? {
            if cores.processors.len() >= wanted as usize {
                break;
            }
            let Some(first) = threads.first() else {
                continue;
            };
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .open(directory.join(first.to_string()))
                .map_err(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    cores.processors.extend(threads);
                    cores._locks.push(file);
                }
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        if cores.processors.len() < wanted as usize {
            return Err(RunError::NoCores {
                wanted,
                free: cores.processors.len(),
            });
        }
        Ok(cores)
    }
}

/// The cores of which this process may use every thread, each with its threads.
fn usable_cores() -> std::io::Result<BTreeSet<Vec<u32>>> {
    let allowed = sched_getaffinity(None)?;
    let mut cores = BTreeSet::new();
    for processor in (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)) {
        let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
        let threads = threads_of(&std::fs::read_to_string(path)?);
        if threads
            .iter()
            .all(|thread| allowed.is_set(*thread as usize))
        {
            cores.insert(threads);
        }
    }
    Ok(cores)
}

/// `0,4` or `0-1` as numbers.
fn threads_of(list: &str) -> Vec<u32> {
    let parts = list.trim().split(',');
    let ranges = parts.filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_comes_with_all_of_its_threads() {
        assert_eq!(threads_of("3\n"), [3]);
        assert_eq!(threads_of("0,4\n"), [0, 4]);
        assert_eq!(threads_of("2-3\n"), [2, 3]);
        assert!(threads_of("x").is_empty());
    }

    #[test]
    fn a_core_is_one_cages_until_that_is_gone() {
        let state = tempfile::tempdir().unwrap();
        let all = usable_cores().unwrap();
        let first = Cores::claim(state.path(), 1).unwrap();
        if all.len() > 1 {
            let second = Cores::claim(state.path(), 1).unwrap();
            assert!(
                first
                    .processors
                    .iter()
                    .all(|one| !second.processors.contains(one))
            );
        }
        let more = all.iter().map(Vec::len).sum::<usize>() as u32;
        assert!(matches!(
            Cores::claim(state.path(), more),
            Err(RunError::NoCores { .. })
        ));
        drop(first);
        Cores::claim(state.path(), more).unwrap();
    }
}
