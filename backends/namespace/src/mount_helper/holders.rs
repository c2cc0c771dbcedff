//! Finds the processes of a cage that use a mount: by descriptor, working directory, root, program
//! or mapping.
//!
//! Only names and kills: that somebody uses a mount, or nobody does, is for the kernel to say. It
//! reads the kernel's own files about processes of the agent.

use ironcage_model::Holder;
use ironcage_sys::rustix::fs::{AtFlags, Dir, Mode, OFlags, StatxFlags, openat, readlinkat, statx};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::{Signal, pidfd_send_signal};
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Lines of a list of mappings that are looked at, for each process.
const MAPPINGS: usize = 100_000;

/// A process that uses a mount.
#[derive(Debug)]
pub(crate) struct MountHolder {
    pub(crate) holder: Holder,
    /// Its directory in the process file system: stands for just this process, also when its
    /// number is given to another.
    pub(crate) process: OwnedFd,
}

/// Finds who uses one of these mounts, of which the first is seen at `path` in the cage.
pub(crate) fn find(
    proc: BorrowedFd<'_>,
    mounts: &[u64],
    path: &str,
) -> io::Result<Vec<MountHolder>> {
    let found = examine(proc, |process| uses(process, mounts))?;
    if !found.is_empty() {
        return Ok(found);
    }
    // The list of mappings has no mounts in it: this goes by name, and so comes last.
    examine(proc, |process| mapping(process, path))
}

/// Whether a path stands in lists of mappings as it is.
pub(crate) fn is_plain(path: &str) -> bool {
    !path.chars().any(|char| char.is_control() || char == '\\')
}

/// Finds who can write through one of these mounts, of which the first is seen at `path` in the
/// cage. Its processes are stopped, so what is not found is not there, but for descriptors that lie
/// in a socket: those the kernel tells of.
pub(crate) fn find_writers(
    proc: BorrowedFd<'_>,
    mounts: &[u64],
    path: &str,
) -> io::Result<Vec<MountHolder>> {
    examine(proc, |process| {
        writes(process, mounts).or_else(|| shares(process, path))
    })
}

/// A descriptor for writing on one of these mounts.
fn writes(process: BorrowedFd<'_>, mounts: &[u64]) -> Option<String> {
    for task in names(process, c"task").ok()? {
        let Ok(task) =
            directory(process, c"task").and_then(|tasks| directory(tasks.as_fd(), &task))
        else {
            continue;
        };
        let (Ok(table), Ok(facts)) = (
            directory(task.as_fd(), c"fd"),
            directory(task.as_fd(), c"fdinfo"),
        ) else {
            continue;
        };
        for name in names(table.as_fd(), c".").unwrap_or_default() {
            let there = mount_of(table.as_fd(), &name).is_some_and(|mount| mounts.contains(&mount));
            if there && opened_to_write(facts.as_fd(), &name) {
                let led = readlinkat(&table, name.as_c_str(), Vec::new()).unwrap_or_default();
                let led = String::from_utf8_lossy(led.to_bytes()).into_owned();
                return Some(format!("descriptor of {}", short(&led)));
            }
        }
    }
    None
}

/// Whether a descriptor was opened to write; one of which that is not known counts as such.
fn opened_to_write(facts: BorrowedFd<'_>, name: &CStr) -> bool {
    const ACCESS: u32 = 0o3;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut text = String::new();
    let read = openat(facts, name, flags, Mode::empty())
        .map_err(io::Error::from)
        .and_then(|file| File::from(file).take(4096).read_to_string(&mut text));
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    read.is_err() || flags.is_none_or(|flags| flags & ACCESS != 0)
}

/// A mapping that is shared with a file below a path, whatever it lets through at this moment: that
/// can be changed.
fn shares(process: BorrowedFd<'_>, path: &str) -> Option<String> {
    const SHARED: usize = 3;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(process, "maps", flags, Mode::empty()).ok()?;
    for (count, line) in BufReader::new(File::from(file)).split(b'\n').enumerate() {
        let line = line.ok()?;
        if count >= MAPPINGS {
            return Some("more mappings than can be looked through".into());
        }
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let shared = fields.nth(1).and_then(|rights| rights.get(SHARED)) == Some(&b's');
        let name = fields.nth(3).unwrap_or_default().trim_ascii_start();
        let name = Path::new(std::ffi::OsStr::from_bytes(name));
        if shared && name.starts_with(path) {
            return Some(format!("mapping of {}", short(&name.to_string_lossy())));
        }
    }
    None
}

fn examine(
    proc: BorrowedFd<'_>,
    uses: impl Fn(BorrowedFd<'_>) -> Option<String>,
) -> io::Result<Vec<MountHolder>> {
    let mut found = Vec::new();
    for name in names(proc, c".")? {
        let Some(pid) = number(&name).filter(|pid| *pid != 1) else {
            continue;
        };
        // It may be gone by now.
        let Ok(process) = directory(proc, &name) else {
            continue;
        };
        if let Some(what) = uses(process.as_fd()) {
            found.push(MountHolder {
                holder: Holder {
                    pid,
                    program: program(process.as_fd()),
                    what,
                    killed: false,
                },
                process,
            });
        }
    }
    Ok(found)
}

/// The processes that call themselves so.
pub(crate) fn named(proc: BorrowedFd<'_>, name: &str) -> io::Result<Vec<OwnedFd>> {
    let processes = names(proc, c".")?;
    let mut found = Vec::new();
    for process in processes {
        // It may be gone by now.
        if let Ok(process) = directory(proc, &process)
            && program(process.as_fd()) == name
        {
            found.push(process);
        }
    }
    Ok(found)
}

/// Kills a process that was found.
pub(crate) fn kill(process: BorrowedFd<'_>) {
    // It can only fail because it is gone.
    let _ = pidfd_send_signal(process, Signal::KILL);
}

fn directory(at: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

fn names(at: BorrowedFd<'_>, name: &CStr) -> io::Result<Vec<std::ffi::CString>> {
    let directory = directory(at, name)?;
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if number(entry.file_name()).is_some() {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

fn number(name: &CStr) -> Option<u32> {
    name.to_str().ok()?.parse().ok()
}

fn program(process: BorrowedFd<'_>) -> String {
    let mut text = Vec::new();
    if let Ok(file) = openat(
        process,
        "comm",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        let _ = File::from(file).take(64).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).trim_end().to_owned()
}

/// On which mount something is that a link of the process file system leads to.
fn mount_of(at: BorrowedFd<'_>, name: &CStr) -> Option<u64> {
    let stat = statx(at, name, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
    Some(stat.stx_mnt_id)
}

fn uses(process: BorrowedFd<'_>, mounts: &[u64]) -> Option<String> {
    let on = |at: BorrowedFd<'_>, name: &CStr| {
        mount_of(at, name).is_some_and(|mount| mounts.contains(&mount))
    };
    // Threads may have descriptors and directories of their own.
    for task in names(process, c"task").ok()? {
        let Ok(task) =
            directory(process, c"task").and_then(|tasks| directory(tasks.as_fd(), &task))
        else {
            continue;
        };
        for (link, what) in [
            (c"cwd", "working directory"),
            (c"root", "root directory"),
            (c"exe", "program"),
        ] {
            if on(task.as_fd(), link) {
                return Some(what.to_owned());
            }
        }
        let Ok(table) = directory(task.as_fd(), c"fd") else {
            continue;
        };
        for name in names(table.as_fd(), c".").unwrap_or_default() {
            if on(table.as_fd(), &name) {
                let led = readlinkat(&table, name.as_c_str(), Vec::new()).unwrap_or_default();
                let led = String::from_utf8_lossy(led.to_bytes()).into_owned();
                return Some(format!("descriptor of {}", short(&led)));
            }
        }
    }
    None
}

/// At most so much of a name as a record bears.
fn short(text: &str) -> String {
    text.chars().take(200).collect()
}

/// A file below a path of the cage that a process has mapped.
fn mapping(process: BorrowedFd<'_>, path: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(process, "maps", flags, Mode::empty()).ok()?;
    for line in BufReader::new(File::from(file)).split(b'\n').take(MAPPINGS) {
        let line = line.ok()?;
        // Five fields, then the name.
        let name = line
            .splitn(6, |byte| *byte == b' ')
            .nth(5)
            .unwrap_or_default();
        let name = Path::new(std::ffi::OsStr::from_bytes(name.trim_ascii_start()));
        if name.starts_with(path) {
            return Some(format!("mapping of {}", short(&name.to_string_lossy())));
        }
    }
    None
}
