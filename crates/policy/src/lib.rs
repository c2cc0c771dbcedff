//! Policy text to `PolicyFile` to `Policy`.
//!
//! Parses, inherits profiles, merges layers of files and flags, lints, decides trust. It
//! does not look at what the host can enforce (that is `host`) and makes no mounts or
//! filters of it (that is `plan`).
#![forbid(unsafe_code)]

pub mod capabilities;
pub mod commands;
mod listed;
mod origin;
mod policy;
mod quantity;
pub mod syscalls;

pub use listed::{Fixed, Listed, Masked, credentials, protected, system};
pub use origin::Origin;
pub use policy::{Amount, Cpus, EnvRule, Limits, Policy, Sourced, WorkspaceMode};
pub use quantity::{InvalidQuantity, TimeLimit};
