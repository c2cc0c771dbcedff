//! Copy-on-write views in plans: what is one, where its change goes, and where none can be.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod made_up;

use ironcage_host::{HostCaps, NodeType, Privilege};
use ironcage_plan::{Overlaid, Plan, Request, ViewOp, make};
use ironcage_policy::{FlagLayer, Origin, Policy, Sourced, WorkspaceMode};
use made_up::{Tree, compare, host, policy_of, request};
use std::path::{Path, PathBuf};

fn overlays(plan: &Plan) -> Vec<(Overlaid, PathBuf, PathBuf)> {
    let ops = plan.view.iter().filter_map(|item| match &item.what {
        ViewOp::Overlay {
            of, lower, upper, ..
        } => Some((*of, lower.clone(), upper.clone())),
        _ => None,
    });
    ops.collect()
}

fn writing(mode: WorkspaceMode, write: &str, direct: &str) -> Policy {
    let mut policy = policy_of(
        "shell",
        FlagLayer {
            workspace_mode: Some(mode),
            ..FlagLayer::default()
        },
    );
    let sourced = |path: &str| {
        Sourced::new(
            PathBuf::from(path),
            Origin::Flag {
                flag: "--write".into(),
            },
        )
    };
    policy
        .write
        .extend((!write.is_empty()).then(|| sourced(write)));
    policy
        .write_direct
        .extend((!direct.is_empty()).then(|| sourced(direct)));
    policy
}

#[test]
fn a_copy_on_write_workspace_is_the_plan_that_is_kept() {
    let mut wanted = request();
    wanted.git_directory = Some("/home/ann/main/.git".into());
    let mut tree = Tree::new();
    tree.add("/home/ann/main/.git", NodeType::Directory);
    let policy = writing(WorkspaceMode::Cow, "/srv/data", "");
    for (name, privilege) in [("cow", Privilege::User), ("cow-as-root", Privilege::Root)] {
        let host = host(privilege);
        // /srv/data is root's, and rootless only one's own can be copied.
        let policy = if privilege == Privilege::User {
            writing(WorkspaceMode::Cow, "", "")
        } else {
            policy.clone()
        };
        let plan = make(&policy, &wanted, &host, &tree).unwrap();
        compare(name, &plan);
    }
}

#[test]
fn what_is_written_beside_a_workspace_is_kept_aside_unless_the_user_works_on_real_files() {
    let host = host(Privilege::Root);
    let plan = |mode, write, direct| {
        make(
            &writing(mode, write, direct),
            &request(),
            &host,
            &Tree::new(),
        )
        .unwrap()
    };
    let data = PathBuf::from("/srv/data");
    let copied = |plan: &Plan| {
        let granted = overlays(plan)
            .into_iter()
            .find(|(_, lower, _)| *lower == data);
        granted.map(|(of, ..)| of)
    };
    for mode in [WorkspaceMode::Cow, WorkspaceMode::Scratch] {
        let plan = plan(mode, "/srv/data", "");
        assert_eq!(copied(&plan), Some(Overlaid::Granted), "{mode:?}");
    }
    assert_eq!(copied(&plan(WorkspaceMode::Direct, "/srv/data", "")), None);
    assert_eq!(copied(&plan(WorkspaceMode::Cow, "", "/srv/data")), None);
    // A part of the workspace is in it already, and its change goes where the workspace's goes.
    let inside = plan(WorkspaceMode::Cow, "/home/ann/project/src", "");
    assert_eq!(overlays(&inside).len(), 1);
    // A change that was begun before keeps its places.
    let mut known = request();
    known.change.layers.push(ironcage_plan::ChangeLayer {
        real: "/home/ann/project".into(),
        upper: "/elsewhere/upper".into(),
        work: "/elsewhere/work".into(),
    });
    let policy = writing(WorkspaceMode::Cow, "", "");
    let again = make(&policy, &known, &host, &Tree::new()).unwrap();
    assert_eq!(overlays(&again)[0].2, Path::new("/elsewhere/upper"));
}

#[test]
fn where_a_copy_on_write_view_cannot_be_the_plan_says_why() {
    let why = |change: &dyn Fn(&mut Request, &mut HostCaps, &mut Policy), privilege| {
        let (mut request, mut host) = (request(), host(privilege));
        let mut policy = writing(WorkspaceMode::Cow, "", "");
        change(&mut request, &mut host, &mut policy);
        make(&policy, &request, &host, &Tree::new()).map_err(|error| error.to_string())
    };
    let give = |policy: &mut Policy, path: &str| {
        policy.write = writing(WorkspaceMode::Cow, path, "").write;
    };
    why(&|_, _, _| {}, Privilege::User).expect("an ordinary workspace");
    why(&|_, _, policy| give(policy, "/srv/data"), Privilege::Root).expect("a directory of root's");
    let refusals = [
        (
            why(&|_, host, _| host.kernel.major = 4, Privilege::User),
            "Linux 5.11",
        ),
        (
            why(
                &|_, host, _| (host.kernel.major, host.kernel.minor) = (5, 18),
                Privilege::Root,
            ),
            "Linux 5.19",
        ),
        (
            why(&|_, host, _| host.gid = 7, Privilege::User),
            "belongs to group 1001",
        ),
        (
            why(
                &|request, _, _| request.change.directory = "/home/ann/project/state".into(),
                Privilege::User,
            ),
            "XDG_STATE_HOME",
        ),
        (
            why(&|_, _, policy| give(policy, "/srv/data"), Privilege::User),
            "belongs to user 0",
        ),
        (
            why(
                &|_, _, policy| give(policy, "/srv/mounted"),
                Privilege::Root,
            ),
            "/srv/mounted/disk is mounted below it",
        ),
        (
            why(
                &|_, _, policy| give(policy, "/home/ann/.netrc"),
                Privilege::Root,
            ),
            "secrets",
        ),
    ];
    for (answer, expected) in refusals {
        let error = answer.expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn what_marks_a_cage_and_where_its_marks_go_is_what_it_reads_and_what_it_writes() {
    let mut policy = writing(WorkspaceMode::Cow, "/srv/data", "");
    let at = |path: &str| {
        let flag = "test".into();
        Sourced::new(PathBuf::from(path), Origin::Flag { flag })
    };
    let made = |policy: &Policy| {
        let plan = make(policy, &request(), &host(Privilege::Root), &Tree::new()).unwrap();
        let start = plan.taint.as_ref().map(|marking| marking.start.private);
        (plan, start)
    };
    assert_eq!(made(&policy).1, None);
    // Around it, in it, and beside it.
    for (private, is_seen) in [
        ("/srv", true),
        ("/srv/data/deep", true),
        ("/home/ann/project/src", true),
        ("/home/ann/.ssh", false),
        ("/srv/mounted", false),
    ] {
        policy.taint.private = vec![at(private)];
        assert_eq!(made(&policy).1, Some(is_seen), "{private}");
    }
    // What is hidden is not read.
    policy.taint.private = vec![at("/home/ann/project/src")];
    policy.hide.push(at("/home/ann/project/src"));
    let (plan, start) = made(&policy);
    assert_eq!(start, Some(false));
    // A change has no place of its own, which would be another with every run.
    let filled = plan.filled_places();
    for place in ["/home/ann/project", "/srv/data"] {
        assert!(filled.contains(&Path::new(place)), "{filled:?}");
        assert!(plan.read_places().contains(&Path::new(place)));
    }
    let uppers: Vec<PathBuf> = overlays(&plan)
        .into_iter()
        .map(|(.., upper)| upper)
        .collect();
    assert!(
        !uppers.is_empty()
            && uppers
                .iter()
                .all(|upper| !filled.contains(&upper.as_path()))
    );
    assert!(
        plan.read_places().contains(&Path::new("/usr")) && !filled.contains(&Path::new("/usr"))
    );
}
