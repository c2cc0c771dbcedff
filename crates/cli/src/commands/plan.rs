//! `ironcage plan`: what would be enforced.

use crate::cage_flags::CageFlags;
use crate::error::{CliError, CommandResult};
use crate::json;
use ironcage_plan::{Detail, Plan};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

/// Show exactly what `run` would enforce, in order, with the origin of each item
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: CageFlags,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Name every system call, with its reason
    #[arg(long)]
    full: bool,
    /// Say only what this path is in the cage, why, and what would change it
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::AnyPath, conflicts_with_all = ["json", "full"])]
    path: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let command = if args.command.is_empty() {
        vec!["/bin/sh".into()]
    } else {
        args.command
    };
    let prepared = args.flags.prepare(command)?;
    if let Some(path) = &args.path {
        return super::standing::tell(&prepared, path);
    }
    if args.json {
        let json = as_json(&prepared.plan)
            .map_err(|error| CliError::new(format!("cannot write the plan as JSON: {error}")))?;
        anstream::println!("{json}");
    } else {
        anstream::println!("{}", prepared.resolved.profile_choice);
        for wanted in &prepared.resolved.narrowed {
            anstream::println!("not granted: {wanted}");
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

/// The plan with its digest and the rules of the filter spelled out.
fn as_json(plan: &Plan) -> io::Result<String> {
    let mut value = serde_json::to_value(plan)?;
    value["digest"] = plan.digest().into();
    value["seccomp"]["rules"] = serde_json::to_value(plan.seccomp.rules())?;
    json::pretty(&value)
}
