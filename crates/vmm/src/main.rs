//! `ironcage-vmm`, which runs in the cage of a microVM, as the agent and under every layer.
//!
//! It has three parts, each a process of its own:
//!
//! - `client`: one command. It carries streams, signals and the terminal's size between the cage and
//!   the guest, and ends as the command did. The first one starts the monitor.
//! - `monitor`: starts the file server and QEMU, and carries the frames of all clients over the one
//!   control channel.
//! - `files`: the file server, which is the cage's view for the guest.
//! - `template`: makes a template, not in a cage, for `ironcage setup microvm`.
//! - `confined`: executes QEMU with the system calls and files that it needs, and no more.
//!
//! All of them read what the guest sends. None can do more than the agent could in a namespace cage.
#![forbid(unsafe_code)]

mod client;
mod commands;
mod confine;
mod files;
mod machine;
mod monitor;
mod relay;
mod template;

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::SocketAddr;
use std::process::ExitCode;
use std::{fmt, io};

/// The abstract name of the monitor's socket. The guest has no such names.
const MONITOR: &str = "ironcage-vm";
/// The abstract name of the file server's socket.
const FILES: &str = "ironcage-vm-files";

/// What could not be done.
#[derive(Debug, thiserror::Error)]
pub(crate) struct VmError {
    action: String,
    source: io::Error,
}

impl fmt::Display for VmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.action, self.source)
    }
}

pub(crate) fn doing<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> VmError {
    move |source| VmError {
        action: action.into(),
        source: source.into(),
    }
}

pub(crate) fn address(name: &str) -> Result<SocketAddr, VmError> {
    SocketAddr::from_abstract_name(name).map_err(doing("name a socket"))
}

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let part = words.next().unwrap_or_default();
    let rest: Vec<OsString> = words.collect();
    let done = match part.to_str() {
        Some("client") => client::run(&rest),
        Some("monitor") => monitor::run(),
        Some("files") => files::run(&rest),
        Some("template") => template::make(&rest),
        Some("confined") => confine::run(&rest),
        _ => {
            eprintln!("ironcage-vmm: this is a part of `ironcage run --isolation microvm`");
            return ExitCode::from(2);
        }
    };
    done.unwrap_or_else(|error| {
        eprintln!("ironcage: {error}");
        ExitCode::from(125)
    })
}
