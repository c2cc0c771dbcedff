use super::*;
use crate::change::Lock;

fn store() -> (tempfile::TempDir, Store, PathBuf) {
    let base = tempfile::tempdir().expect("a directory");
    let workspace = base.path().join("project");
    std::fs::create_dir(&workspace).expect("a workspace");
    let store = Store::open(&base.path().join("state"));
    (base, store, workspace)
}

fn over(real: &Path) -> [LayerRequest; 1] {
    [LayerRequest {
        role: LayerRole::Workspace,
        real: real.to_owned(),
        place: PathBuf::new(),
    }]
}

fn begin(store: &Store, workspace: &Path) -> Change {
    let draft = store.draft(workspace).expect("a name");
    let (change, _lock) = store
        .create(workspace, draft, "cow", &over(workspace))
        .expect("a change");
    change
}

#[test]
fn a_change_is_found_again_until_it_is_removed() {
    let (_base, store, workspace) = store();
    assert!(store.pending(&workspace).expect("a store").is_none());
    let made = begin(&store, &workspace);
    let found = store
        .pending(&workspace)
        .expect("a store")
        .expect("it is pending");
    assert_eq!(found.record, made.record);
    assert!(found.layers()[0].upper.is_dir());
    assert!(found.layers()[0].work.is_dir());
    assert_eq!(store.find(made.id()).expect("by id").record, made.record);
    store.remove(&made).expect("it goes");
    assert!(store.pending(&workspace).expect("a store").is_none());
    assert!(store.list().expect("a store").is_empty());
}

#[test]
fn a_fresh_change_takes_the_place_of_the_current_one_which_stays() {
    let (_base, store, workspace) = store();
    let first = begin(&store, &workspace);
    let second = begin(&store, &workspace);
    let current = store.pending(&workspace).expect("a store").expect("one");
    assert_eq!(current.id(), second.id());
    assert_eq!(store.list().expect("a store").len(), 2);
    store.remove(&second).expect("it goes");
    assert!(store.pending(&workspace).expect("a store").is_none());
    store.make_current(&first).expect("current again");
    assert!(store.pending(&workspace).expect("a store").is_some());
}

#[test]
fn a_change_in_use_is_neither_locked_again_nor_removed() {
    let (_base, store, workspace) = store();
    let change = begin(&store, &workspace);
    let lock: Lock = change.lock().expect("the lock");
    assert!(change.in_use());
    assert!(matches!(
        store.remove(&change),
        Err(WorkspaceError::InUse { .. })
    ));
    drop(lock);
    // A program that another test starts has it from its fork to its exec.
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while change.in_use() {
        assert!(std::time::Instant::now() < patience, "it is still in use");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    store.remove(&change).expect("it goes");
}

#[test]
fn the_root_of_a_layer_has_the_mode_of_the_real_directory() {
    let (_base, store, workspace) = store();
    std::fs::set_permissions(&workspace, std::fs::Permissions::from_mode(0o2751)).expect("a mode");
    let change = begin(&store, &workspace);
    let upper = std::fs::metadata(&change.layers()[0].upper).expect("the upper directory");
    assert_eq!(upper.mode() & 0o7777, 0o2751);
}

#[test]
fn a_further_run_adds_the_layers_that_a_change_lacks_and_no_other() {
    let (base, store, workspace) = store();
    let beside = base.path().join("beside");
    std::fs::create_dir(&beside).expect("a directory");
    let mut change = begin(&store, &workspace);
    let wanted = [
        over(&workspace)[0].clone(),
        LayerRequest {
            role: LayerRole::Granted,
            real: beside.clone(),
            place: "layers/beside".into(),
        },
    ];
    store.extend(&mut change, &wanted).expect("one more layer");
    store.extend(&mut change, &wanted).expect("nothing to add");
    let found = store.find(change.id()).expect("by id");
    assert_eq!(found.layers().len(), 2);
    assert!(found.layers()[1].upper.ends_with("layers/beside/upper"));
    assert!(found.layers()[1].upper.is_dir());
}

#[test]
fn its_beginning_parts_what_was_saved_before_from_what_is_saved_after() {
    let (_base, store, workspace) = store();
    let stamp = |name: &str| {
        let path = workspace.join(name);
        std::fs::write(&path, "x").expect("saved");
        let node = crate::tree::Node::of(std::fs::File::open(&path).expect("it"));
        node.expect("its stamp").changed
    };
    let mut parted = 0;
    for round in 0..50 {
        let before = stamp(&format!("before-{round}"));
        let change = begin(&store, &workspace);
        let after = stamp(&format!("after-{round}"));
        assert!(after >= change.began(), "{after:?} {:?}", change.began());
        parted += usize::from(before < change.began());
        store.remove(&change).expect("it goes");
    }
    // Kernels before 6.13 have no better clock than their tick, and with later ones some file
    // systems.
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
    let mut numbers = release
        .split(['.', '-'])
        .map(|part| part.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let kind = ironcage_sys::rustix::fs::statfs(&workspace).expect("a file system");
    let exact = [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994].contains(&kind.f_type);
    assert!(
        parted == 50 || !exact || version < (6, 13),
        "{parted} of 50 on {release}"
    );
}

/// What the kernel makes in the work directory of an overlay that syncs nothing.
fn as_after_a_run(change: &Change) {
    let work = change.layers()[0].work.join("work");
    std::fs::create_dir_all(work.join("incompat/volatile")).expect("the kernel's");
    std::fs::set_permissions(&work, std::fs::Permissions::from_mode(0o000)).expect("closed");
}

#[test]
fn nothing_is_left_of_a_change_in_which_nothing_was() {
    let (_base, store, workspace) = store();
    let unused = begin(&store, &workspace);
    as_after_a_run(&unused);
    assert!(unused.is_unused());
    store.remove(&unused).expect("it goes");
    assert!(!store.of_workspace(&workspace).exists());
}

#[test]
fn whatever_else_lies_in_an_unused_change_goes_with_it() {
    let (_base, store, workspace) = store();
    let unused = begin(&store, &workspace);
    as_after_a_run(&unused);
    let deep = unused.layers()[0].work.join("index/0001");
    std::fs::create_dir_all(deep).expect("a directory");
    std::fs::write(unused.directory().join("applying"), "").expect("a file");
    store.remove(&unused).expect("it goes");
    assert!(!store.of_workspace(&workspace).exists());
}

fn names_in(path: &Path) -> Vec<String> {
    let listed = std::fs::read_dir(path).into_iter().flatten();
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry
            .expect("an entry")
            .file_name()
            .into_string()
            .expect("a name")
    };
    listed.map(name).collect()
}

/// What the kernel leaves in the work directory of an overlay that syncs nothing.
fn mark(change: &Change) {
    let mark = change.layers()[0].work.join("work/incompat/volatile");
    std::fs::create_dir_all(&mark).expect("the mark");
    std::fs::write(mark.join("dirty"), "").expect("its file");
}

#[test]
fn an_unused_change_is_put_aside_and_a_later_run_removes_it() {
    let (base, store, workspace) = store();
    let aside = base.path().join("state/emptied");
    let changes = base.path().join("state/changes");
    let change = begin(&store, &workspace);
    mark(&change);
    let lock = change.lock().expect("the lock");
    let removed = store.remove_unused(&change, Some(&mut store.emptied()));
    removed.expect("it goes");
    drop(lock);
    assert!(!change.directory().exists());
    assert!(store.pending(&workspace).expect("a store").is_none());
    assert!(store.list().expect("a store").is_empty());
    assert_eq!(names_in(&aside).len(), 1);
    // The next run works on a change of the same workspace meanwhile, which keeps its place.
    let next = begin(&store, &workspace);
    let mut emptied = store.emptied();
    while emptied.step() {}
    assert!(names_in(&aside).is_empty());
    assert!(next.directory().is_dir());
    let removed = store.remove_unused(&next, Some(&mut emptied));
    removed.expect("it goes");
    let mut emptied = store.emptied();
    while emptied.step() {}
    assert!(names_in(&aside).is_empty() && names_in(&changes).is_empty());
}

#[test]
fn no_more_changes_are_put_aside_than_there_is_room_for_and_files_in_one_stay() {
    let (base, store, workspace) = store();
    let aside = base.path().join("state/emptied");
    for number in 0..20 {
        let full = aside.join(format!("key.{number}/upper"));
        std::fs::create_dir_all(&full).expect("a directory");
        std::fs::write(full.join("file"), "text").expect("a file");
    }
    let change = begin(&store, &workspace);
    mark(&change);
    let mut emptied = store.emptied();
    let removed = store.remove_unused(&change, Some(&mut emptied));
    removed.expect("it goes");
    assert!(!change.directory().exists());
    assert_eq!(names_in(&aside).len(), 20);
    while emptied.step() {}
    assert!((0..20).all(|number| aside.join(format!("key.{number}/upper/file")).exists()));
    // What cannot be removed takes room for as long as it is there.
    assert!(!store.emptied().has_room());
    std::fs::remove_dir_all(&aside).expect("it goes");
    assert!(store.emptied().has_room());
}

#[test]
fn a_change_with_other_files_is_removed_with_them_at_once() {
    let (base, store, workspace) = store();
    let change = begin(&store, &workspace);
    std::fs::write(change.directory().join("told"), "text").expect("a file");
    store.remove_unused(&change, None).expect("it goes");
    assert!(!change.directory().exists());
    assert!(!base.path().join("state/emptied").exists());
}
