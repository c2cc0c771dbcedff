//! The facts of a host, read below a prefix.

use super::{DELEGATION, JOURNAL, PROFILE, SUBORDINATE, SetupFacts};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A file below the prefix.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Reads what matters of the host whose root directory is `root`. `binary` is the installed
/// program as that host names it.
pub fn gather(root: &Path, binary: &Path, user: Option<&str>) -> SetupFacts {
    let read = |path: &str| fs::read_to_string(below(root, Path::new(path))).ok();
    let names = [PROFILE, DELEGATION, JOURNAL]
        .into_iter()
        .chain(SUBORDINATE);
    let restriction = read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
    SetupFacts {
        binary: binary.to_owned(),
        changeable: changeable(root, binary),
        apparmor_restricts: restriction.is_some_and(|value| value.trim() != "0"),
        systemd_and_cgroup2: below(root, Path::new("/run/systemd/system")).is_dir()
            && below(root, Path::new("/sys/fs/cgroup/cgroup.controllers")).is_file(),
        user: user.map(str::to_owned),
        files: names
            .filter_map(|path| Some((PathBuf::from(path), read(path)?)))
            .collect(),
    }
}

/// The first part of a path, from the program upwards, that is not root's alone to change, or
/// is not there.
fn changeable(root: &Path, binary: &Path) -> Option<PathBuf> {
    const OTHERS_WRITE: u32 = 0o022;
    let roots_alone = |path: &Path| {
        fs::symlink_metadata(below(root, path)).is_ok_and(|metadata| {
            metadata.uid() == 0 && metadata.mode() & OTHERS_WRITE == 0 && !metadata.is_symlink()
        })
    };
    binary
        .ancestors()
        .find(|part| !roots_alone(part))
        .map(Path::to_owned)
}
