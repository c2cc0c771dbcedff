//! The only unsafe code of Ironcage: system calls as safe functions.
//!
//! What rustix offers is used directly by other rooms; this one holds what it lacks.
//! One file per subject. Every function here is safe to call with any argument: it may
//! fail, it may not corrupt the process. One unsafe operation per block, each with the
//! reason why it holds.

pub use rustix;
