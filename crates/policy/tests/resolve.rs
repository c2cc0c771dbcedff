//! From sources to a policy: precedence, origins, choice of profile, errors.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "resolve/odd.rs"]
mod odd;

use ironcage_model::{Layer, WordsMode};
use ironcage_policy::{
    Amount, EnvRule, FlagLayer, Origin, PolicyError, Resolved, Sources, WorkspaceMode, resolve,
};
use std::fs;
use std::path::{Path, PathBuf};

/// A home with a workspace in it, and places for configuration and state.
struct Stage {
    root: tempfile::TempDir,
}

impl Stage {
    fn new() -> Stage {
        let root = tempfile::tempdir().unwrap();
        for directory in ["home/project", "home/datasets", "config", "state"] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        Stage { root }
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.root.path().canonicalize().unwrap().join(relative)
    }

    fn write(&self, relative: &str, text: &str) -> PathBuf {
        let path = self.path(relative);
        fs::write(&path, text).unwrap();
        path
    }

    fn sources(&self) -> Sources {
        Sources {
            workspace: self.path("home/project"),
            home: self.path("home"),
            user_config_dir: Some(self.path("config")),
            state_dir: Some(self.path("state")),
            ..Sources::default()
        }
    }

    fn with_policy(&self, text: &str) -> Result<Resolved, PolicyError> {
        let file = self.write("home/project/named.toml", text);
        resolve(&Sources {
            policy_file: Some(file),
            ..self.sources()
        })
    }

    fn refused(&self, text: &str) -> String {
        self.with_policy(text).unwrap_err().to_string()
    }
}

fn command(name: &str) -> Option<std::ffi::OsString> {
    Some(name.into())
}

#[test]
fn the_words_of_a_model_narrow_calls_where_writes_are_leased() {
    let words = |profile: &str| {
        let policy = ironcage_policy::resolve_profile(profile, Path::new("/home/user")).unwrap();
        policy.ceiling.words.value
    };
    for profile in ["strict", "coding-agent-locked"] {
        assert_eq!(words(profile), WordsMode::Narrow, "{profile}");
    }
    assert_eq!(words("coding-agent"), WordsMode::Note);
}

#[test]
fn every_profile_resolves_and_requires_the_layers_that_make_a_cage() {
    for profile in ironcage_policy::profiles() {
        let policy =
            ironcage_policy::resolve_profile(profile.name, Path::new("/home/user")).unwrap();
        assert_eq!(policy.profile.value, profile.name);
        for layer in [
            Layer::UserNs,
            Layer::MountNs,
            Layer::PidNs,
            Layer::NetNs,
            Layer::Seccomp,
            Layer::NoNewPrivs,
        ] {
            assert!(
                policy.require.iter().any(|known| known.value == layer),
                "{} {layer}",
                profile.name
            );
        }
        assert!(
            policy.read.is_empty() && policy.write.is_empty() && policy.capabilities.is_empty()
        );
    }
    let names: Vec<_> = ironcage_policy::profiles()
        .map(|profile| profile.name)
        .collect();
    assert_eq!(
        names,
        [
            "coding-agent-locked",
            "coding-agent",
            "data",
            "learning",
            "node",
            "python",
            "rust",
            "shell",
            "strict"
        ]
    );
}

#[test]
fn the_profile_is_chosen_by_flag_then_configuration_then_command() {
    let stage = Stage::new();
    let choose = |profile: Option<&str>, program: &str| {
        let resolved = resolve(&Sources {
            profile: profile.map(str::to_owned),
            command: command(program),
            ..stage.sources()
        });
        let resolved = resolved.unwrap();
        (resolved.policy.profile.value, resolved.profile_choice)
    };
    assert_eq!(choose(None, "/usr/bin/python3").0, "python");
    assert_eq!(choose(None, "python3.12").0, "python");
    assert_eq!(choose(None, "claude").0, "coding-agent");
    assert_eq!(choose(None, "cargo").0, "rust");
    assert_eq!(choose(None, "make").0, "shell");
    assert!(choose(None, "npm").1.contains("profile node (for npm"));
    stage.write("config/config.toml", "profile = \"data\"\n");
    let (name, why) = choose(None, "python3");
    assert_eq!(name, "data");
    assert!(
        why.contains("your configuration") && why.contains("config.toml"),
        "{why}"
    );
    assert_eq!(choose(Some("strict"), "python3").0, "strict");
}

#[test]
fn an_agent_gets_the_key_of_its_vendor_unless_the_policy_says_otherwise() {
    let stage = Stage::new();
    let secrets = |name: &str, variables: &[&str], flags: FlagLayer| {
        let resolved = resolve(&Sources {
            command: command(name),
            variables: variables.iter().map(Into::into).collect(),
            flags,
            ..stage.sources()
        });
        let secrets = resolved.unwrap().policy.network.secrets;
        let text = |secret: &ironcage_model::SecretRule| {
            format!("{}@{}", secret.name, secret.host_texts().join(","))
        };
        let secrets = secrets.iter().map(|secret| text(&secret.value));
        secrets.collect::<Vec<_>>()
    };
    let none = FlagLayer::default;
    let key = ["ANTHROPIC_API_KEY", "GITHUB_TOKEN"];
    assert_eq!(
        secrets("claude", &key, none()),
        ["ANTHROPIC_API_KEY@api.anthropic.com"]
    );
    // Another command, another vendor's key, no key, and a base URL that leads elsewhere.
    assert!(secrets("python3", &key, none()).is_empty());
    assert!(secrets("codex", &key, none()).is_empty());
    assert!(secrets("claude", &[], none()).is_empty());
    let gateway = ["ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"];
    assert!(secrets("claude", &gateway, none()).is_empty());
    // What the user says about the variable or the account counts.
    let passed = FlagLayer {
        env: vec![EnvRule::Pass {
            name: key[0].into(),
        }],
        ..none()
    };
    assert!(secrets("claude", &key, passed).is_empty());
    let own = FlagLayer {
        secrets: vec!["ANTHROPIC_API_KEY@llm.example".into()],
        ..none()
    };
    assert_eq!(
        secrets("claude", &key, own),
        ["ANTHROPIC_API_KEY@llm.example"]
    );
    let login = FlagLayer {
        logins: vec!["claude".into()],
        ..none()
    };
    assert!(secrets("claude", &key, login).is_empty());
    // A profile that is not the agent's brings neither its hosts nor its keys.
    let strict = resolve(&Sources {
        command: command("claude"),
        profile: Some("strict".into()),
        variables: vec![key[0].into()],
        ..stage.sources()
    });
    assert!(strict.unwrap().policy.network.secrets.is_empty());
}

#[test]
fn an_unknown_profile_is_refused_with_those_that_exist() {
    let stage = Stage::new();
    let error = resolve(&Sources {
        profile: Some("strcit".into()),
        ..stage.sources()
    });
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("coding-agent, data")
    );
}

#[test]
fn flags_go_over_the_file_which_goes_over_configuration_and_profile() {
    let stage = Stage::new();
    stage.write(
        "config/config.toml",
        "[limits]\nmemory = \"1G\"\npids = 100\nfiles = 1000\n",
    );
    let file = stage.write(
        "home/project/named.toml",
        "\n[limits]\nmemory = \"2G\"\npids = 200\n",
    );
    let resolved = resolve(&Sources {
        policy_file: Some(file.clone()),
        flags: FlagLayer {
            memory: Some(Amount::Bytes(3 << 30)),
            ..FlagLayer::default()
        },
        ..stage.sources()
    })
    .unwrap();
    let limits = resolved.policy.limits;
    assert_eq!(limits.memory.value, Amount::Bytes(3 << 30));
    assert_eq!(limits.memory.origin.to_string(), "--memory");
    assert_eq!(limits.pids.value, 200);
    assert_eq!(
        limits.pids.origin,
        Origin::File {
            path: file,
            line: 4
        }
    );
    assert_eq!(limits.files.value, 1000);
    assert_eq!(limits.inodes.origin, Origin::BuiltIn);
    assert!(resolved.trusted && resolved.narrowed.is_empty());
}

#[test]
fn a_profile_overrides_the_defaults_and_says_so() {
    let policy = ironcage_policy::resolve_profile("strict", Path::new("/h")).unwrap();
    assert_eq!(policy.workspace_mode.value, WorkspaceMode::Leased);
    assert_eq!(policy.workspace_mode.origin.to_string(), "profile strict");
    let policy = ironcage_policy::resolve_profile("python", Path::new("/h")).unwrap();
    assert_eq!(policy.workspace_mode.origin.to_string(), "profile shell");
}

#[test]
fn a_ceiling_names_the_workspace_wherever_that_is_and_nothing_around_it() {
    let stage = Stage::new();
    let resolved = stage
        .with_policy("[ceiling.ask.files]\nwrite = [\"@workspace/src\"]\nread = [\"@workspace\"]\n")
        .unwrap();
    let paths = resolved.policy.ceiling.paths.iter();
    let paths: Vec<_> = paths.map(|part| part.value.path.clone()).collect();
    let project = stage.path("home/project");
    assert_eq!(paths, [project.clone(), project.join("src")]);
    for text in ["@workspace/..", "@workspace/../secret", "@workspaces"] {
        let policy = format!("[ceiling.ask.files]\nwrite = [\"{text}\"]\n");
        match stage.with_policy(&policy) {
            // A name like any other, beside the file.
            Ok(resolved) => {
                let mut paths = resolved.policy.ceiling.paths.iter();
                let named = project.join("@workspaces");
                assert!(text == "@workspaces" && paths.all(|part| part.value.path == named));
            }
            Err(error) => assert!(error.to_string().contains("@workspace/.."), "{error}"),
        }
    }
}

#[test]
fn lists_are_appended_and_paths_expanded() {
    let stage = Stage::new();
    stage.write("config/config.toml", "[files]\nread = [\"~/datasets\"]\n");
    fs::create_dir(stage.path("home/project/data")).unwrap();
    let resolved = stage
        .with_policy("[files]\nread = [\"data\", \"../datasets\", \"/usr\"]\n")
        .unwrap();
    let read: Vec<_> = resolved
        .policy
        .read
        .iter()
        .map(|path| path.value.clone())
        .collect();
    let expected = [
        stage.path("home/datasets"),
        stage.path("home/project/data"),
        PathBuf::from("/usr"),
    ];
    assert_eq!(read, expected);
}

#[test]
fn a_later_rule_for_a_variable_replaces_the_earlier() {
    let stage = Stage::new();
    let resolved = stage
        .with_policy("[env]\nset = { TERM = \"dumb\" }\n")
        .unwrap();
    let rules: Vec<_> = resolved
        .policy
        .env
        .iter()
        .filter(|rule| rule.value.name() == "TERM")
        .map(|rule| rule.value.clone())
        .collect();
    let set = EnvRule::Set {
        name: "TERM".into(),
        value: "dumb".into(),
    };
    assert_eq!(rules, [set]);
}

#[test]
fn extends_reads_files_and_profiles_below() {
    let stage = Stage::new();
    stage.write(
        "home/project/base.toml",
        "extends = \"strict\"\n[limits]\npids = 77\n",
    );
    let resolved = stage
        .with_policy("extends = \"./base.toml\"\n[limits]\nfiles = 99\n")
        .unwrap();
    assert_eq!(resolved.policy.profile.value, "strict");
    assert_eq!(resolved.policy.limits.pids.value, 77);
    assert_eq!(resolved.policy.limits.files.value, 99);
    assert!(resolved.profile_choice.contains("policy file"));
}

#[test]
fn a_cycle_and_a_missing_base_name_the_chain() {
    let stage = Stage::new();
    stage.write("home/project/base.toml", "extends = \"./named.toml\"\n");
    let shown = stage.refused("extends = \"./base.toml\"\n");
    assert!(shown.contains("extends itself"), "{shown}");
    assert!(
        shown.contains("named.toml -> ") && shown.contains("base.toml -> "),
        "{shown}"
    );
    let shown = stage.refused("extends = \"./absent.toml\"\n");
    assert!(
        shown.contains("cannot read `./absent.toml`") && shown.contains("named.toml:1:11"),
        "{shown}"
    );
    let shown = stage.refused("extends = \"coding-agnet\"\n");
    assert!(shown.contains("did you mean \"coding-agent\"?"), "{shown}");
}

#[test]
fn what_is_not_a_file_cannot_be_a_policy() {
    let stage = Stage::new();
    let shown = stage.refused("extends = \"/dev/zero\"\n");
    assert!(shown.contains("/dev/zero"), "{shown}");
    let error = resolve(&Sources {
        policy_file: Some("/dev/null".into()),
        ..stage.sources()
    });
    assert!(matches!(error, Err(PolicyError::NotAPolicy { .. })));
}

#[test]
fn contradictions_are_shown_with_both_places() {
    let stage = Stage::new();
    let shown = stage.refused("[files]\nwrite = [\"~/datasets\"]\nhide = [\"~/datasets\"]\n");
    assert!(shown.contains("both writable and hidden"), "{shown}");
    assert!(
        shown.contains("named.toml:2") && shown.contains("3 |"),
        "{shown}"
    );
    fs::create_dir(stage.path("home/project/out")).unwrap();
    let shown = stage.refused("[workspace]\nmode = \"read-only\"\n[files]\nwrite = [\"out\"]\n");
    assert!(
        shown.contains("is read-only") && shown.contains("mode = \"cow\""),
        "{shown}"
    );
    let shown = stage.refused("[syscalls]\nlist = \"minimal\"\ngroups = [\"debug\"]\n");
    assert!(shown.contains("does not allow groups"), "{shown}");
    // The same values without the other half are fine.
    assert!(
        stage
            .with_policy("[files]\nwrite = [\"~/datasets\"]\n")
            .is_ok()
    );
    assert!(stage.with_policy("[files]\nwrite = [\"out\"]\n").is_ok());
    assert!(
        stage
            .with_policy("[syscalls]\nlist = \"minimal\"\n")
            .is_ok()
    );
}

#[test]
fn a_contradiction_between_flags_names_them() {
    let stage = Stage::new();
    let error = resolve(&Sources {
        flags: FlagLayer {
            write: vec![stage.path("home/datasets")],
            hide: vec![stage.path("home")],
            ..FlagLayer::default()
        },
        workspace: "/usr".into(),
        ..stage.sources()
    });
    let shown = error.unwrap_err().to_string();
    assert!(
        shown.contains("--write") && shown.contains("--hide"),
        "{shown}"
    );
}

#[test]
fn missing_paths_are_errors_at_their_line() {
    let stage = Stage::new();
    let shown = stage.refused("[files]\nread = [\n  \"/usr\",\n  \"~/nowhere\",\n]\n");
    assert!(
        shown.contains("named.toml:4") && shown.contains("nowhere"),
        "{shown}"
    );
    let shown = stage.refused("[files]\nhide = [\"secrtes\"]\n");
    assert!(shown.contains("does not exist"), "{shown}");
    fs::write(stage.path("home/nowhere"), "").unwrap();
    assert!(
        stage
            .with_policy("[files]\nread = [\"~/nowhere\"]\n")
            .is_ok()
    );
}

#[test]
fn values_out_of_range_are_errors_with_the_remedy() {
    let stage = Stage::new();
    for (text, says) in [
        ("[limits]\nmemory = \"12x\"", "such as \"512M\""),
        ("[limits]\nmemory = \"0%\"", "expected a size"),
        ("[limits]\npids = 1", "from 2 to"),
        ("[limits]\nfiles = 9000000", "from 16 to"),
        ("[limits]\ncpus = 0", "number of CPUs"),
        ("[limits]\ntime = \"soon\"", "\"30m\""),
        ("[process]\nhostname = \"a_b\"", "RFC 1123"),
        ("[process]\nhostname = \"-a\"", "RFC 1123"),
        (
            "[process]\ncapabilities = [\"CAP_SYS_ADMIN\"]",
            "could undo the cage",
        ),
        (
            "[process]\ncapabilities = [\"CAP_CHWON\"]",
            "did you mean `CAP_CHOWN`",
        ),
        ("[env]\npass = [\"A=B\"]", "contain `=`"),
        ("[env]\nset = { A = \"x\\u0000\" }", "contains a NUL"),
        ("[syscalls]\ngroups = [\"debgu\"]", "did you mean \"debug\""),
        (
            "[syscalls]\nlist = \"wide\"",
            "expected one of standard, minimal",
        ),
        (
            "[layers]\nrequire = [\"landlok\"]",
            "did you mean \"landlock\"",
        ),
        ("[workspace]\nmode = \"rw\"", "expected one of direct"),
        (
            "[workspace]\nunprotect = [\".envrcc\"]",
            "not a protected path",
        ),
        (
            "[workspace]\nunprotect = [\"../src\"]",
            "relative to the workspace",
        ),
        ("[files]\nread = [\"/\"]", "the whole host"),
        ("[files]\nread = [\"/proc/1\"]", "own /proc"),
        ("[files]\nread = [\"~other/x\"]", "another user's home"),
        ("profile = \"strict\"", "use extends"),
    ] {
        let shown = stage.refused(text);
        assert!(shown.contains(says), "{text}:\n{shown}");
        assert!(shown.contains("named.toml:"), "{shown}");
    }
}

#[test]
fn flags_are_checked_as_files_are() {
    let stage = Stage::new();
    let with = |flags: FlagLayer| {
        resolve(&Sources {
            flags,
            ..stage.sources()
        })
    };
    let caps = |name: &str| FlagLayer {
        capabilities: vec![name.to_owned()],
        ..FlagLayer::default()
    };
    assert!(
        with(caps("SYS_ADMIN"))
            .unwrap_err()
            .to_string()
            .contains("--cap")
    );
    let policy = with(caps("net_bind_service")).unwrap().policy;
    assert_eq!(policy.capabilities[0].value, "CAP_NET_BIND_SERVICE");
    let policy = with(caps("sys_chroot")).unwrap().policy;
    assert_eq!(policy.syscall_groups[0].value, "chroot");
    let hostname = |name: &str| FlagLayer {
        hostname: Some(name.to_owned()),
        ..FlagLayer::default()
    };
    assert!(with(hostname("not ok")).is_err());
    assert!(with(hostname("ok")).is_ok());
    let unprotect = |path: &str| FlagLayer {
        unprotect: vec![path.into()],
        ..FlagLayer::default()
    };
    assert!(with(unprotect("src")).is_err());
    assert!(with(unprotect(".vscode/")).is_ok());
}

#[test]
fn a_configuration_that_cannot_be_read_is_an_error() {
    let stage = Stage::new();
    fs::create_dir(stage.path("config/config.toml")).unwrap();
    assert!(resolve(&stage.sources()).is_err());
    fs::remove_dir(stage.path("config/config.toml")).unwrap();
    assert!(resolve(&stage.sources()).is_ok());
}

#[test]
fn what_is_kept_lies_in_the_home_directory_and_flags_add_to_it_or_take_it_away() {
    let stage = Stage::new();
    let kept = |flags: FlagLayer| {
        let sources = Sources {
            profile: Some("coding-agent".into()),
            flags,
            ..stage.sources()
        };
        resolve(&sources).map(|resolved| resolved.policy)
    };
    let names = |policy: &ironcage_policy::Policy| -> Vec<PathBuf> {
        policy.keep.iter().map(|path| path.value.clone()).collect()
    };
    let state = |path: &str| FlagLayer {
        state: vec![path.into()],
        ..FlagLayer::default()
    };
    let usual = kept(FlagLayer::default()).unwrap();
    assert!(names(&usual).contains(&".claude".into()) && !usual.caches.is_empty());
    let below_home = stage.path("home/.tool/");
    for path in [".tool/", "~/.tool", below_home.to_str().unwrap()] {
        assert_eq!(
            names(&kept(state(path)).unwrap()).last().unwrap(),
            Path::new(".tool")
        );
    }
    for path in ["/etc", "../other", "~", ".", ".tool/../../x"] {
        let refused = kept(state(path)).unwrap_err().to_string();
        assert!(refused.contains("cannot keep"), "{path}: {refused}");
    }
    let nothing = kept(FlagLayer {
        no_state: true,
        ..state(".tool")
    })
    .unwrap();
    assert_eq!(names(&nothing), [PathBuf::from(".tool")]);
    assert!(nothing.caches.is_empty());
}

#[test]
fn caches_and_kept_paths_of_a_file_are_checked_where_they_are_written() {
    let stage = Stage::new();
    let text = stage.refused("[state]\ncaches = [\"crago\"]\n");
    assert!(text.contains("did you mean \"cargo\"?"), "{text}");
    let text = stage.refused("[state]\nkeep = [\"/etc\"]\n");
    assert!(text.contains("cannot keep"), "{text}");
    let policy = stage
        .with_policy(
            "[state]\nkeep = [\"~/.tool\"]\ncaches = [\"go\"]\n[files]\ntoolchains = false\n",
        )
        .unwrap()
        .policy;
    assert_eq!(policy.keep[0].value, Path::new(".tool"));
    assert_eq!(policy.caches[0].value, "go");
    assert!(!policy.toolchains.value);
}
