//! Copy-on-write views: overlayfs over a host directory.
//!
//! Layers are named by descriptor only, so no path is resolved twice and none of them shows in
//! the cage's list of mounts. The marks of deletions are extended attributes that need no
//! privilege, also where root mounts: a change looks the same on disk whoever made it.
//!
//! Rootless, the kernel copies with the caller's own ids. As root, the layers are mounts with
//! mapped owners, and the kernel must copy as the agent, who is the only one that they know.

use crate::error::{LayerError, shown};
use crate::view::{View, clone_tree, doing, relative};
use ironcage_model::StartCode;
use ironcage_plan::Owner;
use ironcage_sys::mount::{AttributeChange, clone_with, open_below, open_source, set_attributes};
use ironcage_sys::process::{FileIds, set_file_ids};
use ironcage_sys::rustix::fs::{
    AtFlags, Gid, Mode, StatVfsMountFlags, Uid, chmodat, chownat, fstat, fstatvfs,
};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::mount::{
    FsPickFlags, MountFlags, OpenTreeFlags, UnmountFlags, fsconfig_reconfigure, fspick, mount,
    unmount,
};
use ironcage_sys::rustix::process::fchdir;
use ironcage_sys::rustix::thread::{capabilities, set_capabilities};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// The directories of an overlay on the host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layers<'a> {
    pub(crate) lower: &'a Path,
    pub(crate) upper: &'a Path,
    pub(crate) work: &'a Path,
}

/// The same as handles.
struct OverlayFds {
    lower: OwnedFd,
    upper: OwnedFd,
    work: OwnedFd,
    /// The mount that the last two are on, where owners are mapped. Then the lower one is a mount
    /// of its own, too.
    change: Option<OwnedFd>,
    /// Directories of the caller's own tree that the lower mount and the change's were cloned from.
    origins: Option<(OwnedFd, OwnedFd)>,
}

/// Where the two directories of a layer that is written are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    /// On the cage's ephemeral storage.
    Memory,
}

/// The directories in a place on the ephemeral storage.
pub const UPPER: &str = "upper";
pub(crate) const WORK: &str = "work";

const INVALID: i32 = Errno::INVAL.raw_os_error();

/// Where overlays stand until they are in their place, each with its number.
const MADE: &str = ".hidden/overlay-";

/// Where layers with mapped owners stand while the overlay is made, if they must: on the cage's own storage,
/// where nobody else is yet.
const LAYERS: &str = ".hidden/layers";

impl View<'_> {
    /// Makes a copy-on-write view of a directory; returns a handle of its mount, which stands at a
    /// place of its own until it is moved.
    pub(crate) fn overlay(
        &self,
        layers: Layers<'_>,
        (owner, place): (Option<Owner>, Place),
    ) -> Result<OwnedFd, LayerError> {
        let opened = match self.id_map(owner) {
            None => self.open_layers(layers, place)?,
            Some(id_map) => self.open_mapped(layers, id_map, place)?,
        };
        let made = match opened.change {
            None => self.make_overlay(layers, &opened),
            Some(_) => self.make_mapped(layers, &opened),
        };
        let made = made.map_err(|error| error.with_code(StartCode::CopyOnWrite))?;
        let OverlayFds {
            lower,
            upper,
            work,
            change,
            origins,
        } = opened;
        for spent in [upper, work] {
            self.spend(spent);
        }
        match (change, origins) {
            (Some(change), Some((below_lower, below_change))) => {
                self.leave_behind(lower, below_lower);
                self.leave_behind(change, below_change);
            }
            (change, _) => {
                let spent = [lower].into_iter().chain(change);
                spent.for_each(|spent| self.spend(spent));
            }
        }
        Ok(made)
    }

    /// Makes an overlay over mounts that are not attached anywhere. Kernels before 6.15 do not
    /// take such; there they are attached for that moment.
    fn make_mapped(&self, layers: Layers<'_>, opened: &OverlayFds) -> Result<OwnedFd, LayerError> {
        match self.make_overlay(layers, opened) {
            Err(error) if error.source.raw_os_error() == Some(INVALID) => {}
            other => return other,
        }
        self.directory(Path::new(LAYERS), 0o700)?;
        let trees = || std::iter::once(&opened.lower).chain(&opened.change);
        for tree in trees() {
            self.attach(tree, Path::new(LAYERS))?;
        }
        let made = self.make_overlay(layers, opened)?;
        doing(fchdir(self.root()), || "enter the new root".into())?;
        for _ in trees() {
            let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            doing(unmount(LAYERS, flags), || "unmount a layer".into())?;
        }
        Ok(made)
    }

    /// Layers as mounts on which the owner on disk is the agent.
    fn open_mapped(
        &self,
        layers: Layers<'_>,
        id_map: BorrowedFd<'_>,
        of: Place,
    ) -> Result<OverlayFds, LayerError> {
        let (Some(place), Some(upper), Some(work)) = (
            layers.upper.parent(),
            layers.upper.file_name(),
            layers.work.file_name(),
        ) else {
            return doing(Err(io::Error::from(io::ErrorKind::InvalidInput)), || {
                format!("find the place of {}", shown(layers.upper))
            });
        };
        let mapped = AttributeChange {
            id_map: Some(id_map),
            private: true,
            ..AttributeChange::default()
        };
        let map = |tree: &OwnedFd, path: &Path| {
            let mapped = doing(set_attributes(tree.as_fd(), mapped), || {
                format!(
                    "map the owner of {} for a copy-on-write view (its file system may not allow that)",
                    shown(path)
                )
            });
            mapped.map_err(|error| error.with_code(StartCode::OwnerMap))
        };
        let real = self.open_at(layers.lower, Place::Host)?;
        let empty = OpenTreeFlags::AT_EMPTY_PATH;
        let lower = match clone_with(real.as_fd(), Path::new(""), empty, mapped) {
            Ok(tree) => tree,
            // Again in two calls, which tell what was refused.
            Err(_) => {
                let tree = clone_tree(real.as_fd(), false, layers.lower)?;
                map(&tree, layers.lower)?;
                tree
            }
        };
        // Upper and work must be on one mount. They are opened before the owners are mapped:
        // their parent is Ironcage's, and through the map nobody may search it.
        let handle = self.open_at(place, of)?;
        let change = clone_tree(handle.as_fd(), false, place)?;
        let below = |name: &std::ffi::OsStr| {
            doing(open_below(change.as_fd(), Path::new(name)), || {
                format!("open {}", shown(&place.join(name)))
            })
        };
        let (upper, work) = (below(upper)?, below(work)?);
        map(&change, place)?;
        Ok(OverlayFds {
            lower,
            upper,
            work,
            change: Some(change),
            origins: match of {
                Place::Host => Some((real, handle)),
                // That place is in the cage's own tree, in which nothing may be left.
                Place::Memory => {
                    self.spend(real);
                    self.spend(handle);
                    None
                }
            },
        })
    }

    fn open_layers(&self, layers: Layers<'_>, place: Place) -> Result<OverlayFds, LayerError> {
        Ok(OverlayFds {
            lower: self.open_at(layers.lower, Place::Host)?,
            upper: self.open_at(layers.upper, place)?,
            work: self.open_at(layers.work, place)?,
            change: None,
            origins: None,
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

    fn make_overlay(&self, layers: Layers<'_>, opened: &OverlayFds) -> Result<OwnedFd, LayerError> {
        let action = || {
            format!(
                "make a copy-on-write view of {} with changes in {}",
                shown(layers.lower),
                shown(layers.upper)
            )
        };
        // The magic links of /proc lead to what a descriptor stands for. The host's /proc is
        // covered by the new root; the cage's own shows this process too.
        doing(fchdir(self.proc()), || {
            "enter the process file system".into()
        })?;
        let name = |handle: BorrowedFd<'_>| format!("self/fd/{}", handle.as_raw_fd());
        let place = format!("{MADE}{}", self.made_so_far());
        self.directory(Path::new(&place), 0o700)?;
        let data = [
            format!("lowerdir={}", name(opened.lower.as_fd())),
            format!("upperdir={}", name(opened.upper.as_fd())),
            format!("workdir={}", name(opened.work.as_fd())),
            // Numbers of files stay the same when they are copied, also where the change is on
            // another file system.
            "xino=auto".into(),
            "index=off".into(),
            // With this, redirects and files without data are neither made nor followed: what an
            // agent could have forged in a layer means nothing.
            "userxattr".into(),
            // Without it the end of every cage would wait until all that the host has to write on
            // that file system is on disk.
            "volatile".into(),
        ];
        let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
        let lower = doing(fstatvfs(&opened.lower), action)?.f_flag;
        if lower.contains(StatVfsMountFlags::NOEXEC) {
            flags |= MountFlags::NOEXEC;
        }
        // All by descriptor, the place too: the caller's own tree has other names there.
        let at = format!("{}/{place}", name(self.root()));
        let data = doing(
            CString::new(data.join(",")).map_err(io::Error::other),
            action,
        )?;
        let source = "ironcage";
        doing(
            mount(source, &at, "overlay", flags, data.as_c_str()),
            action,
        )?;
        let made = doing(open_below(self.root(), Path::new(&place)), action)?;
        let context = fspick(
            &made,
            "",
            FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH,
        );
        self.keep_overlay(doing(context, action)?);
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
    // was.
    Ok(fsconfig_reconfigure(overlay)?)
}

/// Does something with the agent's file ids and all capabilities that this process has: an
/// overlay works on its layers with the ids of who made it.
pub(crate) fn as_agent<T>(
    agent: (u32, u32),
    act: impl FnOnce() -> Result<T, LayerError>,
) -> Result<T, LayerError> {
    let action = || "take the agent's file ids".to_owned();
    let held = doing(capabilities(None), action)?;
    let (uid, gid) = agent;
    let agents = FileIds { uid, gid };
    let before = doing(set_file_ids(agents), action)?;
    // A change of the file user id takes capabilities on files away.
    doing(set_capabilities(None, held), action)?;
    let result = act();
    // What was made without them is not used: the start fails here.
    if doing(set_file_ids(before), action)? != agents {
        return doing(Err(Errno::PERM), action);
    }
    doing(set_capabilities(None, held), action)?;
    result
}
