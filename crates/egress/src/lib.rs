//! The network door: the one way out of a cage that has a network.
//!
//! A process of its own, confined, that holds the sockets to which every connection of the
//! cage is delivered. It answers questions for the names that rules know, with addresses that
//! lead nowhere but to itself; it decides every connection, looks names up when a connection
//! is made, holds TLS and HTTP to the name that was allowed, carries the bytes and counts
//! them. It opens no file, starts nothing, and listens on nothing of the host's.
//!
//! It does not make the cage's network namespace; that is `layers` and the backend.
#![forbid(unsafe_code)]

mod books;
mod buffers;
mod confine;
mod connection;
mod decide;
mod dns;
mod door;
mod foretold;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod hello;
mod http;
mod http2;
mod ledger;
mod limits;
mod names;
mod neighbours;
mod open;
mod opened;
mod order;
mod publish;
mod reader;
mod relay;
mod resolve;
mod secret;
mod serve;
mod sockets;
mod tls;
mod wire;

pub use confine::{DoorIds, confine_as_door};
pub use door::Door;
pub use foretold::foretold;
pub use order::{Order, SecretUses};
pub use wire::{FromDoor, give_failure, give_sockets};
