//! No set of rules of an untrusted source admits a call that the trusted rules deny, or allows one that they ask about.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ironcage_tools::{
    ArgumentRules, Call, Constraint, Decision, Matcher, Numbers, Otherwise, Pattern, RuleSet,
    ServerRules, SqlClass, ToolPolicy, ToolRules,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn pattern() -> impl Strategy<Value = Pattern> {
    const TEXTS: &[&str] = &["a", "b", "a*", "*b", "*", "mcp__s__*", "mcp__*__a", "a_x"];
    prop::sample::select(TEXTS).prop_map(|text| Pattern::new(text).unwrap())
}

fn constraint() -> impl Strategy<Value = Constraint> {
    (0..7, any::<bool>(), any::<bool>()).prop_map(|(kind, required, ask)| {
        let mut constraint = Constraint {
            required,
            otherwise: if ask { Otherwise::Ask } else { Otherwise::Deny },
            ..Constraint::default()
        };
        match kind {
            0 => constraint.path_below = Some(vec![PathBuf::from("/w")]),
            1 => constraint.host_in = Some(vec!["api.example.com".parse().unwrap()]),
            2 => constraint.one_of = Some(vec![json!("x"), json!(3)]),
            3 => constraint.range = Some(Numbers::new(1.0, 5.0).unwrap()),
            4 => constraint.matches = Some(Matcher::new("[a-z/]+").unwrap()),
            5 => constraint.sql = Some(vec![SqlClass::Read]),
            _ => constraint.longest = Some(4),
        }
        constraint
    })
}

fn set() -> impl Strategy<Value = RuleSet> {
    let name = prop::sample::select(&["p", "q", "p.r", "*", "p.*"][..]).prop_map(str::to_owned);
    let arguments = (pattern(), btree_map(name, constraint(), 0..3))
        .prop_map(|(tool, arguments)| ArgumentRules { tool, arguments });
    (
        option::of(vec(pattern(), 0..3)),
        vec(pattern(), 0..2),
        vec(pattern(), 0..2),
        vec(arguments, 0..2),
    )
        .prop_map(|(allow, ask, deny, arguments)| RuleSet {
            allow,
            ask,
            deny,
            arguments,
        })
}

fn rules() -> impl Strategy<Value = ToolRules> {
    let server = (set(), option::of(any::<bool>()), option::of(1u64..100)).prop_map(
        |(tools, sampling, largest_result)| ServerRules {
            tools,
            sampling,
            largest_result,
            ..ServerRules::default()
        },
    );
    let name = prop::sample::select(&["s", "t"][..]).prop_map(str::to_owned);
    (option::of(set()), btree_map(name, server, 0..3))
        .prop_map(|(tools, servers)| ToolRules { tools, servers })
}

fn arguments() -> impl Strategy<Value = Value> {
    let values = prop::sample::select(vec![
        json!("/w/a"),
        json!("/etc/passwd"),
        json!("x"),
        json!(3),
        json!(9),
        json!("SELECT 1"),
        json!("DROP TABLE t"),
        json!("https://api.example.com/"),
        json!(["/w/a", "/x"]),
        json!({"r": "x"}),
        json!(null),
    ]);
    let name = prop::sample::select(&["p", "q", "z"][..]).prop_map(str::to_owned);
    btree_map(name, values, 0..3).prop_map(|fields| json!(fields))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_narrows_never_admits_more(
        base in rules(),
        narrowing in vec(rules(), 1..3),
        server in option::of(prop::sample::select(&["s", "t", "u"][..])),
        tool in prop::sample::select(&["a", "b", "ab", "a_x", "re\u{430}d"][..]),
        arguments in arguments(),
    ) {
        let call = Call { server, tool, arguments: &arguments, cwd: Some(Path::new("/w")) };
        let alone = ToolPolicy { rules: base.clone(), ..ToolPolicy::default() };
        let both = ToolPolicy { rules: base, narrowing, ..ToolPolicy::default() };
        let (before, after) = (alone.decide(&call).decision, both.decide(&call).decision);
        prop_assert!(after.is_within(&before), "{before:?} became {after:?}");
        for server in ["s", "t", "u"] {
            prop_assert!(!both.may(server, |rules| rules.sampling) || alone.may(server, |rules| rules.sampling));
            let within = match (alone.largest_result(server), both.largest_result(server)) {
                (None, _) => true,
                (Some(alone), Some(both)) => both <= alone,
                (Some(_), None) => false,
            };
            prop_assert!(within);
            prop_assert!(!both.lists(server, tool) || alone.lists(server, tool));
        }
        // What is not in a list is in no call either.
        if let Some(server) = server && !both.lists(server, tool) {
            prop_assert!(matches!(after, Decision::Deny(_)));
        }
    }

    #[test]
    fn a_policy_is_the_same_after_it_was_handed_over(base in rules()) {
        let policy = ToolPolicy { rules: base, ..ToolPolicy::default() };
        let text = serde_json::to_string(&policy).unwrap();
        prop_assert_eq!(serde_json::from_str::<ToolPolicy>(&text).unwrap(), policy);
    }
}

#[test]
fn the_generated_rules_allow_some_calls() {
    let rules = ToolRules {
        servers: [(
            "s".to_owned(),
            ServerRules {
                tools: RuleSet {
                    allow: Some(vec![Pattern::new("a*").unwrap()]),
                    ..RuleSet::default()
                },
                ..ServerRules::default()
            },
        )]
        .into(),
        ..ToolRules::default()
    };
    let policy = ToolPolicy {
        rules,
        ..ToolPolicy::default()
    };
    let decide = |name: &str| {
        let arguments = json!({});
        policy.decide(&Call::named(name, &arguments, None)).decision
    };
    assert_eq!(decide("mcp__s__ab"), Decision::Allow);
    assert_eq!(decide("Bash"), Decision::Allow);
    assert!(matches!(decide("mcp__s__b"), Decision::Deny(_)));
    assert!(matches!(decide("mcp__t__a"), Decision::Deny(_)));
}
