//! The errors of this program, each with a hint.

use ironcage_files::ReadError;
use ironcage_tools::printable;
use rmcp::service::{ClientInitializeError, ServiceError};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a file cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ParseError {
    /// The path stands in the error around this one.
    #[error("{}", .0.reason())]
    Unreadable(ReadError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Toml(#[from] toml_edit::TomlError),
    #[error("expected `mcpServers` or `servers`")]
    NoJsonServers,
    #[error("expected `[mcp_servers]`")]
    NoTomlServers,
}

/// Why a server does not start. A server chooses a part of the text: it is escaped here, and is
/// not repeated as a source.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerStartError {
    #[error("{0}")]
    Spawn(#[source] io::Error),
    #[error("its streams are missing")]
    NoStreams,
    #[error("no answer after {} seconds", .0.as_secs())]
    Timeout(Duration),
    #[error("{}", printable(&.0.to_string()))]
    Handshake(Box<ClientInitializeError>),
    #[error("{}", ironcage_tools::one_line(&.0.to_string()))]
    Describe(Box<ServiceError>),
}

/// Why messages to and from a server on HTTP do not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error("{0}")]
    Client(#[source] reqwest::Error),
    #[error("a message is too long")]
    MessageTooLong,
    #[error("{0}")]
    Input(#[source] io::Error),
    #[error("{0}")]
    Message(#[source] serde_json::Error),
    #[error("{0}")]
    Send(Box<dyn std::error::Error + Send + Sync>),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum McpError {
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    #[error("cannot read the rules that ironcage handed over")]
    Rules(#[source] io::Error),
    #[error("cannot parse the rules that ironcage handed over")]
    RulesText(#[source] serde_json::Error),
    #[error("the policy has no server `{0}`")]
    NoServer(String),
    #[error("the policy has no MCP servers")]
    NoServers,
    #[error("the policy does not say how to start the server `{0}`")]
    NoCommand(String),
    #[error("cannot start the server `{server}`: {cause}")]
    Start {
        server: String,
        #[source]
        cause: ServerStartError,
    },
    #[error("the servers `{first}` and `{second}` both have the {what} `{name}`")]
    Collision {
        what: &'static str,
        name: String,
        first: String,
        second: String,
    },
    #[error("cannot write the audit log")]
    Audit(#[source] ironcage_audit::Error),
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("cannot write {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
    #[error("cannot parse {}: {cause}", path.display())]
    Parse {
        path: PathBuf,
        #[source]
        cause: ParseError,
    },
    #[error(transparent)]
    Calls(#[from] ironcage_client::ToolCallError),
    #[error("cannot get random bytes")]
    Random(#[source] io::Error),
    #[error("the server `{server}` has no tool `{tool}`")]
    NoTool { server: String, tool: String },
    #[error("cannot approve without a terminal")]
    NoTerminal,
    #[error("cannot listen on {0}")]
    Listen(std::net::SocketAddr, #[source] io::Error),
    #[error("the token in {} has fewer than 16 characters", .0.display())]
    ShortToken(PathBuf),
    #[error("cannot talk to the client: {0}")]
    Client(String),
    #[error("cannot connect to {url}: {cause}")]
    Relay {
        url: String,
        #[source]
        cause: RelayError,
    },
    #[error("the variable {0} is not set")]
    NoToken(String),
    #[error("cannot start a cage: {0}")]
    Cage(String),
    #[error("cannot stop the cage: {0}")]
    Stop(String),
    #[error("cannot parse what `ironcage diff --json` printed")]
    Diff(#[source] serde_json::Error),
    #[error("cannot print")]
    Print(#[source] io::Error),
}

impl McpError {
    pub(crate) fn hint(&self) -> Option<&'static str> {
        Some(match self {
            McpError::NoServer(_) | McpError::NoServers => {
                "add a section `[mcp.SERVER]` with a command to ironcage.toml (docs/guides/mcp-gateway.md), and trust it: `ironcage trust`"
            }
            McpError::NoCommand(_) => {
                "set `command` or `url` in its section, or put the command behind `--`"
            }
            McpError::Start { .. } => {
                "`ironcage why` explains what its cage was denied; [mcp.SERVER] `profile` and `policy` widen it"
            }
            McpError::Collision { .. } => "deny one of them in the policy",
            McpError::Calls(error) => return error.hint(),
            McpError::Stop(_) => "`ironcage ps` lists running cages, `ironcage stop` stops one",
            McpError::NoTerminal => "use --yes if you have read what the server says",
            McpError::ShortToken(_) => "use a random token: `openssl rand -hex 32`",
            McpError::Listen(..) => "use another port",
            _ => return None,
        })
    }
}
