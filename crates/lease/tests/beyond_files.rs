//! No sequence of requests for anything but files yields anything outside of the ceiling. What
//! was given is looked at point by point, from the other side: each single connection, request,
//! port and amount that a lease allows has to be one that some part of the ceiling names.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../plan/tests/made_up/mod.rs"]
mod made_up;

use ironcage_host::Privilege;
use ironcage_lease::{Decision, History, MOST_OPEN, RequestedLease, RequestedResource, decide};
use ironcage_model::{
    Approver, Extent, Holders, HostName, HttpRule, Lease, LeaseOrigin, LimitKind, Mark,
    PortPattern, Publish, RequestPath, Resource, Scope, Term,
};
use ironcage_plan::{Item, LeasePart, Leases, PermissionRequestTerms, Plan};
use ironcage_policy::FlagLayer;
use made_up::{host, plan_of, request};
use proptest::prelude::*;
use std::time::Duration;

const NAMES: [&str; 6] = [
    "a.com",
    "b.a.com",
    "c.b.a.com",
    "d.net",
    "xa.com",
    "host.ironcage",
];
const ADDRESSES: [&str; 5] = [
    "10.0.0.1",
    "10.1.0.1",
    "127.0.0.1",
    "8.8.8.8",
    "169.254.169.254",
];
const PORTS: [u16; 5] = [22, 80, 443, 5432, 8443];
const PATHS: [&str; 6] = ["/", "/a", "/a/b", "/a/b/c", "/d", "/ax"];
const METHODS: [&str; 3] = ["GET", "POST", "DELETE"];

fn part(extent: Extent, mark: Mark) -> Item<LeasePart> {
    Item {
        what: LeasePart {
            extent,
            mark,
            bundle: None,
        },
        origin: "test".into(),
    }
}

fn plan(others: Vec<Item<LeasePart>>) -> Plan {
    let request = request();
    let host = host(Privilege::User);
    let mut plan = plan_of("shell", FlagLayer::default(), &request, &host).unwrap();
    plan.bounds.memory.what.value = 10;
    plan.bounds.pids.what.value = 10;
    plan.leases = Some(Leases {
        paths: Vec::new(),
        others,
        cedar: Vec::new(),
        closed: Vec::new(),
        longest: Some(Duration::from_secs(60)),
        grace: Duration::ZERO,
        holders: Holders::Kill,
        shell: ironcage_model::ShellMode::Plain,
        words: ironcage_model::WordsMode::Note,
        task: None,
        call_longest: None,
        drift: ironcage_plan::Drift {
            shorten: 3,
            ask: 6,
            freeze: 12,
        },
        real_workspace: true,
        sensitive_deeper: false,
        shown: Vec::new(),
        judge: Vec::new(),
        homes: Vec::new(),
        i_know: false,
        questions: PermissionRequestTerms {
            expire: None,
            remember: Duration::ZERO,
            key: "ctrl-^".parse().unwrap(),
            notify: Vec::new(),
            webhook: None,
        },
    });
    plan
}

fn any_host() -> impl Strategy<Value = String> {
    let name = prop::sample::select(&NAMES[..5]);
    let to = prop_oneof![
        4 => (prop::sample::select(&["", "", "*.", "**."][..]), name)
            .prop_map(|(star, name)| format!("{star}{name}")),
        1 => Just("every host".to_owned()),
        1 => Just("host.ironcage".to_owned()),
        1 => prop::sample::select(&ADDRESSES[..]).prop_map(str::to_owned),
        1 => Just("10.0.0.0/8".to_owned()),
        1 => Just("8.0.0.0/8".to_owned()),
    ];
    let port = prop::sample::select(&["", ":*", ":22", ":443", ":5432"][..]);
    (to, port).prop_map(|(to, port)| format!("{to}{port}"))
}

fn any_requests() -> impl Strategy<Value = String> {
    let methods = prop::sample::select(&["", "GET ", "POST,GET ", "DELETE "][..]);
    let star = prop::sample::select(&["", "*.", "**."][..]);
    let name = prop::sample::select(&NAMES[..5]);
    let path = prop::sample::select(&["/**", "/a/**", "/a/*", "/a", "/*/b", "/**/c", "/a*"][..]);
    (methods, star, name, path).prop_map(|(m, s, n, p)| format!("{m}{s}{n}{p}"))
}

fn any_extent() -> impl Strategy<Value = Extent> {
    prop_oneof![
        4 => any_host().prop_map(|text| Extent::Host(text.parse().unwrap())),
        3 => any_requests().prop_map(|text| Extent::Http(text.parse().unwrap())),
        1 => prop::sample::select(&["ONE", "TWO"][..]).prop_map(|n| Extent::Secret(n.into())),
        1 => prop::sample::select(&["/run/a", "/run/b"][..]).prop_map(|p| Extent::Socket(p.into())),
        1 => prop::sample::select(&["*", "*:80", "22:80", "22:*"][..])
            .prop_map(|p| Extent::Port(p.parse::<PortPattern>().unwrap())),
        1 => (any_limit(), 0..40_u64).prop_map(|(limit, value)| Extent::Limit { limit, value }),
        1 => Just(Extent::Syscalls("debug".into())),
    ]
}

fn any_limit() -> impl Strategy<Value = LimitKind> {
    prop::sample::select(&[LimitKind::Memory, LimitKind::Pids, LimitKind::Disk][..])
}

fn any_resource() -> impl Strategy<Value = Resource> {
    let port = prop::sample::select(&[0_u16, 22, 80][..]);
    prop_oneof![
        4 => any_host().prop_map(|text| Resource::Host { rule: text.parse().unwrap() }),
        3 => any_requests().prop_map(|text| Resource::Http { rule: text.parse().unwrap() }),
        1 => prop::sample::select(&["ONE", "TWO"][..])
            .prop_map(|name| Resource::Secret { name: name.into() }),
        1 => prop::sample::select(&["/run/a", "/run/b", "/run/../run/a"][..])
            .prop_map(|path| Resource::Socket { path: path.into() }),
        1 => (port.clone(), port).prop_map(|(outer, inner)| Resource::Port {
            publish: Publish { outer, inner },
        }),
        1 => (any_limit(), 0..60_u64).prop_map(|(limit, value)| Resource::Limit { limit, value }),
        1 => Just(Resource::Syscalls { group: "debug".into() }),
        1 => Just(Resource::Path { path: "/srv".into(), right: ironcage_model::Right::Write }),
    ]
}

/// One thing that can happen, and that a part of a ceiling or a lease is about or not.
#[derive(Debug, Clone, Copy)]
enum Point {
    Connection(&'static str, u16),
    Address(&'static str, u16),
    Request(&'static str, &'static str, u16, &'static str),
}

fn points() -> Vec<Point> {
    let mut all = Vec::new();
    for port in PORTS {
        all.extend(NAMES.map(|name| Point::Connection(name, port)));
        all.extend(ADDRESSES.map(|address| Point::Address(address, port)));
    }
    for name in NAMES {
        for method in METHODS {
            all.extend(PATHS.map(|path| Point::Request(method, name, 443, path)));
        }
    }
    all
}

fn named(text: &str) -> HostName {
    HostName::from_ascii(text.as_bytes()).unwrap()
}

fn asks(rule: &HttpRule, point: Point) -> bool {
    match point {
        Point::Request(method, name, port, path) => {
            rule.is_about(&named(name), port)
                && rule.allows(method, &RequestPath::read(path).unwrap())
        }
        _ => false,
    }
}

/// Whether a rule over hosts, as the proxy reads it, lets something happen. Every host does not
/// mean the host itself, nor special addresses.
fn lets(rule: &ironcage_model::HostRule, point: Point) -> bool {
    use ironcage_model::{Destination, HOST_NAME, special};
    let any = rule.to == Destination::Any;
    match point {
        Point::Connection(HOST_NAME, port) => {
            rule.to.is_name(HOST_NAME) && rule.ports.contains(port)
        }
        Point::Connection(name, port) | Point::Request(_, name, port, _) => {
            name != HOST_NAME && rule.names(&named(name), port)
        }
        Point::Address(text, port) => {
            let address = text.parse().unwrap();
            rule.covers(address, port) && !(any && special(address).is_some())
        }
    }
}

fn is_about(extent: &Extent, point: Point) -> bool {
    match extent {
        Extent::Host(rule) => lets(rule, point),
        Extent::Http(rule) => asks(rule, point),
        _ => false,
    }
}

fn allows(resource: &Resource, point: Point) -> bool {
    match resource {
        Resource::Host { rule } => lets(rule, point),
        Resource::Http { rule } => asks(rule, point),
        _ => false,
    }
}

/// What holds of everything that was given.
fn within(leases: &Leases, lease: &Lease) -> Result<(), String> {
    let marked = |mark: Mark| {
        let parts = leases.others.iter().map(|item| &item.what);
        parts
            .filter(move |part| part.mark == mark)
            .map(|part| &part.extent)
    };
    let allowing = || {
        let marks = [Mark::Auto, Mark::Ask];
        marks.into_iter().flat_map(marked)
    };
    let auto = lease.approver == Approver::Policy;
    if !auto && lease.origin != LeaseOrigin::Operator {
        return Err("approved by nobody".into());
    }
    for point in points()
        .into_iter()
        .filter(|point| allows(&lease.resource, *point))
    {
        if marked(Mark::Deny).any(|extent| is_about(extent, point)) {
            return Err(format!("{point:?} is denied"));
        }
        let given = |mark| marked(mark).any(|extent| is_about(extent, point));
        if auto
            && !(given(Mark::Always) && given(Mark::Ask))
            && (!given(Mark::Auto) || given(Mark::Ask))
        {
            return Err(format!("nobody was asked for {point:?}"));
        }
        if !given(Mark::Auto) && !given(Mark::Ask) {
            return Err(format!("no part gives {point:?}"));
        }
    }
    let some = |holds: &dyn Fn(&Extent) -> bool| {
        let allowed = allowing().any(holds);
        match allowed && !marked(Mark::Deny).any(holds) {
            true => Ok(()),
            false => Err("no part gives it, or one denies it".to_owned()),
        }
    };
    match &lease.resource {
        Resource::Host { .. } | Resource::Http { .. } => {}
        Resource::Secret { name } => some(&|extent| *extent == Extent::Secret(name.clone()))?,
        Resource::Socket { path } => some(&|extent| *extent == Extent::Socket(path.clone()))?,
        Resource::Port { publish } => some(&|extent| match extent {
            Extent::Port(PortPattern { outer, inner }) => {
                outer.is_none_or(|outer| outer == publish.outer)
                    && inner.is_none_or(|inner| inner == publish.inner)
            }
            _ => false,
        })?,
        Resource::Limit { limit, value } => {
            let most = allowing().filter_map(|extent| match extent {
                Extent::Limit { limit: own, value } if own == limit => Some(*value),
                _ => None,
            });
            let least = marked(Mark::Deny).filter_map(|extent| match extent {
                Extent::Limit { limit: own, value } if own == limit => Some(*value),
                _ => None,
            });
            if most.max().is_none_or(|most| *value > most)
                || least.min().is_some_and(|least| *value >= least)
            {
                return Err("more than the ceiling".into());
            }
        }
        other => return Err(format!("{other} is never given to a cage")),
    }
    match lease.term {
        Term::Milliseconds(time) if time <= 60_000 => Ok(()),
        other => Err(format!("too long: {other:?}")),
    }
}

/// One step: a request, or the end of an open lease.
#[derive(Debug, Clone)]
enum Step {
    Ask(Resource, Term, Option<u32>, LeaseOrigin),
    End(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    let term = prop_oneof![
        Just(Term::UntilRevoked),
        any::<u64>().prop_map(Term::Milliseconds)
    ];
    let uses = prop::option::weighted(0.2, 0..3_u32);
    let origin = prop::sample::select(
        &[
            LeaseOrigin::ToolCall,
            LeaseOrigin::Ask,
            LeaseOrigin::Answer,
            LeaseOrigin::Operator,
        ][..],
    );
    prop_oneof![
        6 => (any_resource(), term, uses, origin).prop_map(|(r, t, u, o)| Step::Ask(r, t, u, o)),
        1 => (0..8_usize).prop_map(Step::End),
    ]
}

fn any_parts() -> impl Strategy<Value = Vec<Item<LeasePart>>> {
    // Those that give something more often than those that take.
    let mark = prop_oneof![
        1 => Just(Mark::Always),
        3 => Just(Mark::Auto),
        3 => Just(Mark::Ask),
        2 => Just(Mark::Deny),
    ];
    let one = (any_extent(), mark);
    prop::collection::vec(one.prop_map(|(extent, mark)| part(extent, mark)), 1..6)
}

/// Lets a sequence run; how many were given and refused.
fn run(parts: Vec<Item<LeasePart>>, steps: Vec<Step>) -> Result<(u32, u32), String> {
    let plan = plan(parts);
    let leases = plan.leases.clone().unwrap();
    let mut history = History::default();
    let (mut given, mut refused) = (0, 0);
    for (number, step) in steps.into_iter().enumerate() {
        let (resource, term, uses, origin) = match step {
            Step::End(index) => {
                if index < history.open.len() {
                    history.open.remove(index);
                }
                continue;
            }
            Step::Ask(resource, term, uses, origin) => (resource, term, uses, origin),
        };
        let asked = RequestedLease {
            what: RequestedResource::Other(&resource),
            term,
            uses,
            scope: Scope::Cage,
            origin,
            approved: false,
        };
        let Decision::Granted(got) = decide(&plan, &asked, &history) else {
            refused += 1;
            continue;
        };
        given += 1;
        if got.resource != resource || got.uses != uses || uses == Some(0) {
            return Err(format!("{resource} was asked for, and {got:?} given"));
        }
        let lease = Lease {
            number: number as u32,
            resource: got.resource,
            scope: Scope::Cage,
            term: got.term,
            uses: got.uses,
            reason: String::new(),
            origin,
            approver: got.approver,
        };
        within(&leases, &lease).map_err(|why| format!("{lease:?}: {why}"))?;
        history.open.push(lease);
        if history.open.len() > MOST_OPEN {
            return Err("too many are open".into());
        }
    }
    Ok((given, refused))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_sequence_of_requests_yields_anything_outside_of_the_ceiling(
        parts in any_parts(),
        steps in prop::collection::vec(any_step(), 1..30),
    ) {
        let ran = run(parts, steps);
        prop_assert!(ran.is_ok(), "{:?}", ran);
    }
}

#[test]
fn generated_sequences_do_yield_leases() {
    // The property above says nothing if nothing is ever given.
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut given, mut refused) = (0, 0);
    for _ in 0..200 {
        let parts = any_parts().new_tree(&mut runner).unwrap().current();
        let steps = prop::collection::vec(any_step(), 1..30);
        let steps = steps.new_tree(&mut runner).unwrap().current();
        let found = run(parts, steps).unwrap();
        given += found.0;
        refused += found.1;
    }
    assert!(
        given > 50 && refused > 500,
        "{given} given, {refused} refused"
    );
}

#[test]
fn what_the_base_gives_or_denies_needs_no_lease_or_gets_none() {
    let layer = FlagLayer {
        allow_hosts: vec!["base.com".to_owned()],
        deny_hosts: vec!["never.com".to_owned()],
        ..FlagLayer::default()
    };
    let mut plan = plan_of("shell", layer, &request(), &host(Privilege::User)).unwrap();
    let listed = ironcage_plan::RequestRule {
        rule: "GET listed.com/a/**".parse().unwrap(),
    };
    plan.network.as_mut().unwrap().http.push(Item {
        what: listed,
        origin: "test".into(),
    });
    plan.leases = self::plan(vec![part(
        Extent::Host("every host:*".parse().unwrap()),
        Mark::Auto,
    )])
    .leases;
    let verdict = |resource: Resource| {
        let asked = RequestedLease {
            what: RequestedResource::Other(&resource),
            term: Term::UntilRevoked,
            uses: None,
            scope: Scope::Cage,
            origin: LeaseOrigin::ToolCall,
            approved: false,
        };
        match decide(&plan, &asked, &History::default()) {
            Decision::Granted(_) => "given",
            Decision::InBase { .. } => "there anyway",
            Decision::Pending { .. } => "asked",
            Decision::Denied { .. } => "refused",
        }
    };
    let host = |text: &str| Resource::Host {
        rule: text.parse().unwrap(),
    };
    let http = |text: &str| Resource::Http {
        rule: text.parse().unwrap(),
    };
    assert_eq!(verdict(host("other.com")), "given");
    assert_eq!(verdict(host("base.com:443")), "there anyway");
    assert_eq!(verdict(http("GET base.com/x")), "there anyway");
    assert_eq!(verdict(host("never.com")), "refused");
    assert_eq!(verdict(host("host.ironcage:22")), "refused");
    // Its requests are listed: a lease adds to the list.
    assert_eq!(verdict(host("listed.com")), "refused");
    assert_eq!(verdict(http("GET listed.com/a/b")), "there anyway");
    assert_eq!(verdict(http("POST listed.com/a")), "given");
}
