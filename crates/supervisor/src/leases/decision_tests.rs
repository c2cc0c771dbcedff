//! Decisions on requests, with a plan for a host that exists only here.

use super::*;

#[path = "../../../plan/tests/made_up/mod.rs"]
mod made_up;

use ironcage_control::LeaseTarget;
use ironcage_host::Privilege;
use ironcage_layers::live::Identity;
use ironcage_lease::{Facts, Node};
use ironcage_model::{Approver, Mark, Reason, Right, Term};
use ironcage_plan::{Item, LeasePath};
use ironcage_policy::FlagLayer;
use made_up::{host, plan_of, request};

const INSIDE: Requester = Requester::Inside(1);
const WORKSPACE: &str = "/home/ann/project";

fn plan() -> Plan {
    let (flags, host) = (FlagLayer::default(), host(Privilege::User));
    let mut plan = plan_of("coding-agent", flags, &request(), &host).unwrap();
    let part = |path: &str, mark| Item {
        what: LeasePath {
            path: path.into(),
            right: Right::Read,
            mark,
        },
        origin: "test".into(),
    };
    let leases = plan.leases.as_mut().unwrap();
    leases.paths = vec![
        part("/srv/auto", Mark::Auto),
        part("/srv/ask", Mark::Ask),
        part("/srv/deny", Mark::Deny),
    ];
    plan
}

fn facts(plan: &Plan) -> RequestFacts<'_> {
    RequestFacts {
        plan,
        open: Vec::new(),
        covering: None,
        asked: 0,
        distrusted: false,
        taint: Taint::NONE,
        stopping: false,
        clone_in_progress: false,
    }
}

fn decided(
    path: &str,
    (by, origin): (Requester, LeaseOrigin),
    facts: RequestFacts<'_>,
) -> RequestDecision {
    let grant = GrantRequest {
        wanted: LeaseTarget::Path { right: Right::Read },
        term: Term::Milliseconds(1000),
        uses: None,
        reason: "test".into(),
    };
    let directory = std::fs::File::open("/").unwrap();
    let subject = LeaseSubject {
        resource: Resource::Path {
            path: path.into(),
            right: Right::Read,
        },
        seen: Some(crate::leases::SeenPath {
            path: path.into(),
            identity: Identity::of(std::os::fd::AsFd::as_fd(&directory)).unwrap(),
            facts: Facts {
                node: Node::Directory,
                executed: None,
            },
            name: None,
        }),
    };
    let target = RequestTarget {
        by,
        origin,
        grant: &grant,
        subject: &subject,
        unannounced: false,
    };
    decide_request(&target, facts)
}

const AGENT: (Requester, LeaseOrigin) = (INSIDE, LeaseOrigin::Ask);

fn lease(path: &str) -> Lease {
    Lease {
        number: 4,
        resource: Resource::Path {
            path: path.into(),
            right: Right::Read,
        },
        scope: Scope::Cage,
        term: Term::UntilRevoked,
        uses: None,
        reason: String::new(),
        origin: LeaseOrigin::Ask,
        approver: Approver::Policy,
    }
}

fn code(decision: &RequestDecision) -> Option<&str> {
    match decision {
        LeaseOutcome::Denied { reason } => reason.code(),
        other => panic!("{other:?}"),
    }
}

fn is_new(decision: &RequestDecision) -> bool {
    matches!(decision, LeaseOutcome::Granted(RequestGrant::New(_)))
}

#[test]
fn the_marks_of_the_ceiling_decide_and_an_approval_counts_as_the_answer() {
    let plan = plan();
    assert!(is_new(&decided("/srv/auto/x", AGENT, facts(&plan))));
    let asked = decided("/srv/ask/x", AGENT, facts(&plan));
    assert!(matches!(asked, LeaseOutcome::Pending { .. }), "{asked:?}");
    let approved = (Requester::Approved(1), LeaseOrigin::Ask);
    assert!(is_new(&decided("/srv/ask/x", approved, facts(&plan))));
    for by in [AGENT, approved] {
        let denied = decided("/srv/deny/x", by, facts(&plan));
        assert!(matches!(denied, LeaseOutcome::Denied { .. }), "{denied:?}");
    }
}

#[test]
fn an_open_lease_answers_the_agent_and_the_operator_gets_one_of_their_own() {
    let plan = plan();
    let with = || RequestFacts {
        covering: Some(lease("/srv/auto")),
        ..facts(&plan)
    };
    let again = decided("/srv/auto/x", AGENT, with());
    let open = RequestGrant::AlreadyOpen(lease("/srv/auto"));
    assert_eq!(again, LeaseOutcome::Granted(open));
    let operator = (Requester::Client(1), LeaseOrigin::Operator);
    assert!(is_new(&decided("/srv/auto/x", operator, with())));
}

#[test]
fn a_distrusted_cage_gets_nothing_at_once() {
    let plan = plan();
    let distrusted = RequestFacts {
        distrusted: true,
        ..facts(&plan)
    };
    let decision = decided("/srv/auto/x", AGENT, distrusted);
    assert!(
        matches!(decision, LeaseOutcome::Pending { .. }),
        "{decision:?}"
    );
}

#[test]
fn a_stopping_cage_opens_no_lease() {
    let plan = plan();
    let stopping = || RequestFacts {
        stopping: true,
        ..facts(&plan)
    };
    let decision = decided("/srv/auto/x", AGENT, stopping());
    let stops = Reason::from(SupervisorReason::Stopping);
    assert_eq!(code(&decision), stops.code());
    // What the ceiling denies is denied for that reason.
    let denied = decided("/srv/deny/x", AGENT, stopping());
    assert_ne!(code(&denied), stops.code());
}

#[test]
fn no_lease_opens_in_a_shared_place_while_a_scope_starts_there() {
    let mut plan = plan();
    let inside = format!("{WORKSPACE}/.env");
    let leases = plan.leases.as_mut().unwrap();
    leases.paths.push(Item {
        what: LeasePath {
            path: WORKSPACE.into(),
            right: Right::Read,
            mark: Mark::Auto,
        },
        origin: "test".into(),
    });
    let starting = || RequestFacts {
        clone_in_progress: true,
        ..facts(&plan)
    };
    let decision = decided(&inside, AGENT, starting());
    if !matches!(decision, LeaseOutcome::InBase { .. }) {
        let busy = Reason::from(LeaseReason::StartInProgress);
        assert_eq!(code(&decision), busy.code());
    }
    assert!(is_new(&decided("/srv/auto/x", AGENT, starting())));
}

#[test]
fn requests_without_end_are_denied_to_the_agent_alone() {
    let plan = plan();
    let many = || RequestFacts {
        asked: u32::MAX,
        ..facts(&plan)
    };
    let decision = decided("/srv/auto/x", AGENT, many());
    assert!(
        matches!(decision, LeaseOutcome::Denied { .. }),
        "{decision:?}"
    );
    let operator = (Requester::Client(1), LeaseOrigin::Operator);
    assert!(is_new(&decided("/srv/auto/x", operator, many())));
}
