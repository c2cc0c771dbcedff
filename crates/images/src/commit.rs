//! Makes an image of what a cage wrote to its writable system: one more layer on the image that it
//! was started from.
//!
//! The layer was written by an agent. It is read without following a link, and then takes the same
//! way as a layer from a registry: its archive is checked and unpacked by [`crate::unpack`].

use crate::archive::{add_manifest, descriptor};
use crate::config::parse;
use crate::error::Doing as _;
use crate::store::listed;
use crate::system::UPPER;
use crate::{
    Digest, DigestWriter, Image, ImageError, Limits, Manifest, Reference, Store, WritableSystem,
    media, tree,
};
use ironcage_sys::rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, fgetxattr, fstat, openat, readlinkat, statat,
};
use ironcage_sys::rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use tar::{Builder, EntryType, Header};

/// How deep directories are read; unpacking allows no deeper ones.
const MOST_DEPTH: usize = 256;
/// Bytes of all files together that are in holes, and so not on disk: an archive has them, too.
const MOST_IN_HOLES: u64 = 1 << 30;
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &str = ".wh..wh..opq";

/// Makes an image of a writable system, under a name.
///
/// # Errors
/// If a cage uses the system, nothing was written to it, or its image is gone.
pub fn commit(
    store: &Store,
    system: &WritableSystem,
    name: &Reference,
) -> Result<Image, ImageError> {
    let base = system.base().ok_or(ImageError::NothingToCommit)?;
    let _claim = system.claim_after_end()?;
    let _adding = store.adding()?;
    let base = store.image(&base.to_string())?;
    let (temporary, file) = store.temporary_file()?;
    let written = write_layer(file, &system.layers());
    let result = written.and_then(|layer| match layer.entries {
        0 => Err(ImageError::NothingToCommit),
        _ => add(store, &base, (&temporary, layer), name),
    });
    // After success it has another name.
    let _ = std::fs::remove_file(&temporary);
    result
}

/// A layer in a file that is not in the store yet.
pub(crate) struct WrittenLayer {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) entries: u64,
}

fn write_layer(file: File, layers: &Path) -> Result<WrittenLayer, ImageError> {
    let mut layer = LayerWriter::new(file);
    for name in listed(layers)? {
        let path = layers.join(&name).join(UPPER);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let upper = openat(CWD, &path, flags, Mode::empty()).doing("open", &path)?;
        let before = layer.entries;
        layer.children(&upper, Path::new(&name), 0)?;
        // The directory itself is no change unless something in it is.
        if layer.entries > before {
            let mode = fstat(&upper).doing("look at", path)?.st_mode;
            layer.add(Path::new(&name), EntryType::Directory, mode)?;
        }
    }
    layer.finish()
}

/// Writes a directory as a layer, without what a cage has of its own.
pub(crate) fn write_tree(
    file: File,
    directory: &File,
    path: &Path,
) -> Result<WrittenLayer, ImageError> {
    let mut layer = LayerWriter::new(file);
    for name in names(directory, path)? {
        if tree::belongs(&name) {
            layer.entry(directory.as_fd(), &name, Path::new(&name), 0)?;
        }
    }
    layer.finish()
}

fn add(
    store: &Store,
    base: &Image,
    (temporary, layer): (&Path, WrittenLayer),
    name: &Reference,
) -> Result<Image, ImageError> {
    store.add_file(temporary, &layer.digest)?;
    let manifest: Manifest = parse(&store.document(&base.digest)?, "the manifest")?;
    // Kept as a whole: it has fields that nothing here reads.
    let bytes = store.document(&manifest.config.digest)?;
    let mut config: serde_json::Value = parse(&bytes, "the configuration")?;
    let inconsistent = || ImageError::Inconsistent {
        why: "its configuration has no list of layers".into(),
    };
    let ids = config.pointer_mut("/rootfs/diff_ids");
    let ids = ids.and_then(serde_json::Value::as_array_mut);
    ids.ok_or_else(inconsistent)?
        .push(layer.digest.to_string().into());
    if let Some(history) = config
        .get_mut("history")
        .and_then(serde_json::Value::as_array_mut)
    {
        history.push(serde_json::json!({"created_by": "ironcage image commit"}));
    }
    let config = serde_json::to_vec(&config).map_err(|source| ImageError::BadDocument {
        what: "the configuration",
        source,
    })?;
    let digest = Digest::of(&config);
    store.add_blob(config.as_slice(), &digest)?;
    let mut layers = manifest.layers;
    layers.push(descriptor(media::LAYER, layer.digest, layer.size));
    let config = descriptor(media::CONFIG, digest, config.len() as u64);
    let digest = add_manifest(store, config, layers)?;
    store.add_image(
        &digest,
        std::slice::from_ref(name),
        Limits::default(),
        |_, _| {},
    )
}

struct LayerWriter<W: Write> {
    archive: Builder<W>,
    /// Files with several names, by device and inode.
    links: HashMap<(u64, u64), PathBuf>,
    entries: u64,
    /// Bytes in holes of files.
    in_holes: u64,
}

type LayerFile = DigestWriter<io::BufWriter<File>>;

impl LayerWriter<LayerFile> {
    fn new(file: File) -> Self {
        let writer = DigestWriter::new(io::BufWriter::with_capacity(1 << 18, file));
        LayerWriter {
            archive: Builder::new(writer),
            links: HashMap::new(),
            entries: 0,
            in_holes: 0,
        }
    }

    fn finish(self) -> Result<WrittenLayer, ImageError> {
        let entries = self.entries;
        let writer = self.archive.into_inner().doing("write", "the layer")?;
        let (digest, mut inner) = writer.finish();
        inner.flush().doing("write", "the layer")?;
        let file = inner
            .into_inner()
            .map_err(io::IntoInnerError::into_error)
            .doing("write", "the layer")?;
        let size = file.metadata().doing("look at", "the layer")?.len();
        Ok(WrittenLayer {
            digest,
            size,
            entries,
        })
    }
}

impl<W: Write> LayerWriter<W> {
    fn header(kind: EntryType, mode: u32) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode & 0o1777);
        header.set_size(0);
        header.set_mtime(0);
        header
    }

    fn add(&mut self, path: &Path, kind: EntryType, mode: u32) -> Result<(), ImageError> {
        let mut header = Self::header(kind, mode);
        self.entries += 1;
        self.archive
            .append_data(&mut header, path, io::empty())
            .doing("write", path)
    }

    fn children(
        &mut self,
        directory: &OwnedFd,
        path: &Path,
        depth: usize,
    ) -> Result<(), ImageError> {
        if depth > MOST_DEPTH {
            return Err(ImageError::Entry {
                entry: path.display().to_string(),
                why: "it lies too deep",
            });
        }
        for name in names(directory, path)? {
            self.entry(directory.as_fd(), &name, &path.join(&name), depth)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
        depth: usize,
    ) -> Result<(), ImageError> {
        if name.as_bytes().starts_with(WHITEOUT) {
            return Err(ImageError::Entry {
                entry: path.display().to_string(),
                why: "names that begin with .wh. mean deletions in a layer",
            });
        }
        let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).doing("look at", path)?;
        let open = |flags: OFlags| {
            let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(directory, name, flags, Mode::empty()).doing("open", path)
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let below = open(OFlags::DIRECTORY)?;
                self.add(path, EntryType::Directory, stat.st_mode)?;
                if is_opaque(&below).doing("read", path)? {
                    self.add(&path.join(OPAQUE), EntryType::Regular, 0o644)?;
                }
                self.children(&below, path, depth + 1)
            }
            FileType::RegularFile => {
                if stat.st_nlink > 1 {
                    let inode = (stat.st_dev, stat.st_ino);
                    if let Some(first) = self.links.get(&inode) {
                        let mut header = Self::header(EntryType::Link, stat.st_mode);
                        self.entries += 1;
                        return self
                            .archive
                            .append_link(&mut header, path, first)
                            .doing("write", path);
                    }
                    self.links.insert(inode, path.to_owned());
                }
                // A FIFO in its place would be waited for.
                let file = File::from(open(OFlags::NONBLOCK)?);
                let found = file.metadata().doing("look at", path)?;
                let size = found.len();
                let on_disk = found.blocks().saturating_mul(512);
                self.in_holes += size.saturating_sub(on_disk);
                if self.in_holes > MOST_IN_HOLES {
                    return Err(ImageError::Entry {
                        entry: path.display().to_string(),
                        why: "it is sparse, and the holes of the layer have more than 1 GiB",
                    });
                }
                let mut header = Self::header(EntryType::Regular, stat.st_mode);
                header.set_size(size);
                self.entries += 1;
                // Exactly what the header says, whatever the file has become.
                self.archive
                    .append_data(&mut header, path, io::Read::take(file, size))
                    .doing("write", path)
            }
            FileType::Symlink => {
                let to = readlinkat(directory, name, Vec::new()).doing("read", path)?;
                let to = PathBuf::from(OsString::from_vec(to.into_bytes()));
                let mut header = Self::header(EntryType::Symlink, 0o777);
                self.entries += 1;
                self.archive
                    .append_link(&mut header, path, to)
                    .doing("write", path)
            }
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                let mut mark = OsString::from_vec(WHITEOUT.to_vec());
                mark.push(name);
                self.add(&path.with_file_name(mark), EntryType::Regular, 0o644)
            }
            // Sockets and pipes belong to processes that are gone.
            _ => Ok(()),
        }
    }
}

/// The names in a directory, sorted, so that the same tree gives the same layer.
fn names(directory: impl AsFd, path: &Path) -> Result<Vec<OsString>, ImageError> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).doing("list", path)? {
        let entry = entry.doing("list", path)?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Whether overlayfs shows nothing of the directory below.
fn is_opaque(directory: &OwnedFd) -> io::Result<bool> {
    let mut value = [0_u8; 8];
    match fgetxattr(directory, "user.overlay.opaque", &mut value[..]) {
        Ok(length) => Ok(value.get(..length) == Some(b"y")),
        Err(Errno::NODATA | Errno::NOTSUP | Errno::RANGE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
