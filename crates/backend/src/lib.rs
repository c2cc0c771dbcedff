//! The seam between the runtime and what makes a cage.
//!
//! [`Backend`] says what a backend is and what it can; [`StartingCage`] and [`Cage`] are the
//! supervisor's side of a cage made of processes of this host. The code that those backends share
//! stands here too: the messages between supervisor and first process, and what that process
//! does after its backend has enclosed it. The differences (namespaces, file view, identity) are
//! the backends' own.
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
