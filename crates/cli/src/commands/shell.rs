//! `ironcage shell`.

use super::run;
use crate::cage_flags::CageFlags;
use crate::error::CommandResult;
use std::ffi::OsString;

/// Without `SHELL`; every system has it.
const DEFAULT_SHELL: &str = "/bin/sh";

/// Start an interactive shell in a new cage
///
/// Runs the program in your variable SHELL, as `ironcage run` without a command does [default:
/// /bin/sh]. `ironcage exec ID sh` starts a shell in a running cage.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: CageFlags,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    run::run(run::Args::of(args.flags, vec![users_shell()], args.quiet))
}

/// The program in the caller's SHELL.
pub(super) fn users_shell() -> OsString {
    std::env::var_os("SHELL")
        .filter(|shell| !shell.is_empty())
        .unwrap_or_else(|| DEFAULT_SHELL.into())
}
