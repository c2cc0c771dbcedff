//! Attempts on the file view: mounts, file handles, device nodes.

use super::checked;
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const HANDLE_BYTES: usize = 128;

/// A file handle as the kernel encodes it: names an inode without a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHandle {
    /// The kind, private to the file system.
    pub kind: i32,
    /// The bytes, private to the file system.
    pub bytes: Vec<u8>,
}

#[repr(C)]
struct RawHandle {
    length: u32,
    kind: i32,
    bytes: [u8; HANDLE_BYTES],
}

/// The handle of the file at `path`.
pub fn file_handle(path: &CStr) -> Result<FileHandle, Errno> {
    let mut raw = RawHandle {
        length: HANDLE_BYTES as u32,
        kind: 0,
        bytes: [0; HANDLE_BYTES],
    };
    let mut mount_id: libc::c_int = 0;
    // SAFETY: the kernel writes at most `length` bytes behind the header, which are there.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut raw,
            &raw mut mount_id,
            0,
        )
    };
    checked(answer)?;
    let length = (raw.length as usize).min(HANDLE_BYTES);
    Ok(FileHandle {
        kind: raw.kind,
        bytes: raw.bytes[..length].to_vec(),
    })
}

/// Opens a file by its handle on the file system that `mount` lies on.
pub fn open_by_handle(mount: BorrowedFd<'_>, handle: &FileHandle) -> Result<OwnedFd, Errno> {
    let mut raw = RawHandle {
        length: 0,
        kind: handle.kind,
        bytes: [0; HANDLE_BYTES],
    };
    let length = handle.bytes.len().min(HANDLE_BYTES);
    raw.length = length as u32;
    raw.bytes[..length].copy_from_slice(&handle.bytes[..length]);
    // SAFETY: the handle is valid for its stated length.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw mut raw,
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    owned(answer)
}

fn owned(answer: libc::c_long) -> Result<OwnedFd, Errno> {
    let fd = checked(answer)? as i32;
    // SAFETY: the kernel has just handed out this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn mount_raw(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    data: Option<&CStr>,
) -> Result<(), Errno> {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: every pointer is null or a C string that lives for the call.
    let answer = unsafe {
        libc::mount(
            pointer(source),
            target.as_ptr(),
            pointer(kind),
            flags,
            pointer(data).cast(),
        )
    };
    checked(answer.into()).map(drop)
}

/// Mounts a new file system of `kind`.
pub fn mount_fs(kind: &CStr, target: &CStr, data: Option<&CStr>) -> Result<(), Errno> {
    mount_raw(Some(kind), target, Some(kind), 0, data)
}

/// Binds `source` on `target`, read-only if asked.
pub fn bind_mount(source: &CStr, target: &CStr, read_only: bool) -> Result<(), Errno> {
    mount_raw(
        Some(source),
        target,
        None,
        libc::MS_BIND | libc::MS_REC,
        None,
    )?;
    if read_only {
        let flags = libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY;
        mount_raw(None, target, None, flags, None)?;
    }
    Ok(())
}

/// The old way to make a read-only mount writable: remount without the flag.
pub fn remount_writable(target: &CStr) -> Result<(), Errno> {
    mount_raw(None, target, None, libc::MS_BIND | libc::MS_REMOUNT, None)
}

/// The new way: mount_setattr that clears the read-only attribute.
pub fn clear_read_only(target: &CStr) -> Result<(), Errno> {
    const MOUNT_ATTR_RDONLY: u64 = linux_raw_sys::general::MOUNT_ATTR_RDONLY as u64;
    let attributes: [u64; 4] = [0, MOUNT_ATTR_RDONLY, 0, 0];
    // SAFETY: the attributes are a struct mount_attr of four 64-bit fields.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            target.as_ptr(),
            0,
            attributes.as_ptr(),
            std::mem::size_of_val(&attributes),
        )
    };
    checked(answer).map(drop)
}

/// Takes a mount away, even while it is in use.
pub fn unmount_detached(target: &CStr) -> Result<(), Errno> {
    // SAFETY: the target is a C string.
    checked(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) }.into()).map(drop)
}

/// Opens a file system context of the new mount interface.
pub fn fs_context_open(kind: &CStr) -> Result<OwnedFd, Errno> {
    // SAFETY: the kind is a C string.
    owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), 1) })
}

/// The device number of the first loop device: a block device that is there without hardware.
pub fn loopback_device_number() -> u64 {
    libc::makedev(7, 0)
}
