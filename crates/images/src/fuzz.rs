//! The parsers of what registries and archives send, for the fuzzer in `fuzz/`: each panics where
//! what it found breaks a promise.

use crate::config::parse;
use crate::flatten::flatten;
use crate::unpack::{decompressed, unpack};
use crate::{ImageConfig, Index, Limits, Manifest, Reference};
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// A name, or a document: a name that is written parses back to itself.
pub fn documents(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(reference) = text.parse::<Reference>()
    {
        let again = reference.to_string().parse::<Reference>().ok();
        assert_eq!(again.as_ref(), Some(&reference), "{text:?}");
        let familiar = reference.familiar().parse::<Reference>().ok();
        assert_eq!(familiar.as_ref(), Some(&reference), "{text:?}");
    }
    if let Ok(manifest) = parse::<Manifest>(bytes, "the manifest") {
        let _ = manifest.check();
    }
    if let Ok(index) = parse::<Index>(bytes, "the index") {
        let _ = index.for_this_machine();
    }
    let _ = parse::<ImageConfig>(bytes, "the configuration");
}

/// A layer, unpacked and joined below an empty directory: nothing appears beside the two trees, and
/// no set-user-ID bit in them.
///
/// # Panics
/// Where it breaks that promise, or the directory cannot be used.
pub fn layer(bytes: &[u8], place: &Path) {
    let limits = Limits {
        entries: 256,
        bytes: 1 << 20,
        ratio: 200,
    };
    let (layer, root) = (place.join("layer"), place.join("root"));
    for directory in [&layer, &root] {
        assert!(fs::create_dir(directory).is_ok(), "an empty directory");
    }
    let Ok(into) = File::open(&layer) else {
        return;
    };
    let unpacked = decompressed(bytes, "")
        .and_then(|reader| unpack(reader, into.as_fd(), limits, bytes.len() as u64));
    if let Ok((_, notes)) = unpacked {
        assert!(notes.bytes <= limits.bytes, "{} bytes", notes.bytes);
        // It fails for trees that are no system; what it wrote until then counts as well.
        let _ = flatten(std::slice::from_ref(&layer), &root);
    }
    let beside = fs::read_dir(place).map_or(0, Iterator::count);
    assert_eq!(beside, 2, "entries beside the layer");
    assert_no_set_id(&layer);
    assert_no_set_id(&root);
}

fn assert_no_set_id(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(found) = fs::symlink_metadata(&path) else {
            continue;
        };
        assert_eq!(found.mode() & 0o6000, 0, "{}", path.display());
        if found.is_dir() {
            assert_no_set_id(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_accept_what_is_well_made_and_what_is_not() {
        for bytes in [&b"docker.io/library/a:1"[..], b"a@sha256:0", b"{}", b"\xff"] {
            documents(bytes);
        }
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        header.set_mode(0o4755);
        archive
            .append_data(&mut header, "bin/su", &b"x"[..])
            .unwrap();
        let bytes = archive.into_inner().unwrap();
        for bytes in [bytes.as_slice(), &bytes[..700], b"", b"\x1f\x8b"] {
            let place = tempfile::tempdir().unwrap();
            layer(bytes, place.path());
        }
        let place = tempfile::tempdir().unwrap();
        layer(&bytes, place.path());
        assert!(place.path().join("root/bin/su").exists());
    }
}
