//! Archives of what the agent wrote: the files of a snapshot.
//!
//! Both directions run as the agent in its own cage. A file that is written meanwhile is archived with
//! the length that it had when its turn came.

use crate::attributes;
use crate::connection::{RequestError, Stream};
use crate::protocol::{CHUNK, FailureCode, Kind};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};
use tar::{Archive, Builder, Entry, EntryType, Header};

/// Entries of one archive, and how deep it goes.
const MOST_ENTRIES: usize = 1_000_000;
const DEEPEST: usize = 128;
/// How attributes stand in an archive, as GNU tar has them.
const ATTRIBUTE: &str = "SCHILY.xattr.";

fn failed(verb: &str, path: &Path) -> impl FnOnce(io::Error) -> RequestError {
    RequestError::io(format!("{verb} {}", path.display()))
}

/// Data of an answer.
struct Frames<'a>(&'a mut Stream);

impl Write for Frames<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.data(Kind::Data, bytes);
        sent.map_err(|error| match error {
            RequestError::Connection(error) => error,
            RequestError::Failed(failure) => io::Error::other(failure),
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends an archive of directories.
pub(crate) fn pack(
    paths: &[PathBuf],
    except: HashSet<PathBuf>,
    stream: &mut Stream,
) -> Result<(), RequestError> {
    let mut packer = Packer {
        archive: Builder::new(BufWriter::with_capacity(CHUNK, Frames(stream))),
        links: HashMap::new(),
        seen: HashSet::new(),
        except,
        entries: 0,
    };
    for path in paths {
        // What is missing has no files.
        if let Ok(metadata) = fs::symlink_metadata(path) {
            packer.directory(path, metadata.dev(), 0)?;
        }
    }
    let ended = packer.archive.into_inner().and_then(|mut out| out.flush());
    // Only the connection can fail here.
    ended.map_err(RequestError::Connection)
}

struct Packer<W: Write> {
    archive: Builder<W>,
    /// Files with several names, by their inode.
    links: HashMap<(u64, u64), PathBuf>,
    /// Directories that are in the archive: one may be below another.
    seen: HashSet<PathBuf>,
    except: HashSet<PathBuf>,
    entries: usize,
}

impl<W: Write> Packer<W> {
    fn directory(&mut self, path: &Path, device: u64, depth: usize) -> Result<(), RequestError> {
        if depth > DEEPEST || !self.seen.insert(path.to_owned()) {
            return Ok(());
        }
        // One that went meanwhile has nothing.
        let Ok(found) = fs::read_dir(path) else {
            return Ok(());
        };
        for entry in found.flatten() {
            let path = entry.path();
            let Ok(metadata) = fs::symlink_metadata(&path) else {
                continue;
            };
            // What is mounted there comes with the next cage.
            if metadata.dev() != device || self.except.contains(&path) {
                continue;
            }
            self.entries += 1;
            if self.entries > MOST_ENTRIES {
                return Err(RequestError::new(
                    FailureCode::TooMany,
                    format!("cannot archive more than {MOST_ENTRIES} files"),
                ));
            }
            self.entry(&path, &metadata)?;
            if metadata.is_dir() {
                self.directory(&path, device, depth + 1)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, metadata: &Metadata) -> Result<(), RequestError> {
        let name = path.strip_prefix("/").unwrap_or(path).to_owned();
        let mut header = Header::new_gnu();
        header.set_mode(metadata.mode() & 0o7777);
        header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
        header.set_size(0);
        let kind = metadata.file_type();
        let sent = |done: io::Result<()>| done.map_err(RequestError::Connection);
        if kind.is_symlink() {
            let Ok(target) = fs::read_link(path) else {
                return Ok(());
            };
            header.set_entry_type(EntryType::Symlink);
            return sent(self.archive.append_link(&mut header, name, target));
        }
        if kind.is_dir() {
            header.set_entry_type(EntryType::Directory);
            self.attributes(path)?;
            return sent(self.archive.append_data(&mut header, name, io::empty()));
        }
        // Sockets, pipes and devices belong to processes.
        if !kind.is_file() {
            return Ok(());
        }
        if metadata.nlink() > 1 {
            let inode = (metadata.dev(), metadata.ino());
            if let Some(first) = self.links.get(&inode) {
                header.set_entry_type(EntryType::Link);
                return sent(self.archive.append_link(&mut header, name, first));
            }
            self.links.insert(inode, name.clone());
        }
        let Ok(file) = File::open(path) else {
            return Err(RequestError::new(
                FailureCode::PermissionDenied,
                format!("cannot archive {}: it cannot be read", path.display()),
            ));
        };
        header.set_entry_type(EntryType::Regular);
        header.set_size(metadata.len());
        self.attributes(path)?;
        // One that became shorter ends with zeros.
        let data = file.chain(io::repeat(0)).take(metadata.len());
        sent(self.archive.append_data(&mut header, name, data))
    }

    fn attributes(&mut self, path: &Path) -> Result<(), RequestError> {
        let found: Vec<_> = attributes::read(path)
            .into_iter()
            .map(|(key, value)| {
                let name = format!("{ATTRIBUTE}{}{key}", attributes::PREFIX);
                (name, value.into_bytes())
            })
            .collect();
        if found.is_empty() {
            return Ok(());
        }
        let found = found.iter().map(|(name, value)| (&**name, &**value));
        self.archive
            .append_pax_extensions(found)
            .map_err(RequestError::Connection)
    }
}

/// Data of a request.
struct Incoming<'a> {
    stream: &'a mut Stream,
    left: Vec<u8>,
    at: usize,
    ended: bool,
}

impl Read for Incoming<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.left.len() && !self.ended {
            match self.stream.next_data() {
                Ok(Some(bytes)) => (self.left, self.at) = (bytes, 0),
                Ok(None) => self.ended = true,
                Err(RequestError::Connection(error)) => return Err(error),
                Err(RequestError::Failed(failure)) => return Err(io::Error::other(failure)),
            }
        }
        let rest = self.left.get(self.at..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..count), rest.get(..count)) {
            to.copy_from_slice(from);
        }
        self.at += count;
        Ok(count)
    }
}

/// Unpacks an archive that follows.
pub(crate) fn unpack(
    clear: Vec<PathBuf>,
    into: &Path,
    stream: &mut Stream,
) -> Result<(), RequestError> {
    let mut incoming = Incoming {
        stream,
        left: Vec::new(),
        at: 0,
        ended: false,
    };
    let done = unpack_from(clear, into, &mut incoming);
    let ended = incoming.ended;
    match done {
        Err(RequestError::Connection(error)) => Err(error.into()),
        done => {
            if !ended {
                stream.skip_data()?;
            }
            done
        }
    }
}

fn unpack_from(
    clear: Vec<PathBuf>,
    into: &Path,
    incoming: &mut Incoming<'_>,
) -> Result<(), RequestError> {
    for path in clear {
        if let Ok(metadata) = fs::symlink_metadata(&path) {
            empty(&path, metadata.dev());
        }
    }
    let broken = |error: io::Error| {
        RequestError::new(
            FailureCode::InvalidArgument,
            format!("the archive is not valid: {error}"),
        )
    };
    // Times of directories change with what is put into them.
    let mut times = BTreeMap::new();
    let mut archive = Archive::new(incoming);
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let name = entry.path().map_err(broken)?.into_owned();
        let path = below(into, &name)?;
        let (mode, time) = {
            let header = entry.header();
            (
                header.mode().map_err(broken)?,
                header.mtime().map_err(broken)?,
            )
        };
        let attributes = attributes_of(&mut entry);
        let made = match entry.header().entry_type() {
            EntryType::Directory => {
                times.insert(path.clone(), (mode, time));
                fs::create_dir_all(&path)
            }
            EntryType::Symlink => {
                let target = entry.link_name().map_err(broken)?.unwrap_or_default();
                replaced(&path).and_then(|()| symlink(target, &path))
            }
            EntryType::Link => {
                let target = entry.link_name().map_err(broken)?.unwrap_or_default();
                let target = below(into, &target)?;
                replaced(&path).and_then(|()| fs::hard_link(target, &path))
            }
            EntryType::Regular => write(&path, &mut entry, mode, time, &attributes),
            _ => Ok(()),
        };
        made.map_err(failed("restore", &path))?;
    }
    for (path, (mode, time)) in times.into_iter().rev() {
        let has = fs::symlink_metadata(&path).map_err(failed("restore", &path))?;
        // Those that a cage begins with belong to others, and have their modes.
        if has.mode() & 0o7777 != mode & 0o7777 {
            let set = fs::set_permissions(&path, Permissions::from_mode(mode & 0o7777));
            set.map_err(failed("restore", &path))?;
        }
        if let Ok(directory) = File::open(&path) {
            // A time that its file system does not take is not worth the restore.
            let _ = directory.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(time));
        }
    }
    Ok(())
}

fn write(
    path: &Path,
    data: &mut impl Read,
    mode: u32,
    time: u64,
    metadata: &BTreeMap<String, String>,
) -> io::Result<()> {
    replaced(path)?;
    let mut file = File::create_new(path)?;
    io::copy(data, &mut file)?;
    attributes::replace(&file, metadata)?;
    file.set_permissions(Permissions::from_mode(mode & 0o7777))?;
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(time))
}

/// Makes room for a file: its parents are there, and nothing is in its place.
fn replaced(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    }
}

fn attributes_of<R: Read>(entry: &mut Entry<'_, R>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for extension in entry
        .pax_extensions()
        .into_iter()
        .flatten()
        .flatten()
        .flatten()
    {
        let (Ok(name), Ok(value)) = (extension.key(), extension.value()) else {
            continue;
        };
        let name = name.strip_prefix(ATTRIBUTE);
        if let Some(key) = name.and_then(|name| name.strip_prefix(attributes::PREFIX)) {
            found.insert(key.to_owned(), value.to_owned());
        }
    }
    found
}

fn below(directory: &Path, name: &Path) -> Result<PathBuf, RequestError> {
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    match name.components().all(plain) {
        true => Ok(directory.join(name)),
        false => Err(RequestError::new(
            FailureCode::InvalidArgument,
            format!("the archive has the name {}", name.display()),
        )),
    }
}

/// Removes what is in a directory, but not what is mounted there.
fn empty(path: &Path, device: u64) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let path = entry.path();
        match fs::symlink_metadata(&path) {
            Ok(found) if found.dev() != device => {}
            Ok(found) if found.is_dir() => {
                empty(&path, device);
                // One in which something is mounted stays.
                let _ = fs::remove_dir(&path);
            }
            _ => drop(fs::remove_file(&path)),
        }
    }
}
