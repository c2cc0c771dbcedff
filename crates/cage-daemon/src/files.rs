//! Files of the cage, as the agent sees them.

use crate::attributes;
use crate::connection::{RequestError, Stream, expand, from_errno};
use crate::protocol::{Entry, EntryKind, FailureCode, Kind, Reply, Request};
use ironcage_sys::rustix::fs::{CWD, Mode, OFlags, RenameFlags, open, renameat_with};
use ironcage_sys::rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries that one list has at most, and entries of one message.
const MOST_ENTRIES: usize = 100_000;
const IN_A_MESSAGE: usize = 128;
/// How deep a list goes at most.
const DEEPEST: u32 = 64;

pub(crate) fn carry_out(request: Request, stream: &mut Stream) -> Result<(), RequestError> {
    match request {
        Request::Stat { path } => {
            let entry = entry(&expand(&path)?)?;
            stream.reply(&Reply::Entry { entry })
        }
        Request::List { path, depth } => list(&expand(&path)?, depth.clamp(1, DEEPEST), stream),
        Request::MakeDirectory { path } => {
            let path = expand(&path)?;
            make_directory(&path)?;
            let entry = entry(&path)?;
            stream.reply(&Reply::Entry { entry })
        }
        Request::Move { from, to } => {
            let (from, to) = (expand(&from)?, expand(&to)?);
            rename(&from, &to)?;
            let entry = entry(&to)?;
            stream.reply(&Reply::Entry { entry })
        }
        Request::Remove { path, recursive } => remove(&expand(&path)?, recursive),
        Request::Read {
            path,
            offset,
            length,
        } => read(&expand(&path)?, offset, length, stream),
        Request::Write {
            path,
            mode,
            metadata,
        } => match expand(&path).and_then(|path| write(&path, mode, &metadata, stream)) {
            Ok(entry) => stream.reply(&Reply::Entry { entry }),
            Err(error) => Err(error),
        },
        _ => Err(RequestError::new(
            FailureCode::InvalidArgument,
            "not a request about files".into(),
        )),
    }
}

fn failed(verb: &str, path: &Path) -> impl FnOnce(io::Error) -> RequestError {
    RequestError::io(format!("{verb} {}", path.display()))
}

pub(crate) fn entry(path: &Path) -> Result<Entry, RequestError> {
    let metadata = fs::symlink_metadata(path).map_err(failed("find", path))?;
    Ok(described(path, &metadata, &mut Names::default()))
}

/// Names of users and groups, each looked up once.
#[derive(Default)]
struct Names {
    passwd: Option<String>,
    group: Option<String>,
}

impl Names {
    fn of(text: &mut Option<String>, file: &str, id: u32) -> String {
        let text = text.get_or_insert_with(|| {
            let mut text = String::new();
            // A file of an image: of any length.
            let opened = File::open(file).map(|file| file.take(1 << 20));
            let _ = opened.and_then(|mut file| file.read_to_string(&mut text));
            text
        });
        let found = text.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
        });
        found.unwrap_or_else(|| id.to_string())
    }
}

fn described(path: &Path, metadata: &Metadata, names: &mut Names) -> Entry {
    let kind = match metadata.file_type() {
        kind if kind.is_file() => EntryKind::File,
        kind if kind.is_dir() => EntryKind::Directory,
        kind if kind.is_symlink() => EntryKind::Symlink,
        _ => EntryKind::Other,
    };
    let target = (kind == EntryKind::Symlink)
        .then(|| fs::read_link(path).ok())
        .flatten();
    let name = path
        .file_name()
        .map_or_else(|| "/".into(), |name| name.to_string_lossy().into_owned());
    Entry {
        name,
        path: path.to_string_lossy().into_owned(),
        kind,
        size: metadata.len(),
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        owner: Names::of(&mut names.passwd, "/etc/passwd", metadata.uid()),
        group: Names::of(&mut names.group, "/etc/group", metadata.gid()),
        modified: metadata
            .mtime()
            .saturating_mul(1_000_000)
            .saturating_add(metadata.mtime_nsec() / 1000),
        target: target.map(|target| target.to_string_lossy().into_owned()),
        metadata: match kind {
            EntryKind::File | EntryKind::Directory => attributes::read(path),
            EntryKind::Symlink | EntryKind::Other => BTreeMap::new(),
        },
    }
}

fn list(path: &Path, depth: u32, stream: &mut Stream) -> Result<(), RequestError> {
    let mut names = Names::default();
    let mut left = MOST_ENTRIES;
    // A link to a directory is listed, too, where it is what was named.
    let metadata = fs::metadata(path).map_err(failed("list", path))?;
    if !metadata.is_dir() {
        return Err(RequestError::new(
            FailureCode::NotADirectory,
            format!("cannot list {}: not a directory", path.display()),
        ));
    }
    let mut waiting = vec![(path.to_owned(), 1)];
    let mut message = Vec::with_capacity(IN_A_MESSAGE);
    while let Some((directory, level)) = waiting.pop() {
        let found = match fs::read_dir(&directory) {
            Ok(found) => found,
            // One that went meanwhile, or may not be read, below the one that was named.
            Err(_) if level > 1 => continue,
            Err(error) => return Err(failed("list", &directory)(error)),
        };
        let mut paths: Vec<PathBuf> = found
            .flatten()
            // What is still being written is not there yet.
            .filter(|entry| staged(entry.file_name().as_bytes()).is_none())
            .take(left + 1)
            .map(|entry| entry.path())
            .collect();
        paths.sort();
        for path in paths {
            let Ok(metadata) = fs::symlink_metadata(&path) else {
                continue;
            };
            if left == 0 {
                return Err(RequestError::new(
                    FailureCode::TooMany,
                    format!(
                        "cannot list {}: more than {MOST_ENTRIES} entries",
                        directory.display()
                    ),
                ));
            }
            left -= 1;
            message.push(described(&path, &metadata, &mut names));
            if message.len() == IN_A_MESSAGE {
                stream.reply(&Reply::Entries {
                    entries: std::mem::take(&mut message),
                })?;
            }
            if metadata.is_dir() && level < depth {
                waiting.push((path, level + 1));
            }
        }
    }
    stream.reply(&Reply::Entries { entries: message })
}

fn make_directory(path: &Path) -> Result<(), RequestError> {
    match fs::symlink_metadata(path) {
        Ok(_) if path.is_dir() => {
            return Err(RequestError::new(
                FailureCode::AlreadyExists,
                format!("cannot make {}: it exists", path.display()),
            ));
        }
        Ok(_) => {
            return Err(RequestError::new(
                FailureCode::NotADirectory,
                format!(
                    "cannot make {}: it exists and is not a directory",
                    path.display()
                ),
            ));
        }
        Err(_) => {}
    }
    fs::create_dir_all(path).map_err(failed("make", path))
}

fn parents(path: &Path) -> Result<(), RequestError> {
    match path.parent() {
        Some(parent) => fs::create_dir_all(parent).map_err(failed("make", parent)),
        None => Ok(()),
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), RequestError> {
    fs::symlink_metadata(from).map_err(failed("move", from))?;
    parents(to)?;
    match fs::rename(from, to) {
        // Between two file systems: a file is copied beside its target, then removed.
        Err(error) if error.raw_os_error() == Some(Errno::XDEV.raw_os_error()) => {
            let metadata = fs::symlink_metadata(from).map_err(failed("move", from))?;
            if !metadata.is_file() {
                return Err(RequestError::new(
                    FailureCode::InvalidArgument,
                    format!(
                        "cannot move {} to {}: they are on different file systems, where only files can be moved",
                        from.display(),
                        to.display()
                    ),
                ));
            }
            let mut source = File::open(from).map_err(failed("read", from))?;
            let replaces = fs::symlink_metadata(to).is_ok();
            let mut staged = Staged::beside(to, metadata.mode() & 0o7777, replaces)?;
            io::copy(&mut source, &mut staged.file).map_err(failed("write", to))?;
            staged.finish(to)?;
            fs::remove_file(from).map_err(failed("remove", from))
        }
        other => other.map_err(failed("move", from)),
    }
}

fn remove(path: &Path, recursive: bool) -> Result<(), RequestError> {
    let metadata = fs::symlink_metadata(path).map_err(failed("remove", path))?;
    match (metadata.is_dir(), recursive) {
        (true, true) => fs::remove_dir_all(path),
        (true, false) => fs::remove_dir(path),
        (false, _) => fs::remove_file(path),
    }
    .map_err(failed("remove", path))
}

fn read(
    path: &Path,
    offset: u64,
    length: Option<u64>,
    stream: &mut Stream,
) -> Result<(), RequestError> {
    // Without waiting: a pipe without a writer would keep us.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let opened = open(path, flags, Mode::empty());
    let mut file: File = opened
        .map_err(|error| failed("read", path)(error.into()))?
        .into();
    let metadata = file.metadata().map_err(failed("read", path))?;
    if metadata.is_dir() {
        return Err(RequestError::new(
            FailureCode::IsADirectory,
            format!("cannot read {}: it is a directory", path.display()),
        ));
    }
    if !metadata.is_file() {
        return Err(RequestError::new(
            FailureCode::InvalidArgument,
            format!("cannot read {}: not a regular file", path.display()),
        ));
    }
    let entry = described(path, &metadata, &mut Names::default());
    if offset > 0 {
        file.seek(SeekFrom::Start(offset))
            .map_err(failed("read", path))?;
    }
    stream.reply(&Reply::Reading { entry })?;
    let mut file = file.take(length.unwrap_or(u64::MAX));
    let mut buffer = vec![0; crate::protocol::CHUNK];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => stream.data(Kind::Data, buffer.get(..count).unwrap_or_default())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed("read", path)(error)),
        }
    }
}

/// How the name of a staged file ends. Watches know it by that: whether it replaces a file.
fn staged_end(number: u64, replaces: bool) -> String {
    let kind = if replaces { "old" } else { "new" };
    format!(".{}-{number}-{kind}.part", std::process::id())
}

/// Whether a name is that of a file that this daemon writes, and then whether that replaces another.
pub(crate) fn staged(name: &[u8]) -> Option<bool> {
    let name = std::str::from_utf8(name).ok().or_else(|| {
        // What is before the end may be any bytes.
        let dot = name.iter().rposition(|byte| !byte.is_ascii())?;
        std::str::from_utf8(name.get(dot + 1..)?).ok()
    })?;
    let (_, end) = name.strip_suffix(".part")?.rsplit_once('.')?;
    let mut parts = end.split('-');
    let (process, number, kind) = (parts.next()?, parts.next()?, parts.next()?);
    let ours = process.parse() == Ok(std::process::id()) && number.parse::<u64>().is_ok();
    match (ours && parts.next().is_none(), kind) {
        (true, "old") => Some(true),
        (true, "new") => Some(false),
        _ => None,
    }
}

/// A file that is written beside its target, and goes unless it is finished.
struct Staged {
    file: File,
    path: PathBuf,
    finished: bool,
}

impl Staged {
    fn beside(target: &Path, mode: u32, replaces: bool) -> Result<Staged, RequestError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = target.file_name().ok_or_else(|| {
            RequestError::new(
                FailureCode::IsADirectory,
                format!("cannot write {}: not the name of a file", target.display()),
            )
        })?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // A name can have 255 bytes: a long one is not repeated in that of its stage.
        let mut staged = OsString::from(".");
        if name.len() <= 200 {
            staged.push(name);
        }
        staged.push(staged_end(number, replaces));
        let path = target.with_file_name(staged);
        let opened = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let file = opened.map_err(failed("write", target))?;
        let staged = Staged {
            file,
            path,
            finished: false,
        };
        staged
            .file
            .set_permissions(Permissions::from_mode(mode))
            .map_err(failed("write", target))?;
        Ok(staged)
    }

    fn finish(mut self, target: &Path) -> Result<(), RequestError> {
        renameat_with(CWD, &self.path, CWD, target, RenameFlags::empty())
            .map_err(|error| from_errno(error, &format!("write {}", target.display())))?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.finished {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Writes a file whose data follows. A new file, and one whose directory can be written, is replaced
/// at once; a file whose directory cannot, or which is a mount or a device, is written in place.
fn write(
    path: &Path,
    mode: Option<u32>,
    metadata: &BTreeMap<String, String>,
    stream: &mut Stream,
) -> Result<Entry, RequestError> {
    match prepare(path, mode) {
        Ok((mut sink, target)) => {
            while let Some(bytes) = stream.next_data()? {
                if let Err(error) = sink.file().write_all(&bytes) {
                    stream.skip_data()?;
                    return Err(failed("write", path)(error));
                }
            }
            attributes::replace(sink.file(), metadata).map_err(|error| {
                from_errno(error, &format!("keep metadata of {}", path.display()))
            })?;
            if let Sink::Staged(staged) = sink {
                staged.finish(&target)?;
            }
            entry(path)
        }
        Err(error) => {
            stream.skip_data()?;
            Err(error)
        }
    }
}

enum Sink {
    Staged(Staged),
    InPlace(File),
}

impl Sink {
    fn file(&mut self) -> &mut File {
        match self {
            Sink::Staged(staged) => &mut staged.file,
            Sink::InPlace(file) => file,
        }
    }
}

fn prepare(path: &Path, mode: Option<u32>) -> Result<(Sink, PathBuf), RequestError> {
    parents(path)?;
    let mode = mode.map(|mode| mode & 0o777);
    // What a link leads to is replaced, not the link.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let metadata = match fs::metadata(&target) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok((
                Sink::Staged(Staged::beside(&target, mode.unwrap_or(0o644), false)?),
                target,
            ));
        }
        Err(error) => return Err(failed("write", path)(error)),
    };
    if metadata.is_dir() {
        return Err(RequestError::new(
            FailureCode::IsADirectory,
            format!("cannot write {}: it is a directory", path.display()),
        ));
    }
    // A file that may not be written is not replaced either. Without waiting for the reader of a pipe.
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file: File = open(&target, flags, Mode::empty())
        .map_err(|error| failed("write", path)(error.into()))?
        .into();
    let staged = match metadata.is_file() && metadata.nlink() == 1 {
        true => Staged::beside(&target, mode.unwrap_or(metadata.mode() & 0o777), true).ok(),
        false => None,
    };
    match staged {
        Some(staged) => Ok((Sink::Staged(staged), target)),
        None => {
            if metadata.is_file() {
                file.set_len(0).map_err(failed("write", path))?;
            }
            Ok((Sink::InPlace(file), target))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_staged_file_is_known_by_its_name_and_others_are_not() {
        for (before, replaces) in [("a", false), ("\u{fc} b.c-d", true), ("", true)] {
            let name = format!(".{before}{}", staged_end(7, replaces));
            assert_eq!(staged(name.as_bytes()), Some(replaces), "{name}");
        }
        let odd = [b".\xff\xfe".as_slice(), staged_end(7, true).as_bytes()].concat();
        assert_eq!(staged(&odd), Some(true));
        let other = format!(".a.{}-7-old.part", u64::from(std::process::id()) + 1);
        for name in [
            other.as_str(),
            "a",
            ".part",
            "a.part",
            "1-2-old.part",
            ".a.x-7-old.part",
        ] {
            assert_eq!(staged(name.as_bytes()), None, "{name}");
        }
    }
}
