//! Stopping, resuming and killing all processes of a group.
//!
//! The usual end of a cage is the death of its PID 1, which takes all others along. This is for
//! a cage whose PID 1 cannot be relied on, and for looking at one that must not move.

use super::group::Group;
use super::{Cgroup, CgroupError, Tree, field};
use ironcage_sys::rustix;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

const ROUNDS: u32 = 200;
const ROUND: Duration = Duration::from_millis(1);

/// The processes of a cage, frozen; they run again when this is dropped.
#[derive(Debug)]
pub struct Frozen<'a> {
    cgroup: &'a Cgroup,
    /// The freezer group of version 1, made for this and removed with it.
    freezer: Option<Group>,
}

impl Cgroup {
    /// Freezes all processes of the group. They are thawed when the value is dropped.
    pub fn freeze(&self) -> Result<Frozen<'_>, CgroupError> {
        match &self.tree {
            Tree::V2(group) => {
                group.write("cgroup.freeze", "1")?;
                let frozen = Frozen {
                    cgroup: self,
                    freezer: None,
                };
                wait_for(group, "frozen", || {
                    Ok(field(&group.read("cgroup.events")?, "frozen") == Some(1))
                })?;
                Ok(frozen)
            }
            Tree::V1 {
                freezer: Some(parent),
                name,
                groups,
            } => {
                let (_, source) = groups.first().ok_or(CgroupError::NoFreezer)?;
                let freezer = Group::make(parent, name, "tasks")?;
                gather(source, &freezer)?;
                freezer.write("freezer.state", "FROZEN")?;
                wait_for(&freezer, "frozen", || {
                    Ok(freezer.read("freezer.state")?.trim() == "FROZEN")
                })?;
                Ok(Frozen {
                    cgroup: self,
                    freezer: Some(freezer),
                })
            }
            Tree::V1 { .. } => Err(CgroupError::NoFreezer),
        }
    }

    /// Kills all processes of the group and waits until they are gone from it.
    pub fn kill(&self) -> Result<(), CgroupError> {
        let Some(group) = self.groups().next() else {
            return Ok(());
        };
        // One write from Linux 5.14 on.
        if matches!(self.tree, Tree::V2(_)) && group.write_if_there("cgroup.kill", "1")? {
            return wait_for(group, "empty", || Ok(members(group)?.is_empty()));
        }
        wait_for(group, "empty", || {
            let held: Vec<(Pid, OwnedFd)> = members(group)?
                .into_iter()
                .filter_map(|pid| {
                    let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
                    Some((pid, handle))
                })
                .collect();
            // A second look after the handles: an id that was freed and given to a process of
            // somebody else in between is no longer listed, and its handle is not used.
            let still = members(group)?;
            for (_, handle) in held.iter().filter(|(pid, _)| still.contains(pid)) {
                // Gone already is what was wanted.
                let _ = rustix::process::pidfd_send_signal(handle, Signal::KILL);
            }
            Ok(still.is_empty())
        })
    }
}

impl Frozen<'_> {
    /// Lets the processes run again and says whether that worked.
    pub fn thaw(mut self) -> Result<(), CgroupError> {
        self.release()
    }

    fn release(&mut self) -> Result<(), CgroupError> {
        match (&self.cgroup.tree, self.freezer.take()) {
            (Tree::V2(group), _) => group.write("cgroup.freeze", "0"),
            (Tree::V1 { .. }, Some(mut freezer)) => {
                freezer.write("freezer.state", "THAWED")?;
                give_back(&freezer)?;
                freezer.remove()
            }
            (Tree::V1 { .. }, None) => Ok(()),
        }
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = self.release();
    }
}

/// Moves every process of one group into another hierarchy's, until a look finds no new one:
/// children of those already moved are born there.
fn gather(source: &Group, freezer: &Group) -> Result<(), CgroupError> {
    wait_for(freezer, "complete", || {
        let there = members(freezer)?;
        let missing: Vec<Pid> = members(source)?.difference(&there).copied().collect();
        for pid in &missing {
            move_if_alive(freezer, *pid)?;
        }
        Ok(missing.is_empty())
    })
}

/// Moves the processes back to the parent of the freezer group, so that it can be removed.
fn give_back(freezer: &Group) -> Result<(), CgroupError> {
    let Some(parent) = freezer.path().parent() else {
        return Ok(());
    };
    wait_for(freezer, "empty", || {
        let left = members(freezer)?;
        for pid in &left {
            let path = parent.join("cgroup.procs");
            let value = pid.as_raw_nonzero().to_string();
            match std::fs::write(&path, &value) {
                Ok(()) => {}
                Err(error)
                    if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
                Err(source) => {
                    return Err(CgroupError::Write {
                        path,
                        value,
                        source,
                    });
                }
            }
        }
        Ok(left.is_empty())
    })
}

fn move_if_alive(group: &Group, pid: Pid) -> Result<(), CgroupError> {
    match group.write("cgroup.procs", &pid.as_raw_nonzero().to_string()) {
        Err(CgroupError::Write { source, .. })
            if source.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) =>
        {
            Ok(())
        }
        other => other,
    }
}

/// The processes of a group, as this process's pid namespace numbers them.
fn members(group: &Group) -> Result<HashSet<Pid>, CgroupError> {
    let text = group.read("cgroup.procs")?;
    Ok(text
        .lines()
        .filter_map(|line| line.parse().ok())
        .filter_map(Pid::from_raw)
        .collect())
}

fn wait_for(
    group: &Group,
    wanted: &'static str,
    mut reached: impl FnMut() -> Result<bool, CgroupError>,
) -> Result<(), CgroupError> {
    for _ in 0..ROUNDS {
        if reached()? {
            return Ok(());
        }
        std::thread::sleep(ROUND);
    }
    Err(CgroupError::TimedOut {
        path: group.path().to_owned(),
        wanted,
    })
}
