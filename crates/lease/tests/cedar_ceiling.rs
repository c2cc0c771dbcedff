//! With whatever rules, no sequence of requests, however hostile, yields anything outside of the
//! ceiling.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod made;

use ironcage_lease::{
    Decision, History, RequestedLease, RequestedResource, decide, decide_by_marks,
};
use ironcage_model::{Approver, Extent, Lease, LeaseOrigin, Mark, Resource, Right, Scope, Term};
use ironcage_plan::{Item, LeasePart, LeasePath, Leases};
use made::{file, part, path, path_part, plan};
use proptest::prelude::*;
use std::path::Path;

const RULES: [&str; 8] = [
    "permit (principal, action, resource);",
    "forbid (principal, action, resource) when { context.open > 2 };",
    "permit (principal, action in Action::\"files\", resource) when { resource.path like \"*a*\" };",
    "@answer(\"ask\") forbid (principal, action == Action::\"write\", resource in Path::\"/srv/a\");",
    "permit (principal, action in Action::\"hosts\", resource) when { resource.host like \"*.example\" };",
    "forbid (principal, action, resource in Path::\"/srv/a/b\");",
    "permit (principal, action == Action::\"secret\", resource) when { context.origin != \"operator\" };",
    "permit (principal, action, resource) when { context.asked * 9223372036854775807 > -1 };",
];
const PATHS: [&str; 10] = [
    "/srv",
    "/srv/a",
    "/srv/a/b",
    "/srv/a/b/c",
    "/srv/b",
    "/srv/../etc",
    "/",
    "/proc/1",
    "/opt/a",
    "srv/a",
];
const HOSTS: [&str; 7] = [
    "a.example",
    "b.example:22",
    "*.example",
    "every host",
    "every host:*",
    "10.0.0.1",
    "10.0.0.0/8",
];

#[derive(Debug, Clone)]
enum What {
    Path(&'static str, Right),
    Other(Resource),
}

fn any_right() -> impl Strategy<Value = Right> {
    prop::sample::select(&[Right::Read, Right::Write][..])
}

fn any_mark() -> impl Strategy<Value = Mark> {
    prop::sample::select(&Mark::ALL[..])
}

fn any_path() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&PATHS[..])
}

fn any_host() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&HOSTS[..])
}

fn any_what() -> impl Strategy<Value = What> {
    prop_oneof![
        (any_path(), any_right()).prop_map(|(path, right)| What::Path(path, right)),
        any_host().prop_map(|host| What::Other(made::host_resource(host))),
        any_host().prop_map(|host| What::Other(Resource::Http {
            rule: format!("GET {host}/a").parse().unwrap()
        })),
        Just(What::Other(Resource::Secret { name: "ONE".into() })),
    ]
}

fn any_paths() -> impl Strategy<Value = Vec<Item<LeasePath>>> {
    let one = (any_path(), any_right(), any_mark());
    prop::collection::vec(
        one.prop_map(|(path, right, mark)| path_part(path, right, mark)),
        1..5,
    )
}

fn any_others() -> impl Strategy<Value = Vec<Item<LeasePart>>> {
    let extent = prop_oneof![
        4 => any_host().prop_map(|host| Extent::Host(host.parse().unwrap())),
        1 => Just(Extent::Secret("ONE".into())),
    ];
    prop::collection::vec(
        (extent, any_mark()).prop_map(|(extent, mark)| part(extent, mark)),
        0..4,
    )
}

fn any_rules() -> impl Strategy<Value = Vec<(String, bool)>> {
    let text = prop::collection::vec(prop::sample::select(&RULES[..]), 1..4);
    prop::collection::vec(
        (text.prop_map(|rules| rules.join("\n")), any::<bool>()),
        1..3,
    )
}

type Step = (What, Term, LeaseOrigin, bool, bool);

fn any_step() -> impl Strategy<Value = Step> {
    let term = prop_oneof![
        Just(Term::UntilRevoked),
        any::<u64>().prop_map(Term::Milliseconds)
    ];
    const ORIGINS: [LeaseOrigin; 5] = [
        LeaseOrigin::Operator,
        LeaseOrigin::ToolCall,
        LeaseOrigin::Ask,
        LeaseOrigin::Answer,
        LeaseOrigin::Shell,
    ];
    (
        any_what(),
        term,
        prop::sample::select(&ORIGINS[..]),
        any::<bool>(),
        any::<bool>(),
    )
}

/// What holds of everything that was given, from the other side.
fn within(leases: &Leases, lease: &Lease) -> Result<(), String> {
    let (gives, denied) = match &lease.resource {
        Resource::Path { path, right } => {
            let path = Path::new(path);
            if path == Path::new("/") || path.starts_with("/proc") || !path.is_absolute() {
                return Err("never given".into());
            }
            let parts = || leases.paths.iter().map(|item| &item.what);
            let meets =
                |part: &LeasePath| path.starts_with(&part.path) || part.path.starts_with(path);
            (
                parts().any(|part| {
                    part.mark.gives() && part.right >= *right && path.starts_with(&part.path)
                }),
                parts().any(|part| part.mark == Mark::Deny && part.right <= *right && meets(part)),
            )
        }
        other => {
            let parts = || leases.others.iter().map(|item| &item.what);
            (
                parts().any(|part| part.mark.gives() && part.extent.covers(other)),
                parts().any(|part| part.mark == Mark::Deny && part.extent.meets(other)),
            )
        }
    };
    match (gives, denied, lease.term, leases.longest) {
        (false, ..) => Err("no part gives it".into()),
        (_, true, ..) => Err("a part denies it".into()),
        (.., Term::UntilRevoked, Some(_)) => Err("too long".into()),
        (.., Term::Milliseconds(time), Some(most)) if u128::from(time) > most.as_millis() => {
            Err("too long".into())
        }
        _ => Ok(()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_sequence_of_requests_yields_anything_outside_of_the_ceiling(
        paths in any_paths(),
        others in any_others(),
        rules in any_rules(),
        steps in prop::collection::vec(any_step(), 1..20),
    ) {
        let files = rules.iter().enumerate();
        let files = files.map(|(at, (text, only))| file(&format!("{at}.cedar"), text, *only)).collect();
        let ruled = plan(paths.clone(), others.clone(), files);
        let marked = plan(paths, others, Vec::new());
        let leases = ruled.leases.clone().unwrap();
        let may_permit = rules.iter().any(|(text, only)| !only && text.contains("permit"));
        let mut history = History::default();
        for (number, (what, term, origin, approved, distrusted)) in steps.into_iter().enumerate() {
            history.distrusted = distrusted;
            let what = match &what {
                What::Path(text, right) => path(text, *right),
                What::Other(resource) => RequestedResource::Other(resource),
            };
            let asked = RequestedLease { term, scope: Scope::Cage, uses: None, origin, approved, what };
            let decided = decide(&ruled, &asked, &history);
            // It is a function.
            prop_assert_eq!(&decided, &decide(&ruled, &asked, &history));
            let by_marks = decide_by_marks(&marked, &asked, &history);
            let Decision::Granted(given) = decided else {
                // Nor does a rule say of what is beyond the ceiling that somebody might be asked.
                if let Decision::Pending { .. } = decided {
                    prop_assert!(matches!(by_marks, Decision::Pending { .. } | Decision::Granted(_)), "{:?}", by_marks);
                }
                continue;
            };
            let wished = approved || origin == LeaseOrigin::Operator;
            if !wished {
                prop_assert!(!distrusted);
                prop_assert_eq!(given.approver, Approver::Policy);
            }
            if !may_permit {
                // Rules that only forbid give nothing more than there is without them.
                prop_assert!(matches!(by_marks, Decision::Granted(_)), "{:?}", by_marks);
            }
            let lease = Lease {
                number: number as u32,
                resource: given.resource,
                scope: Scope::Cage,
                term: given.term,
                uses: given.uses,
                reason: String::new(),
                origin,
                approver: given.approver,
            };
            prop_assert_eq!(within(&leases, &lease), Ok(()), "{:?}", lease);
            history.open.push(lease);
        }
    }
}

#[test]
fn generated_sequences_do_yield_leases_by_rules() {
    // The property above says nothing if no rule ever gives anything that was to be asked for.
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut widened, mut narrowed) = (0, 0);
    for _ in 0..300 {
        let (paths, others) = (any_paths(), any_others());
        let (paths, others) = (
            paths.new_tree(&mut runner).unwrap().current(),
            others.new_tree(&mut runner).unwrap().current(),
        );
        let rules = any_rules().new_tree(&mut runner).unwrap().current();
        let files = rules.iter().enumerate();
        let files = files
            .map(|(at, (text, only))| file(&format!("{at}.cedar"), text, *only))
            .collect();
        let (ruled, marked) = (
            plan(paths.clone(), others.clone(), files),
            plan(paths, others, Vec::new()),
        );
        let what = any_what().new_tree(&mut runner).unwrap().current();
        let what = match &what {
            What::Path(text, right) => path(text, *right),
            What::Other(resource) => RequestedResource::Other(resource),
        };
        let asked = made::asked(what, LeaseOrigin::ToolCall);
        let history = History::default();
        match (
            decide_by_marks(&marked, &asked, &history),
            decide(&ruled, &asked, &history),
        ) {
            (Decision::Pending { .. }, Decision::Granted(_)) => widened += 1,
            (Decision::Granted(_) | Decision::Pending { .. }, Decision::Denied { .. }) => {
                narrowed += 1
            }
            _ => {}
        }
    }
    assert!(
        widened > 3 && narrowed > 3,
        "{widened} widened, {narrowed} narrowed"
    );
}
