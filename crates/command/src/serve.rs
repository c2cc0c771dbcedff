//! The arguments of `ironcage serve`. `ironcage-serve` executes them.

#![allow(
    missing_docs,
    reason = "the comments are help texts, and these have none of their own"
)]

use crate::error::InvalidValue;
use clap::Subcommand;
use ironcage_policy::Size;
use std::path::PathBuf;
use std::str::FromStr;

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
    /// Where to listen: ADDRESS:PORT, or unix:PATH
    ///
    /// An address that other machines reach needs --tls-cert and --tls-key. A socket that systemd
    /// passes (LISTEN_FDS) is used in its place.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7421")]
    pub listen: String,
    /// Serve TLS with the certificate chain in FILE (PEM)
    ///
    /// Both files are loaded again when they change.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM), not readable by every user
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Running cages that one project may have
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    pub max_cages: usize,
    /// Requests that one key may send in a second
    #[arg(long, value_name = "NUMBER", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// Let callers open the whole network; without it they can only allow hosts by name
    #[arg(long)]
    pub allow_internet: bool,
    /// Python environment with ipykernel for `run_code` of E2B's SDKs
    ///
    /// Cages of the template code-interpreter-v1 see it, read-only. Without it they need ipykernel in
    /// the Python of this host, and those of other templates always use the `python3` of their own.
    #[arg(long, value_name = "DIRECTORY")]
    pub code_interpreter: Option<PathBuf>,
    /// Connections at once
    #[arg(long, value_name = "NUMBER", default_value_t = 4096)]
    pub max_connections: usize,
    /// Keep N cages of PROFILE started in advance (can be repeated)
    ///
    /// Written as PROFILE=N, or PROFILE=N,memory=SIZE for requests that set this limit; PROFILE is
    /// `default` for requests that name none. A request that differs in anything else that is fixed at
    /// the start of a cage starts one of its own.
    #[arg(long = "warm", value_name = "PROFILE=N")]
    pub warm: Vec<WarmCages>,
}

/// Most cages of one profile that are started in advance.
const MOST_WARM: usize = 1000;

/// Cages that are started before they are created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmCages {
    /// None for requests that name no profile.
    pub profile: Option<String>,
    pub count: usize,
    pub memory: Option<Size>,
}

impl FromStr for WarmCages {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<WarmCages, InvalidValue> {
        let invalid = || {
            InvalidValue::new(
                "number of warm cages",
                text,
                "PROFILE=N or PROFILE=N,memory=SIZE, with N from 1 to 1000",
            )
        };
        let (profile, rest) = text.split_once('=').ok_or_else(invalid)?;
        let (count, memory) = match rest.split_once(',') {
            None => (rest, None),
            Some((count, memory)) => {
                let size = memory.strip_prefix("memory=").ok_or_else(invalid)?;
                (count, Some(size.parse().map_err(|_| invalid())?))
            }
        };
        let count: usize = count.parse().map_err(|_| invalid())?;
        if profile.is_empty() || profile.starts_with('-') || !(1..=MOST_WARM).contains(&count) {
            return Err(invalid());
        }
        Ok(WarmCages {
            profile: (profile != "default").then(|| profile.to_owned()),
            count,
            memory,
        })
    }
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// Create, list and revoke API keys
    Key {
        #[command(subcommand)]
        action: KeyAction,
    },
    /// Set and show quotas and ceilings of projects
    Project {
        #[command(subcommand)]
        action: ProjectAction,
    },
    /// Create, list and delete webhooks, which are sent the events of a project
    Webhook {
        #[command(subcommand)]
        action: WebhookAction,
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
    /// Print a link that opens the dashboard
    ///
    /// The link works once, within ten minutes. The browser that opens it stays signed in for 12
    /// hours, sees the cages of every project, and can answer every permission request.
    Dashboard {
        /// Show only the cages of this project
        #[arg(long)]
        project: Option<String>,
        /// Only look: no approving, no denying, no terminal
        #[arg(long)]
        read_only: bool,
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
        /// Requests that it may send in a second [default: that of the service]
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
        rate: Option<u32>,
        /// Running cages that it may have [default: those of its project]
        #[arg(long, value_name = "NUMBER")]
        max_cages: Option<usize>,
        /// Memory that its running cages may have together [default: that of its project]
        #[arg(long, value_name = "SIZE")]
        max_memory: Option<Size>,
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

#[derive(Debug, Subcommand)]
pub enum ProjectAction {
    /// Set what the keys of a project may use and ask for
    ///
    /// Limits that are left out are removed. The next request is held to the new ones; running cages
    /// keep what they have.
    Set {
        /// Name of the project
        name: String,
        #[command(flatten)]
        bounds: Box<ProjectBounds>,
    },
    /// Print what was set for a project, as JSON
    Show {
        /// Name of the project
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum WebhookAction {
    /// Create a webhook and print its ID and its secret
    ///
    /// Each event of the project's cages is sent to URL at least once, signed with the secret, which is
    /// printed once. URL may be any address, and http: only `serve webhook create` and keys with the
    /// scope host may name addresses that are not on the internet.
    Create {
        /// Where events are sent
        #[arg(value_hint = clap::ValueHint::Url)]
        url: String,
        /// Project whose events are sent
        #[arg(long, default_value = "default")]
        project: String,
        /// Event to send: created, updated, paused, resumed, ended or deleted (can be repeated)
        /// [default: all]
        #[arg(long = "event", value_name = "EVENT", value_parser = ["created", "updated", "paused", "resumed", "ended", "deleted"], hide_possible_values = true)]
        events: Vec<String>,
    },
    /// List webhooks
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete a webhook and what waits for it
    Delete {
        /// Its ID
        id: String,
    },
}

#[derive(Debug, Default, clap::Args)]
pub struct ProjectBounds {
    /// Running cages [default: --max-cages of the service]
    #[arg(long, value_name = "NUMBER")]
    pub max_cages: Option<usize>,
    /// Memory of all running cages together
    #[arg(long, value_name = "SIZE")]
    pub max_memory: Option<Size>,
    /// Cages that may be created in a minute
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub cages_per_minute: Option<u32>,
    /// Profile that cages may name (can be repeated) [default: any]
    #[arg(long = "profile", value_name = "NAME")]
    pub profiles: Vec<String>,
    /// Host that cages may be allowed, as for `ironcage run` (can be repeated) [default: any]
    #[arg(long = "allow-host", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// Memory of one cage
    #[arg(long, value_name = "SIZE")]
    pub cage_memory: Option<Size>,
    /// Seconds until a cage ends
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub cage_timeout: Option<u32>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_cages_are_a_profile_a_number_and_perhaps_a_memory_limit() {
        let parsed = |text: &str| text.parse::<WarmCages>();
        assert_eq!(
            parsed("default=4").unwrap(),
            WarmCages {
                profile: None,
                count: 4,
                memory: None,
            }
        );
        let python = parsed("python=2,memory=512M").unwrap();
        assert_eq!(
            (python.profile.as_deref(), python.count, python.memory),
            (Some("python"), 2, Some(Size(512 << 20)))
        );
        for text in [
            "",
            "python",
            "=4",
            "--network=4",
            "python=0",
            "python=1001",
            "python=-1",
            "python=2,512M",
            "python=2,memory=",
            "python=2,memory=50%",
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}
