//! The arguments of `ironcage mcp`. `ironcage-mcp` executes them.

#![allow(
    missing_docs,
    reason = "the comments are help texts, and these have none of their own"
)]

use clap::{Subcommand, ValueHint};
use std::path::PathBuf;

/// Hold the tool calls of agents to a policy, by MCP
///
/// Without a subcommand, Ironcage is itself an MCP server on standard streams, or on HTTP with --listen: its tools
/// run commands and read and write files in a cage of the current workspace. `claude mcp add ironcage --
/// ironcage mcp` and `codex mcp add ironcage -- ironcage mcp` add it to an agent.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Action>,
    /// Profile of the cage
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Policy file to use instead of ironcage.toml
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub policy: Option<PathBuf>,
    #[command(flatten)]
    pub listen: Listen,
}

/// Where HTTP clients are answered.
#[derive(Debug, clap::Args)]
pub struct Listen {
    /// Listen on this address for HTTP, such as 127.0.0.1:8931, instead of standard streams
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<std::net::SocketAddr>,
    /// File with the bearer token that HTTP clients send [default: a new token, printed]
    #[arg(long, value_name = "FILE", requires = "listen", value_hint = ValueHint::FilePath)]
    pub token_file: Option<PathBuf>,
    /// Web origin that may connect (can be repeated) [default: none]
    #[arg(long, value_name = "ORIGIN", requires = "listen")]
    pub allow_origin: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// Run the MCP servers of the policy behind one endpoint
    ///
    /// Starts each server of `[mcp.SERVER]` in a cage of its own and answers MCP clients on standard
    /// streams, or on HTTP with --listen. Only what the policy allows is in lists and can be called;
    /// tools that are new or changed wait for `ironcage mcp approve`. Every call is in the audit log.
    Gateway(Gateway),
    /// Review what servers say of themselves, and approve it
    ///
    /// Starts the server in its cage, shows every tool that is new or changed, and records it in
    /// mcp.lock once you confirm. With a number, approves one call that waits (`ironcage mcp pins`
    /// lists them).
    Approve(Approve),
    /// Deny a call that waits for approval
    Deny {
        /// Number of the call
        call: u64,
        /// Policy file to use instead of ironcage.toml
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        policy: Option<PathBuf>,
    },
    /// List approved tools, and calls that wait for approval
    Pins {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Policy file to use instead of ironcage.toml
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        policy: Option<PathBuf>,
    },
    /// Rewrite a client's configuration to use the gateway
    ///
    /// Knows .mcp.json and the files of Claude, Cursor and VS Code (JSON), and Codex's config.toml. The
    /// original commands stay in the file, behind `--`. Prints the `[mcp.SERVER]` sections that the
    /// policy needs.
    Wrap {
        /// Configuration file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Print the result instead of writing it
        #[arg(long)]
        dry_run: bool,
    },
    /// Undo `ironcage mcp wrap`
    Unwrap {
        /// Configuration file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Print the result instead of writing it
        #[arg(long)]
        dry_run: bool,
    },
    /// The client of a server on HTTP, in its own cage
    #[command(name = "__relay", hide = true)]
    Relay {
        /// URL of the server
        url: String,
        /// Variable with the bearer token
        #[arg(long)]
        token: Option<String>,
    },
}

#[derive(Debug, clap::Args)]
pub struct Gateway {
    /// Serve one server only, under the names that it gives its tools [default: all, each tool as
    /// SERVER__TOOL]
    #[arg(long, value_name = "NAME")]
    pub server: Option<String>,
    #[command(flatten)]
    pub listen: Listen,
    /// Seconds to wait for approval of a call
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub wait: u64,
    /// Pass this variable to the cage of --server (can be repeated)
    #[arg(long, short, value_name = "NAME", requires = "server")]
    pub env: Vec<String>,
    /// Policy file to use instead of ironcage.toml
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub policy: Option<PathBuf>,
    /// Command of --server, if the policy does not name one
    #[arg(last = true, value_name = "COMMAND", requires = "server")]
    pub command: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub struct Approve {
    /// Server, or number of a call that waits
    #[arg(value_name = "SERVER|CALL")]
    pub what: String,
    /// Approve only these tools (can be repeated) [default: all of the server]
    #[arg(long, value_name = "NAME")]
    pub tool: Vec<String>,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
    /// Pass this variable to the server's cage (can be repeated)
    #[arg(long, short, value_name = "NAME")]
    pub env: Vec<String>,
    /// Policy file to use instead of ironcage.toml
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub policy: Option<PathBuf>,
    /// Command of the server, if the policy does not name one
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

impl Args {
    /// The policy file that the command line names.
    pub fn policy_file(&self) -> Option<&PathBuf> {
        match &self.command {
            Some(Action::Gateway(gateway)) => gateway.policy.as_ref(),
            Some(Action::Approve(approve)) => approve.policy.as_ref(),
            Some(Action::Pins { policy, .. } | Action::Deny { policy, .. }) => policy.as_ref(),
            None => self.policy.as_ref(),
            _ => None,
        }
    }

    /// Whether the command line needs the policy.
    pub fn needs_policy(&self) -> bool {
        matches!(
            self.command,
            Some(
                Action::Gateway(_) | Action::Approve(_) | Action::Pins { .. } | Action::Deny { .. }
            )
        )
    }
}
