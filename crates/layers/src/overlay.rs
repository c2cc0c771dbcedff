//! Copy-on-write views: overlayfs over a directory of the host's.
//!
//! Layers are named by descriptor only, so no path is resolved twice and none of them shows in
//! the cage's list of mounts. The marks of deletions are extended attributes that need no
//! privilege, also where root mounts: a change looks the same on disk whoever made it.
//!
//! Rootless, the kernel copies with the caller's own ids. As root, the layers are mounts with
//! mapped owners, and the kernel must copy as the agent, who is the only one that they know.

use crate::error::{LayerError, shown};
use crate::view::{View, clone_tree, doing, relative};
use ironcage_plan::Owner;
use ironcage_sys::mount::{AttributeChange, open_below, open_source, set_attributes};
use ironcage_sys::process::{FileIds, set_file_ids};
use ironcage_sys::rustix::fs::{
    AtFlags, Gid, Mode, StatVfsMountFlags, Uid, chmodat, chownat, fstat, fstatvfs,
};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags, fsconfig_create, fsconfig_reconfigure,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, unmount,
};
use ironcage_sys::rustix::process::fchdir;
use ironcage_sys::rustix::thread::{capabilities, set_capabilities};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// What failures of this layer speak of, so that callers can tell them from others.
pub const COPY_ON_WRITE: &str = "copy-on-write view";
/// The same where the owner of files cannot be mapped, also without such a view.
pub const MAP_OWNER: &str = "map the owner of";

/// The directories of an overlay on the host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layers<'a> {
    pub(crate) lower: &'a Path,
    pub(crate) upper: &'a Path,
    pub(crate) work: &'a Path,
}

/// The same as handles.
struct Opened {
    lower: OwnedFd,
    upper: OwnedFd,
    work: OwnedFd,
    /// Mounts that were made for them.
    mounts: Vec<OwnedFd>,
}

/// Where the two directories of a layer that is written are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the host.
    Host,
    /// On the cage's ephemeral storage.
    Memory,
}

/// The directories in a place on the ephemeral storage.
pub const UPPER: &str = "upper";
pub(crate) const WORK: &str = "work";

const INVALID: i32 = Errno::INVAL.raw_os_error();

/// Where layers with mapped owners stand while the overlay is made, if they must: on the cage's own storage,
/// where nobody else is yet.
pub(crate) const LAYERS: &str = ".hidden/layers";

impl View<'_> {
    /// Mounts a copy-on-write view of a directory.
    pub(crate) fn overlay(
        &self,
        layers: Layers<'_>,
        target: &Path,
        (owner, place): (Option<Owner>, Place),
    ) -> Result<(), LayerError> {
        let opened = match self.id_map(owner) {
            None => self.open_layers(layers, place)?,
            Some(id_map) => self.open_mapped(layers, id_map, place)?,
        };
        let made = if opened.mounts.is_empty() {
            self.make_overlay(layers, &opened)?
        } else {
            self.make_mapped(layers, &opened)?
        };
        self.attach(&made, target)?;
        self.is_foreign(target);
        Ok(())
    }

    /// Makes an overlay over mounts that are not attached anywhere. Kernels before 6.15 do not
    /// take such; there they are attached for that moment.
    fn make_mapped(&self, layers: Layers<'_>, opened: &Opened) -> Result<OwnedFd, LayerError> {
        let make = || as_agent(self.agent(), || self.make_overlay(layers, opened));
        match make() {
            Err(error) if error.source.raw_os_error() == Some(INVALID) => {}
            other => return other,
        }
        for tree in &opened.mounts {
            self.attach(tree, Path::new(LAYERS))?;
        }
        let made = make()?;
        doing(fchdir(self.root()), || "enter the new root".into())?;
        for _ in &opened.mounts {
            let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            doing(unmount(LAYERS, flags), || "let a layer go".into())?;
        }
        Ok(made)
    }

    /// Layers as mounts on which the owner on disk is the agent.
    fn open_mapped(
        &self,
        layers: Layers<'_>,
        id_map: BorrowedFd<'_>,
        of: Place,
    ) -> Result<Opened, LayerError> {
        let (Some(place), Some(upper), Some(work)) = (
            layers.upper.parent(),
            layers.upper.file_name(),
            layers.work.file_name(),
        ) else {
            return doing(Err(io::Error::from(io::ErrorKind::InvalidInput)), || {
                format!("find the place of {}", shown(layers.upper))
            });
        };
        let mount = |path: &Path, of: Place| {
            let handle = self.open_at(path, of)?;
            clone_tree(handle.as_fd(), false, path)
        };
        let lower = mount(layers.lower, Place::Host)?;
        // Upper and work must be on one mount. They are opened before the owners are mapped:
        // their parent is Ironcage's, and through the map nobody may search it.
        let change = mount(place, of)?;
        let below = |name: &std::ffi::OsStr| {
            doing(open_below(change.as_fd(), Path::new(name)), || {
                format!("open {}", shown(&place.join(name)))
            })
        };
        let (upper, work) = (below(upper)?, below(work)?);
        for (tree, path) in [(&lower, layers.lower), (&change, place)] {
            let change = AttributeChange {
                id_map: Some(id_map),
                private: true,
                ..AttributeChange::default()
            };
            doing(set_attributes(tree.as_fd(), change), || {
                format!(
                    "{MAP_OWNER} {} for a {COPY_ON_WRITE} (its file system may not allow that)",
                    shown(path)
                )
            })?;
        }
        let handle = doing(lower.try_clone(), || "copy a descriptor".into())?;
        Ok(Opened {
            lower: handle,
            upper,
            work,
            mounts: vec![lower, change],
        })
    }

    fn open_layers(&self, layers: Layers<'_>, place: Place) -> Result<Opened, LayerError> {
        Ok(Opened {
            lower: self.open_at(layers.lower, Place::Host)?,
            upper: self.open_at(layers.upper, place)?,
            work: self.open_at(layers.work, place)?,
            mounts: Vec::new(),
        })
    }

    fn open_at(&self, path: &Path, place: Place) -> Result<OwnedFd, LayerError> {
        match place {
            Place::Host => doing(open_source(path), || format!("open {}", shown(path))),
            Place::Memory => self.open(path),
        }
    }

    /// Makes the directories of a change that is in memory. Nobody inside gets to them: the
    /// directory above is closed, and the root that it lies in becomes read-only.
    pub(crate) fn make_memory(
        &self,
        lower: &Path,
        place: &Path,
        owner: Option<Owner>,
    ) -> Result<(), LayerError> {
        let action = || format!("make a place in memory for changes to {}", shown(lower));
        if let Some(above) = place.parent() {
            self.directory(above, 0o700)?;
            let closed = chmodat(
                self.root(),
                relative(above),
                Mode::empty(),
                AtFlags::empty(),
            );
            doing(closed, action)?;
        }
        let real = doing(open_source(lower), || format!("open {}", shown(lower)))?;
        let real = doing(fstat(&real), action)?;
        // The root of the overlay has the upper directory's owner and mode.
        let mode = Mode::from_raw_mode(real.st_mode & 0o7777);
        for (name, mode) in [(UPPER, mode), (WORK, Mode::RWXU)] {
            let made = place.join(name);
            self.directory(&made, 0o700)?;
            let path = relative(&made);
            if let Some(owner) = owner {
                let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
                let given = chownat(
                    self.root(),
                    path,
                    Some(uid),
                    Some(gid),
                    AtFlags::SYMLINK_NOFOLLOW,
                );
                doing(given, action)?;
            }
            doing(chmodat(self.root(), path, mode, AtFlags::empty()), action)?;
        }
        Ok(())
    }

    fn make_overlay(&self, layers: Layers<'_>, opened: &Opened) -> Result<OwnedFd, LayerError> {
        let action = || {
            format!(
                "make a {COPY_ON_WRITE} of {} with changes in {}",
                shown(layers.lower),
                shown(layers.upper)
            )
        };
        // The magic links of /proc lead to what a descriptor stands for. The host's /proc is
        // covered by the new root; the cage's own shows this process too.
        doing(fchdir(self.proc()), || {
            "enter the process file system".into()
        })?;
        let name = |handle: &OwnedFd| format!("self/fd/{}", handle.as_raw_fd());
        let context = doing(fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC), action)?;
        for (option, value) in [
            ("source", "ironcage".to_owned()),
            ("lowerdir", name(&opened.lower)),
            ("upperdir", name(&opened.upper)),
            ("workdir", name(&opened.work)),
            // Numbers of files stay the same when they are copied, also where the change is on
            // another file system.
            ("xino", "auto".to_owned()),
            ("index", "off".to_owned()),
        ] {
            doing(
                fsconfig_set_string(&context, option, value.as_str()),
                action,
            )?;
        }
        // With this, redirects and files without data are neither made nor followed: what an
        // agent could have forged in a layer means nothing.
        doing(fsconfig_set_flag(&context, "userxattr"), action)?;
        // Without it the end of every cage would wait until all that the host has to write on
        // that file system is on disk.
        doing(fsconfig_set_flag(&context, "volatile"), action)?;
        doing(fsconfig_create(&context), action)?;
        let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let flags = doing(fstatvfs(&opened.lower), action)?.f_flag;
        if flags.contains(StatVfsMountFlags::NOEXEC) {
            attributes |= MountAttrFlags::MOUNT_ATTR_NOEXEC;
        }
        let made = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes);
        let made = doing(made, action)?;
        self.keep_overlay(context);
        Ok(made)
    }
}

/// Lets an overlay look at its layers anew: all that it remembers of names, and nobody uses, is
/// forgotten. What is open, or somebody's working directory, stays as it is. It takes what
/// [`View::enter`] gave, and the rights of who made the cage.
///
/// # Errors
/// Where the caller has no rights over it.
pub fn renew(overlay: BorrowedFd<'_>) -> io::Result<()> {
    // The kernel drops its cache of names whenever a file system is configured, also to what it
    // was. After the mount a context is one for that.
    Ok(fsconfig_reconfigure(overlay)?)
}

/// Does something with the agent's file ids and all capabilities that this process has: an
/// overlay works on its layers with the ids of who made it.
fn as_agent<T>(
    agent: (u32, u32),
    act: impl FnOnce() -> Result<T, LayerError>,
) -> Result<T, LayerError> {
    let action = || "take the agent's file ids".to_owned();
    let held = doing(capabilities(None), action)?;
    let (uid, gid) = agent;
    let before = doing(set_file_ids(FileIds { uid, gid }), action)?;
    // A change of the file user id takes capabilities on files away.
    doing(set_capabilities(None, held), action)?;
    let result = act();
    doing(set_file_ids(before), action)?;
    doing(set_capabilities(None, held), action)?;
    result
}
