//! Fault injection: debug builds can be told to die at any step of a start or an apply.
//!
//! `IRONCAGE_FAULT=N` kills the process that reaches the Nth step, counted over one command
//! from zero: before and after every operation there is one. It can only end what goes on, never
//! widen it, and release builds do not have it.

#[cfg(debug_assertions)]
mod enabled {
    use std::cell::Cell;

    thread_local! {
        static LEFT: Cell<Option<u32>> = Cell::new(
            std::env::var("IRONCAGE_FAULT").ok().and_then(|step| step.parse().ok()),
        );
    }

    /// Dies here, if this is the step that was asked for.
    pub fn step() {
        LEFT.with(|left| match left.get() {
            None => {}
            Some(0) => crate::process::kill_self(),
            Some(steps) => left.set(Some(steps - 1)),
        });
    }
}

/// A point at which a start or an apply may be made to die.
#[cfg(debug_assertions)]
pub use enabled::step;

/// A point at which a start or an apply may be made to die; nothing in release builds.
#[cfg(not(debug_assertions))]
pub fn step() {}
