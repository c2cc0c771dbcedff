//! What is applied is what the agent did, no more and no less.
#![allow(clippy::expect_used)]

mod bed;

use bed::Bed;
use ironcage_workspace::{Applied, ApplyOptions, Change, OnConflict, Selection};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;

fn apply(bed: &Bed, change: &Change) -> Applied {
    bed.store
        .apply(change, &Selection::everything(), &ApplyOptions::default())
        .expect("applied")
}

fn apply_paths(bed: &Bed, change: &Change, paths: &[&str]) -> Applied {
    let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
    let selection = Selection::of(change, &bed.workspace, &paths).expect("in the workspace");
    bed.store
        .apply(change, &selection, &ApplyOptions::default())
        .expect("applied")
}

#[test]
fn everything_comes_over_and_the_change_is_gone() {
    let bed = Bed::new();
    bed.host("echo a >edit; echo b >gone; mkdir -p dir/sub full; echo x >dir/x; echo y >dir/sub/y; echo z >full/z; echo t >type; ln -s edit link; mkdir type2; echo >type2/in");
    let change = bed.changed_by(
        "echo more >>edit; rm gone; rm -r dir; mkdir dir; echo n >dir/n; rm -r full; rm type; mkdir type; echo i >type/inside; \
         ln -sfn other link; mkfifo pipe; mkdir empty; echo 1 >one; ln one two; chmod 640 one; touch -d 2001-02-03 one; \
         rm -r type2; echo file >type2; setfattr -n user.note -v hello one; mkdir closed; echo c >closed/c; chmod 555 closed; touch -d 2003-04-05 empty",
    );
    let applied = apply(&bed, &change);
    assert!(applied.finished, "{applied:?}");
    assert_eq!(applied.held, []);
    assert_eq!(bed.read("edit").as_deref(), Some("a\nmore\n"));
    assert_eq!(bed.read("dir/n").as_deref(), Some("n\n"));
    assert_eq!(bed.read("type/inside").as_deref(), Some("i\n"));
    assert_eq!(bed.read("type2").as_deref(), Some("file\n"));
    assert_eq!(bed.read("closed/c").as_deref(), Some("c\n"));
    for gone in ["gone", "dir/x", "dir/sub", "full"] {
        assert!(
            bed.workspace.join(gone).symlink_metadata().is_err(),
            "{gone}"
        );
    }
    let at = |name: &str| bed.workspace.join(name).symlink_metadata().expect(name);
    assert_eq!(at("one").ino(), at("two").ino());
    assert_eq!(at("one").mode() & 0o7777, 0o640);
    assert_eq!(at("closed").mode() & 0o7777, 0o555);
    assert_eq!(
        std::fs::read_link(bed.workspace.join("link")).expect("a link"),
        PathBuf::from("other")
    );
    bed.host("test -p pipe; test -d empty; test \"$(stat -c %y one | cut -c1-10)\" = 2001-02-03; test \"$(stat -c %y empty | cut -c1-10)\" = 2003-04-05; \
              getfattr -n user.note one | grep -q hello; test \"$(ls -A | wc -l)\" = 10; chmod 755 closed");
    assert!(
        bed.store
            .pending(&bed.workspace)
            .expect("a store")
            .is_none()
    );
}

#[test]
fn sparse_files_stay_sparse() {
    let bed = Bed::new();
    let change = bed.changed_by(
        "truncate -s 1G big; printf end | dd of=big bs=1 seek=500000000 conv=notrunc 2>/dev/null",
    );
    apply(&bed, &change);
    let file = std::fs::File::open(bed.workspace.join("big")).expect("the file");
    let metadata = file.metadata().expect("metadata");
    assert_eq!(metadata.len(), 1 << 30);
    assert!(
        metadata.blocks() * 512 < 1 << 20,
        "{} blocks",
        metadata.blocks()
    );
    let mut end = [0; 3];
    file.read_exact_at(&mut end, 500_000_000).expect("data");
    assert_eq!(&end, b"end");
}

#[test]
fn withheld_files_stay_aside_until_they_are_named() {
    let bed = Bed::new();
    let change = bed.changed_by("mkdir -p sub/.vscode; echo '{}' >sub/.vscode/tasks.json; echo x >.envrc; echo f >fine; echo all: >Makefile");
    let applied = apply(&bed, &change);
    assert!(!applied.finished);
    let held: Vec<String> = applied
        .held
        .iter()
        .map(|told| told.path.display().to_string())
        .collect();
    assert_eq!(held, [".envrc", "sub/.vscode"]);
    assert!(bed.read("fine").is_some() && bed.read("Makefile").is_some());
    assert!(bed.read(".envrc").is_none() && bed.read("sub/.vscode/tasks.json").is_none());
    // Naming what lies above is not naming it.
    apply_paths(&bed, &change, &["."]);
    assert!(bed.read("sub/.vscode/tasks.json").is_none());
    let applied = apply_paths(&bed, &change, &["sub/.vscode", ".envrc"]);
    assert!(applied.finished, "{applied:?}");
    assert!(bed.read(".envrc").is_some() && bed.read("sub/.vscode/tasks.json").is_some());
}

#[test]
fn a_policy_can_hold_flagged_files_too_and_allow_single_ones() {
    let bed = Bed::new();
    let change =
        bed.changed_by("echo all: >Makefile; echo {} >package.json; echo x >.envrc; echo f >fine");
    let options = ApplyOptions {
        hold_flagged: true,
        allowed: vec![PathBuf::from("package.json")],
        ..ApplyOptions::default()
    };
    bed.store
        .apply(&change, &Selection::everything(), &options)
        .expect("applied");
    assert!(bed.read("fine").is_some() && bed.read("package.json").is_some());
    assert!(bed.read("Makefile").is_none() && bed.read(".envrc").is_none());
}

#[test]
fn what_was_applied_is_the_real_trees_from_then_on() {
    let bed = Bed::new();
    bed.host("mkdir old; echo 1 >old/a; echo 2 >old/b; echo 3 >old/c");
    // A directory that was made anew hides all that it had; a part of it is held back.
    let change = bed.changed_by("rm -r old; mkdir -p old/sub; echo new >old/a; echo d >old/sub/d; echo e >old/.envrc; mkdir fresh; echo f >fresh/f; echo g >fresh/.envrc");
    let applied = apply(&bed, &change);
    assert_eq!(applied.held.len(), 2, "{applied:?}");
    assert!(bed.read("old/b").is_none());
    // The host goes on, and the next run sees what it did, and what was held.
    bed.host("echo host >>old/a; echo host >old/new; echo host >>fresh/f");
    bed.agent(&change, "test \"$(cat old/a)\" = \"$(printf 'new\\nhost')\"; test -f old/new; test -f old/.envrc; test -f old/sub/d; test -f fresh/.envrc; grep -q host fresh/f; test ! -e old/b");
    let summary = change.summary().expect("a summary");
    assert_eq!(
        (summary.added, summary.changed, summary.removed),
        (2, 0, 0),
        "{summary}"
    );
    assert_eq!(summary.conflicts, Vec::<PathBuf>::new());
    // What the agent changes after an apply is no conflict with what was applied.
    bed.agent(&change, "echo again >>old/sub/d");
    assert_eq!(
        change.summary().expect("a summary").conflicts,
        Vec::<PathBuf>::new()
    );
    apply(&bed, &change);
    assert_eq!(bed.read("old/sub/d").as_deref(), Some("d\nagain\n"));
}

#[test]
fn removals_that_were_not_applied_stay_removed_for_the_agent() {
    let bed = Bed::new();
    bed.host("mkdir -p d/s; echo 1 >d/a; echo 2 >d/b; echo 3 >d/s/c");
    let change = bed.changed_by("rm -r d; mkdir -p d/s; echo new >d/n; echo m >d/s/m");
    apply_paths(&bed, &change, &["d/n"]);
    assert_eq!(bed.read("d/n").as_deref(), Some("new\n"));
    assert!(bed.read("d/a").is_some() && bed.read("d/s/c").is_some());
    bed.agent(
        &change,
        "test -f d/n; test ! -e d/a; test ! -e d/b; test ! -e d/s/c; test -f d/s/m",
    );
    // One of them is taken back.
    let selection =
        Selection::of(&change, &bed.workspace, &[PathBuf::from("d/a")]).expect("a path");
    bed.store.discard(&change, &selection).expect("discarded");
    bed.agent(
        &change,
        "test -f d/a; test ! -e d/b; test ! -e d/s/c; test -f d/s/m",
    );
    let selection =
        Selection::of(&change, &bed.workspace, &[PathBuf::from("d/s")]).expect("a path");
    bed.store.discard(&change, &selection).expect("discarded");
    bed.agent(&change, "test -f d/s/c; test ! -e d/s/m; test ! -e d/b");
    assert!(apply(&bed, &change).finished);
    assert!(bed.read("d/b").is_none() && bed.read("d/s/c").is_some());
}

#[test]
fn a_conflict_keeps_both_until_one_is_chosen() {
    let edit = |bed: &Bed, change: &Change| {
        bed.agent(change, "echo agent >file; rm -r dir; echo agent >other");
        bed.host("echo host >file; echo host >dir/new");
    };
    for (choice, file, new) in [
        (OnConflict::Keep, "host\n", true),
        (OnConflict::Ours, "host\n", true),
        (OnConflict::Theirs, "agent\n", false),
    ] {
        let bed = Bed::new();
        bed.host("echo base >file; mkdir dir; echo 1 >dir/a");
        let change = bed.begin();
        edit(&bed, &change);
        let options = ApplyOptions {
            on_conflict: choice,
            ..ApplyOptions::default()
        };
        let applied = bed
            .store
            .apply(&change, &Selection::everything(), &options)
            .expect("applied");
        assert_eq!(bed.read("file").as_deref(), Some(file), "{choice:?}");
        assert_eq!(bed.read("dir/new").is_some(), new, "{choice:?}");
        assert_eq!(bed.read("other").as_deref(), Some("agent\n"));
        assert_eq!(
            applied.finished,
            choice != OnConflict::Keep,
            "{choice:?} {applied:?}"
        );
        if choice == OnConflict::Keep {
            assert_eq!(applied.conflicts.len(), 2, "{applied:?}");
            bed.agent(&change, "grep -q agent file; test ! -e dir");
        }
    }
}

#[test]
fn no_link_leads_an_apply_out_of_the_workspace() {
    let bed = Bed::new();
    let outside = bed.base.path().join("outside");
    std::fs::create_dir(&outside).expect("a directory");
    std::fs::write(outside.join("victim"), "as it was").expect("a file");
    bed.host("mkdir dir; echo 1 >dir/victim");
    let change = bed.begin();
    bed.agent(
        &change,
        "echo evil >dir/victim; echo evil >dir/new; ln -s ../outside way",
    );
    // The host's tree is turned into a link where the change has a directory.
    bed.host("mv dir away; ln -s ../outside dir");
    let applied = apply(&bed, &change);
    assert!(!applied.finished);
    assert_eq!(
        std::fs::read_to_string(outside.join("victim")).expect("it is there"),
        "as it was"
    );
    assert_eq!(std::fs::read_dir(&outside).expect("a directory").count(), 1);
    // The allowing arm: with the directory back it is applied.
    bed.host("rm dir; mv away dir");
    apply(&bed, &change);
    assert_eq!(bed.read("dir/new").as_deref(), Some("evil\n"));
}

#[test]
fn discarding_leaves_every_byte_as_it_was() {
    let bed = Bed::new();
    bed.host("git init -q; mkdir -p a/b; echo 1 >a/b/c; echo 2 >d; chmod 600 d; ln -s d e");
    let list =
        "find . -printf '%p %y %m %s %T@ %l\\n' | sort; find . -type f -exec sha256sum {} + | sort";
    let before = bed.say(list);
    let change = bed.begin();
    bed.try_agent(&change, "rm -rf ./* ./.[!.]*; echo gone >new");
    assert_ne!(change.summary().expect("a summary").removed, 0);
    bed.store
        .discard(&change, &Selection::everything())
        .expect("discarded");
    assert_eq!(bed.say(list), before);
    assert!(bed.store.list().expect("a store").is_empty());
}

#[test]
fn the_repository_is_never_removed_by_applying() {
    let bed = Bed::new();
    bed.host("git init -q; echo 1 >file");
    let change = bed.begin();
    bed.agent(&change, "rm -rf .git file");
    apply(&bed, &change);
    assert!(bed.read("file").is_none());
    assert!(bed.workspace.join(".git/HEAD").exists());
}

#[test]
fn an_unreadable_mode_does_not_stop_an_apply() {
    let bed = Bed::new();
    let change = bed.changed_by("mkdir d; echo x >d/x; chmod 000 d/x d; echo y >y");
    let applied = apply(&bed, &change);
    let mode = bed
        .workspace
        .join("d")
        .metadata()
        .map(|metadata| metadata.permissions().mode() & 0o777);
    // Root reads it all the same; others are told.
    match mode {
        Ok(mode) => assert_eq!(mode, 0),
        Err(_) => assert!(!applied.held.is_empty(), "{applied:?}"),
    }
    assert!(bed.read("y").is_some());
    let _ = std::fs::set_permissions(
        bed.workspace.join("d"),
        std::fs::Permissions::from_mode(0o700),
    );
}

#[test]
fn a_snapshot_is_gone_back_to_and_a_fork_goes_its_own_way() {
    let bed = Bed::new();
    bed.host("mkdir -p d/s; echo 1 >d/a; echo 2 >d/s/b; echo 3 >gone");
    let change = bed.changed_by("rm gone; rm -r d; mkdir d; echo n >d/n; ln d/n d/m; ln -s x l; chmod 711 d; setfattr -n user.note -v hello d/n");
    let name = bed
        .store
        .snapshot(&change, Some("before"))
        .expect("a snapshot");
    assert_eq!(name, "before");
    assert!(bed.store.snapshot(&change, Some("before")).is_err());
    assert!(bed.store.snapshot(&change, Some("../x")).is_err());
    assert_eq!(bed.store.snapshot(&change, None).expect("a snapshot"), "1");
    bed.agent(&change, "rm -r d l; echo worse >worse");
    let back = bed
        .store
        .restore(&bed.workspace, "before")
        .expect("restored");
    assert_ne!(back.id(), change.id());
    let current = bed
        .store
        .pending(&bed.workspace)
        .expect("a store")
        .expect("one");
    assert_eq!(current.id(), back.id());
    bed.agent(&back, "test ! -e gone; test ! -e d/a; test ! -e d/s; test -f d/n; test d/n -ef d/m; test -L l; test ! -e worse; test $(stat -c %a d) = 711; getfattr -n user.note d/n | grep -q hello");
    bed.agent(&change, "test ! -e d; test -f worse");

    let fork = bed.store.fork(&back).expect("a fork");
    bed.agent(&fork, "echo fork >only-here");
    bed.agent(&back, "test ! -e only-here");
    assert!(apply(&bed, &fork).finished);
    assert_eq!(bed.read("only-here").as_deref(), Some("fork\n"));
    assert_eq!(
        bed.store
            .list_snapshots(&bed.workspace)
            .expect("a list")
            .len(),
        2
    );
    bed.store
        .remove_snapshot(&bed.workspace, "before")
        .expect("removed");
    assert!(bed.store.restore(&bed.workspace, "before").is_err());
}
