//! Secrets: the cage has placeholders, the door has the values and puts them on requests to
//! their hosts.
//!
//! Values are read when the door starts, before it is confined, and are in no other process of
//! Ironcage's; what renews a login is in no process but that login's keeper. They go nowhere but
//! into requests to their hosts: no message, record or error holds one.

mod body;
mod dealing;
mod keeper;
mod login;
mod place;
mod scan;
mod sigv4;
mod token_file;
mod vault;

pub(crate) use dealing::Dealing;
pub(crate) use place::unescaped;
pub(crate) use scan::{Scanner, Stopped};
pub(crate) use sigv4::Signed;
#[cfg(test)]
pub(crate) use vault::Secret;
pub(crate) use vault::{Room, Vault};
