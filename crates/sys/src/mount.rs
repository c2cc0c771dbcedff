//! Mounts by descriptor: what rustix lacks of the new mount interface.

use crate::check;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::mount::{OpenTreeFlags, open_tree};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// Times of last access are not kept.
    pub const NO_ACCESS_TIME: MountAttributes =
        MountAttributes(linux_raw_sys::general::MOUNT_ATTR_NOATIME as u64);
    /// Times of last access are always kept.
    pub const STRICT_ACCESS_TIME: MountAttributes =
        MountAttributes(linux_raw_sys::general::MOUNT_ATTR_STRICTATIME as u64);
    /// Times of last access are not kept for directories.
    pub const NO_DIRECTORY_ACCESS_TIME: MountAttributes =
        MountAttributes(linux_raw_sys::general::MOUNT_ATTR_NODIRATIME as u64);
    /// Links are not followed.
    pub const NO_LINKS: MountAttributes =
        MountAttributes(linux_raw_sys::general::MOUNT_ATTR_NOSYMFOLLOW as u64);
    /// The choice among the ways to keep times of last access: cleared before one is set.
    pub const ACCESS_TIMES: MountAttributes =
        MountAttributes(linux_raw_sys::general::MOUNT_ATTR__ATIME as u64);
    /// No attribute.
    pub const NONE: MountAttributes = MountAttributes(0);
    const ID_MAPPED: u64 = linux_raw_sys::general::MOUNT_ATTR_IDMAP as u64;

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: MountAttributes) -> MountAttributes {
        MountAttributes(self.0 | other.0)
    }

    /// These without others.
    #[must_use]
    pub const fn without(self, others: MountAttributes) -> MountAttributes {
        MountAttributes(self.0 & !others.0)
    }

    /// Whether all of the others are among these.
    pub const fn has(self, others: MountAttributes) -> bool {
        self.0 & others.0 == others.0
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
    /// Let mount events go in and out.
    pub shared: bool,
}

impl AttributeChange<'_> {
    fn for_kernel(&self) -> MountAttr {
        let mut attr = MountAttr {
            attr_set: self.set.0,
            attr_clr: self.clear.0,
            propagation: match (self.private, self.slave, self.shared) {
                (true, _, _) => libc::MS_PRIVATE,
                (false, true, _) => libc::MS_SLAVE,
                (false, false, true) => libc::MS_SHARED,
                (false, false, false) => 0,
            },
            userns_fd: 0,
        };
        if let Some(user_namespace) = self.id_map {
            attr.attr_set |= MountAttributes::ID_MAPPED;
            attr.userns_fd = user_namespace.as_raw_fd() as u64;
        }
        attr
    }
}

/// Changes the attributes of the mount that a descriptor stands for.
pub fn set_attributes(mount: BorrowedFd<'_>, change: AttributeChange<'_>) -> io::Result<()> {
    let mut attr = change.for_kernel();
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

/// `open_tree_attr` came with Linux 6.15, under one number on every architecture; libc does not
/// name it yet.
const SYS_OPEN_TREE_ATTR: libc::c_long =
    linux_raw_sys::general::__NR_open_tree_attr as libc::c_long;

/// Set once the kernel said that it has no `open_tree_attr`.
static NO_OPEN_TREE_ATTR: AtomicBool = AtomicBool::new(false);

/// Clones a tree of mounts as a detached one that has other attributes, in one call where the
/// kernel has one for it.
pub fn clone_with(
    directory: BorrowedFd<'_>,
    path: &Path,
    flags: OpenTreeFlags,
    change: AttributeChange<'_>,
) -> io::Result<OwnedFd> {
    let flags = flags | OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let recursive = match change.recursive {
        true => OpenTreeFlags::AT_RECURSIVE,
        false => OpenTreeFlags::empty(),
    };
    if !NO_OPEN_TREE_ATTR.load(Ordering::Relaxed) {
        let name = CString::new(path.as_os_str().as_bytes())?;
        let mut attr = change.for_kernel();
        // SAFETY: the path is a C string and the attributes live across the call.
        let opened = check(unsafe {
            libc::syscall(
                SYS_OPEN_TREE_ATTR,
                directory.as_raw_fd(),
                name.as_ptr(),
                (flags | recursive).bits(),
                std::ptr::from_mut(&mut attr),
                size_of::<MountAttr>(),
            )
        });
        match opened {
            Ok(fd) => return owned(fd),
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                NO_OPEN_TREE_ATTR.store(true, Ordering::Relaxed);
            }
            Err(error) => return Err(error),
        }
    }
    let tree = open_tree(directory, path, flags | recursive)?;
    set_attributes(tree.as_fd(), change)?;
    Ok(tree)
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Directories in which only root makes names: what lies in one of them can be named.
const ROOTS_OWN: [&str; 3] = ["/", "/etc", "/dev"];

fn lies_in_roots_own(path: &Path) -> bool {
    path.parent()
        .is_some_and(|parent| ROOTS_OWN.iter().any(|own| parent == Path::new(own)))
}

/// As [`clone_source`], with other attributes. Returns the handle that was needed for it, too: who
/// clones much closes them together.
pub fn clone_source_with(
    path: &Path,
    change: AttributeChange<'_>,
) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    if lies_in_roots_own(path) {
        let no_link = OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
        let tree = clone_with(rustix::fs::CWD, path, no_link, change)?;
        return Ok((tree, None));
    }
    let handle = open_source(path)?;
    let empty = OpenTreeFlags::AT_EMPTY_PATH;
    let tree = clone_with(handle.as_fd(), Path::new(""), empty, change)?;
    Ok((tree, Some(handle)))
}

/// Clones the tree of mounts at an absolute path of the host, as a detached one, following no
/// link.
pub fn clone_source(path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    // One call instead of three, for most of what a cage sees.
    if lies_in_roots_own(path) {
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

/// What the file system at a path says of itself.
pub fn file_system(path: &std::ffi::CStr) -> io::Result<libc::statvfs64> {
    let mut answer = std::mem::MaybeUninit::<libc::statvfs64>::uninit();
    // SAFETY: a C string, and a place for the answer that lives across the call.
    check(i64::from(unsafe {
        libc::statvfs64(path.as_ptr(), answer.as_mut_ptr())
    }))?;
    // SAFETY: the call succeeded, and has filled it.
    Ok(unsafe { answer.assume_init() })
}
