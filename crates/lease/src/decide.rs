//! The decision.

use crate::history::{History, MOST_ASKED, MOST_OPEN};
use crate::paths::AskedPath;
use crate::rules::{Case, Choice, Marks, Rules};
use crate::{others, paths};
use ironcage_model::{Approver, Extent, LeaseOrigin, Mark, Printable, Resource, Scope, Term};
use ironcage_plan::Plan;
use std::path::Path;
use std::time::Duration;

/// A request for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked<'a> {
    /// What is asked for.
    pub what: Wanted<'a>,
    /// For how long.
    pub term: Term,
    /// How many times it is to be used, where that matters.
    pub uses: Option<u32>,
    /// For whom.
    pub scope: Scope,
    /// Who asks. All but the operator may say what an attacker wants.
    pub origin: LeaseOrigin,
    /// Whether a person has been asked, and has said yes to this.
    pub approved: bool,
}

impl Asked<'_> {
    /// Whether a person stands behind it.
    fn is_wished(&self) -> bool {
        self.approved || self.origin == LeaseOrigin::Operator
    }
}

/// What a lease is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// A path.
    Path(AskedPath<'a>),
    /// Anything else.
    Other(&'a Resource),
}

/// A lease that may be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// What it is about.
    pub resource: Resource,
    /// How long it lives: what was asked for, or less.
    pub term: Term,
    /// How many times it can be used.
    pub uses: Option<u32>,
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

/// Why no part of the ceiling is looked for, or none is found.
#[derive(Debug)]
pub(crate) enum NotGiven {
    /// The cage has it anyway.
    Base(String),
    /// It is not given.
    Refused(String),
}

impl NotGiven {
    pub(crate) fn refused(reason: impl Into<String>) -> Self {
        NotGiven::Refused(reason.into())
    }
}

/// Decides whether a cage with this plan gets what is asked for, by the ceiling's own marks.
pub fn decide(plan: &Plan, asked: &Asked<'_>, history: &History) -> Decision {
    let ruled = plan.leases.as_ref().and_then(|leases| leases.cedar.first());
    if let Some(rules) = ruled {
        return refuse(format!(
            "the policy has rules in Cedar for this ({}), and they are not looked at here",
            Printable::new(&rules.origin)
        ));
    }
    decide_by(plan, asked, history, &Marks)
}

/// Decides whether a cage with this plan gets what is asked for, with rules that choose between
/// giving, asking and refusing. What is in no part of the ceiling they are not even asked about.
pub fn decide_by(plan: &Plan, asked: &Asked<'_>, history: &History, rules: &dyn Rules) -> Decision {
    let Some(leases) = &plan.leases else {
        return refuse(
            "the cage's policy has no ceiling, so nothing can be given to it while it runs; write [ceiling.ask.files], [ceiling.ask.network] or another part into its policy and start it again",
        );
    };
    if !asked.is_wished() && history.asked >= MOST_ASKED {
        return refuse(format!(
            "more than {MOST_ASKED} requests came within a second"
        ));
    }
    let found = match &asked.what {
        Wanted::Path(wanted) => paths::find(plan, leases, wanted, asked),
        Wanted::Other(wanted) => others::find(plan, leases, wanted, asked),
    };
    let (resource, part) = match found {
        Ok(found) => found,
        Err(NotGiven::Base(reason)) => return Decision::Base { reason },
        Err(NotGiven::Refused(reason)) => return Decision::Refuse { reason },
    };
    if let Some(other) = history
        .open
        .iter()
        .find(|lease| overlaps(&lease.resource, &resource))
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
    let case = Case {
        plan,
        asked,
        history,
        resource: &resource,
    };
    let Choice { mark, reason } = rules.choose(&case).unwrap_or_else(|| Choice {
        mark: part.mark,
        reason: match part.mark {
            Mark::Ask if !asked.is_wished() => {
                format!("the ceiling asks first for {resource} ({from})")
            }
            mark => format!("in the ceiling as {} ({from})", mark.name()),
        },
    });
    let against = match mark {
        // By a rule: no part that denies is found.
        Mark::Deny => return refuse(reason),
        Mark::Ask => Some(reason.clone()),
        Mark::Always | Mark::Auto if history.distrusted => Some(format!(
            "what the cage did differs from what its model said, so {resource} is asked for first"
        )),
        Mark::Always | Mark::Auto if history.unannounced => Some(format!(
            "the model's words name other places and not this one, so {resource} is asked for first"
        )),
        Mark::Always | Mark::Auto if could_leak(plan, &resource, history) => Some(format!(
            "private data and untrusted content {} (`ironcage why` says by what), so {resource}, by which something could leave it, is asked for first",
            match history.taint.meets() {
                true => "meet in this cage",
                false => "would meet by it in this cage",
            }
        )),
        Mark::Always | Mark::Auto => None,
    };
    let approver = match (against, asked.is_wished()) {
        (None, _) => Approver::Policy,
        (Some(_), true) => Approver::Operator,
        (Some(reason), false) => return Decision::Ask { reason },
    };
    Decision::Give {
        reason,
        given: Given {
            resource,
            term: shortened(asked.term, leases.longest),
            uses: asked.uses,
            approver,
        },
    }
}

/// Whether something could leave the cage by this, in which private data and untrusted content
/// have met, or would by it.
fn could_leak(plan: &Plan, resource: &Resource, history: &History) -> bool {
    let asks = plan.taint.as_ref().is_some_and(|marking| marking.ask);
    asks && resource.leads_out() && history.taint.with(plan.taint_of(resource)).meets()
}

/// The part of the ceiling that decides.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) mark: Mark,
    pub(crate) origin: String,
}

/// Whether two leases cannot be open at once: neither could be ended without the other.
pub fn overlaps(open: &Resource, wanted: &Resource) -> bool {
    match (open, wanted) {
        (Resource::Path { path: open, .. }, Resource::Path { path, .. }) => {
            let (open, path) = (Path::new(open), Path::new(path));
            open.starts_with(path) || path.starts_with(open)
        }
        (Resource::Limit { limit: open, .. }, Resource::Limit { limit, .. }) => open == limit,
        (Resource::Port { publish: open }, Resource::Port { publish }) => {
            open.outer == publish.outer && open.outer != 0
        }
        // Requests that are listed for a host are all that it gets.
        (Resource::Host { rule }, other @ Resource::Http { .. })
        | (other @ Resource::Http { .. }, Resource::Host { rule }) => {
            Extent::Host(rule.clone()).meets(other)
        }
        (open, wanted) => open == wanted,
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
