//! Speculation controls and core scheduling of the calling process.

use crate::check;
// libc has these for glibc only.
use linux_raw_sys::prctl::{
    PR_GET_SPECULATION_CTRL, PR_SCHED_CORE, PR_SCHED_CORE_CREATE, PR_SCHED_CORE_GET,
    PR_SCHED_CORE_SCOPE_THREAD_GROUP, PR_SET_SPECULATION_CTRL, PR_SPEC_FORCE_DISABLE,
    PR_SPEC_INDIRECT_BRANCH, PR_SPEC_STORE_BYPASS,
};
use std::io;

/// A way in which the processor runs ahead that a process can ask to be kept from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speculation {
    /// Loads that pass earlier stores.
    StoreBypass,
    /// Indirect branches by what was learned elsewhere.
    IndirectBranch,
}

impl Speculation {
    const fn number(self) -> u32 {
        match self {
            Speculation::StoreBypass => PR_SPEC_STORE_BYPASS,
            Speculation::IndirectBranch => PR_SPEC_INDIRECT_BRANCH,
        }
    }
}

/// What the kernel says of one, as a set of bits (`PR_SPEC_*`).
pub fn speculation(kind: Speculation) -> io::Result<u32> {
    // SAFETY: prctl with plain numbers.
    let answer = check(unsafe {
        libc::syscall(
            libc::SYS_prctl,
            PR_GET_SPECULATION_CTRL,
            kind.number(),
            0,
            0,
            0,
        )
    })?;
    Ok(u32::try_from(answer).unwrap_or(0))
}

/// Keeps the calling thread, and what it forks, from one of them, for good.
pub fn stop_speculation(kind: Speculation) -> io::Result<()> {
    // SAFETY: prctl with plain numbers.
    check(unsafe {
        libc::syscall(
            libc::SYS_prctl,
            PR_SET_SPECULATION_CTRL,
            kind.number(),
            PR_SPEC_FORCE_DISABLE,
            0,
            0,
        )
    })
    .map(drop)
}

/// The calling thread's core scheduling cookie: an error says that the kernel has none to give.
pub fn core_cookie() -> io::Result<u64> {
    let mut cookie = 0_u64;
    // SAFETY: the kernel writes eight bytes to a place that lives across the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_prctl,
            PR_SCHED_CORE,
            PR_SCHED_CORE_GET,
            0,
            0,
            &raw mut cookie,
        )
    })?;
    Ok(cookie)
}

/// Gives the calling process a cookie of its own: no process without it runs on another thread
/// of the same core at the same time. What it forks inherits it.
pub fn take_core_cookie() -> io::Result<()> {
    // SAFETY: prctl with plain numbers.
    check(unsafe {
        libc::syscall(
            libc::SYS_prctl,
            PR_SCHED_CORE,
            PR_SCHED_CORE_CREATE,
            0,
            PR_SCHED_CORE_SCOPE_THREAD_GROUP,
            0,
        )
    })
    .map(drop)
}
