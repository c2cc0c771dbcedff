//! The containment suite: does a sandbox hold a program that wants out?
//!
//! A run makes a *stage* in namespaces of its own, on which canaries live: files with nonces,
//! processes that log signals, listeners, queues, a terminal, descriptors leaked on purpose.
//! Each probe first runs uncaged on that stage (the control: a probe that cannot succeed there
//! proves nothing), then inside the sandbox under test. An oracle outside decides, by what
//! happened to the canaries, not by what the probe returned.
//!
//! This crate does not build cages; it starts the sandbox under test as its users do.
#![forbid(unsafe_code)]

pub mod accepted;
mod adapter;
pub mod casf;
mod catalogue;
mod classes;
mod errno;
mod format;
pub mod hostile_guest;
mod inside;
mod matrix;
mod mustwork;
mod oracle;
mod params;
mod probe;
mod report;
pub mod role;
mod runner;
mod sampler;
mod stage;
mod switches;

pub use adapter::{Adapter, AdapterError};
pub use catalogue::{UnknownProbe, find, probes, select};
pub use matrix::{AblationOutcome, Alone, Matrix, MatrixLine};
pub use probe::{Class, Kind, Probe, Severity};
pub use report::{Finding, MustWork, Report, Row, Verdict};
pub use role::{Options, SuiteError, run_matrix, run_suite};
