//! The seam between the runtime and what makes a cage.
//!
//! [`Backend`] says what a backend is and what it can; [`Birth`] and [`Cage`] are the
//! supervisor's side of a cage made of processes of this host. What those backends share
//! stands here too: the messages between supervisor and first process, and what that process
//! does after its backend has enclosed it. What differs (namespaces, file view, identity) is
//! the backends' own.
#![forbid(unsafe_code)]

mod backend;
mod cage;
pub mod conductor;
pub mod descendants;
mod error;
pub mod ground;
pub mod guardian;
mod helper;
pub mod ids;
pub mod init;
mod keeper;
mod order;
pub mod root;
mod scratch;
mod sibling;
mod spawner;
mod stillness;
mod terminal;
pub mod wire;

pub use backend::{Ability, Answer, Backend, Sought};
pub use cage::{Birth, Cage, StreamKind, Streams, end};
pub use error::StartError;
pub use helper::Helper;
pub use ironcage_layers::{COPY_ON_WRITE, MAP_OWNER, weakened};
pub use ironcage_sys::faults;
pub use keeper::{
    From as LeasedFrom, Grounds, Keeper, Kept, LeaseError, Order as LeaseOrder, Progress,
};
pub use order::Order as Execution;
pub use sibling::Sibling;
pub use spawner::Images;
pub use wire::{FromInit, Ready};
