//! The store: blobs, unpacked layers and images by digest, and names that point to images.
//!
//! ```text
//! lock            shared while something is added, exclusive while something is removed
//! blobs/HEX       manifests, configurations and layers as they were fetched
//! partial/HEX     downloads that are not complete
//! layers/HEX/     an unpacked layer, by the digest of its archive: `tree` and `notes.json`
//! roots/HEX/      the layers of an image joined, by the digest of its manifest
//! images/HEX      what an image is, by the digest of its manifest
//! names/NAME      the digest that a name stands for
//! uses/HEX        held by each cage that runs the image
//! templates/      what templates are built of and lead to (`template.rs`)
//! systems/KEY/    what the last cage of a workspace wrote to its image (`system.rs`)
//! temporary/      what is not complete; a later `prune` removes it
//! ```
//!
//! Everything appears under its name by one rename, after its digest was checked. A process that
//! is killed leaves at most files in `partial` and `temporary`.

use crate::config::{MAX_DOCUMENT, parse};
use crate::error::Doing as _;
use crate::flatten::flatten;
use crate::unpack::{decompressed, unpack};
use crate::{
    Descriptor, Digest, DigestWriter, ImageConfig, ImageError, LayerNotes, Limits, Manifest,
    Reference, RunConfig,
};
use ironcage_files::{Links, read};
use ironcage_state::remove_tree;
use ironcage_sys::faults::step;
use ironcage_sys::rustix::fs::{FlockOperation, Mode, OFlags, flock, open, syncfs};
use ironcage_sys::rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

const TREE: &str = "tree";
const NOTES: &str = "notes.json";
const DIRECTORIES: [&str; 8] = [
    "blobs",
    "partial",
    "layers",
    "roots",
    "images",
    "names",
    "uses",
    "temporary",
];
/// The fewest digits by which an image is found.
const LEAST_DIGITS: usize = 4;

/// The images of one user.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) root: PathBuf,
    /// It is root's, and read by everybody.
    pub(crate) shared: bool,
}

/// Content in the store.
#[derive(Debug, Clone)]
pub struct Blob {
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
}

/// An image whose layers are unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The digests of its uncompressed layers, the lowest first.
    pub layers: Vec<Digest>,
    /// How a program is started in it.
    pub run: RunConfig,
    /// When it was made, as its maker says.
    pub created: Option<String>,
    /// The size of its layers as they were fetched.
    pub size: u64,
    /// What unpacking left out.
    pub notes: LayerNotes,
    #[serde(skip)]
    pub names: Vec<String>,
}

/// What [`Store::prune`] removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Images, by name or digest.
    pub images: Vec<String>,
    /// Unpacked layers.
    pub layers: u64,
    pub blob_bytes: u64,
}

/// Keeps an image from being removed.
#[derive(Debug)]
pub struct ImageUse(#[expect(dead_code, reason = "the lock is what counts")] OwnedFd);

/// Keeps anything from being removed while something is added.
#[derive(Debug)]
pub struct Adding(#[expect(dead_code, reason = "the lock is what counts")] OwnedFd);

impl ImageUse {
    pub(crate) fn of(held: OwnedFd) -> Self {
        ImageUse(held)
    }
}

impl Store {
    /// Whether it is the store of all users, which nobody changes from a cage.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// The store in a directory, which is created if it is missing.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn open(root: &Path) -> Result<Self, ImageError> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        for name in DIRECTORIES {
            let path = root.join(name);
            builder.create(&path).doing("create", path)?;
        }
        Ok(Store::at(root))
    }

    /// The same without creating anything, for who only reads.
    pub fn at(root: &Path) -> Self {
        Store {
            root: root.to_owned(),
            shared: false,
        }
    }

    pub(crate) fn path(&self, directory: &str, digest: &Digest) -> PathBuf {
        self.root.join(directory).join(digest.hex())
    }

    pub(crate) fn lock_file(
        path: &Path,
        operation: FlockOperation,
    ) -> Result<Result<OwnedFd, Errno>, ImageError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::from(0o600)).doing("open", path)?;
        Ok(match flock(&file, operation) {
            Ok(()) => Ok(file),
            Err(Errno::WOULDBLOCK) => Err(Errno::WOULDBLOCK),
            Err(error) => return Err(error).doing("lock", path),
        })
    }

    /// To be held while an image is added: nothing is removed meanwhile.
    ///
    /// # Errors
    /// If the lock file cannot be opened.
    pub fn adding(&self) -> Result<Adding, ImageError> {
        let path = self.root.join("lock");
        let locked = Self::lock_file(&path, FlockOperation::LockShared)?;
        locked.doing("lock", path).map(Adding)
    }

    pub(crate) fn removing(&self) -> Result<OwnedFd, ImageError> {
        let path = self.root.join("lock");
        Self::lock_file(&path, FlockOperation::LockExclusive)?.doing("lock", path)
    }

    /// To be held by a cage that runs an image.
    ///
    /// # Errors
    /// If the image was removed meanwhile.
    pub fn use_image(&self, image: &Image) -> Result<ImageUse, ImageError> {
        if self.shared {
            return self.use_shared(image);
        }
        let path = self.path("uses", &image.digest);
        let held = Self::lock_file(&path, FlockOperation::LockShared)?.doing("lock", &path)?;
        match self.path("images", &image.digest).exists() {
            true => Ok(ImageUse(held)),
            false => Err(ImageError::Missing { name: image.name() }),
        }
    }

    /// The directory of an unpacked layer.
    pub fn layer_tree(&self, diff_id: &Digest) -> PathBuf {
        self.path("layers", diff_id).join(TREE)
    }

    /// Content that is in the store.
    pub fn blob(&self, digest: &Digest) -> Option<Blob> {
        let path = self.path("blobs", digest);
        let size = fs::metadata(&path).ok()?.len();
        Some(Blob { path, size })
    }

    /// Reads a document that is in the store.
    ///
    /// # Errors
    /// If it is missing or too large.
    pub fn document(&self, digest: &Digest) -> Result<Vec<u8>, ImageError> {
        let path = self.path("blobs", digest);
        read(&path, MAX_DOCUMENT, Links::Refuse)
            .map_err(io::Error::other)
            .doing("read", path)
    }

    /// Adds content that must have a digest.
    ///
    /// # Errors
    /// If it has another, or cannot be written.
    pub fn add_blob(&self, mut content: impl Read, digest: &Digest) -> Result<(), ImageError> {
        if self.blob(digest).is_some() {
            return Ok(());
        }
        let (path, file) = self.temporary_file()?;
        let mut writer = DigestWriter::new(file);
        let copied = io::copy(&mut content, &mut writer).doing("write", &path);
        let (actual, _) = writer.finish();
        let result = copied.and_then(|_| self.keep(&path, digest, actual));
        if result.is_err() {
            let _ = fs::remove_file(&path);
        }
        result
    }

    /// Adds a file whose digest is known as content.
    ///
    /// # Errors
    /// If its content has another digest, or cannot be written.
    pub(crate) fn add_file(&self, path: &Path, digest: &Digest) -> Result<(), ImageError> {
        self.add_blob(File::open(path).doing("open", path)?, digest)
    }

    /// The file of a download: what is in it already is kept, and more is appended.
    ///
    /// # Errors
    /// If it cannot be opened, or another process writes it.
    pub fn partial(&self, digest: &Digest) -> Result<(PathBuf, File), ImageError> {
        let path = self.path("partial", digest);
        let held = Self::lock_file(&path, FlockOperation::NonBlockingLockExclusive)?;
        let file = held
            .map_err(|_| io::Error::other("another process is fetching it"))
            .doing("write", &path)?;
        let mut file = File::from(file);
        file.seek(io::SeekFrom::End(0)).doing("read", &path)?;
        Ok((path, file))
    }

    /// Makes a complete download a blob.
    ///
    /// # Errors
    /// If its digest is another: then it is removed.
    pub fn finish_partial(&self, digest: &Digest) -> Result<(), ImageError> {
        let path = self.path("partial", digest);
        let file = File::open(&path).doing("open", &path)?;
        let (actual, _) = Digest::of_reader(file).doing("read", &path)?;
        let result = self.keep(&path, digest, actual);
        if result.is_err() {
            let _ = fs::remove_file(&path);
        }
        result
    }

    fn keep(&self, from: &Path, expected: &Digest, actual: Digest) -> Result<(), ImageError> {
        if actual != *expected {
            return Err(ImageError::WrongDigest {
                what: "the content".into(),
                expected: expected.clone(),
                actual,
            });
        }
        let to = self.path("blobs", expected);
        step();
        fs::rename(from, &to).doing("create", to)?;
        step();
        Ok(())
    }

    pub(crate) fn temporary_file(&self) -> Result<(PathBuf, File), ImageError> {
        let path = self.temporary_path();
        let file = File::options().write(true).create_new(true).open(&path);
        file.doing("create", &path).map(|file| (path, file))
    }

    /// A new directory for what is not complete.
    pub(crate) fn temporary_directory(&self) -> Result<Temporary, ImageError> {
        let path = self.temporary_path();
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700).create(&path).doing("create", &path)?;
        Ok(Temporary { path })
    }

    fn temporary_path(&self) -> PathBuf {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let nanoseconds = now.map_or(0, |now| now.as_nanos());
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{nanoseconds}-{number}", std::process::id());
        self.root.join("temporary").join(name)
    }

    /// Unpacks a layer whose blob is in the store, unless it is unpacked already.
    ///
    /// # Errors
    /// If its content differs from its digest, or must not be unpacked.
    pub fn unpack_layer(
        &self,
        layer: &Descriptor,
        diff_id: &Digest,
        limits: Limits,
    ) -> Result<LayerNotes, ImageError> {
        let place = self.path("layers", diff_id);
        if let Ok(notes) = read(&place.join(NOTES), MAX_DOCUMENT, Links::Refuse) {
            return parse(&notes, "the notes of a layer");
        }
        let path = self.path("blobs", &layer.digest);
        let blob = File::open(&path).doing("open", &path)?;
        let size = blob.metadata().doing("look at", &path)?.len();
        let archive = decompressed(
            io::BufReader::with_capacity(1 << 18, blob),
            &layer.media_type,
        )?;
        let work = self.temporary_directory()?;
        let tree = work.path.join(TREE);
        // Overlayfs shows the mode of the upper-most directory; a layer's own top is not shown.
        fs::DirBuilder::new()
            .mode(0o755)
            .create(&tree)
            .doing("create", &tree)?;
        let into = File::open(&tree).doing("open", &tree)?;
        let (actual, notes) = unpack(archive, into.as_fd(), limits, size)?;
        if actual != *diff_id {
            return Err(ImageError::WrongDigest {
                what: format!("layer {} after decompression", layer.digest.short()),
                expected: diff_id.clone(),
                actual,
            });
        }
        let text = serde_json::to_vec(&notes).map_err(|source| ImageError::BadDocument {
            what: "the notes of a layer",
            source,
        })?;
        step();
        fs::write(work.path.join(NOTES), text).doing("write", NOTES)?;
        step();
        match fs::rename(&work.path, &place) {
            Ok(()) => {
                work.keep();
                Ok(notes)
            }
            // Another process was faster.
            Err(_) if place.join(NOTES).exists() => Ok(notes),
            Err(error) => Err(error).doing("create", place),
        }
    }

    /// Adds an image whose manifest, configuration and layers are blobs in the store: unpacks the
    /// layers, then makes it visible under its names.
    ///
    /// # Errors
    /// If the image contradicts itself, or a layer cannot be unpacked.
    pub fn add_image(
        &self,
        manifest_digest: &Digest,
        names: &[Reference],
        limits: Limits,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Image, ImageError> {
        let manifest = self.manifest(manifest_digest)?;
        let config = self.config(&manifest)?;
        let mut notes = LayerNotes::default();
        let mut size = 0_u64;
        let count = manifest.layers.len();
        for (index, (layer, diff_id)) in manifest
            .layers
            .iter()
            .zip(&config.rootfs.diff_ids)
            .enumerate()
        {
            progress(index, count);
            let of_layer = self.unpack_layer(layer, diff_id, limits)?;
            notes.entries += of_layer.entries;
            notes.bytes += of_layer.bytes;
            notes.devices_skipped += of_layer.devices_skipped;
            notes.set_id_cleared += of_layer.set_id_cleared;
            notes.owners_dropped += of_layer.owners_dropped;
            notes.attributes_dropped += of_layer.attributes_dropped;
            size = size.saturating_add(layer.size);
        }
        progress(count, count);
        self.join(manifest_digest, &config.rootfs.diff_ids)?;
        let image = Image {
            digest: manifest_digest.clone(),
            layers: config.rootfs.diff_ids,
            run: config.config,
            created: config.created,
            size,
            notes,
            names: names.iter().map(ToString::to_string).collect(),
        };
        // A name must not outlive a power failure that its layers do not.
        let root = File::open(&self.root).doing("open", &self.root)?;
        syncfs(&root).doing("write", &self.root)?;
        let text = serde_json::to_vec_pretty(&image).map_err(|source| ImageError::BadDocument {
            what: "the image",
            source,
        })?;
        step();
        let mode = if self.shared { 0o644 } else { 0o600 };
        self.write_with(&self.path("images", &image.digest), &text, mode)?;
        for name in names {
            step();
            self.name(name, &image.digest)?;
        }
        step();
        Ok(image)
    }

    /// Joins the layers of an image, unless they are joined already.
    fn join(&self, digest: &Digest, layers: &[Digest]) -> Result<(), ImageError> {
        let place = self.path("roots", digest);
        if place.exists() {
            return Ok(());
        }
        let work = self.temporary_directory()?;
        let trees: Vec<PathBuf> = layers.iter().map(|layer| self.layer_tree(layer)).collect();
        flatten(&trees, &work.path)?;
        if self.shared {
            self.open_to_all(&work.path)?;
        }
        fs::set_permissions(&work.path, fs::Permissions::from_mode(0o755))
            .doing("set the mode of", &work.path)?;
        step();
        match fs::rename(&work.path, &place) {
            Ok(()) => {
                work.keep();
                Ok(())
            }
            // Another process was faster.
            Err(_) if place.exists() => Ok(()),
            Err(error) => Err(error).doing("create", place),
        }
    }

    pub(crate) fn manifest(&self, digest: &Digest) -> Result<Manifest, ImageError> {
        parse(&self.document(digest)?, "the manifest")
    }

    /// The system of an image, as one tree.
    pub fn root(&self, image: &Image) -> PathBuf {
        self.path("roots", &image.digest)
    }

    /// The configuration of a manifest, with as many layers as the manifest.
    fn config(&self, manifest: &Manifest) -> Result<ImageConfig, ImageError> {
        manifest.check()?;
        let config: ImageConfig = parse(
            &self.document(&manifest.config.digest)?,
            "the configuration",
        )?;
        let (listed, ids) = (manifest.layers.len(), config.rootfs.diff_ids.len());
        if listed != ids {
            return Err(ImageError::Inconsistent {
                why: format!("its manifest has {listed} layers and its configuration {ids}"),
            });
        }
        Ok(config)
    }

    /// Lets a name stand for an image.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn name(&self, name: &Reference, digest: &Digest) -> Result<(), ImageError> {
        let path = self.root.join("names").join(escaped(&name.to_string()));
        self.write(&path, digest.to_string().as_bytes())
    }

    pub(crate) fn write(&self, path: &Path, content: &[u8]) -> Result<(), ImageError> {
        self.write_with(path, content, 0o600)
    }

    fn write_with(&self, path: &Path, content: &[u8], mode: u32) -> Result<(), ImageError> {
        let (temporary, mut file) = self.temporary_file()?;
        file.set_permissions(fs::Permissions::from_mode(mode))
            .doing("set the mode of", &temporary)?;
        file.write_all(content).doing("write", &temporary)?;
        file.sync_all().doing("write", &temporary)?;
        step();
        fs::rename(&temporary, path).doing("create", path)
    }

    fn names(&self) -> Result<BTreeMap<String, Digest>, ImageError> {
        let mut names = BTreeMap::new();
        // It has none, and nobody but root could read them.
        if self.shared {
            return Ok(names);
        }
        for name in listed(&self.root.join("names"))? {
            let path = self.root.join("names").join(&name);
            let Some(shown) = name.to_str().and_then(unescaped) else {
                continue;
            };
            let Ok(text) = read(&path, MAX_DOCUMENT, Links::Refuse) else {
                continue;
            };
            names.insert(shown, String::from_utf8_lossy(&text).trim().parse()?);
        }
        Ok(names)
    }

    /// Every image, by name.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn images(&self) -> Result<Vec<Image>, ImageError> {
        let names = self.names()?;
        let mut images = Vec::new();
        for name in listed(&self.root.join("images"))? {
            let Ok(digest) = format!("sha256:{}", name.display()).parse::<Digest>() else {
                continue;
            };
            images.push(self.read_image(&digest, &names)?);
        }
        images.sort_by(|a, b| (&a.names, &a.digest).cmp(&(&b.names, &b.digest)));
        Ok(images)
    }

    fn read_image(
        &self,
        digest: &Digest,
        names: &BTreeMap<String, Digest>,
    ) -> Result<Image, ImageError> {
        let path = self.path("images", digest);
        let text = read(&path, MAX_DOCUMENT, Links::Refuse)
            .map_err(io::Error::other)
            .doing("read", path)?;
        let mut image: Image = parse(&text, "the image")?;
        let own = names.iter().filter(|(_, of)| *of == digest);
        image.names = own.map(|(name, _)| name.clone()).collect();
        Ok(image)
    }

    /// Finds an image by name, or by the first digits of its digest.
    ///
    /// # Errors
    /// If there is none, or there are several.
    pub fn image(&self, name: &str) -> Result<Image, ImageError> {
        let missing = || ImageError::Missing {
            name: name.chars().take(200).collect(),
        };
        let names = self.names()?;
        let by_name =
            name.parse::<Reference>()
                .ok()
                .and_then(|reference| match &reference.digest {
                    Some(digest) => Some(digest.clone()),
                    None => names.get(&reference.to_string()).cloned(),
                });
        if let Some(digest) = by_name.filter(|digest| self.path("images", digest).exists()) {
            return self.read_image(&digest, &names);
        }
        let digits = name.strip_prefix("sha256:").unwrap_or(name);
        if digits.len() < LEAST_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(missing());
        }
        let images = self.images()?;
        let fits: Vec<&Image> = images
            .iter()
            .filter(|image| image.digest.hex().starts_with(digits))
            .collect();
        match fits.as_slice() {
            [] => Err(missing()),
            [image] => Ok((*image).clone()),
            several => Err(ImageError::Ambiguous {
                name: name.to_owned(),
                found: several.iter().map(|image| image.name()).collect(),
            }),
        }
    }
}

impl Image {
    /// What people call it: its first name, or the first digits of its digest.
    pub fn name(&self) -> String {
        match self.names.first().map(|name| name.parse::<Reference>()) {
            Some(Ok(name)) => name.familiar(),
            _ => self.digest.short().to_owned(),
        }
    }
}

/// A directory that is removed unless it is kept.
pub(crate) struct Temporary {
    pub(crate) path: PathBuf,
}

impl Temporary {
    /// It has another name now.
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let (Some(above), Some(name)) = (self.path.parent(), self.path.file_name()) {
            // What cannot be removed now is removed by a later `prune`.
            let _ = remove_tree(above, name);
        }
    }
}

pub(crate) fn listed(directory: &Path) -> Result<Vec<std::ffi::OsString>, ImageError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.doing("list", directory)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.doing("list", directory)?.file_name();
        if !OsStr::new(&name).as_encoded_bytes().starts_with(b".") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// A name as a file name.
pub(crate) fn escaped(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len() + 8);
    for character in name.chars() {
        match character {
            '%' => escaped.push_str("%25"),
            '/' => escaped.push_str("%2F"),
            other => escaped.push(other),
        }
    }
    escaped
}

fn unescaped(name: &str) -> Option<String> {
    let name = name.replace("%2F", "/").replace("%25", "%");
    name.parse::<Reference>().ok().map(|name| name.to_string())
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
