//! Secrets: the cage has placeholders, the door has the values and puts them on requests to
//! their hosts.
//!
//! Values are read when the door starts, before it is confined, and are in no other process of
//! Ironcage's. They go nowhere but into requests to their hosts: no message, record or error
//! holds one.

mod body;
mod dealing;
mod place;
mod scan;
mod vault;

pub(crate) use dealing::Dealing;
pub(crate) use place::unescaped;
pub(crate) use scan::{Scanner, Stopped};
#[cfg(test)]
pub(crate) use vault::Secret;
pub(crate) use vault::Vault;
