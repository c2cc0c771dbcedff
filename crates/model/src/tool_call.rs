//! A call that the MCP gateway decided about.

use crate::{DeniedCall, Reason};
use serde::{Deserialize, Serialize};

/// What became of a request to an MCP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToolVerdict {
    /// The server answered.
    Called,
    /// The gateway refused it.
    Denied,
    /// It waits for a person.
    Asked,
    /// The server did not answer, or its answer was refused.
    Failed,
}

/// A request to an MCP server, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The server.
    pub server: String,
    /// The method: `tools/call`, `resources/read`, `sampling/createMessage` and so on.
    pub method: String,
    /// The tool, the resource or the prompt.
    pub name: String,
    /// SHA-256 over the arguments.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub arguments: String,
    /// What became of it.
    pub verdict: ToolVerdict,
    /// Why, where it was not simply carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<Box<Reason>>,
    /// The rule that decided.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// The pin of the tool.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pin: String,
    /// What was leased to the cage of the server for the duration of the call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<String>,
    /// How long the server took.
    #[serde(default)]
    pub milliseconds: u64,
    /// Bytes of the result.
    #[serde(default)]
    pub bytes: u64,
}

impl ToolCall {
    /// A call without a server that the rules for tools do not allow.
    pub fn denied(method: &str, tool: String, denied: DeniedCall) -> Self {
        ToolCall {
            server: String::new(),
            method: method.to_owned(),
            name: tool,
            arguments: String::new(),
            verdict: ToolVerdict::Denied,
            because: Some(Box::new(denied.reason)),
            rule: denied.rule,
            pin: String::new(),
            leases: Vec::new(),
            milliseconds: 0,
            bytes: 0,
        }
    }
}
