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

fn added(megabytes: u64, files: u64) -> Added {
    Added {
        bytes: megabytes * MEGABYTE,
        files,
        blind: false,
    }
}

#[test]
fn what_the_walk_was_kept_from_seeing_is_held_against_the_cage() {
    let blind = |megabytes, files| Added {
        blind: true,
        ..added(megabytes, files)
    };
    let mut suspicion = Suspicion::new(Some(100 * MEGABYTE), Some(1000));
    assert_eq!(suspicion.verdict(fall(150, 10), added(3, 3)), None);
    assert_eq!(
        suspicion.verdict(fall(150, 10), blind(3, 3)),
        Some((LimitKind::Disk, "100M".into()))
    );
    assert_eq!(
        suspicion.verdict(fall(5, 1100), blind(3, 3)),
        Some((LimitKind::Inodes, "1000".into()))
    );
    // No fall, no matter what cannot be seen.
    assert_eq!(suspicion.verdict(fall(5, 5), blind(3, 3)), None);
}

#[test]
fn a_walk_without_end_is_not_waited_for_while_the_file_system_goes_on_falling() {
    let mut suspicion = Suspicion::new(Some(100 * MEGABYTE), Some(1000));
    assert_eq!(suspicion.overdue(fall(190, 1900)), None);
    let disk = Some((LimitKind::Disk, "100M".into()));
    assert_eq!(suspicion.overdue(fall(201, 0)), disk);
    let inodes = Some((LimitKind::Inodes, "1000".into()));
    assert_eq!(suspicion.overdue(fall(0, 2001)), inodes);
    // What a walk has explained by others does not count again.
    assert_eq!(suspicion.verdict(fall(5000, 0), added(0, 0)), None);
    assert_eq!(suspicion.overdue(fall(5150, 0)), None);
    assert_eq!(suspicion.overdue(fall(5201, 0)), disk);
    assert_eq!(Suspicion::new(None, None).overdue(fall(5201, 5)), None);
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
    let watch = StorageWatch::new(Some(1), None, vec![root])
        .unwrap()
        .unwrap();
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
    assert_eq!(suspicion.verdict(fall(150, 0), added(30, 1)), None);
    // Seventy are left to the cage.
    assert!(!suspicion.arises(fall(220, 0)));
    assert!(suspicion.arises(fall(221, 0)));
}

#[test]
fn what_the_cage_added_is_a_hit_with_the_value_as_written() {
    let mut suspicion = Suspicion::new(Some(100 * MEGABYTE), Some(50));
    let hit = suspicion.verdict(fall(150, 0), added(130, 1));
    assert_eq!(hit, Some((LimitKind::Disk, "100M".into())));
    let hit = suspicion.verdict(fall(0, 80), added(1, 60));
    assert_eq!(hit, Some((LimitKind::Inodes, "50".into())));
}

#[test]
fn touching_a_large_old_file_is_not_writing_it() {
    let mut suspicion = Suspicion::new(Some(100 * MEGABYTE), None);
    assert_eq!(
        suspicion.verdict(fall(101, 0), added(9000, 1)),
        Some((LimitKind::Disk, "100M".into()))
    );
    let mut suspicion = Suspicion::new(Some(100 * MEGABYTE), Some(5));
    assert_eq!(suspicion.verdict(fall(2, 3), added(9000, 900)), None);
}

#[test]
fn where_files_are_not_counted_the_walk_alone_decides() {
    let mut suspicion = Suspicion::new(None, Some(50));
    let uncounted = Fall {
        bytes: 0,
        files: None,
    };
    assert!(!suspicion.arises(uncounted));
    assert_eq!(suspicion.verdict(uncounted, added(1, 40)), None);
    assert_eq!(
        suspicion.verdict(uncounted, added(1, 60)),
        Some((LimitKind::Inodes, "50".into()))
    );
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
fn settle(watch: &mut StorageWatch, processes: &dyn ProcessFiles) -> Option<(LimitKind, String)> {
    for _ in 0..1000 {
        let look = watch.look(processes);
        if look.exceeded.is_some() || look.pause >= PAUSE {
            return look.exceeded;
        }
    }
    panic!("no rest");
}

/// On a tmpfs where there is one: others write less there, and what they free at the same moment
/// would hide the fall.
#[test]
fn a_real_directory_is_watched_for_bytes_also_of_deleted_files() {
    let quiet = PathBuf::from("/dev/shm");
    let base = if quiet.is_dir() {
        quiet
    } else {
        std::env::temp_dir()
    };
    let path = base.join(format!("ironcage-storage-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    let watch = |limit: u64| {
        let root = fs::File::open(&path).unwrap().into();
        StorageWatch::new(Some(limit), None, vec![root])
            .unwrap()
            .unwrap()
    };
    let mut roomy = watch(4000 * MEGABYTE);
    let mut tight = watch(4 * MEGABYTE);
    assert_eq!(settle(&mut tight, &NoProcesses), None);
    std::thread::sleep(Duration::from_millis(30));
    let mut file = fs::File::create(path.join("large")).unwrap();
    std::io::Write::write_all(&mut file, &vec![7; 16 << 20]).unwrap();
    file.sync_all().unwrap();
    let named = settle(&mut tight, &NoProcesses);
    let within = settle(&mut roomy, &NoProcesses);
    fs::remove_file(path.join("large")).unwrap();
    let mut again = watch(4 * MEGABYTE);
    // The fall is simulated: the file was there, already without a name, when this watch began.
    for (_, before) in again.baseline.values_mut() {
        before.bytes += 16 << 20;
    }
    let unseen = settle(&mut again.clone_for_test(), &NoProcesses);
    let proc = super::super::ProcMount::new(fs::File::open("/proc").unwrap().into(), None);
    let nameless = settle(&mut again, &proc);
    fs::remove_dir_all(&path).unwrap();
    assert_eq!(named, Some((LimitKind::Disk, "4M".into())));
    assert_eq!(within, None);
    assert_eq!(unseen, None);
    assert_eq!(nameless, Some((LimitKind::Disk, "4M".into())));
    drop(file);
}

impl StorageWatch {
    fn clone_for_test(&self) -> StorageWatch {
        StorageWatch {
            suspicion: self.suspicion.clone(),
            roots: self
                .roots
                .iter()
                .map(|root| root.try_clone().unwrap())
                .collect(),
            baseline: self.baseline.clone(),
            started: self.started,
            walk: None,
            next_uncounted: self.next_uncounted,
        }
    }
}
