//! Objects of git that an agent made: brought over when they are what their names say.
//!
//! A loose object is inflated and hashed. A pack is copied aside and its index is made again by
//! git, from what is in it: an index of the agent's could give a known name to other content.

use crate::content;
use crate::tree;
use flate2::read::ZlibDecoder;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The most that a loose object may inflate to. Git puts files of more than half of that into a
/// pack (`core.bigFileThreshold`); what a few bytes inflate to without end is a bomb.
const LARGEST_OBJECT: u64 = 1024 * 1024 * 1024;
/// The longest header that git writes: a type, a blank and twenty digits.
const LONGEST_HEADER: usize = 32;

/// What a file below `objects` is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ObjectFile {
    /// A loose object of this name.
    Loose(String),
    Pack,
    /// What belongs to a pack, or is made anew when it is missing.
    Made,
}

/// What a path below `objects` is; `None` for what is not brought over.
pub(crate) fn sort(path: &Path) -> Option<ObjectFile> {
    let text = path.to_str()?;
    let (directory, name) = text.split_once('/')?;
    let hexadecimal = |text: &str| {
        text.bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    if directory.len() == 2 && hexadecimal(directory) {
        let whole = format!("{directory}{name}");
        return (matches!(whole.len(), 40 | 64) && hexadecimal(name))
            .then_some(ObjectFile::Loose(whole));
    }
    let (stem, end) = name.rsplit_once('.')?;
    let hash = stem.strip_prefix("pack-")?;
    if directory != "pack" || !matches!(hash.len(), 40 | 64) || !hexadecimal(hash) {
        return None;
    }
    match end {
        "pack" => Some(ObjectFile::Pack),
        "idx" | "rev" | "bitmap" | "mtimes" | "keep" => Some(ObjectFile::Made),
        _ => None,
    }
}

/// Whether a loose object is what its name says.
pub(crate) fn is_true(file: &File, name: &str) -> io::Result<bool> {
    let digest = match name.len() {
        40 => hash::<Sha1>(file)?,
        _ => hash::<Sha256>(file)?,
    };
    Ok(digest.is_some_and(|digest| digest == name))
}

/// The length of a whole object, as its header says: `blob 12` and a zero byte, then as many.
fn announced_length(start: &[u8]) -> Option<u64> {
    let header = start
        .iter()
        .take(LONGEST_HEADER)
        .position(|byte| *byte == 0)?;
    let text = std::str::from_utf8(&start[..header]).ok()?;
    let (kind, size) = text.split_once(' ')?;
    let known = ["blob", "tree", "commit", "tag"].contains(&kind);
    let size: u64 = size.parse().ok().filter(|_| known)?;
    (header as u64 + 1).checked_add(size)
}

/// The hash of what a loose object inflates to. `None` where that is not as long as its header
/// says, or longer than any that git makes: no more than was announced is inflated.
fn hash<D: Digest>(file: &File) -> io::Result<Option<String>> {
    let mut inflated = ZlibDecoder::new(file);
    let mut hasher = D::new();
    let mut buffer = vec![0; 64 * 1024];
    let mut start = Vec::new();
    while start.len() < LONGEST_HEADER {
        let read = inflated.read(&mut buffer[..LONGEST_HEADER])?;
        if read == 0 {
            break;
        }
        start.extend_from_slice(&buffer[..read]);
    }
    let length = announced_length(&start).filter(|length| *length <= LARGEST_OBJECT);
    let Some(length) = length else {
        return Ok(None);
    };
    hasher.update(&start);
    let mut seen = start.len() as u64;
    while seen <= length {
        let read = inflated.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        seen += read as u64;
    }
    if seen != length {
        return Ok(None);
    }
    let mut text = String::new();
    for byte in hasher.finalize().iter() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(Some(text))
}

/// Copies a pack to a directory of ours and has git make its index. Returns both.
pub(crate) fn index_pack(
    pack: &File,
    name: &OsStr,
    aside: &Path,
) -> io::Result<(PathBuf, PathBuf)> {
    let copied = aside.join(name);
    let to = File::create_new(&copied)?;
    content::copy(pack, &to)?;
    let index = copied.with_extension("idx");
    let hash = copied
        .file_stem()
        .map_or(0, |stem| stem.len().saturating_sub("pack-".len()));
    let format = if hash == 64 { "sha256" } else { "sha1" };
    // In a directory of ours, without settings of anybody's.
    let output = Command::new("git")
        // Large ones are hashed as they are inflated, and not held in memory.
        .args(["-c", "core.bigFileThreshold=64m"])
        .args(["index-pack", &format!("--object-format={format}"), "-o"])
        .arg(&index)
        .arg(&copied)
        .current_dir(aside)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CEILING_DIRECTORIES", "/")
        // A difference of a few bytes can say that its result is as large as it likes.
        .env("GIT_ALLOC_LIMIT", "1g")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .map_err(|error| {
            io::Error::other(format!(
                "git, which makes its index, does not start: {error}"
            ))
        })?;
    let said = String::from_utf8_lossy(&output.stdout);
    let named = name.to_string_lossy().contains(said.trim());
    if !output.status.success() || said.trim().is_empty() || !named {
        return Err(io::Error::other("git finds the pack broken"));
    }
    Ok((copied, index))
}

/// Whether the real tree has an object file already.
pub(crate) fn exists(root: &impl std::os::fd::AsFd, path: &Path) -> bool {
    let above = tree::open_below(root.as_fd(), path.parent().unwrap_or(Path::new("")));
    above.is_ok_and(|above| {
        matches!(
            tree::look(above.as_fd(), path.file_name().unwrap_or_default()),
            Ok(Some(_))
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loose(announced: u64, content: &[u8]) -> (File, String) {
        use std::io::{Seek as _, Write as _};
        let header = format!("blob {announced}\0");
        let mut encoder = flate2::write::ZlibEncoder::new(
            tempfile::tempfile().expect("a file"),
            flate2::Compression::default(),
        );
        encoder.write_all(header.as_bytes()).expect("written");
        encoder.write_all(content).expect("written");
        let mut file = encoder.finish().expect("written");
        file.rewind().expect("rewound");
        let mut hasher = Sha1::new();
        hasher.update(header.as_bytes());
        hasher.update(content);
        let name = hasher
            .finalize()
            .iter()
            .fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            });
        (file, name)
    }

    #[test]
    fn an_object_inflates_to_what_its_header_says_and_no_further() {
        let content = vec![0; 3 << 20];
        let length = content.len() as u64;
        let (file, name) = loose(length, &content);
        assert!(is_true(&file, &name).expect("read"));
        let (empty, name) = loose(0, b"");
        assert!(is_true(&empty, &name).expect("read"));
        // Each has the name that its bytes hash to: only the length betrays it.
        for announced in [0, 10, length - 1, length + 1, LARGEST_OBJECT, u64::MAX] {
            let (file, name) = loose(announced, &content);
            assert!(!is_true(&file, &name).expect("read"), "{announced}");
        }
        // A bomb is left where its announced length ends, not where it does.
        let (mut bomb, name) = loose(10, &vec![0; 64 << 20]);
        assert!(!is_true(&bomb, &name).expect("read"));
        let (read, whole) = (
            io::Seek::stream_position(&mut bomb).expect("a place"),
            bomb.metadata().expect("metadata").len(),
        );
        assert!(whole > 60 * 1024 && read <= 40 * 1024, "{read} of {whole}");
    }

    #[test]
    fn only_names_of_objects_are_brought_over() {
        let hash = "0123456789abcdef0123456789abcdef01234567";
        let loose = format!("{}/{}", &hash[..2], &hash[2..]);
        assert_eq!(
            sort(Path::new(&loose)),
            Some(ObjectFile::Loose(hash.into()))
        );
        assert_eq!(
            sort(Path::new(&format!("pack/pack-{hash}.pack"))),
            Some(ObjectFile::Pack)
        );
        assert_eq!(
            sort(Path::new(&format!("pack/pack-{hash}.idx"))),
            Some(ObjectFile::Made)
        );
        for other in [
            "info/alternates",
            "info/commit-graph",
            "pack/evil.pack",
            "zz/x",
            "01/tmp_obj_x",
            "pack/multi-pack-index",
        ] {
            assert_eq!(sort(Path::new(other)), None, "{other}");
        }
    }
}
