//! Facts about a requested resource, read through its descriptor.

use ironcage_control::LeaseTarget;
use ironcage_layers::live::Identity;
use ironcage_lease::{Facts, Node, RequestedPath};
use ironcage_model::{LeaseReason, Resource, Right};
use ironcage_plan::protected_names;
use ironcage_sys::rustix::fs::{AtFlags, FileType, fstat, readlink, statat};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// What a descriptor stands for.
#[derive(Debug)]
pub(crate) struct SeenPath {
    /// Its real path, by the kernel's word.
    pub(crate) path: PathBuf,
    pub(crate) identity: Identity,
    pub(crate) facts: Facts,
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
        let right = match wanted {
            LeaseTarget::Path { right } => *right,
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
        match look(handle, right) {
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
    let mut names = protected_names();
    let executed = match node {
        // Each is a question to the file system: asked only where the answer matters.
        Node::Directory if right == Right::Write => {
            names.find(|name| statat(handle, *name, AtFlags::SYMLINK_NOFOLLOW).is_ok())
        }
        Node::Directory | Node::File | Node::Other => None,
    };
    Ok(SeenPath {
        path,
        identity: Identity::of(handle.as_fd())?,
        facts: Facts {
            node,
            executed: executed.map(str::to_owned),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_sys::rustix::fs::{Mode, OFlags, open};

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
