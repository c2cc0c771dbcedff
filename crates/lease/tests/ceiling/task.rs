//! What the user's task names narrows what is given, and never adds to it.

use super::sequences::{any_part, any_path, any_right};
use super::*;
use proptest::prelude::*;

fn task(paths: Vec<PathBuf>) -> ironcage_plan::TaskScope {
    ironcage_plan::TaskScope {
        source: ironcage_plan::TaskSource::Flag,
        paths,
        hosts: Vec::new(),
    }
}

#[test]
fn what_the_task_does_not_name_is_asked_for_with_the_chain() {
    let auto = |path: &str| part(path, WRITE, Mark::Auto);
    let mut plan = plan(vec![auto("/srv/out"), auto("/srv/other")]);
    let decided = |plan: &Plan, path: &str| {
        let request = asked(Path::new(path), Right::Write, LeaseOrigin::Shell);
        decide(plan, &request, &History::default())
    };
    let granted = |decision: &Decision| matches!(decision, Decision::Granted(_));
    assert!(granted(&decided(&plan, "/srv/other")));

    plan.leases.as_mut().unwrap().task = Some(task(vec!["/srv/out/report".into()]));
    assert!(
        !granted(&decided(&plan, "/srv/out")),
        "around what it names is more than it names"
    );
    assert!(granted(&decided(&plan, "/srv/out/report")));
    assert!(granted(&decided(&plan, "/srv/out/report/part")));
    let Decision::Pending { reason, .. } = decided(&plan, "/srv/other") else {
        panic!("{:?}", decided(&plan, "/srv/other"));
    };
    let told = format!("{reason:?}");
    assert!(
        told.contains("ApprovalOutsideTask") && told.contains("/srv/out/report"),
        "{told}"
    );

    // A task that names nothing that can be leased says nothing about leases.
    plan.leases.as_mut().unwrap().task = Some(task(vec!["/home/me/notes".into()]));
    assert!(granted(&decided(&plan, "/srv/other")));
}

#[test]
fn a_file_that_the_task_names_is_written_where_leases_are_on_directories() {
    let (request, host) = (request(), host(Privilege::User));
    let mut plan = plan_of("coding-agent-locked", FlagLayer::default(), &request, &host).unwrap();
    let project = plan.workspace.clone();
    plan.leases.as_mut().unwrap().task = Some(task(vec![project.join("src/parse.rs")]));
    for (name, said) in [("src", "given"), ("docs", "asked"), ("", "asked")] {
        let path = project.join(name);
        let path = path.to_str().unwrap().trim_end_matches('/');
        assert_eq!(verdict(&plan, path, WRITE, TOOL), said, "{name}");
    }
}

proptest! {
#![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever the task names, nothing is given that is not given without it, and the operator is
    /// not asked.
    #[test]
    fn a_task_never_adds_to_what_is_given(
        named in prop::collection::vec(any_path(), 0..10),
        parts in prop::collection::vec(any_part(), 0..8),
        wanted in prop::collection::vec((any_path(), any_right()), 1..20),
    ) {
        let without = plan(parts);
        let mut with = without.clone();
        with.leases.as_mut().unwrap().task = Some(task(named));
        for (path, right) in &wanted {
            for origin in [LeaseOrigin::Answer, LeaseOrigin::Ask, LeaseOrigin::Operator] {
                let request = asked(path, *right, origin);
                let with = decide(&with, &request, &History::default());
                let without = decide(&without, &request, &History::default());
                match with {
                    Decision::Pending { .. } => {
                        let open = matches!(without, Decision::Pending { .. } | Decision::Granted(_));
                        prop_assert!(open, "{:?}", without);
                        prop_assert!(origin != LeaseOrigin::Operator || with == without);
                    }
                    other => prop_assert_eq!(other, without),
                }
            }
        }
    }
}
