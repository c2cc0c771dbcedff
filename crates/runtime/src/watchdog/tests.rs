use super::processes::ProcessFiles;
use super::*;
use std::fs::File;
use std::process::{Command, Stdio};

fn places(writable: Vec<OwnedFd>) -> WatchedPlaces {
    WatchedPlaces {
        proc: ProcMount::new(File::open("/proc").unwrap().into(), None),
        tmpfs: Vec::new(),
        segments: None,
        writable,
    }
}

#[test]
fn nothing_to_watch_is_no_watchdog() {
    let now = Instant::now();
    let none = Watchdog::new(WatchedLimits::default(), places(Vec::new()), now).unwrap();
    assert!(none.is_none());
    let disk_without_directory = WatchedLimits {
        disk: Some(1),
        ..WatchedLimits::default()
    };
    assert!(
        Watchdog::new(disk_without_directory, places(Vec::new()), now)
            .unwrap()
            .is_none()
    );
}

/// The whole host stands for a cage: it uses more than one megabyte and less than 2^60 bytes.
#[test]
fn real_processes_pass_a_tiny_limit_and_not_a_huge_one() {
    let limits = |memory| WatchedLimits {
        memory: Some(memory),
        ..WatchedLimits::default()
    };
    let now = Instant::now();
    let mut tiny = Watchdog::new(limits(1 << 20), places(Vec::new()), now)
        .unwrap()
        .unwrap();
    let hit = tiny.tick(now).hit.unwrap();
    assert_eq!(
        (hit.limit, hit.value.as_str(), hit.ended),
        (LimitKind::Memory, "1M", true)
    );
    let mut huge = Watchdog::new(limits(1 << 60), places(Vec::new()), now)
        .unwrap()
        .unwrap();
    let tick = huge.tick(now);
    assert_eq!(tick.hit, None);
    assert!(tick.next > now);
    // Before its time nothing is looked at and nothing moves.
    assert_eq!(huge.tick(now), tick);
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
