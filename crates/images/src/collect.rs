//! Removes images, and what no image needs any more. Nothing that a running cage uses goes.

use crate::config::parse;
use crate::error::Doing as _;
use crate::store::{escaped, listed};
use crate::{Digest, Image, ImageError, Manifest, Pruned, Reference, Store};
use ironcage_state::remove_tree;
use ironcage_sys::faults::step;
use ironcage_sys::rustix::fs::FlockOperation;
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;

impl Store {
    /// Claims an image that no cage runs. Until the claim is dropped none can begin to: it waits,
    /// and then finds the image gone.
    pub(crate) fn claim_unused(&self, digest: &Digest) -> Result<Option<OwnedFd>, ImageError> {
        let path = self.path("uses", digest);
        let held = Self::lock_file(&path, FlockOperation::NonBlockingLockExclusive)?;
        Ok(held.ok())
    }

    /// Removes a name, and the image with it if that was its last.
    ///
    /// # Errors
    /// If there is no such image, or a cage uses it.
    pub fn remove(&self, name: &str) -> Result<Pruned, ImageError> {
        let _lock = self.removing()?;
        let image = self.image(name)?;
        let full = name.parse::<Reference>().map(|name| name.to_string());
        let others = full.as_ref().is_ok_and(|full| {
            image.names.contains(full) && image.names.iter().any(|other| other != full)
        });
        if let (true, Ok(full)) = (others, full) {
            let path = self.root.join("names").join(escaped(&full));
            fs::remove_file(&path).doing("remove", path)?;
            return Ok(Pruned::default());
        }
        let Some(_claim) = self.claim_unused(&image.digest)? else {
            return Err(ImageError::InUse { name: image.name() });
        };
        if let Some(template) = self.template_of(&image.digest)? {
            return Err(ImageError::OfTemplate {
                name: image.name(),
                template,
            });
        }
        let mut pruned = self.remove_image(&image)?;
        self.collect(&mut pruned)?;
        Ok(pruned)
    }

    pub(crate) fn remove_image(&self, image: &Image) -> Result<Pruned, ImageError> {
        for name in &image.names {
            step();
            let path = self.root.join("names").join(escaped(name));
            fs::remove_file(&path).doing("remove", path)?;
        }
        let path = self.path("images", &image.digest);
        step();
        fs::remove_file(&path).doing("remove", path)?;
        step();
        Ok(Pruned {
            images: vec![image.name()],
            ..Pruned::default()
        })
    }

    /// Removes images without a name (with `all`, every image that no cage uses) and everything
    /// that no image needs.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn prune(&self, all: bool) -> Result<Pruned, ImageError> {
        let _lock = self.removing()?;
        let mut pruned = Pruned::default();
        // Held until everything is removed that the images had.
        let mut claims = Vec::new();
        for image in self.images()? {
            if !all && !image.names.is_empty() || self.template_of(&image.digest)?.is_some() {
                continue;
            }
            if let Some(claim) = self.claim_unused(&image.digest)? {
                claims.push(claim);
                pruned.images.extend(self.remove_image(&image)?.images);
            }
        }
        self.collect(&mut pruned)?;
        Ok(pruned)
    }

    /// Removes layers and blobs that no image has, and what was never completed.
    pub(crate) fn collect(&self, pruned: &mut Pruned) -> Result<(), ImageError> {
        let (mut layers, mut blobs) = (BTreeSet::new(), BTreeSet::new());
        for image in self.images()? {
            layers.extend(image.layers.iter().map(|layer| layer.hex().to_owned()));
            blobs.insert(image.digest.hex().to_owned());
            let manifest: Manifest = parse(&self.document(&image.digest)?, "the manifest")?;
            let parts = manifest.layers.iter().chain([&manifest.config]);
            blobs.extend(parts.map(|part| part.digest.hex().to_owned()));
        }
        for name in listed(&self.root.join("roots"))? {
            if !self.root.join("images").join(&name).exists() {
                step();
                remove_tree(&self.root.join("roots"), &name)?;
            }
        }
        for name in listed(&self.root.join("layers"))? {
            if name.to_str().is_none_or(|name| !layers.contains(name)) {
                step();
                remove_tree(&self.root.join("layers"), &name)?;
                pruned.layers += 1;
            }
        }
        for name in listed(&self.root.join("blobs"))? {
            if name.to_str().is_none_or(|name| !blobs.contains(name)) {
                step();
                let path = self.root.join("blobs").join(&name);
                pruned.blob_bytes += fs::symlink_metadata(&path).map_or(0, |found| found.len());
                fs::remove_file(&path).doing("remove", path)?;
            }
        }
        self.collect_systems()?;
        for directory in ["partial", "temporary"] {
            for name in listed(&self.root.join(directory))? {
                remove_tree(&self.root.join(directory), &name)?;
            }
        }
        Ok(())
    }
}
