//! Without the feature a policy with rules is refused, and nothing is given by a plan that has some.
#![cfg(not(feature = "cedar"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod made;

use ironcage_lease::cedar::{KNOWN, check};
use ironcage_lease::{Decision, History, decide};
use ironcage_model::{LeaseOrigin, Mark, Right};
use ironcage_policy::{Origin, RulesFile, Sourced, resolve_profile};
use made::{asked, file, path, path_part, plan};
use std::path::Path;

const PERMIT: &str = "permit (principal, action, resource);";

#[test]
fn a_policy_with_rules_is_refused_with_the_remedy() {
    const { assert!(!KNOWN) };
    let mut policy = resolve_profile("coding-agent", Path::new("/home/ann")).unwrap();
    assert!(check(&policy).is_ok());
    let rules = RulesFile {
        path: "/etc/rules.cedar".into(),
        text: PERMIT.into(),
        only_forbids: false,
    };
    policy
        .ceiling
        .cedar
        .push(Sourced::new(rules, Origin::BuiltIn));
    let error = check(&policy).unwrap_err().to_string();
    assert!(error.contains("--features cedar"), "{error}");
}

#[test]
fn nothing_is_given_by_a_plan_with_rules() {
    for (rules, given) in [
        (Vec::new(), true),
        (vec![file("a.cedar", PERMIT, false)], false),
    ] {
        let parts = vec![path_part("/srv", Right::Read, Mark::Auto)];
        let plan = plan(parts, Vec::new(), rules);
        for origin in [LeaseOrigin::Operator, LeaseOrigin::ToolCall] {
            let asked = asked(path("/srv/a", Right::Read), origin);
            let decided = decide(&plan, &asked, &History::default());
            assert_eq!(
                matches!(decided, Decision::Granted(_)),
                given,
                "{decided:?}"
            );
            assert_eq!(
                matches!(decided, Decision::Denied { .. }),
                !given,
                "{decided:?}"
            );
        }
    }
}
