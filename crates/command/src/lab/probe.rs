//! The arguments of `ironcage probe`.

use clap::Subcommand;
use std::ffi::OsString;
use std::path::PathBuf;

/// Test whether a sandbox contains a hostile program
///
/// Creates canaries in namespaces of its own, runs each attack first without a sandbox (the control)
/// and then inside it, and reports which attacks reached a canary. Nothing else on this machine is
/// touched.
///
/// Exit status: 0 only if nothing escaped, no unlisted surface is open, and required features work.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Action>,
    #[command(flatten)]
    pub suite: Suite,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// List every probe, and the surfaces that stay open by design
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one probe in full
    Show {
        /// Probe ID, for example FS-01
        id: String,
    },
    /// Run all probes, or the named ones
    Run(Run),
    /// Show which layer stops which probe (test builds, as root)
    ///
    /// Runs the probes in cages that lack one layer each.
    Matrix {
        /// Probe IDs or classes: FS-01, PR, ...
        #[arg(value_name = "ID|CLASS")]
        names: Vec<String>,
        /// Print JSON
        #[arg(long, conflicts_with = "markdown")]
        json: bool,
        /// Print the tables of docs/layer-matrix.md
        #[arg(long)]
        markdown: bool,
    },
    /// Show the requirements of the framework, or assess a report
    ///
    /// The Common Agent Sandboxing Framework is in docs/casf.
    Casf {
        /// Report of `ironcage probe run --json`
        #[arg(value_name = "REPORT")]
        report: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Play a part of the suite
    #[command(hide = true)]
    Role {
        /// Name of the part
        name: String,
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
}

#[derive(Debug, clap::Args)]
pub struct Run {
    /// Probe IDs or classes: FS-01, PR, ...
    #[arg(value_name = "ID|CLASS")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub suite: Suite,
}

#[derive(Debug, clap::Args)]
pub struct Suite {
    /// Sandbox to test: ironcage, ironcage-direct, ironcage-root-inside, ironcage-chroot,
    /// ironcage-landlock, none, chroot, landlock, bwrap, bwrap-hard, systemd-nspawn, crun, runc,
    /// podman, runsc, srt
    #[arg(long, value_name = "NAME", conflicts_with = "against_command")]
    pub against: Option<String>,
    /// Command line of another sandbox: 'tool {workspace} -- {command}'
    #[arg(long, value_name = "COMMAND")]
    pub against_command: Option<String>,
    /// Assess the result by the Common Agent Sandboxing Framework (docs/casf)
    #[arg(long)]
    pub casf: bool,
    /// Output format; html is one self-contained page
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: Format,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Json,
    Junit,
    Markdown,
    Html,
}
