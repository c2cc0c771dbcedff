//! The daemon in a cage of the service, and the protocol that it speaks.
//!
//! The daemon is the cage's command. It runs as the agent, under every layer of the cage, and does
//! what the service asks for: processes, terminals, files. So nothing outside follows a path that the
//! agent chose, and processes with their output outlive the service. The agent can stop or replace
//! the daemon: that is its own cage, and the service takes every answer for hostile.
//!
//! The service reaches it by a relay, an `exec` in the same cage, whose streams are connected to
//! the daemon's socket.
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    reason = "the fields are named in the documentation of the HTTP API"
)]

mod archive;
mod attributes;
mod connection;
mod files;
mod forward;
mod output;
mod processes;
pub mod protocol;
mod server;
mod watch;

pub use server::{relay, serve};
