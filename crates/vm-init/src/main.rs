//! `ironcage-vm-init`, PID 1 of a microVM's guest.
//!
//! It loads modules, mounts the cage's view as the shared root, and serves sessions on one
//! virtio-serial port: each is a command in that root, as the agent. To start one it executes itself
//! a second time ([`launch`]), which gives up everything that the agent is not to have.
//!
//! The guest is not what holds the agent: the cage around the VMM does. The care of this program about
//! privileges is a second wall.
#![forbid(unsafe_code)]

mod boot;
mod launch;
mod relay;
mod serve;
mod session;

use ironcage_sys::rustix::process::getpid;
use ironcage_sys::rustix::system::{RebootCommand, reboot};
use std::process::ExitCode;

/// What this program is called when it starts a command.
const LAUNCH: &str = "launch";

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == LAUNCH) {
        return launch::run(words.collect());
    }
    if !getpid().is_init() {
        eprintln!("ironcage-vm-init: this is the first process of a guest, and does nothing here");
        return ExitCode::from(2);
    }
    if let Err(error) = serve::run() {
        // The console, where the machine has one.
        eprintln!("ironcage-vm-init: {error}");
    }
    // The machine is not to start a second time: QEMU ends with a restart.
    let _ = reboot(RebootCommand::Restart);
    ExitCode::FAILURE
}
