//! The nouns of Ironcage as plain types.
//!
//! Everything here is data: IDs, layers and how far each one holds, limits, events and
//! outcomes. No behaviour beyond parsing and printing, no input or output, no dependency
//! but serde. Every other crate may use this one; this one uses none.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod base64;
mod enforcement;
mod event;
mod extent;
mod id;
mod in_full;
mod intent;
mod isolation;
mod key_use;
mod layer;
mod lease;
mod lease_end_cause;
mod lease_outcome;
mod limit;
mod live;
mod network;
mod outcome;
mod permission_request;
mod printable;
mod reason;
mod request;
mod secret;
mod span;
mod switch;
mod taint;
mod tool_call;
mod upstream;
mod wasm;

pub use enforcement::{Enforcement, LayerReport};
pub use event::{
    Denial, Event, EventKind, Grant, LeftOut, MessageVerdict, NetworkVerdict, Observation,
    Protocol, Traffic, Usage, Use,
};
pub use extent::{Extent, InvalidPortPattern, PortPattern};
pub use id::{CageId, InvalidCageId};
pub use in_full::in_full;
pub use intent::{
    Announced, Contact, DeniedCall, Intent, IntentRecord, MOST_INTENDED, Overheard, Trust,
};
pub use isolation::{Isolation, UnknownIsolation};
pub use key_use::{
    GPG_AGENT_SOCKET, GPG_HOME, GPG_KEYRING, KeyAgent, KeyPurpose, KeyUse, SSH_AGENT_SOCKET,
};
pub use layer::{Layer, UnknownLayer};
pub use lease::{
    ASK_PROGRAM, ASK_SOCKET, Approver, Holder, Holders, Lease, LeaseEnd, LeaseOrigin, Mark,
    READER_PROGRAM, Resource, Right, SHELL_PLACE, Scope, ShellMode, Term, UnknownShellMode,
    WordsMode,
};
pub use lease_end_cause::{LeaseEndCause, RecordedCause};
pub use lease_outcome::{GrantedLease, LeaseOutcome, LeaseSummary, RequestOutcome};
pub use limit::{LimitHit, LimitKind, bytes_as_written};
pub use live::{
    Flow, FlowRequest, FlowStep, InvalidPublish, LiveRule, NetworkLimits, Publish, RuleChange,
};
pub use network::{
    Destination, HOST_NAME, HostName, HostRule, InvalidHostName, InvalidHostRuleText, Ports,
    special,
};
pub use outcome::{Ending, Lent, Outcome};
pub use permission_request::{PermissionRequest, PermissionRequestEnd};
pub use printable::Printable;
pub use reason::{
    Datum, LeaseReason, NetworkReason, Reason, ReasonEntry, SigningReason, StartCode,
    SupervisorReason, ToolReason, find_reason, reason_tables,
};
pub use request::{
    AmbiguousPath, HttpRule, InvalidHttpRuleText, InvalidPathPattern, PathPattern, RequestPath,
};
pub use secret::{
    AwsRule, LoginFormat, LoginRule, SecretPlace, SecretRule, SecretSource, TokenServer,
};
pub use span::Span;
pub use switch::{Switch, UnknownSwitch};
pub use taint::Taint;
pub use tool_call::{ToolCall, ToolVerdict};
pub use upstream::{
    HTTP_PROXY, HTTPS_PROXY, InvalidProxyUrl, NO_PROXY, ProxyHost, ProxyServer, ProxyUrl,
};
pub use wasm::{WASM_PROGRAM, WASM_SETTINGS, WasmSettings};
