//! `ironcage policy export`: the settings of another sandbox from a policy.

use crate::cage_flags::CageFlags;
use crate::error::{CliError, CommandResult};
use crate::{json, output, paths};
use clap::ValueEnum;
use ironcage_host::SystemFiles;
use ironcage_policy::export::{self, ExportPlace};
use std::path::PathBuf;

/// Write the policy as settings of another sandbox, and list what is lost
///
/// The settings go to standard output, what they cannot express to standard error.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Format: srt (Anthropic's sandbox-runtime) or mxc (Microsoft's execution containers)
    format: Format,
    /// Profile to export
    #[arg(long, value_name = "NAME", value_parser = crate::values::SuggestedName::profiles(), hide_possible_values = true)]
    profile: Option<String>,
    /// Policy file to export [default: the policy of a run here]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, conflicts_with = "profile")]
    policy: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Srt,
    Mxc,
}

pub(super) fn run(args: Args) -> CommandResult {
    let mut flags = CageFlags::default();
    flags.set_base(args.profile, args.policy);
    let resolved = flags.resolve()?;
    let home = paths::home(&SystemFiles::default())?;
    let workspace = paths::workspace_here()?;
    let place = ExportPlace {
        workspace: &workspace,
        home: &home,
    };
    let exported = match args.format {
        Format::Srt => export::srt(&resolved.policy, place),
        Format::Mxc => export::mxc(&resolved.policy, place),
    };
    let text = json::pretty(&exported.settings)
        .map_err(|error| CliError::new(format!("cannot print the settings: {error}")))?;
    output::print(|out| writeln!(out, "{text}"))?;
    anstream::eprintln!("not expressed in these settings:");
    for lost in &exported.lost {
        anstream::eprintln!("  {lost}");
    }
    Ok(0)
}
