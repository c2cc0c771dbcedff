//! Finds where a path that somebody in the cage names leads to on the host, if the cage does not
//! have it anyway.
//!
//! Whether anything is there is told of nothing that the ceiling does not give, nor where a link
//! leads: else asking would be a way to look around on the host.

use ironcage_catalog::sensitive;
use ironcage_files::Links;
use ironcage_model::{LeaseReason, Mark, Printable, Right};
use ironcage_plan::{PathStatus, Plan, ViewOp, locate};
use ironcage_sys::rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, accessat, fstat, openat2,
};
use ironcage_sys::rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The most that is read of a file to see what it holds.
const MOST_READ: u64 = 1 << 20;

/// What a path that is named in the cage is.
#[derive(Debug)]
pub(crate) enum PathLookup {
    /// The cage has it, with this right.
    Had {
        /// Whether what is written there is gone with who wrote it.
        passing: bool,
    },
    /// Something that the ceiling gives of; or the directory around it, where it is to be made.
    Found {
        path: PathBuf,
        /// What it is, whatever takes its place meanwhile.
        handle: OwnedFd,
    },
    /// A name in a directory, for a scope that writes it.
    Name(FoundName),
    /// Neither, and why as far as that may be told.
    Neither(LeaseReason),
}

/// A name of a directory on the host: of a file, or of nothing yet.
#[derive(Debug)]
pub(crate) struct FoundName {
    pub(crate) directory: PathBuf,
    pub(crate) handle: OwnedFd,
    pub(crate) name: String,
    /// The file that has the name.
    pub(crate) existing: Option<OwnedFd>,
}

impl FoundName {
    /// The whole path.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// What is leased where the directory is read too: the file itself, or the directory in which
    /// one is to be made.
    pub(crate) fn without_name(self) -> (PathBuf, OwnedFd) {
        match self.existing {
            Some(file) => (self.directory.join(&self.name), file),
            None => (self.directory, self.handle),
        }
    }
}

/// Looks at a path as it is named in a cage with this plan. What is to be written may be one name of
/// a directory that the cage does not see.
pub(crate) fn look_up_for_scope(plan: &Plan, path: &Path, right: Right) -> PathLookup {
    look_up_as(plan, path, right, right == Right::Write)
}

/// Looks at a path as it is named in a cage with this plan.
pub(crate) fn look_up(plan: &Plan, path: &Path, right: Right) -> PathLookup {
    look_up_as(plan, path, right, false)
}

fn look_up_as(plan: &Plan, path: &Path, right: Right, by_name: bool) -> PathLookup {
    let standing = locate(plan, path).standing;
    let has = match standing {
        PathStatus::Writable(_)
        | PathStatus::CopyOnWrite(_)
        | PathStatus::Kernel
        | PathStatus::Device => true,
        // A place of the cage's own, unless the ceiling speaks of the host's.
        PathStatus::Ephemeral | PathStatus::Made => !in_ceiling(plan, path),
        PathStatus::ReadOnly(_) | PathStatus::Locked(_) => right == Right::Read,
        PathStatus::Protected | PathStatus::Hidden | PathStatus::Absent | PathStatus::Leads => {
            false
        }
    };
    let asks = right == Right::Read && plan.asks_to_read(path) && is_sensitive(path);
    if has && !asks {
        let passing = matches!(standing, PathStatus::Ephemeral | PathStatus::Made);
        return PathLookup::Had { passing };
    }
    if !in_ceiling(plan, path) {
        return PathLookup::Neither(LeaseReason::AboveCeiling {
            resource: format!("{} access to {}", right.name(), Printable::new(path)),
            section: "files".into(),
        });
    }
    let locked = matches!(standing, PathStatus::Locked(_));
    let never = |path: &Path| {
        let leases = plan.leases.as_ref();
        leases.and_then(|leases| match plan.is_locked(path) {
            true => leases.never_in_view(path),
            false => leases.never(path, right),
        })
    };
    // Before anything is looked at: else it would tell what lies beside the user's keys.
    if let Some(why) = never(path) {
        return PathLookup::Neither(LeaseReason::PathNever {
            path: Printable::new(path).to_string(),
            why: why.to_string(),
        });
    }
    if by_name
        && !locked
        && let Some(found) = find_name(plan, path)
    {
        let real = found.path();
        return match in_ceiling(plan, &real) && never(&real).is_none() {
            true => PathLookup::Name(found),
            false => PathLookup::Neither(LeaseReason::PathNotFound),
        };
    }
    let found = match locked {
        true => find_around(path),
        false => find(path, right),
    };
    match found {
        Some((path, handle)) if in_ceiling(plan, &path) && never(&path).is_none() => {
            PathLookup::Found { path, handle }
        }
        _ => PathLookup::Neither(LeaseReason::PathNotFound),
    }
}

/// Whether the host has a file of this name that is what the name says. What it does not have is the
/// cage's own.
fn is_sensitive(path: &Path) -> bool {
    let Some(entry) = path.file_name().and_then(sensitive::hidden) else {
        return false;
    };
    let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
    let held = || match ironcage_files::read(path, MOST_READ, Links::Refuse) {
        Ok(content) => entry.is_held_by(&content),
        // What cannot be read may hold it.
        Err(_) => true,
    };
    is_file && (entry.holds.is_empty() || held())
}

/// Whether the ceiling gives anything of a path, to whomever.
fn in_ceiling(plan: &Plan, path: &Path) -> bool {
    let parts = || plan.leases.iter().flat_map(|leases| &leases.paths);
    let covers = |which: fn(Mark) -> bool| {
        let mut parts = parts().filter(|part| which(part.what.mark));
        parts.any(|part| path.starts_with(&part.what.path))
    };
    covers(Mark::gives) && !covers(|mark| mark == Mark::Deny)
}

/// Opens the nearest directory around a path of the host that is there, or that directory itself. In
/// a view that keeps changes aside a lease is on a directory: who saves a file may do so by
/// renaming another, and what is not there yet may be in the change.
fn find_around(path: &Path) -> Option<(PathBuf, OwnedFd)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS;
    let mut around = path.ancestors();
    let found = around.find_map(
        |part| match openat2(CWD, part, flags, Mode::empty(), resolve) {
            Ok(handle) => Some(Some((part.to_owned(), handle))),
            Err(Errno::NOENT | Errno::NOTDIR) => None,
            // A link: where it leads in the change is nobody's to know here.
            Err(_) => Some(None),
        },
    );
    found.flatten()
}

/// Finds the directory and the name of a file of the host that is to be written, or made, where that
/// directory can be seen with this name alone: the cage must have nothing of it.
fn find_name(plan: &Plan, path: &Path) -> Option<FoundName> {
    // The file server of a guest serves what is mounted, and nothing follows a rename there yet.
    if plan.isolation_level.what.microvm.is_some() {
        return None;
    }
    let name = path.file_name()?.to_str()?.to_owned();
    let open = |path: &Path, flags: OFlags| {
        let resolve = ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
        openat2(CWD, path, flags, Mode::empty(), resolve)
    };
    let existing = match open(path, OFlags::NOFOLLOW) {
        Err(Errno::NOENT) => None,
        Ok(handle) => Some(handle),
        Err(_) => return None,
    };
    if let Some(handle) = &existing {
        let mode = fstat(handle).ok()?.st_mode;
        if FileType::from_raw_mode(mode) != FileType::RegularFile {
            return None;
        }
    }
    let handle = open(path.parent()?, OFlags::DIRECTORY).ok()?;
    let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let directory = std::fs::read_link(&link).ok()?;
    // What is made there stands in the directory first, under another name.
    accessat(CWD, link.as_str(), Access::WRITE_OK, AtFlags::EACCESS).ok()?;
    let unseen = matches!(
        locate(plan, &directory).standing,
        PathStatus::Absent | PathStatus::Ephemeral | PathStatus::Made | PathStatus::Leads
    );
    let shown_below = plan.view.iter().any(|item| match &item.what {
        ViewOp::Directory { .. } => false,
        op => {
            let target = op.target();
            target.is_some_and(|target| target.starts_with(&directory))
        }
    });
    let allowed = unseen && !shown_below && plan.lets_write_below(&directory);
    allowed.then_some(FoundName {
        directory,
        handle,
        name,
        existing,
    })
}

/// Opens what a path of the host leads to, or the directory around it where it is to be made; with
/// its real path.
fn find(path: &Path, right: Right) -> Option<(PathBuf, OwnedFd)> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // Links of the kernel's own lead to what a process has, wherever that is.
    let open = |path: &Path, flags: OFlags| {
        let resolve = ResolveFlags::NO_MAGICLINKS;
        openat2(CWD, path, flags, Mode::empty(), resolve)
    };
    let handle = match open(path, flags) {
        Err(Errno::NOENT) if right == Right::Write => {
            // A link whose end is missing is there: whether its end is, is nobody's to know.
            match open(path, flags | OFlags::NOFOLLOW) {
                Err(Errno::NOENT) => open(path.parent()?, flags),
                _ => return None,
            }
        }
        other => other,
    };
    let handle = handle.ok()?;
    let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
    Some((std::fs::read_link(link).ok()?, handle))
}
