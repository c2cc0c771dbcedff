//! Leases on files and directories.

use crate::decide::{Asked, NotGiven, Part};
use ironcage_model::{Mark, Printable, Resource, Right};
use ironcage_plan::{Item, LeasePath, Leases, Plan, Standing, ViewOp, locate};
use std::path::{Component, Path};

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A socket, a pipe or a device.
    Other,
}

/// What was seen through the descriptor that the asker holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// What it is.
    pub node: Node,
    /// The first name in it that the host would execute or trust, if there is one.
    pub executed: Option<String>,
}

/// A path that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedPath<'a> {
    /// The real path, as the kernel tells it for the descriptor.
    pub path: &'a Path,
    /// What is to be done with it.
    pub right: Right,
    /// What was seen.
    pub facts: Facts,
}

/// What is given of a path, and by which part of the ceiling; or why nothing is.
pub(crate) fn find(
    plan: &Plan,
    leases: &Leases,
    wanted: &AskedPath<'_>,
    asked: &Asked<'_>,
) -> Result<(Resource, Part), NotGiven> {
    let shown = Printable::new(wanted.path);
    let Some(path) = wanted.path.to_str() else {
        return Err(NotGiven::refused(
            "its name is not text; lease the directory around it",
        ));
    };
    if !is_real(wanted.path) {
        return Err(NotGiven::refused(
            "it is no absolute path without `.` and `..`",
        ));
    }
    if asked.uses.is_some() {
        return Err(NotGiven::refused(
            "nobody counts the uses of a path: name a time instead",
        ));
    }
    if wanted.facts.node == Node::Other {
        return Err(NotGiven::refused(
            "pipes and devices of the host are not given, and a socket is asked for with --socket",
        ));
    }
    // What is written there is kept aside, and what is protected stays so when it is applied.
    let kept_aside = plan.is_locked(wanted.path);
    let never = match kept_aside {
        true => leases.never_in_view(wanted.path),
        false => leases.never(wanted.path, wanted.right),
    };
    if let Some(why) = never {
        return Err(NotGiven::refused(format!("{shown} is never given: {why}")));
    }
    if wanted.right == Right::Write
        && !kept_aside
        && let Some(name) = &wanted.facts.executed
    {
        return Err(NotGiven::refused(format!(
            "there is {} in it, which the host executes or trusts; lease a directory beside that",
            Printable::new(name)
        )));
    }
    if let Some(decided) = by_base(plan, leases, wanted) {
        return Err(decided);
    }
    let part = strictest(leases, wanted, kept_aside).map_err(NotGiven::Refused)?;
    let resource = Resource::Path {
        path: path.to_owned(),
        right: wanted.right,
    };
    let part = Part {
        mark: part.what.mark,
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

/// What the cage has of a path without any lease.
fn by_base(plan: &Plan, leases: &Leases, asked: &AskedPath<'_>) -> Option<NotGiven> {
    let located = locate(plan, asked.path);
    let by = located.origin.as_deref().unwrap_or("built in");
    let by = Printable::new(by).to_string();
    let write = asked.right == Right::Write;
    let locked = matches!(located.standing, Standing::Locked(_));
    // A part of the view itself has with it what is laid out below.
    if let Some(inside) = laid_out_below(plan, asked).filter(|_| !locked) {
        return Some(NotGiven::refused(format!(
            "{} lies in it, and the real files would cover what the cage has there; lease a directory beside that",
            Printable::new(inside)
        )));
    }
    match located.standing {
        Standing::Writable(_) | Standing::CopyOnWrite(_) => Some(NotGiven::Base(format!(
            "the cage can {} it anyway ({by})",
            asked.right.name()
        ))),
        Standing::ReadOnly(_) | Standing::Locked(_) if !write => Some(NotGiven::Base(format!(
            "the cage can read it anyway ({by})"
        ))),
        Standing::ReadOnly(_)
            if asked.path.starts_with(&plan.workspace) && !leases.real_workspace =>
        {
            Some(NotGiven::refused(
                "the workspace is read-only, and a lease in it would write to the real files; start the cage with --workspace-mode leased, which keeps aside what is written",
            ))
        }
        Standing::Protected | Standing::Hidden | Standing::Device | Standing::Kernel => Some(
            NotGiven::refused(format!("the cage's plan closes it ({by})")),
        ),
        Standing::Absent
        | Standing::Leads
        | Standing::Made
        | Standing::Ephemeral
        | Standing::Locked(_)
        | Standing::ReadOnly(_) => None,
    }
}

/// Something that the cage has, other than a directory on the way to it, below a path: a lease would
/// lay the host's own tree over it, past the change that is kept aside, and past what protects it.
fn laid_out_below<'a>(plan: &'a Plan, asked: &AskedPath<'_>) -> Option<&'a Path> {
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

/// The part of the ceiling that decides. A part gives what is no more than its own right, and
/// keeps back what is no less. Where what is written is kept aside, the cage reads anyway: who asks
/// about reading around it keeps nothing back there.
fn strictest<'a>(
    leases: &'a Leases,
    asked: &AskedPath<'_>,
    kept_aside: bool,
) -> Result<&'a Item<LeasePath>, String> {
    let shown = Printable::new(asked.path);
    let denied = leases.paths.iter().find(|part| {
        // A denied path must not come along with what is around it either; denied for reading
        // is denied for writing.
        let LeasePath { path, right, mark } = &part.what;
        *mark == Mark::Deny
            && *right <= asked.right
            && (asked.path.starts_with(path) || path.starts_with(asked.path))
    });
    if let Some(part) = denied {
        return Err(format!(
            "the ceiling denies {} ({})",
            Printable::new(&part.what.path),
            Printable::new(&part.origin)
        ));
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
    let kept_back = marked(Mark::Ask).find(|part| {
        let LeasePath { path, right, .. } = &part.what;
        let heard = !kept_aside || *right == Right::Write;
        heard
            && *right <= asked.right
            && (asked.path.starts_with(path) || path.starts_with(asked.path))
    });
    let found = match (marked(Mark::Auto).find(gives), kept_back) {
        (Some(auto), None) => Some(auto),
        (Some(_), Some(ask)) => Some(ask),
        (None, _) => marked(Mark::Ask).find(gives),
    };
    // What a person has approved for good is asked for no more.
    let asks = found.is_some_and(|part| part.what.mark == Mark::Ask);
    let found = marked(Mark::Always).find(gives).filter(|_| asks).or(found);
    found.ok_or_else(|| {
        format!(
            "to {} {shown} is outside of the cage's ceiling; its policy would have to name it in [ceiling.ask.files]",
            asked.right.name()
        )
    })
}
