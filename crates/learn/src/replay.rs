//! Replays a logged run against another policy: what would be denied, allowed or asked now.

use crate::draft::Host;
use crate::observed_run::ObservedRun;
use ironcage_egress::simulate;
use ironcage_lease::{Decision, History, RequestedLease, RequestedResource, decide};
use ironcage_model::{
    LeaseOrigin, Mark, NetworkReason, NetworkVerdict, Observation, Printable, Protocol, Resource,
    Right, Traffic, Use,
};
use ironcage_plan::{PathStatus, Plan, locate};
use ironcage_policy::{Policy, Reach};
use std::path::Path;

/// What is said to something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Allowed,
    /// A person has to say so.
    Asked,
    Refused,
}

impl Verdict {
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Allowed => "allowed",
            Verdict::Asked => "asked",
            Verdict::Refused => "refused",
        }
    }
}

/// Something of a recorded run that another policy would say something else to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub what: String,
    /// What was said then.
    pub was: Verdict,
    /// What would be said now.
    pub now: Verdict,
    /// Why, where there is more to say.
    pub why: String,
}

/// What came of a replay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replayed {
    /// How many things were looked at.
    pub looked: usize,
    /// Those that differ.
    pub changes: Vec<Change>,
}

impl Replayed {
    /// Whether something that worked would not work without a person any more.
    pub fn breaks(&self) -> bool {
        self.changes.iter().any(|change| change.now > change.was)
    }

    fn look(&mut self, what: String, was: Verdict, now: Verdict, why: impl Into<String>) {
        self.looked += 1;
        if was != now {
            self.changes.push(Change {
                what,
                was,
                now,
                why: why.into(),
            });
        }
    }
}

/// Replays a record against a policy and the plan that it makes of the same command.
pub fn replay(record: &ObservedRun, policy: &Policy, plan: &Plan, host: &dyn Host) -> Replayed {
    let mut replayed = Replayed::default();
    for seen in &record.seen {
        match seen.how {
            Use::Call => call(seen, plan, &mut replayed),
            Use::Connect => {}
            _ => path(record, seen, (policy, plan, host), &mut replayed),
        }
    }
    for traffic in &record.traffic {
        connection(traffic, policy, plan, &mut replayed);
    }
    for (name, refused) in &record.denied {
        let programs: Vec<&str> = refused.programs.iter().map(String::as_str).collect();
        let what = format!("call {} by {}", shown(name), shown(&programs.join(", ")));
        replayed.look(what, Verdict::Refused, calls(plan, name), "");
    }
    for lease in &record.leases {
        let (now, why) = lease_now(&lease.resource, policy, plan, lease.scope);
        // A granted lease counts as allowed, even if it would need approval again.
        let now = now.max(Verdict::Allowed);
        let was = match lease.approver {
            ironcage_model::Approver::Policy => Verdict::Allowed,
            _ => Verdict::Asked,
        };
        replayed.look(format!("lease on {}", lease.resource), was, now, why);
    }
    let usage = record.usage.clone().unwrap_or_default();
    for (what, most, bound) in [
        ("bytes of memory", usage.memory, &plan.bounds.memory),
        ("processes", usage.pids, &plan.bounds.pids),
    ] {
        if let Some(most) = most {
            let within = most <= bound.what.value;
            let now = [Verdict::Refused, Verdict::Allowed][usize::from(within)];
            let why = format!("the limit is {}", bound.what.value);
            replayed.look(format!("{most} {what}"), Verdict::Allowed, now, why);
        }
    }
    replayed
}

fn shown(text: &str) -> String {
    Printable::new(text).to_string()
}

fn calls(plan: &Plan, name: &str) -> Verdict {
    let rules = plan.seccomp.rules();
    let rule = rules.iter().find(|rule| rule.syscall == name);
    match rule.is_some_and(|rule| rule.verdict == "allow") {
        true => Verdict::Allowed,
        false => Verdict::Refused,
    }
}

fn call(seen: &Observation, plan: &Plan, replayed: &mut Replayed) {
    let what = format!("call {} by {}", shown(&seen.what), shown(&seen.program));
    let now = calls(plan, &seen.what);
    replayed.look(what, Verdict::Allowed, now, "no group allows it");
}

fn path(
    record: &ObservedRun,
    seen: &Observation,
    (policy, plan, host): (&Policy, &Plan, &dyn Host),
    replayed: &mut Replayed,
) {
    let path = Path::new(&seen.what);
    let standing = locate(plan, path).standing;
    let right = match seen.how {
        Use::Write => Right::Write,
        _ => Right::Read,
    };
    let made = || {
        record.seen.iter().any(|other| {
            other.how == Use::Write && other.found && path.starts_with(Path::new(&other.what))
        })
    };
    let given = match (right, &standing) {
        (Right::Write, standing) => standing.is_writable(),
        (Right::Read, PathStatus::Absent | PathStatus::Leads | PathStatus::Hidden) => false,
        // Nothing is there but what the run makes itself.
        (Right::Read, PathStatus::Ephemeral) => made(),
        (Right::Read, _) => true,
    };
    let was = match seen.found {
        true => Verdict::Allowed,
        false => Verdict::Refused,
    };
    // What is not there at all is missing with every policy.
    let missing = !seen.found && right == Right::Read && host.kind(path).is_none();
    let reach = |mark| Reach::through(policy, &plan.workspace, mark).path(path, right);
    let now = match given {
        _ if missing => was,
        true => Verdict::Allowed,
        false if reach(Mark::Auto) => Verdict::Allowed,
        false if reach(Mark::Ask) => Verdict::Asked,
        false => Verdict::Refused,
    };
    let below = if seen.below { " and below" } else { "" };
    let what = format!(
        "{} {}{below} by {}",
        seen.how.name(),
        shown(&seen.what),
        shown(&seen.program)
    );
    replayed.look(what, was, now, "");
}

fn connection(traffic: &Traffic, policy: &Policy, plan: &Plan, replayed: &mut Replayed) {
    let was = match traffic.verdict {
        NetworkVerdict::Allowed => Verdict::Allowed,
        NetworkVerdict::Denied => Verdict::Refused,
    };
    let said = match &plan.network {
        Some(network) => simulate(network, traffic),
        None => Err(NetworkReason::NoNetwork),
    };
    let (mut now, why) = match said {
        Ok(rule) => (Verdict::Allowed, rule),
        Err(why) => (Verdict::Refused, why.to_string()),
    };
    if now == Verdict::Refused
        && let Some(rule) = crate::hosts::rule(&traffic.host, traffic.port)
    {
        let wanted = Resource::Host { rule };
        let through = |mark| Reach::through(policy, &plan.workspace, mark).gives(&wanted);
        if through(Mark::Auto) {
            now = Verdict::Allowed;
        } else if through(Mark::Ask) {
            now = Verdict::Asked;
        }
    }
    let request = traffic.request.as_deref().map(shown);
    let request = request.map_or_else(String::new, |request| format!(" {request}"));
    let what = match traffic.protocol {
        Protocol::Dns => format!("resolve the name {}", shown(&traffic.host)),
        Protocol::Unix => format!("connect to {}", shown(&traffic.host)),
        _ => format!(
            "connect to {}:{}{request}",
            shown(&traffic.host),
            traffic.port
        ),
    };
    replayed.look(what, was, now, why);
}

fn lease_now(
    resource: &Resource,
    policy: &Policy,
    plan: &Plan,
    scope: ironcage_model::Scope,
) -> (Verdict, String) {
    if let Resource::Path { path, right } = resource {
        let path = Path::new(path);
        let through = |mark| Reach::through(policy, &plan.workspace, mark).path(path, *right);
        return match (through(Mark::Auto), through(Mark::Ask)) {
            (true, _) => (Verdict::Allowed, String::new()),
            (false, true) => (Verdict::Asked, String::new()),
            (false, false) => (Verdict::Refused, "not in the ceiling".into()),
        };
    }
    let asked = RequestedLease {
        what: RequestedResource::Other(resource),
        term: ironcage_model::Term::UntilRevoked,
        uses: None,
        scope,
        origin: LeaseOrigin::ToolCall,
        approved: false,
    };
    match decide(plan, &asked, &History::default()) {
        Decision::Granted(terms) => (Verdict::Allowed, terms.reason),
        Decision::InBase { reason } => (Verdict::Allowed, reason.to_string()),
        Decision::Pending { reason, .. } => (Verdict::Asked, reason.to_string()),
        Decision::Denied { reason } => (Verdict::Refused, reason.to_string()),
    }
}
