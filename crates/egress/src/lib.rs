//! The egress proxy: the one way out of a cage that has a network.
//!
//! A separate, confined process holds the sockets that receive every connection of the cage. It answers
//! DNS queries for names that rules allow, with addresses that lead only to itself. It decides every
//! connection, resolves names at connection time, checks that TLS and HTTP are for the allowed name, and
//! carries and counts the bytes. It opens no file, starts nothing, and listens on no host address.
//!
//! It does not make the cage's network namespace; that is `layers` and the backend.
#![forbid(unsafe_code)]

mod buffers;
mod confine;
mod connection;
mod connections;
mod decide;
mod dns;
mod first_bytes;
#[doc(hidden)] // for the fuzzer in fuzz/
pub mod fuzz;
mod hello;
mod http;
mod http2;
mod intercepted;
mod limits;
mod names;
mod order;
mod policy_simulation;
mod proxy;
mod publish;
mod reader;
mod relay;
mod resolve;
mod route;
mod secret;
mod serve;
mod setup;
mod shared_address;
mod sockets;
mod tls;
mod traffic_counters;
mod traffic_log;
mod upstream;
mod wire;

pub use confine::{ProxyIds, confine_as_proxy};
pub use names::stands_for_a_name;
pub use order::{Order, SecretUses};
pub use policy_simulation::simulate;
pub use proxy::{Proxy, run_program};
pub use traffic_counters::OTHERS;
pub use wire::{FromProxy, give_failure, give_sockets};
