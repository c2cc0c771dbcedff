//! Writes an image as an archive that `docker load`, podman and skopeo read: an OCI layout, with
//! Docker's list beside it.

use crate::archive::descriptor;
use crate::config::parse;
use crate::error::Doing as _;
use crate::{Digest, Image, ImageError, Index, Manifest, Store, media};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use tar::{Builder, Header};

/// Writes an image to `to`.
///
/// # Errors
/// If a part of it cannot be read, or `to` cannot be written.
pub fn export(store: &Store, image: &Image, to: impl Write) -> Result<(), ImageError> {
    let manifest_bytes = store.document(&image.digest)?;
    let manifest: Manifest = parse(&manifest_bytes, "the manifest")?;
    let mut archive = Builder::new(to);
    let blob = |digest: &Digest| format!("blobs/sha256/{}", digest.hex());
    append(
        &mut archive,
        "oci-layout",
        br#"{"imageLayoutVersion":"1.0.0"}"#,
    )?;
    let mut top = descriptor(
        media::MANIFEST,
        image.digest.clone(),
        manifest_bytes.len() as u64,
    );
    if let Some(name) = image.names.first() {
        let annotations = [
            ("org.opencontainers.image.ref.name", name),
            ("io.containerd.image.name", name),
        ];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.clone()));
        top.annotations.extend(annotations);
    }
    let index = Index {
        schema_version: 2,
        manifests: vec![top],
    };
    append(&mut archive, "index.json", &json(&index)?)?;
    let layers: Vec<String> = manifest
        .layers
        .iter()
        .map(|layer| blob(&layer.digest))
        .collect();
    let saved = serde_json::json!([{
        "Config": blob(&manifest.config.digest),
        "RepoTags": image.names,
        "Layers": layers,
    }]);
    append(&mut archive, "manifest.json", &json(&saved)?)?;
    append(&mut archive, &blob(&image.digest), &manifest_bytes)?;
    let mut written = vec![image.digest.clone()];
    for part in manifest.layers.iter().chain([&manifest.config]) {
        // The same layer may be there twice.
        if written.contains(&part.digest) {
            continue;
        }
        let found = store
            .blob(&part.digest)
            .ok_or_else(|| ImageError::Inconsistent {
                why: format!("its content {} is not in the store", part.digest),
            })?;
        let file = File::open(&found.path).doing("open", &found.path)?;
        let mut header = header(found.size);
        archive
            .append_data(&mut header, blob(&part.digest), file)
            .doing("write", "the archive")?;
        written.push(part.digest.clone());
    }
    archive
        .into_inner()
        .and_then(|mut to| to.flush())
        .doing("write", "the archive")
}

fn json(value: &impl serde::Serialize) -> Result<Vec<u8>, ImageError> {
    serde_json::to_vec(value).map_err(|source| ImageError::BadDocument {
        what: "the archive",
        source,
    })
}

fn header(size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o644);
    header.set_mtime(0);
    header
}

fn append(
    archive: &mut Builder<impl io::Write>,
    name: &str,
    content: &[u8],
) -> Result<(), ImageError> {
    let mut header = header(content.len() as u64);
    archive
        .append_data(&mut header, Path::new(name), content)
        .doing("write", "the archive")
}
