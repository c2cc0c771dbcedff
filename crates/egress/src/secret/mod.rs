//! Secrets: the cage has placeholders, the proxy has the values and puts them on requests to
//! their hosts.
//!
//! Values are read when the proxy starts, before it is confined, and are in no other process of
//! Ironcage's; what renews a login is in no process but that login's refresher. They go nowhere but
//! into requests to their hosts: no message, record or error holds one.

mod body;
mod decode;
mod error;
mod injector;
mod login;
mod minting;
mod negotiate;
mod place;
mod redact;
mod scan;
mod sigv4;
mod store;
mod token_file;
mod token_refresher;

pub(crate) use injector::{SecretInjector, ServerTrust};
pub(crate) use place::unescaped;
pub(crate) use redact::Redactor;
pub(crate) use scan::{Scanner, Stopped};
#[cfg(test)]
pub(crate) use sigv4::{Claim, Keys, Path as SignedPath, Signed, hash};
pub(crate) use store::{BodyRoom, SecretStore, read as read_source};
#[cfg(test)]
pub(crate) use store::{Secret, Signer};
