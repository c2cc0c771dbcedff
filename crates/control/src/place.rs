//! Control sockets, in the user's private runtime directory.
//!
//! Each running cage has one socket, `cages/ID.PID`. The supervisor's PID in the name tells the
//! socket of a killed supervisor from a live one without connecting to it. Names of cages are links
//! to these sockets in `names`. No cage sees these directories.

use crate::Channel;
use ironcage_model::CageId;
use ironcage_sys::process::{own_pid, started_as};
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RawDir, Timespec as FileTime, Timestamps,
    UTIME_NOW, chmodat, fchmod, flock, fstat, mkdirat, open, openat, readlinkat, statat, symlinkat,
    unlinkat, utimensat,
};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::sockopt::{Timeout, set_socket_timeout};
use ironcage_sys::rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use ironcage_sys::rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use std::cell::Cell;
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Connections that wait to be taken.
const BACKLOG: i32 = 64;
/// How long a connection may wait to be taken.
const PATIENCE: Duration = Duration::from_secs(2);
/// Seconds after which everything is looked through for what killed supervisors left, whatever
/// is seen of it.
const SWEEP_AFTER: u64 = 3600;
const CAGES: &str = "cages";
const NAMES: &str = "names";
const SOCKETS: &str = "sockets";

/// Why a place of the runtime directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// A directory could not be made, read or entered.
    #[error("cannot use the runtime directory {}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others could get at it.
    #[error(
        "other users can access the runtime directory {}; remove it, or run `chmod 700` on it if it is yours",
        path.display()
    )]
    Shared {
        /// Which.
        path: PathBuf,
    },
    /// The socket could not be made.
    #[error("cannot listen in {}", path.display())]
    Listen {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another running cage has the name.
    #[error(
        "the running cage {id} already has the name {name}; choose another name, or stop that cage"
    )]
    Taken {
        /// The name.
        name: String,
        /// Who has it.
        id: CageId,
    },
    /// It cannot be a name.
    #[error(transparent)]
    Name(#[from] InvalidName),
}

/// Text that cannot name a cage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid cage name `{}`; expected up to 63 letters, digits, `-`, `_` and `.`, starting with a letter or digit, and not in the form of a cage ID",
    .0.escape_debug()
)]
pub struct InvalidName(pub String);

/// Whether a text can name a cage.
pub fn check_name(name: &str) -> Result<(), InvalidName> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let good = name.len() <= 63
        && name.bytes().all(plain)
        && name
            .bytes()
            .next()
            .is_some_and(|b| b.is_ascii_alphanumeric())
        && name.parse::<CageId>().is_err();
    match good {
        true => Ok(()),
        false => Err(InvalidName(name.to_owned())),
    }
}

/// The directories in which sockets may lie; new ones are made in the first.
#[derive(Debug, Clone)]
pub struct RuntimeDir {
    paths: Vec<PathBuf>,
    /// Whether the last look at the first of them was long ago.
    sweep_is_due: Cell<bool>,
}

/// A socket that was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The cage.
    pub id: CageId,
    /// Its supervisor.
    pub supervisor: u32,
    directory: PathBuf,
}

/// What became of an attempt to reach a supervisor.
#[derive(Debug)]
pub enum Dialled {
    /// Connected.
    Open(Channel),
    /// Nobody listens: the supervisor is gone.
    Dead,
    /// It takes no more connections at the moment.
    Busy,
}

/// A socket that listens; its file goes when this is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    name: NameClaim,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A file that a cage's view shows.
#[derive(Debug)]
pub struct CageFile {
    directory: OwnedFd,
    name: String,
}

impl CageFile {
    /// Takes its name away: who sees it in another place still reads it.
    pub fn hide(&self) {
        // What is gone already needs no removing.
        let _ = unlinkat(&self.directory, self.name.as_str(), AtFlags::empty());
    }
}

impl Listener {
    /// Takes its name away: who has it already, or sees it in another place, still connects.
    pub fn hide(&self) {
        self.name.remove();
    }

    /// Takes its name away and returns its descriptors, to be closed with others.
    pub fn into_descriptors(mut self) -> Vec<OwnedFd> {
        self.name.remove();
        let directory = self.name.directory.take();
        [Some(self.socket), directory]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Whether the socket of a supervisor that is gone lies beside this one. A directory that
    /// cannot be read shows none.
    pub fn is_beside_a_dead_one(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let Some(directory) = &self.name.directory else {
            return false;
        };
        let mut names = RawDir::new(directory, &mut buffer);
        // The first names alone: with more cages than that, one of their ends sees it, or the next
        // sweep that is due.
        let mut is_first = true;
        while is_first || !names.is_buffer_empty() {
            is_first = false;
            let Some(Ok(item)) = names.next() else {
                break;
            };
            let name = item.file_name().to_str().unwrap_or_default();
            if name != self.name.name
                && entry(name, Path::new("")).is_some_and(|entry| !entry.is_alive())
            {
                return true;
            }
        }
        false
    }
}

/// A name in a directory that is a cage's as long as this lives.
#[derive(Debug)]
pub struct NameClaim {
    /// Not there any more where the name was taken away before.
    directory: Option<OwnedFd>,
    name: String,
}

impl NameClaim {
    fn remove(&self) {
        if let Some(directory) = &self.directory {
            // What is gone already needs no removing.
            let _ = unlinkat(directory, self.name.as_str(), AtFlags::empty());
        }
    }
}

impl Drop for NameClaim {
    fn drop(&mut self) {
        self.remove();
    }
}

impl RuntimeDir {
    /// The directories.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.paths.iter().map(PathBuf::as_path)
    }

    /// The runtime directories of this user: `$XDG_RUNTIME_DIR/ironcage` where that is set and
    /// the user's own, `/run/ironcage` for root, and `run` in Ironcage's state directory.
    pub fn of_user(state: &Path) -> Self {
        let user = started_as();
        let mut paths = Vec::new();
        if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
            && runtime.is_absolute()
            // Kept by `su` and `sudo -E`, it names another user's.
            && std::fs::metadata(&runtime).is_ok_and(|found| found.uid() == user)
        {
            paths.push(runtime.join("ironcage"));
        }
        if user == 0 {
            paths.push("/run/ironcage".into());
        }
        paths.push(state.join("run"));
        RuntimeDir {
            paths,
            sweep_is_due: Cell::new(false),
        }
    }

    /// Whether nobody has swept for a long time, as far as [`RuntimeDir::listen`] saw. The time of
    /// the last sweep is that of the directory itself.
    pub fn sweep_is_due(&self) -> bool {
        self.sweep_is_due.get()
    }

    /// Listens for a cage, in the first directory.
    pub fn listen(&self, id: &CageId) -> Result<Listener, PlaceError> {
        let (path, directory) = self.make(CAGES)?;
        let name = format!("{id}.{}", own_pid());
        let failed = |error: Errno| PlaceError::Listen {
            path: path.clone(),
            source: error.into(),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = new_socket(flags).map_err(failed)?;
        let address = address(directory.as_fd(), &name).map_err(failed)?;
        bind(&socket, &address).map_err(failed)?;
        let listener = Listener {
            socket,
            name: NameClaim {
                directory: Some(directory),
                name,
            },
        };
        listen(&listener.socket, BACKLOG).map_err(failed)?;
        Ok(listener)
    }

    /// Listens for a cage's own connections: a socket that is put into it, and its path outside.
    pub fn listen_for_cage(
        &self,
        id: &CageId,
        index: usize,
    ) -> Result<(Listener, PathBuf), PlaceError> {
        let (path, directory) = self.make(SOCKETS)?;
        let name = format!("{id}.{}.{index}", getpid().as_raw_nonzero());
        let at = path.join(&name);
        let failed = |error: Errno| PlaceError::Listen {
            path: path.clone(),
            source: error.into(),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = socket.map_err(failed)?;
        let address = address(directory.as_fd(), &name).map_err(failed)?;
        bind(&socket, &address).map_err(failed)?;
        // For the agent's id inside, which may be another; outside the directory keeps others off.
        let everybody = Mode::from_raw_mode(0o666);
        let opened = chmodat(&directory, name.as_str(), everybody, AtFlags::empty());
        let listener = Listener {
            socket,
            name: NameClaim {
                directory: Some(directory),
                name,
            },
        };
        opened.map_err(failed)?;
        listen(&listener.socket, BACKLOG).map_err(failed)?;
        Ok((listener, at))
    }

    /// Writes a file that a cage's view shows.
    pub fn write_for_cage(
        &self,
        id: &CageId,
        index: usize,
        content: &[u8],
    ) -> Result<(CageFile, PathBuf), PlaceError> {
        let (path, directory) = self.make(SOCKETS)?;
        let name = format!("{id}.{}.{index}", getpid().as_raw_nonzero());
        let at = path.join(&name);
        let failed = |source: io::Error| PlaceError::Listen {
            path: path.clone(),
            source,
        };
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        // For the agent's id inside, which may be another; outside the directory keeps others off.
        let mode = Mode::from_raw_mode(0o644);
        let file = openat(&directory, name.as_str(), flags, mode);
        let mut file = std::fs::File::from(file.map_err(|error| failed(error.into()))?);
        let made = CageFile { directory, name };
        fchmod(&file, mode).map_err(|error| failed(error.into()))?;
        file.write_all(content).map_err(failed)?;
        Ok((made, at))
    }

    /// Every socket that is there, of living supervisors and dead ones.
    pub fn entries(&self) -> Result<Vec<Entry>, PlaceError> {
        let mut found = Vec::new();
        for directory in self.paths.iter().map(|path| path.join(CAGES)) {
            let failed = |source: io::Error| PlaceError::Directory {
                path: directory.clone(),
                source,
            };
            let listed = match std::fs::read_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(failed)?,
            };
            for item in listed {
                let name = item.map_err(failed)?.file_name();
                found.extend(name.to_str().and_then(|name| entry(name, &directory)));
            }
        }
        found.sort();
        Ok(found)
    }

    /// Connects to a supervisor. Waits a moment where many others do so too.
    pub fn dial(entry: &Entry) -> Result<Dialled, PlaceError> {
        let failed = |error: Errno| PlaceError::Directory {
            path: entry.directory.clone(),
            source: error.into(),
        };
        let directory = open_directory(&entry.directory).map_err(failed)?;
        let socket = new_socket(SocketFlags::CLOEXEC).map_err(failed)?;
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE)).map_err(failed)?;
        let address = address(directory.as_fd(), &entry.name()).map_err(failed)?;
        match connect(&socket, &address) {
            Ok(()) => Ok(Dialled::Open(Channel::new(socket))),
            Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(Dialled::Dead),
            Err(Errno::AGAIN) => Ok(Dialled::Busy),
            Err(error) => Err(failed(error)),
        }
    }

    /// Removes the sockets of supervisors that are gone. Living ones are not disturbed.
    pub fn sweep(&self) -> Result<(), PlaceError> {
        if let Some(top) = self.paths.first() {
            let now = FileTime {
                tv_sec: 0,
                tv_nsec: UTIME_NOW,
            };
            let times = Timestamps {
                last_access: now,
                last_modification: now,
            };
            // One that is not there has nothing to sweep.
            let _ = utimensat(CWD, top, &times, AtFlags::SYMLINK_NOFOLLOW);
        }
        for entry in self.entries()? {
            if !entry.is_alive() && matches!(Self::dial(&entry)?, Dialled::Dead) {
                let _ = std::fs::remove_file(entry.directory.join(entry.name()));
            }
        }
        self.sweep_names()
    }

    fn sweep_names(&self) -> Result<(), PlaceError> {
        let Some(path) = self.paths.first().map(|path| path.join(NAMES)) else {
            return Ok(());
        };
        let failed = |source: io::Error| PlaceError::Directory {
            path: path.clone(),
            source,
        };
        let listed = match std::fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(failed)?,
        };
        let mut dead = Vec::new();
        for item in listed {
            let link = item.map_err(failed)?.path();
            if !owner(&link).is_some_and(|owner| owner.is_alive()) {
                dead.push(link);
            }
        }
        if dead.is_empty() {
            return Ok(());
        }
        // Nobody claims one of them while they are looked at again.
        let directory = open(&path, DIRECTORY, Mode::empty()).map_err(|e| failed(e.into()))?;
        flock(&directory, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
        for link in dead {
            if !owner(&link).is_some_and(|owner| owner.is_alive()) {
                let _ = std::fs::remove_file(link);
            }
        }
        Ok(())
    }

    /// Claims a name for a cage, so that no other running one has it.
    pub fn claim(&self, name: &str, id: &CageId) -> Result<NameClaim, PlaceError> {
        check_name(name)?;
        let (path, directory) = self.make(NAMES)?;
        let failed = |error: Errno| PlaceError::Directory {
            path: path.clone(),
            source: error.into(),
        };
        // Two that find the same dead owner must not both take its place.
        let lock = openat(&directory, ".", DIRECTORY, Mode::empty()).map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(failed)?;
        if let Ok(target) = readlinkat(&directory, name, Vec::new()) {
            let owner = target.to_str().ok().and_then(|text| entry(text, &path));
            if let Some(owner) = owner.filter(Entry::is_alive) {
                let name = name.to_owned();
                return Err(PlaceError::Taken { name, id: owner.id });
            }
            unlinkat(&directory, name, AtFlags::empty()).map_err(failed)?;
        }
        let own = format!("{id}.{}", getpid().as_raw_nonzero());
        symlinkat(own, &directory, name).map_err(failed)?;
        Ok(NameClaim {
            directory: Some(directory),
            name: name.to_owned(),
        })
    }

    /// Which cage has a name.
    pub fn named(&self, name: &str) -> Option<CageId> {
        check_name(name).ok()?;
        let owner = owner(&self.paths.first()?.join(NAMES).join(name))?;
        owner.is_alive().then_some(owner.id)
    }

    /// One of the directories, made for this user alone.
    fn make(&self, part: &str) -> Result<(PathBuf, OwnedFd), PlaceError> {
        let top = self.paths.first().cloned().unwrap_or_default();
        let path = top.join(part);
        let failed = |error: Errno| PlaceError::Directory {
            path: path.clone(),
            source: error.into(),
        };
        let directory = match open_listed(&path) {
            Err(Errno::NOENT) => {
                if let Some(above) = top.parent() {
                    let mut builder = std::fs::DirBuilder::new();
                    builder.recursive(true).mode(0o700);
                    builder
                        .create(above)
                        .map_err(|source| PlaceError::Directory {
                            path: above.to_owned(),
                            source,
                        })?;
                }
                let mode = Mode::RWXU;
                for made in [&top, &path] {
                    match mkdirat(CWD, made, mode) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(failed(error)),
                    }
                }
                open_listed(&path).map_err(failed)?
            }
            other => other.map_err(failed)?,
        };
        let above = statat(CWD, &top, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if FileType::from_raw_mode(above.st_mode) != FileType::Directory {
            return Err(failed(Errno::NOTDIR));
        }
        let own = fstat(&directory).map_err(failed)?;
        let user = started_as();
        // Who can write above could put something else in its place.
        for (stat, shared, path) in [(&above, 0o022, &top), (&own, 0o077, &path)] {
            if stat.st_uid != user || stat.st_mode & shared != 0 {
                return Err(PlaceError::Shared { path: path.clone() });
            }
        }
        self.sweep_is_due.set(is_long_ago(above.st_mtime));
        Ok((path, directory))
    }
}

impl Entry {
    fn name(&self) -> String {
        format!("{}.{}", self.id, self.supervisor)
    }

    /// Whether a process with the supervisor's number is there. One that is dead, and that its
    /// parent has not collected yet, is not.
    pub fn is_alive(&self) -> bool {
        let pid = i32::try_from(self.supervisor).ok().and_then(Pid::from_raw);
        match pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(pidfd)) => {
                let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
                let asked = poll(&mut fds, Some(&Timespec::default()));
                asked.is_err() || fds[0].revents().is_empty()
            }
            Some(Err(Errno::SRCH | Errno::INVAL)) | None => false,
            Some(Err(_)) => true,
        }
    }
}

fn entry(name: &str, directory: &Path) -> Option<Entry> {
    let (id, supervisor) = name.split_once('.')?;
    Some(Entry {
        id: id.parse().ok()?,
        supervisor: supervisor.parse().ok()?,
        directory: directory.to_owned(),
    })
}

/// Who has a name, by its link.
fn owner(link: &Path) -> Option<Entry> {
    let target = readlinkat(CWD, link, Vec::new()).ok()?;
    entry(target.to_str().ok()?, link.parent()?)
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// Whether a time is long ago, or has not come yet.
fn is_long_ago(seconds: i64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let ago = u64::try_from(seconds)
        .ok()
        .and_then(|then| now.checked_sub(then));
    ago.is_none_or(|ago| ago > SWEEP_AFTER)
}

/// A directory of sockets, whose names can be read.
fn open_listed(path: &Path) -> Result<OwnedFd, Errno> {
    open(path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
}

fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
}

/// Through the directory's descriptor: a socket's address holds 107 bytes, a path may be longer.
fn address(directory: BorrowedFd<'_>, name: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}

fn new_socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
