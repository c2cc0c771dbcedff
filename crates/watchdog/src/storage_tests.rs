use super::super::processes::OpenFiles;
use super::*;
use std::fs;
use std::path::PathBuf;

const MEGABYTE: u64 = 1 << 20;

fn fall(megabytes: u64, files: u64) -> Fall {
    Fall {
        bytes: megabytes * MEGABYTE,
        files: Some(files),
    }
}

fn amount(megabytes: u64, files: u64) -> Amount {
    Amount {
        bytes: megabytes * MEGABYTE,
        files,
    }
}

/// What was certainly added.
fn added(megabytes: u64, files: u64) -> Added {
    Added {
        certain: amount(megabytes, files),
        ..Added::default()
    }
}

fn possible(megabytes: u64, files: u64) -> Added {
    Added {
        possible: amount(megabytes, files),
        ..Added::default()
    }
}

/// The limits that are passed, where nothing was freed since the start.
fn verdict(suspicion: &mut Suspicion, fall: Fall, added: Added) -> Vec<Overrun> {
    let passed = suspicion.verdict(fall, fall, added);
    passed.into_iter().flatten().collect()
}

fn disk(limit: u64, used: u64) -> Overrun {
    Overrun {
        kind: LimitKind::Disk,
        limit: limit * MEGABYTE,
        used: used * MEGABYTE,
    }
}

fn inodes(limit: u64, used: u64) -> Overrun {
    Overrun {
        kind: LimitKind::Inodes,
        limit,
        used,
    }
}

#[test]
fn what_the_walk_was_kept_from_seeing_is_held_against_the_cage() {
    let blind = |megabytes, files| Added {
        blind: true,
        ..added(megabytes, files)
    };
    let mut suspicion = Suspicion::new(Some(100 * MEGABYTE), Some(1000));
    let mut passed = |fall, added| verdict(&mut suspicion, fall, added);
    assert_eq!(passed(fall(150, 10), added(3, 3)), []);
    assert_eq!(passed(fall(150, 10), blind(3, 3)), [disk(100, 150)]);
    assert_eq!(passed(fall(5, 1100), blind(3, 3)), [inodes(1000, 1100)]);
    // No fall, no matter what cannot be seen.
    assert_eq!(passed(fall(5, 5), blind(3, 3)), []);
}

#[test]
fn a_walk_without_end_is_not_waited_for_while_the_file_system_goes_on_falling() {
    let mut suspicion = Suspicion::new(Some(100 * MEGABYTE), Some(1000));
    let overdue = |suspicion: &Suspicion, fall| suspicion.overdue(fall, fall);
    assert_eq!(overdue(&suspicion, fall(190, 1900)), None);
    assert_eq!(overdue(&suspicion, fall(201, 0)), Some(disk(100, 201)));
    assert_eq!(overdue(&suspicion, fall(0, 2001)), Some(inodes(1000, 2001)));
    // What a walk has explained by others does not count again.
    assert_eq!(verdict(&mut suspicion, fall(5000, 0), added(0, 0)), []);
    assert_eq!(overdue(&suspicion, fall(5150, 0)), None);
    assert_eq!(overdue(&suspicion, fall(5201, 0)), Some(disk(100, 5201)));
    assert_eq!(overdue(&Suspicion::new(None, None), fall(5201, 5)), None);
}

#[test]
fn a_process_that_hides_its_descriptors_makes_the_watch_blind_and_the_cages_first_does_not() {
    struct Hiding(u32);
    impl ProcessFiles for Hiding {
        fn pids(&self) -> io::Result<Vec<u32>> {
            Ok(vec![self.0])
        }
        fn read(&self, _: u32, _: &str) -> io::Result<String> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
        fn open_files(&self, _: u32) -> io::Result<OpenFiles> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
    let root = fs::File::open(std::env::temp_dir()).unwrap().into();
    let watch = StorageWatch::new(Some(1), None, StorageBaseline::take([root]).unwrap());
    let mut seen = Added::default();
    watch.add_deleted(&Hiding(1), &mut seen);
    assert!(!seen.blind);
    watch.add_deleted(&Hiding(2), &mut seen);
    assert!(seen.blind);
}

#[test]
fn no_fall_no_suspicion() {
    let suspicion = Suspicion::new(Some(100 * MEGABYTE), Some(1000));
    assert!(!suspicion.arises(fall(100, 1000)));
    assert!(suspicion.arises(fall(101, 0)));
    assert!(suspicion.arises(fall(0, 1001)));
    assert!(!Suspicion::new(None, None).arises(fall(u64::MAX >> 20, u64::MAX)));
}

#[test]
fn a_fall_made_by_others_is_not_held_against_the_cage_and_not_walked_for_again_at_once() {
    let mut suspicion = Suspicion::new(Some(100 * MEGABYTE), None);
    assert_eq!(verdict(&mut suspicion, fall(150, 0), added(30, 1)), []);
    // Seventy are left to the cage.
    assert!(!suspicion.arises(fall(220, 0)));
    assert!(suspicion.arises(fall(221, 0)));
}

#[test]
fn what_the_cage_added_is_an_overrun_of_each_limit_that_it_passes() {
    let mut suspicion = Suspicion::new(Some(100 * MEGABYTE), Some(50));
    let mut passed = |fall, added| verdict(&mut suspicion, fall, added);
    assert_eq!(passed(fall(150, 0), added(130, 1)), [disk(100, 130)]);
    assert_eq!(passed(fall(0, 80), added(1, 60)), [inodes(50, 60)]);
    let both = [disk(100, 101), inodes(50, 51)];
    assert_eq!(passed(fall(150, 80), added(101, 51)), both);
    assert_eq!(passed(fall(150, 80), added(100, 50)), []);
}

#[test]
fn what_is_certain_is_held_against_the_cage_whatever_others_freed() {
    let mut suspicion = Suspicion::new(Some(100 * MEGABYTE), Some(50));
    let both = [disk(100, 130), inodes(50, 60)];
    assert_eq!(verdict(&mut suspicion, fall(0, 0), added(130, 60)), both);
}

#[test]
fn touching_a_large_old_file_is_not_writing_it() {
    let mut suspicion = Suspicion::new(Some(100 * MEGABYTE), Some(5));
    let mut passed = |fall, added| verdict(&mut suspicion, fall, added);
    assert_eq!(passed(fall(101, 0), possible(9000, 1)), [disk(100, 101)]);
    assert_eq!(passed(fall(2, 3), possible(9000, 900)), []);
    // Together with what is certain, no more than the file system has lost.
    let grown = Added {
        certain: amount(60, 1),
        ..possible(9000, 0)
    };
    assert_eq!(passed(fall(90, 1), grown), []);
    assert_eq!(passed(fall(120, 1), grown), [disk(100, 120)]);
}

#[test]
fn where_files_are_not_counted_the_walk_alone_decides() {
    let mut suspicion = Suspicion::new(None, Some(50));
    let uncounted = Fall {
        bytes: 0,
        files: None,
    };
    assert!(!suspicion.arises(uncounted));
    assert_eq!(verdict(&mut suspicion, uncounted, added(1, 40)), []);
    let passed = verdict(&mut suspicion, uncounted, added(1, 60));
    assert_eq!(passed, [inodes(50, 60)]);
}

struct NoProcesses;

impl ProcessFiles for NoProcesses {
    fn pids(&self) -> io::Result<Vec<u32>> {
        Ok(Vec::new())
    }
    fn read(&self, _: u32, _: &str) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn open_files(&self, _: u32) -> io::Result<OpenFiles> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Looks until the watch is at rest, without waiting between.
fn settle(watch: &mut StorageWatch, processes: &dyn ProcessFiles) -> Option<Overrun> {
    for _ in 0..1000 {
        let look = watch.look(processes);
        if look.exceeded.is_some() || !watch.is_counting() {
            return look.exceeded;
        }
    }
    panic!("no rest");
}

/// On a tmpfs where there is one: others write less there.
fn scratch(name: &str) -> PathBuf {
    let quiet = PathBuf::from("/dev/shm");
    let base = if quiet.is_dir() {
        quiet
    } else {
        std::env::temp_dir()
    };
    let path = base.join(format!("ironcage-storage-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn watch_over(path: &PathBuf, disk: u64, inodes: Option<u64>) -> StorageWatch {
    let root = fs::File::open(path).unwrap().into();
    StorageWatch::new(Some(disk), inodes, StorageBaseline::take([root]).unwrap())
}

fn write_megabytes(path: PathBuf, megabytes: usize) -> fs::File {
    let mut file = fs::File::create(path).unwrap();
    std::io::Write::write_all(&mut file, &vec![7; megabytes << 20]).unwrap();
    file
}

#[test]
fn a_real_directory_is_watched_for_bytes_also_of_deleted_files() {
    let path = scratch("bytes");
    let mut roomy = watch_over(&path, 4000 * MEGABYTE, None);
    let mut tight = watch_over(&path, 4 * MEGABYTE, None);
    assert_eq!(settle(&mut tight, &NoProcesses), None);
    let file = write_megabytes(path.join("large"), 16);
    // A look that finds more drawn than is allowed starts the walk, for which the cage stops.
    // (The fall is simulated: others may free as much at the same moment.)
    tight.drawn.bytes += 16 * MEGABYTE;
    assert_eq!(tight.look(&NoProcesses).exceeded, None);
    assert!(tight.is_counting());
    let named = settle(&mut tight, &NoProcesses);
    let within = settle(&mut roomy, &NoProcesses);
    fs::remove_file(path.join("large")).unwrap();
    let gone = |processes: &dyn ProcessFiles| {
        let mut again = watch_over(&path, 4 * MEGABYTE, None);
        // The file was there, already without a name, when this watch began.
        again.drawn.bytes += 16 * MEGABYTE;
        for system in again.baseline.systems.values_mut() {
            system.at_start.bytes += 64 * MEGABYTE;
        }
        settle(&mut again, processes)
    };
    let unseen = gone(&NoProcesses);
    let proc = super::super::ProcMount::new(fs::File::open("/proc").unwrap().into(), None);
    let nameless = gone(&proc);
    fs::remove_dir_all(&path).unwrap();
    assert_eq!(named, Some(disk(4, 16)));
    assert_eq!(within, None);
    assert_eq!(unseen, None);
    assert!(nameless.is_some_and(|over| over.used >= 16 * MEGABYTE));
    drop(file);
}

#[test]
fn the_last_count_finds_what_no_look_saw_and_others_hid() {
    let path = scratch("last");
    let mut watch = watch_over(&path, 4 * MEGABYTE, Some(10));
    let mut roomy = watch_over(&path, 64 * MEGABYTE, Some(100));
    write_megabytes(path.join("large"), 16);
    for number in 0..20 {
        fs::write(path.join(number.to_string()), "").unwrap();
    }
    // Somebody freed as much meanwhile.
    for system in watch.baseline.systems.values_mut() {
        system.at_start.bytes = 0;
        system.last.bytes = 0;
        system.at_start.files = Some(0);
        system.last.files = Some(0);
    }
    let (found, within) = (watch.last_count(), roomy.last_count());
    fs::remove_dir_all(&path).unwrap();
    assert_eq!(found, [disk(4, 16), inodes(10, 21)]);
    assert_eq!(within, []);
}

#[test]
fn space_that_others_free_later_hides_nothing() {
    let mut drawn = Fall::NOTHING;
    let free = |megabytes: u64| Free {
        bytes: megabytes * MEGABYTE,
        files: Some(megabytes),
    };
    // Down by 60, up by 200, down by 60 again.
    for (before, now) in [(500, 440), (440, 640), (640, 580)] {
        drawn.add(free(before), free(now));
    }
    assert_eq!(drawn, fall(120, 120));
    let suspicion = Suspicion::new(Some(100 * MEGABYTE), Some(1000));
    assert!(suspicion.arises(drawn));
}

#[test]
fn a_directory_that_comes_later_is_counted_from_then_on_or_with_the_one_it_lies_in() {
    let (path, other) = (scratch("outer"), scratch("other"));
    fs::create_dir(path.join("inner")).unwrap();
    let mut watch = watch_over(&path, MEGABYTE, Some(10));
    for later in [path.join("inner"), other.clone(), other.clone()] {
        let directory = fs::File::open(later).unwrap().into();
        watch.add_later(directory).unwrap();
    }
    let roots = watch.baseline.roots.len();
    write_megabytes(other.join("large"), 2);
    let found = watch.last_count();
    fs::remove_dir_all(&path).unwrap();
    fs::remove_dir_all(&other).unwrap();
    assert_eq!(roots, 2);
    assert_eq!(found, [disk(1, 2)]);
}

#[test]
fn what_a_command_wrote_before_the_watch_began_counts_from_the_baseline_on() {
    let path = scratch("baseline");
    let open = |path: &PathBuf| fs::File::open(path).unwrap().into();
    let before = StorageBaseline::take([open(&path)]).unwrap();
    write_megabytes(path.join("large"), 16);
    let made = path.join("made");
    fs::create_dir(&made).unwrap();
    fs::write(made.join("small"), "").unwrap();
    // A directory of the cage's own, which was not there yet.
    let mut of_cage = StorageBaseline::take([]).unwrap();
    of_cage.taken = before.taken;
    of_cage.add(open(&made)).unwrap();
    // Times of files are those of the last timer tick.
    std::thread::sleep(Duration::from_millis(50));
    let after = StorageBaseline::take([open(&path)]).unwrap();
    let count = |baseline| StorageWatch::new(Some(4 * MEGABYTE), Some(0), baseline).last_count();
    let (early, own, late) = (count(before), count(of_cage), count(after));
    fs::remove_dir_all(&path).unwrap();
    assert_eq!(early, [disk(4, 16), inodes(0, 3)]);
    assert_eq!(own, [inodes(0, 1)]);
    assert_eq!(late, []);
}
