//! Facts about a requested resource, read through its descriptor.

use ironcage_catalog::as_compared;
use ironcage_control::LeaseTarget;
use ironcage_layers::live::Identity;
use ironcage_lease::{Facts, Node, RequestedPath};
use ironcage_model::{LeaseReason, Resource, Right};
use ironcage_plan::protected_names;
use ironcage_sys::rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, readlink, statat,
};
use ironcage_sys::rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Most names of a directory that are listed: more would take longer than the questions.
const MOST_LISTED: usize = 2048;

/// What a descriptor stands for.
#[derive(Debug)]
pub(crate) struct SeenPath {
    /// Its real path, by the kernel's word.
    pub(crate) path: PathBuf,
    pub(crate) identity: Identity,
    pub(crate) facts: Facts,
    /// Where it is one name of a directory, which may not be there.
    pub(crate) name: Option<SeenName>,
}

/// A name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SeenName {
    pub(crate) directory: Identity,
    /// What has the name.
    pub(crate) existing: Option<Identity>,
}

/// What a lease is asked for: a resource, and what was seen of it where it is a path.
#[derive(Debug)]
pub(crate) struct LeaseSubject {
    pub(crate) resource: Resource,
    pub(crate) seen: Option<SeenPath>,
}

impl LeaseSubject {
    /// Looks at what a request names; else what it is called in the audit log, and why not.
    pub(crate) fn look(
        wanted: &LeaseTarget,
        handle: Option<&OwnedFd>,
    ) -> Result<LeaseSubject, Box<(Resource, LeaseReason)>> {
        let (right, name) = match wanted {
            LeaseTarget::Path { right } => (*right, None),
            LeaseTarget::Name { name } => (Right::Write, Some(name)),
            LeaseTarget::Other(resource) => {
                return Ok(LeaseSubject {
                    resource: resource.clone(),
                    seen: None,
                });
            }
        };
        let path = |path: String| Resource::Path { path, right };
        let Some(handle) = handle else {
            return Err(Box::new((path(String::new()), LeaseReason::NoDescriptor)));
        };
        let seen = match name {
            None => look(handle, right),
            Some(name) => look_at_name(handle, name),
        };
        match seen {
            Ok(seen) => Ok(LeaseSubject {
                resource: path(seen.path.to_string_lossy().into_owned()),
                seen: Some(seen),
            }),
            Err(error) => {
                let error = error.to_string();
                let reason = LeaseReason::PathNotInspected { error };
                Err(Box::new((path(String::new()), reason)))
            }
        }
    }

    /// The same for the decision.
    pub(crate) fn wanted(&self) -> ironcage_lease::RequestedResource<'_> {
        match (&self.resource, &self.seen) {
            (Resource::Path { right, .. }, Some(seen)) => {
                ironcage_lease::RequestedResource::Path(RequestedPath {
                    path: &seen.path,
                    right: *right,
                    facts: seen.facts.clone(),
                })
            }
            (resource, _) => ironcage_lease::RequestedResource::Other(resource),
        }
    }
}

/// Looks at what a descriptor stands for, which is to be read or written.
pub(crate) fn look(handle: &OwnedFd, right: Right) -> io::Result<SeenPath> {
    let stat = fstat(handle)?;
    let node = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Node::Directory,
        FileType::RegularFile => Node::File,
        _ => Node::Other,
    };
    let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let path = readlink(link, Vec::new())?;
    // Of what has no name any more the kernel says so behind the name; whoever carries the
    // decision out finds nothing there, or something else.
    let path = PathBuf::from(OsString::from_vec(path.into_bytes()));
    let executed = match node {
        // Asked only where the answer matters.
        Node::Directory if right == Right::Write => executed_in(handle),
        Node::Directory | Node::File | Node::Other => None,
    };
    Ok(SeenPath {
        path,
        identity: Identity::of(handle.as_fd())?,
        facts: Facts {
            node,
            executed: executed.map(str::to_owned),
        },
        name: None,
    })
}

/// Looks at a name in a directory: a file that is to be written, or none yet.
pub(crate) fn look_at_name(directory: &OwnedFd, name: &str) -> io::Result<SeenPath> {
    let around = look(directory, Right::Read)?;
    let is_one = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
    if !is_one || around.facts.node != Node::Directory {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let (node, existing) = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => {
            let identity = Identity {
                device: stat.st_dev,
                inode: stat.st_ino,
            };
            let node = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Node::File,
                _ => Node::Other,
            };
            (node, Some(identity))
        }
        Err(Errno::NOENT) => (Node::File, None),
        Err(error) => return Err(error.into()),
    };
    Ok(SeenPath {
        path: around.path.join(name),
        identity: existing.unwrap_or(around.identity),
        facts: Facts {
            node,
            executed: None,
        },
        name: Some(SeenName {
            directory: around.identity,
            existing,
        }),
    })
}

/// The first name in a directory that the host would execute or trust. There are hundreds of such
/// names, and each is a question to the file system: one list of what is there spares most of them.
fn executed_in(directory: &OwnedFd) -> Option<&'static str> {
    let present = first_parts(directory);
    let may_be = |name: &str| {
        let first = name.split('/').next().unwrap_or_default();
        let first = first.to_ascii_lowercase().into_bytes();
        present.as_ref().is_none_or(|names| names.contains(&first))
    };
    let is_there = |name: &str| statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    protected_names().find(|name| may_be(name) && is_there(name))
}

/// What is in a directory, as file systems compare names that tell least apart. `None` where that
/// cannot be listed, or is more than the questions cost.
fn first_parts(directory: &OwnedFd) -> Option<BTreeSet<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(directory, ".", flags, Mode::empty()).ok()?;
    let mut names = BTreeSet::new();
    for entry in Dir::new(opened).ok()? {
        let name = OsString::from_vec(entry.ok()?.file_name().to_bytes().to_vec());
        if names.len() >= MOST_LISTED {
            return None;
        }
        names.insert(as_compared(&name).to_ascii_lowercase());
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_sys::rustix::fs::open;

    #[test]
    fn what_the_host_would_execute_is_found_with_and_without_a_list() {
        let place = tempfile::tempdir().unwrap();
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let handle = open(place.path(), flags, Mode::empty()).unwrap();
        let make = |name: &str| {
            let path = place.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        assert_eq!(executed_in(&handle), None);
        make("README.md");
        // The first part alone is not the file.
        make(".config/other");
        assert_eq!(executed_in(&handle), None);
        assert_eq!(
            first_parts(&handle).unwrap().len(),
            4,
            "two names, and the dots"
        );
        make(".envrc");
        assert_eq!(executed_in(&handle), Some(".envrc"));
        for number in 0..MOST_LISTED {
            make(&format!("many{number}"));
        }
        assert!(first_parts(&handle).is_none());
        assert_eq!(executed_in(&handle), Some(".envrc"));
        std::fs::remove_file(place.path().join(".envrc")).unwrap();
        assert_eq!(executed_in(&handle), None);
    }

    #[test]
    fn a_descriptor_tells_its_real_path_and_what_the_host_would_execute_there() {
        let place = tempfile::tempdir().unwrap();
        let real = place.path().canonicalize().unwrap();
        std::fs::create_dir_all(real.join("a/.git")).unwrap();
        std::os::unix::fs::symlink(real.join("a"), real.join("link")).unwrap();
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let handle = open(real.join("link"), flags, Mode::empty()).unwrap();
        let seen = look(&handle, Right::Write).unwrap();
        assert_eq!(seen.path, real.join("a"));
        assert_eq!(seen.facts.node, Node::Directory);
        assert!(seen.facts.executed.is_some());
        // Renamed meanwhile: the descriptor tells the new name.
        std::fs::rename(real.join("a"), real.join("b")).unwrap();
        assert_eq!(look(&handle, Right::Read).unwrap().path, real.join("b"));
        let socket = real.join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let handle = open(&socket, flags, Mode::empty()).unwrap();
        assert_eq!(look(&handle, Right::Read).unwrap().facts.node, Node::Other);
    }
}
