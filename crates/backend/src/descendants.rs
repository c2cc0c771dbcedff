//! The processes below one process, where no pid namespace holds them together.
//!
//! Whoever made them is a subreaper: what loses its parent becomes its child, so everything
//! below it stays below it. A list is old the moment it is made; so signals go through a handle
//! that is checked after it was opened, and stopping goes on until a look finds nothing new:
//! what is stopped keeps its place in the bound on processes, so a fork bomb runs out of them.

use ironcage_sys::rustix::fs::{Dir, Mode, OFlags, openat};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::BorrowedFd;

/// One process: its id, and when it started, by which it is known from a later one with that id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process {
    pub pid: Pid,
    started: u64,
}

/// What `stat` of a process says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    parent: i32,
    started: u64,
}

/// All processes below one, itself not among them, as a process file system shows them.
pub fn below(proc: BorrowedFd<'_>, root: Pid) -> io::Result<Vec<Process>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(proc, ".", flags, Mode::empty())?;
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for entry in Dir::new(directory)? {
        let entry = entry?;
        let number = entry.file_name().to_str().ok().and_then(|n| n.parse().ok());
        let Some(pid) = number.and_then(Pid::from_raw) else {
            continue;
        };
        // A process that is gone by now is below nobody.
        if let Ok(stat) = stat(proc, pid) {
            let process = Process {
                pid,
                started: stat.started,
            };
            children.entry(stat.parent).or_default().push(process);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![root.as_raw_nonzero().get()];
    while let Some(parent) = next.pop() {
        let below = children.remove(&parent).unwrap_or_default();
        next.extend(below.iter().map(|child| child.pid.as_raw_nonzero().get()));
        found.extend(below);
    }
    Ok(found)
}

fn stat(proc: BorrowedFd<'_>, pid: Pid) -> io::Result<Stat> {
    let path = format!("{}/stat", pid.as_raw_nonzero());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(proc, path, flags, Mode::empty())?;
    // The name in it is at most sixteen bytes: all of it fits.
    let mut buffer = [0_u8; 1024];
    let read = ironcage_sys::rustix::io::read(&file, &mut buffer)?;
    let text = String::from_utf8_lossy(buffer.get(..read).unwrap_or_default());
    parse(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Fields 4 and 22. The name before them, in brackets, may hold anything, brackets too.
fn parse(stat: &str) -> Option<Stat> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(1);
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some(Stat { parent, started })
}

/// Sends a signal to one process; nothing where it is gone or its id is another's by now.
pub fn signal(proc: BorrowedFd<'_>, process: Process, signal: Signal) -> io::Result<()> {
    let handle = match pidfd_open(process.pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    // Looked at through its id after the handle was made: the handle is of that process.
    match stat(proc, process.pid) {
        Ok(stat) if stat.started == process.started => {}
        _ => return Ok(()),
    }
    match pidfd_send_signal(&handle, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Stops every process below one but those spared, until a look finds nothing new.
pub fn stop(proc: BorrowedFd<'_>, root: Pid, spared: &[Pid]) -> io::Result<()> {
    let mut stopped = HashSet::new();
    loop {
        let mut new = false;
        for process in below(proc, root)? {
            if !spared.contains(&process.pid) && stopped.insert(process) {
                new = true;
                signal(proc, process, Signal::STOP)?;
            }
        }
        if !new {
            return Ok(());
        }
    }
}

/// Sends a signal to every process below one but those spared, as one look finds them.
pub fn signal_each(
    proc: BorrowedFd<'_>,
    root: Pid,
    spared: &[Pid],
    sent: Signal,
) -> io::Result<()> {
    for process in below(proc, root)? {
        if !spared.contains(&process.pid) {
            signal(proc, process, sent)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::process::Command;

    #[test]
    fn a_program_cannot_disturb_the_fields_by_its_name() {
        let rest = "S 7 0 0 0 -1 0 0 0 0 0 11 22 33 44 20 0 1 0 4711 0 0";
        let stat = parse(&format!("9 (x) 1 ) 2 (y) {rest}")).unwrap();
        assert_eq!((stat.parent, stat.started), (7, 4711));
        assert_eq!(parse("nothing"), None);
    }

    #[test]
    fn a_child_is_below_its_parent_and_gets_its_signal_and_a_stranger_with_its_id_does_not() {
        let proc = File::open("/proc").unwrap();
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let own = ironcage_sys::rustix::process::getpid();
        let found = below(proc.as_fd(), own).unwrap();
        let process = *found.iter().find(|process| process.pid == pid).unwrap();
        assert!(found.iter().all(|process| process.pid != own));
        let stranger = Process {
            started: process.started + 1,
            ..process
        };
        signal(proc.as_fd(), stranger, Signal::KILL).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        signal(proc.as_fd(), process, Signal::KILL).unwrap();
        assert_eq!(child.wait().unwrap().code(), None);
        signal(proc.as_fd(), process, Signal::KILL).unwrap();
    }
}
