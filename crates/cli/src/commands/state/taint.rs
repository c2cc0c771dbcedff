//! `ironcage state taint`.

use crate::confirm::confirm;
use crate::error::{CliError, CommandResult};
use crate::json;
use ironcage_model::Printable;
use ironcage_state::Marks;
use std::path::{Path, PathBuf};

/// List or forget paths that may hold tainted data (experimental)
///
/// Cages that were in contact with private data or untrusted content could write there.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Forget the taint of PATH and everything below it, once you have inspected it. Stop the
    /// cages that work there first
    #[arg(long, value_name = "PATH")]
    forget: Option<PathBuf>,
    /// Do not ask for confirmation
    #[arg(short, long, requires = "forget")]
    yes: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "forget")]
    json: bool,
}

pub(super) fn run(args: Args) -> CommandResult {
    match args.forget {
        Some(path) => forget(&path, args.yes),
        None => list(args.json),
    }
}

fn marks() -> Result<Marks, CliError> {
    let state = ironcage_audit::state_dir().map_err(|error| CliError::from_error(&error))?;
    Ok(Marks::in_state(&state))
}

fn unreadable(marks: &Marks) -> impl Fn(std::io::Error) -> CliError {
    let path = Printable::new(marks.path()).to_string();
    move |error| CliError::new(format!("cannot use {path}: {error}"))
}

fn list(json: bool) -> CommandResult {
    let marks = marks()?;
    let all = marks.all().map_err(unreadable(&marks))?;
    if json {
        anstream::println!("{}", json::line(&all).map_err(CliError::new)?);
        return Ok(0);
    }
    if all.is_empty() {
        anstream::println!("no tainted paths");
    }
    for mark in all {
        let from = match &mark.cage {
            Some(cage) => format!("cage {cage}"),
            None => format!("an unreadable line of {}", Printable::new(marks.path())),
        };
        anstream::println!(
            "{:<21}  {}  ({from})",
            mark.taint.to_string(),
            Printable::new(&mark.place)
        );
    }
    Ok(0)
}

fn forget(path: &Path, yes: bool) -> CommandResult {
    let place = std::fs::canonicalize(path).or_else(|_| std::path::absolute(path));
    let place = place.map_err(|error| {
        CliError::new(format!("cannot resolve {}: {error}", Printable::new(path)))
    })?;
    let marks = marks()?;
    let shown = Printable::new(&place).to_string();
    let known = marks.all().map_err(unreadable(&marks))?;
    if !known.iter().any(|mark| mark.place.starts_with(&place)) {
        anstream::println!("{shown} is not tainted");
        return Ok(0);
    }
    if !yes
        && !confirm(
            "Cages that read it can be granted ways out again. Forget the taint?",
            "nothing forgotten",
            "--yes",
        )?
    {
        anstream::println!("nothing forgotten");
        return Ok(1);
    }
    let gone = marks.forget(&place).map_err(unreadable(&marks))?;
    anstream::println!("forgot {gone} taint entries of {shown}");
    Ok(0)
}
