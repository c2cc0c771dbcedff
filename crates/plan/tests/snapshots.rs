//! From policy to plan, on a made-up host: what is printed is what is kept.
//!
//! `UPDATE=1 cargo test -p ironcage-plan --test snapshots` writes the snapshots anew; read the
//! difference before you commit it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod made_up;

use ironcage_host::{NodeType, Privilege};
use ironcage_model::{Enforcement, Layer};
use ironcage_plan::{Detail, Plan, PlanError, Request, ViewOp, explain, make};
use ironcage_policy::{EnvRule, FlagLayer, Origin, Policy, Sourced, WorkspaceMode};
use made_up::{Tree, compare, host, plan_of, policy_of, request};
use std::path::{Path, PathBuf};

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
        "coding-agent-locked",
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
fn a_credential_variable_that_is_not_passed_is_noted_with_the_flags_that_pass_it() {
    let notes = |flags, env: &[(&str, &str)]| {
        let mut request = request();
        let pairs = env.iter().map(|(name, value)| (name.into(), value.into()));
        request.env = pairs.collect();
        // A secret needs TLS interception, and that needs the authorities of the host.
        let mut tree = Tree::new();
        tree.add("/etc/ssl/certs/ca-certificates.crt", NodeType::File);
        let host = host(Privilege::User);
        let plan = make(&policy_of("shell", flags), &request, &host, &tree).unwrap();
        let mut notes = plan.notes;
        notes.retain(|note| note.contains("is set in your environment"));
        notes
    };
    let none = FlagLayer::default;
    let token = ("GITHUB_TOKEN", "canary");
    let told = notes(
        none(),
        &[token, ("HF_TOKEN", ""), ("UNKNOWN_TOKEN", "canary")],
    );
    let [told] = &told[..] else {
        panic!("{told:?}")
    };
    assert!(
        told.ends_with(
            "--secret GITHUB_TOKEN@api.github.com,github.com --allow-host api.github.com --allow-host github.com"
        ),
        "{told}"
    );
    assert!(!told.contains("canary"), "{told}");
    // What is said about it counts, whatever it is.
    let passed = FlagLayer {
        env: vec![EnvRule::Pass {
            name: "GITHUB_*".into(),
        }],
        ..none()
    };
    assert!(notes(passed, &[token]).is_empty());
    let secret = FlagLayer {
        secrets: vec!["GITHUB_TOKEN@api.github.com".into()],
        allow_hosts: vec!["api.github.com".into()],
        ..none()
    };
    assert!(notes(secret, &[token]).is_empty());
    let allowed = FlagLayer {
        allow_hosts: vec!["api.github.com".into()],
        ..none()
    };
    let told = notes(allowed, &[token]).concat();
    assert!(
        told.ends_with("github.com --allow-host github.com"),
        "{told}"
    );
    // Another base URL: its host is the one that gets the key, and no password in it is shown.
    let at = |url| {
        let env = [("OPENAI_API_KEY", "canary"), ("OPENAI_BASE_URL", url)];
        notes(none(), &env).concat()
    };
    let gateway = at("https://user:canary@llm.example:8443/v1");
    assert!(
        gateway.ends_with(
            "-e OPENAI_BASE_URL --secret OPENAI_API_KEY@llm.example:8443 --allow-host llm.example:8443"
        ),
        "{gateway}"
    );
    let local = at("http://localhost:11434/v1");
    assert!(
        local.ends_with(
            "-e OPENAI_BASE_URL=http://host.ironcage:11434/v1 --secret OPENAI_API_KEY@http://host.ironcage:11434 --allow-host-port 11434"
        ),
        "{local}"
    );
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
    // Its change cannot lie in it.
    assert!(matches!(
        plan_of("shell", FlagLayer::default(), &wanted, &host),
        Err(PlanError::CopyOnWrite { .. })
    ));
    wanted.change.directory = "/var/state/w0".into();
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

/// A home with toolchains in it, and a PATH that names them.
fn workshop() -> (Tree, Request) {
    let mut tree = Tree::new();
    for directory in [
        "/home/ann/.cargo",
        "/home/ann/.cargo/bin",
        "/home/ann/.rustup",
        "/home/ann/.pyenv",
        "/home/ann/.nvm/versions/node/v20",
        "/home/ann/.nvm/versions/node/v20/bin",
        "/home/ann/.pyenv/versions",
        "/home/ann/.npm-global/bin",
        "/home/ann/.npm-global/lib/node_modules",
        "/home/ann/bin",
        "/home/ann/project/.venv/bin",
        "/opt/jdk",
        "/opt/jdk/bin",
        "/srv/venv/bin",
        "/srv/venv/lib",
    ] {
        tree.add(directory, NodeType::Directory);
    }
    for file in [
        "/home/ann/.cargo/credentials.toml",
        "/home/ann/project/.venv/pyvenv.cfg",
        "/srv/venv/pyvenv.cfg",
    ] {
        tree.add(file, NodeType::File);
    }
    tree.add_link("/srv/venv/lib64", "lib");
    tree.add_link("/srv/venv/bin/python", "/usr/bin/python3.11");
    tree.add_link(
        "/home/ann/project/.venv/bin/python",
        "/home/ann/.pyenv/versions/3.12/bin/python3",
    );
    tree.add_link("/home/ann/current", "/home/ann/.nvm/versions/node/v20/bin");
    let mut wanted = request();
    let path = "/home/ann/.cargo/bin:/usr/bin:relative::/home/ann/current:/home/ann/bin:\
                /home/ann/project/.venv/bin:/srv/venv/bin:/opt/jdk/bin:/home/ann/.npm-global/bin:\
                /home/ann/absent/bin:/home/ann/.cargo/bin:/etc";
    wanted.env.push(("PATH".into(), path.into()));
    (tree, wanted)
}

fn bound(plan: &Plan) -> Vec<&Path> {
    let targets = plan.view.iter().filter_map(|item| match &item.what {
        ViewOp::Bind { target, .. } => Some(target.as_path()),
        _ => None,
    });
    targets.collect()
}

fn variable<'a>(plan: &'a Plan, name: &str) -> Option<&'a str> {
    let mut env = plan.command.env.iter();
    env.find(|item| item.what.name == name)
        .and_then(|item| item.what.value.to_str())
}

#[test]
fn toolchains_on_the_path_are_seen_as_far_as_they_execute() {
    let (tree, wanted) = workshop();
    let policy = policy_of("shell", FlagLayer::default());
    let plan = make(&policy, &wanted, &host(Privilege::User), &tree).unwrap();
    compare("toolchains", &plan);
    assert_eq!(
        variable(&plan, "PATH"),
        Some(
            "/home/ann/.cargo/bin:/usr/bin:/home/ann/.nvm/versions/node/v20/bin:\
             /home/ann/project/.venv/bin:/srv/venv/bin:/opt/jdk/bin:/home/ann/.npm-global/bin:\
             /usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/bin"
        )
    );
    let seen = bound(&plan);
    for secret in ["/home/ann/.cargo/credentials.toml", "/home/ann/bin/x"] {
        let holders: Vec<_> = seen
            .iter()
            .filter(|target| Path::new(secret).starts_with(target))
            .collect();
        assert!(holders.is_empty(), "{secret}: {holders:?}");
    }
}

#[test]
fn without_toolchains_nothing_of_them_is_seen() {
    let (tree, wanted) = workshop();
    let plan_with = |profile, flags| {
        make(
            &policy_of(profile, flags),
            &wanted,
            &host(Privilege::User),
            &tree,
        )
        .unwrap()
    };
    let usual = plan_with("shell", FlagLayer::default());
    assert!(bound(&usual).contains(&Path::new("/home/ann/.cargo/bin")));
    let flag = FlagLayer {
        no_toolchains: true,
        ..FlagLayer::default()
    };
    for plan in [
        plan_with("shell", flag),
        plan_with("strict", FlagLayer::default()),
        plan_with("data", FlagLayer::default()),
    ] {
        let outside = bound(&plan)
            .into_iter()
            .filter(|path| path.starts_with("/home") || path.starts_with("/opt"))
            .filter(|path| *path != wanted.workspace)
            .count();
        assert_eq!(outside, 0);
        assert_eq!(
            variable(&plan, "PATH"),
            Some("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        );
    }
}

#[test]
fn a_toolchain_that_would_open_too_much_is_left_out_and_told() {
    let (mut tree, mut wanted) = workshop();
    tree.add_link("/home/ann/.cargo/bin", "/home/ann");
    tree.add("/etc/bin", NodeType::Directory);
    wanted.env.push(("GOPATH".into(), "/etc".into()));
    let path = &mut wanted.env[2].1;
    path.push(":/etc/bin");
    let policy = policy_of("shell", FlagLayer::default());
    let plan = make(&policy, &wanted, &host(Privilege::User), &tree).unwrap();
    let sources: Vec<_> = plan
        .view
        .iter()
        .filter_map(|item| match &item.what {
            ViewOp::Bind { source, .. } => Some(source.as_path()),
            _ => None,
        })
        .collect();
    assert!(
        !sources.contains(&Path::new("/home/ann")) && !sources.contains(&Path::new("/etc/bin"))
    );
    for told in ["contains your home directory", "belongs to the system"] {
        assert!(
            plan.notes.iter().any(|note| note.contains(told)),
            "{told}: {:?}",
            plan.notes
        );
    }
}

#[test]
fn what_is_kept_yields_to_what_is_given() {
    let host = host(Privilege::Root);
    let keep = |paths: &[&str]| FlagLayer {
        state: paths.iter().map(PathBuf::from).collect(),
        ..FlagLayer::default()
    };
    let kept = |plan: &Plan| -> Vec<PathBuf> {
        let places = plan.kept.iter().map(|item| item.what.path.clone());
        places.collect()
    };
    let place = |path: &str| request().kept.home.join(path);
    let plan = plan_of("shell", keep(&[".a", ".a/b", ".netrc"]), &request(), &host).unwrap();
    assert_eq!(kept(&plan), [place(".a"), place(".netrc")]);
    assert_eq!(plan.writable[0], request().kept.home);
    let plan = plan_of("shell", keep(&["project", ".a"]), &request(), &host).unwrap();
    assert_eq!(kept(&plan), [place(".a")]);
    assert!(plan.notes.iter().any(|note| note.contains("is not kept")));
    let mut at_home = request();
    at_home.workspace = at_home.home.clone();
    (at_home.workspace_named, at_home.i_know) = (true, true);
    at_home.change.directory = "/var/state/w0".into();
    let plan = plan_of("shell", keep(&[".a"]), &at_home, &host).unwrap();
    assert_eq!(kept(&plan), Vec::<PathBuf>::new());
}

#[test]
fn a_link_in_the_workspace_leads_to_an_interpreter_and_to_nothing_else() {
    let (mut tree, mut wanted) = workshop();
    tree.add("/opt/secret", NodeType::Directory);
    tree.add("/opt/secret/bin", NodeType::Directory);
    tree.add_link("/home/ann/project/tool", "/opt/secret/bin/tool");
    tree.add_link("/home/ann/project/bin", "/opt/secret/bin");
    tree.add_link("/home/ann/tool", "/opt/secret/bin/tool");
    let policy = policy_of("shell", FlagLayer::default());
    let sees_secret = |wanted: &Request| {
        let plan = make(&policy, wanted, &host(Privilege::User), &tree).unwrap();
        assert!(bound(&plan).contains(&Path::new("/home/ann/.pyenv")));
        bound(&plan).contains(&Path::new("/opt/secret"))
    };
    wanted.argv = vec!["/home/ann/project/tool".into()];
    wanted.env[2].1.push(":/home/ann/project/bin");
    assert!(!sees_secret(&wanted));
    wanted.argv = vec!["/home/ann/tool".into()];
    assert!(sees_secret(&wanted), "the user's own link leads anywhere");
}

#[test]
fn what_is_hidden_comes_back_neither_as_a_toolchain_nor_as_state() {
    let (tree, wanted) = workshop();
    let mut policy = policy_of("coding-agent", FlagLayer::default());
    let sees = |policy: &Policy| {
        let plan = make(policy, &wanted, &host(Privilege::User), &tree).unwrap();
        let bound = bound(&plan);
        ["/home/ann/.cargo/bin", "/home/ann/.claude", "/opt/jdk"]
            .map(|path| bound.contains(&Path::new(path)))
    };
    assert_eq!(sees(&policy), [true, true, true]);
    for path in ["/home/ann/.cargo", "/home/ann/.claude"] {
        let flag = "--hide".into();
        policy
            .hide
            .push(Sourced::new(path.into(), Origin::Flag { flag }));
    }
    assert_eq!(sees(&policy), [false, false, true]);
}

#[test]
fn a_plan_with_a_network_is_written_as_json_and_every_part_of_it_counts() {
    let host = host(Privilege::User);
    let plan = |model: &str| {
        let flags = FlagLayer {
            allow_hosts: vec![model.into()],
            ..FlagLayer::default()
        };
        let mut tree = Tree::new();
        // Without authorities no TLS is intercepted, and no model is read.
        tree.add("/etc/ssl/certs/ca-certificates.crt", NodeType::File);
        make(&policy_of("coding-agent", flags), &request(), &host, &tree).unwrap()
    };
    let with_model = plan("api.anthropic.com");
    assert!(with_model.network.as_ref().unwrap().models.is_some());
    serde_json::to_vec(&with_model).unwrap();
    assert_ne!(with_model.digest(), plan("api.openai.com").digest());
}

#[test]
fn a_plan_with_a_secret_says_which_values_are_covered() {
    let host = host(Privilege::User);
    let explained = |secrets: Vec<String>| {
        let flags = FlagLayer {
            allow_hosts: vec!["api.example.com".into()],
            secrets,
            ..FlagLayer::default()
        };
        let mut tree = Tree::new();
        tree.add("/etc/ssl/certs/ca-certificates.crt", NodeType::File);
        let mut wanted = request();
        wanted.env.push(("TOKEN".into(), "value".into()));
        let plan = make(&policy_of("coding-agent", flags), &wanted, &host, &tree).unwrap();
        explain(&plan, Detail::Full)
    };
    let says = ironcage_plan::UNCOVERED_VALUES;
    assert!(says.contains("16 bytes") && says.contains("4 KiB"));
    assert!(explained(vec!["TOKEN@api.example.com".into()]).contains(says));
    assert!(!explained(Vec::new()).contains(says));
}
