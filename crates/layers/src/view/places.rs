//! Places of the view: what is mounted at one, and what stands there.

use super::{KernelFile, Processes, View, doing, relative};
use crate::error::{LayerError, shown};
use ironcage_model::StartCode;
use ironcage_plan::{Access, NodeKind, Owner};
use ironcage_sys::mount::{
    AttributeChange, MountAttributes, clone_source, clone_source_with, clone_with, open_below,
    set_attributes,
};
use ironcage_sys::rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, fstat, openat, statat};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

impl View<'_> {
    pub(super) fn bind(
        &self,
        source: &Path,
        target: &Path,
        access: Access,
        owner: Option<Owner>,
    ) -> Result<(), LayerError> {
        let set = match access {
            Access::Read => MountAttributes::NO_SUID
                .with(MountAttributes::NO_DEVICES)
                .with(MountAttributes::READ_ONLY),
            Access::Write => MountAttributes::NO_SUID.with(MountAttributes::NO_DEVICES),
            Access::Device => MountAttributes::NO_SUID.with(MountAttributes::NO_EXEC),
        };
        let id_map = self.id_map(owner);
        let change = AttributeChange {
            set,
            id_map,
            recursive: true,
            private: true,
            ..AttributeChange::default()
        };
        let clone = || format!("clone the mount of {}", shown(source));
        let tree = match (clone_source_with(source, change), id_map) {
            (Ok((tree, handle)), _) => {
                handle.into_iter().for_each(|handle| self.spend(handle));
                tree
            }
            (Err(error), None) => return doing(Err(error), clone),
            // Again in two calls: that ids cannot be mapped is another failure, with another
            // remedy.
            (Err(_), Some(_)) => {
                let tree = doing(clone_source(source), clone)?;
                let mapped = doing(set_attributes(tree.as_fd(), change), || {
                    format!(
                        "map the owner of {} (its file system, or one mounted below it, may not allow that)",
                        shown(source)
                    )
                });
                mapped.map_err(|error| error.with_code(StartCode::OwnerMap))?;
                tree
            }
        };
        self.attach(&tree, target)?;
        self.stands(target, tree);
        if access != Access::Device {
            self.is_foreign(target);
        }
        Ok(())
    }

    /// Remembers that others may change what stands at a place.
    pub(crate) fn is_foreign(&self, target: &Path) {
        self.foreign.borrow_mut().push(target.to_owned());
    }

    pub(crate) fn id_map(&self, owner: Option<Owner>) -> Option<BorrowedFd<'_>> {
        let mut maps = self.setting.owner_maps.iter();
        let map = maps.find(|map| Some(map.owner) == owner)?;
        Some(map.namespace.as_fd())
    }

    /// Mounts a part of the view onto another, or onto itself.
    pub(crate) fn cover(
        &self,
        part: &Path,
        target: &Path,
        set: MountAttributes,
        recursive: bool,
    ) -> Result<(), LayerError> {
        let change = AttributeChange {
            set,
            recursive,
            ..AttributeChange::default()
        };
        let action = || format!("clone the mount of {}", shown(part));
        let tree = if self.is_in_foreign_tree(part) {
            let place = self.open(part)?;
            let empty = OpenTreeFlags::AT_EMPTY_PATH;
            let tree = clone_with(place.as_fd(), Path::new(""), empty, change);
            self.spend(place);
            doing(tree, action)?
        } else {
            let no_link = OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
            let tree = clone_with(self.root.as_fd(), relative(part), no_link, change);
            doing(tree, action)?
        };
        self.attach(&tree, target)?;
        self.stands(target, tree);
        Ok(())
    }

    /// Whether others may change the tree in which a place lies.
    pub(crate) fn is_in_foreign_tree(&self, target: &Path) -> bool {
        let foreign = self.foreign.borrow();
        foreign.iter().any(|tree| target.starts_with(tree))
    }

    /// Mounts a tree at a place of the view. A place on the cage's own tmpfs is named: nobody
    /// else has been there. One in a tree of the host's is opened as a handle that follows no
    /// link, since others may change that tree at any moment.
    pub(crate) fn attach(&self, tree: &OwnedFd, target: &Path) -> Result<(), LayerError> {
        let action = || format!("mount at {}", shown(target));
        let from = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        if self.is_in_foreign_tree(target) {
            let place = self.open(target)?;
            let to = MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            doing(move_mount(tree, "", &place, "", from | to), action)?;
            self.spend(place);
            Ok(())
        } else {
            doing(
                move_mount(tree, "", &self.root, relative(target), from),
                action,
            )
        }
    }

    pub(crate) fn open(&self, target: &Path) -> Result<OwnedFd, LayerError> {
        doing(open_below(self.root.as_fd(), target), || {
            format!("open {} in the view", shown(target))
        })
    }

    /// What stands at a place, or `None` when nothing does.
    pub(crate) fn kind_of(&self, target: &Path) -> Result<Option<NodeKind>, LayerError> {
        if let Some(name) = self.kernel_file(target) {
            let files = self.kernel_files()?;
            let found = files.iter().find(|(known, _)| **known == *name);
            return Ok(found.map(|(_, kind)| *kind));
        }
        let action = || format!("look at {}", shown(target));
        let stat = if self.is_in_foreign_tree(target) {
            match open_below(self.root.as_fd(), target) {
                Ok(handle) => {
                    let stat = doing(fstat(&handle), action)?;
                    self.spend(handle);
                    stat
                }
                Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {
                    return Ok(None);
                }
                Err(error) => return doing(Err(error), action),
            }
        } else {
            match statat(&self.root, relative(target), AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => return Ok(None),
                other => doing(other, action)?,
            }
        };
        Ok(Some(node_kind(FileType::from_raw_mode(stat.st_mode))))
    }

    /// The name of a place right in the cage's own process file system, where all of that is seen:
    /// one listing tells what a dozen questions would.
    fn kernel_file<'t>(&self, target: &'t Path) -> Option<&'t [u8]> {
        let name = target.strip_prefix("/proc").ok()?.as_os_str().as_bytes();
        let direct = !name.is_empty() && !name.contains(&b'/');
        (direct && self.processes == Processes::Own).then_some(name)
    }

    fn kernel_files(&self) -> Result<&[KernelFile], LayerError> {
        if let Some(files) = self.kernel_files.get() {
            return Ok(files);
        }
        let action = || "list the cage's /proc".to_owned();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = doing(openat(&self.proc, ".", flags, Mode::empty()), action)?;
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(&directory, &mut buffer);
        let mut found = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = doing(entry, action)?;
            let name = entry.file_name().to_bytes().into();
            found.push((name, node_kind(entry.file_type())));
        }
        self.spend(directory);
        Ok(self.kernel_files.get_or_init(|| found))
    }
}

fn node_kind(kind: FileType) -> NodeKind {
    match kind {
        FileType::Directory => NodeKind::Directory,
        _ => NodeKind::File,
    }
}
