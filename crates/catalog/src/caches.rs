//! Caches of tools, and single files that are kept by way of a directory.
//!
//! The entries lie in `policies/caches.toml` and `policies/kept-files.toml`.

use serde::Serialize;

/// A cache that can be kept between runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// The name in policies.
    pub name: &'static str,
    /// Variables, and the place of each in the cage's directory of caches.
    pub set: &'static [(&'static str, &'static str)],
    /// What of the user's own may be read through it.
    pub host: &'static [HostCache],
    pub why: &'static str,
}

/// A directory of the user's own cache, which holds what was downloaded and no credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct HostCache {
    /// The variable by which the user may have moved the cache.
    pub variable: &'static str,
    /// Where it is else; `~/` begins it.
    pub default: &'static str,
    /// The directory of it; empty is all.
    pub part: &'static str,
    /// Where in the cage's directory of caches.
    pub place: &'static str,
    /// What of it is hidden.
    pub without: &'static [&'static str],
    pub why: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/caches.rs"));

/// The cache with this name.
pub fn find(name: &str) -> Option<&'static Cache> {
    ENTRIES.iter().find(|cache| cache.name == name)
}

/// Every name, for messages.
pub fn names() -> Vec<&'static str> {
    ENTRIES.iter().map(|cache| cache.name).collect()
}

/// A file of the home directory that its program can have in a directory instead. All paths
/// are relative to the home directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct KeptFile {
    /// Where it is by default.
    pub path: &'static str,
    /// Where it is in the cage.
    pub inside: &'static str,
    /// The variable that tells the program.
    pub variable: &'static str,
    pub value: &'static str,
    pub why: &'static str,
}

/// Files that are kept by way of a directory.
pub mod kept_files {
    use super::KeptFile;
    include!(concat!(env!("OUT_DIR"), "/kept_files.rs"));

    /// The entry of a file, by its path relative to the home directory.
    pub fn find(path: &std::path::Path) -> Option<&'static KeptFile> {
        ENTRIES
            .iter()
            .find(|file| std::path::Path::new(file.path) == path)
    }
}
