//! What a real overlay leaves in its upper directory is read as what was done in it.
#![allow(clippy::expect_used)]

mod bed;

use bed::Bed;
use ironcage_workspace::{ApplyOptions, Change, Roots, Selection, Status, differences, unified};
use std::path::{Path, PathBuf};

fn statuses(change: &Change) -> Vec<(String, Status)> {
    let reading = change
        .read_entries(&Selection::everything())
        .expect("a reading");
    reading
        .entries
        .iter()
        .filter(|entry| entry.status != Status::Touched)
        .map(|entry| (entry.path.display().to_string(), entry.status))
        .collect()
}

fn shown(change: &Change) -> String {
    let reading = change
        .read_entries(&Selection::everything())
        .expect("a reading");
    let roots = Roots::open(change).expect("roots");
    let mut out = Vec::new();
    for difference in differences(&roots, &reading, &|entry| entry.named) {
        unified::write(
            &mut out,
            (change, &roots),
            &difference,
            unified::Style::default(),
        )
        .expect("text");
    }
    String::from_utf8(out).expect("text")
}

fn pair(path: &str, status: Status) -> (String, Status) {
    (path.to_owned(), status)
}

#[test]
fn every_kind_of_difference_is_told() {
    let bed = Bed::new();
    bed.host("echo a >same; echo b >edit; echo c >gone; echo d >mode; echo e >type; mkdir -p dir/sub kept old; echo x >dir/x; echo y >dir/sub/y; echo z >kept/z; echo o >old/o; ln -s a link");
    let change = bed.changed_by(
        "echo more >>edit; rm gone; chmod 755 mode; rm type; mkdir type; rm -r dir; mkdir dir; echo n >dir/n; \
         echo w >kept/w; touch same; ln -sf b link; mkfifo pipe; rm -r old; mkdir empty; exec 3>>same",
    );
    assert_eq!(
        statuses(&change),
        [
            pair("dir/n", Status::Added),
            pair("dir/sub", Status::Removed),
            pair("dir/x", Status::Removed),
            pair("edit", Status::Modified),
            pair("empty", Status::Added),
            pair("gone", Status::Removed),
            pair("kept/w", Status::Added),
            pair("link", Status::Modified),
            pair("mode", Status::Mode),
            pair("old", Status::Removed),
            pair("pipe", Status::Added),
            pair("type", Status::Type),
        ]
    );
}

#[test]
fn a_subdirectory_of_a_directory_made_anew_hides_what_was_below() {
    let bed = Bed::new();
    bed.host("mkdir -p d/s/t; echo 1 >d/s/one; echo 2 >d/s/t/two");
    let change = bed.changed_by("rm -r d; mkdir -p d/s; echo 3 >d/s/three");
    assert_eq!(
        statuses(&change),
        [
            pair("d/s/one", Status::Removed),
            pair("d/s/t", Status::Removed),
            pair("d/s/three", Status::Added),
        ]
    );
}

#[test]
fn a_diff_reads_as_gits_does() {
    let bed = Bed::new();
    bed.host("printf 'one\\ntwo\\nthree\\n' >file; seq 1 40 >long; printf 'a\\0b' >binary; ln -s file link");
    let change = bed.changed_by(
        "printf 'one\\n2\\nthree\\nfour' >file; mv long moved; echo 41 >>moved; printf 'a\\0c' >binary; ln -sfn other link; chmod 600 file",
    );
    let text = shown(&change);
    for expected in [
        "diff --git a/file b/file\nold mode 100644\nnew mode 100600\n--- a/file\n+++ b/file\n@@ -1,3 +1,4 @@\n one\n-two\n+2\n three\n+four\n\\ No newline at end of file\n",
        "Binary files a/binary and b/binary differ\n",
        "diff --git a/long b/moved\nsimilarity index 97%\nrename from long\nrename to moved\n",
        "--- a/link\n+++ b/link\n@@ -1 +1 @@\n-file\n\\ No newline at end of file\n+other\n",
    ] {
        assert!(text.contains(expected), "no {expected}\nin {text}");
    }
    assert!(!text.contains("deleted file"), "{text}");
}

#[test]
fn names_and_contents_cannot_act_on_a_terminal() {
    let bed = Bed::new();
    let change = bed.changed_by("printf 'x\\033]52;c;AAAA\\007\\n' >\"$(printf 'n\\033[2J\\nm')\"; : >\"$(printf '\\377')\"");
    let text = shown(&change);
    assert!(
        !text.contains('\u{1b}') && !text.contains('\u{7}'),
        "{text:?}"
    );
    assert!(text.contains("\"b/n\\033[2J\\nm\""), "{text}");
    assert!(text.contains("\"b/\\377\""), "{text}");
    let summary = change.summary().expect("a summary").to_string();
    assert!(!summary.contains('\u{1b}'), "{summary:?}");
}

#[test]
fn ignored_trees_are_told_as_one_unless_they_are_tracked_or_named() {
    let bed = Bed::new();
    bed.host("git init -q; printf 'target/\\n*.log\\n!keep.log\\n' >.gitignore; mkdir -p target; echo t >target/tracked; git add -f target/tracked .gitignore");
    let change = bed.changed_by(
        "echo 2 >>target/tracked; mkdir -p sub/node_modules/a; echo x >sub/node_modules/a/b; echo node_modules >sub/.gitignore; echo l >a.log; echo k >keep.log",
    );
    let reading = change
        .read_entries(&Selection::everything())
        .expect("a reading");
    let ignored: Vec<&Path> = reading
        .ignored
        .iter()
        .map(|tree| tree.path.as_path())
        .collect();
    assert_eq!(ignored, [Path::new("a.log"), Path::new("sub/node_modules")]);
    assert_eq!(reading.ignored[1].files, 1);
    let paths: Vec<&Path> = reading
        .entries
        .iter()
        .map(|entry| entry.path.as_path())
        .collect();
    assert!(paths.contains(&Path::new("target/tracked")), "{paths:?}");
    assert!(paths.contains(&Path::new("keep.log")), "{paths:?}");

    let named = |path: &str| {
        let selection = Selection::of(&change, &bed.workspace, &[PathBuf::from(path)])
            .expect("in the workspace");
        let reading = change.read_entries(&selection).expect("a reading");
        reading
            .entries
            .iter()
            .any(|entry| entry.path == Path::new("sub/node_modules/a/b"))
    };
    assert!(named("sub/node_modules"));
    assert!(named("sub/node_modules/a/b"));
    assert!(!named("sub"));
}

#[test]
fn what_the_host_would_execute_is_withheld_or_flagged_at_any_depth() {
    let bed = Bed::new();
    bed.host(
        "git init -q; mkdir -p venv/bin; touch venv/pyvenv.cfg venv/bin/python3; ln -s x plain; git init -q --bare fixture; \
         mkdir -p conda/conda-meta conda/bin .venv/bin deep/env/bin; touch deep/env/pyvenv.cfg; : >.venv/bin/python",
    );
    let change = bed.changed_by(
        "mkdir -p deep/er/.vscode; echo '{}' >deep/er/.vscode/tasks.json; echo evil >.envrc; echo all: >Makefile; \
         printf '#!/bin/sh\\n' >ls; chmod +x ls; printf x >venv/bin/python3; chmod +x venv/bin/python3; printf x >conda/bin/pip; rm .venv/bin/python; \
         ln -s ../../evil .venv/bin/python; echo x >deep/env/bin/activate; mkdir -p src/bin; echo x >src/bin/python.rs; ln -s /etc/passwd out; git -C fixture config core.fsmonitor evil; \
         git init -q nested; echo 'gitdir: /tmp/x' >deep/.git; echo hi >fine; : >setuid; chmod 4755 setuid; mkfifo p; \
         mkdir bare; mkdir bare/objects bare/refs; echo 'ref: refs/heads/x' >bare/HEAD; echo '[core]' >bare/config",
    );
    let summary = change.summary().expect("a summary");
    let withheld: Vec<String> = summary
        .withheld
        .iter()
        .map(|told| told.path.display().to_string())
        .collect();
    for path in [
        ".envrc",
        "deep/er/.vscode",
        "deep/.git",
        "nested/.git",
        "setuid",
        "venv",
        "conda",
        ".venv",
        "deep/env",
        "bare",
        "fixture",
    ] {
        assert!(
            withheld.iter().any(|told| told == path),
            "{path} not in {withheld:?}"
        );
    }
    let flagged: Vec<String> = summary
        .flagged
        .iter()
        .map(|told| told.path.display().to_string())
        .collect();
    for path in ["Makefile", "ls", "out", "p"] {
        assert!(
            flagged.iter().any(|told| told == path),
            "{path} not in {flagged:?}"
        );
    }
    for list in [&withheld, &flagged] {
        assert!(
            !list
                .iter()
                .any(|told| ["fine", "plain", "src/bin/python.rs", "src/bin"].contains(&&**told)),
            "{list:?}"
        );
    }
}

#[test]
fn a_tree_deeper_than_can_be_read_is_an_obstacle_not_a_failure() {
    let bed = Bed::new();
    let change =
        bed.changed_by("i=0; while [ $i -lt 260 ]; do mkdir d; cd d; i=$((i+1)); done; echo x >x");
    let summary = change.summary().expect("a summary");
    assert_eq!(summary.obstacles.len(), 1, "{summary}");
    bed.store
        .remove(&change)
        .expect("it can still be discarded");
}

#[test]
fn what_the_host_changed_meanwhile_is_a_conflict() {
    let bed = Bed::new();
    bed.host("echo a >both; echo b >theirs; mkdir -p gone/in; echo c >gone/in/c; echo d >dir-less; git init -q; mkdir away; echo e >away/e; git add away");
    let change = bed.begin();
    bed.agent(
        &change,
        "echo agent >both; rm -r gone; echo t >theirs; echo e2 >away/e; echo same >alike",
    );
    bed.host("echo host >both; mkdir made; echo new >gone/in/d; rm -r away; echo same >alike");
    let summary = change.summary().expect("a summary");
    let mut conflicts: Vec<String> = summary
        .conflicts
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    conflicts.sort();
    assert_eq!(conflicts, ["away", "both", "gone"]);
}

/// No file system of the test machine folds case. A directory `.GIT` that exists looks to an apply
/// as the real `.git` does where case does not count.
#[test]
fn names_that_are_others_where_case_does_not_count_are_withheld() {
    let bed = Bed::new();
    bed.host("git init -q; mkdir .GIT git~1; touch .GIT/config; mkdir -p sub/.Git/hooks");
    let change = bed.changed_by(
        "echo '[core]' >.GIT/config; echo x >git~1/config; echo x >sub/.Git/hooks/pre-commit; \
         mkdir -p bare/Objects bare/REFS; echo 'ref: refs/heads/x' >bare/head; echo '[core]' >bare/CONFIG; \
         mkdir -p env/BIN; touch env/PyVenv.cfg; echo x >env/BIN/python3; chmod +x env/BIN/python3; \
         echo x >.Envrc.; mkdir plain; echo x >plain/head; echo x >plain/Config; echo x >gitx",
    );
    let applied = bed
        .store
        .apply(&change, &Selection::everything(), &ApplyOptions::default())
        .expect("applied");
    let mut held: Vec<String> = applied
        .held
        .iter()
        .map(|told| told.path.display().to_string())
        .collect();
    held.sort();
    held.dedup();
    for path in [".GIT", "git~1", "sub/.Git", "bare", "env", ".Envrc."] {
        let is_held = held.iter().any(|held| Path::new(held).starts_with(path));
        assert!(is_held, "{path} not in {held:?}");
    }
    assert_eq!(bed.read(".GIT/config").as_deref(), Some(""));
    for path in [
        "git~1/config",
        "sub/.Git/hooks/pre-commit",
        "bare/CONFIG",
        "env/BIN/python3",
        ".Envrc.",
    ] {
        assert!(bed.read(path).is_none(), "{path} was applied");
    }
    for path in ["plain/head", "plain/Config", "gitx"] {
        assert!(bed.read(path).is_some(), "{path} was withheld: {held:?}");
    }
}
