//! References of git, read from files.

use crate::content::read_bounded;
use crate::tree;
use ironcage_sys::rustix::fs::{Mode, mkdirat};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::geteuid;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

/// The most that is read of a reference, and of all packed ones.
const REFERENCE_SIZE: u64 = 4096;
const PACKED_SIZE: u64 = 64 * 1024 * 1024;

/// Whether a text is the name of an object.
pub(crate) fn is_object_name(text: &str) -> bool {
    matches!(text.len(), 40 | 64)
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a text is a name that git takes for a reference.
pub(crate) fn is_name(name: &str) -> bool {
    let bad =
        |c: char| c.is_control() || matches!(c, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\');
    name.starts_with("refs/")
        && !name.contains(bad)
        && !name.contains("..")
        && !name.contains("@{")
        && !name.ends_with('.')
        && name.split('/').all(|part| {
            !part.is_empty() && !part.starts_with(['.', '-']) && !part.ends_with(".lock")
        })
}

/// Where git looks for a short name, in this order: the part before it, and the part after it.
const LOOKED_UP: [(&str, &str); 6] = [
    ("", ""),
    ("refs/", ""),
    ("refs/tags/", ""),
    ("refs/heads/", ""),
    ("refs/remotes/", ""),
    ("refs/remotes/", "/HEAD"),
];

/// References that a short name led to before, and would not when this one is there: `main` is the
/// tag of that name first, then the branch. `HEAD` stays what it is, but git then calls it
/// ambiguous.
pub(crate) fn hidden_by(name: &str) -> impl Iterator<Item = String> {
    let places = LOOKED_UP.iter().enumerate().skip(1);
    places.flat_map(move |(place, (before, after))| {
        let short = name
            .strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after))
            .unwrap_or_default();
        let is_hidden = move |other: &usize| *other > place || *other == 0 && short == "HEAD";
        let others = (0..LOOKED_UP.len()).filter(is_hidden);
        others
            .filter_map(|other| LOOKED_UP.get(other))
            .filter(|_| !short.is_empty())
            .map(move |(before, after)| format!("{before}{short}{after}"))
    })
}

/// Whether git takes a short name of a reference for the beginning of a commit's name where there is
/// no such reference.
pub(crate) fn is_like_a_commit(name: &str) -> bool {
    let mut places = LOOKED_UP.iter().skip(1);
    places.any(|(before, after)| {
        let short = name
            .strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after));
        short.is_some_and(|short| {
            (SHORTEST..=LONGEST).contains(&short.len())
                && short.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    })
}

/// Digits of a commit that git looks up: from four to all of SHA-256.
const SHORTEST: usize = 4;
const LONGEST: usize = 64;

/// Whether a text is what a reference may hold: an object, or another reference.
pub(crate) fn is_value(value: &str) -> bool {
    match value.strip_prefix("ref: ") {
        Some(name) => is_name(name),
        None => is_object_name(value),
    }
}

/// The value of a loose reference; `None` when there is none that can be understood.
pub(crate) fn loose(git: BorrowedFd<'_>, name: &Path) -> io::Result<Option<String>> {
    let above = match tree::open_below(git, name.parent().unwrap_or(Path::new(""))) {
        Ok(above) => above,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let file = match tree::open_file(above.as_fd(), name.file_name().unwrap_or_default()) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let text = read_bounded(&file, REFERENCE_SIZE)?.and_then(|text| String::from_utf8(text).ok());
    Ok(text
        .map(|text| text.trim_end().to_owned())
        .filter(|value| is_value(value)))
}

/// Whether a git directory has a branch, or is on it before its first commit.
pub(crate) fn is_branch(git: &impl std::os::fd::AsFd, name: &str) -> bool {
    let reference = format!("refs/heads/{name}");
    let git = git.as_fd();
    let is_there = |found: io::Result<bool>| found.unwrap_or(true);
    is_there(loose(git, Path::new(&reference)).map(|value| value.is_some()))
        || is_there(packed(git).map(|all| all.is_some_and(|all| all.contains_key(&reference))))
        || is_there(
            loose(git, Path::new("HEAD"))
                .map(|head| head.is_some_and(|head| head == format!("ref: {reference}"))),
        )
}

/// The packed references of a git directory.
pub(crate) fn packed(git: BorrowedFd<'_>) -> io::Result<Option<BTreeMap<String, String>>> {
    let file = match tree::open_file(git, OsStr::new("packed-refs")) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // Taken for empty, it would hide nothing.
    let text = read_bounded(&file, PACKED_SIZE)?.ok_or_else(|| {
        io::Error::other(format!("packed-refs is larger than {PACKED_SIZE} bytes"))
    })?;
    let pairs = text
        .split(|byte| *byte == b'\n')
        // Names that are not UTF-8 are none that is asked for.
        .filter_map(|line| std::str::from_utf8(line).ok())
        .filter(|line| !line.starts_with(['#', '^']))
        .filter_map(|line| line.split_once(' '))
        .filter(|(value, name)| is_object_name(value) && is_name(name))
        .map(|(value, name)| (name.to_owned(), value.to_owned()));
    Ok(Some(pairs.collect()))
}

/// Gives a file that root made to whom the directory belongs.
pub(crate) fn give(file: &File, owner: (u32, u32)) -> io::Result<()> {
    use ironcage_sys::rustix::fs::{Gid, Uid, fchown};
    use std::os::unix::fs::MetadataExt as _;
    let metadata = file.metadata()?;
    if (metadata.uid(), metadata.gid()) == owner || metadata.uid() != 0 {
        return Ok(());
    }
    Ok(fchown(
        file,
        Some(Uid::from_raw(owner.0)),
        Some(Gid::from_raw(owner.1)),
    )?)
}

/// Opens a directory below a git directory, and makes what is missing of it.
pub(crate) fn make_directories(git: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let mut at = tree::open_directory(git, OsStr::new("."))?;
    for part in path.components() {
        let name = part.as_os_str();
        let made = match mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let owner = tree::Node::of(&at)?.owner;
        at = tree::open_directory(at.as_fd(), name)?;
        if made {
            // Where root applies in a tree of another user's, that user may have put another in its
            // place by now.
            let is_given = tree::Node::of(&at)?.owner != owner && geteuid().is_root();
            if is_given && !tree::names(at.as_fd())?.is_empty() {
                return Err(io::Error::other("another directory has taken its place"));
            }
            give(&File::from(at.try_clone()?), owner)?;
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_new_reference_hides_is_what_git_looks_up_after_it() {
        let hides = |name: &str, other: &str| hidden_by(name).any(|hidden| hidden == other);
        for (name, other) in [
            ("refs/main", "refs/heads/main"),
            ("refs/tags/main", "refs/heads/main"),
            ("refs/tags/origin/main", "refs/remotes/origin/main"),
            ("refs/heads/origin/main", "refs/remotes/origin/main"),
            ("refs/heads/origin", "refs/remotes/origin/HEAD"),
            ("refs/heads/HEAD", "HEAD"),
            ("refs/tags/HEAD", "HEAD"),
            ("refs/remotes/HEAD", "HEAD"),
        ] {
            assert!(hides(name, other), "{name} hides {other}");
        }
        for (name, other) in [
            ("refs/heads/main", "refs/tags/main"),
            ("refs/heads/main", "refs/heads/main"),
            ("refs/heads/topic", "refs/heads/main"),
            ("refs/heads/objects", "objects"),
            ("refs/remotes/origin/main", "refs/heads/main"),
            ("refs/remotes/origin/main", "refs/heads/origin/main"),
        ] {
            assert!(!hides(name, other), "{name} hides no {other}");
        }
    }

    #[test]
    fn names_of_digits_are_those_that_git_looks_up_as_commits() {
        let all = "0123456789abcdef".repeat(4);
        for name in [
            "refs/heads/dead".to_owned(),
            "refs/tags/1234567".to_owned(),
            "refs/remotes/ABCDEF01/HEAD".to_owned(),
            "refs/beef".to_owned(),
            format!("refs/heads/{all}"),
            format!("refs/tags/{}", &all[..40]),
        ] {
            assert!(is_like_a_commit(&name), "{name}");
        }
        for name in [
            "refs/heads/abc".to_owned(),
            "refs/heads/main".to_owned(),
            "refs/heads/topic/dead".to_owned(),
            "refs/remotes/origin/HEAD".to_owned(),
            format!("refs/heads/{all}0"),
        ] {
            assert!(!is_like_a_commit(&name), "{name}");
        }
    }

    #[test]
    fn names_and_values_are_as_git_has_them() {
        for name in ["refs/heads/main", "refs/heads/topic/x-1", "refs/tags/v1.0"] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "HEAD",
            "refs/heads/../../config",
            "refs/heads/x.lock",
            "refs/heads/.x",
            "refs/heads//x",
            "refs/heads/x\ny",
            "refs/heads/",
            "refs/heads/a b",
            "refs/heads/a@{1}",
            "refs/heads/x.",
            "refs/heads/-x",
        ] {
            assert!(!is_name(name), "{name}");
        }
        assert!(is_value("ref: refs/heads/main"));
        assert!(is_value("0123456789abcdef0123456789abcdef01234567"));
        assert!(!is_value("ref: ../evil") && !is_value("0123") && !is_value(""));
    }
}
