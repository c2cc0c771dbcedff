//! The namespace backend: a cage from kernel namespaces.
//!
//! [`start`] forks PID 1 of a cage, which builds the cage around itself and then runs the
//! command as its child. The caller is the supervisor: it keeps the control socket, the
//! outer ends of the streams and the listener of the system call filter, and the cage dies
//! with it.
#![forbid(unsafe_code)]

mod cage;
mod faults;
mod ids;
mod init;
mod network;
mod terminal;
mod wire;

pub use cage::{Birth, Cage, StreamKind, Streams, start};
pub use error::StartError;
pub use wire::{FromInit, Ready, receive as receive_from_init};

mod error;
