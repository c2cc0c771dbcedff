//! The file system of a container: what `config.json` mounts into a root that an image filled.
//!
//! The image is hostile: every place in it is opened below the root, links resolved within it, and
//! what is mounted there goes through the handle. So no link that is planted or swapped leads out.

mod cgroup;
mod devices;
pub(crate) mod options;

pub(crate) use devices::{Terminal, joined_terminal};

use crate::cgroup::Groups;
use crate::error::{Error, IoContext as _};
use crate::spec::{Mount, Spec};
use ironcage_sys::mount::{AttributeChange, MountAttributes, set_attributes};
use ironcage_sys::rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, mkdirat, open, openat, openat2,
    statat, statx,
};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, mount_change, move_mount, open_tree, unmount,
};
use ironcage_sys::rustix::process::{chdir, chroot, fchdir, pivot_root};
use options::{Kind, Options, Propagation};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// A place is opened as a handle, which reads nothing.
const HANDLE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// The root of a container before it is its root.
#[derive(Debug)]
pub(crate) struct RootFs {
    root: OwnedFd,
    path: PathBuf,
    bundle: PathBuf,
    /// Mounts that become read-only when everything is in them.
    sealed: Vec<OwnedFd>,
    /// Whether device nodes in volumes and file systems are devices.
    host_devices: bool,
}

fn flags(attributes: MountAttributes) -> MountAttrFlags {
    let pairs = [
        (
            MountAttributes::READ_ONLY,
            MountAttrFlags::MOUNT_ATTR_RDONLY,
        ),
        (MountAttributes::NO_SUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (
            MountAttributes::NO_DEVICES,
            MountAttrFlags::MOUNT_ATTR_NODEV,
        ),
        (MountAttributes::NO_EXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (
            MountAttributes::NO_ACCESS_TIME,
            MountAttrFlags::MOUNT_ATTR_NOATIME,
        ),
        (
            MountAttributes::STRICT_ACCESS_TIME,
            MountAttrFlags::MOUNT_ATTR_STRICTATIME,
        ),
        (
            MountAttributes::NO_DIRECTORY_ACCESS_TIME,
            MountAttrFlags::MOUNT_ATTR_NODIRATIME,
        ),
    ];
    let held = pairs.iter().filter(|(ours, _)| attributes.has(*ours));
    held.fold(MountAttrFlags::empty(), |all, (_, kernels)| all | *kernels)
}

/// A file system of the kernel, mounted nowhere yet.
pub(crate) fn detached(
    kind: &str,
    source: &Path,
    data: &[(String, Option<String>)],
    attributes: MountAttributes,
) -> Result<OwnedFd, Error> {
    let action = || format!("make a file system of type {kind}");
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).doing(action)?;
    if !source.as_os_str().is_empty() {
        // Some have no source at all.
        let _ = fsconfig_set_string(&context, "source", source);
    }
    for (name, value) in data {
        let set = match value {
            Some(value) => fsconfig_set_string(&context, name.as_str(), value.as_str()),
            None => fsconfig_set_flag(&context, name.as_str()),
        };
        set.doing(|| format!("set the option {name:?} of a file system of type {kind}"))?;
    }
    fsconfig_create(&context).doing(action)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags(attributes)).doing(action)
}

fn clone_at(place: BorrowedFd<'_>, recursive: bool) -> Result<OwnedFd, Errno> {
    let mut how = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        how |= OpenTreeFlags::AT_RECURSIVE;
    }
    open_tree(place, "", how)
}

fn attach(tree: BorrowedFd<'_>, place: BorrowedFd<'_>) -> Result<(), Errno> {
    let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", place, "", both)
}

fn propagate(mount: BorrowedFd<'_>, how: Propagation) -> std::io::Result<()> {
    let change = AttributeChange {
        recursive: how.recursive,
        private: how.kind == Kind::Private,
        slave: how.kind == Kind::Slave,
        shared: how.kind == Kind::Shared,
        ..AttributeChange::default()
    };
    set_attributes(mount, change)
}

fn change(
    mount: BorrowedFd<'_>,
    set: MountAttributes,
    clear: MountAttributes,
    recursive: bool,
) -> std::io::Result<()> {
    if set == MountAttributes::NONE && clear == MountAttributes::NONE {
        return Ok(());
    }
    let change = AttributeChange {
        set,
        clear,
        recursive,
        ..AttributeChange::default()
    };
    set_attributes(mount, change)
}

fn kind_of(place: impl AsFd) -> Result<FileType, Errno> {
    let stat = statat(place, "", AtFlags::EMPTY_PATH)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

impl RootFs {
    /// Takes the image's root as a mount of its own. Devices in an image are not devices.
    pub(crate) fn open(
        spec: &Spec,
        rootfs: &Path,
        bundle: &Path,
        host_devices: bool,
    ) -> Result<RootFs, Error> {
        let action = || format!("mount the root file system {}", rootfs.display());
        let wanted = &spec.linux.rootfs_propagation;
        // Nothing that is mounted here may show on the host.
        let above = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        let above = match options::propagation(wanted).map(|how| how.kind) {
            Some(Kind::Private) => MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
            // Mounts that the container makes are to reach the host: its operator's wish.
            Some(Kind::Shared) => MountPropagationFlags::SHARED | MountPropagationFlags::REC,
            Some(Kind::Slave) | None => above,
        };
        mount_change("/", above).doing(|| "keep mounts apart from the host".into())?;
        let place = open(rootfs, HANDLE | OFlags::DIRECTORY, Mode::empty()).doing(action)?;
        let tree = clone_at(place.as_fd(), true).doing(action)?;
        propagate(
            tree.as_fd(),
            Propagation {
                kind: Kind::Private,
                recursive: false,
            },
        )
        .doing(action)?;
        change(
            tree.as_fd(),
            MountAttributes::NO_DEVICES,
            MountAttributes::NONE,
            !host_devices,
        )
        .doing(action)?;
        attach(tree.as_fd(), place.as_fd()).doing(action)?;
        Ok(RootFs {
            root: tree,
            path: rootfs.to_owned(),
            bundle: bundle.to_owned(),
            sealed: Vec::new(),
            host_devices,
        })
    }

    /// Opens a place of the container; links lead nowhere but into it.
    pub(crate) fn find(&self, path: &Path, how: OFlags) -> Result<OwnedFd, Errno> {
        let relative = path.strip_prefix("/").unwrap_or(path);
        let relative = match relative.as_os_str().is_empty() {
            true => Path::new("."),
            false => relative,
        };
        openat2(
            &self.root,
            relative,
            how | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )
    }

    /// Opens a directory of the container, and makes what is missing on the way.
    pub(crate) fn directory(&self, path: &Path) -> Result<OwnedFd, Error> {
        let action = || format!("make the directory {} in the container", path.display());
        let mut reached = PathBuf::from("/");
        let mut handle = self.find(&reached, OFlags::PATH).doing(action)?;
        for part in path.components() {
            let Component::Normal(name) = part else {
                continue;
            };
            reached.push(name);
            let found = match self.find(&reached, OFlags::PATH) {
                Err(Errno::NOENT) => {
                    // A link that leads nowhere stays one: it is there already.
                    match mkdirat(&handle, name, Mode::from_raw_mode(0o755)) {
                        Err(error) if error != Errno::EXIST => Err(error).doing(action)?,
                        _ => self.find(&reached, OFlags::PATH),
                    }
                }
                other => other,
            };
            handle = found.doing(action)?;
        }
        Ok(handle)
    }

    /// Opens a file of the container to mount over it, and makes it where it is missing.
    pub(crate) fn file(&self, path: &Path) -> Result<OwnedFd, Error> {
        let action = || format!("make the file {} in the container", path.display());
        match self.find(path, OFlags::PATH) {
            Err(Errno::NOENT) => {}
            other => return other.doing(action),
        }
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::refused(action(), "expected a path with a name"));
        };
        let above = self.directory(above)?;
        let how =
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&above, name, how, Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) => {}
            made => drop(made.doing(action)?),
        }
        self.find(path, OFlags::PATH).doing(action)
    }

    /// Mounts everything of `config.json`, in its order.
    pub(crate) fn mount_all(&mut self, spec: &Spec, groups: &Groups) -> Result<(), Error> {
        for mount in &spec.mounts {
            let options = options::parse(mount)?;
            match (options.bind, mount.kind.as_str()) {
                (true, _) => self.bind(mount, &options)?,
                (false, "cgroup" | "cgroup2") => self.cgroups(mount, &options, groups)?,
                (false, kind) => self.kernels(mount, kind, &options)?,
            }
        }
        Ok(())
    }

    fn finish(&self, tree: BorrowedFd<'_>, options: &Options) -> std::io::Result<()> {
        change(tree, options.set_all, options.clear_all, true)?;
        // Without a word of its own a mount tells nobody what is mounted in it.
        propagate(
            tree,
            options.propagation.unwrap_or(Propagation {
                kind: Kind::Private,
                recursive: true,
            }),
        )
    }

    fn bind(&self, mount: &Mount, options: &Options) -> Result<(), Error> {
        let source = match mount.source.is_absolute() {
            true => mount.source.clone(),
            false => self.bundle.join(&mount.source),
        };
        let target = &mount.destination;
        let action = || format!("bind {} to {}", source.display(), target.display());
        let from = open(&source, HANDLE, Mode::empty()).doing(action)?;
        let kind = kind_of(&from).doing(action)?;
        if kind == FileType::BlockDevice && !self.host_devices {
            let why = "it is a block device of the host";
            return Err(Error::refused(action(), why)
                .with_hint("set `host-devices = true` in the node's profile"));
        }
        let tree = clone_at(from.as_fd(), options.recursive).doing(action)?;
        change(tree.as_fd(), options.set, options.clear, false).doing(action)?;
        let place = match kind.is_dir() {
            true => self.directory(target)?,
            false => self.file(target)?,
        };
        attach(tree.as_fd(), place.as_fd()).doing(action)?;
        self.finish(tree.as_fd(), options).doing(action)?;
        // One character device is the engine's choice; what lies in a directory is nobody's.
        if kind == FileType::CharacterDevice {
            return Ok(());
        }
        self.close_devices(tree.as_fd()).doing(action)
    }

    /// Device nodes in a mount, and in the mounts below, are not devices. The words of the mount do
    /// not bring them back.
    fn close_devices(&self, tree: BorrowedFd<'_>) -> std::io::Result<()> {
        let set = match self.host_devices {
            true => MountAttributes::NONE,
            false => MountAttributes::NO_DEVICES,
        };
        change(tree, set, MountAttributes::NONE, true)
    }

    fn kernels(&mut self, mount: &Mount, kind: &str, options: &Options) -> Result<(), Error> {
        let target = &mount.destination;
        let action = || format!("mount {kind} at {}", target.display());
        // An image in which /proc is a link would have it elsewhere, and files of its own there.
        if matches!(kind, "proc" | "sysfs") {
            let no_links = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
            let relative = target.strip_prefix("/").unwrap_or(target);
            let opened = openat2(&self.root, relative, HANDLE, Mode::empty(), no_links);
            if matches!(opened, Err(Errno::LOOP)) {
                return Err(Error::refused(action(), "it is a link in the image"));
            }
        }
        let place = self.directory(target)?;
        let mut attributes = options.set;
        // Devices and links are still to be made there.
        let later = attributes.has(MountAttributes::READ_ONLY)
            && (target == Path::new("/dev") || options.copy_up);
        if later {
            attributes = attributes.without(MountAttributes::READ_ONLY);
        }
        let mut data = options.data.clone();
        if kind == "tmpfs" && !data.iter().any(|(name, _)| name == "mode") {
            // What the image has there says who may use it.
            let stat = statat(&place, "", AtFlags::EMPTY_PATH).doing(action)?;
            data.push(("mode".into(), Some(format!("{:o}", stat.st_mode & 0o7777))));
        }
        let tree = detached(kind, &mount.source, &data, attributes)?;
        if options.copy_up {
            devices::copy_up(&place, &tree).doing(action)?;
        }
        attach(tree.as_fd(), place.as_fd()).doing(action)?;
        self.finish(tree.as_fd(), options).doing(action)?;
        // Terminals are devices, and those of /dev are made in an empty tmpfs.
        if !matches!(kind, "tmpfs" | "devpts") {
            self.close_devices(tree.as_fd()).doing(action)?;
        }
        if later {
            self.sealed.push(tree);
        }
        Ok(())
    }

    /// Makes the calling process's root of it, and takes the host's away.
    pub(crate) fn enter(&mut self, no_pivot: bool) -> Result<(), Error> {
        let action = || format!("make {} the root", self.path.display());
        fchdir(&self.root).doing(action)?;
        if no_pivot {
            // A root on a RAM disk cannot be pivoted; the mounts above stay, out of reach.
            move_mount(
                &self.root,
                "",
                CWD,
                "/",
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
            )
            .doing(action)?;
            chroot(".").doing(action)?;
        } else {
            pivot_root(".", ".").doing(action)?;
            // The old root is on top of the new one. It does not tell the host that it goes.
            mount_change(
                ".",
                MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
            )
            .doing(action)?;
            unmount(".", UnmountFlags::DETACH).doing(action)?;
        }
        chdir("/").doing(action)?;
        self.root = open("/", HANDLE | OFlags::DIRECTORY, Mode::empty()).doing(action)?;
        Ok(())
    }

    /// Covers and seals what `config.json` and the profiles name, and the root itself last. Covers
    /// come first: a sealed copy lies on top of its place, and has the covers in it.
    pub(crate) fn seal(&self, spec: &Spec) -> Result<(), Error> {
        for path in &spec.linux.masked_paths {
            self.mask(path)?;
        }
        for path in &spec.linux.readonly_paths {
            let action = || format!("make {} read-only", path.display());
            let place = match self.find(path, OFlags::PATH) {
                Err(Errno::NOENT | Errno::NOTDIR) => continue,
                other => other.doing(action)?,
            };
            let set = MountAttributes::READ_ONLY;
            if self.is_root(&place).doing(action)? {
                // What lies on top of the root is reached by `/..` alone.
                change(place.as_fd(), set, MountAttributes::NONE, true).doing(action)?;
                continue;
            }
            let tree = clone_at(place.as_fd(), true).doing(action)?;
            change(tree.as_fd(), set, MountAttributes::NONE, true).doing(action)?;
            attach(tree.as_fd(), place.as_fd()).doing(action)?;
        }
        for tree in &self.sealed {
            change(
                tree.as_fd(),
                MountAttributes::READ_ONLY,
                MountAttributes::NONE,
                false,
            )
            .doing(|| "make mounts read-only".into())?;
        }
        if spec.root.as_ref().is_some_and(|root| root.readonly) {
            let root = own_root()?;
            change(
                root.as_fd(),
                MountAttributes::READ_ONLY,
                MountAttributes::NONE,
                false,
            )
            .doing(|| "make the root file system read-only".into())?;
        }
        Ok(())
    }

    /// Whether a place is the container's root, also where a link of the image leads there.
    fn is_root(&self, place: &OwnedFd) -> Result<bool, Errno> {
        let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
        let look = |at: &OwnedFd| {
            statx(at, "", AtFlags::EMPTY_PATH, wanted).map(|stat| (stat.stx_mnt_id, stat.stx_ino))
        };
        Ok(look(place)? == look(&self.root)?)
    }

    fn mask(&self, path: &Path) -> Result<(), Error> {
        let action = || format!("mask {}", path.display());
        let place = match self.find(path, OFlags::PATH) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            other => other.doing(action)?,
        };
        if self.is_root(&place).doing(action)? {
            return Err(Error::refused(action(), "it is the root of the container"));
        }
        let directory = kind_of(&place).doing(action)?.is_dir();
        let data = [
            ("size".to_owned(), Some("0".to_owned())),
            ("nr_inodes".to_owned(), Some("2".to_owned())),
        ];
        let attributes = MountAttributes::READ_ONLY
            .with(MountAttributes::NO_SUID)
            .with(MountAttributes::NO_EXEC);
        let tree = match directory {
            true => detached("tmpfs", Path::new("tmpfs"), &data, attributes)?,
            false => {
                // An empty file of a tmpfs that has room for nothing else.
                let tree = detached(
                    "tmpfs",
                    Path::new("tmpfs"),
                    &data,
                    MountAttributes::NO_SUID.with(MountAttributes::NO_EXEC),
                )?;
                let how = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
                drop(
                    openat(&tree, "masked", how, Mode::RUSR | Mode::RGRP | Mode::ROTH)
                        .doing(action)?,
                );
                change(
                    tree.as_fd(),
                    MountAttributes::READ_ONLY,
                    MountAttributes::NONE,
                    false,
                )
                .doing(action)?;
                let file = openat(&tree, "masked", HANDLE, Mode::empty()).doing(action)?;
                clone_at(file.as_fd(), false).doing(action)?
            }
        };
        attach(tree.as_fd(), place.as_fd()).doing(action)
    }
}

/// The mount that is this process's root.
fn own_root() -> Result<OwnedFd, Error> {
    open("/", HANDLE | OFlags::DIRECTORY, Mode::empty()).doing(|| "open the root".into())
}
