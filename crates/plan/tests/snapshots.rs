//! From policy to plan, on a made-up host: what is printed is what is kept.
//!
//! `UPDATE=1 cargo test -p ironcage-plan --test snapshots` writes the snapshots anew; read the
//! difference before you commit it.

use ironcage_host::{CgroupHost, HostCaps, HostFiles, Kernel, Node, NodeType, Privilege};
use ironcage_model::{Enforcement, Layer};
use ironcage_plan::{OwnDirectories, Plan, PlanError, Request, ViewOp, explain, make};
use ironcage_policy::{
    EnvRule, FlagLayer, Origin, Policy, Sourced, Sources, WorkspaceMode, resolve,
};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// A tree that exists only here.
struct Tree(BTreeMap<PathBuf, (NodeType, Option<PathBuf>)>);

impl Tree {
    fn new() -> Self {
        let mut tree = Tree(BTreeMap::new());
        for directory in [
            "/usr",
            "/etc/alternatives",
            "/etc/ssl/certs",
            "/home/ann",
            "/home/ann/.ssh",
            "/home/ann/project",
            "/home/ann/project/.git",
            "/home/ann/project/.github/workflows",
            "/home/ann/project/src",
            "/srv/data",
        ] {
            tree.add(directory, NodeType::Directory);
        }
        for file in [
            "/etc/ld.so.cache",
            "/home/ann/project/.envrc",
            "/home/ann/.netrc",
        ] {
            tree.add(file, NodeType::File);
        }
        for device in ["/dev/null", "/dev/urandom"] {
            tree.add(device, NodeType::Other);
        }
        tree.add("/run/daemon.sock", NodeType::Socket);
        tree.add_link("/bin", "/usr/bin");
        tree.add_link("/home/ann/project/CLAUDE.md", "/home/ann/project/AGENTS.md");
        tree
    }

    fn add(&mut self, path: &str, kind: NodeType) {
        self.0.insert(path.into(), (kind, None));
    }

    fn add_link(&mut self, path: &str, real: &str) {
        self.0
            .insert(path.into(), (NodeType::Symlink, Some(real.into())));
    }
}

impl HostFiles for Tree {
    fn node(&self, path: &Path) -> Option<Node> {
        let kind = self.0.get(path)?.0;
        let uid = if path.starts_with("/home/ann") {
            1001
        } else {
            0
        };
        Some(Node {
            kind,
            uid,
            gid: uid,
        })
    }

    fn real(&self, path: &Path) -> io::Result<PathBuf> {
        match self.0.get(path) {
            Some((_, Some(real))) => Ok(real.clone()),
            Some(_) => Ok(path.to_owned()),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        self.real(path)
            .map(|real| real.strip_prefix("/").map(Path::to_owned).unwrap_or(real))
    }
}

fn host(privilege: Privilege) -> HostCaps {
    HostCaps {
        kernel: Kernel {
            major: 6,
            minor: 18,
        },
        privilege,
        uid: if privilege == Privilege::Root {
            0
        } else {
            1001
        },
        gid: if privilege == Privilege::Root {
            0
        } else {
            1001
        },
        landlock_abi: 7,
        seccomp_notify: true,
        memory: 8 << 30,
        cpus: 4,
        cgroup: CgroupHost::None {
            why: "a made-up host".into(),
        },
        layers: Layer::ALL
            .into_iter()
            .map(|layer| (layer, Enforcement::Full))
            .collect(),
    }
}

fn request() -> Request {
    Request {
        argv: vec!["make".into(), "test".into()],
        cwd: "/home/ann/project/src".into(),
        workspace: "/home/ann/project".into(),
        workspace_named: false,
        home: "/home/ann".into(),
        env: vec![
            ("LANG".into(), "C.UTF-8".into()),
            ("GITHUB_TOKEN".into(), "canary".into()),
        ],
        i_know: false,
        own: OwnDirectories {
            paths: vec!["/home/ann/.config/ironcage".into()],
        },
    }
}

fn policy_of(profile: &str, flags: FlagLayer) -> Policy {
    resolve(&Sources {
        profile: Some(profile.into()),
        policy_file: None,
        workspace: "/nonexistent/project".into(),
        command: None,
        user_config_dir: None,
        state_dir: None,
        home: "/home/ann".into(),
        flags,
    })
    .unwrap()
    .policy
}

fn plan_of(
    profile: &str,
    flags: FlagLayer,
    request: &Request,
    host: &HostCaps,
) -> Result<Plan, PlanError> {
    make(&policy_of(profile, flags), request, host, &Tree::new())
}

fn compare(name: &str, plan: &Plan) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/snapshots")
        .join(name)
        .with_extension("txt");
    // The rules of the filter have tests of their own; their number would drown the rest.
    let text: String = explain(plan)
        .lines()
        .filter(|line| !line.contains("[list ") && !line.contains("[group "))
        .map(|line| format!("{}\n", line.trim_end()))
        .collect();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "{} is out of step; this is the plan now:\n{text}",
        path.display()
    );
}

#[test]
fn every_profile_has_the_plan_that_is_kept() {
    let host = host(Privilege::User);
    for profile in [
        "strict",
        "shell",
        "python",
        "node",
        "rust",
        "coding-agent",
        "data",
    ] {
        let plan = plan_of(profile, FlagLayer::default(), &request(), &host).unwrap();
        compare(&format!("profile-{profile}"), &plan);
    }
}

#[test]
fn flags_are_seen_in_the_plan_with_their_origin() {
    let flags = FlagLayer {
        env: vec![EnvRule::Pass {
            name: "GITHUB_TOKEN".into(),
        }],
        root_inside: true,
        workspace_mode: Some(WorkspaceMode::ReadOnly),
        ..FlagLayer::default()
    };
    let mut policy = policy_of("shell", flags);
    let flag = |flag: &str| Origin::Flag { flag: flag.into() };
    let sourced = |path: &str, name| Sourced::new(PathBuf::from(path), flag(name));
    policy.read.push(sourced("/srv/data", "--read"));
    policy.hide.push(sourced("/home/ann/project/src", "--hide"));
    let mut wanted = request();
    wanted.cwd = wanted.workspace.clone();
    let plan = make(&policy, &wanted, &host(Privilege::Root), &Tree::new()).unwrap();
    compare("flags-as-root", &plan);
}

#[test]
fn a_secret_is_in_the_environment_only_when_it_is_passed() {
    let host = host(Privilege::User);
    let has_token = |flags| {
        let plan = plan_of("shell", flags, &request(), &host).unwrap();
        plan.command
            .env
            .iter()
            .any(|item| item.what.value == "canary")
    };
    assert!(!has_token(FlagLayer::default()));
    assert!(has_token(FlagLayer {
        env: vec![EnvRule::Pass {
            name: "GITHUB_TOKEN".into()
        }],
        ..FlagLayer::default()
    }));
}

#[test]
fn a_home_directory_is_a_workspace_only_by_explicit_word_and_its_credentials_stay_hidden() {
    let host = host(Privilege::User);
    let mut wanted = request();
    wanted.workspace = "/home/ann".into();
    let refused = plan_of("shell", FlagLayer::default(), &wanted, &host);
    assert!(matches!(
        refused,
        Err(PlanError::Workspace {
            can_be_forced: true,
            ..
        })
    ));
    wanted.workspace_named = true;
    wanted.i_know = true;
    let plan = plan_of("shell", FlagLayer::default(), &wanted, &host).unwrap();
    for secret in ["/home/ann/.ssh", "/home/ann/.netrc"] {
        assert!(plan.view.iter().any(
            |item| matches!(&item.what, ViewOp::Hide { target, .. } if target == Path::new(secret))
        ));
    }
}

#[test]
fn trees_of_the_kernel_sockets_and_our_own_directories_are_refused() {
    let host = host(Privilege::User);
    let mut tree = Tree::new();
    tree.add("/home/ann/.config/ironcage", NodeType::Directory);
    tree.add("/sys", NodeType::Directory);
    let read = |path: &str| {
        let mut policy = policy_of("shell", FlagLayer::default());
        let origin = Origin::Flag {
            flag: "--read".into(),
        };
        policy.read.push(Sourced::new(path.into(), origin));
        make(&policy, &request(), &host, &tree).is_ok()
    };
    assert!(read("/srv/data"));
    assert!(!read("/sys"));
    assert!(!read("/run/daemon.sock"));
    assert!(!read("/home/ann/.config/ironcage"));
    assert!(!read("/srv/absent"));
}

#[test]
fn a_required_layer_that_is_off_stops_the_start_unless_allowed_by_name() {
    let mut host = host(Privilege::User);
    host.layers
        .insert(Layer::Seccomp, Enforcement::Off("made up".into()));
    let refused = plan_of("shell", FlagLayer::default(), &request(), &host);
    assert!(matches!(
        refused,
        Err(PlanError::MissingLayer {
            layer: Layer::Seccomp,
            ..
        })
    ));
    let allowed = FlagLayer {
        allow_degraded: vec![Layer::Seccomp],
        ..FlagLayer::default()
    };
    let plan = plan_of("shell", allowed, &request(), &host).unwrap();
    assert_eq!(plan.degraded, [Layer::Seccomp]);
}
