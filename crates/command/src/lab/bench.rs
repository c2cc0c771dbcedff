//! The arguments of `ironcage bench`.

use crate::error::InvalidValue;
use clap::Subcommand;
use std::path::PathBuf;
use std::time::Duration;

/// Measure the cost of a cage on this host, compared with other sandboxes
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    pub bench: Bench,
    /// Print JSON instead of a table
    #[arg(long, global = true)]
    pub json: bool,
}

/// A corpus that intents are measured with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Corpus {
    /// Labelled scripts that ship with the bench
    Foreign,
    /// Labelled scripts that were first scored before any change to the reader
    Heldout,
    /// Labelled solution scripts in the manner of terminal benchmarks
    Terminal,
    /// Labelled scripts of more kinds of work at a terminal
    Fresh,
    /// Labelled scripts written after the reader was extended by `fresh`
    Second,
    /// The bash cases of RedCode-Exec, in cages, on canaries
    Redcode,
    /// 300 scripted sessions of agents, half of them with an attack, in cages, on canaries
    Sessions,
}

/// A corpus of tool calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ToolCorpus {
    /// The ground truths of AgentDojo's four suites
    #[default]
    Agentdojo,
}

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Measure the start of a command, from spawn to exit
    ///
    /// Compares bare, bwrap, crun, the floor and Ironcage.
    Start {
        /// Number of starts of each
        #[arg(long, default_value_t = 200)]
        runs: usize,
        /// Absolute path of the command to start; it gets no arguments
        #[arg(long, value_name = "PATH", default_value = "/bin/true")]
        command: PathBuf,
        /// Print where a start of Ironcage spends its system calls and its time, step by step.
        #[arg(long)]
        steps: bool,
        /// Measure starts from a pool of prepared cages
        #[arg(long, conflicts_with = "steps")]
        resident: bool,
        /// With --resident: number of starts after which nothing may have grown
        #[arg(
            long,
            value_name = "NUMBER",
            default_value_t = 1000,
            requires = "resident"
        )]
        soak: usize,
    },
    /// Measure another command in a running cage
    ///
    /// Compares bare, over the control socket, and `ironcage exec`.
    Exec {
        /// Number of execs of each
        #[arg(long, default_value_t = 200)]
        runs: usize,
        /// Absolute path of the command to start; it gets no arguments
        #[arg(long, value_name = "PATH", default_value = "/bin/true")]
        command: PathBuf,
    },
    /// Measure a tool call through the MCP gateway
    ///
    /// Compares a server bare, in a cage, and behind the gateway with rules, a pin and the audit log.
    Calls {
        /// Number of calls of each
        #[arg(long, default_value_t = 2000)]
        runs: usize,
    },
    /// Replay foreign tasks and attacks through tool rules, without a model
    ///
    /// Prints how many user tasks pass without a permission request, and how many attacks succeed.
    Tools {
        /// Whose tasks and attacks
        #[arg(long, value_name = "NAME", value_enum, default_value_t)]
        corpus: ToolCorpus,
        /// Python with the package agentdojo 0.1.35
        #[arg(long, value_name = "PROGRAM", default_value = "python3")]
        python: PathBuf,
        /// Directory with SUITE.toml for each suite [default: the example policies]
        #[arg(long, value_name = "DIR")]
        policies: Option<PathBuf>,
    },
    /// Measure the start of a cage with an image, and unpacking one
    ///
    /// Compares a start without an image, and skopeo with umoci.
    Image {
        /// Number of starts of each
        #[arg(long, default_value_t = 100)]
        starts: usize,
        /// Number of times that each unpacks the image
        #[arg(long, default_value_t = 7)]
        runs: usize,
    },
    /// Measure leases and scopes of a running cage
    ///
    /// Grants and revokes leases over the control socket, and checks for leaks; compares a scope with
    /// a plain exec, and an agent's task with leases, without leases, and bare.
    Leases {
        /// Number of each kind
        #[arg(long, default_value_t = 500)]
        runs: usize,
        /// Number of runs of the agent's task (see `bench task`); 0 skips it
        #[arg(long, default_value_t = 10)]
        tasks: usize,
        /// Then grant and revoke leases at a steady rate for TIME, for example 10m, and check for leaks
        #[arg(long, value_name = "TIME", value_parser = soak_time)]
        soak: Option<Duration>,
        /// Rate of --soak
        #[arg(long, value_name = "NUMBER/min", value_parser = per_minute, default_value = "10000/min", requires = "soak")]
        rate: u32,
    },
    /// Measure leases that follow the agent's intent
    ///
    /// Compares a run of a scripted agent with bare and static runs, measures parsing of its model's
    /// response, and counts permission requests.
    Intent {
        /// Number of runs of each
        #[arg(long, default_value_t = 20)]
        runs: usize,
        /// Measure a corpus instead: how well labelled scripts are read, or what harmful commands do
        #[arg(long, value_name = "NAME", conflicts_with = "runs")]
        corpus: Option<Corpus>,
        /// Directory that has the corpora of others
        #[arg(
            long,
            value_name = "DIR",
            default_value = "../shared/corpora",
            requires = "corpus"
        )]
        corpora: PathBuf,
        /// Number of cases of `redcode` or `sessions`, spread over all
        #[arg(
            long,
            value_name = "NUMBER",
            default_value_t = 600,
            requires = "corpus"
        )]
        cases: usize,
    },
    /// Measure single system calls, bare and in the cage
    Syscalls {
        /// Number of measurements of each
        #[arg(long, default_value_t = 15)]
        rounds: usize,
    },
    /// Measure a mixed task of an agent (200 files, grep, git, gcc, Python)
    ///
    /// Compares bare, bwrap and Ironcage.
    Task {
        /// Number of runs of each
        #[arg(long, default_value_t = 20)]
        runs: usize,
        /// Also measure `--side-channels cores` and `hardened`, if available
        #[arg(long)]
        side_channels: bool,
    },
    /// Compare every sandbox on this host in one table
    ///
    /// Measures system calls, memory, a task, the start and escapes.
    Table {
        /// Number of starts of each; the task runs a tenth as often
        #[arg(long, default_value_t = 50)]
        runs: usize,
        /// Skip the containment suite, which takes minutes for each sandbox
        #[arg(long)]
        without_escapes: bool,
        /// Also write the chart to FILE
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Also write a page with table and chart to FILE
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
    },
    /// Measure copy-on-write workspaces
    ///
    /// Starts in trees of different sizes, and tasks on one: bare, on the real files, copy-on-write
    /// and on a copy.
    Workspace {
        /// Number of starts in each tree
        #[arg(long, default_value_t = 30)]
        starts: usize,
        /// Number of runs of each task
        #[arg(long, default_value_t = 3)]
        runs: usize,
        /// Number of files in the largest tree
        #[arg(long, default_value_t = 300_000)]
        files: usize,
    },
    /// Measure the egress proxy: throughput, connections and requests
    ///
    /// Compares bare loopback, a socat bridge, pasta and Ironcage.
    Network {
        /// Number of measurements of each
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Number of starts without and with a network
        #[arg(long, default_value_t = 50)]
        starts: usize,
    },
    /// Measure cages that programs create by HTTP
    ///
    /// Starts a service on loopback with a pool of warm cages. Compares a creation with its first
    /// command, warm and cold, with bwrap, `docker run`, and a server that starts bwrap for each
    /// request; then a burst, a sustained rate, and the memory of idle cages.
    Serve {
        /// Number of creations of each
        #[arg(long, default_value_t = 100)]
        runs: usize,
        /// Number of creations in a burst, and of cages in the pool
        #[arg(long, value_name = "N", default_value_t = 200)]
        burst: usize,
        /// Number of idle cages whose memory is measured; 0 skips it
        #[arg(long, value_name = "N", default_value_t = 200)]
        idle: usize,
    },
    /// Measure the memory of Ironcage's own processes for many idle cages
    Memory {
        /// Number of cages
        #[arg(long, default_value_t = 500)]
        cages: usize,
        /// Give each cage a network, and so an egress proxy
        #[arg(long)]
        network: bool,
    },
}

fn soak_time(text: &str) -> Result<Duration, InvalidValue> {
    let limit = text.parse::<ironcage_policy::TimeLimit>().ok();
    let time = limit.and_then(|limit| limit.0);
    let invalid = || InvalidValue::new("duration", text, "for example 10m");
    time.filter(|time| !time.is_zero()).ok_or_else(invalid)
}

fn per_minute(text: &str) -> Result<u32, InvalidValue> {
    let number = text
        .strip_suffix("/min")
        .and_then(|number| number.parse().ok());
    let expected = "a number of leases per minute, for example 10000/min";
    let invalid = || InvalidValue::new("rate", text, expected);
    number.filter(|number| *number > 0).ok_or_else(invalid)
}
