//! What is seen through the descriptor of something that is asked for.

use ironcage_layers::live::Identity;
use ironcage_lease::{Facts, Node};
use ironcage_model::Right;
use ironcage_plan::protected_names;
use ironcage_sys::rustix::fs::{AtFlags, FileType, fstat, readlink, statat};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// What a descriptor stands for.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Its real path, by the kernel's word.
    pub(crate) path: PathBuf,
    pub(crate) identity: Identity,
    pub(crate) facts: Facts,
}

/// Looks at what a descriptor stands for, which is to be read or written.
pub(crate) fn look(handle: &OwnedFd, right: Right) -> io::Result<Seen> {
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
    Ok(Seen {
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
