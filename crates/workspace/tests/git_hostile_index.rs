//! What git commits after a hostile index, commit or name was applied: nothing that no diff showed.
#![allow(clippy::expect_used)]

mod bed;

use bed::Bed;
use ironcage_workspace::{Applied, ApplyOptions, Change, Selection};
use std::path::PathBuf;

const INIT: &str = "git config --global user.email a@example.org; git config --global user.name A; git config --global init.defaultBranch main; \
     git config --global --add safe.directory '*'; git init -q; echo 1 >file; echo 1 >other; touch -d '1 hour ago' file other; git add .; git commit -qm first";

fn apply(bed: &Bed, change: &Change, paths: &[&str]) -> Applied {
    let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
    let selection = Selection::of(change, &bed.workspace, &paths).expect("paths");
    bed.store
        .apply(change, &selection, &ApplyOptions::default())
        .expect("applied")
}

fn told(applied: &Applied) -> String {
    let all = applied.flagged.iter().chain(&applied.held);
    all.map(|told| format!("{}: {}\n", told.path.display(), told.why))
        .collect()
}

/// Git checks paths that it puts into its index, and not those that it finds there: with
/// `.git/config` in it, `git checkout .` would write settings.
#[test]
fn a_commit_with_a_git_directory_in_it_puts_nothing_of_it_into_the_index() {
    for name in [".git", "..", "git~1"] {
        let bed = Bed::new();
        bed.host(INIT);
        bed.host("mkdir git~1; touch git~1/config ../config");
        let change = bed.begin();
        bed.agent_over(
            &change,
            &format!(
                "blob=$(printf '[core]\\n\\tfsmonitor = \"touch %s;false\"\\n' \"$HOME/canary\" | git hash-object -w --stdin); \
                 config=$(printf '100644 blob %s\\tconfig\\n' $blob | git mktree); \
                 raw() {{ perl -e 'print pack(\"H*\", shift)' $1; }}; \
                 {{ printf '40000 {name}\\0'; raw $config; printf '100644 file\\0'; raw $(git rev-parse HEAD:file); printf '100644 other\\0'; raw $(git rev-parse HEAD:other); }} >\"$HOME/tree\"; \
                 tree=$(git hash-object -t tree -w --literally \"$HOME/tree\"); git update-ref HEAD $(git commit-tree -p HEAD -m evil $tree); \
                 git ls-tree -r HEAD | grep -q config; echo 2 >file; git add file"
            ),
        );
        let applied = apply(&bed, &change, &[]);
        let index = bed.say("git ls-files");
        assert_eq!(index, "file\nother\n", "{name}: {applied:?}");
        bed.host("git checkout -q . || true; git status >/dev/null");
        assert!(!bed.base.path().join("canary").exists(), "{name}");
    }
}

#[test]
fn a_file_of_the_users_that_no_change_showed_is_not_staged() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("echo .secret >.gitignore; git add .gitignore; git commit -qm ignore; echo key >.secret; echo key >private; echo key >>other; echo key >both; echo key >touched");
    let change = bed.begin();
    bed.agent_over(
        &change,
        "touch touched; git add -f .secret private other touched; \
         printf '100644 %s 2\\tboth\\n100644 %s 3\\tboth\\n' $(git rev-parse HEAD:file HEAD:file) | git update-index --index-info; \
         echo new >new; echo 2 >file; git add new file",
    );
    let applied = apply(&bed, &change, &[]);
    let staged = bed.say("git diff --cached --name-only");
    // What the agent wrote itself is staged.
    assert_eq!(staged, "file\nnew\n", "{applied:?}");
    for path in [".secret", "both", "other", "private", "touched"] {
        assert!(told(&applied).contains(path), "{path}: {applied:?}");
    }
    bed.host("git commit -qam next");
    let committed = bed.say("git ls-tree -r --name-only HEAD");
    assert_eq!(committed, ".gitignore\nfile\nnew\nother\n");
}

/// A name lets what is withheld come over, and no index around its own rule.
#[test]
fn naming_a_part_of_a_git_directory_goes_around_no_rule() {
    let bed = Bed::new();
    bed.host(INIT);
    let change = bed.begin();
    bed.agent_over(
        &change,
        "evil=$(echo evil | git hash-object -w --stdin); git update-index --add --cacheinfo 100644,$evil,hidden; \
         git replace $(git rev-parse HEAD:file) $evil; git pack-refs --all; \
         printf '#!/bin/sh\\n' >.git/hooks/post-commit; chmod +x .git/hooks/post-commit",
    );
    let before = bed.say("git ls-files -s; cat .git/HEAD; git for-each-ref");
    for path in [".git/index", ".git/packed-refs"] {
        let applied = apply(&bed, &change, &[path]);
        assert_eq!((applied.done, applied.held.len()), (0, 1), "{applied:?}");
        assert!(told(&applied).contains("name the git directory"), "{path}");
    }
    assert_eq!(
        before,
        bed.say("git ls-files -s; cat .git/HEAD; git for-each-ref")
    );
    let applied = apply(&bed, &change, &[".git/hooks/post-commit"]);
    assert_eq!(applied.done, 1, "{applied:?}");
    assert!(bed.read(".git/hooks/post-commit").is_some());
}

/// The reference of the stash names the last one only: the others are lines of its log.
#[test]
fn a_stash_that_is_gone_or_new_below_the_last_one_is_told() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("for i in 1 2; do echo $i >file; echo stash >>file; git stash -q; done");
    let change = bed.begin();
    bed.agent_over(&change, "git stash drop -q stash@{1}");
    let applied = apply(&bed, &change, &[]);
    assert!(told(&applied).contains("1 stashes DELETED"), "{applied:?}");
    let change = bed.begin();
    bed.agent_over(&change, "echo 3 >file; git stash -q");
    let applied = apply(&bed, &change, &[]);
    assert!(told(&applied).contains("1 stashes new"), "{applied:?}");
    assert_eq!(bed.say("git stash list | wc -l").trim(), "2");
}

/// What git keeps for the main worktree alone lies in the directory that all of them share.
#[test]
fn a_worktree_leaves_the_state_of_the_main_one_alone() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("git worktree add -q ../side");
    let side = bed.base.path().join("side");
    let change = bed.begin_with_git(&side, &[bed.workspace.join(".git")]);
    bed.agent_over(
        &change,
        "git commit -q --allow-empty -m side; common=$(git rev-parse --git-common-dir); here=$(git rev-parse HEAD); \
         for name in MERGE_HEAD ORIG_HEAD refs/bisect/bad; do mkdir -p $common/refs/bisect; echo $here >$common/$name; done; \
         echo \"$here $here A <a> 1 +0000\tcheckout: moving from side to main\" >>$common/logs/HEAD",
    );
    let before = bed.say("cat .git/logs/HEAD");
    let applied = apply(&bed, &change, &[]);
    assert_eq!(applied.held.len(), 4, "{applied:?}");
    assert_eq!(bed.say("cat .git/logs/HEAD"), before);
    for path in ["MERGE_HEAD", "ORIG_HEAD", "refs/bisect/bad"] {
        assert_eq!(bed.read(format!(".git/{path}")), None, "{path}");
    }
    // Its own commit came over.
    assert_eq!(bed.say("git log -1 --format=%s side"), "side\n");
}

#[test]
fn a_directory_with_a_repository_in_it_goes_only_when_it_is_named() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("mkdir -p a/b c; git init -q a/b; touch c/x");
    let change = bed.begin();
    bed.agent_over(&change, "rm -rf a c; echo x >a");
    let applied = apply(&bed, &change, &[]);
    assert!(bed.workspace.join("a/b/.git/HEAD").exists(), "{applied:?}");
    assert!(!bed.workspace.join("c").exists(), "{applied:?}");
    apply(&bed, &change, &["a"]);
    assert_eq!(bed.read("a").as_deref(), Some("x\n"));
}

/// Names of ours that somebody else had first: nothing waits for a pipe, nothing is written to
/// another file.
#[test]
fn a_pipe_or_a_second_name_in_the_place_of_a_file_of_ours_is_not_opened() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("seq 1 30000 >big; touch -d '1 hour ago' big; git add big; git commit -qm big");
    let change = bed.begin();
    bed.agent_over(
        &change,
        "sed -i '1s/.*/agent/' big; mkfifo .ironcage-merged; git branch new",
    );
    bed.host(&format!(
        "sed -i '29999s/.*/host/' big; mkdir -p .git/logs/refs/heads; echo mine >mine; mkfifo .git/refs/heads/.ironcage-lock-{0}; ln mine .git/logs/refs/heads/.ironcage-lock-{0}",
        change.id()
    ));
    let applied = apply(&bed, &change, &[]);
    assert_eq!(
        bed.say("sed -n '1p;29999p' big"),
        "agent\nhost\n",
        "{applied:?}"
    );
    assert_eq!(bed.read("mine").as_deref(), Some("mine\n"));
    assert_eq!(bed.say("git rev-parse new"), bed.say("git rev-parse main"));
}

#[test]
fn a_log_of_no_reference_stays_aside() {
    let bed = Bed::new();
    bed.host(INIT);
    let change = bed.begin();
    bed.agent_over(
        &change,
        "git commit -q --allow-empty -m next; mkdir -p .git/logs/d/objects .git/logs/d/refs; tail -1 .git/logs/HEAD >.git/logs/d/HEAD",
    );
    let applied = apply(&bed, &change, &[]);
    assert_eq!(applied.held.len(), 1, "{applied:?}");
    assert!(!bed.workspace.join(".git/logs/d").exists());
    assert_eq!(bed.say("git reflog | wc -l").trim(), "2");
}

/// Eight directories, each of which holds the next one ten times: a hundred million files.
#[test]
fn a_commit_of_a_hundred_million_files_leaves_the_index_aside() {
    let bed = Bed::new();
    bed.host(INIT);
    let change = bed.begin();
    bed.agent_over(
        &change,
        "tree=$(printf '100644 blob %s\\tx\\n' $(git rev-parse HEAD:file) | git mktree); \
         for level in 1 2 3 4 5 6 7 8; do \
             tree=$(for i in 0 1 2 3 4 5 6 7 8 9; do printf '040000 tree %s\\td%s\\n' $tree $i; done | git mktree); done; \
         git update-ref refs/heads/main $(git commit-tree -p HEAD -m bomb $tree); echo 2 >file; git update-index file",
    );
    let applied = apply(&bed, &change, &[]);
    assert!(told(&applied).contains("more than 256 MiB"), "{applied:?}");
    assert_eq!(bed.say("git ls-files"), "file\nother\n");
    // With fewer files the same comes over.
    let bed = Bed::new();
    bed.host(INIT);
    let change = bed.begin();
    bed.agent_over(
        &change,
        "mkdir -p d/e; echo 1 >d/e/x; git add .; git commit -qm ordinary",
    );
    let applied = apply(&bed, &change, &[]);
    assert_eq!(applied.held.len(), 0, "{applied:?}");
    assert_eq!(bed.say("git ls-files"), "d/e/x\nfile\nother\n");
}
