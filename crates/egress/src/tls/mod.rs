//! TLS that is opened: the cage's own certificate authority towards the inside, the host's
//! authorities towards the outside.
//!
//! The authority is made in the proxy, for one cage, and its key never leaves the door. Servers
//! are always verified; there is no way to say otherwise.

mod authority;
mod replayed;

pub(crate) use authority::{Spoken, TlsInterceptor, client, prove};
pub(crate) use replayed::Replayed;
