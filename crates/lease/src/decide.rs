//! Decides whether a cage gets a lease.

use crate::history::{History, MOST_ASKED, MOST_OPEN, MOST_OPEN_BY_AGENT};
use crate::paths::RequestedPath;
use crate::rules::{Case, Choice, Marks, Rules};
use crate::{others, paths};
use ironcage_model::{
    Approver, Extent, LeaseOrigin, LeaseOutcome, LeaseReason, Mark, Printable, Resource, Scope,
    Term,
};
use ironcage_plan::Plan;
use std::path::Path;
use std::time::Duration;

/// A request for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedLease<'a> {
    pub what: RequestedResource<'a>,
    /// For how long.
    pub term: Term,
    /// How many times it is to be used, where that matters.
    pub uses: Option<u32>,
    pub scope: Scope,
    /// Who asks. All but the operator may say what an attacker wants.
    pub origin: LeaseOrigin,
    /// Whether a person has been asked, and has said yes to this.
    pub approved: bool,
}

impl RequestedLease<'_> {
    /// Whether a person stands behind it.
    fn is_wished(&self) -> bool {
        self.approved || self.origin == LeaseOrigin::Operator
    }
}

/// What a lease is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestedResource<'a> {
    Path(RequestedPath<'a>),
    Other(&'a Resource),
}

/// What a lease that is given is given for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseTerms {
    pub resource: Resource,
    /// How long it lives: what was asked for, or less.
    pub term: Term,
    /// How many times it can be used.
    pub uses: Option<u32>,
    pub approver: Approver,
    pub reason: String,
}

/// What was decided. A permission request has no number yet.
pub type Decision = LeaseOutcome<LeaseTerms, ()>;

/// Why no part of the ceiling is looked for, or none is found.
#[derive(Debug)]
pub(crate) enum NotGranted {
    /// The cage has it anyway.
    Base(LeaseReason),
    Refused(LeaseReason),
}

impl From<LeaseReason> for NotGranted {
    fn from(reason: LeaseReason) -> Self {
        NotGranted::Refused(reason)
    }
}

/// Decides whether a cage with this plan gets what is asked for: by the plan's rules where it has
/// some, else by the ceiling's own marks.
pub fn decide(plan: &Plan, asked: &RequestedLease<'_>, history: &History) -> Decision {
    #[cfg(feature = "cedar")]
    if let Some(leases) = &plan.leases
        && !leases.cedar.is_empty()
    {
        return crate::cedar::with(&leases.cedar, |rules| {
            decide_by(plan, asked, history, rules)
        });
    }
    // Which refuses everything where there are rules.
    decide_by_marks(plan, asked, history)
}

/// Decides by the ceiling's own marks alone.
pub fn decide_by_marks(plan: &Plan, asked: &RequestedLease<'_>, history: &History) -> Decision {
    let ruled = plan.leases.as_ref().and_then(|leases| leases.cedar.first());
    if let Some(rules) = ruled {
        return Decision::denied(LeaseReason::RulesNotEvaluated {
            origin: rules.origin.clone(),
        });
    }
    decide_by(plan, asked, history, &Marks)
}

/// Decides whether a cage with this plan gets what is asked for. The rules choose between granting,
/// asking and denying, and never see a request that is outside the ceiling.
pub fn decide_by(
    plan: &Plan,
    asked: &RequestedLease<'_>,
    history: &History,
    rules: &dyn Rules,
) -> Decision {
    let Some(leases) = &plan.leases else {
        return Decision::denied(LeaseReason::NoCeiling);
    };
    if !asked.is_wished() && history.asked >= MOST_ASKED {
        return Decision::denied(LeaseReason::TooManyRequests {
            limit: MOST_ASKED.into(),
        });
    }
    let found = match &asked.what {
        RequestedResource::Path(wanted) => paths::find(plan, leases, wanted, asked),
        RequestedResource::Other(wanted) => others::find(plan, leases, wanted, asked),
    };
    let (resource, part) = match found {
        Ok(found) => found,
        Err(NotGranted::Base(reason)) => {
            let reason = reason.into();
            return Decision::InBase { reason };
        }
        Err(NotGranted::Refused(reason)) => return Decision::denied(reason),
    };
    if let Some(other) = history
        .open
        .iter()
        .find(|lease| overlaps(&lease.resource, &resource))
    {
        return Decision::denied(LeaseReason::Overlaps {
            lease: other.number.into(),
            resource: other.resource.to_string(),
        });
    }
    let most = match asked.is_wished() {
        true => MOST_OPEN,
        false => MOST_OPEN_BY_AGENT,
    };
    if history.open.len() >= most {
        return Decision::denied(LeaseReason::TooManyOpen { limit: most as u64 });
    }
    let case = Case {
        plan,
        asked,
        history,
        resource: &resource,
    };
    let (mark, ruled) = match rules.choose(&case) {
        Some(Choice { mark, reason }) => (mark, Some(reason)),
        None => (part.mark, None),
    };
    let named = || resource.to_string();
    let outside_task = match asked.origin {
        LeaseOrigin::Operator => None,
        _ => crate::task::outside(plan, leases, &resource),
    };
    let against = match (mark, &ruled) {
        // By a rule: no part that denies is found.
        (Mark::Deny, _) => {
            let said = ruled.unwrap_or_default();
            return Decision::denied(LeaseReason::DeniedByRule { said });
        }
        (Mark::Ask, Some(said)) => Some(LeaseReason::ApprovalByRule { said: said.clone() }),
        (Mark::Ask, None) => Some(LeaseReason::ApprovalRequired {
            resource: named(),
            origin: part.origin.clone(),
        }),
        (Mark::Always | Mark::Auto, _) if history.distrusted => {
            Some(LeaseReason::ApprovalAfterDrift { resource: named() })
        }
        (Mark::Always | Mark::Auto, _) if outside_task.is_some() => {
            let task = outside_task.unwrap_or_default();
            let resource = named();
            Some(LeaseReason::ApprovalOutsideTask { resource, task })
        }
        (Mark::Always | Mark::Auto, _) if history.unannounced => {
            Some(LeaseReason::ApprovalUnannounced { resource: named() })
        }
        (Mark::Always | Mark::Auto, _) if history.judge_asks.is_some() => {
            let said = history.judge_asks.clone().unwrap_or_default();
            let resource = named();
            Some(LeaseReason::ApprovalByJudge { resource, said })
        }
        (Mark::Always | Mark::Auto, _) if could_leak(plan, &resource, history) => {
            Some(LeaseReason::ApprovalCouldLeak {
                resource: named(),
                when: match history.taint.meets() {
                    true => "are both in this cage".into(),
                    false => "would both be in this cage with it".into(),
                },
            })
        }
        (Mark::Always | Mark::Auto, _) => None,
    };
    let approver = match (against, asked.is_wished()) {
        (None, _) => Approver::Policy,
        (Some(_), true) => Approver::Operator,
        (Some(reason), false) => {
            return Decision::Pending {
                question: (),
                reason: reason.into(),
            };
        }
    };
    let by_mark = || {
        format!(
            "in the ceiling as {} ({})",
            mark.name(),
            Printable::new(&part.origin)
        )
    };
    Decision::Granted(LeaseTerms {
        resource,
        term: shortened(asked.term, leases.longest),
        uses: asked.uses,
        approver,
        reason: ruled.unwrap_or_else(by_mark),
    })
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
