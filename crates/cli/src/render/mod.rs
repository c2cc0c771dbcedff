//! Text for what the audit log, the supervisor and the plan hold as data.

pub(crate) mod children;
pub(crate) mod denial;
pub(crate) mod denied_calls;
pub(crate) mod event;
pub(crate) mod lease;
pub(crate) mod path;
pub(crate) mod plan;
pub(crate) mod remedy;
pub(crate) mod request;
pub(crate) mod tool_call;
pub(crate) mod traffic;
