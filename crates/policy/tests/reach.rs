//! What lies in the reach of a policy, and that nothing else does.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ironcage_model::{Mark, Resource, Right};
use ironcage_policy::{
    Amounts, Limits, Policy, Reach, Sources, child_policy, profiles, resolve, resolve_profile,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::Cell;
use std::path::{Path, PathBuf};

const WORKSPACE: &str = "/w";
const PATHS: [&str; 6] = [
    "/srv/a",
    "/srv/a/x",
    "/srv/a/x/1",
    "/srv/b",
    "/srv/b/y",
    "/srv/ab",
];
const HOSTS: [&str; 6] = [
    "a.test",
    "*.a.test",
    "**.a.test",
    "x.a.test:443",
    "b.test:22",
    "192.0.2.0/24:443",
];
const GROUPS: [&str; 2] = ["debug", "perf"];

fn amounts(limits: &Limits) -> Amounts {
    let share = |text: String| match text.strip_suffix('%') {
        Some(percent) => percent.parse::<u64>().unwrap() << 20,
        None => 1 << 20,
    };
    Amounts {
        memory: share(limits.memory.value.to_string()),
        cpu: 1,
        disk: 1,
    }
}

fn policy(text: &str) -> Policy {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("p.toml");
    std::fs::write(&file, format!("extends = \"shell\"\n{text}")).unwrap();
    let sources = Sources {
        policy_file: Some(file),
        workspace: WORKSPACE.into(),
        home: "/home/u".into(),
        ..Sources::default()
    };
    resolve(&sources).unwrap().policy
}

/// A policy from a small vocabulary, so that two of them often have to do with each other: what
/// it allows, denies and leases, one bit for each entry. Paths of the base would have to exist.
type Bits = [u8; 8];

fn list(items: &[&str], bits: u8) -> String {
    let chosen = items.iter().enumerate();
    let chosen = chosen.filter(|(at, _)| bits >> at & 1 == 1);
    let texts: Vec<String> = chosen.map(|(_, item)| format!("\"{item}\"")).collect();
    texts.join(", ")
}

fn made(bits: Bits) -> Policy {
    policy(&text(bits))
}

fn text([allow, deny, groups, ask, auto, denied, hosts, leased]: Bits) -> String {
    format!(
        "[network]\nallow = [{}]\ndeny = [{}]\n[syscalls]\ngroups = [{}]\n\
         [ceiling.ask.files]\nread = [{}]\n[ceiling.auto.files]\nwrite = [{}]\n[ceiling.deny.files]\nread = [{}]\n\
         [ceiling.ask.network]\nallow = [{}]\n[ceiling.ask.syscalls]\ngroups = [{}]\n",
        list(&HOSTS, allow),
        list(&HOSTS[3..], deny & deny >> 4),
        list(&GROUPS, groups),
        list(&PATHS, ask),
        list(&PATHS, auto & auto >> 2),
        list(&PATHS[2..3], denied),
        list(&HOSTS, hosts),
        list(&GROUPS, leased),
    )
}

/// Two policies: any two, or one that was made of the other by leaving things out.
fn two() -> impl Strategy<Value = (Policy, Policy)> {
    (any::<Bits>(), any::<Bits>(), any::<bool>()).prop_map(|(outer, other, any)| {
        let mut inner = other;
        if !any {
            for (at, bits) in inner.iter_mut().enumerate() {
                // What is denied stays so, and `auto` is not left for a moment.
                *bits = match at {
                    1 | 4 | 5 => outer[at],
                    _ => *bits & outer[at],
                };
            }
        }
        (made(inner), made(outer))
    })
}

/// Single things that can be asked for, not rules.
fn things() -> Vec<Resource> {
    let hosts = [
        "a.test:443",
        "a.test:80",
        "x.a.test:443",
        "y.x.a.test:80",
        "b.test:22",
        "b.test:443",
        "192.0.2.7:443",
        "ba.test:443",
    ];
    let hosts = hosts.map(|text| Resource::Host {
        rule: text.parse().unwrap(),
    });
    let groups = GROUPS.map(|group| Resource::Syscalls {
        group: group.into(),
    });
    hosts.into_iter().chain(groups).collect()
}

#[test]
fn what_is_within_reaches_nothing_that_the_other_does_not() {
    let workspace = Path::new(WORKSPACE);
    let mut runner = TestRunner::new_with_rng(
        Config::with_cases(400),
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let within = Cell::new(0);
    let run = runner.run(&two(), |(inner, outer)| {
        let bound = Reach::through(&outer, workspace, Mark::Ask);
        if !bound.lacks(&inner, amounts).is_empty() {
            return Ok(());
        }
        within.set(within.get() + 1);
        for mark in [Mark::Auto, Mark::Ask] {
            let own = Reach::through(&inner, workspace, mark);
            for thing in things() {
                prop_assert!(!own.gives(&thing) || bound.gives(&thing), "{thing}");
            }
            for path in PATHS.iter().map(|path| PathBuf::from(path).join("deep")) {
                for right in [Right::Read, Right::Write] {
                    let within = !own.path(&path, right) || bound.path(&path, right);
                    prop_assert!(within, "{path:?}");
                }
            }
        }
        Ok(())
    });
    run.unwrap();
    assert!(
        within.get() > 20,
        "only {} pairs said anything",
        within.get()
    );
}

#[test]
fn every_profile_is_within_itself() {
    for profile in profiles() {
        let policy = resolve_profile(profile.name, Path::new("/home/u")).unwrap();
        let bound = Reach::through(&policy, Path::new(WORKSPACE), Mark::Ask);
        assert_eq!(
            bound.lacks(&policy, amounts),
            Vec::<String>::new(),
            "{}",
            profile.name
        );
    }
}

#[test]
fn the_base_alone_reaches_less_than_with_the_ceiling() {
    let policy = policy(
        "[ceiling.ask.network]\nallow = [\"a.test\"]\n[ceiling.auto.syscalls]\ngroups = [\"debug\"]\n",
    );
    let workspace = Path::new(WORKSPACE);
    let host = Resource::Host {
        rule: "a.test:443".parse().unwrap(),
    };
    let group = Resource::Syscalls {
        group: "debug".into(),
    };
    assert!(!Reach::of_base(&policy, workspace).gives(&host));
    assert!(!Reach::through(&policy, workspace, Mark::Auto).gives(&host));
    assert!(Reach::through(&policy, workspace, Mark::Ask).gives(&host));
    assert!(Reach::through(&policy, workspace, Mark::Auto).gives(&group));
}

#[test]
fn what_is_beyond_is_named() {
    let outer = policy("[limits]\nmemory = \"10%\"\n[files]\nhide = [\"/usr\"]\n");
    let inner = policy(
        "[limits]\nmemory = \"20%\"\n[network]\nallow = [\"a.test\"]\n[syscalls]\ngroups = [\"debug\"]\n",
    );
    let bound = Reach::through(&outer, Path::new(WORKSPACE), Mark::Ask);
    let beyond = bound.lacks(&inner, amounts);
    for part in [
        "limits.memory: 20%",
        "network.allow: a.test",
        "syscalls.groups: debug",
        "without files.hide: /usr",
    ] {
        assert!(beyond.iter().any(|one| one == part), "{part}: {beyond:?}");
    }
    assert_eq!(beyond.len(), 4, "{beyond:?}");
}

/// The policy of a child, or why there is none.
fn child(parent: &Policy, text: Option<&str>) -> Result<Policy, String> {
    let at = (Path::new(WORKSPACE), Path::new("/home/u"));
    child_policy(parent, text, at, amounts).map_err(|error| error.to_string())
}

#[test]
fn a_child_reaches_nothing_that_its_parent_does_not_and_by_no_looser_mark() {
    let workspace = Path::new(WORKSPACE);
    let mut runner = TestRunner::new_with_rng(
        Config::with_cases(400),
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let opened = Cell::new(0);
    let bits = (any::<Bits>(), any::<Bits>(), any::<bool>());
    let run = runner.run(&bits, |(outer, mut inner, any)| {
        if !any {
            for (own, outer) in inner.iter_mut().zip(outer) {
                *own &= outer;
            }
        }
        // Leases of paths are never a child's.
        inner[3] = 0;
        inner[4] = 0;
        let outer = policy(&format!("{}[ceiling]\nchildren = 1\n", text(outer)));
        let Ok(inner) = child(&outer, Some(&text(inner))) else {
            return Ok(());
        };
        opened.set(opened.get() + 1);
        for mark in [None, Some(Mark::Auto), Some(Mark::Ask)] {
            let reach = |policy| match mark {
                None => Reach::of_base(policy, workspace),
                Some(mark) => Reach::through(policy, workspace, mark),
            };
            for thing in things() {
                let within = !reach(&inner).gives(&thing) || reach(&outer).gives(&thing);
                prop_assert!(within, "{thing}");
            }
            for path in PATHS.iter().map(|path| PathBuf::from(path).join("deep")) {
                for right in [Right::Read, Right::Write] {
                    let within =
                        !reach(&inner).path(&path, right) || reach(&outer).path(&path, right);
                    prop_assert!(within, "{path:?}");
                }
            }
        }
        Ok(())
    });
    run.unwrap();
    assert!(opened.get() > 20, "only {} were opened", opened.get());
}

#[test]
fn a_child_is_refused_what_its_parent_has_not_and_told_what_that_is() {
    let parent = policy(
        "[network]\nallow = [\"a.test\"]\n[network.secrets.TOKEN]\nhosts = [\"a.test\"]\n\
         [ceiling]\nchildren = 2\n[ceiling.ask.network]\nallow = [\"b.test\"]\n[env]\nset = { A = \"1\" }\n\
         [taint]\nask = true\n",
    );
    for (text, why) in [
        ("[taint]\nask = false\n", "taint.ask: false"),
        ("[network]\nallow = [\"c.test\"]\n", "network.allow: c.test"),
        // To be asked for is not to be had, and not to be had at once.
        ("[network]\nallow = [\"b.test\"]\n", "network.allow: b.test"),
        (
            "[ceiling.auto.network]\nallow = [\"b.test\"]\n",
            "ceiling.auto.network.allow: b.test",
        ),
        ("[files]\nread = [\"/etc\"]\n", "files.read: /etc"),
        ("[files]\nread = [\"~/.ssh\"]\n", "files.read: /home/u/.ssh"),
        ("[files]\nhide = [\"/w/x\"]\n", "files.hide: /w/x"),
        ("[workspace]\nmode = \"direct\"\n", "workspace.mode: direct"),
        ("[limits]\nmemory = \"99%\"\n", "limits.memory: 99%"),
        (
            "[limits]\npids = 3\n",
            "limits.pids: a child counts against",
        ),
        ("[ceiling]\nchildren = 2\n", "ceiling.children: 2"),
        (
            "[ceiling.ask.files]\nread = [\"/w\"]\n",
            "only the parent can lease paths",
        ),
        ("[env]\npass = [\"HOME_KEY\"]\n", "env.pass: HOME_KEY"),
        ("[env]\nset = { A = \"2\" }\n", "env.set: A"),
        (
            "[questions]\nnotify = [\"/bin/sh\", \"-c\", \"id\"]\n",
            "questions: a child always has",
        ),
        (
            "[network.secrets.TOKEN]\nfrom = \"env:OTHER\"\nhosts = [\"a.test\"]\n",
            "network.secrets: TOKEN",
        ),
        ("isolation = \"chroot\"\n", "isolation: chroot"),
        (
            "[ceiling]\ncedar = \"rules.cedar\"\n",
            "ceiling.cedar: a child always has",
        ),
        ("extends = \"./base.toml\"\n", "but not a file"),
        ("extends = \"/etc/ironcage.toml\"\n", "but not a file"),
        ("[network\n", "the child's policy"),
    ] {
        let refused = child(&parent, Some(text)).unwrap_err();
        assert!(refused.contains(why), "{text}: {refused}");
    }
    // What it has, and what may be asked for there, it can have.
    let text = "[network]\nallow = [\"a.test\"]\n[network.secrets.TOKEN]\nhosts = [\"a.test\"]\n\
                [ceiling]\nchildren = 1\n[ceiling.ask.network]\nallow = [\"b.test\"]\n";
    let own = child(&parent, Some(text)).unwrap();
    assert_eq!(own.network.allow.len(), 1);
    assert_eq!(own.ceiling.children.value, 1);
    // Without a word it has what its parent has, but no children.
    let same = child(&parent, None).unwrap();
    assert_eq!(same.network, parent.network);
    assert_eq!(same.ceiling.children.value, 0);
}

#[test]
fn a_child_goes_past_no_rule_over_requests_and_sees_nothing_that_a_pattern_hides() {
    let parent = policy(
        "[files]\nread = [\"/usr\"]\nhide = [\"/usr/**/*.pem\"]\n\
         [network]\nmode = \"open\"\nhttp = [\"GET api.test/ok/**\"]\n[ceiling]\nchildren = 1\n",
    );
    let open = "extends = \"shell\"\n[network]\nmode = \"open\"\n";
    let refused = child(&parent, Some(open)).unwrap_err();
    assert!(refused.contains("without network.http"), "{refused}");
    for rule in ["GET api.test/ok/**", "GET api.test/ok/one"] {
        let ruled = format!("{open}http = [\"{rule}\"]\n");
        child(&parent, Some(&ruled)).unwrap();
    }
    let reach = Reach::of_base(&parent, Path::new(WORKSPACE));
    for (path, seen) in [
        ("/usr/share/key.pem", false),
        ("/usr/share/dir.pem/below", false),
        ("/usr/share/key.txt", true),
    ] {
        assert_eq!(reach.path(Path::new(path), Right::Read), seen, "{path}");
    }
    // Whose caches it has is not its own to say.
    let other = child(&parent, Some("extends = \"strict\"\n"));
    assert_eq!(other.unwrap().profile.value, parent.profile.value);
}
