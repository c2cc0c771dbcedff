//! Files that an agent leaves in the writable system of an image, which its user then commits:
//! the commit reads a tree that the agent wrote, as the user.
//!
//! Where there is no such commit, a copy that follows links is played: what it would take along.

use super::{
    Attempts, Canary, Class, Evidence, Inside, Observation, Oracle, Probe, Setup, Severity,
};
use crate::stage::Stage;
use ironcage_sys::rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// A directory at the top of the image, and what shows that it is the image's.
pub(crate) const TOP: &str = "opt";
pub(crate) const OF_IMAGE: &str = "of-the-image";
/// In its place where there is no image, below the home directory.
const UNCAGED: &str = "system";
/// What may be in the image, and shows that something was committed.
const HARMLESS: &str = "written-by-the-agent";
/// Set-user-ID and set-group-ID.
const SET_ID: u32 = 0o6000;

pub(crate) const PROBES: &[Probe] = &[Probe {
    id: "PS-09",
    severity: Severity::High,
    title: "leave links to a host file, a program with set-id bits and a device in a writable image, and have it committed",
    canary: "every image of the user's store: ~/.ssh/id_canary, files with set-id bits, devices",
    setup: Setup::Committed,
    layers: &[
        "a commit follows no link, and takes the way of a layer from a registry",
        "modes in an image have no set-id bits, and no devices are in it",
    ],
    references: &["CWE-61", "ATT&CK T1525"],
    inside: leave,
    oracle: Oracle::Seen(taken_along),
    ..Probe::of(Class::Ps)
}];

fn leave(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let caged = Path::new("/").join(TOP);
    let system = match caged.join(OF_IMAGE).exists() {
        true => caged,
        false => inside.params.home.join(UNCAGED),
    };
    let at = |name: &str| system.join(name);
    attempts.note("a directory", fs::create_dir_all(at("directory")));
    attempts.note(HARMLESS, fs::write(at(HARMLESS), "harmless\n"));
    let key = inside.params.home.join(".ssh/id_canary");
    attempts.note("a link", symlink(&key, at("link")));
    attempts.note("a second name", fs::hard_link(&key, at("second-name")));
    // What was looked at as a directory, and is a link when it is read.
    let exchanged = fs::remove_dir(at("directory"))
        .and_then(|()| symlink(inside.params.home.join(".ssh"), at("directory")));
    attempts.note("a link in the place of a directory", exchanged);
    let upwards = format!("{}{}", "../".repeat(20), key.display());
    attempts.note("a link upwards", symlink(upwards, at("upwards")));
    let program = at("program");
    let made = fs::write(&program, "#!/bin/sh\nid\n")
        .and_then(|()| fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)));
    attempts.note("chmod 6755", made);
    let null = ironcage_sys::rustix::fs::makedev(1, 3);
    let device = mknodat(
        CWD,
        at("device"),
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o666),
        null,
    );
    attempts.note("a device", device.map_err(std::io::Error::from));
    attempts.done()
}

/// The images of the stage, each as one tree.
fn images(stage: &Stage) -> PathBuf {
    stage.params.home.join(".local/state/ironcage/images/roots")
}

/// Whether the commit made an image that has what was allowed to be in it.
pub(crate) fn harmless_was_committed(stage: &Stage) -> bool {
    let roots = fs::read_dir(images(stage)).into_iter().flatten().flatten();
    let mut written = roots.map(|root| root.path().join(TOP).join(HARMLESS));
    written.any(|path| path.is_file())
}

fn taken_along(stage: &Stage, evidence: &Evidence) -> Option<String> {
    let key = stage.nonces.of(Canary::SshKey).as_bytes();
    match evidence.applied {
        Some(_) => found(&images(stage), key, false),
        None => found(&stage.params.home.join(UNCAGED), key, true),
    }
}

/// What is in a tree that has no place in an image.
fn found(tree: &Path, key: &[u8], follow: bool) -> Option<String> {
    for entry in fs::read_dir(tree).into_iter().flatten().flatten() {
        let path = entry.path();
        let metadata = match follow {
            true => fs::metadata(&path),
            false => fs::symlink_metadata(&path),
        };
        let Ok(metadata) = metadata else { continue };
        let kind = metadata.file_type();
        let name = path.file_name().unwrap_or_default().display();
        if kind.is_dir() {
            if let Some(inner) = found(&path, key, follow) {
                return Some(inner);
            }
            continue;
        }
        if kind.is_file() && metadata.mode() & SET_ID != 0 {
            return Some(format!("{name} has mode {:o}", metadata.mode() & 0o7777));
        }
        // Device 0:0 is the mark of a deletion.
        if kind.is_block_device() || kind.is_char_device() && metadata.rdev() != 0 {
            return Some(format!("{name} is a device"));
        }
        if kind.is_file()
            && fs::read(&path).is_ok_and(|content| crate::oracle::contains(&content, key))
        {
            return Some(format!("{name} holds the key"));
        }
    }
    None
}
