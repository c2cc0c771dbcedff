//! The only unsafe code of Ironcage: system calls as safe functions.
//!
//! Other crates use rustix directly; this one has what rustix lacks.
//! One file per subject. Every function here is safe to call with any argument: it may
//! fail, it may not corrupt the process. One unsafe operation per block, each with the
//! reason why it holds.
#![warn(missing_docs)]

pub mod arena;
#[cfg(feature = "bench")]
pub mod bench;
pub mod guest;
pub mod host;

#[cfg(feature = "attack")]
pub mod attack;

pub use rustix;

pub mod clone;
pub mod entry;
pub mod faults;
pub mod inet;
pub mod kvm;
pub mod landlock;
pub mod lock;
pub mod mount;
pub mod namespace;
pub mod net;
pub mod packet;
pub mod process;
pub mod seccomp;
pub mod signals;
pub mod spawn;
pub mod speculation;
pub mod spent;
pub mod steps;
#[cfg(feature = "bench")]
pub mod trace;
pub mod trial;

/// Turns a system call's result into a `Result`.
pub(crate) fn check(result: i64) -> std::io::Result<i64> {
    if result < 0 {
        Err(std::io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
