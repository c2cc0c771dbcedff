//! What ships in `policies/` besides profiles, as typed data: lists of files, system calls,
//! capabilities, toolchains, caches, hosts, credentials, logins, commands and explanations.
//!
//! Each entry carries its reason; the build script checks them. What an operator said is not
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
    Class, Executed, Fixed, GitKey, Listed, Masked, credentials, executed, git, guarded, is_like,
    protected, sensitive, system,
};
