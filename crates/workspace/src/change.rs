//! One pending change: its state file, its layers, and the lock that shows that it is in use.

use crate::content::own_file;
use crate::error::{Doing as _, WorkspaceError};
use crate::path_text;
use crate::real_links::RealLinks;
use crate::store::directory_is_empty;
use crate::tree::Node;
use ironcage_model::CageId;
use ironcage_sys::process::own_pid;
use ironcage_sys::rustix::fs::{FlockOperation, Mode, fchmod, flock};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::spent::close_later;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

pub(crate) const RECORD: &str = "change.json";
pub(crate) const LOCK: &str = "lock";
const APPLYING: &str = "applying";
/// A lock that was let go is still held for a moment by a process that its holder forked, until
/// that executes.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(10);
const DIGITS: usize = 8;
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The id of a change: `w` and eight characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ChangeId(String);

impl ChangeId {
    /// Makes an id from random bytes.
    pub(crate) fn from_entropy(random: [u8; DIGITS]) -> ChangeId {
        let digits = random.iter().map(|byte| ALPHABET[usize::from(byte & 31)]);
        ChangeId(
            std::iter::once(b'w')
                .chain(digits)
                .map(char::from)
                .collect(),
        )
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<ChangeId> for String {
    fn from(id: ChangeId) -> String {
        id.0
    }
}

/// Text that is not the id of a change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid change ID `{}`; expected `w` and eight letters or digits", .0.escape_debug())]
pub struct InvalidChangeId(pub String);

impl TryFrom<String> for ChangeId {
    type Error = InvalidChangeId;

    fn try_from(text: String) -> Result<ChangeId, InvalidChangeId> {
        let well_formed = text.len() == DIGITS + 1
            && text.starts_with('w')
            && text.bytes().skip(1).all(|byte| ALPHABET.contains(&byte));
        if well_formed {
            Ok(ChangeId(text))
        } else {
            Err(InvalidChangeId(text))
        }
    }
}

impl FromStr for ChangeId {
    type Err = InvalidChangeId;

    fn from_str(text: &str) -> Result<ChangeId, InvalidChangeId> {
        text.to_owned().try_into()
    }
}

/// A point in time as file systems keep it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment {
    /// Seconds since 1970.
    pub seconds: i64,
    pub nanoseconds: i64,
}

/// What a layer lies over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerRole {
    Workspace,
    /// A git directory: that of a direct workspace, or the common one of a worktree.
    Git,
    /// A directory that was granted for writing.
    Granted,
}

/// One overlay of a change, as it is on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// What it lies over.
    pub role: LayerRole,
    #[serde(with = "path_text")]
    pub real: PathBuf,
    /// Device of the real directory when the change began.
    pub device: u64,
    /// Inode of the real directory when the change began.
    pub inode: u64,
    /// Where the layer's two directories are, below the change's.
    #[serde(with = "path_text")]
    pub(crate) place: PathBuf,
    /// The upper directory, absolute.
    #[serde(skip)]
    pub upper: PathBuf,
    /// The work directory, absolute.
    #[serde(skip)]
    pub work: PathBuf,
}

/// What is written down about a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChangeState {
    pub(crate) id: ChangeId,
    #[serde(with = "path_text")]
    pub(crate) workspace: PathBuf,
    pub(crate) began: Moment,
    pub(crate) mode: String,
    pub(crate) cages: Vec<CageId>,
    pub(crate) layers: Vec<Layer>,
    /// The change that another cage worked on when this one began, and that comes before it.
    #[serde(default)]
    pub(crate) beside: Option<ChangeId>,
    /// The change that this one was forked from, which has its turn again after it.
    #[serde(default)]
    pub(crate) fork_of: Option<ChangeId>,
    #[serde(default, with = "path_text::list")]
    pub(crate) allowed: Vec<PathBuf>,
    #[serde(default)]
    pub(crate) in_memory: bool,
}

/// A pending change: what cages did to a workspace and nobody has applied yet.
#[derive(Debug, Clone)]
pub struct Change {
    pub(crate) record: ChangeState,
    pub(crate) directory: PathBuf,
    /// What was read of the real trees' links, by the layer.
    pub(crate) real_links: RefCell<BTreeMap<usize, RealLinks>>,
}

/// Held while a cage or a command works on a change. It ends with its holder, however that
/// dies: the kernel keeps it.
#[derive(Debug)]
pub struct Lock {
    file: File,
    /// That nobody applies it meanwhile.
    applying: Option<File>,
}

/// Held while a change is applied though a cage works on it. Take it before the cage is held
/// still: the end of the cage's run waits for it.
#[derive(Debug)]
pub struct Applying {
    _file: File,
}

impl Lock {
    /// A moment that parts what files were stamped with before from what they will be after.
    ///
    /// Stamps are as coarse as the kernel's tick: a file that was saved just before would have
    /// the same as one that is saved just after. But from Linux 6.13 on, a file whose stamp was
    /// looked at gets an exact one with its next change, and no later stamp of any file is
    /// earlier than that. Before, both have the same, and count as saved after.
    pub(crate) fn stamp(&self, change: &Change) -> Result<Moment, WorkspaceError> {
        let path = change.directory.join(LOCK);
        Node::of(&self.file).doing("look at", &path)?;
        fchmod(&self.file, Mode::from_raw_mode(0o600)).doing("stamp", &path)?;
        Ok(Node::of(&self.file).doing("look at", &path)?.changed)
    }

    /// Lets others apply the change while a cage works on it.
    pub fn share(&mut self) {
        self.applying = None;
    }

    /// Waits until nobody applies the change, and takes out of its layers what was applied. No
    /// cage works on it any more.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn unshare(&mut self, change: &Change) -> Result<(), WorkspaceError> {
        let path = change.directory.join(APPLYING);
        self.applying = change.open_applying(false)?;
        if let Some(file) = &self.applying {
            flock(file, FlockOperation::LockExclusive).doing("lock", &path)?;
            crate::apply::resume(change)?;
        }
        Ok(())
    }
}

impl Moment {
    pub(crate) fn before_now(ago: std::time::Duration) -> Moment {
        let then = std::time::SystemTime::now()
            .checked_sub(ago)
            .and_then(|then| then.duration_since(std::time::UNIX_EPOCH).ok())
            .unwrap_or_default();
        Moment {
            seconds: i64::try_from(then.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: i64::from(then.subsec_nanos()),
        }
    }
}

impl Change {
    pub(crate) fn new(record: ChangeState, directory: PathBuf) -> Change {
        Change {
            record,
            directory,
            real_links: RefCell::default(),
        }
    }

    /// Reads the change that lies in a directory.
    pub(crate) fn read(directory: &Path) -> Result<Change, WorkspaceError> {
        let path = directory.join(RECORD);
        let text = own_file(&path).doing("read", &path)?;
        let mut record: ChangeState = serde_json::from_slice(&text)
            .map_err(|source| WorkspaceError::Record { path, source })?;
        for layer in &mut record.layers {
            layer.upper = directory.join(&layer.place).join("upper");
            layer.work = directory.join(&layer.place).join("work");
        }
        Ok(Change::new(record, directory.to_owned()))
    }

    /// Writes the record, whole or not at all.
    pub(crate) fn write(&self) -> Result<(), WorkspaceError> {
        self.write_by(replace_file)
    }

    /// The same for a change that has nothing in it yet: it need not be on disk when the host
    /// crashes, and waiting for the disk would cost more than the start of a cage.
    pub(crate) fn write_first(&self) -> Result<(), WorkspaceError> {
        self.write_by(put_file)
    }

    fn write_by(
        &self,
        write: fn(&Path, &[u8]) -> std::io::Result<()>,
    ) -> Result<(), WorkspaceError> {
        let path = self.directory.join(RECORD);
        let text =
            serde_json::to_vec_pretty(&self.record).map_err(|source| WorkspaceError::Record {
                path: path.clone(),
                source,
            })?;
        write(&path, &text).doing("write", &path)
    }

    pub fn id(&self) -> &ChangeId {
        &self.record.id
    }

    /// The workspace that it belongs to.
    pub fn workspace(&self) -> &Path {
        &self.record.workspace
    }

    /// When it began. What changed in the real tree since then is in its way.
    pub fn began(&self) -> Moment {
        self.record.began
    }

    /// The mode that it was begun in.
    pub fn mode(&self) -> &str {
        &self.record.mode
    }

    /// Paths below the workspace that the policy of its last run lets be applied though the
    /// host would execute or trust them.
    pub fn allowed(&self) -> &[PathBuf] {
        &self.record.allowed
    }

    /// Writes down what the policy of a run allows, where that is not what was.
    ///
    /// # Errors
    /// Where the record cannot be written.
    pub fn allow(&mut self, allowed: &[PathBuf]) -> Result<(), WorkspaceError> {
        if self.record.allowed == allowed {
            return Ok(());
        }
        self.record.allowed = allowed.to_vec();
        self.write()
    }

    /// Whether it is in the memory of the cage that works on it, and nothing of it on disk. If
    /// no cage does, it is lost.
    pub fn in_memory(&self) -> bool {
        self.record.in_memory
    }

    /// Writes down whether it is in memory.
    ///
    /// # Errors
    /// Where the record cannot be written.
    pub fn set_in_memory(&mut self, in_memory: bool) -> Result<(), WorkspaceError> {
        self.record.in_memory = in_memory;
        self.write()
    }

    /// Whether a path of a layer is, or lies in, one of some paths below the workspace.
    pub(crate) fn lies_in(&self, layer: usize, path: &Path, allowed: &[PathBuf]) -> bool {
        let below = self.layers().get(layer).and_then(|layer| {
            let above = layer.real.strip_prefix(self.workspace()).ok()?;
            Some(above.join(path))
        });
        below.is_some_and(|below| allowed.iter().any(|allowed| below.starts_with(allowed)))
    }

    /// The same for a path in a git directory: what allows that directory as a whole allows
    /// commits, and not what lies in it to run.
    pub(crate) fn lies_in_git(
        &self,
        layer: usize,
        (git, path): (&Path, &Path),
        allowed: &[PathBuf],
    ) -> bool {
        let parts: Vec<PathBuf> = allowed
            .iter()
            .filter(|allowed| !self.lies_in(layer, git, std::slice::from_ref(*allowed)))
            .cloned()
            .collect();
        self.lies_in(layer, path, &parts)
    }

    /// The change that it was forked from, if it was.
    pub fn fork_of(&self) -> Option<&ChangeId> {
        self.record.fork_of.as_ref()
    }

    /// The change that it was begun beside, which the next run goes on with.
    pub fn beside(&self) -> Option<&ChangeId> {
        self.record.beside.as_ref()
    }

    /// The cages that worked on it.
    pub fn cages(&self) -> &[CageId] {
        &self.record.cages
    }

    /// Whether no layer has anything in it.
    pub fn is_unused(&self) -> bool {
        let mut layers = self.record.layers.iter();
        layers.all(|layer| directory_is_empty(&layer.upper))
    }

    /// Its overlays: the workspace's first, where it has one.
    pub fn layers(&self) -> &[Layer] {
        &self.record.layers
    }

    /// The directory that holds all of it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes down that a cage works on it.
    ///
    /// # Errors
    /// Where the record cannot be written.
    pub fn add_cage(&mut self, cage: &CageId) -> Result<(), WorkspaceError> {
        self.record.cages.push(cage.clone());
        self.write()
    }

    /// Takes it for one user alone, and completes what a command that was killed left undone.
    ///
    /// # Errors
    /// [`WorkspaceError::InUse`] when somebody has it already.
    pub fn lock(&self) -> Result<Lock, WorkspaceError> {
        let mut lock = self.try_lock();
        for _ in 0..TRIES {
            if !matches!(lock, Err(WorkspaceError::InUse { .. })) {
                break;
            }
            std::thread::sleep(PAUSE);
            lock = self.try_lock();
        }
        let mut lock = lock?;
        // Only a change that was once applied while a cage worked on it has one.
        if let Some(file) = self.open_applying(false)? {
            lock.applying = Some(self.lock_applying(file)?);
        }
        crate::apply::resume(self)?;
        Ok(lock)
    }

    /// Takes the right to apply a change on which a cage works.
    ///
    /// # Errors
    /// [`WorkspaceError::InUse`] when somebody else has it.
    pub fn begin_applying(&self) -> Result<Applying, WorkspaceError> {
        let path = self.directory.join(APPLYING);
        let file = self.open_applying(true)?;
        let file = file
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
            .doing("lock", &path)?;
        Ok(Applying {
            _file: self.lock_applying(file)?,
        })
    }

    fn open_applying(&self, create: bool) -> Result<Option<File>, WorkspaceError> {
        let path = self.directory.join(APPLYING);
        let opened = OpenOptions::new()
            .write(true)
            .create(create)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        match opened {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !create => Ok(None),
            Err(error) => Err(error).doing("lock", &path),
        }
    }

    fn lock_applying(&self, file: File) -> Result<File, WorkspaceError> {
        for _ in 0..TRIES {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
                Err(error) => return Err(error).doing("lock", &self.directory.join(APPLYING)),
            }
        }
        Err(WorkspaceError::InUse {
            id: self.id().clone(),
        })
    }

    /// Takes it without completing anything: for a change that was just made, in which nobody has
    /// begun anything.
    pub(crate) fn try_lock(&self) -> Result<Lock, WorkspaceError> {
        let path = self.directory.join(LOCK);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .doing("lock", &path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock {
                file,
                applying: None,
            }),
            Err(Errno::WOULDBLOCK) => Err(WorkspaceError::InUse {
                id: self.id().clone(),
            }),
            Err(error) => Err(error).doing("lock", &path),
        }
    }

    pub fn in_use(&self) -> bool {
        matches!(self.try_lock(), Err(WorkspaceError::InUse { .. }))
    }
}

/// Replaces a file of ours by way of another name, so that it is never seen half written, also
/// after a crash of the host.
pub(crate) fn replace_file(path: &Path, content: &[u8]) -> std::io::Result<()> {
    write_beside(path, content, true)
}

/// The same without waiting for the disk.
pub(crate) fn put_file(path: &Path, content: &[u8]) -> std::io::Result<()> {
    write_beside(path, content, false)
}

fn write_beside(path: &Path, content: &[u8], durable: bool) -> std::io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    // Others may write the same file at this moment.
    name.push(format!(".new-{}", own_pid()));
    let beside = PathBuf::from(name);
    // Exclusive, and so through no link that somebody else put there.
    let create = || {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(&beside)
    };
    let mut file = match create() {
        // A process of the same number left it when it was killed.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(&beside)?;
            create()?
        }
        other => other?,
    };
    file.write_all(content)?;
    if durable {
        file.sync_data()?;
    }
    std::fs::rename(&beside, path)?;
    close_later(file);
    Ok(())
}
