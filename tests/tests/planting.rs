//! What an agent leaves in one run must not widen the next: links, renamed directories, policies of its own.

use ironcage_tests::{DIRECT, Running, Stage, both};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);

fn secret(stage: &Stage) -> String {
    stage.write(stage.aside().join("secret"), "CANARY");
    stage.aside().display().to_string()
}

both! {
    fn a_grant_does_not_follow_a_link_that_the_agent_planted(stage) {
        let aside = secret(stage);
        stage.mkdir(stage.project().join("vendor"));
        stage.mkdir(stage.project().join("vendor/data"));
        stage.write(stage.project().join("vendor/data/file"), "fine");
        let grant = ["-q", "--workspace-mode", "direct", "-r", "vendor/data"];
        stage.sh_with(&grant, "cat vendor/data/file").ok();
        stage.sh_direct(&format!("mv vendor v2 && mkdir vendor && ln -s {aside} vendor/data")).ok();
        let ran = stage.sh_with(&grant, &format!("cat {aside}/secret")).ended(125);
        assert!(!ran.stdout().contains("CANARY"));
        ran.says("symbolic link");
    }

    fn a_hidden_directory_stays_hidden_when_its_parent_is_renamed(stage) {
        stage.mkdir(stage.project().join("conf"));
        stage.mkdir(stage.project().join("conf/secrets"));
        stage.write(stage.project().join("conf/secrets/key"), "CANARY");
        let hide = ["-q", "--workspace-mode", "direct", "--hide", "conf/secrets"];
        stage.sh_with(&hide, "mv conf c2; touch conf/other; true").ok();
        // The allowing arm: it is there, and where it was.
        assert_eq!(stage.read("conf/secrets/key").as_deref(), Some("CANARY"));
        assert!(stage.project().join("conf/other").exists());
        let ran = stage.sh_with(&hide, "cat conf/secrets/key c2/secrets/key; true").ok();
        assert!(!ran.stdout().contains("CANARY"), "{ran:?}");
    }

    fn names_that_the_host_trusts_are_reported_when_they_appear(stage) {
        let script = "mkdir -p .vscode src && echo x > .vscode/tasks.json && echo x > .envrc && echo x > src/.envrc";
        let ran = stage.sh_with(&DIRECT, script).ok();
        let line = ran.stderr.lines().find(|line| line.contains("the command created")).expect("a line").to_owned();
        assert!(line.contains("/project/.envrc") && line.contains("/project/.vscode,"), "{line}");
        assert!(!line.contains("tasks.json") && !line.contains("src"), "{line}");
        let record = Running::start(&mut stage.ironcage(["audit", "show"])).finish(DEADLINE).ok();
        assert!(record.stdout().contains("planted "), "{record:?}");
        // There at the start they are protected, and nothing is new.
        let ran = stage.sh_with(&DIRECT, "echo y > .envrc; echo z > other");
        assert!(!ran.stderr.contains("the command created"), "{ran:?}");
        assert_eq!(stage.read(".envrc").as_deref(), Some("x\n"));
    }

    fn a_process_left_behind_plants_nothing_unseen(stage) {
        let ran = stage.sh_with(&DIRECT, "(sleep 0.2; echo x > .envrc) >/dev/null 2>&1 & exit 0").ok();
        // It did not live long enough, or what it made is told.
        assert_eq!(stage.project().join(".envrc").exists(), ran.stderr.contains(".envrc"), "{ran:?}");
    }

    fn a_policy_in_force_cannot_be_written_by_the_agent(stage) {
        stage.write(stage.project().join("cage.toml"), "[limits]\npids = 500\n");
        stage.write(stage.project().join("other.toml"), "");
        let flags = ["-q", "--workspace-mode", "direct", "--policy", "cage.toml"];
        stage.sh_with(&flags, "echo '# mine' > other.toml").ok();
        let ran = stage.sh_with(&flags, "echo '# mine' > cage.toml");
        assert_ne!(ran.code(), 0);
        assert_eq!(stage.read("cage.toml").as_deref(), Some("[limits]\npids = 500\n"));
    }

    fn a_found_policy_is_no_way_to_print_other_files(stage) {
        let aside = secret(stage);
        let policy = stage.project().join("ironcage.toml");
        symlink(format!("{aside}/secret"), &policy).expect("a link");
        let ran = stage.sh("true").ended(125);
        ran.says("symbolic link");
        std::fs::remove_file(&policy).expect("the link goes");
        stage.write(&policy, format!("extends = \"{aside}/secret\"\n"));
        let ran = stage.sh("true").ended(125);
        assert!(!format!("{ran:?}").contains("CANARY"), "{ran:?}");
        stage.write(&policy, "[limits]\npids = 500\n");
        stage.sh("true").ok();
    }

    fn hooks_and_config_stay_protected_when_the_repository_is_not(stage) {
        stage.sh_outside("git init -q . && git config user.name n && git config user.email e").ok();
        let lifted = ["-q", "--workspace-mode", "direct", "--unprotect", ".git"];
        stage.sh_with(&lifted, "echo x > f && git add f && git commit -q -m made").ok();
        let plant = "echo evil > .git/hooks/pre-commit; echo evil >> .git/config; mv .git/hooks .git/h2; true";
        stage.sh_with(&lifted, plant).ok();
        assert!(!stage.project().join(".git/hooks/pre-commit").exists());
        assert!(!stage.project().join(".git/h2").exists());
        assert!(!stage.read(".git/config").expect("a config").contains("evil"));
        // By its own name it is lifted.
        let by_name = ["-q", "--workspace-mode", "direct", "--unprotect", ".git", "--unprotect", ".git/hooks"];
        stage.sh_with(&by_name, "echo x > .git/hooks/pre-commit").ok();
    }

    fn a_directory_that_everybody_writes_is_no_workspace(stage) {
        stage.sh("true").ok();
        let open = std::fs::Permissions::from_mode(0o1777);
        std::fs::set_permissions(stage.project(), open).expect("the mode is set");
        stage.sh("true").ended(125).denied("start-workspace-refused");
        let project = stage.project().display().to_string();
        stage.sh_with(&["--workspace", &project, "--i-know"], "true").ok();
    }

    fn system_directories_are_no_workspace(stage) {
        for directory in ["/etc", "/usr", "/var", "/tmp", "/usr/bin"] {
            let mut command = stage.cage(&[], &["/bin/true"]);
            command.current_dir(directory);
            let ran = ironcage_tests::Running::start(&mut command).finish(std::time::Duration::from_secs(60));
            ran.ended(125).denied("start-workspace-refused");
        }
    }

    fn an_empty_workspace_is_not_mounted_over_what_the_kernel_shows(stage) {
        let mut command = stage.cage(&["--profile", "data"], &["/bin/true"]);
        command.current_dir("/proc");
        let ran = ironcage_tests::Running::start(&mut command).finish(std::time::Duration::from_secs(60));
        ran.ended(125).says("kernel");
        stage.run(&["--profile", "data"], &["/bin/true"]).ok();
    }

    fn credentials_behind_a_link_are_hidden_in_a_home_that_is_given(stage) {
        let home = stage.home();
        stage.mkdir(home.join("dotfiles"));
        stage.mkdir(home.join("dotfiles/ssh"));
        stage.write(home.join("dotfiles/ssh/id"), "CANARY");
        stage.write(home.join("dotfiles/readme"), "fine");
        symlink("dotfiles/ssh", home.join(".ssh")).expect("a link");
        let shown = home.display().to_string();
        let flags = ["-q", "--workspace", &shown, "--i-know"];
        let ran = stage.sh_with(&flags, "cd ~; cat dotfiles/readme; cat .ssh/id dotfiles/ssh/id; true").ok();
        assert_eq!(ran.stdout(), "fine", "{ran:?}");
    }

    fn our_own_directories_are_kept_out_before_they_exist(stage) {
        let home = stage.home();
        let shown = home.display().to_string();
        let mut command = stage.cage(
            &["-q", "--workspace-mode", "direct", "--workspace", &shown, "--i-know"],
            &["/bin/sh", "-c", "mkdir -p ~/.config/ironcage; echo x > ~/.config/ironcage/config.toml; mv ~/.config ~/c2; touch ~/mine; true"],
        );
        for variable in ["XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
            command.env_remove(variable);
        }
        ironcage_tests::Running::start(&mut command).finish(std::time::Duration::from_secs(60)).ok();
        assert!(home.join("mine").exists());
        assert!(home.join(".config/ironcage").exists());
        assert!(!home.join(".config/ironcage/config.toml").exists());
    }
}
