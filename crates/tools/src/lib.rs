//! Rules for tool calls: which tools an agent may call, with which arguments, however it calls them.
//!
//! One language for MCP, for `exec --intent` and for tool calls in model responses. A decision
//! ([`ToolPolicy::decide`]) is a function of the rules and of the call, without input or output.
//! Tools that no rule lists are denied. Calls are written by whoever the model listened to: text that two
//! programs could read differently is refused, and never guessed at.
#![forbid(unsafe_code)]

mod argument;
mod constraint;
mod decide;
mod flows;
mod host;
pub mod json;
mod look;
mod path;
mod pattern;
mod rules;
mod schema;
mod sql;

pub use constraint::{CallLease, Constraint, InvalidConstraint, Matcher, Numbers, Otherwise};
pub use decide::{Call, Decision, Verdict};
pub use flows::{Flow, Flows};
pub use look::{Finding, findings, is_plain_name, one_line, printable, skeleton};
pub use pattern::{InvalidPattern, Pattern};
pub use rules::{
    ArgumentRules, FirstUse, McpServer, Resources, RuleSet, ServerRules, ToolFlows, ToolPolicy,
    ToolRules,
};
pub use schema::{InvalidSchema, Schema};
pub use sql::SqlClass;
