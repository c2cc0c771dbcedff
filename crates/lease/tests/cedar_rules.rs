//! What rules say of requests, and what is said of rules that are none.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod made;

use ironcage_lease::cedar::check;
use ironcage_lease::{Decision, History, RequestedResource, decide};
use ironcage_model::{Approver, Extent, LeaseOrigin, LimitKind, Mark, Resource, Right, Scope};
use ironcage_plan::Plan;
use ironcage_policy::{Origin, RulesFile, Sourced, resolve_profile};
use made::{asked, file, host_resource, part, path, path_part, plan};
use std::path::Path;

const TOOL: LeaseOrigin = LeaseOrigin::ToolCall;
const OPERATOR: LeaseOrigin = LeaseOrigin::Operator;

/// A ceiling with something at once and something after asking.
fn ruled(rules: &str) -> Plan {
    ruled_by(vec![file("rules.cedar", rules, false)])
}

fn ruled_by(rules: Vec<ironcage_plan::Item<ironcage_plan::LeaseRules>>) -> Plan {
    let limit = |limit, value| part(Extent::Limit { limit, value }, Mark::Ask);
    plan(
        vec![
            path_part("/srv/auto", Right::Write, Mark::Auto),
            path_part("/srv/asked", Right::Write, Mark::Ask),
            path_part("/srv/no", Right::Read, Mark::Deny),
        ],
        vec![
            part(Extent::Host("every host".parse().unwrap()), Mark::Ask),
            part(Extent::Host("every host:*".parse().unwrap()), Mark::Ask),
            part(Extent::Secret("TOKEN".into()), Mark::Auto),
            limit(LimitKind::Memory, 1 << 60),
        ],
        rules,
    )
}

fn said(plan: &Plan, what: RequestedResource<'_>, origin: LeaseOrigin) -> (&'static str, String) {
    said_with(plan, what, origin, &History::default())
}

fn said_with(
    plan: &Plan,
    what: RequestedResource<'_>,
    origin: LeaseOrigin,
    history: &History,
) -> (&'static str, String) {
    match decide(plan, &asked(what, origin), history) {
        Decision::Granted(given) => match given.approver {
            Approver::Policy => ("given", given.reason),
            Approver::Operator => ("given by the operator", given.reason),
        },
        Decision::InBase { reason } => ("there anyway", reason.to_string()),
        Decision::Pending { reason, .. } => ("asked", reason.to_string()),
        Decision::Denied { reason } => ("refused", reason.to_string()),
    }
}

fn read(plan: &Plan, what: &str) -> &'static str {
    said(plan, path(what, Right::Read), TOOL).0
}

fn write(plan: &Plan, what: &str) -> &'static str {
    said(plan, path(what, Right::Write), TOOL).0
}

fn host(plan: &Plan, what: &str) -> &'static str {
    said(plan, RequestedResource::Other(&host_resource(what)), TOOL).0
}

#[test]
fn what_no_rule_speaks_of_is_as_the_ceiling_marks_it() {
    for rules in [
        "",
        "// nothing\n",
        "permit (principal, action == Action::\"pids\", resource);",
    ] {
        let plan = ruled(rules);
        assert_eq!(read(&plan, "/srv/auto/a"), "given");
        assert_eq!(read(&plan, "/srv/asked/a"), "asked");
        assert_eq!(read(&plan, "/srv/no"), "refused");
        assert_eq!(read(&plan, "/srv/elsewhere"), "refused");
    }
}

#[test]
fn a_rule_permits_within_the_ceiling_and_never_beyond_it() {
    let plan = ruled("permit (principal, action, resource);");
    assert_eq!(read(&plan, "/srv/auto/a"), "given");
    assert_eq!(write(&plan, "/srv/asked/a"), "given");
    assert_eq!(host(&plan, "api.example.com:22"), "given");
    for beyond in [
        "/srv/no",
        "/srv/no/a",
        "/srv",
        "/srv/elsewhere",
        "/",
        "/proc/1",
        "/home/ann/.ssh",
    ] {
        for origin in [TOOL, OPERATOR] {
            assert_eq!(
                said(&plan, path(beyond, Right::Read), origin).0,
                "refused",
                "{beyond}"
            );
        }
    }
}

#[test]
fn a_rule_forbids_whoever_asks_and_gives_its_reason() {
    let plan = ruled(
        "\n@id(\"no-rows\")\n@reason(\"rows are private\")\nforbid (principal, action, resource in Path::\"/srv/auto/rows\");\n",
    );
    assert_eq!(read(&plan, "/srv/auto/a"), "given");
    for origin in [TOOL, OPERATOR] {
        for what in ["/srv/auto/rows", "/srv/auto/rows/1"] {
            let (verdict, reason) = said(&plan, path(what, Right::Read), origin);
            assert_eq!(verdict, "refused");
            assert_eq!(
                reason,
                "forbidden by rule `no-rows` (rules.cedar:2): rows are private"
            );
        }
    }
}

#[test]
fn a_rule_that_forbids_asks_where_it_says_so_also_over_one_that_permits() {
    let plan = ruled(
        "permit (principal, action == Action::\"host\", resource);\n@answer(\"ask\") @reason(\"not by the shell\")\nforbid (principal, action, resource) when { context.origin == \"shell\" };",
    );
    let wanted = host_resource("api.example.com");
    assert_eq!(
        said(&plan, RequestedResource::Other(&wanted), TOOL).0,
        "given"
    );
    let (verdict, reason) = said(&plan, RequestedResource::Other(&wanted), LeaseOrigin::Shell);
    assert_eq!(verdict, "asked");
    assert!(
        reason.contains("rules.cedar:2") && reason.contains("not by the shell"),
        "{reason}"
    );
    // One that forbids without a word more wins.
    let plan = ruled(
        "@answer(\"ask\") forbid (principal, action, resource); forbid (principal, action, resource);",
    );
    assert_eq!(read(&plan, "/srv/auto/a"), "refused");
}

#[test]
fn what_is_below_or_comes_along_is_forbidden_too() {
    let plan = ruled(
        "forbid (principal, action == Action::\"read\", resource in Path::\"/srv/auto/rows\");",
    );
    assert_eq!(read(&plan, "/srv/auto/other"), "given");
    assert_eq!(read(&plan, "/srv/auto"), "refused");
    assert_eq!(write(&plan, "/srv/auto"), "refused");
    assert_eq!(write(&plan, "/srv/auto/rows/a"), "refused");
    let plan = ruled(
        "forbid (principal, action == Action::\"host\", resource) when { resource.host == \"evil.example\" };",
    );
    let request = |text: &str| Resource::Http {
        rule: text.parse().unwrap(),
    };
    let verdict = |text: &str| said(&plan, RequestedResource::Other(&request(text)), TOOL).0;
    assert_eq!(verdict("GET evil.example/a"), "refused");
    assert_eq!(verdict("GET good.example/a"), "asked");
}

#[test]
fn several_at_once_are_permitted_one_by_one_or_not_at_all() {
    let plan = ruled(
        "permit (principal, action in Action::\"hosts\", resource) when { resource.port == 443 };",
    );
    assert_eq!(host(&plan, "api.example.com:443"), "given");
    // 80 and 443.
    assert_eq!(host(&plan, "api.example.com"), "asked");
    let plan = ruled(
        "permit (principal, action in Action::\"hosts\", resource); forbid (principal, action, resource) when { resource has host && resource.host like \"*.evil.example\" };",
    );
    assert_eq!(host(&plan, "api.example.com"), "given");
    assert_eq!(host(&plan, "a.evil.example"), "refused");
    for several in [
        "*.evil.example",
        "*.example",
        "every host",
        "10.0.0.0/8",
        "api.example.com:*",
    ] {
        assert_eq!(host(&plan, several), "refused", "{several}");
    }
    let request = |text: &str| Resource::Http {
        rule: text.parse().unwrap(),
    };
    let verdict = |text: &str| said(&plan, RequestedResource::Other(&request(text)), TOOL).0;
    assert_eq!(verdict("GET,HEAD api.example.com/v1/a"), "given");
    for pattern in ["GET api.example.com/v1/**", "api.example.com/v1/a"] {
        assert_eq!(verdict(pattern), "asked", "{pattern}");
    }
}

#[test]
fn cage_and_request_are_what_the_rules_see() {
    let memory = |value| Resource::Limit {
        limit: LimitKind::Memory,
        value,
    };
    let plan = ruled(
        "permit (principal, action == Action::\"memory\", resource) when { resource.value <= 100 && principal.profile == \"coding-agent\" && principal.isolation == \"namespace\" && context.open == 0 && !context.scoped && context has milliseconds && context.milliseconds <= 1000 && !(context has uses) };",
    );
    // Less is there anyway.
    let least = plan.bounds.memory.what.value + 1;
    let text = format!(
        "permit (principal, action == Action::\"memory\", resource) when {{ resource.value <= {} }};",
        least + 5
    );
    let plan_by_value = ruled(&text);
    assert_eq!(
        said(
            &plan_by_value,
            RequestedResource::Other(&memory(least)),
            TOOL
        )
        .0,
        "given"
    );
    assert_eq!(
        said(
            &plan_by_value,
            RequestedResource::Other(&memory(least + 6)),
            TOOL
        )
        .0,
        "asked"
    );
    assert_eq!(
        said(&plan, RequestedResource::Other(&memory(least)), TOOL).0,
        "asked"
    );
    let plan = ruled("permit (principal, action, resource) when { context.scoped };");
    for (scope, verdict) in [(Scope::Cage, false), (Scope::Exec { number: 1 }, true)] {
        let asked = ironcage_lease::RequestedLease {
            scope,
            ..asked(path("/srv/asked/a", Right::Read), TOOL)
        };
        let decided = decide(&plan, &asked, &History::default());
        assert_eq!(
            matches!(decided, Decision::Granted(_)),
            verdict,
            "{decided:?}"
        );
    }
}

#[test]
fn a_cage_that_is_distrusted_is_given_nothing_at_once_whatever_a_rule_permits() {
    let plan = ruled("permit (principal, action, resource);");
    let history = History {
        distrusted: true,
        ..History::default()
    };
    assert_eq!(
        said_with(&plan, path("/srv/auto/a", Right::Read), TOOL, &history).0,
        "asked"
    );
}

#[test]
fn a_rule_can_look_at_what_the_cage_has_come_into_contact_with() {
    let plan = ruled(
        "forbid (principal, action in Action::\"hosts\", resource) when { principal.private && principal.untrusted };",
    );
    let wanted = host_resource("api.example.com");
    for (private, untrusted, verdict) in [
        (true, false, "asked"),
        (false, true, "asked"),
        (true, true, "refused"),
    ] {
        let taint = ironcage_model::Taint { private, untrusted };
        let history = History {
            taint,
            ..History::default()
        };
        let said = said_with(&plan, RequestedResource::Other(&wanted), TOOL, &history);
        assert_eq!(said.0, verdict, "{taint:?}");
    }
}

#[test]
fn a_rule_that_cannot_be_evaluated_gives_nothing() {
    let plan = ruled(
        "permit (principal, action, resource);\nforbid (principal, action == Action::\"memory\", resource) when { resource.value * 9000000000 > 5 };",
    );
    let value = (1 << 60) - 1;
    let (verdict, reason) = said(
        &plan,
        RequestedResource::Other(&Resource::Limit {
            limit: LimitKind::Memory,
            value,
        }),
        OPERATOR,
    );
    assert_eq!(verdict, "refused");
    assert!(
        reason.contains("cannot be evaluated") && reason.contains("rules.cedar:2"),
        "{reason}"
    );
    assert_eq!(read(&plan, "/srv/asked/a"), "given");
}

#[test]
fn of_a_file_that_is_not_trusted_only_what_it_forbids_counts() {
    let own = file(
        "own.cedar",
        "permit (principal, action == Action::\"read\", resource in Path::\"/srv/asked\");",
        false,
    );
    let theirs = file(
        "theirs.cedar",
        "permit (principal, action, resource);\nforbid (principal, action, resource in Path::\"/srv/asked/no\");",
        true,
    );
    let plan = ruled_by(vec![own, theirs]);
    assert_eq!(read(&plan, "/srv/asked/a"), "given");
    assert_eq!(write(&plan, "/srv/asked/a"), "asked");
    assert_eq!(read(&plan, "/srv/asked/no"), "refused");
    // Two files of one name.
    let text = "forbid (principal, action, resource in Path::\"/srv/auto/";
    let one = |name: &str| file("rules.cedar", &format!("{text}{name}\");"), false);
    let plan = ruled_by(vec![one("a"), one("b")]);
    assert_eq!(
        (
            read(&plan, "/srv/auto/a"),
            read(&plan, "/srv/auto/b"),
            read(&plan, "/srv/auto/c")
        ),
        ("refused", "refused", "given")
    );
}

#[test]
fn names_are_never_read_as_rules() {
    let plan = ruled("forbid (principal, action, resource == Path::\"/srv/auto/a\");");
    for hostile in [
        "/srv/auto/\"); permit (principal, action, resource",
        "/srv/auto/\\u{0}",
        "/srv/auto/*",
        "/srv/auto/\n",
    ] {
        assert_eq!(read(&plan, hostile), "given", "{hostile:?}");
    }
    let plan = ruled(
        "permit (principal, action, resource) when { resource has path && resource.path like \"/srv/asked/\\*\" };",
    );
    assert_eq!(read(&plan, "/srv/asked/*"), "given");
    assert_eq!(read(&plan, "/srv/asked/a"), "asked");
}

#[test]
fn mistakes_are_shown_at_their_line() {
    let checked = |text: &str| {
        let mut policy = resolve_profile("coding-agent", Path::new("/home/ann")).unwrap();
        let rules = RulesFile {
            path: "/etc/rules.cedar".into(),
            text: text.into(),
            only_forbids: false,
        };
        policy
            .ceiling
            .cedar
            .push(Sourced::new(rules, Origin::BuiltIn));
        check(&policy).map_err(|error| error.to_string())
    };
    assert_eq!(checked("permit (principal, action, resource);"), Ok(()));
    for (text, line, word) in [
        ("permit (principal, action, resource)\n\n;;", 3, ";"),
        (
            "\npermit (principal, action, resource) when { resource.colour == 1 };",
            2,
            "colour",
        ),
        (
            "\n\npermit (principal, action == Action::\"fly\", resource);",
            3,
            "fly",
        ),
        (
            "permit (principal == ?principal, action, resource);",
            1,
            "slots",
        ),
        (
            "@anwser(\"ask\")\nforbid (principal, action, resource);",
            1,
            "anwser",
        ),
        (
            "\n@answer(\"maybe\")\nforbid (principal, action, resource);",
            2,
            "maybe",
        ),
        (
            "@answer(\"ask\")\npermit (principal, action, resource);",
            1,
            "forbids",
        ),
        (
            "\nforbid (principal, action, resource in Path::\"~/data\");",
            2,
            "no real path",
        ),
        (
            "forbid (principal, action, resource in Path::\"/srv/../etc\");",
            1,
            "no real path",
        ),
        (
            "forbid (principal, action, resource in Path::\"/srv/\");",
            1,
            "no real path",
        ),
        (
            "forbid (principal, action == Action::\"read\", resource is Host);",
            1,
            "",
        ),
    ] {
        let error = checked(text).unwrap_err();
        assert!(
            error.contains(&format!("rules.cedar:{line}:")),
            "{text}: {error}"
        );
        assert!(error.contains(word), "{text}: {error}");
    }
}

#[test]
fn a_plan_with_rules_that_cannot_be_read_gives_nothing() {
    let plan = ruled("permit (principal, action, resource)");
    for origin in [TOOL, OPERATOR] {
        let (verdict, reason) = said(&plan, path("/srv/auto/a", Right::Read), origin);
        assert_eq!(verdict, "refused");
        assert!(reason.contains("cannot be read"), "{reason}");
    }
}

#[test]
fn what_stands_for_requests_that_a_rule_forbids_is_asked_about_at_least() {
    let http = |text: &str| {
        let rule = text.parse().unwrap();
        Resource::Http { rule }
    };
    let with = |rules: &str| {
        plan(
            vec![],
            vec![
                part(Extent::Host("api.test".parse().unwrap()), Mark::Auto),
                part(Extent::Http("api.test/**".parse().unwrap()), Mark::Auto),
            ],
            vec![file("rules.cedar", rules, false)],
        )
    };
    let said = |plan: &Plan, what: &Resource| said(plan, RequestedResource::Other(what), TOOL).0;
    let forbids = with(
        "forbid (principal, action == Action::\"http\", resource) when { resource.method == \"DELETE\" };",
    );
    for (what, verdict) in [
        ("GET api.test/v1/items", "given"),
        ("DELETE api.test/v1/items", "refused"),
        ("GET,DELETE api.test/v1/items", "refused"),
        ("api.test/v1/items", "asked"),
        ("GET api.test/v1/**", "asked"),
    ] {
        assert_eq!(said(&forbids, &http(what)), verdict, "{what}");
    }
    assert_eq!(said(&forbids, &host_resource("api.test")), "asked");
    // Where no request is forbidden, a connection is what the ceiling says it is.
    let silent = with("permit (principal, action == Action::\"pids\", resource);");
    assert_eq!(said(&silent, &host_resource("api.test")), "given");
    assert_eq!(said(&silent, &http("GET api.test/v1/items")), "given");
}

#[test]
fn rules_that_would_keep_the_supervisor_are_refused_where_they_are_read() {
    let list = |count: usize| {
        let paths: Vec<String> = (0..count)
            .map(|number| format!("Path::\"/srv/auto/{number}\""))
            .collect();
        format!(
            "forbid (principal, action in Action::\"files\", resource is Path) when {{ [{}].contains(resource) }};",
            paths.join(", ")
        )
    };
    let nested = |depth: usize| {
        let (open, close) = ("(".repeat(depth), ")".repeat(depth));
        format!(
            "forbid (principal, action == Action::\"pids\", resource) when {{ {open}resource.value > 1{close} }};"
        )
    };
    let many =
        |count: usize| "forbid (principal, action == Action::\"pids\", resource);\n".repeat(count);
    for (fits, not, why) in [
        (list(150), list(300), "300 paths"),
        (nested(20), nested(100), "nested"),
        (many(100), many(250), "201 rules"),
        (list(1), " ".repeat(20_000), "KiB of rules"),
    ] {
        assert_ne!(read(&ruled(&fits), "/srv/auto/x"), "refused", "{why}");
        let (verdict, reason) = said(&ruled(&not), path("/srv/auto/x", Right::Read), TOOL);
        assert!(
            verdict == "refused" && reason.contains(why),
            "{why}: {verdict} {reason}"
        );
    }
}
