//! Locates a path in a cage, from its plan alone: there or not, writable or not, and by which
//! item of the plan.

use crate::guarded;
use crate::plan::{Access, HiddenBy, Plan, ViewOp};
use std::path::{Path, PathBuf};

/// What a path is in a cage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathStatus {
    /// Nothing of it is there.
    Absent,
    /// An empty directory that leads to something deeper.
    Leads,
    /// Made for the cage, read-only.
    Made,
    /// Storage of the cage's own, writable, gone when the cage ends.
    Ephemeral,
    /// This file or directory of the host, to read.
    ReadOnly(PathBuf),
    /// This file or directory of the host, to read and write.
    Writable(PathBuf),
    /// This directory of the host; what is written is kept aside.
    CopyOnWrite(PathBuf),
    /// This directory of the host, to read; with a lease what is written is kept aside.
    Locked(PathBuf),
    /// Read-only in a tree that is writable, because the host would execute or trust it.
    Protected,
    /// There, and cannot be looked into.
    Hidden,
    /// A device.
    Device,
    /// The kernel's, of the cage's own namespaces.
    Kernel,
}

impl PathStatus {
    /// Whether what is written there goes anywhere.
    pub fn is_writable(&self) -> bool {
        match self {
            PathStatus::Ephemeral
            | PathStatus::Writable(_)
            | PathStatus::CopyOnWrite(_)
            | PathStatus::Device
            | PathStatus::Kernel => true,
            PathStatus::Absent
            | PathStatus::Leads
            | PathStatus::Made
            | PathStatus::ReadOnly(_)
            | PathStatus::Locked(_)
            | PathStatus::Protected
            | PathStatus::Hidden => false,
        }
    }
}

/// What a path is in a cage, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// What it is.
    pub standing: PathStatus,
    /// Where that comes from: the origin of the plan's item.
    pub origin: Option<String>,
    /// The path that the item names, where it is another.
    pub by: Option<PathBuf>,
    /// The path without the links of the view.
    pub path: PathBuf,
    /// Why it is hidden, where an item of the plan hides it.
    pub hidden_by: Option<HiddenBy>,
}

/// A link of a view can lead to another one; this many are followed.
const LINKS: usize = 8;

/// Says what a path is in a cage with this plan. The path is absolute.
pub fn locate(plan: &Plan, path: &Path) -> Located {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        match follow(plan, &path) {
            Some(next) => path = next,
            None => break,
        }
    }
    let mut found = Located {
        standing: PathStatus::Absent,
        origin: None,
        by: None,
        path: path.clone(),
        hidden_by: None,
    };
    // Later items lie over earlier ones.
    for item in &plan.view {
        let Some((target, standing)) = standing(&item.what, &path, &found.standing) else {
            continue;
        };
        found.standing = standing;
        found.hidden_by = match item.what {
            ViewOp::Hide { by, .. } => Some(by),
            _ => None,
        };
        found.origin = Some(item.origin.clone());
        found.by = Some(target);
    }
    if found.standing == PathStatus::Absent && leads(plan, &path) {
        found.standing = PathStatus::Leads;
    }
    if found.by.as_deref() == Some(&*path) {
        found.by = None;
    }
    found
}

/// Why `-r` or `-w` would give this path only with `--i-know`.
pub fn guard(home: &Path, path: &Path, write: bool) -> Option<String> {
    let access = if write { Access::Write } else { Access::Read };
    guarded::why(&[home.to_owned()], path, access).map(|guard| guard.why)
}

fn standing(op: &ViewOp, path: &Path, below: &PathStatus) -> Option<(PathBuf, PathStatus)> {
    let in_it = |target: &Path| path.starts_with(target);
    let of_host = |source: &Path, target: &Path| match path.strip_prefix(target) {
        Ok(rest) if rest.as_os_str().is_empty() => source.to_owned(),
        Ok(rest) => source.join(rest),
        Err(_) => source.to_owned(),
    };
    let (target, standing) = match op {
        ViewOp::Directory { target, .. } | ViewOp::File { target, .. } if target == path => {
            // A node in storage of the cage's own is as writable as that.
            let standing = match below {
                PathStatus::Ephemeral => PathStatus::Ephemeral,
                _ => PathStatus::Made,
            };
            (target, standing)
        }
        ViewOp::Authorities { target, .. }
        | ViewOp::Supervisor { target, .. }
        | ViewOp::Cover { target, .. }
            if target == path =>
        {
            (target, PathStatus::Made)
        }
        ViewOp::Ephemeral { target, .. } if in_it(target) => (target, PathStatus::Ephemeral),
        ViewOp::Bind {
            source,
            target,
            access,
            ..
        } if in_it(target) => {
            let place = of_host(source, target);
            let standing = match access {
                Access::Read => PathStatus::ReadOnly(place),
                Access::Write => PathStatus::Writable(place),
                Access::Device => PathStatus::Device,
            };
            (target, standing)
        }
        ViewOp::Overlay {
            lower,
            target,
            locked,
            ..
        } if in_it(target) => {
            let place = of_host(lower, target);
            let standing = match locked {
                true => PathStatus::Locked(place),
                false => PathStatus::CopyOnWrite(place),
            };
            (target, standing)
        }
        ViewOp::Pin {
            target,
            access: Access::Read,
        } if in_it(target) => (target, PathStatus::Protected),
        ViewOp::Hide { target, .. } if in_it(target) => (target, PathStatus::Hidden),
        ViewOp::MaskProc {
            target,
            instead: None,
        } if in_it(target) => (target, PathStatus::Hidden),
        ViewOp::Proc if in_it(Path::new("/proc")) => {
            return Some(("/proc".into(), PathStatus::Kernel));
        }
        ViewOp::Terminals if in_it(Path::new("/dev/pts")) => {
            return Some(("/dev/pts".into(), PathStatus::Kernel));
        }
        _ => return None,
    };
    Some((target.clone(), standing))
}

fn target_of(op: &ViewOp) -> Option<&Path> {
    match op {
        ViewOp::Directory { target, .. }
        | ViewOp::Symlink { target, .. }
        | ViewOp::File { target, .. }
        | ViewOp::Authorities { target, .. }
        | ViewOp::Ephemeral { target, .. }
        | ViewOp::Bind { target, .. }
        | ViewOp::Supervisor { target, .. }
        | ViewOp::Overlay { target, .. } => Some(target),
        _ => None,
    }
}

fn leads(plan: &Plan, path: &Path) -> bool {
    let mut targets = plan.view.iter().filter_map(|item| target_of(&item.what));
    targets.any(|target| target != path && target.starts_with(path))
}

/// Where a link of the view leads that lies on the way of a path.
fn follow(plan: &Plan, path: &Path) -> Option<PathBuf> {
    plan.view.iter().find_map(|item| {
        let ViewOp::Symlink { target, to } = &item.what else {
            return None;
        };
        let rest = path.strip_prefix(target).ok()?;
        let mut real = target.parent().unwrap_or(Path::new("/")).to_owned();
        for part in to.join(rest).components() {
            match part {
                std::path::Component::RootDir => real = "/".into(),
                std::path::Component::ParentDir => {
                    real.pop();
                }
                std::path::Component::Normal(name) => real.push(name),
                _ => {}
            }
        }
        Some(real)
    })
}
