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

/// Another user who can write in the tree puts a directory of his own where root stages.
#[test]
fn root_stages_in_no_directory_of_another_user() {
    const ANOTHER: u32 = 65534;
    let bed = Bed::new(&[("file", "ours\n")]);
    if !ironcage_sys::rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let place = bed.real.join(staging::name(bed.change.id()));
    fs::create_dir(&place).expect("a directory");
    let root = tree::open_root(&bed.real).expect("the tree");
    let open = || staging::open(root.as_fd(), bed.change.id());
    fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).expect("a mode");
    assert!(open().is_ok());
    fs::write(place.join("in"), "his").expect("a file");
    std::os::unix::fs::chown(&place, Some(ANOTHER), None).expect("another owner");
    assert!(open().is_err());
    assert!(staging::remove(root.as_fd(), bed.change.id()).is_err());
    assert!(place.join("in").exists());
    std::os::unix::fs::chown(&place, Some(0), None).expect("our own");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).expect("a mode");
    assert!(open().is_err());
}

/// What has the name of a temporary file is replaced, not written.
#[test]
fn a_temporary_file_is_made_exclusively() {
    use std::io::Write as _;
    let base = tempfile::tempdir().expect("a directory");
    let (victim, name) = (base.path().join("victim"), base.path().join("temporary"));
    let directory = tree::open_root(base.path()).expect("the directory");
    let mode = ironcage_sys::rustix::fs::Mode::RUSR | ironcage_sys::rustix::fs::Mode::WUSR;
    let put: [fn(&Path, &Path) -> std::io::Result<()>; 3] = [
        |victim, name| fs::hard_link(victim, name),
        |victim, name| symlink(victim, name),
        |_, _| Ok(()),
    ];
    for put in put {
        fs::write(&victim, "mine").expect("a file");
        put(&victim, &name).expect("put there");
        let made = tree::create_temporary(directory.as_fd(), "temporary", mode);
        made.and_then(|mut file| file.write_all(b"new"))
            .expect("a new file");
        assert_eq!(fs::read_to_string(&victim).expect("a file"), "mine");
        assert_eq!(fs::read_to_string(&name).expect("a file"), "new");
        fs::remove_file(&name).expect("removed");
    }
}

/// Another user than the one who applies.
const OTHER: Option<u32> = Some(12_345);

/// A tree of another user's in which root keeps a directory, and a change with a new directory and
/// one of another mode. `None`, and said, where this is not root.
fn of_another_user() -> Option<Bed> {
    use std::os::unix::fs::chown;
    if !ironcage_sys::rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root applies in trees of others");
        return None;
    }
    let bed = Bed::over(|real| {
        fs::create_dir(real.join("old")).expect("a directory");
        for path in [real.to_owned(), real.join("old")] {
            chown(path, OTHER, OTHER).expect("given away");
        }
        let secret = real.join("secret");
        fs::create_dir(&secret).expect("a directory");
        fs::write(secret.join("file"), "root's\n").expect("a file");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o700)).expect("a mode");
    });
    for name in ["old", "new"] {
        fs::create_dir(bed.upper(name)).expect("a directory");
    }
    fs::set_permissions(bed.upper("old"), fs::Permissions::from_mode(0o700)).expect("a mode");
    fs::write(bed.upper("new/file"), "agent\n").expect("a file");
    for name in ["old", "new", "new/file"] {
        chown(bed.upper(name), OTHER, OTHER).expect("given away");
    }
    Some(bed)
}

impl Bed {
    /// Applies, with somebody doing something to the real tree after all was staged.
    fn apply_staged(&self, meanwhile: impl FnOnce(&Path)) -> Result<Journal, WorkspaceError> {
        let (change, everything) = (&self.change, Selection::everything());
        let roots = Roots::open(change)?;
        let reading = change.read_entries(&everything)?;
        let options = ApplyOptions::default();
        let (steps, _) = plan::plan(change, &roots, &reading, &everything, &options)?;
        let mut journal = Journal {
            phase: Phase::Staging,
            steps,
        };
        journal.write(change)?;
        staging::stage(change, &roots, &mut journal)?;
        meanwhile(&self.real);
        complete(change, &roots, &mut journal, Afterwards::Keep)?;
        Ok(journal)
    }

    fn owner_and_mode(&self, name: &str) -> (u32, u32) {
        use std::os::unix::fs::MetadataExt as _;
        let found = fs::symlink_metadata(self.real.join(name)).expect("it is there");
        (found.uid(), found.mode() & 0o777)
    }
}

#[test]
fn root_gives_no_directory_away_that_took_the_place_of_another() {
    for name in ["new", "old"] {
        let Some(bed) = of_another_user() else { return };
        let swap = |real: &Path| {
            // What is there makes place for it, as the owner of the tree can do at any moment.
            let _ = fs::rename(real.join(name), real.join("aside"));
            fs::rename(real.join("secret"), real.join(name)).expect("it is renamed");
        };
        let journal = bed.apply_staged(swap).expect("the rest is applied");
        assert_eq!(bed.owner_and_mode(name), (0, 0o700), "{name}");
        let file = bed.read(&format!("{name}/file"));
        assert_eq!(file.as_deref(), Some("root's\n"), "{name}");
        let mut held = journal.steps.iter().filter(|step| step.held.is_some());
        assert!(held.any(|step| step.path == Path::new(name)), "{name}");
    }
}

#[test]
fn root_removes_no_directory_that_took_the_place_of_what_was_staged() {
    let Some(bed) = of_another_user() else { return };
    let staged = staging::name(bed.change.id());
    let swap = |real: &Path| {
        fs::rename(real.join(&staged), real.join("aside")).expect("it is renamed");
        fs::rename(real.join("secret"), real.join(&staged)).expect("it is renamed");
    };
    let refused = bed.apply_staged(swap).map(|_| ()).expect_err("refused");
    assert!(refused.to_string().contains("staged"), "{refused}");
    let kept = bed.read(&format!("{staged}/file"));
    assert_eq!(kept.as_deref(), Some("root's\n"));
}

#[test]
fn root_applies_in_the_tree_of_another_user_and_gives_it_to_them() {
    let Some(bed) = of_another_user() else { return };
    let journal = bed.apply_staged(|_| ()).expect("applied");
    assert!(journal.steps.iter().all(|step| step.held.is_none()));
    assert_eq!(bed.owner_and_mode("new"), (12_345, 0o755));
    assert_eq!(bed.owner_and_mode("new/file").0, 12_345);
    assert_eq!(bed.owner_and_mode("old"), (12_345, 0o700));
    assert_eq!(bed.read("new/file").as_deref(), Some("agent\n"));
    assert_eq!(bed.owner_and_mode("secret"), (0, 0o700));
}
