//! Reading the cage's processes from outside, through a descriptor of the cage's own `/proc`.
//!
//! `status` and `stat` are readable for everybody. `smaps_rollup` and `smaps` need
//! CAP_SYS_PTRACE over the process: the supervisor has it as the owner of the cage's user
//! namespace, also when a program makes itself non-dumpable. `fd` of such a program belongs to
//! the root of that namespace, or to the host's where it has none, and is then denied to a
//! supervisor without privileges.

use ironcage_backend::descendants::{self, Process};
use ironcage_sys::rustix;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, StatxFlags};
use rustix::process::Pid;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

/// An open file without a name, held by a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nameless {
    /// Whether it is a memfd; otherwise a deleted file.
    pub memory: bool,
    /// Major and minor number of its device.
    pub device: (u32, u32),
    pub inode: u64,
    /// Bytes that it occupies.
    pub bytes: u64,
}

/// What a look at a process's descriptors found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenFiles {
    /// Open files without a name.
    pub nameless: Vec<Nameless>,
    /// How many descriptors were looked at.
    pub seen: usize,
}

/// The processes of a cage, as files: the kernel's, or those of a test.
pub trait ProcessFiles {
    fn pids(&self) -> io::Result<Vec<u32>>;
    /// A file of a process.
    fn read(&self, pid: u32, file: &str) -> io::Result<String>;
    /// The files without a name that a process has open.
    fn open_files(&self, pid: u32) -> io::Result<OpenFiles>;
}

/// A mounted proc file system.
#[derive(Debug, Clone)]
pub struct ProcMount {
    directory: Rc<OwnedFd>,
    /// Only processes below this one are the cage's.
    above: Option<Pid>,
}

impl ProcMount {
    /// Reads through this directory, which was opened for reading. Where others than the cage's
    /// processes are seen there, `above` is the one that all of the cage's are below.
    pub fn new(directory: OwnedFd, above: Option<Pid>) -> ProcMount {
        ProcMount {
            directory: Rc::new(directory),
            above,
        }
    }

    fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        // Names are ours: a number and a file of the kernel, none of them chosen in the cage.
        Ok(rustix::fs::openat(
            &self.directory,
            path,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
        )?)
    }
}

impl ProcessFiles for ProcMount {
    fn pids(&self) -> io::Result<Vec<u32>> {
        if let Some(above) = self.above {
            let below = descendants::below(self.directory.as_fd(), above)?;
            let number = |process: &Process| process.pid.as_raw_nonzero().get().unsigned_abs();
            return Ok(below.iter().map(number).collect());
        }
        let mut pids = Vec::new();
        // A directory of its own: `Dir` moves the offset of the descriptor it is given.
        let directory = self.open(".", OFlags::RDONLY | OFlags::DIRECTORY)?;
        for entry in Dir::new(directory)? {
            let entry = entry?;
            if let Some(pid) = entry
                .file_name()
                .to_str()
                .ok()
                .and_then(|name| name.parse().ok())
            {
                pids.push(pid);
            }
        }
        Ok(pids)
    }

    fn read(&self, pid: u32, file: &str) -> io::Result<String> {
        let file = self.open(&format!("{pid}/{file}"), OFlags::RDONLY)?;
        read_all(&file)
    }

    fn open_files(&self, pid: u32) -> io::Result<OpenFiles> {
        let directory = self.open(&format!("{pid}/fd"), OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut found = OpenFiles::default();
        let mut target = Vec::with_capacity(256);
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            found.seen += 1;
            let Ok(link) = rustix::fs::readlinkat(&directory, entry.file_name(), target) else {
                target = Vec::with_capacity(256);
                continue;
            };
            target = link.into_bytes();
            if !target.ends_with(b" (deleted)") {
                continue;
            }
            // Follows the magic link: the very file, whatever its former name says.
            let mask = StatxFlags::BASIC_STATS;
            let Ok(stat) = rustix::fs::statx(&directory, entry.file_name(), AtFlags::empty(), mask)
            else {
                continue;
            };
            if stat.stx_nlink == 0 {
                found.nameless.push(Nameless {
                    memory: target.starts_with(b"/memfd:"),
                    device: (stat.stx_dev_major, stat.stx_dev_minor),
                    inode: stat.stx_ino,
                    bytes: stat.stx_blocks.saturating_mul(512),
                });
            }
        }
        Ok(found)
    }
}

pub(crate) fn read_all(file: impl AsFd) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(4096);
    loop {
        bytes.reserve(4096);
        if rustix::io::read(file.as_fd(), rustix::buffer::spare_capacity(&mut bytes))? == 0 {
            break;
        }
    }
    // Names of programs in these files may be any bytes.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The number of kilobytes after a name, in bytes.
pub(crate) fn kilobytes(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?.strip_prefix(':')?;
        let number = rest.split_ascii_whitespace().next()?;
        number.parse::<u64>().ok()?.checked_mul(1024)
    })
}

/// Processor time of all processes and of the children they have waited for, in clock ticks: for
/// telling an idle cage from a busy one.
pub fn processor_ticks(processes: &dyn ProcessFiles) -> io::Result<u64> {
    let mut total = 0u64;
    for pid in processes.pids()? {
        if let Ok(stat) = processes.read(pid, "stat") {
            total = total.saturating_add(stat_ticks(&stat));
        }
    }
    Ok(total)
}

/// Anonymous memory of all processes, in bytes.
pub fn anonymous_memory(processes: &dyn ProcessFiles) -> io::Result<u64> {
    let mut total = 0u64;
    for pid in processes.pids()? {
        if let Ok(status) = processes.read(pid, "status") {
            let bytes = kilobytes(&status, "RssAnon").unwrap_or(0);
            total = total.saturating_add(bytes);
        }
    }
    Ok(total)
}

/// Processes and threads of the cage; no further than `enough`.
pub fn tasks(processes: &dyn ProcessFiles, enough: usize) -> usize {
    let pids = processes.pids().unwrap_or_default();
    // Threads are asked for only where they decide.
    let mut count = pids.len();
    for pid in pids {
        if count >= enough {
            break;
        }
        if let Ok(stat) = processes.read(pid, "stat") {
            count += stat_threads(&stat).saturating_sub(1);
        }
    }
    count
}

/// Field 20 of `stat`.
fn stat_threads(stat: &str) -> usize {
    let after_name = stat.rsplit_once(')').map(|(_, rest)| rest);
    after_name
        .and_then(|rest| rest.split_ascii_whitespace().nth(17)?.parse().ok())
        .unwrap_or(1)
}

/// Fields 14 to 17 of `stat`. The name before them, in brackets, may hold anything, brackets too.
fn stat_ticks(stat: &str) -> u64 {
    let Some((_, after_name)) = stat.rsplit_once(')') else {
        return 0;
    };
    let fields = after_name.split_ascii_whitespace().skip(11).take(4);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    fn own_proc() -> ProcMount {
        ProcMount::new(File::open("/proc").unwrap().into(), None)
    }

    #[test]
    fn a_memfd_and_a_deleted_file_of_this_process_are_found_and_a_named_file_is_not() {
        let proc = own_proc();
        let own = std::process::id();
        let memory = rustix::fs::memfd_create("hidden", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        File::from(memory.try_clone().unwrap())
            .write_all(&vec![1; 1 << 20])
            .unwrap();
        let path = std::env::temp_dir().join(format!("ironcage-nameless-{own}"));
        let mut file = File::create(&path).unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
        let before = proc.open_files(own).unwrap().nameless;
        std::fs::remove_file(&path).unwrap();
        let after = proc.open_files(own).unwrap().nameless;
        let memory_inode = rustix::fs::fstat(&memory).unwrap().st_ino;
        let found =
            |list: &[Nameless], inode| list.iter().find(|file| file.inode == inode).copied();
        let memfd = found(&before, memory_inode).unwrap();
        assert!(memfd.memory && memfd.bytes == 1 << 20);
        assert_eq!(found(&before, inode), None);
        let deleted = found(&after, inode).unwrap();
        assert!(!deleted.memory && deleted.bytes >= 1 << 20);
    }

    #[test]
    fn this_process_is_listed_and_its_memory_is_readable() {
        let proc = own_proc();
        let own = std::process::id();
        assert!(proc.pids().unwrap().contains(&own));
        let status = proc.read(own, "status").unwrap();
        assert!(kilobytes(&status, "RssAnon").unwrap() > 0);
        let rollup = proc.read(own, "smaps_rollup").unwrap();
        assert!(kilobytes(&rollup, "Pss_Anon").unwrap() > 0);
    }

    #[test]
    fn a_program_cannot_disturb_the_numbers_by_its_name() {
        let stat = "7 (x) 9 9 (y) S 1 7 7 0 -1 0 0 0 0 0 11 22 33 44 20 0";
        assert_eq!(stat_ticks(stat), 110);
        assert_eq!(stat_ticks("nothing"), 0);
        let stat = "7 (x) 9 (y) S 1 7 7 0 -1 0 0 0 0 0 11 22 33 44 20 0 5 0";
        assert_eq!((stat_threads(stat), stat_threads("nothing")), (5, 1));
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "Name:\tRssAnon\nVmRSS:\t  100 kB\nRssAnon:\t   60 kB\n";
        assert_eq!(kilobytes(text, "RssAnon"), Some(60 << 10));
        assert_eq!(kilobytes(text, "Rss"), None);
    }
}
