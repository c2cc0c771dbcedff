//! Mounts that are attached to nowhere yet.

use crate::error::{Doing, LayerError, shown};
use ironcage_model::Layer;
use ironcage_sys::rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, OpenTreeFlags,
    fsconfig_create, fsmount, fsopen, mount, mount_change, open_tree,
};
use std::ffi::CString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

pub(crate) fn doing<T>(
    result: Result<T, impl Into<std::io::Error>>,
    action: impl FnOnce() -> String,
) -> Result<T, LayerError> {
    result.doing(Layer::MountNs, action)
}

pub(crate) fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// Nothing that happens in this mount namespace is to reach the host's.
pub(crate) fn stop_propagation() -> Result<(), LayerError> {
    let all = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    doing(mount_change("/", all), || "stop mount events".into())
}

/// Mounts a new file system, in one call: a place on the cage's own storage, or one that nobody
/// else sees. `data` are its options, separated by commas.
pub(crate) fn mount_new(
    kind: &str,
    place: &Path,
    flags: MountFlags,
    data: &str,
) -> Result<(), LayerError> {
    let action = || format!("make a {kind} with {data}");
    let options = doing(CString::new(data).map_err(io::Error::other), action)?;
    doing(
        mount("none", place, kind, flags, options.as_c_str()),
        action,
    )
}

/// A new file system that is attached to nowhere yet.
pub(crate) fn make_filesystem(
    kind: &str,
    attributes: MountAttrFlags,
) -> Result<OwnedFd, LayerError> {
    let action = || format!("make a {kind}");
    let context = doing(fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC), action)?;
    doing(fsconfig_create(&context), action)?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let made = doing(fsmount(&context, flags, attributes), action)?;
    // The first process of a cage closes all but its own in a few calls.
    std::mem::forget(context);
    Ok(made)
}

pub(crate) fn clone_tree(
    place: BorrowedFd<'_>,
    recursive: bool,
    shown_as: &Path,
) -> Result<OwnedFd, LayerError> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    doing(open_tree(place, "", flags), || {
        format!("clone the mount of {}", shown(shown_as))
    })
}
