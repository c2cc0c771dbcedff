//! Logs are found by id, by the beginning of an id, by name, and the newest by `last`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ironcage_audit::{Error, Log, find, list, log_path, recorded, summary};
use ironcage_model::{CageId, Denial, Ending, Event, EventKind, Isolation};
use std::path::Path;

fn id(text: &str) -> CageId {
    text.parse().unwrap()
}

fn record(dir: &Path, cage: &str, time: u64, name: Option<&str>) {
    let cage = id(cage);
    let mut log = Log::create(dir, &cage).unwrap();
    let kinds = [
        EventKind::Start {
            name: name.map(Into::into),
            command: vec!["true".into()],
            workspace: "/w".into(),
            profile: "shell".into(),
            isolation: Some(Isolation::Namespace),
            runtime: None,
            plan: String::new(),
            layers: Vec::new(),
            degraded: Vec::new(),
            shared: Vec::new(),
            parent: None,
        },
        EventKind::Denied(Denial {
            syscall: "mount".into(),
            program: "sh".into(),
            count: 3,
        }),
        EventKind::Exit {
            ending: Ending::Exited { code: 4 },
            milliseconds: 5,
            usage: None,
        },
    ];
    for kind in kinds {
        let cage = cage.clone();
        log.append(&Event { time, cage, kind }).unwrap();
    }
}

fn three() -> (tempfile::TempDir, std::path::PathBuf) {
    let state = tempfile::tempdir().unwrap();
    let dir = state.path().join("audit");
    record(&dir, "c0aaaaaaaaaaa", 10, Some("web"));
    record(&dir, "c0bbbbbbbbbbb", 30, Some("web"));
    record(&dir, "c1ccccccccccc", 20, None);
    (state, dir)
}

#[test]
fn the_newest_comes_first_and_is_last_by_name() {
    let (_state, dir) = three();
    let order: Vec<_> = list(&dir).unwrap().into_iter().map(|h| h.id).collect();
    assert_eq!(
        order,
        [
            id("c0bbbbbbbbbbb"),
            id("c1ccccccccccc"),
            id("c0aaaaaaaaaaa")
        ]
    );
    assert_eq!(find(&dir, "last").unwrap(), id("c0bbbbbbbbbbb"));
}

#[test]
fn a_name_means_its_newest_cage() {
    let (_state, dir) = three();
    assert_eq!(find(&dir, "web").unwrap(), id("c0bbbbbbbbbbb"));
}

#[test]
fn the_beginning_of_one_id_is_enough_and_of_two_is_refused() {
    let (_state, dir) = three();
    assert_eq!(find(&dir, "c1").unwrap(), id("c1ccccccccccc"));
    let Err(Error::Ambiguous { mut matches, .. }) = find(&dir, "c0") else {
        panic!("two ids begin with c0")
    };
    matches.sort();
    assert_eq!(matches, [id("c0aaaaaaaaaaa"), id("c0bbbbbbbbbbb")]);
    assert!(matches!(find(&dir, "zz"), Err(Error::NotFound { .. })));
    assert!(matches!(find(&dir, ""), Err(Error::NotFound { .. })));
}

#[test]
fn without_any_log_that_is_what_is_said() {
    let state = tempfile::tempdir().unwrap();
    let dir = state.path().join("audit");
    assert!(list(&dir).unwrap().is_empty());
    assert!(matches!(find(&dir, "last"), Err(Error::Empty { .. })));
}

#[test]
fn a_damaged_log_is_listed_last_and_files_of_other_names_are_not() {
    let (_state, dir) = three();
    let damaged = id("c2ddddddddddd");
    std::fs::write(log_path(&dir, &damaged), b"garbage\n").unwrap();
    std::fs::write(dir.join("notes.jsonl"), b"").unwrap();
    let headings = list(&dir).unwrap();
    assert_eq!(headings.len(), 4);
    assert_eq!(headings[3].id, damaged);
    assert_eq!(headings[3].time, None);
    assert_eq!(summary(&dir, &damaged).unwrap().damaged, 1);
}

#[test]
fn a_log_that_is_gone_is_still_recorded_by_its_head() {
    let (_state, dir) = three();
    std::fs::remove_file(log_path(&dir, &id("c0aaaaaaaaaaa"))).unwrap();
    assert_eq!(list(&dir).unwrap().len(), 2);
    assert_eq!(recorded(&dir).unwrap().len(), 3);
}

#[test]
fn a_summary_counts_and_says_how_it_ended() {
    let (_state, dir) = three();
    let sum = summary(&dir, &id("c1ccccccccccc")).unwrap();
    assert_eq!(sum.denied, 3);
    assert_eq!(sum.ending, Some(Ending::Exited { code: 4 }));
    assert_eq!(sum.command, ["true"]);
    assert!(!sum.running);
}
