//! Layers that are well made, and layers that are made to do harm.

use super::*;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use tar::{Builder, Header};

struct Layer(Builder<Vec<u8>>);

impl Layer {
    fn new() -> Self {
        Layer(Builder::new(Vec::new()))
    }

    fn entry(mut self, kind: EntryType, name: &str, link: &str, content: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o4755);
        header.set_mtime(1_000_000);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(content.len() as u64);
        // The safe setters refuse the names that are tried here.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.append(&header, content).unwrap();
        self
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.entry(EntryType::Regular, name, "", content.as_bytes())
    }

    fn directory(self, name: &str) -> Self {
        self.entry(EntryType::Directory, name, "", b"")
    }

    fn symlink(self, name: &str, to: &str) -> Self {
        self.entry(EntryType::Symlink, name, to, b"")
    }

    fn hard_link(self, name: &str, to: &str) -> Self {
        self.entry(EntryType::Link, name, to, b"")
    }

    fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

struct Stage {
    top: tempfile::TempDir,
    layer: PathBuf,
}

impl Stage {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        let layer = top.path().join("layer");
        fs::create_dir(&layer).unwrap();
        fs::write(top.path().join("canary"), "untouched").unwrap();
        Stage { top, layer }
    }

    fn unpack(&self, bytes: &[u8]) -> Result<LayerNotes, ImageError> {
        self.unpack_within(bytes, Limits::default())
    }

    fn unpack_within(&self, bytes: &[u8], limits: Limits) -> Result<LayerNotes, ImageError> {
        let into = File::open(&self.layer).unwrap();
        let size = bytes.len() as u64;
        let (digest, notes) = unpack(bytes, into.as_fd(), limits, size)?;
        assert_eq!(digest, Digest::of(bytes));
        Ok(notes)
    }

    /// Nothing beside the layer was touched.
    fn assert_untouched(&self) {
        let canary = fs::read_to_string(self.top.path().join("canary")).unwrap();
        assert_eq!(canary, "untouched");
        assert_eq!(fs::read_dir(self.top.path()).unwrap().count(), 2);
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.layer.join(name)).unwrap()
    }
}

#[test]
fn files_links_modes_and_times_are_unpacked() {
    let stage = Stage::new();
    let layer = Layer::new()
        .directory("usr/bin")
        .file("usr/bin/tool", "text")
        .hard_link("usr/bin/twin", "usr/bin/tool")
        .symlink("bin", "usr/bin")
        .file("./etc/motd", "hello");
    let notes = stage.unpack(&layer.bytes()).unwrap();
    assert_eq!(stage.read("usr/bin/tool"), "text");
    assert_eq!(stage.read("etc/motd"), "hello");
    assert_eq!(stage.read("bin/twin"), "text");
    let tool = fs::metadata(stage.layer.join("usr/bin/tool")).unwrap();
    assert_eq!(tool.nlink(), 2);
    assert_eq!(tool.mtime(), 1_000_000);
    assert_eq!(tool.permissions().mode() & 0o7777, 0o755);
    let directory = fs::metadata(stage.layer.join("usr/bin")).unwrap();
    assert_eq!(directory.mtime(), 1_000_000);
    assert_eq!(notes.entries, 5);
    assert_eq!(notes.bytes, 9);
    assert_eq!(notes.set_id_cleared, 4);
}

#[test]
fn a_later_entry_replaces_an_earlier_one() {
    let stage = Stage::new();
    let layer = Layer::new()
        .file("a", "first")
        .file("a", "second")
        .symlink("b", "a")
        .file("b", "not through the link");
    stage.unpack(&layer.bytes()).unwrap();
    assert_eq!(stage.read("a"), "second");
    assert_eq!(stage.read("b"), "not through the link");
}

#[test]
fn names_that_lead_out_are_refused() {
    for name in ["../canary", "a/../../canary", "/../canary", "a/.."] {
        let stage = Stage::new();
        let error = stage
            .unpack(&Layer::new().file(name, "x").bytes())
            .unwrap_err();
        assert!(matches!(error, ImageError::Entry { .. }), "{name}: {error}");
        stage.assert_untouched();
    }
    // The same content under an innocent name is unpacked; a leading slash is the top of the layer.
    let stage = Stage::new();
    stage
        .unpack(&Layer::new().file("/canary", "x").bytes())
        .unwrap();
    assert_eq!(stage.read("canary"), "x");
    stage.assert_untouched();
}

#[test]
fn links_lead_at_most_to_the_top_of_the_layer() {
    let stage = Stage::new();
    let outside = stage.top.path().to_str().unwrap().to_owned();
    for to in ["..", "../..", "/", &outside] {
        let stage_of_one = Stage::new();
        let layer = Layer::new()
            .symlink("out", to)
            .file("out/canary", "through the link");
        // Where the link leads to a missing directory inside, the entry fails; it never escapes.
        let _ = stage_of_one.unpack(&layer.bytes());
        stage_of_one.assert_untouched();
    }
    stage.assert_untouched();
    assert_eq!(
        fs::read_to_string(Path::new(&outside).join("canary")).unwrap(),
        "untouched"
    );
    // Within the layer links are followed.
    let layer = Layer::new()
        .directory("real")
        .symlink("alias", "/real")
        .file("alias/file", "inside");
    let stage = Stage::new();
    stage.unpack(&layer.bytes()).unwrap();
    assert_eq!(stage.read("real/file"), "inside");
}

#[test]
fn a_hard_link_to_the_outside_is_refused() {
    for to in ["../canary", "/../canary", "up/canary"] {
        let stage = Stage::new();
        let layer = Layer::new().symlink("up", "..").hard_link("taken", to);
        assert!(stage.unpack(&layer.bytes()).is_err(), "{to}");
        assert!(!stage.layer.join("taken").exists());
        stage.assert_untouched();
    }
}

#[test]
fn deletions_become_marks_of_overlayfs() {
    let stage = Stage::new();
    let layer = Layer::new()
        .directory("etc")
        .file("etc/.wh.passwd", "")
        .file("var/.wh..wh..opq", "");
    stage.unpack(&layer.bytes()).unwrap();
    let mark = fs::symlink_metadata(stage.layer.join("etc/passwd")).unwrap();
    assert!(mark.file_type().is_char_device());
    assert_eq!(mark.rdev(), 0);
    let var = File::open(stage.layer.join("var")).unwrap();
    let mut value = [0_u8; 8];
    let length =
        ironcage_sys::rustix::fs::fgetxattr(&var, OPAQUE_MARK, value.as_mut_slice()).unwrap();
    assert_eq!(&value[..length], b"y");
    for name in ["etc/.wh.", "etc/.wh...", "etc/.wh..", "etc/.wh..wh.x"] {
        let stage = Stage::new();
        assert!(
            stage.unpack(&Layer::new().file(name, "").bytes()).is_err(),
            "{name}"
        );
        stage.assert_untouched();
    }
}

#[test]
fn a_directory_after_a_deletion_hides_what_is_below_and_a_file_stays() {
    let is_opaque = |stage: &Stage, name: &str| {
        let directory = File::open(stage.layer.join(name)).unwrap();
        let mut value = [0_u8; 8];
        ironcage_sys::rustix::fs::fgetxattr(&directory, OPAQUE_MARK, value.as_mut_slice()).is_ok()
    };
    for layer in [
        Layer::new().file(".wh.d", "").directory("d"),
        Layer::new().directory("d").file(".wh.d", ""),
        Layer::new().file("d", "").directory("d"),
        Layer::new().file(".wh.d", "").file("d/e/f", "x"),
    ] {
        let stage = Stage::new();
        stage.unpack(&layer.bytes()).unwrap();
        assert!(is_opaque(&stage, "d"));
    }
    let stage = Stage::new();
    let layer = Layer::new()
        .directory("d")
        .file("own", "x")
        .file(".wh.own", "");
    stage.unpack(&layer.bytes()).unwrap();
    assert!(!is_opaque(&stage, "d"));
    assert_eq!(stage.read("own"), "x");
}

#[test]
fn an_archive_that_goes_on_after_its_end_is_refused_and_padding_is_not() {
    let padded = |padding: u64| {
        let stage = Stage::new();
        let into = File::open(&stage.layer).unwrap();
        let archive = Layer::new().file("a", "x").bytes();
        let archive = archive.as_slice().chain(io::repeat(0).take(padding));
        unpack(archive, into.as_fd(), Limits::default(), u64::MAX).map(|(_, notes)| notes.entries)
    };
    assert_eq!(padded(10 * 1024).unwrap(), 1);
    let endless = padded(u64::MAX / 2).unwrap_err();
    assert!(matches!(endless, ImageError::TooLarge { .. }), "{endless}");
}

#[test]
fn devices_are_skipped_and_counted() {
    let stage = Stage::new();
    let layer = Layer::new()
        .entry(EntryType::Block, "disk", "", b"")
        .entry(EntryType::Char, "kmem", "", b"")
        .entry(EntryType::Fifo, "pipe", "", b"")
        .file("beside", "x");
    let notes = stage.unpack(&layer.bytes()).unwrap();
    assert_eq!(notes.devices_skipped, 3);
    assert_eq!(fs::read_dir(&stage.layer).unwrap().count(), 1);
}

#[test]
fn a_layer_beyond_a_limit_is_refused_and_one_at_it_is_taken() {
    let layer = Layer::new().file("a", "12345678").file("b", "x").bytes();
    let limits = |entries, bytes| Limits {
        entries,
        bytes,
        ratio: 200,
    };
    let size = layer.len() as u64;
    for (within, fits) in [
        (limits(2, size), true),
        (limits(1, size), false),
        (limits(2, size - 1), false),
        (limits(2, 600), false),
    ] {
        let stage = Stage::new();
        let result = stage.unpack_within(&layer, within);
        match fits {
            true => assert!(result.is_ok(), "{result:?}"),
            false => assert!(
                matches!(result, Err(ImageError::TooLarge { .. })),
                "{result:?}"
            ),
        }
    }
}

#[test]
fn a_bomb_is_stopped_by_its_ratio() {
    let limits = Limits::default();
    assert_eq!(limits.bytes_for(1024), 1024 * MIB);
    assert_eq!(limits.bytes_for(100 * MIB), 200 * 100 * MIB);
    assert_eq!(limits.bytes_for(u64::MAX), limits.bytes);
}

/// A sparse file with one block of content, and then nothing up to `size`.
fn sparse(name: &str, size: u64) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_000_000);
    header.set_size(512);
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    let octal = |field: &mut [u8; 12], value: u64| match value < 1 << 33 {
        true => field[..11].copy_from_slice(format!("{value:011o}").as_bytes()),
        false => {
            field[0] = 0x80;
            field[4..].copy_from_slice(&value.to_be_bytes());
        }
    };
    let gnu = header.as_gnu_mut().unwrap();
    octal(&mut gnu.sparse[0].offset, 0);
    octal(&mut gnu.sparse[0].numbytes, 512);
    octal(&mut gnu.sparse[1].offset, size);
    octal(&mut gnu.sparse[1].numbytes, 0);
    octal(&mut gnu.realsize, size);
    header.set_cksum();
    let mut archive = Builder::new(Vec::new());
    archive.append(&header, [b'x'; 512].as_slice()).unwrap();
    archive.into_inner().unwrap()
}

#[test]
fn a_sparse_file_counts_with_the_size_that_it_stands_for() {
    let limits = Limits {
        bytes: 64 * 1024,
        ..Limits::default()
    };
    let stage = Stage::new();
    let notes = stage
        .unpack_within(&sparse("hole", 64 * 1024), limits)
        .unwrap();
    assert_eq!(notes.bytes, 64 * 1024);
    let file = fs::read(stage.layer.join("hole")).unwrap();
    assert_eq!(file.len(), 64 * 1024);
    assert!(file.starts_with(b"xx") && file.ends_with(&[0, 0]));
    for size in [64 * 1024 + 1, 1 << 40, 1 << 62] {
        let stage = Stage::new();
        let result = stage.unpack_within(&sparse("hole", size), limits);
        assert!(
            matches!(result, Err(ImageError::TooLarge { .. })),
            "{size}: {result:?}"
        );
        let written = fs::metadata(stage.layer.join("hole")).unwrap().len();
        assert!(written <= 64 * 1024 + 1, "{written}");
    }
}

#[test]
fn long_headers_are_read_up_to_a_limit() {
    let extension = |size: usize| {
        let value = "v".repeat(size);
        let mut archive = Builder::new(Vec::new());
        archive
            .append_pax_extensions([("SCHILY.xattr.user.note", value.as_bytes())])
            .unwrap();
        Layer(archive).file("after", "text").bytes()
    };
    let long_name = |size: usize| {
        let name = vec![b'n'; size];
        Layer::new()
            .entry(EntryType::GNULongName, "././@LongLink", "", &name)
            .file("after", "text")
            .bytes()
    };
    let stage = Stage::new();
    let notes = stage.unpack(&extension(64 * 1024)).unwrap();
    assert_eq!(notes.attributes_dropped, 1);
    assert_eq!(stage.read("after"), "text");
    let stage = Stage::new();
    stage.unpack(&long_name(200)).unwrap();
    assert_eq!(stage.read(&"n".repeat(200)), "text");
    for layer in [extension(2 << 20), long_name(2 << 20)] {
        let error = Stage::new().unpack(&layer).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("mebibyte of headers"), "{error}: {cause}");
    }
}

#[test]
fn content_that_is_skipped_does_not_count_as_headers() {
    let stage = Stage::new();
    let layer = Layer::new()
        .entry(EntryType::Fifo, "pipe", "", &vec![0; 3 << 20])
        .file("after", "text");
    stage.unpack(&layer.bytes()).unwrap();
    assert_eq!(stage.read("after"), "text");
}

#[test]
fn names_in_errors_do_not_act_on_a_terminal() {
    let error = Stage::new()
        .unpack(&Layer::new().file("../\u{1b}[2J", "x").bytes())
        .unwrap_err();
    assert!(error.to_string().contains("`../\\u{1b}[2J`"), "{error}");
}

#[test]
fn compression_is_told_by_content() {
    use std::io::Write as _;
    let layer = Layer::new().file("a", "text").bytes();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&layer).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = ruzstd::encoding::compress_to_vec(
        layer.as_slice(),
        ruzstd::encoding::CompressionLevel::Fastest,
    );
    for packed in [&layer, &gzip, &zstd] {
        let mut plain = Vec::new();
        decompressed(packed.as_slice(), media::LAYER_GZIP)
            .unwrap()
            .read_to_end(&mut plain)
            .unwrap();
        assert!(plain == layer);
    }
    let error = decompressed(layer.as_slice(), "application/x-helm")
        .err()
        .unwrap();
    assert!(matches!(error, ImageError::LayerType { .. }));
}

#[test]
fn an_archive_without_its_end_is_read() {
    let layer = Layer::new().file("a", "text").bytes();
    let stage = Stage::new();
    // A header and the four bytes of the file.
    stage.unpack(&layer[..516]).unwrap();
    assert_eq!(stage.read("a"), "text");
}

#[test]
fn a_cut_archive_is_an_error() {
    let layer = Layer::new().file("a", &"x".repeat(5000)).bytes();
    let stage = Stage::new();
    assert!(stage.unpack(&layer[..2000]).is_err());
}
