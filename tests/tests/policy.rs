//! Policy files end to end: what a file of the workspace may say before and after it is trusted, and what is refused.

use ironcage_tests::{Ran, Running, Stage, either};
use std::time::Duration;

#[track_caller]
fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(Duration::from_secs(60))
}

/// A policy that lets the agent write beside the project.
fn widening(stage: &Stage) -> String {
    format!(
        "[files]\nwrite-direct = [\"{}\"]\n",
        stage.aside().display()
    )
}

fn writes_aside(stage: &Stage, flags: &[&str]) -> Ran {
    stage.sh_with(flags, &format!("echo x > {}/made", stage.aside().display()))
}

either! {
    fn a_file_of_the_workspace_widens_only_when_it_is_trusted(stage) {
        let file = stage.project().join("ironcage.toml");
        stage.write(&file, widening(stage));
        let ran = writes_aside(stage, &[]).says("files.write-direct");
        assert!(!stage.aside().join("made").exists(), "{ran:?}");
        ironcage(stage, &["trust", "--yes"]).ok();
        writes_aside(stage, &[]).ok();
        assert!(stage.aside().join("made").exists());
        // Trust is in the content: a changed file has none.
        std::fs::remove_file(stage.aside().join("made")).expect("the file");
        stage.write(&file, format!("{}read = [\"/var/log\"]\n", widening(stage)));
        writes_aside(stage, &[]);
        assert!(!stage.aside().join("made").exists());
    }

    fn trust_does_not_survive_a_change_of_what_the_file_extends(stage) {
        stage.write(stage.project().join("ironcage.toml"), "extends = \"./base.toml\"\n");
        stage.write(stage.project().join("base.toml"), "[limits]\npids = 100\n");
        ironcage(stage, &["trust", "--yes"]).ok();
        stage.write(stage.project().join("base.toml"), widening(stage));
        writes_aside(stage, &[]);
        assert!(!stage.aside().join("made").exists());
    }

    fn what_run_would_refuse_is_not_trusted(stage) {
        let file = stage.project().join("ironcage.toml");
        stage.write(&file, "[files]\nread = [\"/no/such/place\"]\n");
        ironcage(stage, &["trust", "--yes"]).ended(125).says("/no/such/place");
        // Another word is needed at each start: that is told, and no reason not to trust.
        stage.write(&file, "[files]\nread = [\"/etc\"]\n");
        assert!(ironcage(stage, &["trust", "--yes"]).ok().stdout().contains("--i-know"));
        stage.sh("true").ended(125).denied("start-path-guarded");
        stage.sh_with(&["--i-know"], "true").ok();
    }

    fn a_policy_begins_at_the_top_of_the_workspace(stage) {
        stage.sh_outside("git init -q . && mkdir deep").ok();
        let mut init = stage.ironcage(["profile", "init", "shell"]);
        init.current_dir(stage.project().join("deep"));
        Running::start(&mut init).finish(Duration::from_secs(60)).ok();
        assert!(stage.read("ironcage.toml").is_some() && stage.read("deep/ironcage.toml").is_none());
    }

    fn an_untrusted_file_narrows(stage) {
        stage.sh("echo x > before").ok();
        stage.write(stage.project().join("ironcage.toml"), "[workspace]\nmode = \"read-only\"\n");
        assert_ne!(stage.sh("echo x > after").code(), 0);
        assert_eq!(stage.read("after"), None);
    }

    fn the_agent_cannot_change_its_policy(stage) {
        stage.write(stage.project().join("ironcage.toml"), "[limits]\npids = 100\n");
        for mode in ["cow", "direct"] {
            let flags = ["-q", "--workspace-mode", mode];
            stage.sh_with(&flags, &format!("printf '%s' '{}' > ironcage.toml", widening(stage)));
            stage.sh_with(&flags, "mv ironcage.toml other; rm -f ironcage.toml");
            assert_eq!(stage.read("ironcage.toml").as_deref(), Some("[limits]\npids = 100\n"));
            // Nor does its own version count in the next run.
            let aside = stage.aside().display().to_string();
            stage.sh_with(&flags, &format!("test ! -e {aside}")).ok();
        }
    }

    fn rules_in_a_language_that_the_program_does_not_know_start_nothing(stage) {
        let run = |policy: &str| {
            let file = stage.base().join("ruled.toml");
            stage.write(&file, policy);
            stage.write(stage.base().join("rules.cedar"), "forbid (principal, action, resource);\n");
            let named = file.display().to_string();
            stage.run(&["--policy", &named], &["/bin/echo", "ran"])
        };
        assert_eq!(run("[ceiling]\nlongest = \"1h\"\n").ok().stdout(), "ran\n");
        let ruled = run("[ceiling]\ncedar = \"rules.cedar\"\n");
        if cfg!(feature = "cedar") {
            ruled.ok();
            return;
        }
        assert_eq!(ruled.ended(125).says("ruled.toml:2").says("--features cedar").stdout(), "");
    }

    fn a_file_that_the_user_names_counts_in_full(stage) {
        let file = stage.base().join("mine.toml");
        stage.write(&file, widening(stage));
        assert_ne!(writes_aside(stage, &[]).code(), 0);
        writes_aside(stage, &["--policy", file.to_str().unwrap()]).ok();
        assert!(stage.aside().join("made").exists());
    }

    fn the_users_configuration_counts_in_full(stage) {
        stage.write(stage.base().join("config/ironcage/config.toml"), widening(stage));
        writes_aside(stage, &[]).ok();
        assert!(stage.aside().join("made").exists());
    }

    fn mistakes_are_shown_with_their_line(stage) {
        for (text, told) in [
            ("[limits]\nmemry = \"1G\"\n", "memory"),
            ("[limits]\nmemory = 12\n", "memory"),
            ("[files]\nread = [\"/no/such/place\"]\n", "/no/such/place"),
            ("extends = \"no-such-profile\"\n", "no-such-profile"),
            ("[limits\n", "ironcage.toml"),
        ] {
            let file = stage.base().join("ironcage.toml");
            stage.write(&file, text);
            let ran = stage.sh_with(&["--policy", file.to_str().unwrap()], "true").ended(125).says(told);
            assert!(ran.stderr.contains("ironcage.toml:"), "no line: {ran:?}");
        }
        let file = stage.base().join("ironcage.toml");
        stage.write(&file, "[limits]\nmemory = \"1G\"\n");
        stage.sh_with(&["--policy", file.to_str().unwrap()], "true").ok();
    }

    fn every_profile_runs_a_program(stage) {
        let listed = ironcage(stage, &["profile", "list"]).ok().stdout();
        for profile in ["strict", "shell", "python", "node", "rust", "coding-agent", "coding-agent-locked", "data"] {
            assert!(listed.contains(profile), "{listed}");
            let ran = stage.sh_with(&["--profile", profile], "echo ran").ok();
            assert_eq!(ran.stdout(), "ran\n", "{profile}");
            ironcage(stage, &["profile", "show", profile]).ok();
        }
    }

    fn the_profile_follows_the_command_and_is_told(stage) {
        stage.run(&[], &["/usr/bin/python3", "-c", ""]).ok().says("profile python");
        stage.run(&[], &["/bin/true"]).ok().says("profile shell");
        let quiet = stage.run(&["-q"], &["/bin/true"]).ok();
        assert_eq!(quiet.stderr, "");
    }

    fn the_plan_shows_what_is_enforced_and_where_it_came_from(stage) {
        let aside = stage.aside();
        let aside = aside.to_str().unwrap();
        let ran = ironcage(stage, &["plan", "--all", "-r", aside, "--pids", "77", "--", "/bin/true"]).ok();
        for shown in [aside, "77", "--pids", "/usr", "max_user_namespaces"] {
            assert!(ran.stdout().contains(shown), "no {shown} in {}", ran.stdout());
        }
        let json = ironcage(stage, &["plan", "--json", "--", "/bin/true"]).ok();
        let plan: serde_json::Value = serde_json::from_slice(&json.bytes).expect("JSON");
        assert!(plan.to_string().contains("/bin/true"));
        let tree = ironcage_tests::tree(&stage.state());
        assert!(tree.iter().all(|path| path.extension().is_none_or(|e| e != "jsonl")), "a plan starts nothing: {tree:?}");
    }
}
