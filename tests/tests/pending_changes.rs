//! From a cage to the real files: what an agent did in a copy-on-write workspace, told, applied or let go.

use ironcage_tests::{Ran, Running, Stage, Who, both, wait_until};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

const COW: &[&str] = &["-q", "--workspace-mode", "cow"];

fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(Duration::from_secs(120))
}

/// Everything that can be seen of the project, contents included.
fn picture(stage: &Stage) -> String {
    let script = "find . -printf '%p %y %m %u %s %T@ %l\\n' | sort; find . -type f -exec sha256sum {} + | sort";
    stage.sh_outside(script).ok().stdout()
}

fn git(stage: &Stage, script: &str) {
    let identity = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; ";
    stage
        .sh_outside(&format!("set -e; {identity}{script}"))
        .ok();
}

both! {
    fn what_was_done_inside_is_told_and_applied(stage) {
        git(stage, "git init -q -b main; echo 1 >file; mkdir -p old/deep; echo 2 >old/deep/x; git add .; git commit -qm first");
        let before = picture(stage);
        stage.sh_with(COW, "echo more >>file; rm -r old; mkdir -p new/d; echo n >new/d/n; ln -s file link; ln file hard; chmod 750 new; \
            git add -A; git -c user.name=a -c user.email=a@b commit -qm inside; git checkout -qb topic").ok();
        assert_eq!(picture(stage), before, "nothing moved before it was applied");
        let told = ironcage(stage, &["diff", "--stat"]).ok().stdout();
        for line in ["M file | +1 -0", "A new/d/n | +1 -0", "D old/deep/x | +0 -1", "A link"] {
            assert!(told.contains(line), "no {line} in {told}");
        }
        let json = ironcage(stage, &["diff", "--json"]).ok().stdout();
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["withheld"].as_array().map(Vec::len), Some(0), "{json}");
        ironcage(stage, &["apply"]).ok();
        assert_eq!(stage.read("file").as_deref(), Some("1\nmore\n"));
        assert_eq!(stage.read("new/d/n").as_deref(), Some("n\n"));
        assert!(!stage.project().join("old").exists());
        let at = |name: &str| stage.project().join(name).symlink_metadata().expect(name);
        assert_eq!(at("file").ino(), at("hard").ino());
        assert_eq!(at("new").permissions().mode() & 0o7777, 0o750);
        for name in ["file", "new", "new/d/n", "link", ".git/refs/heads/topic", ".git/index", ".git/HEAD"] {
            assert_eq!(at(name).uid(), stage.uid(), "{name}");
        }
        stage.sh_outside("set -e; git fsck --strict; test \"$(git log --format=%s -1 topic)\" = inside; test -z \"$(git status --porcelain)\"").ok();
        ironcage(stage, &["diff"]).failed("no-pending-change");
    }

    fn branches_and_tags_that_are_lost_or_moved_are_named(stage) {
        git(stage, "git init -q -b main; echo 1 >file; git add .; git commit -qm first; git branch precious; git tag v1; git commit -q --allow-empty -m second");
        let hash = |name: &str| stage.sh_outside(&format!("git rev-parse {name}")).ok().stdout().trim().to_owned();
        let (first, second) = (hash("precious"), hash("main"));
        let gone = format!("branch precious DELETED (was {})", &first[..7]);
        stage.sh_with(&COW[1..], "git branch -D precious; git reset -q --hard HEAD~1; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x; \
            git tag -f v1; git checkout -qb feat; echo 2 >>file").ok().says(&gone).says("HEAD main -> feat");
        for shape in [&["diff"][..], &["diff", "--stat"]] {
            let told = ironcage(stage, shape).ok().stdout();
            for line in [&*gone, "tag v1 moved", &format!("branch main moved {}..", &second[..7]), "branch feat new at"] {
                assert!(told.contains(line), "no {line} in {told}");
            }
        }
        assert_eq!(ironcage(stage, &["diff", "--name-only"]).ok().stdout(), "file\n");
        let json = ironcage(stage, &["diff", "--json"]).ok().stdout();
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let lost = &json["references"][0];
        assert_eq!((&lost["name"], &lost["change"]), (&"refs/heads/precious".into(), &"deleted".into()), "{json}");
        assert_eq!((&lost["before"], &lost["after"]), (&first.as_str().into(), &serde_json::Value::Null), "{json}");
        let told = ironcage(stage, &["apply"]).ok().stdout();
        assert!(told.starts_with("1 applied, 5 references, ") && told.contains(&gone), "{told}");
        stage.sh_outside("set -e; ! git rev-parse -q --verify precious; test \"$(git symbolic-ref HEAD)\" = refs/heads/feat; git fsck --strict").ok();
    }

    fn planted_files_stay_aside_at_any_depth(stage) {
        git(stage, "git init -q -b main; echo 1 >file; git add .; git commit -qm first");
        stage.sh_with(COW, "echo evil >.envrc; mkdir -p sub/.vscode .claude; echo '{}' >sub/.vscode/tasks.json; echo '{}' >.claude/settings.json; \
            printf '#!/bin/sh\\n' >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; git config core.fsmonitor evil; git config alias.x '!evil'; \
            echo x >.git/commondir; echo 'all:' >Makefile; mkdir inner; cd inner; git init -q; cd ..; echo fine >fine").ok();
        let told = ironcage(stage, &["apply"]).ok().stdout();
        assert_eq!(stage.read("fine").as_deref(), Some("fine\n"));
        assert!(stage.read("Makefile").is_some(), "{told}");
        for path in [".envrc", "sub/.vscode/tasks.json", ".claude/settings.json", ".git/hooks/pre-commit", ".git/commondir", "inner/.git"] {
            assert!(!stage.project().join(path).exists(), "{path} was applied: {told}");
        }
        stage.sh_outside("! git config core.fsmonitor && ! git config alias.x").ok();
        let told = ironcage(stage, &["diff"]).ok().stdout();
        assert!(told.contains("core.fsmonitor") && told.contains(".envrc: direnv runs it"), "{told}");
        // The allowing arm: named, they come over.
        ironcage(stage, &["apply", ".envrc", "sub/.vscode"]).ok();
        assert!(stage.read(".envrc").is_some() && stage.read("sub/.vscode/tasks.json").is_some());
    }

    fn removing_everything_and_discarding_leaves_every_byte(stage) {
        git(stage, "git init -q -b main; mkdir -p a/b; echo 1 >a/b/c; echo 2 >d; chmod 640 d; ln -s d e; git add .; git commit -qm first");
        let before = picture(stage);
        stage.sh_with(COW, "rm -rf ./* ./.[!.]* 2>/dev/null; mkdir locked; echo x >locked/x; chmod 000 locked/x locked; echo left >left").ok();
        let told = ironcage(stage, &["diff", "--name-only"]).ok().stdout();
        assert!(told.contains("a/b/c") && told.contains("locked/x"), "{told}");
        ironcage(stage, &["discard", "--yes"]).ok();
        assert_eq!(picture(stage), before);
        let listed = ironcage(stage, &["change", "list", "--json"]).ok().stdout();
        assert_eq!(listed.trim(), "[]");
    }

    fn modes_that_keep_their_owner_out_are_applied_as_they_are(stage) {
        stage.sh_with(COW, "mkdir -p locked/in; echo x >locked/in/x; chmod 000 locked/in/x; chmod 555 locked/in; chmod 000 locked").ok();
        ironcage(stage, &["apply"]).ok();
        let mode = |name: &str| stage.project().join(name).symlink_metadata().expect(name).mode() & 0o7777;
        assert_eq!(mode("locked"), 0);
        std::fs::set_permissions(stage.project().join("locked"), std::fs::Permissions::from_mode(0o755)).expect("a mode");
        assert_eq!((mode("locked/in"), mode("locked/in/x")), (0o555, 0));
    }

    fn an_edit_of_the_hosts_during_the_run_is_a_conflict_with_both_kept(stage) {
        stage.write(stage.project().join("both"), "base\n");
        std::thread::sleep(Duration::from_millis(20));
        stage.sh_with(COW, "echo agent >both; echo agent >mine").ok();
        stage.sh_outside("echo host >both.new; mv both.new both").ok();
        let ran = ironcage(stage, &["apply"]).ended(1);
        assert!(ran.stdout().contains("both"), "{ran:?}");
        assert_eq!(stage.read("both").as_deref(), Some("host\n"));
        assert_eq!(stage.read("mine").as_deref(), Some("agent\n"));
        stage.sh_with(COW, "test \"$(cat both)\" = agent").ok();
        ironcage(stage, &["apply", "--theirs"]).ok();
        assert_eq!(stage.read("both").as_deref(), Some("agent\n"));
    }

    fn a_mistyped_name_is_no_success(stage) {
        stage.sh_with(COW, "echo x >file").ok();
        for args in [&["diff", "nosuch"][..], &["apply", "nosuch"], &["discard", "nosuch", "--yes"]] {
            ironcage(stage, args).failed("not-in-change").says("nosuch");
        }
        ironcage(stage, &["change", "fork", "file"]).ended(125).says("cannot fork part of a change");
        let json: serde_json::Value = serde_json::from_str(&ironcage(stage, &["change", "list", "--json"]).ok().stdout()).expect("JSON");
        let id = json[0]["id"].as_str().expect("an id").to_owned();
        assert!(ironcage(stage, &["diff", &id[..6], "file"]).ok().stdout().contains("+x"));
        ironcage(stage, &["apply", &id[..6], "file"]).ok();
        assert_eq!(stage.read("file").as_deref(), Some("x\n"));
    }

    fn what_is_withheld_in_a_git_directory_can_be_looked_at_and_named(stage) {
        git(stage, "git init -q -b main; echo 1 >file; git add .; git commit -qm first");
        stage.sh_with(COW, "echo '#!/bin/sh -x' >.git/hooks/pre-commit; git config core.fsmonitor evil; git remote add up https://elsewhere.test/x; \
            git config branch.main.remote up; git config branch.main.merge refs/heads/main; echo 'all:' >Makefile").ok();
        let shown = ironcage(stage, &["diff", ".git/hooks/pre-commit"]).ok().stdout();
        assert!(shown.contains("+#!/bin/sh -x") && !shown.contains("no file"), "{shown}");
        let shown = ironcage(stage, &["diff", ".git/config"]).ok().stdout();
        assert!(shown.contains("fsmonitor = evil"), "{shown}");
        let told = ironcage(stage, &["apply"]).ok().stdout();
        for line in ["applied   Makefile", "remote.up.url = https://elsewhere.test/x", "branch.main.remote", "pending   .git/hooks/pre-commit"] {
            assert!(told.contains(line), "no {line} in {told}");
        }
        let config = stage.read(".git/config").expect("settings");
        assert!(config.contains("elsewhere.test") && !config.contains("refs/heads/main") && !config.contains("evil"), "{config}");
        ironcage(stage, &["apply", ".git/hooks"]).ok();
        assert!(stage.read(".git/hooks/pre-commit").is_some());
    }

    fn a_change_beside_a_busy_one_is_named_and_has_its_turn(stage) {
        let first = ironcage(stage, &["run", "-q", "-d", "--sticky"]).ok().stdout().trim().to_owned();
        let ran = stage.sh_with(&["--workspace-mode", "cow"], "echo b >beside").ok();
        let hint = ran.stderr.lines().find(|line| line.contains("`ironcage diff w")).map(str::to_owned);
        assert!(hint.is_some(), "{ran:?}");
        let listed = ironcage(stage, &["change", "list"]).ok().stdout();
        assert!(listed.contains("(made beside w"), "{listed}");
        ironcage(stage, &["change", "prune", "--yes"]).ok();
        ironcage(stage, &["stop", "--time", "0", &first]).ok();
        ironcage(stage, &["apply"]).ok();
        assert_eq!(stage.read("beside").as_deref(), Some("b\n"));
    }

    fn a_start_that_failed_leaves_no_change_and_a_cage_in_the_background_tells_of_its(stage) {
        ironcage(stage, &["run", "-q", "--name", "a b", "--", "/bin/true"]).ended(125);
        assert_eq!(ironcage(stage, &["change", "list"]).ok().stdout(), "");
        let id = ironcage(stage, &["run", "-q", "-d", "--", "/bin/sh", "-c", "echo x >made"]).ok().stdout().trim().to_owned();
        // It may be over, and its change just about to be put aside.
        let told = || ironcage(stage, &["wait", &id]).ok().stderr.contains("left pending change w");
        assert!(wait_until(Duration::from_secs(60), told));
        let quiet = ironcage(stage, &["wait", "-q", &id]).ok();
        assert_eq!(quiet.stderr, "");
    }
}

#[test]
fn a_workspace_of_somebody_elses_keeps_its_owner_when_root_applies() {
    let Some(stage) = Stage::new(Who::Root) else {
        return;
    };
    let Some(user) = Stage::new(Who::User) else {
        return;
    };
    stage.write(stage.project().join("file"), "1\n");
    stage.mkdir(stage.project().join("dir"));
    let uid = user.uid();
    stage.sh_outside(&format!("chown -R {uid}:{uid} .")).ok();
    stage
        .sh_with(COW, "echo 2 >>file; echo n >dir/n; mkdir new; ln -s x link")
        .ok();
    ironcage(&stage, &["apply"]).ok();
    for name in ["file", "dir", "dir/n", "new", "link"] {
        let metadata = stage.project().join(name).symlink_metadata().expect(name);
        assert_eq!(metadata.uid(), uid, "{name}");
    }
}
