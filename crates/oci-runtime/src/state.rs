//! The state of a container between two commands: a directory of its own below `--root`.

use crate::audit::Trail;
use crate::cgroup::Groups;
use crate::error::{Error, IoContext as _};
use crate::kernel;
use crate::policy::Layers;
use crate::spec::{self, Spec};
use ironcage_sys::process::signal_process;
use ironcage_sys::rustix::fs::{CWD, FlockOperation, Mode, fcntl_lock, mkfifoat};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

const STATE: &str = "state.json";
const LOCK: &str = "lock";
/// Stands from `create` until `start`; the container's first process waits at its other end.
const WAITING: &str = "exec.fifo";
const LONGEST_ID: usize = 255;

/// The status of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Creating,
    Created,
    Running,
    Paused,
    Stopped,
}

impl Status {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Status::Creating => "creating",
            Status::Created => "created",
            Status::Running => "running",
            Status::Paused => "paused",
            Status::Stopped => "stopped",
        }
    }
}

/// The record of a container.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerRecord {
    pub(crate) id: String,
    /// The first process, as this host numbers it, and when it began: numbers are used again.
    pub(crate) pid: Option<i32>,
    pub(crate) started: u64,
    pub(crate) bundle: PathBuf,
    pub(crate) rootfs: PathBuf,
    pub(crate) created: String,
    pub(crate) owner: u32,
    pub(crate) groups: Groups,
    pub(crate) layers: Layers,
    /// Its log; not there in records of versions that wrote none.
    #[serde(default)]
    pub(crate) audit: Option<Trail>,
    /// As it was narrowed.
    pub(crate) spec: Spec,
}

/// The state as the specification has it, which hooks get and `state` prints.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Shown<'a> {
    oci_version: &'a str,
    id: &'a str,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    bundle: &'a Path,
    rootfs: &'a Path,
    created: &'a str,
    owner: String,
    annotations: &'a std::collections::BTreeMap<String, String>,
}

impl ContainerRecord {
    pub(crate) fn shown(&self, status: Status) -> Shown<'_> {
        let alive = status != Status::Stopped;
        Shown {
            oci_version: spec::VERSION,
            id: &self.id,
            status: status.name(),
            pid: match self.pid {
                Some(pid) if alive => Some(pid),
                _ => Some(0),
            },
            bundle: &self.bundle,
            rootfs: &self.rootfs,
            created: &self.created,
            owner: match self.owner {
                0 => "root".into(),
                uid => uid.to_string(),
            },
            annotations: &self.spec.annotations,
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.pid
            .is_some_and(|pid| kernel::started(pid) == Some(self.started))
    }

    /// The first process by a descriptor, which cannot become another process.
    pub(crate) fn process(&self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(self.pid?)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // What was opened is the container's if that still runs afterwards.
        self.is_alive().then_some(process)
    }

    pub(crate) fn signal(&self, signal: i32) -> Result<(), Error> {
        let not_running = || Error::WrongStatus {
            action: "signal",
            id: self.id.clone(),
            wanted: "running",
            status: Status::Stopped.name(),
        };
        let process = self.process().ok_or_else(not_running)?;
        match signal_process(process.as_fd(), signal) {
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {
                Err(not_running())
            }
            other => other.doing(|| format!("signal container {:?}", self.id)),
        }
    }
}

/// Where containers are kept.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    root: PathBuf,
}

/// The directory of one container, locked as long as this lives.
#[derive(Debug)]
pub(crate) struct ContainerDir {
    directory: PathBuf,
    id: String,
    _lock: File,
}

fn check_id(id: &str) -> Result<(), Error> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_+-.".contains(&byte);
    let good = !id.is_empty()
        && id.len() <= LONGEST_ID
        && id != "."
        && id != ".."
        && id.bytes().all(allowed);
    match good {
        true => Ok(()),
        false => Err(Error::refused(
            format!("use the container ID {id:?}"),
            "expected letters, digits, `_`, `+`, `-` and `.`",
        )),
    }
}

impl Store {
    pub(crate) fn new(root: PathBuf) -> Store {
        Store { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn directory(&self, id: &str) -> Result<PathBuf, Error> {
        check_id(id)?;
        Ok(self.root.join(id))
    }

    /// Makes the directory of a new container and locks it.
    pub(crate) fn create(&self, id: &str) -> Result<ContainerDir, Error> {
        let directory = self.directory(id)?;
        let mut builder = DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o711)
            .create(&self.root)
            .doing(|| format!("make {}", self.root.display()))?;
        // Records say which processes are signalled, and which programs hooks are.
        let found = self
            .root
            .metadata()
            .doing(|| format!("look at {}", self.root.display()))?;
        let own = ironcage_sys::process::started_as();
        if (found.uid() != own && found.uid() != 0) || found.mode() & 0o022 != 0 {
            let action = format!("keep containers in {}", self.root.display());
            return Err(Error::refused(
                action,
                "others than this user can write there",
            ));
        }
        match DirBuilder::new().mode(0o711).create(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(Error::Exists { id: id.to_owned() });
            }
            other => other.doing(|| format!("make {}", directory.display()))?,
        }
        let kept = ContainerDir {
            _lock: lock(&directory, id)?,
            directory,
            id: id.to_owned(),
        };
        mkfifoat(CWD, kept.waiting(), Mode::RUSR | Mode::WUSR)
            .doing(|| format!("make {}", kept.waiting().display()))?;
        Ok(kept)
    }

    /// Opens a container and waits for its lock.
    pub(crate) fn open(&self, id: &str) -> Result<ContainerDir, Error> {
        let directory = self.directory(id)?;
        Ok(ContainerDir {
            _lock: lock(&directory, id)?,
            directory,
            id: id.to_owned(),
        })
    }

    /// Reads a container without its lock: for those that only look, and for hooks.
    pub(crate) fn look(&self, id: &str) -> Result<(ContainerRecord, Status), Error> {
        look(&self.directory(id)?, id)
    }

    /// The containers that there are.
    pub(crate) fn all(&self) -> Vec<(ContainerRecord, Status)> {
        let Ok(entries) = self.root.read_dir() else {
            return Vec::new();
        };
        let names = entries
            .filter_map(Result::ok)
            .filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort();
        // One that is removed meanwhile is not there.
        names.iter().filter_map(|id| self.look(id).ok()).collect()
    }
}

fn lock(directory: &Path, id: &str) -> Result<File, Error> {
    let path = directory.join(LOCK);
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    let file = match opened {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::NoContainer { id: id.to_owned() });
        }
        other => other.doing(|| format!("open {}", path.display()))?,
    };
    // Of this process alone: what it forks waits for `start`, and does not keep the lock meanwhile.
    fcntl_lock(&file, FlockOperation::LockExclusive)
        .doing(|| format!("lock {}", path.display()))?;
    // Whoever had it may have removed the container, and another may have its name by now.
    let inode = |found: std::io::Result<std::fs::Metadata>| found.ok().map(|found| found.ino());
    match inode(path.metadata()) == inode(file.metadata()) {
        true => Ok(file),
        false => Err(Error::NoContainer { id: id.to_owned() }),
    }
}

fn look(directory: &Path, id: &str) -> Result<(ContainerRecord, Status), Error> {
    let path = directory.join(STATE);
    if !path.exists() {
        return Err(Error::NoContainer { id: id.to_owned() });
    }
    let record: ContainerRecord = spec::read(&path)?;
    let status = match (record.pid, record.is_alive()) {
        (None, _) => Status::Creating,
        (_, false) => Status::Stopped,
        (_, true) if directory.join(WAITING).exists() => Status::Created,
        (_, true) if record.groups.is_frozen() => Status::Paused,
        (_, true) => Status::Running,
    };
    Ok((record, status))
}

impl ContainerDir {
    /// Where the container's first process waits for `start`.
    pub(crate) fn waiting(&self) -> PathBuf {
        self.directory.join(WAITING)
    }

    pub(crate) fn look(&self) -> Result<(ContainerRecord, Status), Error> {
        look(&self.directory, &self.id)
    }

    /// Writes the record, whole or not at all.
    pub(crate) fn save(&self, record: &ContainerRecord) -> Result<(), Error> {
        let path = self.directory.join(STATE);
        let action = || format!("write {}", path.display());
        let text = serde_json::to_vec(record).map_err(|error| Error::refused(action(), error))?;
        let new = self.directory.join("state.json.new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&new).doing(action)?;
        std::io::Write::write_all(&mut file, &text).doing(action)?;
        std::fs::rename(&new, &path).doing(action)
    }

    /// Removes everything that is known of the container.
    pub(crate) fn remove(self) -> Result<(), Error> {
        std::fs::remove_dir_all(&self.directory)
            .doing(|| format!("remove {}", self.directory.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_directory() {
        let top = tempfile::tempdir().unwrap();
        let store = Store::new(top.path().join("root"));
        for id in ["", ".", "..", "a/b", "../a", "a b", "a\0", &"a".repeat(256)] {
            assert!(
                matches!(store.create(id), Err(Error::Refused { .. })),
                "{id:?}"
            );
        }
        assert!(store.create("a-b_c.d+1").is_ok());
    }

    #[test]
    fn a_container_is_made_once_and_is_gone_when_removed() {
        let top = tempfile::tempdir().unwrap();
        let store = Store::new(top.path().join("root"));
        assert!(matches!(store.open("one"), Err(Error::NoContainer { .. })));
        let kept = store.create("one").unwrap();
        assert!(matches!(store.create("one"), Err(Error::Exists { .. })));
        assert!(kept.waiting().exists());
        assert!(matches!(kept.look(), Err(Error::NoContainer { .. })));
        kept.remove().unwrap();
        assert!(matches!(store.open("one"), Err(Error::NoContainer { .. })));
    }

    #[test]
    fn a_root_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let top = tempfile::tempdir().unwrap();
        let store = Store::new(top.path().to_owned());
        std::fs::set_permissions(top.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(store.create("one"), Err(Error::Refused { .. })));
        std::fs::set_permissions(top.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(store.create("one").is_ok());
    }
}
