//! This program's own file, kept from the containers that it makes.
//!
//! A process that enters a container has `/proc/PID/exe` there, which leads to this program's file on
//! the host: a container that opens it for writing would replace the runtime for every later
//! container (CVE-2019-5736). So what enters runs from a read-only mount that is nowhere mounted, or
//! from a sealed copy in memory.

use crate::error::{Error, IoContext as _};
use ironcage_sys::mount::{AttributeChange, MountAttributes, clone_with};
use ironcage_sys::rustix::fs::{
    CWD, MemfdFlags, SealFlags, StatVfsMountFlags, fcntl_add_seals, fcntl_get_seals, fstatvfs,
    memfd_create,
};
use ironcage_sys::rustix::io::{FdFlags, fcntl_setfd};
use ironcage_sys::rustix::mount::OpenTreeFlags;
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

const OWN: &str = "/proc/self/exe";

/// Executes this program again from where a container cannot change it, unless it is there already.
pub(crate) fn enter() -> Result<(), Error> {
    let action = || "keep this program's file from the container".to_owned();
    let own = File::open(OWN).doing(action)?;
    let read_only = fstatvfs(&own)
        .doing(action)?
        .f_flag
        .contains(StatVfsMountFlags::RDONLY);
    let sealed = fcntl_get_seals(&own).is_ok_and(|seals| seals.contains(SealFlags::WRITE));
    if read_only || sealed {
        return Ok(());
    }
    let place = match mounted() {
        Ok(place) => place,
        // Without the right to mount: a copy, which takes longer.
        Err(_) => copied(own).doing(action)?,
    };
    fcntl_setfd(&place, FdFlags::empty()).doing(action)?;
    let mut arguments = std::env::args_os();
    let mut command = Command::new(format!("/proc/self/fd/{}", place.as_raw_fd()));
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    Err(Error::failed(action(), command.args(arguments).exec()))
}

/// A read-only mount of the file alone, which no container can make writable: it is in none of their
/// trees of mounts.
fn mounted() -> std::io::Result<OwnedFd> {
    let change = AttributeChange {
        set: MountAttributes::READ_ONLY,
        ..AttributeChange::default()
    };
    clone_with(CWD, Path::new(OWN), OpenTreeFlags::empty(), change)
}

fn copied(mut own: File) -> std::io::Result<OwnedFd> {
    let memory = memfd_create(
        "ironcage-oci-runtime",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    let mut memory = File::from(memory);
    std::io::copy(&mut own, &mut memory)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&memory, seals)?;
    // The kernel executes nothing that is open for writing.
    let read = File::open(format!("/proc/self/fd/{}", memory.as_fd().as_raw_fd()))?;
    Ok(read.into())
}
