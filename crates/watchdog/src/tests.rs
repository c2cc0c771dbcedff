use super::processes::ProcessFiles;
use super::*;
use std::fs::File;
use std::process::{Command, Stdio};

fn places() -> WatchedPlaces {
    WatchedPlaces {
        proc: ProcMount::new(File::open("/proc").unwrap().into(), None),
        memory: MemoryPlaces::default(),
        writable: StorageBaseline::take([]).unwrap(),
    }
}

#[test]
fn nothing_to_watch_is_never_looked_at_until_there_is_something() {
    let now = Instant::now();
    let watch = |limits| Watchdog::new(limits, places(), now).unwrap();
    assert_eq!(watch(WatchedLimits::default()).next(), None);
    let disk_without_directory = WatchedLimits {
        disk: Some(1),
        ..WatchedLimits::default()
    };
    let mut watchdog = watch(disk_without_directory);
    assert_eq!(watchdog.next(), None);
    assert_eq!(watchdog.last_count(), []);
    let directory = File::open(std::env::temp_dir()).unwrap().into();
    watchdog.watch_directory(directory, now).unwrap();
    assert_eq!(watchdog.next(), Some(now));
}

/// The whole host stands for a cage: it uses more than one megabyte and less than 2^60 bytes.
#[test]
fn real_processes_pass_a_tiny_limit_and_not_a_huge_one() {
    let limits = |memory| WatchedLimits {
        memory: Some(memory),
        ..WatchedLimits::default()
    };
    let now = Instant::now();
    let mut tiny = Watchdog::new(limits(1 << 20), places(), now).unwrap();
    let hit = tiny.look(&Guests::default(), now).unwrap();
    assert_eq!(
        (hit.limit, hit.value.as_str(), hit.ended),
        (LimitKind::Memory, "1M", true)
    );
    assert!(hit.used > Some(1 << 20));
    let mut huge = Watchdog::new(limits(1 << 60), places(), now).unwrap();
    assert_eq!(huge.look(&Guests::default(), now), None);
    let next = huge.next();
    assert!(next > Some(now));
    // Before its time nothing is looked at and nothing moves.
    assert_eq!(huge.look(&Guests::default(), now), None);
    assert_eq!(huge.next(), next);
}

#[test]
fn a_child_is_seen_through_proc() {
    let mut child = Command::new("/bin/sleep")
        .arg("30")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let proc = ProcMount::new(File::open("/proc").unwrap().into(), None);
    let seen = proc.pids().unwrap().contains(&child.id());
    let files = proc.open_files(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(seen);
    assert!(files.unwrap().seen >= 3);
    assert!(processes::processor_ticks(&proc).unwrap() > 0);
}
