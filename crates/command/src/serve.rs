//! The arguments of `ironcage serve`. `ironcage-serve` executes them.

#![allow(
    missing_docs,
    reason = "the comments are help texts, and these have none of their own"
)]

use clap::Subcommand;
use std::path::PathBuf;

/// Serve cages by HTTP
///
/// Runs the native API (/v1) and E2B's API on one port, for agents that other programs start. Cages
/// have supervisors of their own: they outlive the service, which finds them again. Every request
/// needs a key; the first start makes one for you, which `ironcage serve env` prints.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    pub action: Option<Action>,
    #[command(flatten)]
    pub options: Options,
}

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where to listen: a loopback ADDRESS:PORT, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7421")]
    pub listen: String,
    /// Running cages that one project may have
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    pub max_cages: usize,
    /// Let callers open the whole network; without it they can only allow hosts by name
    #[arg(long)]
    pub allow_internet: bool,
    /// Connections at once
    #[arg(long, value_name = "NUMBER", default_value_t = 4096)]
    pub max_connections: usize,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// Create, list and revoke API keys
    Key {
        #[command(subcommand)]
        action: KeyAction,
    },
    /// Print shell commands that set the variables of clients
    ///
    /// For use as `eval "$(ironcage serve env)"`.
    Env {
        /// Print the variables of E2B's SDKs
        #[arg(long)]
        e2b: bool,
        /// Where the service listens
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7421")]
        listen: String,
    },
    /// Print the OpenAPI description of the native API
    Openapi,
}

#[derive(Debug, Subcommand)]
pub enum KeyAction {
    /// Create a key and print it
    ///
    /// The service keeps only a hash of it: it is printed once.
    Create {
        /// Name of the key, for `key list`
        name: String,
        /// Project whose cages it sees
        #[arg(long, default_value = "default")]
        project: String,
        /// Scope of the key: read, cages, permissions, host or admin (can be repeated) [default:
        /// cages]
        #[arg(long = "scope", value_name = "SCOPE", value_parser = ["read", "cages", "permissions", "host", "admin"], hide_possible_values = true)]
        scopes: Vec<String>,
    },
    /// List keys
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key
    Revoke {
        /// Its ID
        id: String,
    },
}

/// Where `ironcage` tells the program to find its files.
#[derive(Debug, clap::Args)]
pub struct Places {
    /// Where the service keeps its files
    #[arg(long, hide = true)]
    pub data: PathBuf,
    /// The program that starts cages
    #[arg(long, hide = true)]
    pub ironcage: PathBuf,
}
