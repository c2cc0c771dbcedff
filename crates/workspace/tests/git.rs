//! A commit made inside is there after an apply; a hook made inside is not.
#![allow(clippy::expect_used)]

mod bed;

use bed::Bed;
use ironcage_workspace::{Applied, ApplyOptions, Change, ReferenceChange, Selection};
use std::path::PathBuf;

const INIT: &str = "git config --global user.email a@example.org; git config --global user.name A; git config --global init.defaultBranch main; \
     git config --global --add safe.directory '*'; git config --global protocol.file.allow always; git init -q; echo 1 >file; git add .; git commit -qm first; git branch old; git tag v0";

fn apply(bed: &Bed, change: &Change) -> Applied {
    bed.store
        .apply(change, &Selection::everything(), &ApplyOptions::default())
        .expect("applied")
}

fn held(applied: &Applied) -> Vec<String> {
    let mut held: Vec<String> = applied
        .held
        .iter()
        .map(|told| told.path.display().to_string())
        .collect();
    held.sort();
    held
}

#[test]
fn commits_branches_and_tags_come_over_and_nothing_is_left() {
    let bed = Bed::new();
    bed.host(INIT);
    let change = bed.begin();
    bed.agent_over(
        &change,
        "echo 2 >>file; git commit -qam second; git checkout -qb topic/x; echo 3 >new; git add new; git commit -qm third; git tag v1; \
         git branch -D old; git tag -a v2 -m two; echo 4 >staged; git add staged",
    );
    let applied = apply(&bed, &change);
    assert!(applied.finished, "{applied:?}");
    assert_eq!(
        bed.say("git log --format=%s topic/x"),
        "third\nsecond\nfirst\n"
    );
    assert_eq!(bed.say("git log --format=%s main"), "second\nfirst\n");
    assert_eq!(bed.say("git symbolic-ref HEAD"), "refs/heads/topic/x\n");
    assert_eq!(bed.say("git status --porcelain"), "A  staged\n");
    assert_eq!(
        bed.say("git branch --format='%(refname:short)'"),
        "main\ntopic/x\n"
    );
    assert_eq!(bed.say("git tag"), "v0\nv1\nv2\n");
    bed.host("git fsck --strict; git reflog | grep -q third; test -z \"$(find . -name '*.lock' -o -name '.ironcage*')\"");
}

#[test]
fn branches_tags_and_head_are_told_before_they_come_over_and_when_they_did() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("git commit -q --allow-empty -m second; git branch packed; git tag gone; git branch topic/y; git pack-refs --all; git branch stays");
    bed.host("git branch loose/z");
    let short = |name: &str| {
        let said = bed.say(&format!("git rev-parse --short=7 {name}"));
        said.trim().to_owned()
    };
    let (old, main) = (short("old"), short("main"));
    let change = bed.begin();
    bed.agent_over(
        &change,
        "git branch -D old packed topic/y loose/z; git tag -d gone; git reset -q --hard HEAD~1; git commit -q --allow-empty -m x; \
         git tag -f v0; git checkout -qb feat",
    );
    let summary = change.summary().expect("a summary");
    let told = |list: &mut dyn Iterator<Item = &ReferenceChange>| -> Vec<String> {
        list.map(ToString::to_string).collect()
    };
    let before = told(&mut summary.references.iter());
    for line in &before {
        let line = format!("\n  reference {line}");
        assert!(summary.to_string().contains(&line), "{summary}");
    }
    let applied = apply(&bed, &change);
    let new = short("feat");
    let wanted = [
        format!("branch loose/z DELETED (was {main})"),
        format!("branch old DELETED (was {old})"),
        format!("branch packed DELETED (was {main})"),
        format!("branch topic/y DELETED (was {main})"),
        format!("tag gone DELETED (was {main})"),
        "HEAD main -> feat".to_owned(),
        format!("branch main moved {main}..{new}"),
        format!("tag v0 moved {old}..{new}"),
        format!("branch feat new at {new}"),
    ];
    assert_eq!(before, wanted);
    assert_eq!(told(&mut applied.references.iter()), wanted);
    // The tree's files are counted apart.
    let count = applied.to_string();
    assert!(
        count.starts_with("0 applied, 9 references, 1 object, "),
        "{count}"
    );
    assert_eq!(
        bed.say("git branch --format='%(refname:short)'"),
        "feat\nmain\nstays\n"
    );
}

#[test]
fn a_hook_and_settings_that_run_stay_aside_and_plain_ones_come_over() {
    let bed = Bed::new();
    bed.host(INIT);
    let change = bed.begin();
    bed.agent_over(
        &change,
        "echo 2 >>file; git commit -qam second; printf '#!/bin/sh\\ntouch /tmp/evil' >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; \
         git config core.fsmonitor evil; git config alias.st '!evil'; git remote add fork https://host.example/x.git; git config branch.main.remote fork; git config branch.topic.remote fork; \
         git config branch.main.merge refs/heads/main; echo x >.git/commondir; mkdir -p .git/info; echo '* filter=x' >.git/info/attributes; git replace HEAD HEAD~1 || true",
    );
    let summary = change.summary().expect("a summary");
    let told = summary.to_string();
    assert!(
        told.contains("core.fsmonitor") && told.contains("alias.st"),
        "{told}"
    );
    let applied = apply(&bed, &change);
    let held = held(&applied);
    for path in [
        ".git/hooks/pre-commit",
        ".git/config",
        ".git/commondir",
        ".git/info/attributes",
    ] {
        assert!(
            held.iter().any(|told| told == path),
            "{path} not in {held:?}"
        );
    }
    assert_eq!(bed.say("git log --format=%s -1"), "second\n");
    assert_eq!(
        bed.say("git config remote.fork.url; git config branch.topic.remote; git config branch.main.remote || echo none"),
        "https://host.example/x.git\nfork\nnone\n"
    );
    bed.host("test ! -e .git/hooks/pre-commit; test ! -e .git/commondir; ! git config core.fsmonitor; ! git config alias.st; test -z \"$(git replace)\"");
    // Named, it comes over.
    let selection = Selection::of(
        &change,
        &bed.workspace,
        &[PathBuf::from(".git/hooks/pre-commit")],
    )
    .expect("a path");
    bed.store
        .apply(&change, &selection, &ApplyOptions::default())
        .expect("applied");
    bed.host("test -x .git/hooks/pre-commit");
}

#[test]
fn objects_that_are_not_what_they_are_called_stay_aside_with_all_that_needs_them() {
    let bed = Bed::new();
    bed.host(INIT);
    let change = bed.begin();
    bed.agent_over(
        &change,
        "echo 2 >>file; git commit -qam second; blob=$(git rev-parse HEAD:file); other=$(git rev-parse HEAD^{tree}); \
         f() { echo .git/objects/$(echo $1 | cut -c1-2)/$(echo $1 | cut -c3-); }; chmod u+w $(f $blob); cat $(f $other) >$(f $blob)",
    );
    let applied = apply(&bed, &change);
    assert_eq!(
        applied
            .held
            .iter()
            .filter(|told| told.why.contains("not the object"))
            .count(),
        1,
        "{applied:?}"
    );
    assert_eq!(bed.say("git log --format=%s -1"), "first\n");
    bed.host("git fsck --strict");
}

#[test]
fn packs_are_indexed_anew() {
    let bed = Bed::new();
    bed.host(INIT);
    let change = bed.begin();
    bed.agent_over(&change, "for i in 1 2 3 4 5; do echo $i >>file; git commit -qam $i; done; git gc -q --prune=now; git pack-refs --all");
    let applied = apply(&bed, &change);
    assert!(applied.finished, "{applied:?}");
    assert_eq!(bed.say("git log --format=%s"), "5\n4\n3\n2\n1\nfirst\n");
    bed.host("git fsck --strict; ls .git/objects/pack/*.idx; git status --porcelain | wc -l | grep -qx 0");

    let change = bed.begin();
    bed.agent_over(&change, "echo 6 >>file; git commit -qam 6; git gc -q --prune=now; for f in .git/objects/pack/*.pack; do chmod u+w $f; printf X | dd of=$f bs=1 seek=40 conv=notrunc 2>/dev/null; done");
    let applied = apply(&bed, &change);
    assert!(
        applied.held.iter().any(|told| told.why.contains("broken")),
        "{applied:?}"
    );
    assert_eq!(bed.say("git log --format=%s -1"), "5\n");
    bed.host("git fsck --strict");
}

#[test]
fn a_reference_that_the_host_moved_meanwhile_is_a_conflict() {
    let bed = Bed::new();
    bed.host(INIT);
    let change = bed.begin();
    bed.agent_over(
        &change,
        "git checkout -qb other; echo 2 >>file; git commit -qam agent; git branch -f main other",
    );
    bed.host("echo h >host; git add host; git commit -qm host");
    let applied = apply(&bed, &change);
    assert_eq!(bed.say("git log --format=%s -1 main"), "host\n");
    assert_eq!(bed.say("git log --format=%s -1 other"), "agent\n");
    let conflicts: Vec<String> = applied
        .conflicts
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    assert!(
        conflicts.contains(&".git/refs/heads/main".to_owned()),
        "{conflicts:?}"
    );
    assert!(
        conflicts.contains(&".git/index".to_owned()),
        "{conflicts:?}"
    );
    bed.host("git fsck --strict");
}

#[test]
fn two_worktrees_commit_at_the_same_time_and_each_moves_only_its_own() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("git worktree add -q ../one -b one; git worktree add -q ../two -b two");
    let common = bed.workspace.join(".git");
    let changes: Vec<Change> = ["one", "two"]
        .iter()
        .map(|name| bed.begin_with_git(&bed.base.path().join(name), std::slice::from_ref(&common)))
        .collect();
    for (change, name) in changes.iter().zip(["one", "two"]) {
        bed.agent_over(change, &format!("echo {name} >{name}; git add .; git commit -qm {name}; git checkout -qb {name}-more; echo x >.git-not; echo hook >\"$(git rev-parse --git-common-dir)/hooks/post-commit\""));
    }
    for change in &changes {
        let applied = apply(&bed, change);
        assert_eq!(applied.held.len(), 1, "{applied:?}");
    }
    assert_eq!(
        bed.say("git log --format=%s -1 one; git log --format=%s -1 two; git symbolic-ref HEAD"),
        "one\ntwo\nrefs/heads/main\n"
    );
    assert_eq!(
        bed.say("git -C ../one symbolic-ref HEAD; git -C ../two symbolic-ref HEAD"),
        "refs/heads/one-more\nrefs/heads/two-more\n"
    );
    assert_eq!(bed.say("git -C ../one status --porcelain; git -C ../two status --porcelain; git status --porcelain"), "?? .git-not\n?? .git-not\n");
    bed.host("git fsck --strict; test ! -e .git/hooks/post-commit");
}

#[test]
fn commits_in_a_submodule_come_over() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host(
        "git clone -q . ../library; git submodule -q add ../library lib; git commit -qm module",
    );
    let change = bed.begin();
    bed.agent_over(&change, "cd lib; echo 2 >>file; git commit -qam inner; cd ..; git commit -qam outer; printf x >.git/modules/lib/hooks/pre-commit");
    let applied = apply(&bed, &change);
    assert_eq!(
        held(&applied),
        [".git/modules/lib/hooks/pre-commit"],
        "{applied:?}"
    );
    assert_eq!(
        bed.say("git log --format=%s -1; git -C lib log --format=%s -1; git status --porcelain"),
        "outer\ninner\n"
    );
}

#[test]
fn a_shallow_clone_works() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host(
        "git commit -qm second --allow-empty; git clone -q --depth 1 \"file://$PWD\" ../shallow",
    );
    let shallow = bed.base.path().join("shallow");
    let change = bed.begin_with_git(&shallow, &[]);
    bed.agent_over(&change, "echo 2 >>file; git commit -qam inside");
    let applied = apply(&bed, &change);
    assert!(applied.finished, "{applied:?}");
    assert_eq!(
        bed.say("git -C ../shallow log --format=%s"),
        "inside\nsecond\n"
    );
    bed.host("git -C ../shallow fsck");
}

#[test]
fn a_repository_made_inside_stays_aside_until_it_is_named() {
    let bed = Bed::new();
    bed.host("git config --global user.email a@example.org; git config --global user.name A; git config --global --add safe.directory '*'");
    let change = bed.begin();
    bed.agent_over(
        &change,
        "git init -q; echo 1 >file; git add .; git commit -qm first",
    );
    let applied = apply(&bed, &change);
    assert_eq!(held(&applied), [".git"], "{applied:?}");
    assert!(bed.read("file").is_some() && !bed.workspace.join(".git").exists());
    let selection =
        Selection::of(&change, &bed.workspace, &[PathBuf::from(".git")]).expect("a path");
    let applied = bed
        .store
        .apply(&change, &selection, &ApplyOptions::default())
        .expect("applied");
    assert!(applied.finished, "{applied:?}");
    assert_eq!(
        bed.say("git log --format=%s; git status --porcelain"),
        "first\n"
    );
}

#[test]
fn edits_of_different_lines_are_merged_where_git_holds_the_base() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("seq 1 20 >lines; seq 1 20 >staged; seq 1 20 >same; git add .; git commit -qm lines");
    let change = bed.begin();
    bed.agent_over(
        &change,
        "sed -i 's/^3$/agent/' lines same; sed -i 's/^3$/agent/' staged; chmod 755 lines",
    );
    bed.host("sed -i 's/^17$/host/' lines staged; sed -i 's/^3$/host/' same");
    let applied = apply(&bed, &change);
    assert_eq!(
        bed.say("sed -n '3p;17p' lines; sed -n '3p;17p' staged"),
        "agent\nhost\nagent\nhost\n",
        "{applied:?}"
    );
    assert_eq!(bed.say("stat -c %a lines"), "755\n");
    // The same line: both stay.
    assert_eq!(bed.say("sed -n 3p same"), "host\n");
    bed.agent(&change, "test \"$(sed -n 3p same)\" = agent");

    // A version that the host staged meanwhile is no base: its edit would look like none.
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("seq 1 20 >lines; git add .; git commit -qm lines");
    let change = bed.begin();
    bed.agent_over(&change, "sed -i 's/^3$/agent/' lines");
    bed.host("sed -i 's/^17$/host/' lines; git add lines");
    let applied = apply(&bed, &change);
    assert_eq!(applied.conflicts, [PathBuf::from("lines")]);
    assert_eq!(bed.say("sed -n '3p;17p' lines"), "3\nhost\n");
}

#[test]
fn an_index_that_leads_into_the_git_directory_stays_aside() {
    let bed = Bed::new();
    bed.host(INIT);
    let change = bed.begin();
    bed.agent_over(
        &change,
        "echo 2 >evil; mkdir x; echo y >xgit; git add .; LC_ALL=C sed -i 's/xgit/.git/' .git/index",
    );
    let applied = apply(&bed, &change);
    assert!(
        held(&applied).contains(&".git/index".to_owned()),
        "{applied:?}"
    );
    assert_eq!(bed.say("git ls-files"), "file\n");
}
