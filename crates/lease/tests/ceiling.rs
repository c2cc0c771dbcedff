//! No sequence of requests, however hostile, yields anything outside of the ceiling.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../plan/tests/made_up/mod.rs"]
mod made_up;
#[path = "ceiling/sequences.rs"]
mod sequences;
#[path = "ceiling/task.rs"]
mod task;

use ironcage_host::Privilege;
use ironcage_lease::{
    Decision, Facts, History, MOST_ASKED, MOST_OPEN, MOST_OPEN_BY_AGENT, Node, RequestedLease,
    RequestedPath, RequestedResource, Words, decide,
};
use ironcage_model::{
    Announced, Approver, Holders, Lease, LeaseOrigin, Mark, Resource, Right, Scope, Term,
};
use ironcage_plan::{ClosedPlace, Item, LeasePath, Leases, PermissionRequestTerms, Plan};
use ironcage_policy::FlagLayer;
use made_up::{host, plan_of, request};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn part(path: &str, right: Right, mark: Mark) -> Item<LeasePath> {
    Item {
        what: LeasePath {
            path: path.into(),
            right,
            mark,
        },
        origin: "test".into(),
    }
}

fn closed_for_writing(path: &str) -> Item<ClosedPlace> {
    Item {
        what: ClosedPlace {
            path: path.into(),
            right: Right::Write,
        },
        origin: "a policy file".into(),
    }
}

fn leases(paths: Vec<Item<LeasePath>>) -> Leases {
    Leases {
        paths,
        others: Vec::new(),
        cedar: Vec::new(),
        closed: vec![closed_for_writing("/srv/policy.toml")],
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
        homes: vec!["/home/ann".into()],
        i_know: false,
        judge: Vec::new(),
        questions: PermissionRequestTerms {
            expire: None,
            remember: Duration::ZERO,
            key: "ctrl-^".parse().unwrap(),
            notify: Vec::new(),
            webhook: None,
        },
    }
}

fn plan(paths: Vec<Item<LeasePath>>) -> Plan {
    let mut plan = plan_of(
        "shell",
        FlagLayer::default(),
        &request(),
        &host(Privilege::User),
    )
    .unwrap();
    plan.leases = Some(leases(paths));
    plan
}

fn asked(path: &Path, right: Right, origin: LeaseOrigin) -> RequestedLease<'_> {
    let facts = Facts {
        node: Node::Directory,
        executed: None,
    };
    RequestedLease {
        what: RequestedResource::Path(RequestedPath { path, right, facts }),
        term: Term::UntilRevoked,
        uses: None,
        scope: Scope::Cage,
        origin,
        approved: false,
    }
}

fn verdict(plan: &Plan, path: &str, right: Right, origin: LeaseOrigin) -> &'static str {
    match decide(
        plan,
        &asked(Path::new(path), right, origin),
        &History::default(),
    ) {
        Decision::Granted(given) => match given.approver {
            Approver::Policy => "given",
            Approver::Operator => "given by the operator",
        },
        Decision::InBase { .. } => "there anyway",
        Decision::Pending { .. } => "asked",
        Decision::Denied { .. } => "refused",
    }
}

const READ: Right = Right::Read;
const WRITE: Right = Right::Write;
const TOOL: LeaseOrigin = LeaseOrigin::ToolCall;
const OPERATOR: LeaseOrigin = LeaseOrigin::Operator;

#[test]
fn no_lease_covers_what_the_cage_has() {
    // The operator's own, too: the real files would be laid over the change that is kept aside.
    let mut plan = plan(vec![
        part("/home/ann", WRITE, Mark::Auto),
        part("/srv", WRITE, Mark::Auto),
    ]);
    let leases = plan.leases.as_mut().unwrap();
    leases.i_know = true;
    let workspace = plan.workspace.clone();
    let around = workspace.parent().unwrap().to_str().unwrap().to_owned();
    assert!(workspace.starts_with("/home/ann"), "{around}");
    for origin in [LeaseOrigin::Operator, LeaseOrigin::ToolCall] {
        for right in [READ, WRITE] {
            assert_eq!(verdict(&plan, &around, right, origin), "refused");
            assert_eq!(verdict(&plan, "/srv/beside", right, origin), "given");
        }
    }
    let why = decide(
        &plan,
        &asked(Path::new(&around), WRITE, LeaseOrigin::Operator),
        &History::default(),
    );
    let Decision::Denied { reason } = why else {
        panic!("{why:?}");
    };
    assert_eq!(reason.code(), Some("lease-path-covers-view"));
}

#[test]
fn a_leased_workspace_is_written_as_its_profile_says_and_nothing_around_it_is() {
    for (profile, by_a_tool) in [("coding-agent-locked", "given"), ("strict", "asked")] {
        let (request, host) = (request(), host(Privilege::User));
        let mut plan = plan_of(profile, FlagLayer::default(), &request, &host).unwrap();
        let project = plan.workspace.to_str().unwrap().to_owned();
        // What the host executes is kept aside like everything else.
        for name in ["", "/src", "/.git/hooks", "/made/of/words"] {
            let path = format!("{project}{name}");
            assert_eq!(verdict(&plan, &path, READ, TOOL), "there anyway", "{path}");
            assert_eq!(verdict(&plan, &path, WRITE, TOOL), by_a_tool, "{path}");
        }
        for path in [
            "/home/ann",
            "/home/ann/projects",
            "/home/ann/other",
            "/etc",
            "/",
        ] {
            assert_eq!(verdict(&plan, path, WRITE, OPERATOR), "refused", "{path}");
        }
        // A command whose writes cannot be read is leased it only if nobody is asked.
        let at_once = profile == "coding-agent-locked";
        assert_eq!(plan.writes_at_once(Path::new(&project)), at_once);
        assert!(!plan.writes_at_once(Path::new("/home/ann/other")));
        let leases = plan.leases.as_mut().unwrap();
        let mut hidden = closed_for_writing(&format!("{project}/keys"));
        hidden.what.right = READ;
        leases.closed.push(hidden);
        leases
            .paths
            .push(part(&format!("{project}/no"), READ, Mark::Deny));
        assert!(
            !plan.writes_at_once(Path::new(&project)),
            "a part is denied"
        );
        let src = format!("{project}/src");
        assert_eq!(plan.writes_at_once(Path::new(&src)), at_once);
        for (name, said) in [
            ("/keys", "refused"),
            ("/keys/one", "refused"),
            ("/no", "refused"),
            ("/no/deeper", "refused"),
            // It would come along.
            ("", "refused"),
        ] {
            let path = format!("{project}{name}");
            assert_eq!(verdict(&plan, &path, WRITE, OPERATOR), said, "{path}");
        }
        let by_hand = verdict(&plan, &src, WRITE, OPERATOR);
        assert!(by_hand.starts_with("given"), "{by_hand}");
    }
}

#[test]
fn each_mark_does_what_it_says_and_the_strictest_wins() {
    let plan = plan(vec![
        part("/srv/a", READ, Mark::Auto),
        part("/srv/a", WRITE, Mark::Ask),
        part("/srv/b", WRITE, Mark::Auto),
        part("/srv/b/private", READ, Mark::Ask),
        part("/srv/b/secret", READ, Mark::Deny),
        part("/srv/b/fixed", WRITE, Mark::Deny),
        // Ask around what is given at once, and once more in it.
        part("/srv/c", READ, Mark::Ask),
        part("/srv/c/open", WRITE, Mark::Auto),
        part("/srv/c/open/not", READ, Mark::Ask),
        part("/srv/c/open/not/but", READ, Mark::Auto),
        part("/srv/c/open/never", READ, Mark::Deny),
    ]);
    for (path, right, origin, wanted) in [
        ("/srv/a", READ, TOOL, "given"),
        ("/srv/a/deep/er", READ, TOOL, "given"),
        ("/srv/a", WRITE, TOOL, "asked"),
        ("/srv/a", WRITE, OPERATOR, "given by the operator"),
        ("/srv/b/x", WRITE, TOOL, "given"),
        ("/srv/b/private/x", READ, TOOL, "asked"),
        ("/srv/b/private/x", WRITE, TOOL, "asked"),
        ("/srv/b/secret", READ, OPERATOR, "refused"),
        ("/srv/b/secret/x", WRITE, OPERATOR, "refused"),
        // What is around something denied brings it along.
        ("/srv/b", READ, OPERATOR, "refused"),
        ("/srv/b/fixed", READ, TOOL, "given"),
        ("/srv/b/fixed", WRITE, OPERATOR, "refused"),
        ("/srv/c", READ, TOOL, "refused"),
        ("/srv/c/x", READ, TOOL, "asked"),
        ("/srv/c/x", WRITE, OPERATOR, "refused"),
        ("/srv/c/open/x", READ, TOOL, "given"),
        ("/srv/c/open/x", WRITE, TOOL, "given"),
        ("/srv/c/open/never", READ, OPERATOR, "refused"),
        ("/srv/c/open/not", READ, TOOL, "asked"),
        ("/srv/c/open/not/x", WRITE, TOOL, "asked"),
        ("/srv/c/open/not/but/x", READ, TOOL, "given"),
        // Names that only begin alike.
        ("/srv/ab", READ, OPERATOR, "refused"),
        ("/srv", READ, OPERATOR, "refused"),
        ("/srv/a/../b", READ, OPERATOR, "refused"),
        ("/srv/a/./x", READ, OPERATOR, "refused"),
        ("srv/a", READ, OPERATOR, "refused"),
    ] {
        assert_eq!(
            verdict(&plan, path, right, origin),
            wanted,
            "{right:?} {path}"
        );
    }
}

#[test]
fn what_is_never_given_is_not_even_where_the_ceiling_names_it() {
    let plan = plan(vec![part("/", WRITE, Mark::Auto)]);
    for never in [
        "/",
        "/proc/1",
        "/sys",
        "/dev/sda",
        "/home/ann/.ssh",
        "/home/ann",
        "/srv/repository/.git/hooks",
    ] {
        assert_eq!(verdict(&plan, never, WRITE, OPERATOR), "refused", "{never}");
    }
    assert_eq!(verdict(&plan, "/srv/data", WRITE, TOOL), "given");
    // Policy files can be read; nothing around them is written.
    assert_eq!(verdict(&plan, "/srv", READ, TOOL), "given");
    assert_eq!(verdict(&plan, "/srv", WRITE, OPERATOR), "refused");
    assert_eq!(
        verdict(&plan, "/srv/policy.toml", WRITE, OPERATOR),
        "refused"
    );
    assert_eq!(verdict(&plan, "/usr/bin", READ, TOOL), "there anyway");
    assert_eq!(
        verdict(&plan, "/home/ann/project/src", WRITE, TOOL),
        "there anyway"
    );
}

#[test]
fn facts_that_stand_against_it_are_heard() {
    let plan = plan(vec![part("/srv", WRITE, Mark::Auto)]);
    let path = Path::new("/srv/data");
    let given = |facts: Facts, right| {
        let asked = RequestedLease {
            what: RequestedResource::Path(RequestedPath { path, right, facts }),
            ..asked(path, right, TOOL)
        };
        matches!(
            decide(&plan, &asked, &History::default()),
            Decision::Granted(_)
        )
    };
    let facts = |node, executed: Option<&str>| Facts {
        node,
        executed: executed.map(str::to_owned),
    };
    assert!(given(facts(Node::File, None), WRITE));
    assert!(!given(facts(Node::Other, None), READ));
    assert!(!given(facts(Node::Directory, Some(".envrc")), WRITE));
    assert!(given(facts(Node::Directory, Some(".envrc")), READ));
}

#[test]
fn too_many_requests_and_too_many_leases_are_refused_with_their_reason() {
    let plan = plan(vec![part("/srv", READ, Mark::Auto)]);
    let path = Path::new("/srv/data");
    let mut history = History {
        open: Vec::new(),
        asked: MOST_ASKED,
        ..History::default()
    };
    let decided = |history: &History, origin| decide(&plan, &asked(path, READ, origin), history);
    let code = |decision: Decision| match decision {
        Decision::Denied { reason } => reason.code().map(str::to_owned),
        other => panic!("{other:?}"),
    };
    let code = |history: &History, origin| code(decided(history, origin)).unwrap();
    assert_eq!(code(&history, TOOL), "lease-too-many-requests");
    assert!(matches!(decided(&history, OPERATOR), Decision::Granted(_)));
    history.asked = 0;
    let open = |history: &mut History, number: usize| {
        let other = lease(number as u32, &format!("/srv/other/{number}"), READ);
        history.open.push(other);
    };
    for number in 0..MOST_OPEN_BY_AGENT {
        assert!(matches!(decided(&history, TOOL), Decision::Granted(_)));
        open(&mut history, number);
    }
    assert_eq!(code(&history, TOOL), "lease-too-many-open");
    // The rest is for the operator.
    for number in MOST_OPEN_BY_AGENT..MOST_OPEN {
        assert!(matches!(decided(&history, OPERATOR), Decision::Granted(_)));
        open(&mut history, number);
    }
    assert_eq!(code(&history, OPERATOR), "lease-too-many-open");
}

fn lease(number: u32, path: &str, right: Right) -> Lease {
    Lease {
        number,
        resource: Resource::Path {
            path: path.into(),
            right,
        },
        scope: Scope::Cage,
        term: Term::UntilRevoked,
        uses: None,
        reason: String::new(),
        origin: OPERATOR,
        approver: Approver::Operator,
    }
}

#[test]
fn nothing_is_given_at_once_to_a_cage_that_is_distrusted_but_by_the_operator() {
    let plan = plan(vec![part("/srv", READ, Mark::Auto)]);
    for distrusted in [false, true] {
        let history = History {
            distrusted,
            ..History::default()
        };
        for origin in [TOOL, LeaseOrigin::Ask, LeaseOrigin::Answer] {
            let decided = decide(&plan, &asked(Path::new("/srv/a"), READ, origin), &history);
            assert_eq!(
                matches!(decided, Decision::Pending { .. }),
                distrusted,
                "{decided:?}"
            );
        }
        let decided = decide(&plan, &asked(Path::new("/srv/a"), READ, OPERATOR), &history);
        assert!(matches!(decided, Decision::Granted(_)), "{decided:?}");
    }
}

#[test]
fn what_strays_from_the_models_words_is_asked_for_and_what_they_name_is_given() {
    let plan = plan(vec![
        part("/srv/out", WRITE, Mark::Auto),
        part("/srv/data", READ, Mark::Auto),
    ]);
    let leases = plan.leases.as_ref().unwrap();
    let now = Instant::now();
    let write = |path: &str| Resource::Path {
        path: path.into(),
        right: WRITE,
    };
    let strays = |named: &[&str], wanted: &str| {
        let mut words = Words::default();
        words.hear(&announced(named), Some(leases), now);
        words.stray(&write(wanted), leases, now)
    };
    // Nothing that could be leased was named: nothing is contradicted.
    for quiet in [&[][..], &["/home/ann/project/main.rs"], &["/", "srv"]] {
        assert!(!strays(quiet, "/srv/out"), "{quiet:?}");
    }
    for said in ["/srv/out/table.csv", "/srv/out", "/srv/out/sub/x"] {
        assert!(!strays(&[said], "/srv/out"), "{said}");
    }
    assert!(!strays(&["/srv/out"], "/srv/out/sub"));
    assert!(strays(&["/srv/data/rows.csv"], "/srv/out"));
    // Later, the words are forgotten.
    let mut words = Words::default();
    words.hear(&announced(&["/srv/data/rows.csv"]), Some(leases), now);
    let later = now + Duration::from_secs(601);
    assert!(!words.stray(&write("/srv/out"), leases, later));
    for number in 0..1000 {
        let named = announced(&[&format!("/srv/data/{number}")]);
        words.hear(&named, Some(leases), now);
    }
    assert_eq!(words.naming(&write("/srv/data/1"), now), None);
    assert!(words.naming(&write("/srv/data/999"), now).is_some());
}

#[test]
fn junk_in_the_models_words_does_not_crowd_out_what_contradicts() {
    let plan = plan(vec![
        part("/srv/out", WRITE, Mark::Auto),
        part("/srv/data", READ, Mark::Auto),
    ]);
    let leases = plan.leases.as_ref().unwrap();
    let now = Instant::now();
    let wanted = Resource::Path {
        path: "/srv/out".into(),
        right: WRITE,
    };
    let mut words = Words::default();
    words.hear(&announced(&["/srv/data/rows.csv"]), Some(leases), now);
    for number in 0..1000 {
        let junk = Announced {
            paths: vec![format!("/home/ann/junk/{number}")],
            hosts: vec![format!("junk{number}.example")],
        };
        words.hear(&junk, Some(leases), now);
    }
    assert!(words.stray(&wanted, leases, now));
    // Nor does junk within the ceiling.
    for number in 0..1000 {
        let junk = announced(&[&format!("/srv/data/{number}")]);
        words.hear(&junk, Some(leases), now);
    }
    assert!(words.stray(&wanted, leases, now));
    // What is named at last is known still.
    words.hear(&announced(&["/srv/out/table.csv"]), Some(leases), now);
    assert!(!words.stray(&wanted, leases, now));
}

fn announced(paths: &[&str]) -> Announced {
    Announced {
        paths: paths.iter().map(|path| (*path).to_owned()).collect(),
        hosts: Vec::new(),
    }
}

#[test]
fn what_a_person_approved_is_given_within_the_ceiling_and_not_beyond() {
    let plan = plan(vec![
        part("/srv/asked", READ, Mark::Ask),
        part("/srv/no", READ, Mark::Deny),
    ]);
    for origin in [TOOL, LeaseOrigin::Ask, LeaseOrigin::Answer] {
        let decided = |path: &str, approved: bool| {
            let asked = RequestedLease {
                approved,
                ..asked(Path::new(path), READ, origin)
            };
            decide(&plan, &asked, &History::default())
        };
        assert!(matches!(
            decided("/srv/asked/a", false),
            Decision::Pending { .. }
        ));
        match decided("/srv/asked/a", true) {
            Decision::Granted(given) => assert_eq!(given.approver, Approver::Operator),
            other => panic!("{other:?}"),
        }
        for path in ["/srv/no", "/srv/elsewhere", "/proc/1"] {
            assert!(
                matches!(decided(path, true), Decision::Denied { .. }),
                "{path}"
            );
        }
    }
}

#[test]
fn what_is_approved_for_good_is_not_asked_for_again_and_denied_all_the_same() {
    let plan = plan(vec![
        part("/srv", READ, Mark::Ask),
        part("/srv/good", READ, Mark::Always),
        part("/srv/good/no", READ, Mark::Deny),
        part("/opt/alone", READ, Mark::Always),
    ]);
    for origin in [TOOL, LeaseOrigin::Ask, LeaseOrigin::Answer] {
        assert_eq!(verdict(&plan, "/srv/good/a", READ, origin), "given");
        assert_eq!(verdict(&plan, "/srv/other", READ, origin), "asked");
        // By itself it gives nothing.
        assert_eq!(verdict(&plan, "/opt/alone", READ, origin), "refused");
        assert_eq!(verdict(&plan, "/srv/good/no", READ, origin), "refused");
        assert_eq!(verdict(&plan, "/srv/good/a", WRITE, origin), "refused");
    }
}
