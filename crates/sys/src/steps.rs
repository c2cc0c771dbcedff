//! Timestamps that a start takes of itself, for `ironcage bench start --steps`.
//!
//! Off unless the environment names a descriptor: then each mark is one write of its name and the
//! time. Without it a mark is a look at a number.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// The variable that names the descriptor.
pub const VARIABLE: &str = "IRONCAGE_STEPS";
/// Begins the names of marks that the first process of a cage makes.
pub const OF_INIT: &str = "PID 1: ";

static DESCRIPTOR: AtomicI32 = AtomicI32::new(NONE);
const NONE: RawFd = -1;

/// Looks whether somebody wants them.
pub fn begin() {
    let named = std::env::var(VARIABLE).ok();
    let number = named.and_then(|text| text.parse().ok());
    if let Some(number) = number.filter(|number| *number > libc::STDERR_FILENO) {
        DESCRIPTOR.store(number, Ordering::Relaxed);
    }
}

/// The descriptor, which the first process of a cage keeps until it executes the command.
pub(crate) fn descriptor() -> Option<RawFd> {
    let number = DESCRIPTOR.load(Ordering::Relaxed);
    (number != NONE).then_some(number)
}

/// Says that a step is done.
pub fn mark(name: &str) {
    let Some(number) = descriptor() else {
        return;
    };
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanoseconds = now.tv_sec * 1_000_000_000 + now.tv_nsec;
    let line = format!("{nanoseconds} {name}\n");
    // SAFETY: whoever started this process keeps it open for this; where it is closed all the
    // same, the kernel says so.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    // A measurement that is not taken is missing there.
    let _ = rustix::io::write(descriptor, line.as_bytes());
}
