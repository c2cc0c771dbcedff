//! Leases on files and directories.

use crate::decide::{NotGranted, Part, RequestedLease};
use ironcage_model::{LeaseReason, Mark, Printable, Resource, Right};
use ironcage_plan::{Item, LeasePath, Leases, PathStatus, Plan, ViewOp, locate};
use std::path::{Component, Path};

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    Directory,
    File,
    /// A socket, a pipe or a device.
    Other,
}

/// What was seen through the descriptor that the asker holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub node: Node,
    /// The first name in it that the host would execute or trust, if there is one.
    pub executed: Option<String>,
}

/// A path that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedPath<'a> {
    /// The real path, as the kernel tells it for the descriptor.
    pub path: &'a Path,
    /// What is to be done with it.
    pub right: Right,
    pub facts: Facts,
}

/// What is given of a path, and by which part of the ceiling; or why nothing is.
pub(crate) fn find(
    plan: &Plan,
    leases: &Leases,
    wanted: &RequestedPath<'_>,
    asked: &RequestedLease<'_>,
) -> Result<(Resource, Part), NotGranted> {
    let Some(path) = wanted.path.to_str() else {
        return Err(LeaseReason::PathNotUtf8.into());
    };
    if !is_real(wanted.path) {
        return Err(LeaseReason::PathNotAbsolute.into());
    }
    if asked.uses.is_some() {
        let kind = "path".into();
        return Err(LeaseReason::UsesNotCounted { kind }.into());
    }
    if wanted.facts.node == Node::Other {
        return Err(LeaseReason::PathNotAFile.into());
    }
    // What is written there is kept aside, and what is protected stays so when it is applied.
    let kept_aside = plan.is_locked(wanted.path);
    let never = match kept_aside {
        true => leases.never_in_view(wanted.path),
        false => leases.never(wanted.path, wanted.right),
    };
    if let Some(why) = never {
        return Err(LeaseReason::PathNever {
            path: path.to_owned(),
            why: why.to_string(),
        }
        .into());
    }
    if wanted.right == Right::Write
        && !kept_aside
        && let Some(name) = &wanted.facts.executed
    {
        let name = name.clone();
        return Err(LeaseReason::PathExecuted { name }.into());
    }
    let sensitive = wanted.right == Right::Read && plan.asks_to_read(wanted.path);
    if !sensitive && let Some(decided) = by_base(plan, leases, wanted) {
        return Err(decided);
    }
    let part = strictest(leases, wanted, kept_aside)?;
    let resource = Resource::Path {
        path: path.to_owned(),
        right: wanted.right,
    };
    let named = part.what.path == wanted.path;
    let part = Part {
        // What gives a directory does not give the secrets in it.
        mark: match sensitive && !named {
            true => Mark::Ask,
            false => part.what.mark,
        },
        origin: part.origin.clone(),
    };
    Ok((resource, part))
}

/// Whether a path is absolute and names each directory on its way once.
fn is_real(path: &Path) -> bool {
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    // `components` leaves `.` and doubled slashes out: what is shorter by that is not plain.
    path.is_absolute()
        && path.components().all(plain)
        && path
            .components()
            .collect::<std::path::PathBuf>()
            .as_os_str()
            == path.as_os_str()
}

/// Checks what the cage can do with a path without a lease.
fn by_base(plan: &Plan, leases: &Leases, asked: &RequestedPath<'_>) -> Option<NotGranted> {
    let located = locate(plan, asked.path);
    let origin = located.origin.unwrap_or_else(|| "built in".into());
    let write = asked.right == Right::Write;
    let locked = matches!(located.standing, PathStatus::Locked(_));
    // A part of the view itself has with it what is laid out below.
    if let Some(inside) = laid_out_below(plan, asked).filter(|_| !locked) {
        let path = Printable::new(inside).to_string();
        return Some(LeaseReason::PathCoversView { path }.into());
    }
    match located.standing {
        PathStatus::Writable(_) | PathStatus::CopyOnWrite(_) => {
            Some(NotGranted::Base(LeaseReason::PathInBase {
                right: asked.right.name().into(),
                origin,
            }))
        }
        PathStatus::ReadOnly(_) | PathStatus::Locked(_) if !write => {
            Some(NotGranted::Base(LeaseReason::PathInBase {
                right: Right::Read.name().into(),
                origin,
            }))
        }
        PathStatus::ReadOnly(_)
            if asked.path.starts_with(&plan.workspace) && !leases.real_workspace =>
        {
            Some(LeaseReason::WorkspaceReadOnly.into())
        }
        PathStatus::Protected | PathStatus::Hidden | PathStatus::Device | PathStatus::Kernel => {
            Some(LeaseReason::PathClosed { origin }.into())
        }
        PathStatus::Absent
        | PathStatus::Leads
        | PathStatus::Made
        | PathStatus::Ephemeral
        | PathStatus::Locked(_)
        | PathStatus::ReadOnly(_) => None,
    }
}

/// Something that the cage has, other than a directory on the way to it, below a path: a lease would
/// lay the host's own tree over it, past the change that is kept aside, and past what protects it.
fn laid_out_below<'a>(plan: &'a Plan, asked: &RequestedPath<'_>) -> Option<&'a Path> {
    let below = |place: &&Path| *place != asked.path && place.starts_with(asked.path);
    let mut ops = plan.view.iter().map(|item| &item.what);
    ops.find_map(|op| {
        // Under another name it would not be covered, but written.
        let real = match op {
            ViewOp::Directory { .. } => return None,
            ViewOp::Overlay { lower, .. } => Some(lower.as_path()),
            ViewOp::Bind { source, .. } => Some(source.as_path()),
            _ => None,
        };
        let real = real.filter(|_| asked.right == Right::Write);
        op.target().filter(below).or(real.filter(below))
    })
}

/// Returns the part of the ceiling that decides. A part grants at most its own right, and holds back
/// at least its own right. Where writes stay pending, the cage can read already: there, an `ask` for
/// reading holds nothing back.
fn strictest<'a>(
    leases: &'a Leases,
    asked: &RequestedPath<'_>,
    kept_aside: bool,
) -> Result<&'a Item<LeasePath>, LeaseReason> {
    let denied = leases.paths.iter().find(|part| {
        // A denied path must not come along with what is around it either; denied for reading
        // is denied for writing.
        let LeasePath { path, right, mark } = &part.what;
        *mark == Mark::Deny
            && *right <= asked.right
            && (asked.path.starts_with(path) || path.starts_with(asked.path))
    });
    if let Some(part) = denied {
        return Err(LeaseReason::DeniedByCeiling {
            resource: Printable::new(&part.what.path).to_string(),
            origin: part.origin.clone(),
        });
    }
    let gives = |part: &&Item<LeasePath>| {
        part.what.right >= asked.right && asked.path.starts_with(&part.what.path)
    };
    let marked = |mark: Mark| {
        leases
            .paths
            .iter()
            .filter(move |part| part.what.mark == mark)
    };
    // To be asked for before as much as that is had, wherever in it.
    let kept_back = |auto: &Item<LeasePath>| {
        marked(Mark::Ask).find(|part| {
            let LeasePath { path, right, .. } = &part.what;
            let heard = !kept_aside || *right == Right::Write;
            heard
                && *right <= asked.right
                && Mark::asks_before(path, &auto.what.path)
                && (asked.path.starts_with(path) || path.starts_with(asked.path))
        })
    };
    let mut at_once = marked(Mark::Auto).filter(gives);
    let found = match at_once.next() {
        Some(first) => match kept_back(first) {
            None => Some(first),
            // Another one may be nearer than what asks.
            ask => at_once.find(|auto| kept_back(auto).is_none()).or(ask),
        },
        None => marked(Mark::Ask).find(gives),
    };
    // A standing approval replaces asking.
    let asks = found.is_some_and(|part| part.what.mark == Mark::Ask);
    let found = marked(Mark::Always).find(gives).filter(|_| asks).or(found);
    found.ok_or_else(|| LeaseReason::AboveCeiling {
        resource: format!(
            "{} access to {}",
            asked.right.name(),
            Printable::new(asked.path)
        ),
        section: "files".into(),
    })
}
