//! Mounts that are attached to nowhere yet.

use crate::error::{Doing, LayerError, shown};
use ironcage_model::Layer;
use ironcage_sys::mount::{AttributeChange, set_attributes};
use ironcage_sys::rustix::fs::{CWD, Mode, OFlags, openat};
use ironcage_sys::rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, open_tree,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
    let root = doing(
        openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()),
        || "open the root".into(),
    )?;
    doing(
        set_attributes(
            root.as_fd(),
            AttributeChange {
                recursive: true,
                private: true,
                ..AttributeChange::default()
            },
        ),
        || "stop mount events".into(),
    )
}

pub(crate) fn make_filesystem(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, LayerError> {
    let action = || format!("make a {kind}");
    let context = doing(fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC), action)?;
    for (name, value) in options {
        doing(fsconfig_set_string(&context, *name, *value), || {
            format!("make a {kind} with {name}={value}")
        })?;
    }
    if kind == "devpts" {
        doing(fsconfig_set_flag(&context, "newinstance"), action)?;
    }
    doing(fsconfig_create(&context), action)?;
    doing(
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes),
        action,
    )
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
