//! The data lists of files: what the system view holds, what is protected, what is secret.
//!
//! The entries lie in `policies/`, each with its reason; the build script checks them and
//! makes the statics here. Whether a path exists on this host is for `plan` to find out.

use serde::Serialize;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// A path and the reason why it is in its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// The path, absolute or relative as its list says.
    pub path: &'static str,
    /// Why it is there.
    pub why: &'static str,
}

/// A path below `/proc` that is hidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Masked {
    /// The path, relative to `/proc`.
    pub path: &'static str,
    /// What it would show.
    pub why: &'static str,
    /// Whether the kernel keeps all but the host's root out of it anyway.
    pub root_only: bool,
}

/// A path below `/proc` or `/etc` that is replaced by a fixed text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Fixed {
    /// The path, relative to there.
    pub path: &'static str,
    /// Why it is not the host's.
    pub why: &'static str,
    /// What it shows instead.
    pub content: &'static str,
}

/// What every cage sees of the host's system.
pub mod system {
    use super::{Fixed, Listed, Masked};
    include!(concat!(env!("OUT_DIR"), "/system.rs"));
}

/// Files in the root of a workspace that the host would later execute or trust; paths are
/// relative to the workspace.
pub mod protected {
    use super::Listed;
    include!(concat!(env!("OUT_DIR"), "/protected.rs"));
}

/// Credentials that stay hidden whatever is granted above them; paths are relative to the
/// home directory.
pub mod credentials {
    use super::Listed;
    include!(concat!(env!("OUT_DIR"), "/credentials.rs"));
}

/// Places of the host that a cage gets only by an explicit word; paths are absolute, or begin
/// with `~/`.
pub mod guarded {
    use super::Listed;
    include!(concat!(env!("OUT_DIR"), "/guarded.rs"));
}

/// A setting of git that is taken over from the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct GitKey {
    /// Section and key, in lower case: `user.name`.
    pub name: &'static str,
    /// Why it is taken over.
    pub why: &'static str,
}

/// Settings of git that are taken over from the user.
pub mod git {
    use super::GitKey;
    include!(concat!(env!("OUT_DIR"), "/git.rs"));
}

/// What becomes of a file in a change that the host would execute or trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// It is applied, and told.
    Flagged,
    /// It stays aside until it is named.
    Withheld,
}

/// A name or a shape that the host would execute or trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Executed {
    /// One or more names in a row, at any depth, each with at most one star; or the name of a
    /// shape.
    pub path: &'static str,
    /// What becomes of it.
    pub class: Class,
    /// What would happen on the host.
    pub why: &'static str,
}

impl Executed {
    /// Where in a path the listed name ends, if it is in it.
    pub fn found_in(&self, parts: &[&OsStr]) -> Option<usize> {
        let wanted: Vec<&str> = self.path.split('/').collect();
        (wanted.len()..=parts.len()).find(|end| {
            let window = &parts[end - wanted.len()..*end];
            let mut pairs = wanted.iter().zip(window);
            pairs.all(|(wanted, part)| is_like(wanted, part))
        })
    }
}

/// Whether a name is as a pattern with at most one star says, without regard to case: the
/// workspace may lie, or be copied to, where case does not count.
pub fn is_like(pattern: &str, name: &OsStr) -> bool {
    let name = name.as_bytes().to_ascii_lowercase();
    let pattern = pattern.to_ascii_lowercase();
    match pattern.split_once('*') {
        None => name == pattern.as_bytes(),
        Some((start, end)) => {
            name.len() >= start.len() + end.len()
                && name.starts_with(start.as_bytes())
                && name.ends_with(end.as_bytes())
        }
    }
}

/// What the host would execute or trust in a change, wherever it lies.
pub mod executed {
    use super::{Class, Executed};
    include!(concat!(env!("OUT_DIR"), "/executed.rs"));
}
