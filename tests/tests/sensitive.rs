//! Files of the workspace with sensitive names are not in the base of an agent's cage: a lease shows
//! one.

use ironcage_tests::{Ran, Running, Stage, both, either};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const KEY: &str = "-----BEGIN PRIVATE KEY-----\nabc\n";

fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(PATIENCE)
}

/// Secrets at the top and deeper, and files that only look like some.
fn furnish(stage: &Stage) {
    for (name, text) in [
        (".env", "SECRET=1\n"),
        ("services/api/.env.production", "SECRET=2\n"),
        ("config/credentials-live.json", "{}\n"),
        ("tls/server.pem", KEY),
        ("tls/id_deploy", KEY),
        (".npmrc", "//registry.test/:_authToken=abc\n"),
        // Not sensitive: an example, a certificate, settings without a token, code, a dependency.
        (".env.example", "SECRET=\n"),
        ("tls/ca.pem", "-----BEGIN CERTIFICATE-----\n"),
        ("web/.npmrc", "save-exact=true\n"),
        ("src/credentials.py", "code\n"),
        ("node_modules/x/.env", "installed\n"),
    ] {
        stage.write(stage.project().join(name), text);
    }
}

const HIDDEN: [&str; 6] = [
    ".env",
    "services/api/.env.production",
    "config/credentials-live.json",
    "tls/server.pem",
    "tls/id_deploy",
    ".npmrc",
];
const SHOWN: [&str; 5] = [
    ".env.example",
    "tls/ca.pem",
    "web/.npmrc",
    "src/credentials.py",
    "node_modules/x/.env",
];

/// The ceiling of the profile reaches the stage too.
fn policy(stage: &Stage, more: &str) -> String {
    let path = stage.base().join("sensitive.toml");
    let project = stage.project().display().to_string();
    let text =
        format!("extends = \"coding-agent\"\n{more}[ceiling.ask.files]\nread = [\"{project}\"]\n");
    stage.write(&path, text);
    path.display().to_string()
}

both! {
    fn sensitive_files_of_the_workspace_are_not_in_the_base_of_an_agent(stage) {
        furnish(stage);
        for profile in ["coding-agent", "coding-agent-locked"] {
            let run = |name: &str| {
                let script = format!("cat {name}");
                ironcage(stage, &["run", "-q", "--fresh", "--profile", profile, "--", "/bin/sh", "-c", &script])
            };
            for name in HIDDEN {
                assert_ne!(run(name).code(), 0, "{profile} {name}");
            }
            for name in SHOWN {
                run(name).ok();
            }
        }
        // The user's own commands see what is the user's.
        for name in HIDDEN {
            ironcage(stage, &["run", "-q", "--fresh", "--profile", "shell", "--", "cat", name]).ok();
        }
        // Named by the user, it is shown; and a file that a command makes is its own.
        let script = "cat .env && echo mine > services/.env && cat services/.env; cat .npmrc";
        let flags = ["run", "-q", "--fresh", "--profile", "coding-agent", "-r", ".env"];
        let ran = ironcage(stage, &[&flags[..], &["--", "/bin/sh", "-c", script]].concat());
        assert_eq!(ran.stdout(), "SECRET=1\nmine\n");
        assert_ne!(ran.code(), 0);
    }

    fn a_lease_shows_one_sensitive_file_and_its_end_hides_it_again(stage) {
        furnish(stage);
        for extra in ["", "[workspace]\nmode = \"leased\"\n[ceiling.auto.files]\nwrite = [\"@workspace\"]\n"] {
            let policy = policy(stage, extra);
            let ran = ironcage(stage, &["run", "-q", "-d", "--fresh", "--policy", &policy]).ok();
            let id = ran.stdout().trim().to_owned();
            let read = |name: &str| ironcage(stage, &["exec", &id, "--", "cat", name]);
            assert_ne!(read(".env").code(), 0);
            let path = stage.project().join(".env").display().to_string();
            let granted = ironcage(stage, &["grant", &id, "--read", &path, "--for", "10m"]).ok();
            assert!(granted.stdout().contains("granted by the operator"), "{granted:?}");
            assert_eq!(read(".env").ok().stdout(), "SECRET=1\n");
            assert_ne!(read("tls/server.pem").code(), 0);
            let revoked = ironcage(stage, &["revoke", &id, "1"]).ok();
            assert!(revoked.stdout().contains("revoked"), "{revoked:?}");
            assert_ne!(read(".env").code(), 0);
            // Asked about, whatever gives the directory around it at once.
            let call = r#"{"type":"tool_use","id":"t","name":"Read","input":{"file_path":".env"}}"#;
            let mut exec = stage.ironcage(["exec", &id, "--intent", "-"]);
            let said = Running::start(&mut exec).feed(call.into(), PATIENCE).stdout();
            assert!(said.contains("the user was asked"), "{said}");
            let other = call.replace(".env", ".env.example");
            let mut exec = stage.ironcage(["exec", &id, "--intent", "-"]);
            let said = Running::start(&mut exec).feed(other.into(), PATIENCE).stdout();
            assert!(said.contains("SECRET="), "{said}");
            ironcage(stage, &["rm", "--force", &id]);
        }
    }
}

either! {
    fn what_the_repository_has_is_not_hidden_and_a_changed_file_is(stage) {
        furnish(stage);
        let git = "git init -q . && git -c core.autocrlf=false add -f .env tls/server.pem && echo changed >> tls/server.pem";
        stage.sh_outside(git).ok();
        let run = |name: &str| {
            ironcage(stage, &["run", "-q", "--fresh", "--profile", "coding-agent", "--", "cat", name])
        };
        run(".env").ok();
        assert_ne!(run("tls/server.pem").code(), 0);
        assert_ne!(run(".npmrc").code(), 0);
    }

    fn in_a_workspace_with_very_many_names_a_deep_one_is_asked_for_by_name(stage) {
        for number in 0..4100 {
            stage.write(stage.project().join(format!("many/{number}")), "");
        }
        stage.write(stage.project().join("a/b/.env"), "deep\n");
        stage.write(stage.project().join(".env"), "top\n");
        let policy = policy(stage, "");
        let ran = ironcage(stage, &["run", "-q", "-d", "--fresh", "--policy", &policy]).ok();
        let id = ran.stdout().trim().to_owned();
        let call = |name: &str| {
            let call = format!(r#"{{"type":"tool_use","id":"t","name":"Read","input":{{"file_path":"{name}"}}}}"#);
            let mut exec = stage.ironcage(["exec", &id, "--intent", "-"]);
            Running::start(&mut exec).feed(call.into_bytes(), PATIENCE).stdout()
        };
        for name in [".env", "a/b/.env"] {
            let said = call(name);
            assert!(said.contains("the user was asked"), "{said}");
        }
        assert!(!call("many/7").contains("the user was asked"));
        let plan = ironcage(stage, &["plan", "--policy", &policy, "--", "true"]).ok();
        assert!(plan.stdout().contains("files deeper in the workspace were not looked at"), "{plan:?}");
        ironcage(stage, &["rm", "--force", &id]);
    }
}
