//! A workspace of 300,000 files starts like an empty one: no walk over the tree.
//!
//! A walk would list directories, and listing a directory that was just written moves its access time.

use ironcage_tests::{Stage, Who, full, skip};
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

/// With a hundred files in each, 300,000 files in a full run.
fn directory_count() -> usize {
    if full() { 3000 } else { 300 }
}
const FILES_IN_EACH: usize = 100;

fn plant(stage: &Stage) -> Vec<PathBuf> {
    let mut directories = Vec::with_capacity(directory_count());
    for outer in 0..directory_count() / 100 {
        let parent = stage.project().join(format!("part-{outer}"));
        stage.mkdir(&parent);
        for inner in 0..100 {
            let directory = parent.join(format!("dir-{inner}"));
            stage.mkdir(&directory);
            for file in 0..FILES_IN_EACH {
                let path = directory.join(format!("file-{file}"));
                fs::File::create(&path).expect("a file");
                chown(&path, Some(stage.uid()), None).expect("an owner");
            }
            directories.push(directory);
        }
    }
    directories
}

fn accessed(directory: &Path) -> (i64, i64) {
    let metadata = fs::metadata(directory).expect("a directory");
    (metadata.atime(), metadata.atime_nsec())
}

fn starts_without_a_walk(who: Who) {
    let Some(stage) = Stage::new(who) else {
        return;
    };
    let directories = plant(&stage);
    // The clock of the file system ticks more coarsely than a start takes.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let before: Vec<_> = directories.iter().map(|path| accessed(path)).collect();
    // A literal path to hide costs no walk either.
    let script =
        "test -e part-0/dir-0/file-0 && ! cat part-0/dir-0/file-1 2>/dev/null && echo started";
    let ran = stage
        .sh_with(&["--hide", "part-0/dir-0/file-1"], script)
        .ok();
    assert_eq!(ran.stdout(), "started\n");
    let listed = directories
        .iter()
        .zip(&before)
        .filter(|(path, time)| accessed(path) != **time)
        .count();
    assert_eq!(
        listed,
        0,
        "of {} directories were listed during the start",
        directory_count()
    );
    // The arm that shows that a walk would have been seen.
    fs::read_dir(&directories[7]).expect("a directory").count();
    if accessed(&directories[7]) == before[7] {
        skip("this file system keeps no access times (noatime)");
    }
}

#[test]
fn a_tree_of_300000_files_is_not_walked_as_root() {
    starts_without_a_walk(Who::Root);
}

#[test]
fn a_tree_of_300000_files_is_not_walked_as_user() {
    starts_without_a_walk(Who::User);
}
