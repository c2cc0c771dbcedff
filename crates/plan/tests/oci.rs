//! The isolation level `oci` in plans: which runtime, what it leaves open and says so, what it refuses.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod made_up;

use ironcage_host::{NodeType, Privilege};
use ironcage_model::{Enforcement, Isolation, Layer};
use ironcage_plan::{CONTAINER_INIT, Plan, PlanError, Request, RuntimeProgram, ViewOp, make};
use ironcage_policy::FlagLayer;
use made_up::{Tree, compare, host, policy_of, request};
use std::path::Path;

fn flags() -> FlagLayer {
    FlagLayer {
        isolation: Some(Isolation::Oci),
        ..FlagLayer::default()
    }
}

fn with_crun() -> Tree {
    let mut tree = Tree::new();
    tree.add("/usr/bin/crun", NodeType::File);
    tree.add("/opt/crun", NodeType::File);
    tree.add("/usr/sbin/runc", NodeType::File);
    tree.add("/opt/gvisor/runsc", NodeType::File);
    tree
}

fn attempt(
    profile: &str,
    flags: FlagLayer,
    request: &Request,
    tree: &Tree,
) -> Result<Plan, PlanError> {
    make(
        &policy_of(profile, flags),
        request,
        &host(Privilege::User),
        tree,
    )
}

fn named(runtime: &str) -> Request {
    Request {
        oci_runtime: Some(runtime.into()),
        ..request()
    }
}

#[test]
fn the_plan_is_the_one_that_is_kept_and_names_the_runtime_and_its_first_process() {
    let plan = attempt("shell", flags(), &request(), &with_crun()).unwrap();
    compare("isolation-oci", &plan);
    let runtime = plan.isolation_level.what.runtime.as_ref().unwrap();
    assert_eq!(runtime.path, Path::new("/usr/bin/crun"));
    assert!(plan.view.iter().any(|item| matches!(
        &item.what,
        ViewOp::Bind { target, .. } if target == Path::new(CONTAINER_INIT)
    )));
    let off = |layer: Layer| {
        let report = plan.layers.iter().find(|report| report.layer == layer);
        matches!(report.unwrap().enforcement, Enforcement::Off(_))
    };
    assert!(off(Layer::Landlock) && off(Layer::Counters) && off(Layer::TimeNs));
    assert!(!plan.landlock && plan.counters.is_empty() && plan.leases.is_none());
}

#[test]
fn a_runtime_is_taken_by_name_or_path_and_others_are_refused_with_the_reason() {
    let tree = with_crun();
    for (asked, path) in [("crun", "/usr/bin/crun"), ("/opt/crun", "/opt/crun")] {
        let plan = attempt("shell", flags(), &named(asked), &tree).unwrap();
        assert_eq!(
            plan.isolation_level.what.runtime.unwrap().path,
            Path::new(path)
        );
    }
    for (asked, why) in [
        ("runsc", "acts as root of the container"),
        ("runc", "add --root-inside"),
        ("bin/crun", "absolute"),
        ("/nowhere/crun", "does not exist"),
        ("/bin/sh", "expected crun, runc or runsc"),
    ] {
        let error = attempt("shell", flags(), &named(asked), &tree).unwrap_err();
        assert!(error.to_string().contains(why), "{asked}: {error}");
    }
    let error = attempt("shell", flags(), &request(), &Tree::new()).unwrap_err();
    assert!(error.to_string().contains("apt install crun"), "{error}");
}

#[test]
fn runc_and_runsc_make_cages_whose_agent_is_root_of_the_container() {
    let tree = with_crun();
    let root_inside = || FlagLayer {
        root_inside: true,
        ..flags()
    };
    let made = |asked: &str, flags: FlagLayer, privilege: Privilege| {
        make(
            &policy_of("shell", flags),
            &named(asked),
            &host(privilege),
            &tree,
        )
    };
    for (asked, program, path) in [
        ("runc", RuntimeProgram::Runc, "/usr/sbin/runc"),
        (
            "/opt/gvisor/runsc",
            RuntimeProgram::Runsc,
            "/opt/gvisor/runsc",
        ),
    ] {
        for privilege in [Privilege::Root, Privilege::User] {
            let plan = made(asked, root_inside(), privilege).unwrap();
            let runtime = plan.isolation_level.what.runtime.unwrap();
            assert_eq!(
                (runtime.program, runtime.path.as_path()),
                (program, Path::new(path))
            );
            assert_eq!(plan.identity.uid, 0);
            let pids = plan
                .layers
                .iter()
                .find(|report| report.layer == Layer::Pids);
            let weaker = matches!(pids.unwrap().enforcement, Enforcement::Partial(_));
            assert_eq!(weaker, program == RuntimeProgram::Runsc);
        }
    }
    let unverified = FlagLayer {
        allow_degraded: vec![Layer::Seccomp],
        ..root_inside()
    };
    let plan = made("/opt/gvisor/runsc", unverified, Privilege::User).unwrap();
    assert_eq!(plan.degraded, [Layer::Seccomp]);
    // As root a range of IDs is mapped, with root of the container in it.
    assert!(made("runc", flags(), Privilege::Root).is_ok());
    assert!(made("/opt/gvisor/runsc", flags(), Privilege::Root).is_err());
    let error = made("runsc", root_inside(), Privilege::User).unwrap_err();
    assert!(
        error.to_string().contains("runsc is not installed"),
        "{error}"
    );
}

#[test]
fn what_a_runtime_cannot_do_is_refused() {
    let tree = with_crun();
    let refused = |flags: FlagLayer, request: &Request| {
        let error = attempt("shell", flags, request, &tree).unwrap_err();
        error.to_string()
    };
    let capability = FlagLayer {
        capabilities: vec!["CAP_CHOWN".into()],
        ..flags()
    };
    assert!(refused(capability, &request()).contains("CAP_CHOWN"));
    let minimal = FlagLayer {
        syscalls: Some("minimal".into()),
        ..flags()
    };
    assert!(refused(minimal, &request()).contains("`minimal`"));
    let observed = Request {
        observed: true,
        ..request()
    };
    assert!(refused(flags(), &observed).contains("observing"));
}

#[test]
fn a_profile_that_requires_what_it_lacks_needs_that_named() {
    let tree = with_crun();
    let error = attempt("strict", flags(), &request(), &tree).unwrap_err();
    let PlanError::MissingLayer { missing, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(missing, [Layer::Landlock, Layer::Counters]);
    let named = FlagLayer {
        allow_degraded: missing,
        ..flags()
    };
    attempt("strict", named, &request(), &tree).unwrap();
}
