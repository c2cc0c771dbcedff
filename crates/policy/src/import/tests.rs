//! What imported settings allow and keep out, against a real tree.

use super::*;
use crate::{Policy, Resolved, Sources, WorkspaceMode, resolve};
use ironcage_model::HostRule;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;

/// A home with a project, some files and a directory beside it.
struct Scene {
    root: tempfile::TempDir,
    as_of_now: bool,
}

impl Scene {
    fn new() -> Self {
        let scene = Scene {
            root: tempfile::tempdir().unwrap(),
            as_of_now: false,
        };
        for directory in [
            "home/project/src/deep",
            "home/project/secrets/public",
            "home/.ssh",
            "home/cache/inner",
            "data/inner",
        ] {
            fs::create_dir_all(scene.at(directory)).unwrap();
        }
        for file in [
            "home/project/.env",
            "home/project/src/main.rs",
            "home/project/src/deep/key.pem",
            "home/.ssh/id",
            "data/inner/file",
        ] {
            fs::write(scene.at(file), "").unwrap();
        }
        scene
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().canonicalize().unwrap().join(path)
    }

    fn place(&self) -> Place {
        Place {
            workspace: self.at("home/project"),
            settings_dir: self.at("home"),
            policy_dir: self.at("home/project"),
            home: self.at("home"),
            own: vec![self.at("home/.local/state/ironcage")],
            as_of_now: self.as_of_now,
        }
    }

    fn import(&self, settings: &Value) -> Result<Imported, ImportError> {
        srt(&settings.to_string(), &self.place())
    }

    /// The imported policy by our own parser and all the checks of a run.
    fn resolve(&self, imported: &Imported) -> Policy {
        let file = self.at("home/project/ironcage.toml");
        fs::write(&file, &imported.policy).unwrap();
        let sources = Sources {
            policy_file: Some(file.clone()),
            workspace: self.at("home/project"),
            home: self.at("home"),
            ..Sources::default()
        };
        let resolved = resolve(&sources);
        fs::remove_file(&file).unwrap();
        match resolved {
            Ok(Resolved { policy, .. }) => policy,
            Err(error) => panic!("{error}\n{}", imported.policy),
        }
    }

    #[track_caller]
    fn policy(&self, settings: &Value) -> Policy {
        self.resolve(&self.import(settings).unwrap())
    }
}

fn files(section: Value) -> Value {
    json!({ "network": { "allowedDomains": [], "deniedDomains": [] }, "filesystem": section })
}

fn values(list: &[crate::Sourced<PathBuf>]) -> Vec<PathBuf> {
    list.iter().map(|path| path.value.clone()).collect()
}

#[track_caller]
fn told(imported: &Imported, kind: Kind, text: &str) {
    let lines: Vec<String> = imported
        .findings
        .iter()
        .filter(|finding| finding.kind == kind)
        .map(ToString::to_string)
        .collect();
    assert!(
        lines.iter().any(|line| line.contains(text)),
        "no {text:?} in {kind:?}: {lines:#?}"
    );
}

#[test]
fn the_current_directory_is_the_workspace() {
    let scene = Scene::new();
    let policy = scene.policy(&files(
        json!({ "denyRead": [], "allowWrite": ["."], "denyWrite": [] }),
    ));
    assert_eq!(policy.workspace_mode.value, WorkspaceMode::Direct);
    assert!(policy.read.is_empty() && policy.write.is_empty() && policy.hide.is_empty());
}

#[test]
fn without_allow_write_the_workspace_is_read_only() {
    let scene = Scene::new();
    for settings in [
        json!({}),
        files(json!({ "denyRead": [], "allowWrite": [], "denyWrite": [] })),
    ] {
        assert_eq!(
            scene.policy(&settings).workspace_mode.value,
            WorkspaceMode::ReadOnly
        );
    }
    let settings = files(json!({ "allowWrite": ["src"] }));
    assert_eq!(
        scene.policy(&settings).workspace_mode.value,
        WorkspaceMode::ReadOnly
    );
    told(
        &scene.import(&settings).unwrap(),
        Kind::Narrower,
        "allowWrite \"src\"",
    );
}

#[test]
fn denied_paths_are_hidden_and_unwritable_ones_read_only() {
    let scene = Scene::new();
    let policy = scene.policy(&files(json!({
        "denyRead": ["~/.ssh", "./secrets", "/no/such/place"],
        "allowWrite": [".", "~/cache", "/tmp"],
        "denyWrite": [".env", "src/deep", "~/cache/inner/**"]
    })));
    assert_eq!(policy.workspace_mode.value, WorkspaceMode::Direct);
    assert_eq!(
        values(&policy.hide),
        [scene.at("home/project/secrets"), scene.at("home/.ssh")]
    );
    assert_eq!(
        values(&policy.read),
        [
            scene.at("home/project/.env"),
            scene.at("home/project/src/deep"),
            scene.at("home/cache/inner")
        ]
    );
    // The directory above a read-only one is mounted too, so that it cannot be moved away.
    assert_eq!(
        values(&policy.write),
        [scene.at("home/project/src"), scene.at("home/cache")]
    );
}

#[test]
fn what_may_come_to_match_is_kept_out_with_all_around_it() {
    let mut scene = Scene::new();
    let pattern = files(json!({ "denyRead": ["**/.env"], "allowWrite": ["."], "denyWrite": [] }));
    assert_eq!(
        scene.policy(&pattern).workspace_mode.value,
        WorkspaceMode::Scratch
    );
    let missing = files(json!({ "denyRead": [], "allowWrite": ["."], "denyWrite": [".npmrc"] }));
    assert_eq!(
        scene.policy(&missing).workspace_mode.value,
        WorkspaceMode::ReadOnly
    );
    let narrow =
        files(json!({ "denyRead": ["src/**/*.pem"], "allowWrite": ["."], "denyWrite": [] }));
    let policy = scene.policy(&narrow);
    assert_eq!(
        (policy.workspace_mode.value, values(&policy.hide)),
        (WorkspaceMode::Direct, vec![scene.at("home/project/src")])
    );

    scene.as_of_now = true;
    let policy = scene.policy(&pattern);
    assert_eq!(
        (policy.workspace_mode.value, values(&policy.hide)),
        (WorkspaceMode::Direct, vec![scene.at("home/project/.env")])
    );
    assert_eq!(
        scene.policy(&missing).workspace_mode.value,
        WorkspaceMode::Direct
    );
    let policy = scene.policy(&narrow);
    assert_eq!(
        values(&policy.hide),
        [scene.at("home/project/src/deep/key.pem")]
    );
}

#[test]
fn an_allowed_directory_is_lifted_out_of_a_denied_one() {
    let scene = Scene::new();
    let home = scene.at("home");
    let settings = json!({ "denyRead": [home, scene.at("data")], "allowRead": [".", scene.at("data/inner")], "allowWrite": [] });
    let policy = scene.policy(&files(settings));
    assert_eq!(policy.workspace_mode.value, WorkspaceMode::ReadOnly);
    assert_eq!(values(&policy.read), [scene.at("data/inner")]);
    assert!(!policy.toolchains.value && !policy.git_identity.value);
    let policy = scene.policy(&files(json!({ "denyRead": [home], "allowWrite": [] })));
    assert_eq!(policy.workspace_mode.value, WorkspaceMode::Scratch);
    // A denied directory in an allowed one stays denied.
    let settings = json!({ "denyRead": ["./secrets"], "allowRead": [".", "./secrets/public"], "allowWrite": ["."] });
    assert_eq!(
        values(&scene.policy(&files(settings)).hide),
        [scene.at("home/project/secrets")]
    );
}

#[test]
fn the_host_itself_and_the_home_are_not_given() {
    let scene = Scene::new();
    let settings = files(
        json!({ "allowWrite": [".", "/", "~", "/proc", "/dev/shm", "/tmp", "~/none", "**/*.ts"], "allowRead": ["/sys", "~"] }),
    );
    let policy = scene.policy(&settings);
    assert!(policy.write.is_empty() && policy.read.is_empty());
    let imported = scene.import(&settings).unwrap();
    for text in [
        "\"/\"",
        "\"~\"",
        "\"/proc\"",
        "\"/dev/shm\"",
        "\"/tmp\"",
        "\"~/none\"",
        "\"**/*.ts\"",
        "\"/sys\"",
    ] {
        told(&imported, Kind::Narrower, text);
    }
}

#[test]
fn what_srt_never_lets_be_written_is_found_below_the_root() {
    let scene = Scene::new();
    fs::create_dir_all(scene.at("home/project/src/.vscode")).unwrap();
    fs::create_dir_all(scene.at("home/project/.vscode")).unwrap();
    let policy = scene.policy(&files(json!({ "allowWrite": ["."] })));
    assert_eq!(values(&policy.read), [scene.at("home/project/src/.vscode")]);
    let mut settings = files(json!({ "allowWrite": ["."] }));
    settings["mandatoryDenySearchDepth"] = json!(1);
    assert!(scene.policy(&settings).read.is_empty());
}

#[test]
fn every_setting_is_told_of() {
    let scene = Scene::new();
    let settings = json!({
        "network": {
            "allowedDomains": ["github.com", "*.npmjs.org"], "deniedDomains": ["evil.example"],
            "allowUnixSockets": ["/var/run/docker.sock"], "allowLocalBinding": true, "futureKey": 1
        },
        "filesystem": { "denyRead": [], "allowWrite": ["."], "denyWrite": [], "allowGitConfig": true, "odd": [] },
        "ignoreViolations": { "*": ["/usr/bin"] },
        "enableWeakerNestedSandbox": true,
        "credentials": { "files": [{ "path": "~/.ssh/id", "mode": "mask" }], "envVars": [{ "name": "TOKEN", "mode": "deny" }, { "name": "LANG", "mode": "deny" }] },
        "madeUp": { "x": "\u{1b}[2J" }
    });
    let imported = scene.import(&settings).unwrap();
    for text in [
        "allowLocalBinding",
        "ignoreViolations",
        "enableWeakerNestedSandbox",
        "allowGitConfig",
        "~/.ssh/id",
    ] {
        told(&imported, Kind::NoEqual, text);
    }
    for text in ["\"github.com\"", "\"*.npmjs.org\"", "docker.sock"] {
        told(&imported, Kind::Narrower, text);
    }
    for text in ["network.futureKey", "filesystem.odd", "madeUp"] {
        told(&imported, Kind::Unknown, text);
    }
    told(&imported, Kind::Kept, "evil.example");
    told(&imported, Kind::Kept, "\"TOKEN\"");
    told(&imported, Kind::Differs, "reading");
    assert!(
        imported
            .findings
            .iter()
            .all(|finding| !finding.to_string().contains('\u{1b}'))
    );
    let policy = scene.resolve(&imported);
    assert_eq!(values(&policy.hide), [scene.at("home/.ssh/id")]);
    assert!(policy.env.iter().any(|rule| rule.value
        == crate::EnvRule::Set {
            name: "LANG".into(),
            value: String::new()
        }));
}

#[test]
fn hosts_are_reached_as_before_on_the_ports_of_the_web() {
    let scene = Scene::new();
    let settings = json!({ "filesystem": {}, "network": {
        "allowedDomains": ["Example.com", "*.example.org", "localhost", "*", "https://no.example/", "192.0.2.7"],
        "deniedDomains": ["bad.example.org"], "deniedResolvedAddresses": ["10.0.0.0/8"], "allowAllDomains": true
    } });
    let imported = scene.import(&settings).unwrap();
    let policy = scene.resolve(&imported).network;
    let texts = |rules: &[crate::Sourced<HostRule>]| -> Vec<String> {
        rules.iter().map(|rule| rule.value.to_string()).collect()
    };
    assert_eq!(
        texts(&policy.allow),
        ["example.com", "*.example.org", "192.0.2.7"]
    );
    assert_eq!(texts(&policy.deny), ["bad.example.org:*", "10.0.0.0/8:*"]);
    assert!(!policy.open.value);
    for text in ["\"localhost\"", "\"*\"", "no.example", "allowAllDomains"] {
        told(&imported, Kind::Narrower, text);
    }
    // What is forbidden and cannot be said is not passed over.
    let settings = json!({ "filesystem": {}, "network": { "deniedDomains": ["bad host"] } });
    assert!(scene.import(&settings).is_err());
    // Without any, there is no network.
    assert!(!scene.policy(&files(json!({}))).network.is_given());
}

#[test]
fn a_parent_proxy_is_the_upstream_proxy_without_its_password() {
    let scene = Scene::new();
    let settings =
        |proxy: serde_json::Value| json!({ "filesystem": {}, "network": { "parentProxy": proxy } });
    let given = json!({ "https": "http://ann:hidden@proxy.example:3128", "noProxy": "localhost, .corp.example" });
    let imported = scene.import(&settings(given)).unwrap();
    told(&imported, Kind::Kept, "parentProxy");
    assert!(!imported.policy.contains("hidden"), "{}", imported.policy);
    let policy = scene.resolve(&imported).network;
    let rule = policy.upstream.unwrap().value;
    let server = "proxy.example:3128".parse().unwrap();
    assert_eq!(rule.proxy, crate::UpstreamChoice::Server(server));
    assert_eq!(rule.no_proxy.len(), 2);
    let socks = json!({ "https": "socks5://ann:hidden@proxy.example:1080" });
    let imported = scene.import(&settings(socks)).unwrap();
    told(&imported, Kind::NoEqual, "parentProxy");
    assert!(scene.import(&settings(json!("x"))).is_err());
}

#[test]
fn settings_of_claude_code_hold_the_same_below_sandbox() {
    let mut scene = Scene::new();
    scene.as_of_now = true;
    let settings = json!({
        "model": "opus",
        "permissions": { "allow": ["Edit(//etc/**)"], "deny": ["Read(./secrets/**)", "Edit(/src/deep)", "Bash(curl:*)"] },
        "sandbox": { "enabled": true, "excludedCommands": ["docker *"], "filesystem": { "allowWrite": ["~/cache"] } }
    });
    let imported = scene.import(&settings).unwrap();
    let policy = scene.resolve(&imported);
    assert_eq!(policy.workspace_mode.value, WorkspaceMode::Direct);
    assert_eq!(values(&policy.hide), [scene.at("home/project/secrets")]);
    assert_eq!(values(&policy.read), [scene.at("home/project/src/deep")]);
    assert!(values(&policy.write).contains(&scene.at("home/cache")));
    told(&imported, Kind::NoEqual, "docker *");
    told(&imported, Kind::NoEqual, "Edit(//etc/**)");
    told(&imported, Kind::NoEqual, "Bash(curl:*)");
    told(&imported, Kind::NoEqual, "model");
    let both = json!({ "sandbox": {}, "filesystem": {} });
    assert!(scene.import(&both).is_err());
}

#[test]
fn settings_whose_meaning_cannot_be_told_are_refused() {
    let scene = Scene::new();
    assert!(matches!(
        srt("{", &scene.place()),
        Err(ImportError::Json(_))
    ));
    for settings in [
        json!([]),
        json!({ "filesystem": [] }),
        files(json!({ "denyRead": "~/.ssh" })),
        files(json!({ "denyRead": [1] })),
        files(json!({ "denyRead": [""] })),
        files(json!({ "denyRead": [{ "path": "x" }] })),
        json!({ "credentials": { "files": [{}] } }),
    ] {
        assert!(
            matches!(scene.import(&settings), Err(ImportError::Shape { .. })),
            "{settings}"
        );
    }
    let literal = files(json!({ "denyRead": [{ "path": "./secrets", "literal": true }] }));
    assert_eq!(
        values(&scene.policy(&literal).hide),
        [scene.at("home/project/secrets")]
    );
}

/// Texts that mean something as paths, and some that mean nothing.
fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec![
            ".", "./", "src", "./src/**", "src/deep", "secrets", "secrets/public", ".env", ".none", "**/.env", "src/*.rs", "[a", "*",
            "~", "~/", "~/.ssh", "~/cache", "~/cache/inner", "~/project", "~/project/src", "..", "../..", "/", "/**", "/tmp", "/usr",
            "/usr/share", "/etc", "/etc/ssl", "/dev/null", "/proc/self", "/sys", "~other", "a\0b", "\"\n\u{1b}", "/no/such", "//etc",
        ]).prop_map(str::to_owned),
        1 => ".{0,12}",
    ]
}

fn entry() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => path().prop_map(Value::from),
        1 => path().prop_map(|path| json!({ "path": path, "literal": true, "mode": "deny", "name": "LANG" })),
    ]
}

/// Any JSON, with the keys of settings more often than others.
fn any_json() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        prop::sample::select(vec![
            "sandbox",
            "filesystem",
            "network",
            "credentials",
            "permissions",
            "denyRead",
            "allowRead",
            "allowWrite",
            "denyWrite",
            "files",
            "envVars",
            "deny",
            "path",
            "name",
            "mode",
            "literal",
            "disabled",
            "enabled",
            "allowedDomains",
            "deniedDomains",
            "ignoreViolations",
            "mandatoryDenySearchDepth",
        ])
        .prop_map(str::to_owned),
        ".{0,6}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        path().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn list() -> impl Strategy<Value = Value> {
    prop::collection::vec(entry(), 0..5).prop_map(Value::from)
}

fn valid() -> impl Strategy<Value = Value> {
    (list(), list(), list(), list(), any::<bool>()).prop_map(|(deny_read, allow_read, allow_write, deny_write, claude)| {
        let filesystem = json!({ "denyRead": deny_read, "allowRead": allow_read, "allowWrite": allow_write, "denyWrite": deny_write });
        if claude { json!({ "sandbox": { "enabled": true, "filesystem": filesystem } }) } else { files(filesystem) }
    })
}

/// The places that the plain entries of a list name.
fn named(scene: &Scene, settings: &Value, list: &str) -> Vec<PathBuf> {
    let filesystem = settings
        .get("sandbox")
        .unwrap_or(settings)
        .get("filesystem");
    let entries = filesystem
        .and_then(|section| section.get(list)?.as_array())
        .cloned()
        .unwrap_or_default();
    let mut paths = Vec::new();
    for entry in &entries {
        // A literal entry is a name; of others `/**` at the end is no part.
        let text = match (entry.as_str(), entry.get("path").and_then(Value::as_str)) {
            (Some(text), _) => match text.trim_end_matches("/**") {
                "" => "/",
                plain => plain,
            },
            (None, Some(text)) => text,
            (None, None) => continue,
        };
        let path = match text.strip_prefix('~') {
            Some("") => scene.at("home"),
            Some(rest) if rest.starts_with('/') => {
                scene.at("home").join(rest.trim_start_matches('/'))
            }
            _ => scene.at("home/project").join(text),
        };
        paths.extend(crate::fragment::normal(&path).canonicalize());
    }
    paths
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn any_json_is_imported_or_refused(settings in any_json(), as_of_now: bool) {
        let mut scene = Scene::new();
        scene.as_of_now = as_of_now;
        if let Ok(imported) = scene.import(&settings) {
            scene.resolve(&imported);
        }
    }

    #[test]
    fn any_text_is_imported_or_refused(text in ".{0,200}") {
        let _ = srt(&text, &Scene::new().place());
    }

    #[test]
    fn a_policy_gives_no_more_than_the_settings(settings in valid(), as_of_now: bool) {
        let mut scene = Scene::new();
        scene.as_of_now = as_of_now;
        let Ok(imported) = scene.import(&settings) else { return Ok(()) };
        let policy = scene.resolve(&imported);
        let workspace = scene.at("home/project");
        let mut allow_write = named(&scene, &settings, "allowWrite");
        if settings.get("sandbox").is_some() {
            allow_write.push(workspace.clone());
        }
        let deny_write = named(&scene, &settings, "denyWrite");
        let deny_read = named(&scene, &settings, "denyRead");
        let mut lifts = named(&scene, &settings, "allowRead");
        lifts.extend(allow_write.clone());
        let mut given = values(&policy.write);
        if policy.workspace_mode.value == WorkspaceMode::Direct {
            given.push(workspace.clone());
        }
        for path in &given {
            prop_assert!(allow_write.iter().any(|allowed| path.starts_with(allowed)), "{} is written\n{}", path.display(), imported.policy);
        }
        for denied in &deny_write {
            let written = given.iter().any(|path| denied.starts_with(path) || path.starts_with(denied));
            let held = policy.read.iter().chain(&policy.hide).any(|path| denied.starts_with(&path.value));
            prop_assert!(!written || held, "{} can be written\n{}", denied.display(), imported.policy);
        }
        given.extend(values(&policy.read));
        if policy.workspace_mode.value == WorkspaceMode::ReadOnly {
            given.push(workspace);
        }
        given.push(PathBuf::from("/usr"));
        for denied in &deny_read {
            let hidden = |path: &Path| policy.hide.iter().any(|hidden| path.starts_with(&hidden.value));
            for path in &given {
                let lifted = lifts.iter().any(|lift| path.starts_with(lift) && lift.starts_with(denied) && lift != denied);
                let inside = denied.starts_with(path) && denied != path;
                prop_assert!(!inside || hidden(denied), "{} can be read\n{}", denied.display(), imported.policy);
                prop_assert!(!path.starts_with(denied) || lifted || hidden(path), "{} can be read\n{}", path.display(), imported.policy);
            }
        }
    }
}
