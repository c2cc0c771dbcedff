//! Makes an image of a plain directory, such as a tree that debootstrap wrote.

use crate::archive::{add_manifest, descriptor};
use crate::commit::{WrittenLayer, write_tree};
use crate::config::architecture;
use crate::{Digest, Image, ImageError, Limits, Reference, Store, media};
use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;

/// Directories that a cage has of its own. What lies in them on the host is not part of a system.
const KERNEL_DIRECTORIES: [&str; 3] = ["dev", "proc", "sys"];

/// Whether an entry at the top of a tree belongs to the image.
pub(crate) fn belongs(name: &OsStr) -> bool {
    !KERNEL_DIRECTORIES.iter().any(|own| OsStr::new(own) == name)
}

/// Adds a directory as an image of one layer.
///
/// # Errors
/// If something in it cannot be read, or must not be in a layer.
pub(crate) fn add_tree(
    store: &Store,
    directory: &File,
    path: &Path,
    name: &Reference,
    limits: Limits,
) -> Result<Image, ImageError> {
    let (temporary, file) = store.temporary_file()?;
    let written = write_tree(file, directory, path);
    let result = written.and_then(|layer| match layer.entries {
        0 => Err(ImageError::NotAnArchive {
            path: path.to_owned(),
        }),
        _ => add(store, (&temporary, layer), name, limits),
    });
    // After success it has another name.
    let _ = std::fs::remove_file(&temporary);
    result
}

fn add(
    store: &Store,
    (temporary, layer): (&Path, WrittenLayer),
    name: &Reference,
    limits: Limits,
) -> Result<Image, ImageError> {
    store.add_file(temporary, &layer.digest)?;
    let config = serde_json::json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer.digest.to_string()]},
        "history": [{"created_by": "ironcage image load"}],
    });
    let config = config.to_string().into_bytes();
    let digest = Digest::of(&config);
    store.add_blob(config.as_slice(), &digest)?;
    let config = descriptor(media::CONFIG, digest, config.len() as u64);
    let layers = vec![descriptor(media::LAYER, layer.digest, layer.size)];
    let digest = add_manifest(store, config, layers)?;
    store.add_image(&digest, std::slice::from_ref(name), limits, |_, _| {})
}
