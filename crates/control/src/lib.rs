//! The control protocol between the command line and a cage's supervisor.
//!
//! Every cage has a supervisor, and every supervisor listens on a socket in the user's runtime
//! directory ([`RuntimeDir`]). A peer is examined first ([`examine`]); then one packet is
//! one message: a [`Request`] to the supervisor, a [`Reply`] from it, framed by [`frame`] with a
//! version and a bound on its length, with descriptors beside it where a message has some.
//!
//! To add something that a running cage can be asked: a variant of [`Request`] and of [`Reply`]
//! here, and an arm in `crates/supervisor/src/control/requests.rs`.
//!
//! This crate has the messages, not their effects: it neither starts nor ends anything.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod cage_request;
mod channel;
pub mod frame;
mod message;
mod network;
mod peer;
mod place;
mod typed;

pub use cage_request::{
    Answered, CageMessage, CageRequest, CageRequestError, CageRequestKind, CageRequestLine,
    ChildLine, LONGEST_CAGE_REQUEST, LONGEST_MESSAGE, MOST_NAMED, ShellLine, ShellRequest,
};
pub use channel::{Channel, Packet, pair};
pub use message::{
    ApproveRequest, Bytes, ChannelDescription, ChannelRequest, ChannelRole, DeniedLease,
    Description, ExecDescription, ExecRequest, ExecStreams, GrantRequest, LeaseDescription,
    LeaseState, LeaseTarget, PermissionRequestDescription, Reply, Request, ScopeRequest,
    ShellIntent, Size, State, Stats,
};
pub use network::{NetworkRequest, NetworkRules, listen_on_loopback};
pub use peer::{Examination, PeerDenial, examine};
pub use place::{
    CageFile, Dialled, Entry, InvalidName, Listener, NameClaim, PlaceError, RuntimeDir, check_name,
};
pub use typed::{Mismatch, Schema, SchemaError};
