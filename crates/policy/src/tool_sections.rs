//! The shape of `[tools]` and `[mcp.SERVER]`. `fragment::tools` checks the values.

use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::Spanned;

/// Constraints by argument, by tool.
pub type ArgumentsSection = BTreeMap<Spanned<String>, BTreeMap<Spanned<String>, ConstraintSection>>;

/// Rules for tool calls, however they are made. `deny` wins over `ask`, and `ask` over `allow`. What is not listed is denied. Names can contain `*`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ToolsSection {
    /// Tools that may be called. Tools of MCP servers are listed under `[mcp.SERVER]`.
    #[schemars(with = "Vec<String>")]
    pub allow: Option<Vec<Spanned<String>>>,
    /// Tools whose calls need approval; `mcp__SERVER__TOOL` names a tool of a server.
    #[schemars(with = "Vec<String>")]
    pub ask: Vec<Spanned<String>>,
    /// Tools that are never called.
    #[schemars(with = "Vec<String>")]
    pub deny: Vec<Spanned<String>>,
    /// Constraints on arguments, by tool and argument. A tool that is listed here takes only the arguments that are listed; `"*"` stands for all others.
    #[schemars(with = "BTreeMap<String, BTreeMap<String, ConstraintSection>>")]
    pub arguments: ArgumentsSection,
}

/// An MCP server behind `ironcage mcp gateway`, and what may be called of it.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct McpSection {
    /// The program and its arguments, for a server on standard streams.
    #[schemars(with = "Vec<String>")]
    pub command: Vec<Spanned<String>>,
    /// The URL of a server on HTTP. A relay in a cage of its own connects to it, and to nothing else.
    #[schemars(with = "Option<String>")]
    pub url: Option<Spanned<String>>,
    /// The bearer token of a server on HTTP: `"NAME"` or `"NAME=SOURCE"`, as in `run --secret`. The egress proxy injects it; neither the agent nor the gateway holds it.
    #[schemars(with = "Option<String>")]
    pub token: Option<Spanned<String>>,
    /// The policy file of the server's cage.
    #[schemars(with = "Option<String>")]
    pub policy: Option<Spanned<String>>,
    /// The profile of the server's cage: `"shell"` if neither this nor `policy` is set.
    #[schemars(with = "Option<String>")]
    pub profile: Option<Spanned<String>>,
    /// The workspace of the server's cage: the gateway's, if this is not set.
    #[schemars(with = "Option<String>")]
    pub workspace: Option<Spanned<String>>,
    /// How the server's cage has the workspace: `"read-only"`, if this is not set.
    #[schemars(with = "Option<crate::WorkspaceMode>")]
    pub workspace_mode: Option<Spanned<String>>,
    /// Variables of the gateway's environment that the server's cage gets.
    #[schemars(with = "Vec<String>")]
    pub env: Vec<Spanned<String>>,
    /// Tools that are not in `mcp.lock`: `ask` keeps them back until you approve them, `pin` records them as they are.
    #[schemars(with = "Option<crate::schema::FirstUseName>")]
    pub first_use: Option<Spanned<String>>,
    /// Tools that may be called.
    #[schemars(with = "Vec<String>")]
    pub allow: Option<Vec<Spanned<String>>>,
    /// Tools whose calls need approval.
    #[schemars(with = "Vec<String>")]
    pub ask: Vec<Spanned<String>>,
    /// Tools that are never called.
    #[schemars(with = "Vec<String>")]
    pub deny: Vec<Spanned<String>>,
    /// Resources that may be read, by URI.
    #[schemars(with = "Vec<String>")]
    pub resources: Option<Vec<Spanned<String>>>,
    /// Prompts that may be fetched, by name.
    #[schemars(with = "Vec<String>")]
    pub prompts: Option<Vec<Spanned<String>>>,
    /// Tools whose results can have private data.
    #[schemars(with = "Vec<String>")]
    pub private: Vec<Spanned<String>>,
    /// Tools whose results can have text of strangers.
    #[schemars(with = "Vec<String>")]
    pub untrusted: Vec<Spanned<String>>,
    /// Tools through which data can leave. Their calls need approval once private data and text of strangers came through tools.
    #[schemars(with = "Vec<String>")]
    pub sends: Vec<Spanned<String>>,
    /// Whether the server may have the client's model answer something.
    #[schemars(with = "Option<bool>")]
    pub sampling: Option<Spanned<bool>>,
    /// Whether the server may ask you something, through the client.
    #[schemars(with = "Option<bool>")]
    pub elicitation: Option<Spanned<bool>>,
    /// Whether the server learns the client's roots.
    #[schemars(with = "Option<bool>")]
    pub roots: Option<Spanned<bool>>,
    /// The largest result: `"1M"`, if this is not set.
    #[schemars(with = "Option<String>")]
    pub largest_result: Option<Spanned<String>>,
    /// Constraints on arguments, by tool and argument. A tool that is listed here takes only the arguments that are listed; `"*"` stands for all others.
    #[schemars(with = "BTreeMap<String, BTreeMap<String, ConstraintSection>>")]
    pub arguments: ArgumentsSection,
}

/// What an argument must be. Every key that is given must hold; for a list, of each element.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ConstraintSection {
    /// What the server's cage gets of what the argument names, from the ceiling of its policy and for the duration of the call: `read` and `write` for a path, `connect` for a host.
    #[schemars(with = "Option<crate::schema::CallLeaseName>")]
    pub lease: Option<Spanned<String>>,
    /// Whether a call without the argument is refused.
    #[schemars(with = "Option<bool>")]
    pub required: Option<Spanned<bool>>,
    /// Paths at or below these directories. `..` is refused.
    #[schemars(with = "Vec<String>")]
    pub path_below: Option<Vec<Spanned<String>>>,
    /// URLs and names of these hosts, written as in `network.allow`.
    #[schemars(with = "Vec<String>")]
    pub host_in: Option<Vec<Spanned<String>>>,
    /// These values.
    #[schemars(with = "Vec<serde_json::Value>")]
    pub one_of: Option<Vec<toml::Value>>,
    /// Numbers from the first to the second.
    #[schemars(with = "Option<[f64; 2]>")]
    pub range: Option<Spanned<[f64; 2]>>,
    /// At most this many characters or elements.
    #[schemars(with = "Option<u64>")]
    pub longest: Option<Spanned<u64>>,
    /// Text that this regular expression matches as a whole.
    #[schemars(with = "Option<String>")]
    pub matches: Option<Spanned<String>>,
    /// SQL statements of these classes: `read`, `insert`, `update`, `delete`, `schema`.
    #[schemars(with = "Vec<crate::schema::SqlClassName>")]
    pub sql: Option<Vec<Spanned<String>>>,
    /// Values that this JSON Schema describes. A keyword that is not supported is an error.
    #[schemars(with = "Option<serde_json::Value>")]
    pub schema: Option<Spanned<toml::Value>>,
    /// What happens to a call that does not meet this: `deny` refuses it, `ask` needs approval.
    #[schemars(with = "Option<crate::schema::OtherwiseName>")]
    pub otherwise: Option<Spanned<String>>,
}
