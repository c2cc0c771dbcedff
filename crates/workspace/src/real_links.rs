//! The symbolic links of a real tree that have a listed name, or the beginning of one; and the
//! files that tell Python what to import when it starts.
//!
//! Where such a link leads is not known before it is found, so the whole tree is looked at: its
//! directories, not its files. The listing of a directory is remembered for as long as the
//! change is in memory, and taken again while device, inode and times of that directory are the
//! same; so whoever asks again, as `apply --follow` does, reads only the directories in which
//! something was made, removed or renamed.

use crate::executed;
use crate::pth::is_path_file;
use crate::tree::{self, DEEPEST, Kind, Node};
use crate::{Moment, executed::Begun};
use ironcage_sys::rustix::fs::{Dir, FileType};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Times of files are as coarse as the kernel's tick, or the file system's: a directory that
/// changed so shortly before it was read may change again and have the same time.
const COARSE: Duration = Duration::from_secs(2);

/// What was found in one tree, and in which directory.
#[derive(Debug, Clone, Default)]
pub(crate) struct RealLinks(Option<Listing>);

/// One directory.
#[derive(Debug, Clone)]
struct Listing {
    place: (u64, u64),
    modified: Moment,
    changed: Moment,
    /// Whether a change of it after it was read is sure to show in its times.
    steady: bool,
    /// Its links that matter, by their path below the tree's root.
    links: Vec<(PathBuf, Vec<Begun>)>,
    /// Its `.pth` files, by their path below the tree's root.
    path_files: Vec<PathBuf>,
    /// Whether it has a `.git`, of whatever kind.
    has_git: bool,
    inner: BTreeMap<OsString, Listing>,
}

impl Listing {
    /// Whether what was read is still what is there.
    fn is_of(&self, node: &Node) -> bool {
        self.steady
            && self.place == node.place
            && self.modified == node.modified
            && self.changed == node.changed
    }
}

impl RealLinks {
    /// Looks at the tree, and tells every link that matters with what it is the beginning of.
    /// No mount point is entered, and no git directory.
    pub(crate) fn look(
        &mut self,
        root: BorrowedFd<'_>,
        mut tell: impl FnMut(&Path, &[Begun]),
    ) -> io::Result<()> {
        let known = self.0.take();
        let listing = list(root, OsStr::new("."), Path::new(""), known)?;
        told(&listing, &mut tell);
        self.0 = Some(listing);
        Ok(())
    }

    /// The `.pth` files of the tree, as of the last look.
    pub(crate) fn path_files(&self) -> Vec<&Path> {
        fn collect<'a>(listing: &'a Listing, found: &mut Vec<&'a Path>) {
            found.extend(listing.path_files.iter().map(PathBuf::as_path));
            for inner in listing.inner.values() {
                collect(inner, found);
            }
        }
        let mut found = Vec::new();
        self.0
            .iter()
            .for_each(|listing| collect(listing, &mut found));
        found
    }

    /// The directories that have a `.git`, below the tree's root, as they were last looked at.
    pub(crate) fn repositories(&self) -> Vec<PathBuf> {
        fn collect(listing: &Listing, path: &Path, found: &mut Vec<PathBuf>) {
            if listing.has_git {
                found.push(path.to_owned());
            }
            for (name, inner) in &listing.inner {
                collect(inner, &path.join(name), found);
            }
        }
        let mut found = Vec::new();
        if let Some(listing) = &self.0 {
            collect(listing, Path::new(""), &mut found);
        }
        found
    }

    /// How many directories would be read anew, were nothing to change.
    #[cfg(test)]
    fn unsteady(&self) -> usize {
        fn count(listing: &Listing) -> usize {
            usize::from(!listing.steady) + listing.inner.values().map(count).sum::<usize>()
        }
        self.0.as_ref().map_or(0, count)
    }
}

fn told(listing: &Listing, tell: &mut impl FnMut(&Path, &[Begun])) {
    for (path, begun) in &listing.links {
        tell(path, begun);
    }
    for inner in listing.inner.values() {
        told(inner, tell);
    }
}

fn list(
    above: BorrowedFd<'_>,
    name: &OsStr,
    path: &Path,
    known: Option<Listing>,
) -> io::Result<Listing> {
    if let Some(known) = known {
        let node = tree::look(above, name)?.ok_or(io::ErrorKind::NotFound)?;
        if known.is_of(&node) {
            return list_inner(above, name, path, known);
        }
        return read(above, name, path, known.inner);
    }
    read(above, name, path, BTreeMap::new())
}

/// The same directory again: what is in those below it may have changed all the same.
fn list_inner(
    above: BorrowedFd<'_>,
    name: &OsStr,
    path: &Path,
    mut known: Listing,
) -> io::Result<Listing> {
    if known.inner.is_empty() {
        return Ok(known);
    }
    let directory = tree::open_directory(above, name)?;
    let inner = std::mem::take(&mut known.inner).into_iter();
    known.inner = inner
        .filter_map(|(name, inner)| {
            let path = path.join(&name);
            let listed = list(directory.as_fd(), &name, &path, Some(inner)).ok()?;
            Some((name, listed))
        })
        .collect();
    Ok(known)
}

fn read(
    above: BorrowedFd<'_>,
    name: &OsStr,
    path: &Path,
    mut known: BTreeMap<OsString, Listing>,
) -> io::Result<Listing> {
    let directory = tree::open_directory(above, name)?;
    // Its times from before it is read: what changes meanwhile shows the next time.
    let node = Node::of(&directory)?;
    let mut listing = Listing {
        place: node.place,
        modified: node.modified,
        changed: node.changed,
        steady: node.changed < Moment::before_now(COARSE),
        links: Vec::new(),
        path_files: Vec::new(),
        has_git: false,
        inner: BTreeMap::new(),
    };
    if path.components().count() > DEEPEST {
        return Ok(listing);
    }
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == ".git" {
            listing.has_git = true;
        }
        if name == "." || name == ".." || name == ".git" {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Symlink => Kind::Link,
            FileType::Directory => Kind::Directory,
            FileType::RegularFile => Kind::File,
            // Some file systems do not tell.
            FileType::Unknown => match tree::look(directory.as_fd(), name)? {
                Some(node) => node.kind,
                None => continue,
            },
            _ => continue,
        };
        match kind {
            Kind::Link => {
                let path = path.join(name);
                let begun = executed::beginnings(&path);
                if !begun.is_empty() {
                    listing.links.push((path, begun));
                }
            }
            // What cannot be entered is not a part of the view either.
            Kind::Directory => {
                let known = known.remove(name);
                if let Ok(inner) = list(directory.as_fd(), name, &path.join(name), known) {
                    listing.inner.insert(name.to_owned(), inner);
                }
            }
            Kind::File if is_path_file(name) => listing.path_files.push(path.join(name)),
            _ => {}
        }
    }
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn found(links: &mut RealLinks, root: &Path) -> Vec<String> {
        let opened = tree::open_root(root).expect("the tree");
        let mut found = Vec::new();
        links
            .look(opened.as_fd(), |path, _| {
                found.push(path.display().to_string());
            })
            .expect("it is looked at");
        found.sort();
        found
    }

    /// Pretends that the tree was last changed long before it was read.
    fn settle(links: &mut RealLinks) {
        fn settle(listing: &mut Listing) {
            listing.steady = true;
            listing.inner.values_mut().for_each(settle);
        }
        links.0.as_mut().into_iter().for_each(settle);
    }

    #[test]
    fn what_is_remembered_is_taken_only_while_it_is_so() {
        let base = tempfile::tempdir().expect("a directory");
        let root = base.path();
        fs::create_dir_all(root.join("a/b/c")).expect("directories");
        fs::create_dir(root.join("d")).expect("a directory");
        symlink("x", root.join("a/b/.envrc")).expect("a link");
        symlink("x", root.join("a/plain")).expect("a link");
        let mut links = RealLinks::default();
        assert_eq!(found(&mut links, root), ["a/b/.envrc"]);
        // All of it is too new to be remembered.
        assert_eq!(links.unsteady(), 5);
        settle(&mut links);
        assert_eq!(found(&mut links, root), ["a/b/.envrc"]);
        assert_eq!(links.unsteady(), 0, "nothing was read again");
        // Deep below what did not change, and in what was moved.
        std::thread::sleep(Duration::from_millis(30));
        symlink("x", root.join("a/b/c/.vscode")).expect("a link");
        assert_eq!(found(&mut links, root), ["a/b/.envrc", "a/b/c/.vscode"]);
        assert_eq!(links.unsteady(), 1);
        settle(&mut links);
        std::thread::sleep(Duration::from_millis(30));
        fs::remove_file(root.join("a/b/.envrc")).expect("removed");
        fs::rename(root.join("a/b/c"), root.join("d/c")).expect("moved");
        assert_eq!(found(&mut links, root), ["d/c/.vscode"]);
        // Another directory with the same name.
        settle(&mut links);
        fs::rename(root.join("d"), root.join("e")).expect("moved");
        fs::rename(root.join("a"), root.join("d")).expect("moved");
        assert_eq!(found(&mut links, root), ["e/c/.vscode"]);
    }

    #[test]
    fn a_link_that_came_in_the_tick_in_which_its_directory_was_read_is_found() {
        let base = tempfile::tempdir().expect("a directory");
        let mut links = RealLinks::default();
        for number in 0..20 {
            let directory = base.path().join(number.to_string());
            fs::create_dir(&directory).expect("a directory");
            let before = found(&mut links, base.path());
            symlink("x", directory.join(".envrc")).expect("a link");
            assert_eq!(found(&mut links, base.path()).len(), before.len() + 1);
        }
    }
}
