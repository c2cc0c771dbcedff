//! Fault injection: debug builds can be told to die at any step of a start, an apply or a lease, or when
//! an image is added or removed.
//!
//! `IRONCAGE_FAULT=N` kills the process that reaches the Nth step of a start, an apply or a change to the
//! image store, counted
//! over one command from zero: before and after every operation there is one.
//! `IRONCAGE_FAULT=lease:N` does the same for the giving and taking back of leases. It can only
//! end what goes on, never widen it, and release builds do not have it. `IRONCAGE_FAULT=proxy:N`
//! is about the orders that the egress proxy carries out.
//!
//! `IRONCAGE_LACKING=NAME` makes a debug build find that the host lacks something, so that what is
//! done without it can be tested on a host that has it.
//!
//! With `IRONCAGE_PREPARED` a debug build prepares the cage of a run and adopts it, so that every
//! test of a start can be one of an adopted cage. The cage is the same, or the start fails.

#[cfg(debug_assertions)]
mod enabled {
    use std::cell::Cell;

    thread_local! {
        static LEFT: Cell<Option<u32>> = Cell::new(wanted(""));
        static LEFT_OF_LEASES: Cell<Option<u32>> = Cell::new(wanted("lease:"));
        static LEFT_OF_ORDERS: Cell<Option<u32>> = Cell::new(wanted("proxy:"));
    }

    fn wanted(series: &str) -> Option<u32> {
        let text = std::env::var("IRONCAGE_FAULT").ok()?;
        text.strip_prefix(series)?.parse().ok()
    }

    fn count(left: &Cell<Option<u32>>) {
        match left.get() {
            None => {}
            Some(0) => crate::process::kill_self(),
            Some(steps) => left.set(Some(steps - 1)),
        }
    }

    /// Dies here, if this is the step that was asked for.
    pub fn step() {
        LEFT.with(count);
    }

    /// Whether the host is to be taken as one that lacks this.
    pub fn lacks(what: &str) -> bool {
        std::env::var_os("IRONCAGE_LACKING").is_some_and(|lacking| lacking == what)
    }

    /// Whether a run prepares its cage and then adopts it.
    pub fn adopts() -> bool {
        std::env::var_os("IRONCAGE_PREPARED").is_some()
    }

    /// Reads what was asked for, before the environment is wiped.
    pub fn prepare_proxy() {
        LEFT_OF_ORDERS.with(|_| ());
    }

    /// Dies here, if this is the step of the egress proxy's orders that was asked for.
    pub fn proxy_step() {
        LEFT_OF_ORDERS.with(count);
    }

    /// Dies here, if this is the step of a lease that was asked for.
    pub fn lease_step() {
        LEFT_OF_LEASES.with(count);
    }
}

/// A point at which a start or an apply may be made to die.
#[cfg(debug_assertions)]
pub use enabled::{adopts, lacks, lease_step, prepare_proxy, proxy_step, step};

/// A point at which a start or an apply may be made to die; nothing in release builds.
#[cfg(not(debug_assertions))]
pub fn step() {}

/// Whether the host is to be taken as one that lacks this; never in release builds.
#[cfg(not(debug_assertions))]
pub const fn lacks(_: &str) -> bool {
    false
}

/// Whether a run prepares its cage and then adopts it; never in release builds.
#[cfg(not(debug_assertions))]
pub const fn adopts() -> bool {
    false
}

/// Reads what was asked for; nothing in release builds.
#[cfg(not(debug_assertions))]
pub fn prepare_proxy() {}

/// A point at which the egress proxy may be made to die; nothing in release builds.
#[cfg(not(debug_assertions))]
pub fn proxy_step() {}

/// A point at which the giving or taking back of a lease may be made to die; nothing in release
/// builds.
#[cfg(not(debug_assertions))]
pub fn lease_step() {}
