//! Objects of git that an agent made: brought over when they are what their names say.
//!
//! A loose object is inflated and hashed. A pack is copied aside and its index is made anew by
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

/// What a file below `objects` is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ObjectFile {
    /// A loose object of this name.
    Loose(String),
    /// A pack.
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
    Ok(digest == name)
}

fn hash<D: Digest>(file: &File) -> io::Result<String> {
    let mut inflated = ZlibDecoder::new(file);
    let mut hasher = D::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = inflated.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
    }
    let mut text = String::new();
    for byte in hasher.finalize().iter() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
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
        .args(["index-pack", &format!("--object-format={format}"), "-o"])
        .arg(&index)
        .arg(&copied)
        .current_dir(aside)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CEILING_DIRECTORIES", "/")
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
