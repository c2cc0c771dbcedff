//! The control protocol between the command line and a cage's supervisor.
//!
//! Every cage has a supervisor, and every supervisor listens on a socket in the user's runtime
//! directory ([`RuntimeDir`]). Who connects is examined first ([`examine`]); then one packet is
//! one message: a [`Request`] to the supervisor, a [`Reply`] from it, framed by [`frame`] with a
//! version and a bound on its length, with descriptors beside it where a message has some.
//!
//! To add something that a running cage can be asked: a variant of [`Request`] and of [`Reply`]
//! here, and an arm in `crates/runtime/src/control/requests.rs`.
//!
//! This room knows words, not what they do: it neither starts nor ends anything.
#![forbid(unsafe_code)]

mod channel;
pub mod frame;
mod inquiry;
mod message;
mod network;
mod peer;
mod place;
mod typed;

pub use channel::{Channel, Packet, pair};
pub use inquiry::{
    ASK_PROGRAM, ASK_SOCKET, Answered, ChildLine, InquiredThing, Inquiry, InquiryError,
    InquiryLine, LONGEST_INQUIRY, LONGEST_MESSAGE, MOST_NAMED, Said, ShellInquiry, ShellLine,
};
pub use message::{
    ApproveRequest, Bytes, ChannelDescription, ChannelRequest, ChannelRole, Description,
    ExecDescription, ExecRequest, ExecStreams, GrantRequest, LeaseDescription, LeaseState,
    NotGiven, QuestionDescription, Reply, Request, ScopeRequest, ShellIntent, Size, State, Stats,
    Wanted,
};
pub use network::{NetworkRequest, NetworkRules};
pub use peer::{Examination, PeerRefusal, examine};
pub use place::{
    Dialled, Entry, InvalidName, Listener, NameClaim, PlaceError, RuntimeDir, check_name,
};
pub use typed::{Mismatch, Schema, SchemaError};
