//! `ironcage policy`: checks policy files, imports them, and compares them with recorded runs.

mod check;
mod export;
mod import;
mod test;
mod tighten;

use crate::command_group::command_group;

/// Check, import, export, tighten and test policy files
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

command_group! {
    Check => check,
    Tighten => tighten ref,
    Test => test ref,
    Import => import,
    Export => export,
}
