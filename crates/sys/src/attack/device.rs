//! Devices by their registers, as a kernel sees them: for a guest whose kernel is the attacker's.

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, pread};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Memory that a device shares with this process. It stays to the end of the process.
#[derive(Debug)]
pub struct SharedMemory {
    start: NonNull<u32>,
    length: usize,
}

fn map(length: usize, flags: i32, file: i32, place: i64) -> io::Result<SharedMemory> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at a place that the kernel chooses; nothing else refers to it.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, file, place) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = NonNull::new(start.cast()).ok_or(Errno::FAULT)?;
    Ok(SharedMemory { start, length })
}

impl SharedMemory {
    /// Registers at a place of the machine's memory.
    pub fn registers(place: u64, length: usize) -> io::Result<SharedMemory> {
        let memory = open("/dev/mem", OFlags::RDWR | OFlags::SYNC, Mode::empty())?;
        let place = i64::try_from(place).map_err(|_| Errno::INVAL)?;
        map(length, libc::MAP_SHARED, memory.as_raw_fd(), place)
    }

    /// Memory of this process that stays where it is, so that a device can be told its place.
    pub fn locked(pages: usize) -> io::Result<SharedMemory> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_LOCKED | libc::MAP_POPULATE;
        map(pages * PAGE, flags, -1, 0)
    }

    /// Where a page of [`SharedMemory::locked`] is in the machine's memory.
    pub fn place(&self, page: usize) -> io::Result<u64> {
        let pages = File::open("/proc/self/pagemap")?;
        let index = (self.start.as_ptr() as usize / PAGE + page) as u64;
        let mut entry = [0; 8];
        pread(&pages, &mut entry, index * 8)?;
        // The lower 55 bits are the number of the page.
        let number = u64::from_le_bytes(entry) & ((1 << 55) - 1);
        Ok(number * PAGE as u64)
    }

    fn word(&self, at: usize) -> Option<NonNull<u32>> {
        let inside = at.is_multiple_of(4) && at + 4 <= self.length;
        // SAFETY: the place is within the mapping, and aligned as its start, which is that of a page.
        inside.then(|| unsafe { self.start.add(at / 4) })
    }

    /// Four bytes, at a multiple of four; 0 beyond the end.
    pub fn read(&self, at: usize) -> u32 {
        let read = |place: NonNull<u32>| {
            // SAFETY: `word` gives places within the mapping, which lives as long as the process.
            unsafe { place.read_volatile() }
        };
        self.word(at).map_or(0, read)
    }

    /// Writes four bytes, at a multiple of four; nothing beyond the end.
    pub fn write(&self, at: usize, value: u32) {
        if let Some(place) = self.word(at) {
            // SAFETY: `word` gives places within the mapping, which lives as long as the process.
            unsafe { place.write_volatile(value) };
        }
    }
}
