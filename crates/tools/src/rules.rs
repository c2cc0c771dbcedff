//! The rules as a policy has them: layers that each must admit a call.

use crate::argument::Constraints;
use crate::pattern::Pattern;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Everything that a policy says about tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolPolicy {
    /// The rules of trusted sources, merged. It must admit a call by name.
    pub rules: ToolRules,
    /// Rules of untrusted sources. Each can only take away.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub narrowing: Vec<ToolRules>,
    /// The MCP servers, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub servers: BTreeMap<String, McpServer>,
}

impl ToolPolicy {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == ToolPolicy::default()
    }

    /// Whether it has rules for tools that are not of an MCP server.
    pub fn has_tools(&self) -> bool {
        let mut all = std::iter::once(&self.rules).chain(&self.narrowing);
        all.any(|rules| rules.tools.is_some())
    }
}

/// The rules of one layer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolRules {
    /// `[tools]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<RuleSet>,
    /// `[mcp.SERVER]`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub servers: BTreeMap<String, ServerRules>,
}

/// Which names are allowed, and with which arguments. `deny` wins over `ask`, and `ask` over
/// `allow`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleSet {
    /// `None` where the source does not say: a narrowing layer then leaves what is below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<Pattern>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ask: Vec<Pattern>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Pattern>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<ArgumentRules>,
}

/// The rules for the arguments of some tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArgumentRules {
    pub tool: Pattern,
    pub arguments: Constraints,
}

/// What a server may do besides answering tool calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct ServerRules {
    #[serde(flatten)]
    pub tools: RuleSet,
    /// Resources and prompts.
    #[serde(flatten)]
    pub resources: Resources,
    /// Where private data and untrusted content come from, and where data leaves.
    #[serde(flatten)]
    pub flows: ToolFlows,
    /// Whether the server may have the client's model answer something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<bool>,
    /// Whether the server may ask the user something, by the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elicitation: Option<bool>,
    /// Whether the server learns the client's roots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roots: Option<bool>,
    /// Largest result, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_result: Option<u64>,
}

/// Resources by URI, and prompts by name. `None` where the source does not say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Vec<Pattern>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<Vec<Pattern>>,
}

/// What flows through the tools of a server, by their names. Reading a resource counts as the tool `resources/read`, and a
/// prompt as `prompts/get`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolFlows {
    /// Tools whose results can have private data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub private: Vec<Pattern>,
    /// Tools whose results can have text of strangers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub untrusted: Vec<Pattern>,
    /// Tools through which data can leave.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sends: Vec<Pattern>,
}

/// What happens with a tool that the gateway sees for the first time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FirstUse {
    /// It is pinned as it is, unless something in its description is hidden.
    Pin,
    /// It waits for a person.
    #[default]
    Ask,
}

/// How a server is started. Only trusted sources say so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct McpServer {
    /// The program and its arguments, for a server on standard streams.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The address of a server on HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The bearer token of a server on HTTP, as `NAME` or `NAME=SOURCE`. Neither the gateway nor the agent holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The policy file of its cage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PathBuf>,
    /// The profile of its cage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The workspace of its cage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<PathBuf>,
    /// How its cage has the workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_mode: Option<String>,
    /// Variables of the gateway's environment that its cage gets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// What happens with tools that are not pinned.
    pub first_use: FirstUse,
}
