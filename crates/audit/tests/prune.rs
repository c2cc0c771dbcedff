//! Old records go with their heads; what is being written or was changed stays.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ironcage_audit::{Log, Prune, head_path, log_path, prune, recorded};
use ironcage_model::{CageId, Ending, Event, EventKind};
use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

fn record(dir: &Path, cage: &str, age: u64) -> (CageId, Log) {
    let id: CageId = cage.parse().unwrap();
    let mut log = Log::create(dir, &id).unwrap();
    let kind = EventKind::Exit {
        ending: Ending::Exited { code: 0 },
        milliseconds: 1,
        usage: None,
    };
    let (time, cage) = (1, id.clone());
    log.append(&Event { time, cage, kind }).unwrap();
    let written = SystemTime::now() - Duration::from_secs(age);
    let file = File::options()
        .append(true)
        .open(log_path(dir, &id))
        .unwrap();
    file.set_modified(written).unwrap();
    (id, log)
}

fn days(days: u64) -> Prune {
    Prune::Before(SystemTime::now() - Duration::from_secs(days * 86_400))
}

#[test]
fn the_old_go_with_their_heads_and_the_young_stay() {
    let state = tempfile::tempdir().unwrap();
    let dir = state.path().join("audit");
    let (old, log) = record(&dir, "c0000000000aa", 40 * 86_400);
    drop(log);
    let (young, log) = record(&dir, "c0000000000ab", 60);
    drop(log);
    let dry = prune(&dir, days(30), true).unwrap();
    assert_eq!(dry.removed.first(), Some(&old));
    assert_eq!(dry.removed.len(), 1);
    assert_eq!(recorded(&dir).unwrap().len(), 2);
    let done = prune(&dir, days(30), false).unwrap();
    assert_eq!((done.removed, done.kept), (vec![old.clone()], 1));
    assert!(!log_path(&dir, &old).exists() && !head_path(&dir, &old).exists());
    assert_eq!(recorded(&dir).unwrap(), [young]);
}

#[test]
fn all_but_some_go_the_newest_stay() {
    let state = tempfile::tempdir().unwrap();
    let dir = state.path().join("audit");
    for (age, cage) in [
        (3, "c0000000000aa"),
        (1, "c0000000000ab"),
        (2, "c0000000000ac"),
    ] {
        record(&dir, cage, age * 100);
    }
    let done = prune(&dir, Prune::AllBut(1), false).unwrap();
    assert_eq!(done.removed.len(), 2);
    assert_eq!(recorded(&dir).unwrap(), ["c0000000000ab".parse().unwrap()]);
}

#[test]
fn what_is_being_written_or_was_changed_stays() {
    let state = tempfile::tempdir().unwrap();
    let dir = state.path().join("audit");
    let (writing, _log) = record(&dir, "c0000000000aa", 40 * 86_400);
    let (changed, log) = record(&dir, "c0000000000ab", 40 * 86_400);
    drop(log);
    let path = log_path(&dir, &changed);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"code\":0", "\"code\":1")).unwrap();
    let done = prune(&dir, Prune::AllBut(0), false).unwrap();
    assert_eq!(done.removed, []);
    assert_eq!((done.running, done.broken), (vec![writing], vec![changed]));
    assert_eq!(recorded(&dir).unwrap().len(), 2);
}
