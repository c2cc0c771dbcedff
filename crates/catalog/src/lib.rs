//! The data of `policies/` besides profiles, typed: lists of files, system calls,
//! capabilities, toolchains, caches, hosts, credentials, logins, commands and explanations.
//!
//! Each entry carries its reason; the build script checks them. The operator's policy is not
//! known here (that is `policy`), nor what a host has (`host`).
#![forbid(unsafe_code)]

pub mod bundles;
pub mod caches;
pub mod capabilities;
pub mod commands;
mod explain;
pub mod keys;
mod listed;
pub mod logins;
pub mod syscalls;
pub mod toolchains;

pub use explain::{Explanation, Explanations, NotExplained};
pub use listed::{
    Class, Executed, Fixed, GitKey, Listed, Masked, Sensitive, as_compared, credentials, executed,
    git, guarded, is_like, protected, sensitive, system,
};
