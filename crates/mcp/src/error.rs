//! The errors of this program, each with a hint.

use std::io;
use std::path::PathBuf;

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
    Start { server: String, cause: String },
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
    Parse { path: PathBuf, cause: String },
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
    Relay { url: String, cause: String },
    #[error("the variable {0} is not set")]
    NoToken(String),
    #[error("cannot start a cage: {0}")]
    Cage(String),
    #[error("cannot stop the cage: {0}")]
    Stop(String),
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
