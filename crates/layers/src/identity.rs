//! Ids: the maps of a user namespace, and becoming the agent.

use crate::error::{Doing, LayerError};
use ironcage_model::Layer;
use ironcage_sys::rustix::fs::{CWD, Mode, OFlags, openat};
use ironcage_sys::rustix::io::write;
use ironcage_sys::rustix::process::{Gid, Uid};
use ironcage_sys::rustix::thread;
use ironcage_sys::spent::close_later;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// One line of a map: `count` ids from `inside` are `outside` in the parent namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapLine {
    /// First id inside.
    pub inside: u32,
    /// First id outside.
    pub outside: u32,
    pub count: u32,
}

/// Writes the maps of the user namespace of the process behind a `/proc/PID` directory. It is the
/// caller or a child that nobody has waited for: no other process gets its number meanwhile.
///
/// An unprivileged writer may only map its own id, and has to give up setgroups first: else
/// it could drop a group that denies it something.
pub fn write_maps(
    process: &Path,
    uid: MapLine,
    gid: MapLine,
    give_up_setgroups: bool,
) -> Result<(), LayerError> {
    write_maps_at(CWD, process, (uid, gid), give_up_setgroups)
}

/// The same through a handle of a process file system, for a process that sees no `/proc`.
pub fn write_maps_at(
    proc: BorrowedFd<'_>,
    process: &Path,
    (uid, gid): (MapLine, MapLine),
    give_up_setgroups: bool,
) -> Result<(), LayerError> {
    let put = |name: &str, content: &str| {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        openat(proc, process.join(name), flags, Mode::empty())
            .and_then(|file| {
                let written = write(&file, content.as_bytes());
                close_later(file);
                written.map(drop)
            })
            .doing(Layer::UserNs, || {
                format!("write {}", process.join(name).display())
            })
    };
    let line = |map: MapLine| format!("{} {} {}\n", map.inside, map.outside, map.count);
    if give_up_setgroups {
        put("setgroups", "deny")?;
    }
    put("uid_map", &line(uid))?;
    put("gid_map", &line(gid))
}

/// Becomes the agent: real, effective and saved ids, and no other group where the kernel
/// lets us choose.
pub fn become_agent(uid: u32, gid: u32, drop_groups: bool) -> Result<(), LayerError> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    if drop_groups {
        thread::set_thread_groups(&[])
            .doing(Layer::UserNs, || "drop supplementary groups".into())?;
    }
    thread::set_thread_res_gid(group, group, group)
        .doing(Layer::UserNs, || format!("become group {gid}"))?;
    thread::set_thread_res_uid(user, user, user)
        .doing(Layer::UserNs, || format!("become user {uid}"))
}
