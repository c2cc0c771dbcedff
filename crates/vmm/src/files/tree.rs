//! Names that the guest knows, each a number. A number stands for a file by its names, and the file
//! behind a name is compared with the one that the number was given for, each time.

use super::stale;
use ironcage_sys::rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};
use ironcage_sys::rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::AsFd;

/// The root's number.
pub(crate) const ROOT: u64 = 1;
/// Names of one file that are remembered: with more, the oldest is forgotten.
const NAMES: usize = 8;
/// Files that the guest may know at once. It is bounded by its own memory, unless it lies.
const NODES: usize = 1 << 20;
/// Steps up to the root: deeper paths are longer than the kernel takes.
const DEPTH: usize = 2048;

/// Which file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    device: u64,
    inode: u64,
    mount: u64,
}

impl Key {
    /// Whether both are of the same file system.
    pub(crate) fn is_beside(self, other: Key) -> bool {
        self.device == other.device
    }

    /// Another file of the same file system.
    pub(crate) fn with_inode(self, inode: u64) -> Key {
        Key { inode, ..self }
    }
}

/// What the kernel says of a file.
#[derive(Debug, Clone)]
pub(crate) struct FoundFile {
    pub(crate) key: Key,
    pub(crate) mount: u64,
    pub(crate) stat: Statx,
}

fn found(stat: Statx) -> FoundFile {
    let mount = stat.stx_mnt_id;
    let device = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
    let key = Key {
        device,
        inode: stat.stx_ino,
        mount,
    };
    FoundFile { key, mount, stat }
}

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::MNT_ID);

/// Looks at a path, through no link at its end.
pub(crate) fn look(path: &CStr) -> io::Result<FoundFile> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    Ok(found(statx(CWD, path, flags, WANTED)?))
}

/// Looks at an open file.
pub(crate) fn look_at(file: impl AsFd) -> io::Result<FoundFile> {
    Ok(found(statx(file, c"", AtFlags::EMPTY_PATH, WANTED)?))
}

pub(crate) fn absolute(path: &[u8]) -> io::Result<CString> {
    CString::new(path).map_err(|_| Errno::INVAL.into())
}

#[derive(Debug)]
struct Node {
    key: Key,
    /// Directories and names in them; the latest is last.
    names: Vec<(u64, CString)>,
    /// How often the guest was told of it.
    lookups: u64,
    /// Names of other nodes in it.
    children: usize,
    /// Open files of it.
    handles: Vec<u64>,
}

/// The names that the guest knows.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: BTreeMap<u64, Node>,
    by_key: BTreeMap<Key, u64>,
    next: u64,
    /// Devices, in the order in which they were met.
    devices: Vec<u64>,
}

impl Tree {
    pub(crate) fn new() -> io::Result<Tree> {
        let root = look(c"/")?;
        let node = Node {
            key: root.key,
            names: Vec::new(),
            lookups: 1,
            children: 0,
            handles: Vec::new(),
        };
        Ok(Tree {
            nodes: BTreeMap::from([(ROOT, node)]),
            by_key: BTreeMap::from([(root.key, ROOT)]),
            next: ROOT + 1,
            devices: vec![root.key.device],
        })
    }

    pub(crate) fn root_mount(&self) -> u64 {
        self.nodes.get(&ROOT).map_or(0, |root| root.key.mount)
    }

    /// A number that is one for each file of the whole tree, though the guest sees one device.
    pub(crate) fn inode(&mut self, key: Key) -> u64 {
        let index = match self.devices.iter().position(|known| *known == key.device) {
            Some(index) => index,
            None if self.devices.len() < 4096 => {
                self.devices.push(key.device);
                self.devices.len() - 1
            }
            None => 4095,
        };
        key.inode ^ (index as u64) << 52
    }

    fn get(&self, number: u64) -> io::Result<&Node> {
        self.nodes.get(&number).ok_or_else(stale)
    }

    /// The path of a name in a directory.
    pub(crate) fn path_in(&self, parent: u64, name: &CStr) -> io::Result<CString> {
        let bytes = name.to_bytes();
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
            return Err(Errno::INVAL.into());
        }
        let mut path = self.path(parent)?.into_bytes();
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(bytes);
        absolute(&path)
    }

    /// A path of a number, by its latest names. What is there may be another file by now.
    fn path(&self, number: u64) -> io::Result<CString> {
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut at = number;
        while at != ROOT {
            let (parent, name) = self.get(at)?.names.last().ok_or_else(stale)?;
            parts.push(name.to_bytes());
            if parts.len() > DEPTH {
                return Err(Errno::NAMETOOLONG.into());
            }
            at = *parent;
        }
        let mut path = Vec::new();
        for part in parts.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        absolute(&path)
    }

    /// Where the file of a number is, and what the kernel says of it.
    pub(crate) fn find(&mut self, number: u64) -> io::Result<(CString, FoundFile)> {
        let names = self.get(number)?.names.len().max(1);
        for _ in 0..names {
            let path = self.path(number)?;
            let key = self.get(number)?.key;
            match look(&path) {
                Ok(found) if found.key == key => return Ok((path, found)),
                Ok(_) => {}
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => {}
                Err(error) => return Err(error),
            }
            // Another of its names may still be right.
            if let Some(node) = self.nodes.get_mut(&number)
                && !node.names.is_empty()
            {
                node.names.rotate_right(1);
            }
        }
        Err(stale())
    }

    /// The file of a number has become another one by what was done to it: a copy-on-write view
    /// copies a file with its first change.
    pub(crate) fn changed(&mut self, number: u64, path: &CStr) -> io::Result<FoundFile> {
        let found = look(path)?;
        let node = self.nodes.get_mut(&number).ok_or_else(stale)?;
        let old = node.key;
        if old != found.key && old.mount == found.mount && !self.by_key.contains_key(&found.key) {
            node.key = found.key;
            self.by_key.remove(&old);
            self.by_key.insert(found.key, number);
        }
        Ok(found)
    }

    /// An open file of a number, for what has no name any more.
    pub(crate) fn open_handle(&self, number: u64) -> Option<u64> {
        self.nodes.get(&number)?.handles.last().copied()
    }

    /// The number of what was found under a name. The guest is told of it.
    pub(crate) fn learn(&mut self, parent: u64, name: &CStr, found: &FoundFile) -> io::Result<u64> {
        let place = (parent, name.to_owned());
        let number = match self.by_key.get(&found.key) {
            Some(number) => *number,
            None if self.nodes.len() >= NODES => return Err(Errno::NFILE.into()),
            None => {
                let number = self.next;
                self.next += 1;
                let node = Node {
                    key: found.key,
                    names: Vec::new(),
                    lookups: 0,
                    children: 0,
                    handles: Vec::new(),
                };
                self.nodes.insert(number, node);
                self.by_key.insert(found.key, number);
                number
            }
        };
        let node = self.nodes.get_mut(&number).ok_or_else(stale)?;
        node.lookups = node.lookups.saturating_add(1);
        if number == ROOT || node.names.last() == Some(&place) {
            return Ok(number);
        }
        let mut dropped = None;
        if let Some(index) = node.names.iter().position(|known| *known == place) {
            node.names.remove(index);
        } else {
            if node.names.len() >= NAMES {
                dropped = Some(node.names.remove(0));
            }
            if let Some(parent) = self.nodes.get_mut(&parent) {
                parent.children += 1;
            }
        }
        if let Some(node) = self.nodes.get_mut(&number) {
            node.names.push(place);
        }
        if let Some((parent, _)) = dropped {
            self.leave(parent);
        }
        Ok(number)
    }

    /// A name in a directory is gone, or is another file's.
    pub(crate) fn unname(&mut self, key: Key, parent: u64, name: &CStr) {
        let Some(number) = self.by_key.get(&key).copied() else {
            return;
        };
        let Some(node) = self.nodes.get_mut(&number) else {
            return;
        };
        let mut names = node.names.iter();
        let at = names.position(|(directory, known)| *directory == parent && **known == *name);
        if let Some(index) = at {
            node.names.remove(index);
            self.leave(parent);
        }
    }

    /// What has this key has a further name.
    pub(crate) fn rename(&mut self, key: Key, parent: u64, name: &CStr) {
        let Some(number) = self.by_key.get(&key).copied() else {
            return;
        };
        let Some(node) = self.nodes.get_mut(&number) else {
            return;
        };
        let place = (parent, name.to_owned());
        if !node.names.contains(&place) {
            node.names.push(place);
            if let Some(parent) = self.nodes.get_mut(&parent) {
                parent.children += 1;
            }
        }
    }

    fn leave(&mut self, parent: u64) {
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.children = node.children.saturating_sub(1);
        }
        self.drop_unused(parent);
    }

    /// The guest has forgotten a number as often as it says.
    pub(crate) fn forget(&mut self, number: u64, count: u64) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.lookups = node.lookups.saturating_sub(count);
        }
        self.drop_unused(number);
    }

    /// Removes a number that nobody uses, and then its directories.
    fn drop_unused(&mut self, number: u64) {
        let mut waiting = vec![number];
        while let Some(number) = waiting.pop() {
            let unused = self.nodes.get(&number).is_some_and(|node| {
                number != ROOT && node.lookups == 0 && node.children == 0 && node.handles.is_empty()
            });
            if !unused {
                continue;
            }
            let Some(node) = self.nodes.remove(&number) else {
                continue;
            };
            self.by_key.remove(&node.key);
            for (parent, _) in node.names {
                if let Some(parent) = self.nodes.get_mut(&parent) {
                    parent.children = parent.children.saturating_sub(1);
                }
                waiting.push(parent);
            }
        }
    }

    pub(crate) fn opened(&mut self, number: u64, handle: u64) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.handles.push(handle);
        }
    }

    pub(crate) fn closed(&mut self, number: u64, handle: u64) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.handles.retain(|known| *known != handle);
        }
        self.drop_unused(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_finds_its_file_and_not_another_that_took_its_name() {
        let top = tempfile::tempdir().unwrap();
        std::fs::write(top.path().join("a"), "one").unwrap();
        let mut tree = Tree::new().unwrap();
        let mut at = ROOT;
        for part in top.path().iter().skip(1) {
            let name = absolute(part.as_encoded_bytes()).unwrap();
            let found = look(&tree.path_in(at, &name).unwrap()).unwrap();
            at = tree.learn(at, &name, &found).unwrap();
        }
        let found = look(&tree.path_in(at, c"a").unwrap()).unwrap();
        let number = tree.learn(at, c"a", &found).unwrap();
        assert_eq!(tree.find(number).unwrap().1.key, found.key);
        // Another file under its name: the number does not become it.
        std::fs::write(top.path().join("b"), "two").unwrap();
        std::fs::rename(top.path().join("b"), top.path().join("a")).unwrap();
        assert_eq!(
            tree.find(number).unwrap_err().raw_os_error(),
            Some(libc::ESTALE)
        );
        tree.forget(number, 1);
        assert_eq!(tree.nodes.len(), top.path().iter().count());
        tree.forget(at, 1);
        assert!(tree.path(at).is_err());
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let tree = Tree::new().unwrap();
        for name in [c"", c".", c"..", c"a/b"] {
            assert!(tree.path_in(ROOT, name).is_err());
        }
        assert_eq!(&*tree.path_in(ROOT, c"etc").unwrap(), c"/etc");
    }
}
