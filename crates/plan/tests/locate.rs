//! What a path is in a cage, from the plan of a made-up host.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod made_up;

use ironcage_host::{NodeType, Privilege};
use ironcage_plan::{PathStatus, ViewOp, guard, locate, make};
use ironcage_policy::{FlagLayer, WorkspaceMode};
use made_up::{Tree, host, plan_of, policy_of, request};
use std::path::Path;

fn direct() -> FlagLayer {
    FlagLayer {
        workspace_mode: Some(WorkspaceMode::Direct),
        ..FlagLayer::default()
    }
}

fn standing(path: &str) -> PathStatus {
    let host = host(Privilege::User);
    let plan = plan_of("shell", direct(), &request(), &host).unwrap();
    locate(&plan, Path::new(path)).standing
}

#[test]
fn every_kind_of_place_is_told_apart() {
    let project = |name: &str| format!("/home/ann/project{name}").into();
    for (path, wanted) in [
        ("/srv/data", PathStatus::Absent),
        (
            "/home/ann/project/src/x",
            PathStatus::Writable(project("/src/x")),
        ),
        ("/home/ann/project", PathStatus::Writable(project(""))),
        ("/home/ann/project/.envrc", PathStatus::Protected),
        (
            "/home/ann/project/.github/workflows/x",
            PathStatus::Protected,
        ),
        (
            "/home/ann/project/.git/config",
            PathStatus::CopyOnWrite(project("/.git/config")),
        ),
        ("/home/ann/.ssh/id", PathStatus::Ephemeral),
        ("/tmp/x", PathStatus::Ephemeral),
        ("/usr/lib/x", PathStatus::ReadOnly("/usr/lib/x".into())),
        // Through a link of the view.
        ("/bin/sh", PathStatus::ReadOnly("/usr/bin/sh".into())),
        ("/etc/passwd", PathStatus::Made),
        ("/dev/null", PathStatus::Device),
        ("/proc/1/root", PathStatus::Kernel),
        ("/home", PathStatus::Leads),
    ] {
        assert_eq!(standing(path), wanted, "{path}");
    }
}

#[test]
fn the_item_that_decides_is_named() {
    let host = host(Privilege::User);
    let plan = plan_of("shell", direct(), &request(), &host).unwrap();
    let found = locate(&plan, Path::new("/home/ann/project/.github/workflows/x"));
    assert_eq!(
        found.by.as_deref(),
        Some(Path::new("/home/ann/project/.github/workflows"))
    );
    assert!(found.origin.unwrap().starts_with("protected: "));
}

#[test]
fn a_guard_is_told_with_its_reason() {
    let home = Path::new("/home/ann");
    assert!(guard(home, Path::new("/home/ann/.ssh"), false).is_some());
    assert!(guard(home, Path::new("/usr/lib"), true).is_some());
    assert!(guard(home, Path::new("/usr/lib"), false).is_none());
}

/// Homes and workspaces below `/var/tmp`, where that is a directory of the host or a link to
/// elsewhere, in any depth. The cage has a link of its own there, which must give way.
#[test]
fn nothing_of_a_view_lies_below_one_of_its_links() {
    let host = host(Privilege::User);
    let cases = [
        // Home, workspace, where /var/tmp leads on the host, whether the cage keeps its own link.
        ("/home/ann", "/home/ann/project", None, true),
        ("/home/ann", "/var/tmp/work/project", None, false),
        ("/var/tmp/ann", "/var/tmp/ann/project", None, false),
        ("/home/ann", "/var/tmp/a/var/tmp/b/var/run/c", None, false),
        ("/home/ann", "/data/tmp/work", Some("/data/tmp"), true),
        (
            "/var/tmp/ann",
            "/data/tmp/ann/work",
            Some("/data/tmp"),
            false,
        ),
        ("/home/ann", "/tmp/work", Some("/tmp"), true),
        ("/var/tmp/ann", "/tmp/ann/work", Some("/tmp"), false),
    ];
    for (home, workspace, leads, keeps) in cases {
        let mut tree = Tree::new();
        match leads {
            Some(to) => tree.add_link("/var/tmp", to),
            None => tree.add("/var/tmp", NodeType::Directory),
        }
        for directory in [home, workspace] {
            tree.add(directory, NodeType::Directory);
        }
        let mut wanted = request();
        (wanted.home, wanted.workspace) = (home.into(), workspace.into());
        wanted.cwd = workspace.into();
        let plan = make(&policy_of("shell", direct()), &wanted, &host, &tree).unwrap();
        let ops = || plan.view.iter().map(|op| &op.what);
        let links = ops().filter_map(|op| match op {
            ViewOp::Symlink { target, .. } => Some(target),
            _ => None,
        });
        let links: Vec<_> = links.collect();
        for target in ops().filter_map(ViewOp::target) {
            let below = links
                .iter()
                .find(|link| target.starts_with(link) && target != **link);
            assert_eq!(below, None, "{workspace}: {}", target.display());
        }
        let own = links
            .iter()
            .any(|link| link.as_path() == Path::new("/var/tmp"));
        assert_eq!(own, keeps, "{home} {workspace}");
        let made = locate(&plan, Path::new(workspace)).standing;
        assert_eq!(made, PathStatus::Writable(workspace.into()), "{home}");
    }
}
