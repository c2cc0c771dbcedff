//! The part without a process: which effects follow from which events.

use super::*;

#[derive(Default)]
struct Threads(Vec<usize>);

impl ProcessFiles for Threads {
    fn pids(&self) -> io::Result<Vec<u32>> {
        Ok((0..self.0.len() as u32).collect())
    }
    fn read(&self, pid: u32, _: &str) -> io::Result<String> {
        let threads = self.0.get(pid as usize).ok_or(io::ErrorKind::NotFound)?;
        Ok(format!(
            "7 (x) y) S 1 7 7 0 -1 0 0 0 0 0 1 2 3 4 20 0 {threads} 0 99"
        ))
    }
    fn open_files(&self, _: u32) -> io::Result<ironcage_watchdog::OpenFiles> {
        Err(io::ErrorKind::NotFound.into())
    }
}

#[test]
fn threads_take_places_as_processes_do_and_a_full_house_is_remembered() {
    let now = Instant::now();
    let look = |watch: &mut TaskWatch, now, threads: &Threads| {
        assert_eq!(watch.look(now, threads, &Guests::default()), None);
    };
    let mut watch = TaskWatch {
        most: 10,
        next: now,
        full: false,
    };
    look(&mut watch, now, &Threads(vec![1, 1, 7]));
    assert!(!watch.full && watch.due(&Guests::default()) > Some(now));
    // Not before its time.
    look(&mut watch, now, &Threads(vec![1, 1, 8]));
    assert!(!watch.full);
    let later = now + Duration::from_secs(1);
    look(&mut watch, later, &Threads(vec![1, 1, 8]));
    assert!(watch.full && watch.due(&Guests::default()).is_none());
    look(
        &mut watch,
        later + Duration::from_secs(1),
        &Threads(vec![1]),
    );
    assert!(watch.full);
}

#[test]
fn the_fewer_places_are_left_the_sooner_the_next_look_but_not_at_any_price() {
    let none = Duration::ZERO;
    assert!(until_full(200, none) > until_full(100, none));
    assert_eq!(until_full(0, none), Duration::from_millis(2));
    assert_eq!(until_full(usize::MAX, none), Duration::from_millis(500));
    let dear = Duration::from_millis(7);
    assert_eq!(until_full(0, dear), Duration::from_millis(70));
}

/// Limits of a cage in which no process runs, as an empty directory says that stands for /proc.
fn limits(deadline: Option<Duration>, idle: Option<Duration>, now: Instant) -> Limits {
    let empty = tempfile::tempdir().unwrap();
    let open = || std::fs::File::open(empty.path()).unwrap().into();
    let none = WatchedLimits {
        memory: None,
        disk: None,
        inodes: None,
    };
    let places = WatchedPlaces {
        proc: ProcMount::new(open(), None),
        memory: MemoryPlaces::default(),
        writable: StorageBaseline::take([]).unwrap(),
    };
    Limits {
        deadline: deadline.map(|limit| (now + limit, limit)),
        idle,
        last_sign: now,
        last_cpu: idle.map(|_| 0),
        watchdog: Watchdog::new(none, places, now).unwrap(),
        first_look: now,
        proc: ProcMount::new(open(), None),
        guests: Guests::default(),
        counts: true,
        tasks: None,
        sampled: Peaks::default(),
        next_sample: now,
        hit: None,
        paused: false,
        parent_counts: false,
    }
}

const TICK: LimitEvent = LimitEvent::Tick {
    stopped: false,
    cage_counts: false,
};

#[test]
fn a_sign_of_life_puts_the_idle_limit_off_and_the_deadline_not() {
    let start = Instant::now();
    let second = Duration::from_secs(1);
    let mut part = limits(Some(second * 10), Some(second * 2), start);
    assert!(part.handle(TICK, start + second).is_empty() && part.hit().is_none());
    part.handle(LimitEvent::SignOfLife, start + second);
    part.handle(TICK, start + second * 2);
    assert!(part.hit().is_none());
    part.handle(TICK, start + second * 3);
    assert_eq!(part.hit().map(|hit| hit.limit), Some(LimitKind::Idle));
    let mut part = limits(Some(second * 10), Some(second * 2), start);
    part.handle(LimitEvent::SignOfLife, start + second * 10);
    assert_eq!(part.next(), Some(start + second * 10));
    part.handle(TICK, start + second * 10);
    let hit = part.hit().unwrap();
    assert!(hit.limit == LimitKind::Time && hit.ended && hit.value == "10s");
}

#[test]
fn a_cage_stands_still_while_another_counts_and_is_not_resumed_where_it_is_stopped_besides() {
    let now = Instant::now();
    let mut part = limits(None, None, now);
    assert!(part.handle(TICK, now).is_empty());
    part.handle(LimitEvent::ParentCounts(true), now);
    assert_eq!(part.handle(TICK, now), [Effect::PauseForCount(true)]);
    // Once is enough.
    assert!(part.handle(TICK, now).is_empty());
    part.handle(LimitEvent::ParentCounts(false), now);
    let stopped = LimitEvent::Tick {
        stopped: true,
        cage_counts: false,
    };
    assert!(part.handle(stopped, now).is_empty());
    assert_eq!(part.handle(TICK, now), [Effect::PauseForCount(false)]);
    let in_scope = LimitEvent::Tick {
        stopped: false,
        cage_counts: true,
    };
    assert_eq!(part.handle(in_scope, now), [Effect::PauseForCount(true)]);
}

#[test]
fn a_guest_that_cannot_be_counted_stops_the_cage_and_one_that_can_does_not() {
    let now = Instant::now();
    let mut part = limits(None, None, now);
    let place = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let joined = |places| LimitEvent::GuestJoined {
        guest: Guest::Scope(1),
        places,
    };
    assert_eq!(part.handle(joined(vec![place()]), now), [Effect::StopNow]);
    let both = vec![place(), place()];
    assert!(part.handle(joined(both), now).is_empty());
    assert!(!part.guests.is_empty());
    part.handle(LimitEvent::GuestLeft(Guest::Scope(1)), now);
    assert!(part.guests.is_empty());
}
