//! Forecasts the permission requests of commands under a plan, without running any: for the bench.

use crate::intents::in_base;
use crate::needed::{Names, Need, Needed, Nesting};
use ironcage_lease::{Decision, History, RequestedLease, RequestedPath, RequestedResource, decide};
use ironcage_model::{Contact, LeaseOrigin, Resource, Right, Scope, Taint, Term};
use ironcage_plan::Plan;
use std::path::PathBuf;

/// What a command would come to.
#[derive(Debug, Default)]
pub struct Forecast {
    /// What would be given at once.
    pub given: Vec<Resource>,
    /// What a person would be asked for.
    pub asked: Vec<Resource>,
    /// What nobody could give.
    pub refused: Vec<Resource>,
}

/// Decides what a command would get that names these things, as it is decided for a shell's
/// command in a cage with this plan. Nothing is opened, asked or put on record.
pub fn forecast(
    plan: &Plan,
    reads: Vec<PathBuf>,
    writes: Vec<PathBuf>,
    contacts: Vec<Contact>,
) -> Forecast {
    let names = Names {
        reads,
        writes,
        contacts,
    };
    let needed = Needed::of(plan, &names, Nesting::Allowed);
    let mut forecast = Forecast {
        refused: needed.refused.into_iter().map(|one| one.resource).collect(),
        ..Forecast::default()
    };
    for need in needed.needs {
        let resource = need.resource();
        if matches!(&need, Need::Host(rule) if in_base(plan, rule)) {
            continue;
        }
        let right = match &resource {
            Resource::Path { right, .. } => *right,
            _ => Right::Read,
        };
        let seen = match need.look() {
            None => None,
            Some(Ok(seen)) => Some((seen, right)),
            Some(Err(_)) => {
                forecast.refused.push(resource);
                continue;
            }
        };
        let what = match &seen {
            Some((seen, right)) => RequestedResource::Path(RequestedPath {
                path: &seen.path,
                right: *right,
                facts: seen.facts.clone(),
            }),
            None => RequestedResource::Other(&resource),
        };
        let asked = RequestedLease {
            what,
            term: Term::UntilRevoked,
            uses: None,
            scope: Scope::Exec { number: 1 },
            origin: LeaseOrigin::Shell,
            approved: false,
        };
        let history = History {
            open: Vec::new(),
            asked: 0,
            distrusted: false,
            unannounced: false,
            judge_asks: None,
            taint: plan
                .taint
                .as_ref()
                .map_or(Taint::NONE, |marking| marking.start),
        };
        match decide(plan, &asked, &history) {
            Decision::Granted(_) => forecast.given.push(resource),
            Decision::Pending { .. } => forecast.asked.push(resource),
            Decision::Denied { .. } => forecast.refused.push(resource),
            Decision::InBase { .. } => {}
        }
    }
    forecast
}
