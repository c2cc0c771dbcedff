//! The interface between the supervisor and the code that builds a cage.
//!
//! [`Backend`] is the trait; [`StartingCage`] and [`Cage`] are the supervisor's side of a cage made of
//! processes on this host. The crate also has the code that those backends share: the messages between
//! supervisor and PID 1, and what PID 1 does after its backend has enclosed it. Each backend has the
//! rest: namespaces, file view, identity.
#![forbid(unsafe_code)]

mod backend;
pub mod boot;
mod cage;
pub mod container_monitor;
pub mod descendants;
mod error;
mod guest;
mod helper;
pub mod host_resources;
pub mod ids;
pub mod init;
mod mount_helper;
mod order;
pub mod prepared;
pub mod root;
mod scratch;
mod sibling;
mod spawner;
mod stop_guard;
pub mod subreaper;
mod terminal;
pub mod wire;

pub use backend::{Ability, Backend, Sought, Support};
pub use cage::{Cage, StartingCage, StreamKind, Streams, end};
pub use error::StartError;
pub use helper::Helper;
pub use ironcage_layers::ablation;
pub use ironcage_sys::faults;
pub use mount_helper::{
    LeaseError, LeaseOrder, LeasedFrom, MountContext, MountHelper, MountHelperReply, Progress,
};
pub use order::Order as Execution;
pub use prepared::PreparedCage;
pub use sibling::Sibling;
pub use spawner::Images;
pub use wire::{FromInit, Ready};
