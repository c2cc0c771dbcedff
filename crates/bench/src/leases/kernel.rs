//! The kernel's part of a lease, whoever asks for it: a mount that appears, is made read-only and
//! is taken off again, in a mount namespace of its own.

use crate::BenchError;
use crate::floor::IdMaps;
use ironcage_sys::bench::{ALL_NAMESPACES, clone_child, wait_for};
use ironcage_sys::mount::{AttributeChange, MountAttributes, clone_source, set_attributes};
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::mount::{
    MountPropagationFlags, MoveMountFlags, UnmountFlags, mount_change, move_mount, unmount,
};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

/// What is measured, in the order in which it is done.
pub(super) const STEPS: [&str; 3] = [
    "kernel: mount",
    "kernel: flip to read-only",
    "kernel: take off",
];

/// How long each step took, in microseconds, `runs` times.
pub(super) fn measure(
    source: &Path,
    target: &Path,
    runs: usize,
) -> Result<[Vec<f64>; 3], BenchError> {
    let ids = IdMaps::of_caller();
    let (mut from, mut into) = io::pipe().map_err(BenchError::call("pipe"))?;
    let pid = clone_child(ALL_NAMESPACES, || {
        let told =
            inside(&ids, source, target, runs).and_then(|text| into.write_all(text.as_bytes()));
        match told {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("{error}");
                99
            }
        }
    })
    .map_err(BenchError::call("clone3"))?;
    drop(into);
    let mut text = String::new();
    from.read_to_string(&mut text)
        .map_err(BenchError::call("measuring mounts"))?;
    let status = wait_for(pid).map_err(BenchError::call("waitpid"))?;
    if !status.success() {
        let error = io::Error::other(status.to_string());
        return Err(BenchError::call("measuring mounts")(error));
    }
    let mut times: [Vec<f64>; 3] = Default::default();
    for line in text.lines() {
        for (of, word) in times.iter_mut().zip(line.split(' ')) {
            of.extend(word.parse::<f64>());
        }
    }
    Ok(times)
}

fn inside(ids: &IdMaps, source: &Path, target: &Path, runs: usize) -> io::Result<String> {
    ids.write().map_err(|(_, error)| error)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change(c"/", private)?;
    let place: OwnedFd = open(target, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let read_only = AttributeChange {
        set: MountAttributes::READ_ONLY,
        ..AttributeChange::default()
    };
    let mut told = String::new();
    for _ in 0..runs {
        let start = Instant::now();
        let tree = clone_source(source)?;
        move_mount(
            &tree,
            c"",
            place.as_fd(),
            c"",
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
        )?;
        let mounted = Instant::now();
        set_attributes(tree.as_fd(), read_only)?;
        let flipped = Instant::now();
        unmount(target, UnmountFlags::DETACH)?;
        drop(tree);
        let off = Instant::now();
        let steps = [mounted - start, flipped - mounted, off - flipped];
        let [mounted, flipped, off] = steps.map(|time| time.as_secs_f64() * 1e6);
        told.push_str(&format!("{mounted} {flipped} {off}\n"));
    }
    Ok(told)
}
