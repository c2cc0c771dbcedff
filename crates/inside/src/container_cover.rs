//! A hook of a container: binds files over files of its `/proc`.
//!
//! runc executes it among the container's mounts, before it takes the view as root and before
//! anything of the agent's runs. The agent can execute it too, where the kernel denies the mounts.

use ironcage_command::error::{CliError, CommandResult};
use ironcage_model::Printable;
use ironcage_sys::mount::{AttributeChange, MountAttributes, set_attributes};
use ironcage_sys::rustix::fs::{CWD, Mode, OFlags, open};
use ironcage_sys::rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file, what it covers, and so on
    #[arg(required = true)]
    pairs: Vec<PathBuf>,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    for pair in args.pairs.chunks(2) {
        let [file, target] = pair else {
            return Err(CliError::new(
                "cannot cover a file: its cover has no target",
            ));
        };
        cover(file, target).map_err(|error| {
            CliError::new(format!("cannot cover {}: {error}", Printable::new(target)))
        })?;
    }
    Ok(0)
}

fn cover(file: &Path, target: &Path) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let mount = open_tree(CWD, file, flags)?;
    let set = MountAttributes::READ_ONLY
        .with(MountAttributes::NO_SUID)
        .with(MountAttributes::NO_DEVICES)
        .with(MountAttributes::NO_EXEC);
    let change = AttributeChange {
        set,
        ..AttributeChange::default()
    };
    set_attributes(mount.as_fd(), change)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target = open(target, flags, Mode::empty())?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&mount, "", &target, "", flags)?;
    Ok(())
}
