//! The other isolation levels in plans: what they make of a policy, what they leave open and
//! say so, and what they refuse.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod made_up;

use ironcage_host::{HostCaps, NodeType, Privilege};
use ironcage_model::{CageId, Enforcement, Isolation, Layer};
use ironcage_plan::{AccessRights, Bindings, IdMap, Plan, PlanError, Request, ViewOp, make};
use ironcage_policy::{FlagLayer, WorkspaceMode};
use made_up::{Tree, compare, host, plan_of, policy_of, request};
use std::path::Path;

const OFF_IN_CHROOT: [Layer; 2] = [Layer::PidNs, Layer::UtsNs];
const OFF_IN_LANDLOCK: [Layer; 4] = [Layer::UserNs, Layer::MountNs, Layer::PidNs, Layer::UtsNs];

fn flags(isolation: Isolation) -> FlagLayer {
    FlagLayer {
        isolation: Some(isolation),
        allow_degraded: match isolation {
            Isolation::Landlock => OFF_IN_LANDLOCK.to_vec(),
            Isolation::Chroot => OFF_IN_CHROOT.to_vec(),
            Isolation::Oci | Isolation::Namespace | Isolation::Wasm | Isolation::Microvm => {
                Vec::new()
            }
        },
        // A copy-on-write view needs mounts.
        workspace_mode: (isolation == Isolation::Landlock).then_some(WorkspaceMode::Direct),
        ..FlagLayer::default()
    }
}

fn bindings(id: &CageId) -> Bindings<'_> {
    Bindings {
        cage: id,
        processors: &[],
        change: None,
        files: Vec::new(),
    }
}

fn plan_with(isolation: Isolation) -> Plan {
    plan_of(
        "shell",
        flags(isolation),
        &request(),
        &host(Privilege::User),
    )
    .unwrap()
}

fn refusal(flags: FlagLayer, request: &Request, host: &HostCaps) -> String {
    plan_of("shell", flags, request, host)
        .unwrap_err()
        .to_string()
}

fn level(plan: &Plan, layer: Layer) -> &Enforcement {
    let report = plan.layers.iter().find(|report| report.layer == layer);
    &report.unwrap().enforcement
}

#[test]
fn each_isolation_level_has_the_plan_that_is_kept() {
    compare("isolation-chroot", &plan_with(Isolation::Chroot));
    compare("isolation-landlock", &plan_with(Isolation::Landlock));
}

#[test]
fn what_is_off_stops_the_start_unless_each_of_it_is_named() {
    for (isolation, off) in [
        (Isolation::Chroot, &OFF_IN_CHROOT[..]),
        (Isolation::Landlock, &OFF_IN_LANDLOCK[..]),
    ] {
        for left_out in off {
            let mut flags = flags(isolation);
            flags.allow_degraded.retain(|layer| layer != left_out);
            let error = plan_of("shell", flags, &request(), &host(Privilege::User)).unwrap_err();
            let PlanError::MissingLayer { missing, .. } = error else {
                panic!("{error}");
            };
            assert_eq!(missing, [*left_out]);
        }
        let plan = plan_with(isolation);
        assert_eq!(plan.degraded.len(), off.len());
        for layer in off {
            assert!(matches!(level(&plan, *layer), Enforcement::Off(_)));
        }
    }
}

#[test]
fn an_isolation_level_without_a_pid_namespace_has_no_process_file_system() {
    let shows = |plan: &Plan| {
        plan.view.iter().any(|item| {
            matches!(&item.what, ViewOp::Proc)
                || matches!(&item.what, ViewOp::Bind { source, .. } if source == Path::new("/proc"))
                || matches!(&item.what, ViewOp::Symlink { to, .. } if to.starts_with("/proc"))
        })
    };
    assert!(shows(&plan_with(Isolation::Namespace)));
    assert!(!shows(&plan_with(Isolation::Chroot)));
    assert!(!shows(&plan_with(Isolation::Landlock)));
}

#[test]
fn landlock_lists_what_it_cannot_protect_and_opens_nothing_of_the_home() {
    let plan = plan_with(Isolation::Landlock);
    let open: Vec<&str> = plan
        .unenforced
        .iter()
        .map(|item| item.what.what.as_str())
        .collect();
    assert!(
        open.contains(&"keeping /home/ann/project/.envrc read-only"),
        "{open:?}"
    );
    let home = plan.access_rules.iter().filter(|item| {
        item.what.path.starts_with("/home/ann") && !item.what.path.starts_with("/home/ann/project")
    });
    assert_eq!(home.count(), 0);
    let workspace = plan
        .access_rules
        .iter()
        .find(|item| item.what.path == Path::new("/home/ann/project"));
    assert_eq!(workspace.unwrap().what.rights, AccessRights::WriteTree);
    assert!(plan_with(Isolation::Chroot).access_rules.is_empty());
}

#[test]
fn an_isolation_level_with_mounts_keeps_changes_aside_and_one_without_does_not_start_unless_told() {
    let is_view = |what: &ViewOp| matches!(what, ViewOp::Overlay { target, .. } if target == Path::new("/home/ann/project"));
    let plan = plan_with(Isolation::Chroot);
    assert!(plan.view.iter().any(|item| is_view(&item.what)));
    let untold = FlagLayer {
        workspace_mode: None,
        ..flags(Isolation::Landlock)
    };
    let error = refusal(untold, &request(), &host(Privilege::User));
    assert!(error.contains("--workspace-mode direct"), "{error}");
    let plan = plan_with(Isolation::Landlock);
    assert!(!plan.view.iter().any(|item| is_view(&item.what)));
}

#[test]
fn the_cages_own_directory_gets_its_id_everywhere() {
    let plan = plan_with(Isolation::Landlock);
    let id = CageId::from_entropy([7; 12]);
    let placed = plan.bind(bindings(&id)).unwrap();
    let name = format!("/tmp/ironcage-{}", id.as_str());
    assert_eq!(placed.scratch.as_ref().unwrap().path, Path::new(&name));
    let home = placed
        .command
        .env
        .iter()
        .find(|item| item.what.name == "HOME");
    assert_eq!(home.unwrap().what.value, *format!("{name}/home"));
    assert!(
        placed
            .access_rules
            .iter()
            .any(|item| item.what.path == Path::new(&name))
    );
    let text = format!("{:?}", *placed);
    assert!(!text.contains("ironcage-CAGE"), "{text}");
    assert!(format!("{plan:?}").contains("ironcage-CAGE"));
}

#[test]
fn what_a_isolation_level_cannot_do_is_refused_whatever_is_degraded() {
    let user = host(Privilege::User);
    let with_capability = |isolation| FlagLayer {
        capabilities: vec!["CAP_CHOWN".into()],
        ..flags(isolation)
    };
    for isolation in [Isolation::Chroot, Isolation::Landlock] {
        let error = refusal(with_capability(isolation), &request(), &user);
        assert!(
            error.contains("CAP_CHOWN") && error.contains(isolation.name()),
            "{error}"
        );
    }
    let root_inside = |isolation| FlagLayer {
        root_inside: true,
        ..flags(isolation)
    };
    let error = refusal(root_inside(Isolation::Landlock), &request(), &user);
    assert!(error.contains("user 0"), "{error}");
    plan_of("shell", root_inside(Isolation::Chroot), &request(), &user).unwrap();
    for mode in [WorkspaceMode::Scratch, WorkspaceMode::Cow] {
        let flags = FlagLayer {
            workspace_mode: Some(mode),
            ..flags(Isolation::Landlock)
        };
        let error = refusal(flags, &request(), &user);
        assert!(error.contains("needs mounts"), "{error}");
    }
    let old = HostCaps {
        landlock_abi: 5,
        ..host(Privilege::User)
    };
    let error = refusal(flags(Isolation::Landlock), &request(), &old);
    assert!(error.contains("ABI 6"), "{error}");
    plan_of("shell", flags(Isolation::Chroot), &request(), &old).unwrap();
}

#[test]
fn an_agent_that_root_starts_without_a_user_namespace_is_the_workspaces_owner_and_never_root() {
    let root = host(Privilege::Root);
    let plan = plan_of("shell", flags(Isolation::Landlock), &request(), &root).unwrap();
    assert_eq!(
        plan.identity.map,
        IdMap::Own {
            uid: 1001,
            gid: 1001
        }
    );
    let mut wanted = request();
    wanted.workspace = "/srv/data".into();
    wanted.cwd = "/srv/data".into();
    let error = refusal(flags(Isolation::Landlock), &wanted, &root);
    assert!(error.contains("owner"), "{error}");
}

#[test]
fn a_given_root_stands_for_the_system_and_must_be_one() {
    let mut tree = Tree::new();
    for directory in [
        "/srv/root",
        "/srv/root/usr",
        "/srv/root/etc",
        "/srv/root/var",
    ] {
        tree.add(directory, NodeType::Directory);
    }
    let policy = policy_of("shell", flags(Isolation::Chroot));
    let mut wanted = request();
    wanted.root = Some("/srv/root".into());
    let plan = make(&policy, &wanted, &host(Privilege::User), &tree).unwrap();
    let source_of = |target: &str| {
        plan.view.iter().find_map(|item| match &item.what {
            ViewOp::Bind {
                source, target: at, ..
            } if at == Path::new(target) => Some(source.clone()),
            _ => None,
        })
    };
    assert_eq!(source_of("/usr").unwrap(), Path::new("/srv/root/usr"));
    assert_eq!(source_of("/etc").unwrap(), Path::new("/srv/root/etc"));
    assert_eq!(source_of("/var"), None);
    assert_eq!(source_of("/etc/ld.so.cache"), None, "nothing of the host's");
    wanted.root = Some("/srv/data".into());
    let error = make(&policy, &wanted, &host(Privilege::User), &tree).unwrap_err();
    assert!(
        error.to_string().contains("not a root directory"),
        "{error}"
    );
}
