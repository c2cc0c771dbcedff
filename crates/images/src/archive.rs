//! Loads images from archives and directories: OCI layouts, what `docker save` writes, and plain trees.

use crate::config::{MAX_DOCUMENT, parse};
use crate::error::Doing as _;
use crate::tree::add_tree;
use crate::unpack::{decompressed, unpack};
use crate::{
    Descriptor, Digest, Image, ImageConfig, ImageError, Index, Limits, Manifest, Reference, Store,
    media,
};
use ironcage_sys::rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::path::Path;

/// Where layouts say what an image is called.
const NAME: &str = "org.opencontainers.image.ref.name";
const FULL_NAME: &str = "io.containerd.image.name";

/// Images in one archive, and names of one image. Each is a file in the store.
const MOST_LISTED: usize = 1000;

/// An entry of the list in an archive of `docker save`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Loads every image of an archive or an OCI layout, or a plain directory as an image. `name` is for an
/// image instead of its own; one that has none is named after the file. A plain directory needs one.
/// `progress` is told how many layers are unpacked, and of how many.
///
/// # Errors
/// If there is no image in it, or one cannot be unpacked.
pub fn load(
    store: &Store,
    path: &Path,
    name: Option<&Reference>,
    limits: Limits,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<Image>, ImageError> {
    let _adding = store.adding()?;
    // Without waiting: there may be a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = File::from(open(path, flags, Mode::empty()).doing("open", path)?);
    let found = opened.metadata().doing("look at", path)?;
    if found.is_dir() {
        let source = Source {
            store,
            path,
            directory: &opened,
            limits,
            progress,
        };
        // A directory that is not a layout is a system itself, if it is given a name.
        return match name {
            Some(name) if !source.is_archive()? => {
                add_tree(store, &opened, path, name, limits).map(|image| vec![image])
            }
            _ => source.load(name),
        };
    }
    if !found.is_file() {
        return Err(ImageError::NotAnArchive {
            path: path.to_owned(),
        });
    }
    let size = found.len();
    let archive = decompressed(io::BufReader::new(opened), "")?;
    let work = store.temporary_directory()?;
    let directory = File::open(&work.path).doing("open", &work.path)?;
    // An archive of images is unpacked by the rules for a layer: it comes from a stranger, too.
    if let Err(error) = unpack(archive, directory.as_fd(), limits, size) {
        return Err(match error {
            ImageError::Io { action: "read", .. } => ImageError::NotAnArchive {
                path: path.to_owned(),
            },
            other => other,
        });
    }
    Source {
        store,
        path,
        directory: &directory,
        limits,
        progress,
    }
    .load(name)
}

struct Source<'a> {
    store: &'a Store,
    path: &'a Path,
    directory: &'a File,
    limits: Limits,
    progress: &'a dyn Fn(usize, usize),
}

impl Source<'_> {
    fn is_archive(&self) -> Result<bool, ImageError> {
        Ok(self.open("index.json")?.is_some() || self.open("manifest.json")?.is_some())
    }

    fn load(&self, name: Option<&Reference>) -> Result<Vec<Image>, ImageError> {
        if let Some(index) = self.document("index.json")? {
            return self.layout(&parse(&index, "index.json")?, name);
        }
        match self.document("manifest.json")? {
            Some(list) => self.saved(&parse::<Vec<Saved>>(&list, "manifest.json")?, name),
            None => Err(ImageError::NotAnArchive {
                path: self.path.to_owned(),
            }),
        }
    }

    /// Opens a file of the archive. Links in it lead at most to its top.
    fn open(&self, name: &str) -> Result<Option<File>, ImageError> {
        let opened = openat2(
            self.directory,
            name,
            OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        );
        match opened {
            Ok(file) => {
                let file = File::from(file);
                let found = file.metadata().doing("look at", name)?;
                match found.is_file() {
                    true => Ok(Some(file)),
                    false => Err(ImageError::Inconsistent {
                        why: format!("`{name}` is not a file"),
                    }),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).doing("open", name),
        }
    }

    fn required(&self, name: &str) -> Result<File, ImageError> {
        self.open(name)?.ok_or_else(|| ImageError::Inconsistent {
            why: format!(
                "`{}` is missing",
                name.chars().take(200).collect::<String>()
            ),
        })
    }

    fn document(&self, name: &str) -> Result<Option<Vec<u8>>, ImageError> {
        let Some(file) = self.open(name)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        file.take(MAX_DOCUMENT + 1)
            .read_to_end(&mut bytes)
            .doing("read", name)?;
        match bytes.len() as u64 > MAX_DOCUMENT {
            false => Ok(Some(bytes)),
            true => Err(ImageError::TooLarge {
                limit: format!("{MAX_DOCUMENT} bytes in {name}"),
            }),
        }
    }

    fn layout(&self, index: &Index, name: Option<&Reference>) -> Result<Vec<Image>, ImageError> {
        listed(index.manifests.len(), "images")?;
        let mut images = Vec::new();
        for descriptor in &index.manifests {
            let (manifest, bytes) = self.manifest(descriptor)?;
            manifest.check()?;
            self.blob(&manifest.config)?;
            for layer in &manifest.layers {
                self.blob(layer)?;
            }
            let digest = Digest::of(&bytes);
            self.store.add_blob(bytes.as_slice(), &digest)?;
            let given = name.cloned().or_else(|| named(descriptor));
            let alone = index.manifests.len() == 1;
            let tag = descriptor.annotations.get(NAME).map(String::as_str);
            let after_file = || match (tag, alone) {
                (None, false) => None,
                (tag, _) => named_after(self.path, tag.unwrap_or("latest")),
            };
            let names: Vec<Reference> = given.or_else(after_file).into_iter().collect();
            images.push(
                self.store
                    .add_image(&digest, &names, self.limits, self.progress)?,
            );
        }
        match images.is_empty() {
            false => Ok(images),
            true => Err(ImageError::NotAnArchive {
                path: self.path.to_owned(),
            }),
        }
    }

    /// The manifest that a descriptor leads to, through an index for several platforms.
    fn manifest(&self, descriptor: &Descriptor) -> Result<(Manifest, Vec<u8>), ImageError> {
        let mut descriptor = descriptor.clone();
        // An index in an index in an index has no use.
        for _ in 0..3 {
            let name = format!("blobs/sha256/{}", descriptor.digest.hex());
            let bytes = self
                .document(&name)?
                .ok_or_else(|| ImageError::Inconsistent {
                    why: format!("manifest {} is missing", descriptor.digest),
                })?;
            let actual = Digest::of(&bytes);
            if actual != descriptor.digest {
                return Err(ImageError::WrongDigest {
                    what: "the manifest".into(),
                    expected: descriptor.digest,
                    actual,
                });
            }
            let document: BTreeMap<String, serde_json::Value> = parse(&bytes, "the manifest")?;
            if !document.contains_key("manifests") {
                return Ok((parse(&bytes, "the manifest")?, bytes));
            }
            let index: Index = parse(&bytes, "the index")?;
            descriptor = index.for_this_machine()?.clone();
        }
        Err(ImageError::Inconsistent {
            why: "its index leads to an index without end".into(),
        })
    }

    fn blob(&self, descriptor: &Descriptor) -> Result<(), ImageError> {
        if self.store.blob(&descriptor.digest).is_some() {
            return Ok(());
        }
        let file = self.required(&format!("blobs/sha256/{}", descriptor.digest.hex()))?;
        self.store.add_blob(file, &descriptor.digest)
    }

    fn saved(&self, list: &[Saved], name: Option<&Reference>) -> Result<Vec<Image>, ImageError> {
        listed(list.len(), "images")?;
        let mut images = Vec::new();
        for saved in list {
            listed(saved.repo_tags.iter().flatten().count(), "names")?;
            let config = self.document(&saved.config)?;
            let config = config.ok_or_else(|| ImageError::Inconsistent {
                why: format!("the configuration `{}` is missing", saved.config),
            })?;
            let parsed: ImageConfig = parse(&config, "the configuration")?;
            if parsed.rootfs.diff_ids.len() != saved.layers.len() {
                return Err(ImageError::Inconsistent {
                    why: "its list and its configuration have different numbers of layers".into(),
                });
            }
            let mut layers = Vec::new();
            for layer in &saved.layers {
                let (digest, size) =
                    Digest::of_reader(self.required(layer)?).doing("read", layer.as_str())?;
                self.store.add_blob(self.required(layer)?, &digest)?;
                layers.push(descriptor(media::LAYER, digest, size));
            }
            let config_digest = Digest::of(&config);
            self.store.add_blob(config.as_slice(), &config_digest)?;
            let digest = add_manifest(
                self.store,
                descriptor(media::CONFIG, config_digest, config.len() as u64),
                layers,
            )?;
            let tags = saved.repo_tags.iter().flatten();
            let names: Vec<Reference> = match name {
                Some(name) => vec![name.clone()],
                None => tags.filter_map(|tag| tag.parse().ok()).collect(),
            };
            images.push(
                self.store
                    .add_image(&digest, &names, self.limits, self.progress)?,
            );
        }
        match images.is_empty() {
            false => Ok(images),
            true => Err(ImageError::NotAnArchive {
                path: self.path.to_owned(),
            }),
        }
    }
}

fn listed(count: usize, of: &str) -> Result<(), ImageError> {
    match count <= MOST_LISTED {
        true => Ok(()),
        false => Err(ImageError::Inconsistent {
            why: format!("it lists {count} {of}; at most {MOST_LISTED} are possible"),
        }),
    }
}

pub(crate) fn descriptor(media_type: &str, digest: Digest, size: u64) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest,
        size,
        platform: None,
        annotations: BTreeMap::new(),
    }
}

/// Writes the manifest of an image whose parts are in the store; returns its digest.
pub(crate) fn add_manifest(
    store: &Store,
    config: Descriptor,
    layers: Vec<Descriptor>,
) -> Result<Digest, ImageError> {
    let manifest = Manifest {
        schema_version: 2,
        media_type: media::MANIFEST.to_owned(),
        config,
        layers,
    };
    let bytes = serde_json::to_vec(&manifest).map_err(|source| ImageError::BadDocument {
        what: "the manifest",
        source,
    })?;
    let digest = Digest::of(&bytes);
    store.add_blob(bytes.as_slice(), &digest)?;
    Ok(digest)
}

/// The name of an image that has none of its own, by the file that it comes from: on this machine,
/// so that it never takes the name of an image from a registry.
fn named_after(path: &Path, tag: &str) -> Option<Reference> {
    let resolved = path.canonicalize().ok()?;
    let file = resolved.file_name()?.to_str()?.to_lowercase();
    let stem = [".gz", ".zst", ".tar", ".oci"]
        .iter()
        .fold(file.as_str(), |stem, end| {
            stem.strip_suffix(end).unwrap_or(stem)
        });
    format!("localhost/{stem}:{tag}").parse().ok()
}

/// The name of an image in a layout. A bare tag, as some tools write it, is not a name.
fn named(descriptor: &Descriptor) -> Option<Reference> {
    let annotations = &descriptor.annotations;
    let full = annotations.get(FULL_NAME);
    let name = full.or_else(|| {
        annotations
            .get(NAME)
            .filter(|name| name.contains([':', '/']))
    });
    name.and_then(|name| name.parse().ok())
}
