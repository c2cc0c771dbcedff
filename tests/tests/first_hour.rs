//! What a newcomer and an agent meet in the first hour, beside the prompt and the notes.

use ironcage_tests::{Ran, Running, Stage, either};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

#[track_caller]
fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(PATIENCE)
}

/// A policy whose ceiling gives what is aside at once.
fn policy(stage: &Stage) -> String {
    stage.write(stage.aside().join("data"), "leased\n");
    let path = stage.base().join("ceiling.toml");
    let text = format!(
        "[ceiling.auto.files]\nread = [\"{}\"]\n",
        stage.aside().display()
    );
    stage.write(&path, text);
    path.display().to_string()
}

either! {
    fn an_agent_learns_inside_how_to_ask_and_what_it_reads_there_works(stage) {
        let policy = policy(stage);
        let read = "cat $IRONCAGE_HELP; cat /etc/claude-code/CLAUDE.md /etc/codex/config.toml";
        let text = stage.sh_with(&["-q", "--policy", &policy], read).ok().stdout();
        assert_eq!(text.matches("/.ironcage/bin/ironcage ask --read PATH").count(), 3, "{text}");
        // The line of the file, typed.
        let data = stage.aside().join("data").display().to_string();
        let ask = format!("cat {data}; /.ironcage/bin/ironcage ask --read {data} --reason 'WHY' --wait 120 && cat {data}");
        let ran = stage.sh_with(&["-q", "--policy", &policy], &ask).ok();
        assert!(ran.stdout().ends_with("leased\n"), "{ran:?}");
        // Where nothing can be requested, nothing says so.
        let without = "echo \"[$IRONCAGE_HELP]\"; ls /etc/claude-code /etc/codex 2>&1; true";
        let ran = stage.sh_with(&["-q"], without).ok();
        assert!(ran.stdout().starts_with("[]\n") && !ran.stdout().contains("CLAUDE.md"), "{ran:?}");
    }

    fn a_nested_run_is_answered_with_child(stage) {
        let policy = policy(stage);
        let ran = stage.sh_with(&["-q", "--policy", &policy], "/.ironcage/bin/ironcage run -- true");
        ran.ended(125).says("you are in a cage").says("ironcage child");
    }

    fn profile_init_writes_sections_that_a_run_takes(stage) {
        ironcage(stage, &["profile", "init", "shell"]).ok();
        let text = stage.read("ironcage.toml").expect("a policy");
        for section in ["[network]", "[ceiling]", "[ceiling.ask.files]", "[questions]"] {
            assert!(text.contains(section), "{section}: {text}");
        }
        ironcage(stage, &["policy", "check", "ironcage.toml"]).ok();
        ironcage(stage, &["run", "-q", "true"]).ok();
    }

    fn settings_go_out_and_come_in_with_a_list_of_what_differs(stage) {
        let file = stage.base().join("export.toml");
        let text = format!(
            "[workspace]\nmode = \"direct\"\n[files]\nread = [\"{}\"]\n[network]\nallow = [\"example.com\", \"192.0.2.0/24\"]\n",
            stage.aside().display()
        );
        stage.write(&file, text);
        let file = file.display().to_string();
        let exported = ironcage(stage, &["policy", "export", "srt", "--policy", &file]).ok();
        exported.stderr.contains("limits").then_some(()).expect("what is lost");
        let value: serde_json::Value = serde_json::from_slice(&exported.bytes).expect("JSON");
        assert_eq!(value["network"]["allowedDomains"][0], "example.com");
        let settings = stage.base().join("srt.json");
        stage.write(&settings, exported.stdout());
        // What went out comes in again.
        let back = ironcage(stage, &["policy", "import", "srt", settings.to_str().expect("text")]).ok().stdout();
        assert!(back.contains("example.com") && back.contains("mode = \"direct\""), "{back}");
        let exported = ironcage(stage, &["policy", "export", "mxc", "--policy", &file]).ok();
        let value: serde_json::Value = serde_json::from_slice(&exported.bytes).expect("JSON");
        assert_eq!(value["network"]["egress"]["allow"][0]["to"][0]["cidr"], "192.0.2.0/24");
        assert!(exported.stderr.contains("`example.com:80,443`") || exported.stderr.contains("`example.com`"), "{exported:?}");
    }

    fn settings_of_codex_and_vs_code_hold_in_the_cage(stage) {
        stage.write(stage.project().join("file"), "content\n");
        let codex = stage.base().join("config.toml");
        let policy = stage.base().join("imported.toml");
        let (codex_path, policy_path) = (codex.display().to_string(), policy.display().to_string());
        let import = |kind: &str, from: &str| {
            let _ = std::fs::remove_file(&policy);
            ironcage(stage, &["policy", "import", kind, from, "-o", &policy_path])
        };
        let write = |script: &str| stage.sh_with(&["-q", "--policy", &policy_path], script);
        stage.write(&codex, "sandbox_mode = \"read-only\"\n");
        import("codex", &codex_path).ok();
        assert_ne!(write("echo x > file").code(), 0);
        let text = "sandbox_mode = \"workspace-write\"\n[sandbox_workspace_write]\nnetwork_access = true\n";
        stage.write(&codex, text);
        import("codex", &codex_path).ok().says("network.allow");
        write("echo x > file").ok();
        stage.write(&codex, "sandbox_mode = 3\n");
        import("codex", &codex_path).ended(125);
        let vscode = stage.base().join("settings.json");
        stage.write(stage.project().join("secret"), "CANARY\n");
        stage.write(&vscode, r#"{"chat.agent.sandbox.fileSystem.userConfiguredPaths": {"deniedPaths": ["secret"]},
            "chat.agent.sandbox.network.allowedDomains": ["example.com"], "editor.fontSize": 12}"#);
        import("vscode", vscode.to_str().expect("text")).ok();
        let ran = write("echo y > file; cat secret; true").ok();
        assert!(!ran.stdout().contains("CANARY"), "{ran:?}");
        assert_eq!(stage.read("file").as_deref(), Some("y\n"));
    }
}
