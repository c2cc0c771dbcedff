//! `ironcage plan`.

use crate::cage_flags::CageFlags;
use crate::error::{CliError, CommandResult};
use crate::{json, render};
use ironcage_plan::{Detail, Plan};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

/// Show what `run` would enforce
///
/// A summary of ten lines; --all shows every item with its origin, in the order in which it is
/// enforced.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: CageFlags,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show everything, with the origin of each item
    #[arg(long)]
    all: bool,
    /// Like --all, with every system call and its reason
    #[arg(long)]
    full: bool,
    /// Explain only PATH: what it is in the cage, why, and how to change it
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::AnyPath, conflicts_with_all = ["json", "all", "full"])]
    path: Option<PathBuf>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let command = if args.command.is_empty() && !args.flags.has_image() {
        vec![super::shell::users_shell()]
    } else {
        args.command
    };
    let prepared = args.flags.prepare(command)?;
    if let Some(path) = &args.path {
        return crate::render::path::explain(&prepared, path);
    }
    if args.json {
        let json = as_json(&prepared.plan)
            .map_err(|error| CliError::new(format!("cannot print the plan as JSON: {error}")))?;
        anstream::println!("{json}");
    } else if !args.all && !args.full {
        return render::plan::summarize(&prepared);
    } else {
        anstream::println!("{}", prepared.resolved.profile_choice);
        for denied in &prepared.resolved.narrowed {
            anstream::println!("not granted: {denied}");
        }
        let detail = if args.full {
            Detail::Full
        } else {
            Detail::Brief
        };
        anstream::print!("{}", ironcage_plan::explain(&prepared.plan, detail));
    }
    Ok(0)
}

/// The plan with its digest and every rule of the seccomp filter.
fn as_json(plan: &Plan) -> io::Result<String> {
    let mut value = serde_json::to_value(plan)?;
    value["digest"] = plan.digest().into();
    value["seccomp"]["digest"] = plan.filter_digest().into();
    value["seccomp"]["rules"] = serde_json::to_value(plan.seccomp.rules())?;
    json::pretty(&value)
}
