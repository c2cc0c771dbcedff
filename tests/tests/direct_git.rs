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
        stage.sh_direct("test -x .git/hooks/pre-commit && rm .git/commondir").ok().says("continuing pending change");
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

    fn what_is_staged_and_in_no_file_is_named_and_not_in_the_next_commit(stage) {
        repository(stage, ".");
        let hidden = "git update-index --add --cacheinfo 100644,$(echo evil | git hash-object -w --stdin),hidden";
        let script = format!("echo shown > shown && git add shown && {hidden} && git update-index --assume-unchanged file && git write-tree");
        stage.sh_direct(&script).ok().says("hidden");
        assert_eq!(stage.sh_outside("git status --porcelain").ok().stdout(), "A  shown\n");
        assert_eq!(stage.sh_outside("git ls-files -v").ok().stdout(), "H file\nH shown\n");
        stage.sh_outside("git commit -q -m mine").ok();
        assert_eq!(stage.sh_outside("git ls-tree --name-only HEAD").ok().stdout(), "file\nshown\n");
    }

    fn what_git_is_told_to_run_in_the_tree_is_read_only_there(stage) {
        repository(stage, ".");
        stage.write(stage.project().join("tools/hooks/pre-commit"), "#!/bin/sh\nexec ./ci\n");
        stage.write(stage.project().join("tools/clean.py"), "print()\n");
        stage.write(stage.project().join("tools/other"), "mine\n");
        stage.write(stage.project().join("ci"), "#!/bin/sh\n");
        stage.sh_outside(
            "chmod +x tools/hooks/pre-commit ci && git config core.hooksPath tools/hooks &&
             git config filter.x.clean 'python3 tools/clean.py' && git config alias.late '!./later'",
        ).ok();
        for attempt in [
            "echo 'touch pwned' >> tools/hooks/pre-commit",
            "echo 'touch pwned' > tools/hooks/post-commit && chmod +x tools/hooks/post-commit",
            "echo 'touch pwned' >> tools/clean.py",
            "echo 'touch pwned' >> ci",
            "rm ci && echo 'touch pwned' > ci",
            "mv tools old && mkdir -p tools/hooks && echo 'touch pwned' > tools/hooks/pre-commit",
        ] {
            stage.sh_direct(attempt);
        }
        assert_eq!(stage.read("tools/hooks/pre-commit").as_deref(), Some("#!/bin/sh\nexec ./ci\n"));
        assert_eq!(stage.read("tools/hooks/post-commit"), None);
        assert_eq!(stage.read("tools/clean.py").as_deref(), Some("print()\n"));
        assert_eq!(stage.read("ci").as_deref(), Some("#!/bin/sh\n"));
        stage.sh_outside("git commit -q --allow-empty -m mine && test ! -e pwned").ok();
        // The allowing arms: a file beside them, one that is lifted, and one that appears is told.
        stage.sh_direct("echo changed > tools/other").ok();
        assert_eq!(stage.read("tools/other").as_deref(), Some("changed\n"));
        stage.sh_with(&[&DIRECT[..], &["--unprotect", "ci"]].concat(), "echo changed > ci").ok();
        assert_eq!(stage.read("ci").as_deref(), Some("changed\n"));
        stage.sh_direct("echo x > later").ok().says("later");
    }

    fn a_submodule_leads_git_to_no_other_settings(stage) {
        repository(stage, "../inner");
        repository(stage, ".");
        stage.sh_outside("git -c protocol.file.allow=always submodule --quiet add ../inner sub && git commit -q -m sub").ok();
        let pointer = stage.read("sub/.git").expect("a pointer");
        let plant = "git init -q evil && git -C evil config core.fsmonitor \"touch $PWD/pwned; false\"";
        stage.sh_direct(plant).ok();
        for attempt in ["echo 'gitdir: ../evil/.git' > sub/.git", "rm -f sub/.git && ln -s ../evil/.git sub/.git", "mv sub gone && mkdir sub && echo 'gitdir: ../evil/.git' > sub/.git"] {
            stage.sh_direct(attempt);
        }
        assert_eq!(stage.read("sub/.git").as_deref(), Some(&*pointer));
        stage.sh_outside("git status --porcelain && test ! -e pwned").ok();
        // The allowing arm: files of the submodule are written, and committed there.
        stage.sh_direct("cd sub && git config user.name n && git config user.email e && echo new > file && git status --porcelain").ok();
        assert_eq!(stage.read("sub/file").as_deref(), Some("new\n"));
        // The attack itself works, where nothing stands against it.
        stage.sh_outside("echo 'gitdir: ../evil/.git' > sub/.git; git status --porcelain; test -e pwned").ok();
    }
}
