//! Unpacks a layer into an empty directory, as a lower layer of overlayfs.
//!
//! - Every parent is opened with `openat2(RESOLVE_IN_ROOT)`: a link in the layer leads at most to
//!   the top of the layer, as it would in the container.
//! - Owners are dropped: everything belongs to the user who unpacks, and to the agent in a cage.
//! - Deletions (`.wh.NAME`) become the marks of overlayfs that need no privilege.
//! - Extended attributes are dropped, because those of overlayfs would redirect lookups.
//! - What is written is bounded, not only what is read: a sparse file of one block can stand for
//!   exabytes. So is what is kept in memory: a long name can have gigabytes.

use crate::digest::DigestReader;
use crate::error::Doing as _;
use crate::{Digest, ImageError, media};
use ironcage_sys::rustix::fs::{
    AtFlags, Dev, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags, fchmod,
    fsetxattr, futimens, linkat, mkdirat, mknodat, openat, openat2, statat, symlinkat, unlinkat,
    utimensat,
};
use ironcage_sys::rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use tar::{Archive, Entry, EntryType};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// The mark of a directory below which lower layers do not show, without privilege.
pub(crate) const OPAQUE_MARK: &str = "user.overlay.opaque";
const MIB: u64 = 1024 * 1024;
/// The padding of a last file and two empty blocks.
const END: u64 = 3 * 512;

/// What may follow the end of an archive. Tools fill up a record of some kilobytes; a sparse file
/// of terabytes costs nothing to make, and would be read to its end.
const MAX_PADDING: u64 = 64 * MIB;

/// Headers, long names and attributes of one entry. Linux has attributes of up to 64 KiB.
const MAX_HEADERS: u64 = MIB;
/// Names of directories that are kept until the end.
const MAX_NAMES: usize = 256 * 1024 * 1024;

/// How much one layer may hold.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes after decompression.
    pub bytes: u64,
    /// How many times its compressed size a layer may have, once it is past a gibibyte. Layers of
    /// real systems stay below 20; gzip itself reaches 1,032 with zeros.
    pub ratio: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            entries: 4_000_000,
            bytes: 128 * 1024 * MIB,
            ratio: 200,
        }
    }
}

impl Limits {
    fn bytes_for(&self, compressed: u64) -> u64 {
        let by_ratio = compressed.saturating_mul(self.ratio).max(1024 * MIB);
        self.bytes.min(by_ratio)
    }
}

/// What unpacking left out or changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerNotes {
    /// Files, directories, links and deletions.
    pub entries: u64,
    /// Bytes in files.
    pub bytes: u64,
    /// Device nodes and FIFOs, which are skipped.
    pub devices_skipped: u64,
    /// Set-user-ID and set-group-ID bits, which are cleared.
    pub set_id_cleared: u64,
    /// Entries that belonged to somebody else than root, whose owners are dropped.
    pub owners_dropped: u64,
    /// Extended attributes, which are dropped.
    pub attributes_dropped: u64,
}

/// How a layer is compressed, by its first bytes. The media type is somebody's claim.
pub(crate) fn decompressed<'r>(
    mut reader: impl Read + 'r,
    media_type: &str,
) -> Result<Box<dyn Read + 'r>, ImageError> {
    let is_layer = media_type.is_empty()
        || media_type == media::LAYER
        || media_type.contains("image.layer.v1.tar")
        || media_type.contains("image.rootfs.diff.tar")
        || media_type.contains("image.rootfs.foreign.diff.tar");
    if !is_layer {
        return Err(ImageError::LayerType {
            media_type: media_type.chars().take(100).collect(),
        });
    }
    let mut first = [0_u8; 4];
    let mut filled = 0;
    while filled < first.len() {
        let read = reader
            .read(&mut first[filled..])
            .doing("read", "the layer")?;
        if read == 0 {
            break;
        }
        filled += read;
    }
    let whole = io::Cursor::new(first).take(filled as u64).chain(reader);
    Ok(match first {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(whole)),
        [0x28, 0xb5, 0x2f, 0xfd] => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(whole);
            let decoder = decoder.map_err(|error| io::Error::other(error.to_string()));
            Box::new(decoder.doing("decompress", "the layer")?)
        }
        _ => Box::new(whole),
    })
}

/// Unpacks the tar archive `reader` into the empty directory `into`; returns the digest of the
/// whole archive. `compressed` is its size before decompression.
pub(crate) fn unpack(
    reader: impl Read,
    into: BorrowedFd<'_>,
    limits: Limits,
    compressed: u64,
) -> Result<(Digest, LayerNotes), ImageError> {
    let most = limits.bytes_for(compressed);
    // One byte more than allowed tells a layer that ends there from one that goes on.
    let mut reader = DigestReader::new(reader.take(most.saturating_add(1)));
    let mut unpacking = Unpacking {
        root: into,
        notes: LayerNotes::default(),
        limits,
        most,
        directories: Vec::new(),
        names: 0,
    };
    let mut result = Ok(());
    {
        // Some tools (umoci 0.4) leave out the padding and the end of the archive. What is cut off
        // besides is found by the digest.
        let end = io::repeat(0).take(END);
        let headers = Cell::new(None);
        let mut archive = Archive::new(HeaderReader {
            inner: (&mut reader).chain(end),
            left: &headers,
        });
        let mut entries = archive.entries().doing("read", "the layer")?;
        loop {
            headers.set(Some(MAX_HEADERS));
            let next = entries.next();
            headers.set(None);
            let Some(entry) = next else { break };
            result = entry.doing("read", "the layer").and_then(|mut entry| {
                unpacking.entry(&mut entry)?;
                // What nobody wanted of it must not count as headers of the next one.
                let rest = io::copy(&mut entry.take(most), &mut io::sink());
                rest.doing("read", "the layer").map(|_| ())
            });
            if result.is_err() {
                break;
            }
        }
    }
    // A layer that was cut at the limit fails as an archive; the limit is the reason to name.
    if reader.read <= most {
        result?;
        let mut rest = (&mut reader).take(MAX_PADDING + 1);
        if io::copy(&mut rest, &mut io::sink()).doing("read", "the layer")? > MAX_PADDING {
            return Err(ImageError::TooLarge {
                limit: format!("{} MiB after the end of the archive", MAX_PADDING / MIB),
            });
        }
    }
    if reader.read > most {
        return Err(too_large(most));
    }
    unpacking.finish()?;
    Ok((reader.finish(), unpacking.notes))
}

/// Reads an archive. The archive keeps long names and attributes in memory, whatever their size:
/// so while it looks for the next entry, it gets no more than is left.
struct HeaderReader<'a, R> {
    inner: R,
    left: &'a Cell<Option<u64>>,
}

impl<R: Read> Read for HeaderReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        if let Some(left) = self.left.get() {
            let left = left.checked_sub(read as u64);
            self.left.set(Some(left.ok_or_else(|| {
                io::Error::other("an entry has more than a mebibyte of headers")
            })?));
        }
        Ok(read)
    }
}

struct Unpacking<'a> {
    root: BorrowedFd<'a>,
    notes: LayerNotes,
    limits: Limits,
    /// Bytes in files.
    most: u64,
    /// Directories with their times, which later entries in them would change.
    directories: Vec<(PathBuf, u32, u64)>,
    /// Bytes in their names.
    names: usize,
}

/// The name of an entry below the top: `Ok(None)` is the top itself.
fn below(entry: &Path) -> Result<Option<PathBuf>, ImageError> {
    let mut clean = PathBuf::new();
    for part in entry.components() {
        match part {
            Component::Normal(part) => clean.push(part),
            // Archives of some tools begin names with `/` or `./`.
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(refused(entry, "its name leads out of the layer"));
            }
        }
    }
    Ok((!clean.as_os_str().is_empty()).then_some(clean))
}

/// What has a name in a directory, if anything has.
fn kind_of(directory: BorrowedFd<'_>, name: &OsStr) -> Option<FileType> {
    let found = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(found.st_mode))
}

/// Whether a name is marked as deleted; no other device is in a layer.
fn is_deletion(directory: BorrowedFd<'_>, name: &OsStr) -> bool {
    kind_of(directory, name) == Some(FileType::CharacterDevice)
}

/// Marks a directory: what lower layers have in it does not show.
fn hide_lower(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    fsetxattr(directory, OPAQUE_MARK, b"y", XattrFlags::empty())
}

fn too_large(most: u64) -> ImageError {
    ImageError::TooLarge {
        limit: format!("{} MiB after decompression", most / MIB),
    }
}

fn refused(entry: &Path, why: &'static str) -> ImageError {
    ImageError::Entry {
        entry: entry.display().to_string().chars().take(200).collect(),
        why,
    }
}

fn times(seconds: u64) -> Timestamps {
    let time = Timespec {
        // A time past the year 292,277,026,596 is nobody's.
        tv_sec: i64::try_from(seconds).unwrap_or(0),
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

impl Unpacking<'_> {
    fn entry<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<(), ImageError> {
        self.notes.entries += 1;
        if self.notes.entries > self.limits.entries {
            return Err(ImageError::TooLarge {
                limit: format!("{} entries", self.limits.entries),
            });
        }
        let name = entry.path().doing("read", "the layer")?.into_owned();
        let Some(path) = below(&name)? else {
            return Ok(());
        };
        self.count(entry)?;
        let (Some(parent), Some(file_name)) = (path.parent(), path.file_name()) else {
            return Ok(());
        };
        let directory = self.open_parent(parent)?;
        if let Some(deleted) = file_name.as_bytes().strip_prefix(WHITEOUT) {
            return self.deletion(&name, directory.as_fd(), file_name.as_bytes(), deleted);
        }
        let seconds = entry.header().mtime().unwrap_or(0);
        let mode = entry.header().mode().unwrap_or(0o644) & 0o777;
        match entry.header().entry_type() {
            EntryType::Directory => self.directory(&path, directory.as_fd(), mode, seconds),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.file(entry, &name, (directory.as_fd(), file_name), mode, seconds)
            }
            EntryType::Symlink => {
                let to = entry.link_name().doing("read", "the layer")?;
                let to = to.ok_or_else(|| refused(&name, "a link without a target"))?;
                self.clear(&name, directory.as_fd(), file_name)?;
                symlinkat(to.as_os_str(), &directory, file_name).doing("create", &path)?;
                utimensat(
                    &directory,
                    file_name,
                    &times(seconds),
                    AtFlags::SYMLINK_NOFOLLOW,
                )
                .doing("set the time of", &path)
            }
            EntryType::Link => {
                let to = entry.link_name().doing("read", "the layer")?;
                let to = to.ok_or_else(|| refused(&name, "a link without a target"))?;
                let target = below(&to)?.ok_or_else(|| refused(&name, "a hard link to the top"))?;
                let (Some(above), Some(last)) = (target.parent(), target.file_name()) else {
                    return Err(refused(&name, "a hard link to the top"));
                };
                let source = self.open_parent(above)?;
                if target != path {
                    self.clear(&name, directory.as_fd(), file_name)?;
                    linkat(&source, last, &directory, file_name, AtFlags::empty())
                        .doing("link", &path)?;
                }
                Ok(())
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                self.notes.devices_skipped += 1;
                Ok(())
            }
            _ => Err(refused(
                &name,
                "an entry of this type is not allowed in a layer",
            )),
        }
    }

    /// Counts what is dropped of an entry.
    fn count<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<(), ImageError> {
        let header = entry.header();
        let owner = (header.uid().unwrap_or(0), header.gid().unwrap_or(0));
        if owner != (0, 0) {
            self.notes.owners_dropped += 1;
        }
        if header.mode().unwrap_or(0) & 0o6000 != 0 && !header.entry_type().is_dir() {
            self.notes.set_id_cleared += 1;
        }
        if let Some(extensions) = entry.pax_extensions().doing("read", "the layer")? {
            let attributes = extensions.filter(|extension| {
                extension
                    .as_ref()
                    .is_ok_and(|extension| extension.key_bytes().starts_with(b"SCHILY.xattr."))
            });
            self.notes.attributes_dropped += attributes.count() as u64;
        }
        Ok(())
    }

    /// Opens a directory of the layer, and creates what is missing of it.
    fn open_parent(&self, path: &Path) -> Result<OwnedFd, ImageError> {
        let open = |path: &Path| {
            let path = match path.as_os_str().is_empty() {
                true => Path::new("."),
                false => path,
            };
            openat2(
                self.root,
                path,
                OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC,
                Mode::empty(),
                ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
            )
        };
        match open(path) {
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            other => return other.doing("open", path),
        }
        let mut directory = open(Path::new("")).doing("open", path)?;
        let mut so_far = PathBuf::new();
        for part in path.components() {
            so_far.push(part);
            directory = match open(&so_far) {
                Ok(directory) => directory,
                Err(Errno::NOENT) => {
                    match mkdirat(&directory, part.as_os_str(), Mode::from(0o755)) {
                        Err(Errno::EXIST) => {
                            return Err(refused(path, "its name leads through a link to nothing"));
                        }
                        made => made.doing("create", &so_far)?,
                    }
                    open(&so_far).doing("open", &so_far)?
                }
                Err(Errno::NOTDIR) if is_deletion(directory.as_fd(), part.as_os_str()) => {
                    self.replace_by_directory(&so_far, directory.as_fd(), part.as_os_str(), 0o755)?;
                    open(&so_far).doing("open", &so_far)?
                }
                Err(error) => return Err(error).doing("open", &so_far),
            };
        }
        Ok(directory)
    }

    /// Makes room for an entry: a later one replaces an earlier one.
    fn clear(
        &self,
        name: &Path,
        directory: BorrowedFd<'_>,
        file_name: &OsStr,
    ) -> Result<(), ImageError> {
        match unlinkat(directory, file_name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR) => match unlinkat(directory, file_name, AtFlags::REMOVEDIR) {
                Ok(()) => Ok(()),
                Err(_) => Err(refused(
                    name,
                    "it would replace a directory that is not empty",
                )),
            },
            Err(error) => Err(error).doing("replace", name),
        }
    }

    /// Puts a directory in the place of a deletion, a file or a link of this layer. What lower
    /// layers have there was hidden by it, and stays hidden.
    fn replace_by_directory(
        &self,
        path: &Path,
        directory: BorrowedFd<'_>,
        file_name: &OsStr,
        mode: u32,
    ) -> Result<(), ImageError> {
        self.clear(path, directory, file_name)?;
        mkdirat(directory, file_name, Mode::from(mode)).doing("create", path)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat(directory, file_name, flags, Mode::empty()).doing("open", path)?;
        hide_lower(made.as_fd()).doing("mark", path)
    }

    fn deletion(
        &self,
        name: &Path,
        directory: BorrowedFd<'_>,
        file_name: &[u8],
        deleted: &[u8],
    ) -> Result<(), ImageError> {
        if file_name == OPAQUE {
            return hide_lower(directory).doing("mark", name);
        }
        if deleted.is_empty()
            || [&b"."[..], b".."].contains(&deleted)
            || deleted.starts_with(WHITEOUT)
        {
            return Err(refused(name, "it deletes nothing that can have a name"));
        }
        let deleted = OsStr::from_bytes(deleted);
        // A deletion is of what lower layers have, whatever the order of entries in this one.
        match kind_of(directory, deleted) {
            None => {}
            Some(FileType::Directory) => {
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let own = openat(directory, deleted, flags, Mode::empty()).doing("open", name)?;
                return hide_lower(own.as_fd()).doing("mark", name);
            }
            // It hides what is below it already.
            Some(_) => return Ok(()),
        }
        // Device 0:0 is overlayfs's mark of a deletion; making it needs no privilege.
        mknodat(
            directory,
            deleted,
            FileType::CharacterDevice,
            Mode::empty(),
            Dev::from(0_u8),
        )
        .doing("mark", name)
    }

    fn directory(
        &mut self,
        path: &Path,
        directory: BorrowedFd<'_>,
        mode: u32,
        seconds: u64,
    ) -> Result<(), ImageError> {
        let Some(file_name) = path.file_name() else {
            return Ok(());
        };
        match mkdirat(directory, file_name, Mode::from(0o700)) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                if kind_of(directory, file_name) != Some(FileType::Directory) {
                    self.replace_by_directory(path, directory, file_name, 0o700)?;
                }
            }
            Err(error) => return Err(error).doing("create", path),
        }
        self.names += path.as_os_str().len();
        if self.names > MAX_NAMES {
            return Err(ImageError::TooLarge {
                limit: format!("{MAX_NAMES} bytes in names of directories"),
            });
        }
        self.directories.push((path.to_owned(), mode, seconds));
        Ok(())
    }

    fn file<R: Read>(
        &mut self,
        entry: &mut Entry<'_, R>,
        name: &Path,
        (directory, file_name): (BorrowedFd<'_>, &OsStr),
        mode: u32,
        seconds: u64,
    ) -> Result<(), ImageError> {
        self.clear(name, directory, file_name)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, file_name, flags, Mode::from(0o600)).doing("create", name)?;
        let mut file = File::from(file);
        let left = self.most.saturating_sub(self.notes.bytes);
        let mut content = entry.take(left.saturating_add(1));
        let written = io::copy(&mut content, &mut file).doing("write", name)?;
        if written > left {
            return Err(too_large(self.most));
        }
        self.notes.bytes += written;
        file.flush().doing("write", name)?;
        // The user who unpacks must be able to read, export and remove it.
        fchmod(&file, Mode::from(mode | 0o400)).doing("set the mode of", name)?;
        futimens(&file, &times(seconds)).doing("set the time of", name)
    }

    /// Modes and times of directories, once nothing is put into them any more.
    fn finish(&mut self) -> Result<(), ImageError> {
        for (path, mode, seconds) in std::mem::take(&mut self.directories).into_iter().rev() {
            let parent = self.open_parent(path.parent().unwrap_or(Path::new("")))?;
            let Some(file_name) = path.file_name() else {
                continue;
            };
            let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            // A later entry may have replaced it.
            let Ok(directory) = openat(&parent, file_name, flags, Mode::empty()) else {
                continue;
            };
            fchmod(&directory, Mode::from(mode | 0o700)).doing("set the mode of", &path)?;
            futimens(&directory, &times(seconds)).doing("set the time of", &path)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
