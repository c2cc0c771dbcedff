//! `ironcage policy import srt`: what settings of srt denied is denied in the cage, what they allowed works there, and
//! the report tells the rest.

use ironcage_tests::{Ran, Running, Stage, either};
use std::time::Duration;

#[track_caller]
fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(Duration::from_secs(60))
}

/// Writes settings and imports them into the project.
#[track_caller]
fn import(stage: &Stage, settings: &str) -> Ran {
    let file = stage.base().join("settings.json");
    stage.write(&file, settings);
    let policy = stage.project().join("ironcage.toml");
    ironcage(
        stage,
        &[
            "policy",
            "import",
            "srt",
            file.to_str().unwrap(),
            "-o",
            policy.to_str().unwrap(),
        ],
    )
}

/// A script in a cage under the imported policy, which the user names and so trusts.
#[track_caller]
fn caged(stage: &Stage, script: &str) -> Ran {
    let policy = stage.project().join("ironcage.toml");
    stage.sh_with(&["-q", "--policy", policy.to_str().unwrap()], script)
}

fn project(stage: &Stage) {
    for (path, content) in [
        ("secrets/key", "secret\n"),
        ("src/deep/fixed", "fixed\n"),
        ("config", "config\n"),
    ] {
        stage.write(stage.project().join(path), content);
    }
}

either! {
    fn what_the_settings_say_holds_in_the_cage(stage) {
        project(stage);
        let aside = stage.aside();
        let settings = format!(
            r#"{{
                "network": {{ "allowedDomains": ["example.com"], "deniedDomains": [], "allowLocalBinding": true }},
                "filesystem": {{
                    "denyRead": ["~/.ssh", "./secrets"],
                    "allowWrite": [".", "{}"],
                    "denyWrite": ["config", "src/deep/fixed"]
                }},
                "surprise": 1
            }}"#,
            aside.display()
        );
        import(stage, &settings)
            .ok()
            .says("network.allowedDomains \"example.com\"")
            .says("surprise")
            .says("srt allows reading everything except denyRead")
            .says("ironcage trust");
        caged(stage, &format!("echo x > made && echo x > src/made && echo x > {}/made", aside.display())).ok();
        assert_eq!(stage.read("made").as_deref(), Some("x\n"));
        assert!(aside.join("made").exists());

        let ran = caged(stage, "cat secrets/key");
        assert!(ran.code() != 0 && !ran.stdout().contains("secret"), "{ran:?}");
        assert_eq!(stage.sh_outside("cat secrets/key").ok().stdout(), "secret\n");

        let change = "echo y > config; echo y > src/deep/fixed; rm -f config src/deep/fixed; \
             mv src/deep src/away; mv src away; mkdir -p src/deep; echo y > src/deep/fixed; true";
        caged(stage, change);
        assert_eq!(stage.read("config").as_deref(), Some("config\n"));
        assert_eq!(stage.read("src/deep/fixed").as_deref(), Some("fixed\n"));
        // The arm that shows that the rules did it: without them the workspace can be changed.
        std::fs::remove_file(stage.project().join("ironcage.toml")).unwrap();
        stage.sh_direct("cat secrets/key && echo y > config").ok();
        assert_eq!(stage.read("config").as_deref(), Some("y\n"));
    }

    fn without_allow_write_nothing_of_the_project_is_writable(stage) {
        project(stage);
        import(stage, r#"{ "filesystem": { "denyRead": [], "allowWrite": [], "denyWrite": [] } }"#).ok();
        assert_eq!(caged(stage, "cat config").ok().stdout(), "config\n");
        assert_ne!(caged(stage, "echo y > config").code(), 0);
        assert_eq!(stage.read("config").as_deref(), Some("config\n"));
    }

    fn a_pattern_in_the_workspace_leaves_it_out_unless_taken_as_of_now(stage) {
        project(stage);
        let settings = r#"{ "filesystem": { "denyRead": ["**/key"], "allowWrite": ["."], "denyWrite": [] } }"#;
        import(stage, settings).ok().says("--as-of-now");
        assert_eq!(caged(stage, "ls -A").ok().stdout(), "");
        let file = stage.base().join("settings.json");
        let policy = ironcage(stage, &["policy", "import", "srt", "--as-of-now", file.to_str().unwrap()]).ok();
        stage.write(stage.project().join("ironcage.toml"), &policy.bytes);
        assert_eq!(caged(stage, "cat config").ok().stdout(), "config\n");
        let ran = caged(stage, "cat secrets/key");
        assert!(!ran.stdout().contains("secret"), "{ran:?}");
    }

    fn a_file_that_exists_is_not_written_over(stage) {
        stage.write(stage.project().join("ironcage.toml"), "# mine\n");
        import(stage, "{}").failed("file-exists");
        assert_eq!(stage.read("ironcage.toml").as_deref(), Some("# mine\n"));
    }

    fn settings_that_srt_refuses_are_refused(stage) {
        for settings in ["", "[]", "{", r#"{ "filesystem": { "denyRead": "~/.ssh" } }"#] {
            import(stage, settings).ended(125);
            assert_eq!(stage.read("ironcage.toml"), None, "{settings}");
        }
        ironcage(stage, &["policy", "import", "srt", "no-such-file"]).ended(125).says("no-such-file");
        import(stage, r#"{ "filesystem": { "denyRead": ["~/.ssh"] } }"#).ok();
    }
}
