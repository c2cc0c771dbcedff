//! A cage that does not stand still: what it writes between two steps of an apply does not get
//! past what was judged.

use super::*;
use crate::{LayerRequest, LayerRole};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

struct Bed {
    _base: tempfile::TempDir,
    real: PathBuf,
    change: Change,
}

impl Bed {
    /// A workspace with these files, and an empty change over it.
    fn new(files: &[(&str, &str)]) -> Bed {
        Bed::over(|real| {
            for (name, text) in files {
                fs::write(real.join(name), text).expect("a file");
            }
        })
    }

    /// An empty change over a workspace that was prepared before.
    fn over(prepare: impl FnOnce(&Path)) -> Bed {
        let base = tempfile::tempdir().expect("a directory");
        let real = base.path().join("project");
        fs::create_dir(&real).expect("a workspace");
        prepare(&real);
        std::thread::sleep(std::time::Duration::from_millis(20));
        let store = Store::open(&base.path().join("state"));
        let draft = store.draft(&real).expect("a draft");
        let layers = [LayerRequest {
            role: LayerRole::Workspace,
            real: real.clone(),
            place: PathBuf::new(),
        }];
        let (change, _) = store
            .create(&real, draft, "cow", &layers)
            .expect("a change");
        Bed {
            _base: base,
            real,
            change,
        }
    }

    fn upper(&self, name: &str) -> PathBuf {
        self.change.layers()[0].upper.join(name)
    }

    /// Applies, with the agent doing something after all was judged and before it is staged.
    fn apply(&self, meanwhile: impl FnOnce()) -> Journal {
        let (change, everything) = (&self.change, Selection::everything());
        let roots = Roots::open(change).expect("its roots");
        let reading = change.read_entries(&everything).expect("a reading");
        let options = ApplyOptions::default();
        let (steps, _) =
            plan::plan(change, &roots, &reading, &everything, &options).expect("a plan");
        let mut journal = Journal {
            phase: Phase::Staging,
            steps,
        };
        journal.write(change).expect("a journal");
        meanwhile();
        staging::stage(change, &roots, &mut journal).expect("staged");
        complete(change, &roots, &mut journal, Afterwards::Keep).expect("landed");
        journal
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.real.join(name)).ok()
    }
}

#[test]
fn a_withheld_file_that_was_only_touched_is_not_put_when_it_is_written_then() {
    let bed = Bed::new(&[(".envrc", "ours\n"), ("plain", "ours\n")]);
    for name in [".envrc", "plain"] {
        fs::write(bed.upper(name), "ours\n").expect("a copy with another time");
    }
    fs::write(bed.upper("new"), "agent\n").expect("a file");
    bed.apply(|| {
        fs::write(bed.upper(".envrc"), "evil\n").expect("it is written");
        fs::write(bed.upper("new"), "again\n").expect("it is written");
    });
    assert_eq!(bed.read(".envrc").as_deref(), Some("ours\n"));
    // What may be written may be written at any time.
    assert_eq!(bed.read("new").as_deref(), Some("again\n"));
    let left = bed.change.read_entries(&Selection::everything());
    let left = left.expect("a reading").entries;
    assert!(
        left.iter()
            .any(|entry| entry.path == Path::new(".envrc") && entry.status == Status::Modified),
        "it is still there to be looked at"
    );
}

#[test]
fn a_host_edit_is_not_replaced_by_what_was_the_same_when_it_was_judged() {
    let bed = Bed::new(&[("both", "old\n"), ("quiet", "old\n")]);
    for name in ["both", "quiet"] {
        fs::write(bed.real.join(name), "host\n").expect("the host writes");
        fs::write(bed.upper(name), "host\n").expect("and so does the agent");
        let copy = fs::File::options().write(true).open(bed.upper(name));
        copy.and_then(|copy| copy.set_modified(std::time::UNIX_EPOCH))
            .expect("at another time");
    }
    let journal = bed.apply(|| fs::write(bed.upper("both"), "agent\n").expect("it is written"));
    assert_eq!(bed.read("both").as_deref(), Some("host\n"));
    let held = |name: &str| {
        let mut steps = journal.steps.iter();
        let step = steps.find(|step| step.path == Path::new(name));
        step.expect("it was planned").held.is_some()
    };
    assert!(held("both") && !held("quiet"));
}

#[test]
fn modes_and_targets_are_those_that_were_judged() {
    let bed = Bed::new(&[]);
    fs::write(bed.upper("tool"), "#!/bin/sh\n").expect("a file");
    fs::create_dir(bed.upper("dir")).expect("a directory");
    fs::set_permissions(bed.upper("dir"), fs::Permissions::from_mode(0o750)).expect("a mode");
    symlink("tool", bed.upper("link")).expect("a link");
    symlink("tool", bed.upper("swapped")).expect("a link");
    bed.apply(|| {
        let mode = |mode| fs::Permissions::from_mode(mode);
        fs::set_permissions(bed.upper("tool"), mode(0o6755)).expect("a mode");
        fs::set_permissions(bed.upper("dir"), mode(0o2777)).expect("a mode");
        fs::remove_file(bed.upper("link")).expect("removed");
        symlink("/etc/passwd", bed.upper("link")).expect("another");
        fs::remove_file(bed.upper("swapped")).expect("removed");
        fs::write(bed.upper("swapped"), "a file\n").expect("a file");
    });
    let mode = |name: &str| {
        let metadata = fs::metadata(bed.real.join(name)).expect("it landed");
        metadata.permissions().mode() & 0o7777
    };
    assert_eq!(mode("tool") & 0o6111, 0);
    assert_eq!(mode("dir"), 0o750);
    for link in ["link", "swapped"] {
        let target = fs::read_link(bed.real.join(link)).expect("a link");
        assert_eq!(target, Path::new("tool"), "{link}");
    }
}

#[test]
fn nothing_happens_when_the_cage_moved() {
    let bed = Bed::new(&[]);
    fs::write(bed.upper("new"), "agent\n").expect("a file");
    let (change, everything) = (&bed.change, Selection::everything());
    let apply = |moved: Option<&str>| {
        let moved = moved.map(str::to_owned);
        bring_over(
            change,
            &everything,
            &ApplyOptions::default(),
            Afterwards::Keep,
            &mut || moved.clone(),
        )
    };
    let refused = apply(Some("its process 7 went on")).expect_err("it moved");
    assert!(refused.to_string().contains("process 7"), "{refused}");
    assert_eq!(fs::read_dir(&bed.real).expect("listed").count(), 0);
    assert!(Journal::read(change).expect("readable").is_none());
    assert_eq!(apply(None).expect("it stands").done, 1);
    assert_eq!(bed.read("new").as_deref(), Some("agent\n"));
}

const DEFAULT: &str = "system.posix_acl_default";
const ACCESS: &str = "system.posix_acl_access";

/// An access list that gives a user by number the same rights as the group.
fn list(group: u16, named: u32) -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 7, u32::MAX),
        (0x02, group, named),
        (0x04, group, u32::MAX),
        (0x10, group, u32::MAX),
        (0x20, 0, u32::MAX),
    ];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn set_list(path: &Path, name: &str, list: &[u8]) {
    use ironcage_sys::rustix::fs::{XattrFlags, setxattr};
    setxattr(path, name, list, XattrFlags::empty()).expect("an access list");
}

/// The numbers of the users that a list names.
fn named(path: &Path, name: &str) -> Vec<u32> {
    let mut value = [0; 256];
    let length = ironcage_sys::rustix::fs::getxattr(path, name, &mut value).unwrap_or(0);
    let entries = value[..length].get(4..).unwrap_or_default().chunks_exact(8);
    entries
        .filter(|entry| entry[0] == 0x02)
        .map(|entry| u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]))
        .collect()
}

#[test]
fn access_lists_of_the_host_stay_and_those_of_the_agent_do_not_come() {
    let make = |path: &Path| {
        for name in ["given", "plain"] {
            fs::create_dir(path.join(name)).expect("a directory");
        }
    };
    let bed = Bed::over(|real| {
        make(real);
        fs::write(real.join("kept"), "ours\n").expect("a file");
        set_list(&real.join("kept"), ACCESS, &list(4, 1234));
        set_list(&real.join("given"), DEFAULT, &list(5, 1234));
    });
    make(&bed.upper(""));
    for directory in ["", "given", "plain"] {
        set_list(&bed.upper(directory), DEFAULT, &list(7, 4321));
    }
    for file in ["kept", "given/new", "plain/new", "given-too"] {
        fs::write(bed.upper(file), "agent\n").expect("a file");
        set_list(&bed.upper(file), ACCESS, &list(7, 4321));
    }
    bed.apply(|| {});
    let lists = |path: &str, name: &str| named(&bed.real.join(path), name);
    for file in ["kept", "given/new", "plain/new", "given-too"] {
        assert_eq!(bed.read(file).as_deref(), Some("agent\n"), "{file}");
    }
    assert!(lists("", DEFAULT).is_empty());
    assert!(lists("plain", DEFAULT).is_empty());
    assert!(lists("plain/new", ACCESS).is_empty());
    assert!(lists("given-too", ACCESS).is_empty());
    // The user's own are as they were, and do what they were made for.
    assert_eq!(lists("given", DEFAULT), [1234]);
    assert_eq!(lists("given/new", ACCESS), [1234]);
    assert_eq!(lists("kept", ACCESS), [1234]);
}
