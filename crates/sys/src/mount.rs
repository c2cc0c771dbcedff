//! Mounts by descriptor: what rustix lacks of the new mount interface.

use crate::check;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::mount::{OpenTreeFlags, open_tree};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Attributes of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MountAttributes(u64);

impl MountAttributes {
    /// Not writable through this mount.
    pub const READ_ONLY: MountAttributes = MountAttributes(0x1);
    /// Set-user-id bits mean nothing.
    pub const NO_SUID: MountAttributes = MountAttributes(0x2);
    /// Device nodes mean nothing.
    pub const NO_DEVICES: MountAttributes = MountAttributes(0x4);
    /// Nothing can be executed.
    pub const NO_EXEC: MountAttributes = MountAttributes(0x8);
    const ID_MAPPED: u64 = 0x0010_0000;

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: MountAttributes) -> MountAttributes {
        MountAttributes(self.0 | other.0)
    }
}

#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// What `set_attributes` is to change.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttributeChange<'a> {
    /// To be set.
    pub set: MountAttributes,
    /// To be cleared.
    pub clear: MountAttributes,
    /// Ids are mapped as in this user namespace.
    pub id_map: Option<BorrowedFd<'a>>,
    /// Also all mounts below.
    pub recursive: bool,
    /// Stop mount events from going in or out.
    pub private: bool,
    /// Stop mount events from going out.
    pub slave: bool,
}

/// Changes the attributes of the mount that a descriptor stands for.
pub fn set_attributes(mount: BorrowedFd<'_>, change: AttributeChange<'_>) -> io::Result<()> {
    const MS_PRIVATE: u64 = 1 << 18;
    const MS_SLAVE: u64 = 1 << 19;
    let mut attr = MountAttr {
        attr_set: change.set.0,
        attr_clr: change.clear.0,
        propagation: match (change.private, change.slave) {
            (true, _) => MS_PRIVATE,
            (false, true) => MS_SLAVE,
            (false, false) => 0,
        },
        userns_fd: 0,
    };
    if let Some(user_namespace) = change.id_map {
        attr.attr_set |= MountAttributes::ID_MAPPED;
        attr.userns_fd = user_namespace.as_raw_fd() as u64;
    }
    let mut flags = libc::AT_EMPTY_PATH;
    if change.recursive {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: the path is an empty C string and the attributes live across the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_mut(&mut attr),
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Opens a place below a directory as a handle, following no link on the way: the path is
/// resolved once, and what is mounted there goes through the handle.
pub fn open_below(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    let relative = if relative.as_os_str().is_empty() {
        Path::new(".")
    } else {
        relative
    };
    Ok(rustix::fs::openat2(
        root,
        relative,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )?)
}

/// Directories in which only root makes names: what lies in one of them can be named.
const ROOTS_OWN: [&str; 3] = ["/", "/etc", "/dev"];

/// Clones the tree of mounts at an absolute path of the host, as a detached one, following no
/// link.
pub fn clone_source(path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    // One call instead of three, for most of what a cage sees.
    if path
        .parent()
        .is_some_and(|parent| ROOTS_OWN.iter().any(|own| parent == Path::new(own)))
    {
        let no_link = OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
        return Ok(open_tree(rustix::fs::CWD, path, flags | no_link)?);
    }
    let handle = open_source(path)?;
    Ok(open_tree(
        &handle,
        "",
        flags | OpenTreeFlags::AT_EMPTY_PATH,
    )?)
}

/// Opens an absolute path of the host as a handle, following no link: the plan holds real
/// paths, so a link on the way means that somebody changed the tree since.
pub fn open_source(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat2(
        rustix::fs::CWD,
        path,
        OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )?)
}
