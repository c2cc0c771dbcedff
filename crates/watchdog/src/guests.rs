//! Cages that stand beside a cage and use what it has: its scopes and its children.
//!
//! Where a cgroup holds the limits, they are in it. Where a watchdog does, it has to look at their
//! processes and storage too: otherwise a cage would have its limits once more with every child.

use crate::processes::{OpenFiles, ProcMount, ProcessFiles};
use ironcage_model::CageId;
use ironcage_sys::rustix;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

/// Process ids are below 2^22 on every kernel; what is above says whose they are.
const PID_BITS: u32 = 22;
const PID_MASK: u32 = (1 << PID_BITS) - 1;
/// As many as fit above the process id, the cage itself among them.
const MOST: usize = 1 << (u32::BITS - PID_BITS);

/// Who stands beside a cage.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guest {
    /// A scope, by its number.
    Scope(u32),
    /// A child, or a child's child.
    Child(CageId),
}

/// Where to look at one of them.
#[derive(Debug)]
pub struct GuestPlaces {
    pub proc: ProcMount,
    pub tmpfs: OwnedFd,
    /// The list of its System V shared memory.
    pub segments: Option<OwnedFd>,
    /// Where the kernel lists its sockets.
    pub sockets: Option<OwnedFd>,
}

#[derive(Debug, Default)]
pub struct Guests(BTreeMap<Guest, GuestPlaces>);

impl Guests {
    /// Takes one in.
    ///
    /// # Errors
    /// Where there are too many to tell apart.
    pub fn add(&mut self, guest: Guest, places: GuestPlaces) -> io::Result<()> {
        if self.0.len() + 1 >= MOST {
            return Err(Errno::MFILE.into());
        }
        self.0.insert(guest, places);
        Ok(())
    }

    pub fn remove(&mut self, guest: &Guest) {
        self.0.remove(guest);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn places(&self) -> impl Iterator<Item = &GuestPlaces> {
        self.0.values()
    }
}

/// Whether a process is the first one of its cage, which is Ironcage's own.
pub(crate) fn is_first(pid: u32) -> bool {
    pid & PID_MASK == 1
}

/// The processes of a cage and of its guests.
pub struct Together<'a> {
    pub own: &'a dyn ProcessFiles,
    pub guests: &'a Guests,
}

impl Together<'_> {
    fn whose(&self, pid: u32) -> io::Result<(&dyn ProcessFiles, u32)> {
        let index = (pid >> PID_BITS) as usize;
        let files: &dyn ProcessFiles = match index.checked_sub(1) {
            None => self.own,
            Some(guest) => {
                let mut places = self.guests.places();
                &places.nth(guest).ok_or(io::ErrorKind::NotFound)?.proc
            }
        };
        Ok((files, pid & PID_MASK))
    }
}

impl ProcessFiles for Together<'_> {
    fn pids(&self) -> io::Result<Vec<u32>> {
        let mut pids = self.own.pids()?;
        for (index, guest) in self.guests.places().enumerate() {
            let above = u32::try_from(index + 1).unwrap_or(u32::MAX) << PID_BITS;
            match guest.proc.pids() {
                Ok(found) => pids.extend(found.into_iter().map(|pid| above | pid)),
                Err(error) if super::memory::is_blind(&error) => return Err(error),
                // It is gone.
                Err(_) => {}
            }
        }
        Ok(pids)
    }

    fn read(&self, pid: u32, file: &str) -> io::Result<String> {
        let (files, pid) = self.whose(pid)?;
        files.read(pid, file)
    }

    fn open_files(&self, pid: u32) -> io::Result<OpenFiles> {
        let (files, pid) = self.whose(pid)?;
        files.open_files(pid)
    }
}

#[cfg(test)]
mod tests {
    use super::super::processes::anonymous_memory;
    use super::*;
    use std::fs::File;

    fn host() -> ProcMount {
        ProcMount::new(File::open("/proc").unwrap().into(), None)
    }

    fn child(number: u8) -> Guest {
        Guest::Child(CageId::from_entropy([number; 12]))
    }

    fn places() -> GuestPlaces {
        GuestPlaces {
            proc: host(),
            tmpfs: File::open("/dev/shm").unwrap().into(),
            segments: None,
            sockets: None,
        }
    }

    /// The host's own processes stand for those of each cage.
    #[test]
    fn what_guests_use_is_added_while_they_are_there() {
        let own = host();
        let mut guests = Guests::default();
        let sum = |guests: &Guests| anonymous_memory(&Together { own: &own, guests }).unwrap();
        let alone = sum(&guests);
        guests.add(child(1), places()).unwrap();
        guests.add(Guest::Scope(7), places()).unwrap();
        let three = sum(&guests);
        guests.remove(&child(1));
        guests.remove(&Guest::Scope(7));
        assert!(guests.is_empty());
        // Others come and go meanwhile.
        assert!(three > alone * 2 && three < alone * 4, "{alone} {three}");
    }

    #[test]
    fn processes_of_different_cages_are_not_mixed_up() {
        let own = host();
        let mut guests = Guests::default();
        guests.add(child(1), places()).unwrap();
        let together = Together {
            own: &own,
            guests: &guests,
        };
        let pids = together.pids().unwrap();
        let ours = std::process::id();
        let found: Vec<u32> = pids
            .into_iter()
            .filter(|pid| pid & PID_MASK == ours)
            .collect();
        assert_eq!(found, [ours, (1 << PID_BITS) | ours]);
        for pid in found {
            let status = together.read(pid, "status").unwrap();
            assert!(status.contains(&format!("Pid:\t{ours}\n")), "{status}");
        }
        assert!(together.read((2 << PID_BITS) | ours, "status").is_err());
        assert!(is_first(1) && is_first((3 << PID_BITS) | 1) && !is_first(2));
    }
}
