//! The git directory of a workspace of real files: a layer of its own. What was committed is there
//! when the cage has ended; what the host would execute is not.

use ironcage_tests::{DIRECT, Stage, both};

const COMMIT: &str = "echo second > file && git add file && git commit -q -m second";

fn repository(stage: &Stage, at: &str) {
    let script = format!(
        "git init -q -b main {at} && cd {at} && git config user.name n && git config user.email e &&
         echo first > file && git add file && git commit -q -m first"
    );
    stage.sh_outside(&script).ok();
}

fn subjects(stage: &Stage, at: &str) -> String {
    let shown =
        format!("git -C {at} fsck --strict --no-dangling && git -C {at} log --format=%s main");
    stage.sh_outside(&shown).ok().stdout()
}

both! {
    fn a_commit_is_there_afterwards_and_a_hook_is_not(stage) {
        repository(stage, ".");
        let script = format!(
            "{COMMIT} && git branch other && git tag t && echo evil > .git/hooks/pre-commit &&
             chmod +x .git/hooks/pre-commit && git config core.fsmonitor evil && echo ../evil > .git/commondir"
        );
        stage.sh_direct(&script).ok().says(".git/hooks/pre-commit").says("core.fsmonitor").says("commondir");
        assert_eq!(subjects(stage, "."), "second\nfirst\n");
        let seen = stage.sh_outside("git status --porcelain && git rev-parse other t && git rev-parse main").ok();
        let seen = seen.stdout();
        let hashes: Vec<&str> = seen.lines().collect();
        assert!(hashes.len() == 3 && hashes.iter().all(|hash| *hash == hashes[0]), "{seen}");
        assert_eq!(stage.read(".git/hooks/pre-commit"), None);
        assert_eq!(stage.read(".git/commondir"), None);
        assert!(!stage.read(".git/config").expect("a config").contains("evil"));
        // For the agent they are still there, and the next run says so.
        stage.sh_direct("test -x .git/hooks/pre-commit && rm .git/commondir").ok().says("goes on with");
        // The allowing arm: a real file of the same tree is written at once.
        assert_eq!(stage.read("file").as_deref(), Some("second\n"));
    }

    fn a_branch_that_was_deleted_is_named(stage) {
        repository(stage, ".");
        stage.sh_outside("git branch precious").ok();
        stage.sh_direct("git branch -q -D precious").ok().says("branch precious DELETED (was ");
        assert_eq!(stage.sh_outside("git branch --format='%(refname:short)'").ok().stdout(), "main\n");
    }

    fn what_was_committed_comes_over_although_the_command_failed(stage) {
        repository(stage, ".");
        stage.sh_direct(&format!("{COMMIT}; exit 3")).ended(3);
        assert_eq!(subjects(stage, "."), "second\nfirst\n");
        assert_eq!(stage.sh_outside("git status --porcelain").ok().stdout(), "");
        // Nothing is left of it.
        assert!(!stage.sh_outside("ls \"$XDG_STATE_HOME\"/ironcage/changes/*/w*").stdout().contains('w'));
    }

    fn a_worktree_commits_to_the_common_directory_and_to_nothing_else_of_it(stage) {
        repository(stage, "../main");
        stage.sh_outside("git -C ../main worktree add -q ../tree").ok();
        let worktree = stage.home().join("tree").display().to_string();
        let hook = stage.home().join("main/.git/hooks/post-commit");
        let flags = [DIRECT[0], DIRECT[1], "--workspace", &worktree];
        let script = format!("{COMMIT} && echo evil > {}", hook.display());
        stage.sh_with(&flags, &script).ok().says("post-commit");
        assert_eq!(stage.sh_outside("git -C ../tree log --format=%s tree").ok().stdout(), "second\nfirst\n");
        assert_eq!(stage.sh_outside("git -C ../tree status --porcelain").ok().stdout(), "");
        assert_eq!(subjects(stage, "../main"), "first\n");
        assert_eq!(stage.sh_outside("git -C ../main status --porcelain").ok().stdout(), "");
        assert!(!hook.exists());
    }

    fn what_the_host_committed_meanwhile_stays_and_the_agents_is_kept_aside(stage) {
        repository(stage, ".");
        let host = "git commit -q --allow-empty -m hosts && touch go";
        let script = format!("{COMMIT} && touch made && until test -e go; do sleep 0.02; done");
        let cage = ironcage_tests::Running::start(&mut stage.cage(&DIRECT, &["/bin/sh", "-c", &script]));
        stage.sh_outside(&format!("until test -e made; do sleep 0.02; done; {host}")).ok();
        cage.finish(std::time::Duration::from_secs(60)).ok().says("refs/heads/main").says("changed in the real tree too");
        assert_eq!(subjects(stage, "."), "hosts\nfirst\n");
        let inside = stage.sh_direct("git log --format=%s").ok();
        assert_eq!(inside.stdout(), "second\nfirst\n");
    }

    fn a_policy_lets_hooks_come_over_by_their_name_alone(stage) {
        repository(stage, ".");
        let script = "echo '#!/bin/sh' > .git/hooks/pre-push && git config core.fsmonitor evil";
        let hooks = [&DIRECT[..], &["--unprotect", ".git/hooks"]].concat();
        stage.sh_with(&hooks, script).ok().says("core.fsmonitor");
        assert_eq!(stage.read(".git/hooks/pre-push").as_deref(), Some("#!/bin/sh\n"));
        assert!(!stage.read(".git/config").expect("a config").contains("evil"));
    }
}
