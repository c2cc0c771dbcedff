//! The decision.

use crate::history::{History, MOST_ASKED, MOST_OPEN};
use ironcage_model::{Approver, LeaseOrigin, Mark, Printable, Resource, Right, Term};
use ironcage_plan::{Item, LeasePath, Leases, Plan, Standing, locate};
use std::path::{Component, Path};
use std::time::Duration;

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

/// A request for a lease on a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked<'a> {
    /// The real path, as the kernel tells it for the descriptor.
    pub path: &'a Path,
    /// What is to be done with it.
    pub right: Right,
    /// For how long.
    pub term: Term,
    /// Who asks.
    pub origin: LeaseOrigin,
    /// What was seen.
    pub facts: Facts,
}

/// A lease that may be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// What it is about.
    pub resource: Resource,
    /// How long it lives: what was asked for, or less.
    pub term: Term,
    /// Who allowed it.
    pub approver: Approver,
}

/// What was decided. The texts are for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It is given.
    Give {
        /// What exactly.
        given: Given,
        /// Why.
        reason: String,
    },
    /// The cage has it anyway.
    Base {
        /// By which part of its plan.
        reason: String,
    },
    /// A person has to say so.
    Ask {
        /// Why.
        reason: String,
    },
    /// It is not given.
    Refuse {
        /// Why, and what to do.
        reason: String,
    },
}

fn refuse(reason: impl Into<String>) -> Decision {
    Decision::Refuse {
        reason: reason.into(),
    }
}

/// Decides whether a cage with this plan gets what is asked for.
pub fn decide(plan: &Plan, asked: &Asked<'_>, history: &History) -> Decision {
    let Some(leases) = &plan.leases else {
        return refuse(
            "the cage's policy has no ceiling, so nothing can be given to it while it runs; write [ceiling.ask.files] into its policy and start it again",
        );
    };
    if asked.origin != LeaseOrigin::Operator && history.asked >= MOST_ASKED {
        return refuse(format!(
            "more than {MOST_ASKED} requests came within a second"
        ));
    }
    let shown = Printable::new(asked.path);
    let Some(path) = asked.path.to_str() else {
        return refuse("its name is not text; lease the directory around it");
    };
    if !is_real(asked.path) {
        return refuse("it is no absolute path without `.` and `..`");
    }
    if asked.facts.node == Node::Other {
        return refuse("sockets, pipes and devices of the host are not given as files");
    }
    if let Some(why) = leases.never(asked.path, asked.right) {
        return refuse(format!("{shown} is never given: {why}"));
    }
    if asked.right == Right::Write
        && let Some(name) = &asked.facts.executed
    {
        return refuse(format!(
            "there is {} in it, which the host executes or trusts; lease a directory beside that",
            Printable::new(name)
        ));
    }
    if let Some(decided) = by_base(plan, leases, asked) {
        return decided;
    }
    let part = match strictest(leases, asked) {
        Ok(part) => part,
        Err(reason) => return refuse(reason),
    };
    if let Some(other) = history
        .open
        .iter()
        .find(|lease| overlaps(&lease.resource, asked.path))
    {
        return refuse(format!(
            "lease {} ({}) overlaps with it; revoke that first",
            other.number, other.resource
        ));
    }
    if history.open.len() >= MOST_OPEN {
        return refuse(format!(
            "{MOST_OPEN} leases are open in this cage; revoke some"
        ));
    }
    let from = Printable::new(&part.origin);
    let approver = match (part.what.mark, asked.origin) {
        (Mark::Auto, _) => Approver::Policy,
        (Mark::Ask, LeaseOrigin::Operator) => Approver::Operator,
        (Mark::Ask, LeaseOrigin::ToolCall) => {
            return Decision::Ask {
                reason: format!("the ceiling asks first for {shown} ({from})"),
            };
        }
        // `strictest` has refused it.
        (Mark::Deny, _) => return refuse("the ceiling denies it"),
    };
    Decision::Give {
        given: Given {
            resource: Resource::Path {
                path: path.to_owned(),
                right: asked.right,
            },
            term: shortened(asked.term, leases.longest),
            approver,
        },
        reason: format!("in the ceiling as {} ({from})", part.what.mark.name()),
    }
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
fn by_base(plan: &Plan, leases: &Leases, asked: &Asked<'_>) -> Option<Decision> {
    let located = locate(plan, asked.path);
    let by = located.origin.as_deref().unwrap_or("built in");
    let by = Printable::new(by).to_string();
    let write = asked.right == Right::Write;
    match located.standing {
        Standing::Writable(_) | Standing::CopyOnWrite(_) => Some(Decision::Base {
            reason: format!("the cage can {} it anyway ({by})", asked.right.name()),
        }),
        Standing::ReadOnly(_) if !write => Some(Decision::Base {
            reason: format!("the cage can read it anyway ({by})"),
        }),
        Standing::ReadOnly(_)
            if asked.path.starts_with(&plan.workspace) && !leases.real_workspace =>
        {
            Some(refuse(
                "the workspace is read-only, and a lease in it would write to the real files; start the cage with --workspace cow or direct",
            ))
        }
        Standing::Protected | Standing::Hidden | Standing::Device | Standing::Kernel => {
            Some(refuse(format!("the cage's plan closes it ({by})")))
        }
        Standing::Absent
        | Standing::Leads
        | Standing::Made
        | Standing::Ephemeral
        | Standing::ReadOnly(_) => None,
    }
}

/// The part of the ceiling that decides. A part gives what is no more than its own right, and
/// keeps back what is no less.
fn strictest<'a>(leases: &'a Leases, asked: &Asked<'_>) -> Result<&'a Item<LeasePath>, String> {
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
        *right <= asked.right && (asked.path.starts_with(path) || path.starts_with(asked.path))
    });
    let found = match (marked(Mark::Auto).find(gives), kept_back) {
        (Some(auto), None) => Some(auto),
        (Some(_), Some(ask)) => Some(ask),
        (None, _) => marked(Mark::Ask).find(gives),
    };
    found.ok_or_else(|| {
        format!(
            "to {} {shown} is outside of the cage's ceiling; its policy would have to name it in [ceiling.ask.files]",
            asked.right.name()
        )
    })
}

fn overlaps(resource: &Resource, path: &Path) -> bool {
    match resource {
        Resource::Path { path: open, .. } => {
            let open = Path::new(open);
            open.starts_with(path) || path.starts_with(open)
        }
    }
}

fn shortened(term: Term, longest: Option<Duration>) -> Term {
    let Some(longest) = longest else {
        return term;
    };
    let longest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
    match term {
        Term::Milliseconds(asked) => Term::Milliseconds(asked.min(longest)),
        Term::UntilRevoked => Term::Milliseconds(longest),
    }
}
