//! Places of workspaces on a real file system.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ironcage_state::{StateError, Store, remove_from_inside};
use ironcage_sys::rustix::fs::inotify;
use std::ffi::OsStr;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

struct Stage {
    root: tempfile::TempDir,
    store: Store,
}

impl Stage {
    fn new() -> Stage {
        let root = tempfile::tempdir().unwrap();
        let store = Store::new(&root.path().join("state"), &root.path().join("cache"));
        Stage { root, store }
    }

    fn make(&self, workspace: &str, paths: &[(&str, bool)]) -> Result<PathBuf, StateError> {
        let workspace = Path::new(workspace);
        let home = self.store.place(workspace).home;
        let paths: Vec<(PathBuf, bool)> = paths
            .iter()
            .map(|(path, is_directory)| (home.join(path), *is_directory))
            .collect();
        let places = paths
            .iter()
            .map(|(path, is_directory)| (path.as_path(), *is_directory));
        self.store.make(workspace, places)?;
        Ok(home)
    }
}

#[test]
fn places_are_made_once_and_private() {
    let stage = Stage::new();
    let home = stage
        .make("/w/one", &[(".a/b", true), (".file", false)])
        .unwrap();
    fs::write(home.join(".a/b/x"), "kept").unwrap();
    fs::write(home.join(".file"), "kept").unwrap();
    stage
        .make("/w/one", &[(".a/b", true), (".file", false)])
        .unwrap();
    assert_eq!(fs::read_to_string(home.join(".a/b/x")).unwrap(), "kept");
    assert_eq!(fs::read_to_string(home.join(".file")).unwrap(), "kept");
    for (path, mode) in [(".a", 0o700), (".a/b", 0o700), (".file", 0o600)] {
        let metadata = fs::metadata(home.join(path)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{path}");
    }
}

#[test]
fn a_place_elsewhere_is_refused() {
    let stage = Stage::new();
    let elsewhere = stage.root.path().join("elsewhere");
    let made = stage
        .store
        .make(Path::new("/w"), [(elsewhere.as_path(), true)]);
    assert!(matches!(made, Err(StateError::NotBelow { .. })), "{made:?}");
    assert!(!elsewhere.exists());
    let other = stage.store.place(Path::new("/other")).home.join(".a");
    let made = stage.store.make(Path::new("/w"), [(other.as_path(), true)]);
    assert!(matches!(made, Err(StateError::NotBelow { .. })), "{made:?}");
}

#[test]
fn links_in_a_place_are_neither_followed_nor_replaced() {
    let stage = Stage::new();
    let target = stage.root.path().join("target");
    fs::create_dir(&target).unwrap();
    let home = stage.make("/w", &[(".a", true)]).unwrap();
    symlink(&target, home.join(".a/link")).unwrap();
    assert!(stage.make("/w", &[(".a/link/new", true)]).is_err());
    assert!(stage.make("/w", &[(".a/link/file", false)]).is_err());
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    assert!(stage.make("/w", &[(".a/plain/new", true)]).is_ok());
}

#[test]
fn reset_takes_one_workspace_and_leaves_what_links_lead_to() {
    let stage = Stage::new();
    let target = stage.root.path().join("target");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("file"), "").unwrap();
    let one = stage.make("/w/one", &[(".a", true)]).unwrap();
    let two = stage.make("/w/two", &[(".a", true)]).unwrap();
    symlink(&target, one.join(".a/link")).unwrap();
    fs::create_dir_all(one.join(".a/x/y/z")).unwrap();
    fs::set_permissions(one.join(".a/x/y"), fs::Permissions::from_mode(0o000)).unwrap();
    assert_eq!(stage.store.list().unwrap().len(), 2);
    assert!(stage.store.reset(Path::new("/w/one")).unwrap());
    assert!(!stage.store.reset(Path::new("/w/one")).unwrap());
    assert!(!one.exists() && two.join(".a").exists() && target.join("file").exists());
    let left: Vec<_> = stage.store.list().unwrap();
    assert_eq!(left[0].workspace, Path::new("/w/two"));
    assert_eq!(
        fs::read_dir(stage.root.path().join("state/kept"))
            .unwrap()
            .count(),
        1
    );
}

#[test]
fn an_interrupted_reset_is_finished_by_the_next() {
    let stage = Stage::new();
    let kept = stage.root.path().join("state/kept");
    fs::create_dir_all(kept.join(".gone-1-0/0/deep")).unwrap();
    assert!(!stage.store.reset(Path::new("/w")).unwrap());
    assert_eq!(fs::read_dir(&kept).unwrap().count(), 0);
}

#[test]
fn a_tree_is_removed_from_inside_and_nothing_appears_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let open = |path: &Path| OwnedFd::from(fs::File::open(path).unwrap());
    // One that was killed in the middle left the first.
    for below in [".gone-1-0/0/deep", "a/b/c"] {
        fs::create_dir_all(path.join("tree").join(below)).unwrap();
        fs::write(path.join("tree").join(below).join("file"), "").unwrap();
    }
    fs::write(path.join("tree/file"), "").unwrap();
    fs::create_dir(path.join(".gone-1-0")).unwrap();

    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    let wanted =
        inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVE | inotify::WatchFlags::DELETE;
    inotify::add_watch(&watch, path, wanted).unwrap();
    let (above, tree) = (open(path), open(&path.join("tree")));
    remove_from_inside(above.as_fd(), OsStr::new("tree"), tree.as_fd()).unwrap();

    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&watch, &mut buffer);
    let mut seen = Vec::new();
    while let Ok(event) = events.next() {
        seen.push(event.file_name().unwrap().to_str().unwrap().to_owned());
    }
    // It went, and the user's own directory stays, whatever its name.
    assert_eq!(seen, ["tree"]);
    assert!(path.join(".gone-1-0").exists() && !path.join("tree").exists());
}

#[test]
fn an_import_never_writes_through_a_link() {
    let stage = Stage::new();
    let target = stage.root.path().join("target");
    fs::write(&target, "untouched").unwrap();
    let own = stage.root.path().join("own");
    fs::write(&own, "mine").unwrap();
    let home = stage.make("/w", &[(".a", true)]).unwrap();
    symlink(&target, home.join(".a/file")).unwrap();
    let import = |replace| {
        let path = Path::new(".a/file");
        stage.store.import(Path::new("/w"), &own, path, replace)
    };
    assert!(matches!(import(false), Err(StateError::Exists { .. })));
    assert_eq!(import(true).unwrap().files, 1);
    assert_eq!(fs::read_to_string(&target).unwrap(), "untouched");
    let file = home.join(".a/file");
    assert!(!file.is_symlink());
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}
