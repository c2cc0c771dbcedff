//! Observes what a command uses, in a run that is observed: files, programs, sockets, calls of
//! groups.
//!
//! The filter reports these calls, and each is carried out whatever is read here: nothing is
//! decided or granted by it, so it does not matter that the caller can change a path after it was
//! read. The paths are the cage's word. They are resolved in the cage's own view, by descriptor,
//! and nothing is opened but by `O_PATH` and, of a regular file that is executed, its first line.
//! The number of observations is bounded.

use ironcage_catalog::syscalls;
use ironcage_model::{Lease, Observation, Resource, Right, Use};
use ironcage_plan::observed::{Named, Touch, call};
use ironcage_plan::{Located, PathStatus, Plan, locate};
use ironcage_sys::rustix::fs::{
    FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2, readlink,
};
use ironcage_sys::rustix::io::{Errno, pread, read};
use ironcage_sys::seccomp::{self, Notification};
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::hash::BuildHasher as _;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

/// Uses of one kind that are recorded one by one; then what they lie in is recorded. Each kind has
/// its own budget, found and not found: junk names that are looked for leave writes their lines.
const KINDS: usize = 1024;
/// A longer path is told by what it lies in: the record is bounded in bytes too.
const LONG: usize = 512;
/// Different uses that are remembered as known.
const KNOWN: usize = 1 << 16;
/// How far scripts that are interpreters of scripts are followed, as by the kernel.
const INTERPRETERS: usize = 5;
/// The longest path, as for the kernel.
const PATH: usize = 4096;
const ACCESS_MODE: u64 = libc::O_ACCMODE as u64;
const CREATES: u64 = (libc::O_CREAT | libc::O_TRUNC) as u64;
const AF_UNIX: u16 = libc::AF_UNIX as u16;
/// What PID 1 of a cage calls itself, and so does what it has forked and not yet executed.
const INIT: &str = "ironcage-init";
/// Beyond this the kernel does not look for an interpreter either.
const FIRST_LINE: usize = 256;

/// A path that a lease has put into the view, which the plan does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeasedPath {
    pub(crate) path: PathBuf,
    pub(crate) right: Right,
}

impl LeasedPath {
    /// The path of a lease; `None` where it is of something else.
    pub(crate) fn of(lease: &Lease) -> Option<Self> {
        match &lease.resource {
            Resource::Path { path, right } => Some(LeasedPath {
                path: path.into(),
                right: *right,
            }),
            _ => None,
        }
    }
}

/// The lease that a path lies in.
fn lease_around<'a>(leased: &'a [LeasedPath], path: &Path) -> Option<&'a LeasedPath> {
    let around = leased.iter().filter(|lease| path.starts_with(&lease.path));
    // A deeper lease may give more than the one around it.
    around.max_by_key(|lease| (lease.path.as_os_str().len(), lease.right))
}

/// What one run was seen to use.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    /// Hashes of what was looked at already.
    known: HashSet<u64>,
    hasher: RandomState,
    told: HashMap<(Use, bool), HashSet<PathBuf>>,
    left_out: u64,
}

impl Observer {
    /// What is new in a call that waits for its answer.
    pub(crate) fn look(
        &mut self,
        plan: &Plan,
        leased: &[LeasedPath],
        listener: BorrowedFd<'_>,
        notification: &Notification,
        program: &str,
    ) -> Vec<Observation> {
        let mut seen = Vec::new();
        let Ok(number) = u32::try_from(notification.number) else {
            return seen;
        };
        let Some(named) = call(number) else {
            let name = syscalls::name(number).unwrap_or("?");
            self.tell(&mut seen, Use::Call, name.into(), program, true, false);
            return seen;
        };
        let Some(caller) = Caller::of(listener, notification) else {
            return seen;
        };
        for one in named {
            let Some((how, path)) = caller.named(one) else {
                continue;
            };
            if program == INIT && how != Use::Execute {
                continue;
            }
            let mut next = Some(path);
            for _ in 0..INTERPRETERS {
                let Some(path) = next else { break };
                next = self.path((plan, leased), &caller, (how, path), program, &mut seen);
            }
        }
        seen
    }

    /// Returns the interpreter of a script that is executed.
    fn path(
        &mut self,
        (plan, leased): (&Plan, &[LeasedPath]),
        caller: &Caller,
        (how, path): (Use, PathBuf),
        program: &str,
        seen: &mut Vec<Observation>,
    ) -> Option<PathBuf> {
        // What was tried before a lease is not the same use as with it.
        let mark = self.hasher.hash_one((how, &path, leased.len()));
        if self.known.contains(&mark) {
            return None;
        }
        if self.known.len() < KNOWN {
            self.known.insert(mark);
        }
        let (real, found, handle) = caller.resolve(&path);
        let located = locate(plan, &real);
        let lease = lease_around(leased, &real);
        let found = match (how, lease) {
            (Use::Write, Some(lease)) => handle.is_some() && lease.right == Right::Write,
            (_, Some(_)) => found,
            (Use::Write, None) => handle.is_some() && located.standing.is_writable(),
            (_, None) => found && located.standing != PathStatus::Hidden,
        };
        // Reading a file of the kernel's can do anything.
        let kernels = matches!(located.standing, PathStatus::Kernel | PathStatus::Device);
        let script = handle.filter(|_| how == Use::Execute && found && !kernels);
        let interpreter = script.as_ref().and_then(interpreter);
        let mut telling = match lease {
            Some(_) => PathReport::Itself,
            None => telling(plan, &located, &real, found),
        };
        let long = real.as_os_str().len() > LONG;
        let kind = self.told.entry((how, found)).or_default();
        if telling == PathReport::Itself && (long || kind.len() >= KINDS) {
            telling = PathReport::Around;
        }
        let what = match telling {
            PathReport::Nothing => return interpreter,
            PathReport::Itself => real,
            PathReport::Around => located.by.unwrap_or_else(|| top(&real)),
        };
        let below = telling == PathReport::Around;
        self.tell(seen, how, what.into_os_string(), program, found, below);
        interpreter
    }

    /// Uses that were not recorded because there were too many.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }

    fn tell(
        &mut self,
        seen: &mut Vec<Observation>,
        how: Use,
        what: OsString,
        program: &str,
        found: bool,
        below: bool,
    ) {
        let kind = self.told.entry((how, found)).or_default();
        if kind.contains(Path::new(&what)) {
            return;
        }
        // What stands for the rest is bounded too: by the items of the plan, and by names at the
        // top of the tree, of which a caller could make up many.
        if kind.len() >= 2 * KINDS {
            self.left_out += 1;
            return;
        }
        kind.insert(what.clone().into());
        seen.push(Observation {
            how,
            what: what.to_string_lossy().into_owned(),
            program: program.to_owned(),
            found,
            below,
        });
    }
}

/// What is told of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathReport {
    Nothing,
    Itself,
    Around,
}

/// Whether a path says something about the policy: the system, the kernel's own and temporary
/// files are in every cage. Of toolchains and caches it is enough that they are used.
fn telling(plan: &Plan, located: &Located, path: &Path, found: bool) -> PathReport {
    let home = plan.command.env.iter();
    let home = home.filter(|item| item.what.name == "HOME");
    let in_home = home
        .map(|item| Path::new(&item.what.value))
        .any(|home| path != home && path.starts_with(home));
    let origin = located.origin.as_deref().unwrap_or_default();
    let begins = |words: &[&str]| words.iter().any(|word| origin.starts_with(word));
    let told = match &located.standing {
        PathStatus::Kernel | PathStatus::Device | PathStatus::Made | PathStatus::Leads => false,
        // What is looked for in vain may be there on the host.
        PathStatus::Ephemeral => in_home || !found,
        PathStatus::Absent => {
            let mut system = ["/proc", "/sys", "/dev", "/usr"].iter();
            system.all(|place| !path.starts_with(place))
        }
        _ => !begins(&["built in", "system:"]),
    };
    match (told, begins(&["toolchain", "cache", "state"])) {
        (false, _) => PathReport::Nothing,
        (true, false) => PathReport::Itself,
        // Where a program is looked for, and is not, nothing is used.
        (true, true) if found => PathReport::Around,
        (true, true) => PathReport::Nothing,
    }
}

/// The two uppermost names of a path.
fn top(path: &Path) -> PathBuf {
    path.components().take(3).collect()
}

/// The process that waits in a call.
struct Caller {
    pid: u32,
    memory: OwnedFd,
    root: OwnedFd,
    arguments: [u64; 6],
}

impl Caller {
    /// `None` when it is gone, and its number perhaps another's.
    fn of(listener: BorrowedFd<'_>, notification: &Notification) -> Option<Caller> {
        let pid = notification.pid;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let memory = open(format!("/proc/{pid}/mem"), flags, Mode::empty()).ok()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(format!("/proc/{pid}/root"), flags, Mode::empty()).ok()?;
        seccomp::still_waits(listener, notification.id).then_some(Caller {
            pid,
            memory,
            root,
            arguments: notification.arguments,
        })
    }

    fn argument(&self, index: u8) -> u64 {
        let found = self.arguments.get(usize::from(index));
        found.copied().unwrap_or_default()
    }

    fn bytes(&self, address: u64, most: usize) -> Option<Vec<u8>> {
        let mut buffer = vec![0; most];
        let count = pread(&self.memory, &mut buffer[..], address).ok()?;
        buffer.truncate(count);
        Some(buffer)
    }

    /// A path in its memory; `None` where there is none, or an empty one.
    fn text(&self, address: u64) -> Option<PathBuf> {
        let mut bytes = self.bytes(address, PATH)?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        bytes.truncate(end);
        (!bytes.is_empty()).then(|| PathBuf::from(OsString::from_vec(bytes)))
    }

    /// How something is used, and its path from the root of the caller.
    fn named(&self, named: &Named) -> Option<(Use, PathBuf)> {
        let address = self.argument(named.path);
        let path = match named.touch {
            Touch::Connect => self.socket(address)?,
            _ => self.text(address)?,
        };
        let how = match named.touch {
            Touch::Look => Use::Look,
            Touch::Read => Use::Read,
            Touch::Write => Use::Write,
            Touch::Execute => Use::Execute,
            Touch::Connect => Use::Connect,
            Touch::Open(flags) => opened(self.argument(flags)),
            Touch::OpenHow(how) => {
                let flags = self.bytes(self.argument(how), 8)?;
                opened(u64::from_ne_bytes(flags.try_into().ok()?))
            }
        };
        if path.is_absolute() {
            return Some((how, path));
        }
        // The low half of the register is the descriptor.
        let directory = named.at.map(|at| self.argument(at) as u32 as i32);
        let link = match directory {
            None | Some(libc::AT_FDCWD) => format!("/proc/{}/cwd", self.pid),
            Some(descriptor) => format!("/proc/{}/fd/{descriptor}", self.pid),
        };
        let base = readlink(link, Vec::new()).ok()?;
        let base = PathBuf::from(OsStr::from_bytes(base.as_bytes()));
        base.is_absolute().then(|| (how, base.join(path)))
    }

    /// The path of a Unix socket's address.
    fn socket(&self, address: u64) -> Option<PathBuf> {
        const LONGEST: usize = 110;
        let length = usize::try_from(self.argument(2)).ok()?.min(LONGEST);
        let bytes = self.bytes(address, length)?;
        let (family, path) = bytes.split_at_checked(2)?;
        if u16::from_ne_bytes(family.try_into().ok()?) != AF_UNIX {
            return None;
        }
        let path = path.split(|byte| *byte == 0).next()?;
        // Empty: one of the network namespace's own, which has no path.
        (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(path)))
    }

    /// The path without links, as far as it is there; whether all of it is; and the last part
    /// that is, unless that is more than the name itself away.
    fn resolve(&self, path: &Path) -> (PathBuf, bool, Option<OwnedFd>) {
        let mut missing: Vec<&OsStr> = Vec::new();
        let mut rest = path;
        loop {
            match self.open(rest) {
                Ok((handle, mut real)) => {
                    let near = missing.len() <= 1;
                    real.extend(missing.iter().rev());
                    let found = missing.is_empty();
                    return (real, found, near.then_some(handle));
                }
                Err(_) => match (rest.file_name(), rest.parent()) {
                    (Some(name), Some(parent)) => {
                        missing.push(name);
                        rest = parent;
                    }
                    _ => return (normal(path), false, None),
                },
            }
        }
    }

    fn open(&self, path: &Path) -> Result<(OwnedFd, PathBuf), Errno> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let handle = openat2(&self.root, path, flags, Mode::empty(), resolve)?;
        let link = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
        let real = readlink(link, Vec::new())?;
        let real = PathBuf::from(OsStr::from_bytes(real.as_bytes()));
        Ok((handle, real))
    }
}

fn opened(flags: u64) -> Use {
    match flags & ACCESS_MODE != 0 || flags & CREATES != 0 {
        true => Use::Write,
        false => Use::Read,
    }
}

/// Without `.` and `..`, as text.
fn normal(path: &Path) -> PathBuf {
    let mut real = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir => {
                real.pop();
            }
            Component::Normal(name) => real.push(name),
            _ => {}
        }
    }
    real
}

/// The interpreter that the first line of a script names.
fn interpreter(file: &OwnedFd) -> Option<PathBuf> {
    let is_file = |fd: &OwnedFd| {
        fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
    };
    if !is_file(file) {
        return None;
    }
    let link = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = open(link, flags, Mode::empty()).ok()?;
    let mut line = [0; FIRST_LINE];
    let count = read(&file, &mut line[..]).ok()?;
    let line = line.get(..count)?.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
    let name = line.split(u8::is_ascii_whitespace).next()?;
    let path = Path::new(OsStr::from_bytes(name));
    path.is_absolute().then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn junk_of_one_use_leaves_the_others_their_lines_and_is_counted() {
        let mut observer = Observer::default();
        let mut tell = |how: Use, what: String, found: bool| {
            let mut seen = Vec::new();
            observer.tell(&mut seen, how, what.into(), "sh", found, true);
            seen.len()
        };
        for number in 0..3 * KINDS {
            let told = tell(Use::Look, format!("/junk{number}"), false);
            assert_eq!(told, usize::from(number < 2 * KINDS), "{number}");
        }
        assert_eq!(tell(Use::Write, "/srv/data".into(), true), 1);
        assert_eq!(tell(Use::Look, "/srv/data".into(), true), 1);
        assert_eq!(tell(Use::Call, "bpf".into(), true), 1);
        // The same again is neither told nor left out.
        assert_eq!(tell(Use::Write, "/srv/data".into(), true), 0);
        assert_eq!(observer.left_out(), KINDS as u64);
    }

    #[test]
    fn a_path_belongs_to_the_deepest_lease_around_it() {
        let lease = |path: &str, right| LeasedPath {
            path: path.into(),
            right,
        };
        let leased = [lease("/d", Right::Read), lease("/d/out", Right::Write)];
        let right = |path| lease_around(&leased, Path::new(path)).map(|lease| lease.right);
        assert_eq!(right("/d/in"), Some(Right::Read));
        assert_eq!(right("/d/out/x"), Some(Right::Write));
        assert_eq!(right("/data"), None);
    }

    #[test]
    fn who_opens_to_write_or_to_make_writes() {
        assert_eq!(opened(0o2000000), Use::Read);
        assert_eq!(opened(1), Use::Write);
        assert_eq!(opened(2), Use::Write);
        assert_eq!(opened(0o100), Use::Write);
        assert_eq!(opened(0o1000), Use::Write);
    }

    #[test]
    fn paths_lose_their_dots_and_never_leave_the_root() {
        assert_eq!(normal(Path::new("/a/./b/../../../c")), Path::new("/c"));
        assert_eq!(
            top(Path::new("/srv/data/deep/file")),
            Path::new("/srv/data")
        );
    }

    #[test]
    fn a_script_names_its_interpreter_and_a_program_none() {
        let place = tempfile::tempdir().unwrap();
        let ask = |content: &[u8]| {
            let path = place.path().join("program");
            std::fs::write(&path, content).unwrap();
            interpreter(&std::fs::File::open(path).unwrap().into())
        };
        let expected = Some(PathBuf::from("/opt/bin/python"));
        assert_eq!(ask(b"#! /opt/bin/python -I\nprint()"), expected);
        assert_eq!(ask(b"#!python\n"), None);
        assert_eq!(ask(b"\x7fELF"), None);
        assert_eq!(ask(b""), None);
    }
}
