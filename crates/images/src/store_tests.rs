//! A store from an archive to its removal, and what it refuses.

use super::*;
use crate::{export, load};
use std::os::unix::fs::FileTypeExt as _;
use tar::{Builder, Header};

/// An archive with files.
fn tar(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        header.set_mtime(7);
        archive
            .append_data(&mut header, name, content.as_bytes())
            .unwrap();
    }
    archive.into_inner().unwrap()
}

/// What `docker save` writes, with these layers.
fn saved(layers: &[Vec<u8>], tag: &str) -> Vec<u8> {
    let ids: Vec<String> = layers
        .iter()
        .map(|layer| Digest::of(layer).to_string())
        .collect();
    let config = serde_json::json!({
        "architecture": "amd64", "os": "linux",
        "config": {"Env": ["GREETING=hello"], "Cmd": ["/bin/sh"], "WorkingDir": "/srv"},
        "rootfs": {"type": "layers", "diff_ids": ids},
    });
    let list = serde_json::json!([{
        "Config": "config.json",
        "RepoTags": [tag],
        "Layers": (0..layers.len()).map(|n| format!("{n}/layer.tar")).collect::<Vec<_>>(),
    }]);
    let mut archive = Builder::new(Vec::new());
    let mut add = |name: &str, content: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, content).unwrap();
    };
    add("manifest.json", list.to_string().as_bytes());
    add("config.json", config.to_string().as_bytes());
    for (number, layer) in layers.iter().enumerate() {
        add(&format!("{number}/layer.tar"), layer);
    }
    archive.into_inner().unwrap()
}

struct Stage {
    top: tempfile::TempDir,
    store: Store,
}

impl Stage {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        let store = Store::open(&top.path().join("images")).unwrap();
        Stage { top, store }
    }

    fn load(&self, archive: &[u8]) -> Result<Vec<Image>, ImageError> {
        let path = self.top.path().join("archive.tar");
        fs::write(&path, archive).unwrap();
        load(&self.store, &path, None, Limits::default(), &|_, _| {})
    }

    fn entries(&self, directory: &str) -> usize {
        fs::read_dir(self.store.root.join(directory))
            .unwrap()
            .count()
    }
}

fn two_layers() -> Vec<Vec<u8>> {
    vec![
        tar(&[("bin/sh", "shell"), ("etc/motd", "old")]),
        tar(&[("etc/motd", "new"), ("etc/.wh.gone", "")]),
    ]
}

#[test]
fn an_archive_of_docker_save_is_loaded_and_found_by_name_and_digest() {
    let stage = Stage::new();
    let images = stage.load(&saved(&two_layers(), "app:1")).unwrap();
    let [image] = images.as_slice() else {
        panic!("{images:?}");
    };
    assert_eq!(image.run.env, ["GREETING=hello"]);
    assert_eq!(image.layers.len(), 2);
    for name in [
        "app:1",
        "docker.io/library/app:1",
        &image.digest.to_string()[..20],
        image.digest.short(),
    ] {
        assert_eq!(&stage.store.image(name).unwrap(), image, "{name}");
    }
    for name in ["app:2", "app", "", "sha256:", "../app", "0000000000"] {
        assert!(stage.store.image(name).is_err(), "{name}");
    }
    let upper = stage.store.layer_tree(&image.layers[1]);
    assert_eq!(fs::read_to_string(upper.join("etc/motd")).unwrap(), "new");
    let deleted = fs::symlink_metadata(upper.join("etc/gone")).unwrap();
    assert!(deleted.file_type().is_char_device());
    assert_eq!(stage.entries("temporary"), 0);
}

#[test]
fn an_export_loads_into_another_store_as_the_same_image() {
    let stage = Stage::new();
    let image = stage
        .load(&saved(&two_layers(), "app:1"))
        .unwrap()
        .remove(0);
    let mut archive = Vec::new();
    export(&stage.store, &image, &mut archive).unwrap();
    let other = Stage::new();
    let again = other.load(&archive).unwrap().remove(0);
    assert_eq!(again, image);
}

#[test]
fn content_that_differs_from_its_digest_is_refused_and_leaves_nothing() {
    let stage = Stage::new();
    let mut archive = saved(&two_layers(), "app:1");
    // The content of a layer, not of the list: the text stands once.
    let at = archive
        .windows(5)
        .position(|window| window == b"shell")
        .unwrap();
    archive[at] = b'S';
    let error = stage.load(&archive).unwrap_err();
    assert!(matches!(error, ImageError::WrongDigest { .. }), "{error}");
    assert!(stage.store.images().unwrap().is_empty());
    assert_eq!(stage.entries("layers"), 0);
    assert_eq!(stage.entries("temporary"), 0);
    let expected = Digest::of(b"right");
    assert!(stage.store.add_blob(&b"wrong"[..], &expected).is_err());
    assert!(stage.store.blob(&expected).is_none());
    stage.store.add_blob(&b"right"[..], &expected).unwrap();
    assert!(stage.store.blob(&expected).is_some());
}

#[test]
fn a_partial_download_goes_on_where_it_ended() {
    let stage = Stage::new();
    let digest = Digest::of(b"first second");
    {
        let (_, mut file) = stage.store.partial(&digest).unwrap();
        file.write_all(b"first ").unwrap();
        assert!(stage.store.partial(&digest).is_err(), "one at a time");
    }
    let (_, mut file) = stage.store.partial(&digest).unwrap();
    assert_eq!(file.stream_position().unwrap(), 6);
    file.write_all(b"second").unwrap();
    drop(file);
    stage.store.finish_partial(&digest).unwrap();
    assert_eq!(stage.store.blob(&digest).unwrap().size, 12);
    let other = Digest::of(b"other");
    let (path, mut file) = stage.store.partial(&other).unwrap();
    file.write_all(b"wrong").unwrap();
    drop(file);
    assert!(stage.store.finish_partial(&other).is_err());
    assert!(!path.exists());
}

#[test]
fn removing_keeps_what_others_need_and_what_a_cage_uses() {
    let stage = Stage::new();
    let layers = two_layers();
    stage.load(&saved(&layers, "app:1")).unwrap();
    stage.load(&saved(&layers[..1], "base:1")).unwrap();
    assert_eq!(stage.entries("layers"), 2);
    let used = stage.store.image("app:1").unwrap();
    let held = stage.store.use_image(&used).unwrap();
    let error = stage.store.remove("app:1").unwrap_err();
    assert!(matches!(error, ImageError::InUse { .. }));
    assert_eq!(stage.store.prune(true).unwrap().images, ["base:1"]);
    assert_eq!(stage.entries("layers"), 2, "the image in use has both");
    drop(held);
    stage.load(&saved(&layers[..1], "base:1")).unwrap();
    let removed = stage.store.remove("app:1").unwrap();
    assert_eq!(
        (removed.images, removed.layers),
        (vec!["app:1".to_owned()], 1)
    );
    assert!(stage.store.use_image(&used).is_err(), "it is gone");
    assert!(stage.store.image("base:1").is_ok());
    stage.store.prune(true).unwrap();
    for directory in [
        "layers",
        "roots",
        "blobs",
        "images",
        "names",
        "temporary",
        "partial",
    ] {
        assert_eq!(stage.entries(directory), 0, "{directory}");
    }
}

#[test]
fn one_of_two_names_is_removed_alone() {
    let stage = Stage::new();
    let image = stage
        .load(&saved(&two_layers(), "app:1"))
        .unwrap()
        .remove(0);
    let second: Reference = "app:latest".parse().unwrap();
    stage.store.name(&second, &image.digest).unwrap();
    assert!(stage.store.remove("app:1").unwrap().images.is_empty());
    assert!(stage.store.image("app:1").is_err());
    assert_eq!(stage.store.image("app").unwrap().digest, image.digest);
}

#[test]
fn images_that_contradict_themselves_are_refused() {
    let stage = Stage::new();
    let error = stage.load(&saved(&[], "empty:1")).unwrap_err();
    assert!(matches!(error, ImageError::Inconsistent { .. }));
    let error = stage
        .load(&tar(&[("readme", "no image here")]))
        .unwrap_err();
    assert!(matches!(error, ImageError::NotAnArchive { .. }));
    let error = stage
        .load(b"not an archive at all, but long enough to be read as one")
        .unwrap_err();
    assert!(matches!(error, ImageError::NotAnArchive { .. }), "{error}");
    let list = r#"[{"Config":"../../../etc/passwd","Layers":[]}]"#;
    assert!(stage.load(&tar(&[("manifest.json", list)])).is_err());
}

#[test]
fn layers_are_joined_with_their_deletions() {
    let stage = Stage::new();
    let layers = vec![
        tar(&[
            ("bin/sh", "shell"),
            ("etc/motd", "old"),
            ("etc/gone", "x"),
            ("var/a/b", "x"),
            ("opt/file", "x"),
            ("usr/lib/old", "x"),
        ]),
        tar(&[
            ("etc/motd", "new"),
            ("etc/.wh.gone", ""),
            (".wh.var", ""),
            ("opt/file/below", "a directory now"),
            ("usr/lib/.wh..wh..opq", ""),
            ("usr/lib/new", "x"),
        ]),
    ];
    let image = stage.load(&saved(&layers, "app:1")).unwrap().remove(0);
    let root = stage.store.root(&image);
    let has = |name: &str| root.join(name).exists();
    assert_eq!(fs::read_to_string(root.join("etc/motd")).unwrap(), "new");
    assert_eq!(fs::read_to_string(root.join("bin/sh")).unwrap(), "shell");
    assert!(!has("etc/gone") && !has("var") && !has("usr/lib/old"));
    assert!(has("opt/file/below") && has("usr/lib/new"));
    // The layers themselves are as they were.
    let lowest = stage.store.layer_tree(&image.layers[0]);
    assert_eq!(fs::read_to_string(lowest.join("etc/motd")).unwrap(), "old");
    assert!(lowest.join("var/a/b").exists());
    for covered in ["passwd", "group", "hosts", "hostname", "resolv.conf"] {
        assert!(root.join("etc").join(covered).is_file(), "{covered}");
    }
}

#[test]
fn deletions_of_everything_delete_what_is_below_and_nothing_else() {
    let stage = Stage::new();
    let layers = vec![
        tar(&[("bin/sh", "shell"), ("etc/motd", "old"), ("var/a/b", "x")]),
        tar(&[
            (".wh.bin", ""),
            (".wh.etc", ""),
            (".wh.var", ""),
            (".wh.never-there", ""),
            (".wh..wh..opq", ""),
        ]),
    ];
    let image = stage.load(&saved(&layers, "empty:1")).unwrap().remove(0);
    let root = stage.store.root(&image);
    assert!(!root.join("bin").exists() && !root.join("var").exists());
    assert!(!root.join("etc/motd").exists());
    // What a cage covers is there all the same, and the layer below is as it was.
    assert!(root.join("etc/passwd").is_file());
    let lowest = stage.store.layer_tree(&image.layers[0]);
    assert!(lowest.join("bin/sh").exists() && lowest.join("etc/motd").exists());
    // A deletion of the layer itself, or of what is above it, is not a name.
    for name in [".wh..", ".wh..."] {
        let layers = vec![tar(&[("bin/sh", "shell")]), tar(&[(name, "")])];
        assert!(stage.load(&saved(&layers, "bad:1")).is_err(), "{name}");
    }
    assert_eq!(stage.entries("images"), 1);
}

#[test]
fn a_claim_for_removal_holds_off_cages_until_it_is_dropped() {
    let stage = Stage::new();
    let image = stage
        .load(&saved(&two_layers(), "app:1"))
        .unwrap()
        .remove(0);
    let claim = stage.store.claim_unused(&image.digest).unwrap().unwrap();
    let uses = stage.store.path("uses", &image.digest);
    let try_to_use = || {
        let shared = FlockOperation::NonBlockingLockShared;
        Store::lock_file(&uses, shared).unwrap().is_ok()
    };
    assert!(!try_to_use(), "a cage could begin to use it");
    drop(claim);
    assert!(try_to_use());
    let used = stage.store.use_image(&image).unwrap();
    assert!(stage.store.claim_unused(&image.digest).unwrap().is_none());
    drop(used);
}

#[test]
fn a_cage_gets_an_image_whole_or_not_at_all_while_it_is_removed() {
    let archive = saved(&two_layers(), "app:1");
    for _ in 0..10 {
        let stage = Stage::new();
        let image = stage.load(&archive).unwrap().remove(0);
        let root = stage.store.root(&image);
        std::thread::scope(|scope| {
            let removing = scope.spawn(|| stage.store.prune(true).map(|pruned| pruned.images));
            let held = stage.store.use_image(&image);
            let removed = removing.join().unwrap().unwrap();
            // Whoever was first, the other knows.
            assert_eq!(held.is_ok(), removed.is_empty());
            assert_eq!(held.is_ok(), root.join("bin/sh").exists());
        });
    }
}

#[test]
fn a_directory_that_replaces_what_is_below_shows_nothing_of_it() {
    let lower = tar(&[("bin/sh", "shell"), ("d/secret", "old"), ("d/e/f", "old")]);
    // A deletion, and then a directory: by its own entry, by a file in it, and before it.
    let uppers: [&[(&str, &str)]; 4] = [
        &[(".wh.d", ""), ("d/new", "x")],
        &[("d/new", "x"), (".wh.d", "")],
        &[(".wh.d", ""), ("d/e/new", "x"), ("d/new", "x")],
        &[("d/.wh..wh..opq", ""), ("d/new", "x")],
    ];
    for upper in uppers {
        let stage = Stage::new();
        let layers = [lower.clone(), tar(upper)];
        let image = stage.load(&saved(&layers, "app:1")).unwrap().remove(0);
        let root = stage.store.root(&image);
        assert!(root.join("d/new").exists(), "{upper:?}");
        assert!(!root.join("d/secret").exists(), "{upper:?}");
        assert!(!root.join("d/e/f").exists(), "{upper:?}");
    }
    // Without a deletion the two are one.
    let stage = Stage::new();
    let layers = [lower, tar(&[("d/new", "x")])];
    let image = stage.load(&saved(&layers, "app:1")).unwrap().remove(0);
    let root = stage.store.root(&image);
    assert!(root.join("d/new").exists() && root.join("d/secret").exists());
}
