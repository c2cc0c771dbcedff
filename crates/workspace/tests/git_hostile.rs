//! After a hostile change was applied: git itself tells what it takes for a repository, runs, and
//! commits.
#![allow(clippy::expect_used)]

mod bed;

use bed::Bed;
use ironcage_workspace::{Applied, ApplyOptions, Change, Selection};
use std::path::{Path, PathBuf};

const INIT: &str = "git config --global user.email a@example.org; git config --global user.name A; git config --global init.defaultBranch main; \
     git config --global --add safe.directory '*'; git init -q; echo 1 >file; echo 1 >other; touch -d '1 hour ago' file other; git add .; git commit -qm first";

/// Settings that run a program which leaves a trace, and the trace.
const SETTINGS: &str = "settings() { printf '[core]\\n\\tfsmonitor = %s\\n\\thooksPath = %s\\n\\tworktree = %s\\n\\tbare = false\\n' \"$HOME/evil\" \"$HOME/hooks\" \"$PWD\"; }; \
     mkdir -p \"$HOME/hooks\"; printf '#!/bin/sh\\ntouch \"$HOME/canary\"\\n' | tee \"$HOME/evil\" \"$HOME/hooks/reference-transaction\" >\"$HOME/hooks/pre-commit\"; chmod +x \"$HOME/evil\" \"$HOME\"/hooks/*; ";

/// In every directory of the tree, whatever git a user would type there.
const USE_GIT: &str = "find . -name .git -prune -o -type d -print | while read -r d; do (cd \"$d\"; \
     git status; git add -n .; git diff; git log --oneline; git update-ref -d refs/heads/none; git commit --allow-empty -m x --dry-run; git fsck) >/dev/null 2>&1 || true; done";

fn apply(bed: &Bed, change: &Change) -> Applied {
    bed.store
        .apply(change, &Selection::everything(), &ApplyOptions::default())
        .expect("applied")
}

fn held(applied: &Applied) -> Vec<String> {
    let held = applied.held.iter();
    held.map(|told| told.path.display().to_string()).collect()
}

fn told(applied: &Applied) -> String {
    let all = applied.flagged.iter();
    all.map(|told| format!("{}: {}\n", told.path.display(), told.why))
        .collect()
}

/// Each way to make a directory a repository to git, with a harmless file beside it. The agent's
/// own git shows that each would run the program.
#[test]
fn no_directory_becomes_a_repository_that_was_none() {
    let ways = [
        (
            "a commondir that leads to the user's repository",
            "git config --file .git/config extensions.worktreeConfig true",
            "echo 'ref: refs/heads/main' >d/HEAD; echo ../.git >d/commondir; settings >d/config.worktree",
        ),
        (
            "a commondir that leads to another directory",
            "true",
            "echo 'ref: refs/heads/main' >d/HEAD; echo ../e >d/commondir; mkdir -p e/objects e/refs; settings >e/config",
        ),
        (
            "a commondir beside a HEAD of the user's",
            "mkdir d; echo 'ref: refs/heads/main' >d/HEAD",
            "echo ../e >d/commondir; mkdir -p e/objects e/refs; settings >e/config",
        ),
        (
            "a HEAD that is a link",
            "true",
            "ln -s refs/heads/main d/HEAD; mkdir d/objects d/refs; settings >d/config",
        ),
        (
            "directories that are links",
            "mkdir -p d/x",
            "ln -s x d/objects; ln -s x d/refs; echo 'ref: refs/heads/main' >d/HEAD; settings >d/config",
        ),
        (
            "a git directory of the user's that is empty",
            "mkdir -p d/.git",
            "git init -q d; settings >>d/.git/config",
        ),
        (
            "a git directory of the user's that is none",
            "mkdir -p d/.git/refs d/.git/objects",
            "echo 'ref: refs/heads/main' >d/.git/HEAD; settings >d/.git/config",
        ),
        (
            "a pointer",
            "true",
            "git init -q --bare e; settings >>e/config; echo 'gitdir: ../e' >d/.git",
        ),
        (
            "a link of a pointer's name",
            "true",
            "git init -q --bare e; settings >>e/config; ln -s ../e d/.git",
        ),
    ];
    for (way, host, agent) in ways {
        let bed = Bed::new();
        bed.host(INIT);
        bed.host(host);
        let canary = bed.base.path().join("canary");
        let change = bed.begin();
        bed.agent_over(
            &change,
            &format!("{SETTINGS} mkdir -p d; {agent}; echo fine >d/fine; echo fine >fine"),
        );
        bed.agent_over(&change, USE_GIT);
        assert!(canary.exists(), "{way}: the attack itself does not work");
        std::fs::remove_file(&canary).expect("the canary");
        let applied = apply(&bed, &change);
        assert!(!applied.held.is_empty(), "{way}: {applied:?}");
        assert!(
            bed.read("fine").is_some() && bed.read("d/fine").is_some(),
            "{way}: {applied:?}"
        );
        bed.host(USE_GIT);
        assert!(!canary.exists(), "{way}: {applied:?}");
        let found = bed.say("for d in . d; do (cd $d; git rev-parse --absolute-git-dir); done");
        let own = format!("{}\n", bed.workspace.join(".git").display());
        assert_eq!(found, own.repeat(2), "{way}");
        // Named, what it leads to comes over; the way to it does not.
        let other = [PathBuf::from("e")];
        let other = Selection::of(&change, &bed.workspace, &other).expect("a path");
        if change.missing(&other).expect("a reading").is_none() {
            bed.store
                .apply(&change, &other, &ApplyOptions::default())
                .expect("applied");
        }
        bed.host(&format!("cd d; {USE_GIT}"));
        assert!(!canary.exists(), "{way}: after what it leads to was named");
    }
}

/// A short name leads the user's git to one thing before an apply, and to the same after it.
#[test]
fn a_new_name_that_hides_a_reference_or_a_commit_stays_aside() {
    let bed = Bed::new();
    bed.host(INIT);
    // Loose, packed, packed below an empty directory of its name, and a link.
    bed.host(
        "git branch packed; git branch below; git pack-refs --all; mkdir .git/refs/heads/below; \
         git branch loose; ln -s refs/heads/main .git/refs/heads/linked",
    );
    let look = "git rev-parse loose packed below linked $(git rev-parse --short main) 2>/dev/null";
    let before = bed.say(look);
    let change = bed.begin();
    bed.agent_over(
        &change,
        "short=$(git rev-parse --short main); evil=$(git commit-tree -m x 'HEAD^{tree}'); git branch $short $evil; \
         for name in loose packed below linked fine; do git tag $name $evil; done; git branch topic $evil; \
         test $(git rev-parse loose packed below linked $short | sort -u) = $evil",
    );
    let applied = apply(&bed, &change);
    assert_eq!(bed.say("git tag"), "fine\n", "{applied:?}");
    assert_eq!(bed.say("git branch --list topic | tr -d ' *'"), "topic\n");
    let mut aside = held(&applied);
    // The link itself is there already, and no file that could be moved.
    aside.retain(|path| path != ".git/refs/heads/linked");
    assert_eq!(aside.len(), 5, "{applied:?}");
    for name in ["below", "linked", "loose", "packed"] {
        let tag = format!(".git/refs/tags/{name}");
        assert!(aside.contains(&tag), "{applied:?}");
    }
    assert_eq!(bed.say(look), before, "{applied:?}");
}

#[test]
fn a_repository_that_looks_like_one_is_applied_when_it_is_named() {
    let bed = Bed::new();
    bed.host(INIT);
    let change = bed.begin();
    bed.agent_over(&change, "git init -q --bare fixture; echo x >HEAD");
    let applied = apply(&bed, &change);
    assert_eq!(held(&applied)[..1], ["fixture/HEAD"], "{applied:?}");
    // A file of that name alone is a file.
    assert!(bed.read("HEAD").is_some());
    let named =
        Selection::of(&change, &bed.workspace, &[PathBuf::from("fixture")]).expect("a path");
    bed.store
        .apply(&change, &named, &ApplyOptions::default())
        .expect("applied");
    bed.host("git -C fixture rev-parse --is-bare-repository | grep -qx true");
}

fn index_of(change: &Change) -> PathBuf {
    change.layers()[0].upper.join(".git/index")
}

/// Puts other bytes in the place of some in the agent's index.
fn forge(change: &Change, from: &[u8], to: &[u8]) {
    let path = index_of(change);
    let mut bytes = std::fs::read(&path).expect("an index");
    let mut found = 0;
    for at in 0..bytes.len() - from.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
            found += 1;
        }
    }
    assert!(found > 0, "it is there");
    std::fs::write(&path, bytes).expect("written");
}

fn object(text: &str) -> Vec<u8> {
    let digits = text.trim().as_bytes().chunks(2);
    digits
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("digits");
            u8::from_str_radix(pair, 16).expect("digits")
        })
        .collect()
}

fn left_by_the_agent(bed: &Bed, name: &str) -> Vec<u8> {
    object(&std::fs::read_to_string(bed.base.path().join(name)).expect("a name"))
}

/// What is in the index, and so in the next commit, is what is in the tree, for everybody to see.
const AS_THE_TREE: &str = "git ls-files -s | sort >\"$HOME/staged\"; rm -f \"$HOME/index\"; \
     GIT_INDEX_FILE=\"$HOME/index\" git add -A; GIT_INDEX_FILE=\"$HOME/index\" git write-tree >\"$HOME/tree\"; git add -A; git write-tree | cmp - \"$HOME/tree\"";

#[test]
fn the_next_commit_holds_no_file_that_a_cached_tree_hides() {
    let attack = "echo shown >shown; git add shown; git write-tree >\"$HOME/good\"; \
         blob=$(echo evil | git hash-object -w --stdin); \
         (git ls-tree $(cat \"$HOME/good\"); printf '100644 blob %s\\thidden\\n' $blob) | git mktree >\"$HOME/evil\"";
    let attacked = || {
        let bed = Bed::new();
        bed.host(INIT);
        let change = bed.begin();
        bed.agent_over(&change, attack);
        let (good, evil) = (
            left_by_the_agent(&bed, "good"),
            left_by_the_agent(&bed, "evil"),
        );
        forge(&change, &good, &evil);
        (bed, change)
    };
    let (bed, change) = attacked();
    bed.agent_over(
        &change,
        "test -z \"$(git ls-files hidden)\"; git commit -qm x; git ls-tree HEAD | grep -q hidden",
    );
    let (bed, change) = attacked();
    let applied = apply(&bed, &change);
    assert!(applied.finished, "{applied:?}");
    assert_eq!(bed.say("git status --porcelain"), "A  shown\n");
    bed.host("git fsck --strict; git commit -qm x; test -z \"$(git ls-tree HEAD hidden)\"; git show HEAD:shown | grep -qx shown");
    bed.host(AS_THE_TREE);
}

#[test]
fn what_is_staged_otherwise_than_the_tree_has_it_is_not_staged() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("echo m >mode; echo g >gone; echo k >kept; git add .; git commit -qm second; echo mine >mine; git add mine; echo 2 >kept; git add kept");
    let change = bed.begin();
    bed.agent_over(
        &change,
        "evil=$(echo evil | git hash-object -w --stdin); echo $evil >\"$HOME/blob\"; git rev-parse :file >\"$HOME/was\"; \
         git update-index --add --cacheinfo 100644,$evil,hidden; git update-index --chmod=+x mode; git rm -q --cached gone; \
         git update-index --add --cacheinfo 120000,$evil,link; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),module; \
         echo fine >fine; git add fine; echo new >later; git add -N later; rm other; git add other; \
         git update-index --assume-unchanged mode; git update-index --skip-worktree kept; git update-index --refresh -q || true",
    );
    // With what git knows of the file: for the agent's git it has not changed since.
    forge(
        &change,
        &left_by_the_agent(&bed, "was"),
        &left_by_the_agent(&bed, "blob"),
    );
    bed.agent_over(
        &change,
        "git -c core.checkStat=minimal -c core.trustctime=false diff --quiet file; ! git diff --cached --quiet file",
    );
    let applied = apply(&bed, &change);
    assert!(applied.finished, "{applied:?}");
    let told = told(&applied);
    for path in ["file", "hidden", "mode", "gone", "link", "and 1 more"] {
        assert!(told.contains(path), "{path} is not in {told}");
    }
    assert_eq!(
        bed.say("git status --porcelain"),
        "A  fine\nM  kept\nA  mine\nD  other\n?? later\n"
    );
    assert_eq!(bed.say("git ls-files -v | grep -v '^H' || true"), "");
    bed.host("git fsck --strict; git commit -qm x; git show HEAD:file | grep -qx 1; test -z \"$(git ls-tree HEAD hidden link module)\"");
    bed.host(AS_THE_TREE);
}

#[test]
fn what_git_knows_of_a_file_is_the_users_or_nothing() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("git config core.checkStat minimal; git config core.trustctime false");
    let change = bed.begin();
    // Another file of the same size and time, and the index says that it is the old one.
    bed.agent_over(
        &change,
        "touch -r file \"$HOME/time\"; echo 7 >file; touch -r \"$HOME/time\" file; echo x >x; git add x",
    );
    apply(&bed, &change);
    assert_eq!(bed.say("git status --porcelain"), " M file\nA  x\n");
    bed.host("git commit -qam x; git show HEAD:file | grep -qx 7");
    bed.host(AS_THE_TREE);
}

#[test]
fn flags_of_the_user_stay_and_an_index_that_holds_the_same_is_left_alone() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("git update-index --assume-unchanged file; git update-index --skip-worktree other; cp .git/index ../index");
    let change = bed.begin();
    bed.agent_over(
        &change,
        "git update-index --no-assume-unchanged file; git update-index --no-skip-worktree other; git status >/dev/null",
    );
    let applied = apply(&bed, &change);
    assert!(applied.finished, "{applied:?}");
    assert_eq!(bed.say("git ls-files -v"), "h file\nS other\n");
    bed.host("cmp .git/index ../index");

    let change = bed.begin();
    bed.agent_over(
        &change,
        "git update-index --no-assume-unchanged file; echo new >new; git add new; git update-index --assume-unchanged new",
    );
    let applied = apply(&bed, &change);
    assert!(applied.finished, "{applied:?}");
    assert_eq!(bed.say("git ls-files -v"), "h file\nH new\nS other\n");
}

#[test]
fn an_index_that_is_gone_or_none_takes_nothing_away() {
    for script in ["rm .git/index", "git rm -rq --cached ."] {
        let bed = Bed::new();
        bed.host(INIT);
        let change = bed.begin();
        bed.agent_over(&change, script);
        apply(&bed, &change);
        assert_eq!(bed.say("git status --porcelain"), "", "{script}");
        bed.host("git fsck --strict");
    }
    let bed = Bed::new();
    bed.host(INIT);
    let change = bed.begin();
    bed.agent_over(
        &change,
        "echo 2 >>file; git add file; git update-index --split-index",
    );
    let applied = apply(&bed, &change);
    assert!(
        held(&applied).contains(&".git/index".to_owned()),
        "{applied:?}"
    );
    assert_eq!(bed.say("git status --porcelain"), " M file\n");
}

#[test]
fn a_sparse_checkout_stays_one_and_loses_nothing() {
    for cone in ["--cone --sparse-index", "--cone --no-sparse-index"] {
        let bed = Bed::new();
        bed.host(INIT);
        bed.host("mkdir in out; for d in in out; do echo 1 >$d/a; echo 1 >$d/b; done; git add .; git commit -qm dirs");
        bed.host(&format!("git branch more; git checkout -q more; echo 2 >out/c; git add .; git commit -qm more; git checkout -q main; git sparse-checkout set {cone} in; test ! -e out"));
        let change = bed.begin();
        bed.agent_over(
            &change,
            "git merge -q more; echo 2 >in/a; git commit -qam inside; echo 3 >in/b; git add in/b",
        );
        let applied = apply(&bed, &change);
        assert!(applied.finished, "{cone}: {applied:?}");
        assert!(told(&applied).is_empty(), "{cone}: {applied:?}");
        assert_eq!(bed.say("git status --porcelain"), "M  in/b\n", "{cone}");
        bed.host("test ! -e out; git fsck --strict; git commit -qam x; git ls-tree -r --name-only HEAD out | wc -l | grep -qx 3; git sparse-checkout disable; test -e out/c");

        // What is not checked out cannot be seen to go, so it does not.
        let bed = Bed::new();
        bed.host(INIT);
        bed.host("mkdir in out; echo 1 >in/a; echo 1 >out/a; git add .; git commit -qm dirs");
        bed.host(&format!("git sparse-checkout set {cone} in"));
        let change = bed.begin();
        bed.agent_over(
            &change,
            "git rm -q --sparse --cached out/a; git update-index --add --cacheinfo 100644,$(echo evil | git hash-object -w --stdin),out/evil",
        );
        let applied = apply(&bed, &change);
        assert!(
            told(&applied).contains("out/a, out/evil"),
            "{cone}: {applied:?}"
        );
        assert_eq!(
            bed.say("git status --porcelain; git ls-files out"),
            "out/a\n",
            "{cone}"
        );
    }
}

#[test]
fn what_is_staged_comes_over_in_every_sort_of_repository() {
    for (init, settings) in [
        ("--object-format=sha256", "true"),
        ("-q", "git config index.version 4"),
        (
            "-q",
            "git config core.untrackedCache true; git status >/dev/null",
        ),
        (
            "-q",
            "git config feature.manyFiles true; git config core.fsmonitor false",
        ),
    ] {
        let bed = Bed::new();
        bed.host(&INIT.replace("init -q", &format!("init -q {init}")));
        bed.host(settings);
        let change = bed.begin();
        bed.agent_over(
            &change,
            "echo 2 >>file; git commit -qam second; mkdir -p a/b; echo x >a/b/c; ln -s c a/b/l; echo p >p; chmod +x p; git add .; echo 3 >>other",
        );
        let applied = apply(&bed, &change);
        assert!(
            applied.finished && told(&applied).is_empty(),
            "{init} {settings}: {applied:?}"
        );
        assert_eq!(
            bed.say("git status --porcelain"),
            "A  a/b/c\nA  a/b/l\n M other\nA  p\n",
            "{init} {settings}"
        );
        bed.host("git fsck --strict");
        bed.host(AS_THE_TREE);
    }
}

#[test]
fn a_conflict_comes_over_and_the_unfinished_merge_is_told() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("git checkout -qb side; echo side >file; git commit -qam side; git checkout -q main");
    let change = bed.begin();
    bed.agent_over(
        &change,
        "echo main >file; git commit -qam main; ! git merge side >/dev/null; test -e .git/MERGE_HEAD",
    );
    assert!(
        change
            .summary()
            .expect("a summary")
            .to_string()
            .contains("MERGE_HEAD"),
        "it is told before"
    );
    let applied = apply(&bed, &change);
    assert!(applied.finished, "{applied:?}");
    assert!(told(&applied).contains(".git/MERGE_HEAD"), "{applied:?}");
    assert_eq!(bed.say("git status --porcelain"), "UU file\n");
    bed.host("echo both >file; git add file; git commit -qm merged; git rev-parse HEAD^2; git fsck --strict");

    // Where nobody looks, it stays aside.
    let change = bed.begin();
    bed.agent_over(
        &change,
        "git rev-parse HEAD~1 >.git/MERGE_HEAD; echo 5 >new",
    );
    let options = ApplyOptions {
        hold_flagged: true,
        ..ApplyOptions::default()
    };
    let applied = bed
        .store
        .apply(&change, &Selection::everything(), &options)
        .expect("applied");
    assert_eq!(held(&applied), [".git/MERGE_HEAD"]);
    bed.host("test ! -e .git/MERGE_HEAD; test -e new");
}

#[test]
fn what_changes_history_or_replays_something_stays_aside() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("echo 2 >>file; git commit -qam second; echo 3 >>file; git commit -qam third");
    let before = bed.say("git log --format=%T%s; git reflog");
    let change = bed.begin();
    bed.agent_over(
        &change,
        "git replace HEAD~1 HEAD~2; git pack-refs --all; git commit-graph write --reachable; git multi-pack-index write || true; \
         mkdir -p .git/rr-cache/x .git/rebase-merge .git/remotes .git/branches; echo x >.git/rr-cache/x/postimage; echo 'exec touch \"$HOME/canary\"' >.git/rebase-merge/git-rebase-todo; \
         printf 'URL: ext::sh -c evil\\n' >.git/remotes/evil; echo ext::sh >.git/branches/evil; git rev-parse HEAD >.git/shallow; echo evil >.git/MERGE_RR; echo evil >.git/FETCH_HEAD; \
         : >.git/logs/HEAD; echo evil >.git/ORIG_HEAD; mkdir -p .git/info; echo '/file' >.git/info/sparse-checkout",
    );
    let applied = apply(&bed, &change);
    let held = held(&applied);
    for path in [
        ".git/rr-cache/x/postimage",
        ".git/rebase-merge/git-rebase-todo",
        ".git/remotes/evil",
        ".git/shallow",
        ".git/ORIG_HEAD",
        ".git/info/sparse-checkout",
    ] {
        assert!(
            held.iter().any(|held| held == path),
            "{path} not in {held:?}"
        );
    }
    assert!(
        held.iter().any(|held| held.contains("refs/replace")),
        "{held:?}"
    );
    assert!(
        applied
            .references
            .iter()
            .all(|moved| !moved.name.contains("replace")),
        "{applied:?}"
    );
    assert_eq!(bed.say("git log --format=%T%s; git reflog"), before);
    bed.host("test -z \"$(git replace)\"; test ! -e .git/objects/info/commit-graph; for f in MERGE_RR FETCH_HEAD branches/evil; do test ! -e .git/$f; done; git fsck --strict");
}

#[test]
fn a_name_that_leads_to_a_reference_of_the_user_still_leads_there() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("git update-ref refs/remotes/origin/main HEAD; git update-ref refs/remotes/up/main HEAD; git symbolic-ref refs/remotes/up/HEAD refs/remotes/up/main; git branch packed; git pack-refs --all");
    let names = "for name in main packed origin/main up HEAD; do git rev-parse $name; done 2>&1";
    let before = bed.say(names);
    let change = bed.begin();
    bed.agent_over(
        &change,
        "git commit -q --allow-empty -m agents; e=$(git rev-parse HEAD); git reset -q --hard HEAD~1; \
         mkdir -p .git/refs/heads/HEAD2; echo $e >.git/refs/heads/HEAD2/x; \
         for name in main tags/main tags/packed heads/origin/main heads/up tags/HEAD heads/HEAD heads/topic tags/v1 tags/HEAD2/x; do git update-ref refs/$name $e || echo $e >.git/refs/$name; done; \
         test $(git rev-parse main 2>/dev/null) = $e",
    );
    let applied = apply(&bed, &change);
    let held = held(&applied);
    for name in [
        "main",
        "tags/main",
        "tags/packed",
        "heads/origin/main",
        "heads/up",
        "tags/HEAD",
        "heads/HEAD",
    ] {
        assert!(
            held.contains(&format!(".git/refs/{name}")),
            "{name}: {held:?}"
        );
    }
    assert_eq!(bed.say(names), before);
    // What leads nowhere else comes over.
    bed.host("git rev-parse --verify -q v1 && test $(git log -1 --format=%s topic) = agents");
}

#[test]
fn a_reference_that_was_only_packed_stays_aside_with_the_packed_ones() {
    let bed = Bed::new();
    bed.host(INIT);
    let change = bed.begin();
    bed.agent_over(
        &change,
        "git commit -q --allow-empty -m agents; git pack-refs --all",
    );
    bed.host("git commit -q --allow-empty -m hosts");
    let applied = apply(&bed, &change);
    assert!(
        held(&applied).contains(&".git/refs/heads/main".to_owned()),
        "{applied:?}"
    );
    bed.agent_over(&change, "git log --format=%s main | grep -qx agents");
}

#[test]
fn the_index_of_a_submodule_and_of_a_worktree_is_built_again() {
    let hidden = "git update-index --add --cacheinfo 100644,$(echo evil | git hash-object -w --stdin),hidden";
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("git config --global protocol.file.allow always; git clone -q . ../library; git submodule -q add ../library lib; git commit -qm module");
    let change = bed.begin();
    bed.agent_over(
        &change,
        &format!("cd lib; {hidden}; echo fine >fine; git add fine; git commit -qm inner fine; echo 2 >>file; git add file; cd ..; git add lib"),
    );
    let applied = apply(&bed, &change);
    assert!(applied.finished, "{applied:?}");
    assert!(
        told(&applied).contains(".git/modules/lib/index"),
        "{applied:?}"
    );
    assert_eq!(
        bed.say("git status --porcelain; git -C lib status --porcelain"),
        "MM lib\nM  file\n"
    );

    let bed = Bed::new();
    bed.host(INIT);
    bed.host("git worktree add -q ../tree -b tree");
    let common = bed.workspace.join(".git");
    let tree = bed.base.path().join("tree");
    let change = bed.begin_with_git(&tree, std::slice::from_ref(&common));
    bed.agent_over(&change, &format!("{hidden}; echo fine >fine; git add fine"));
    let applied = apply(&bed, &change);
    assert!(told(&applied).contains("hidden"), "{applied:?}");
    assert_eq!(bed.say("git -C ../tree status --porcelain"), "A  fine\n");
    assert!(Path::new(&tree).join("fine").exists());
}

#[test]
fn what_the_users_settings_run_in_the_tree_stays_aside() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("git config core.hooksPath tools/hooks; git config filter.x.clean 'sh tools/clean.sh'; mkdir -p tools/hooks; echo true >tools/clean.sh; git add .; git commit -qm tools");
    let change = bed.begin();
    bed.agent_over(
        &change,
        "printf '#!/bin/sh\\ntouch ../canary\\n' >tools/hooks/pre-commit; chmod +x tools/hooks/pre-commit; echo evil >tools/clean.sh; echo fine >tools/fine",
    );
    let applied = apply(&bed, &change);
    assert_eq!(
        held(&applied),
        ["tools/clean.sh", "tools/hooks/pre-commit"],
        "{applied:?}"
    );
    assert!(bed.read("tools/fine").is_some());
    bed.host("git add .; git commit -qm mine; test ! -e ../canary");
    let named = [PathBuf::from("tools/hooks")];
    let named = Selection::of(&change, &bed.workspace, &named).expect("a path");
    bed.store
        .apply(&change, &named, &ApplyOptions::default())
        .expect("applied");
    bed.host("test -x tools/hooks/pre-commit");
}
