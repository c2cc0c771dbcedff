//! Generated sequences of requests, and the generators of their parts.

use super::*;
use proptest::prelude::*;

/// Few names, so that paths meet.
pub(super) fn any_path() -> impl Strategy<Value = PathBuf> {
    let name = prop::sample::select(&["srv", "a", "b", "aa", "..", ".", "etc", "proc"][..]);
    (
        prop::bool::weighted(0.95),
        prop::collection::vec(name, 0..5),
    )
        .prop_map(|(absolute, names)| {
            let root = if absolute { "/" } else { "" };
            PathBuf::from(format!("{root}{}", names.join("/")))
        })
}

pub(super) fn any_right() -> impl Strategy<Value = Right> {
    prop::sample::select(&[READ, WRITE][..])
}

pub(super) fn any_part() -> impl Strategy<Value = Item<LeasePath>> {
    (
        any_path(),
        any_right(),
        prop::sample::select(&Mark::ALL[..]),
    )
        .prop_map(|(path, right, mark)| part(&path.to_string_lossy(), right, mark))
}

/// One step: a request, or the end of an open lease.
#[derive(Debug, Clone)]
enum Step {
    Ask(PathBuf, Right, Term, LeaseOrigin),
    End(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    let term = prop_oneof![
        Just(Term::UntilRevoked),
        any::<u64>().prop_map(Term::Milliseconds)
    ];
    let origin = prop::sample::select(&[TOOL, LeaseOrigin::Ask, LeaseOrigin::Answer, OPERATOR][..]);
    prop_oneof![
        6 => (any_path(), any_right(), term, origin)
            .prop_map(|(path, right, term, origin)| Step::Ask(path, right, term, origin)),
        1 => (0..8_usize).prop_map(Step::End),
    ]
}

/// What holds of everything that was given, said once more and from the other side.
fn within(leases: &Leases, lease: &Lease) -> Result<(), String> {
    let Resource::Path { path, right } = &lease.resource else {
        return Err("not a path".into());
    };
    let path = Path::new(path);
    let meets = |part: &LeasePath| path.starts_with(&part.path) || part.path.starts_with(path);
    let parts = || leases.paths.iter().map(|item| &item.what);
    let gives = |part: &LeasePath| path.starts_with(&part.path) && part.right >= *right;
    if !parts().any(|part| part.mark.gives() && gives(part)) {
        return Err("no part gives it".into());
    }
    if parts().any(|part| part.mark == Mark::Deny && part.right <= *right && meets(part)) {
        return Err("a part denies it".into());
    }
    // A part that asks counts where it lies in the one that gives at once, or is the same.
    let asked = |auto: &LeasePath| {
        parts().any(|part| {
            let nearer = part.path.components().count() >= auto.path.components().count();
            part.mark == Mark::Ask && part.right <= *right && meets(part) && nearer
        })
    };
    let auto = parts().any(|part| part.mark == Mark::Auto && gives(part) && !asked(part));
    let always = parts().any(|part| part.mark == Mark::Always && gives(part));
    match lease.approver {
        Approver::Policy if !always && !auto => {
            return Err("nobody was asked".into());
        }
        Approver::Operator if lease.origin != OPERATOR => return Err("approved by nobody".into()),
        _ => {}
    }
    if path.components().any(|part| part.as_os_str() == "..") || !path.is_absolute() {
        return Err("not a real path".into());
    }
    if path == Path::new("/") || path.starts_with("/proc") {
        return Err("never given".into());
    }
    match (lease.term, leases.longest) {
        (Term::Milliseconds(time), Some(most)) if u128::from(time) <= most.as_millis() => Ok(()),
        (_, None) => Ok(()),
        other => Err(format!("too long: {other:?}")),
    }
}

proptest! {
#![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever a model's words name, nothing is given that is not given without them.
    #[test]
    fn words_never_add_to_what_is_given(
        named in prop::collection::vec(any_path(), 0..20),
        parts in prop::collection::vec(any_part(), 0..8),
        wanted in prop::collection::vec((any_path(), any_right()), 1..20),
    ) {
        let plan = plan(parts);
        let leases = plan.leases.as_ref().unwrap();
        let now = Instant::now();
        let mut words = Words::default();
        let named: Vec<String> = named.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        let named: Vec<&str> = named.iter().map(String::as_str).collect();
        words.hear(&announced(&named), Some(leases), now);
        for (path, right) in &wanted {
            let resource = Resource::Path { path: path.to_string_lossy().into_owned(), right: *right };
            let unannounced = words.stray(&resource, leases, now);
            let with = History { unannounced, ..History::default() };
            let request = asked(path, *right, LeaseOrigin::Answer);
            let with = decide(&plan, &request, &with);
            let without = decide(&plan, &request, &History::default());
            match with {
                Decision::Granted(_) => prop_assert_eq!(with, without),
                Decision::Pending { .. } => {
                    let open = matches!(without, Decision::Pending { .. } | Decision::Granted(_));
                    prop_assert!(open, "{:?}", without);
                }
                other => prop_assert_eq!(other, without),
            }
        }
    }

    #[test]
    fn no_sequence_of_requests_yields_anything_outside_of_the_ceiling(
        parts in prop::collection::vec(any_part(), 1..6),
        steps in prop::collection::vec(any_step(), 1..30),
    ) {
        let plan = plan(parts);
        let leases = plan.leases.clone().unwrap();
        let mut history = History::default();
        for (number, step) in steps.into_iter().enumerate() {
            let (path, right, term, origin) = match step {
                Step::End(index) => {
                    if index < history.open.len() {
                        history.open.remove(index);
                    }
                    continue;
                }
                Step::Ask(path, right, term, origin) => (path, right, term, origin),
            };
            let asked = RequestedLease { term, ..asked(&path, right, origin) };
            if let Decision::Granted(given) = decide(&plan, &asked, &history) {
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
                let wanted = Resource::Path { path: path.to_str().unwrap().into(), right };
                prop_assert_eq!(&lease.resource, &wanted);
                prop_assert_eq!(within(&leases, &lease), Ok(()), "{:?}", lease);
                history.open.push(lease);
                prop_assert!(history.open.len() <= MOST_OPEN);
            }
        }
    }
}

#[test]
fn generated_sequences_do_yield_leases() {
    // The property above says nothing if nothing is ever given.
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut given, mut refused) = (0, 0);
    for _ in 0..300 {
        let parts = prop::collection::vec(any_part(), 1..6);
        let plan = plan(parts.new_tree(&mut runner).unwrap().current());
        let step = any_step().new_tree(&mut runner).unwrap().current();
        if let Step::Ask(path, right, _, origin) = step {
            match decide(&plan, &asked(&path, right, origin), &History::default()) {
                Decision::Granted(_) => given += 1,
                Decision::Denied { .. } => refused += 1,
                _ => {}
            }
        }
    }
    assert!(
        given > 5 && refused > 50,
        "{given} given, {refused} refused"
    );
}
