//! What a path is in a cage, from the plan of a made-up host.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod made_up;

use ironcage_host::Privilege;
use ironcage_plan::{PathStatus, guard, locate};
use ironcage_policy::{FlagLayer, WorkspaceMode};
use made_up::{host, plan_of, request};
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
