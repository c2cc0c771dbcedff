//! The audit logs of cages, as commands find and read them.

use crate::error::CliError;
use crate::paths;
use ironcage_audit::{Error, Heading, LogEntry, Reader};
use ironcage_model::{CageId, Printable};
use std::path::{Path, PathBuf};

pub(crate) fn directory() -> Result<PathBuf, CliError> {
    ironcage_audit::audit_dir().map_err(|error| CliError::from_error(&error))
}

/// The cage that an argument names. Without one, the newest of the workspace around the current
/// directory, or else the newest of all.
pub(crate) fn find(dir: &Path, cage: Option<&str>) -> Result<CageId, CliError> {
    if let Some(text) = cage {
        return ironcage_audit::find(dir, text).map_err(audit_error);
    }
    if let Some(heading) = newest_here(dir)? {
        return Ok(heading.id);
    }
    let here = paths::workspace_here()?;
    let newest = ironcage_audit::find(dir, "last").map_err(audit_error)?;
    anstream::eprintln!(
        "ironcage: no cage has run in {}; showing the last one of all",
        Printable::new(&here)
    );
    Ok(newest)
}

/// The newest cage of the workspace around the current directory.
pub(crate) fn newest_here(dir: &Path) -> Result<Option<Heading>, CliError> {
    let here = paths::workspace_here()?;
    let here = here.to_string_lossy();
    let headings = ironcage_audit::list(dir).map_err(audit_error)?;
    let mut of_here = headings.into_iter();
    Ok(of_here.find(|heading| heading.workspace.as_deref() == Some(&*here)))
}

/// The log of the cage that an argument names.
pub(crate) fn find_log(cage: Option<&str>) -> Result<(CageId, PathBuf), CliError> {
    let dir = directory()?;
    let id = find(&dir, cage)?;
    let path = ironcage_audit::log_path(&dir, &id);
    match path.exists() {
        true => Ok((id, path)),
        false => Err(audit_error(Error::NoSuchCage { id })),
    }
}

/// The records from a line on. An incomplete last line is left for the next call.
pub(crate) fn records(path: &Path, from: usize) -> Result<Vec<LogEntry>, CliError> {
    let mut records = Vec::new();
    for item in Reader::open(path).map_err(audit_error)?.skip(from) {
        match item {
            Ok(record) => records.push(record),
            Err(Error::Damaged { .. }) => break,
            Err(error) => return Err(audit_error(error)),
        }
    }
    Ok(records)
}

/// An error of a log, with a hint where there is something to do.
pub(crate) fn audit_error(error: Error) -> CliError {
    let message = CliError::from_error(&error);
    match error {
        Error::Empty { .. } => message.hint("`ironcage run -- COMMAND` runs a command in a cage"),
        Error::NotFound { .. } | Error::NoSuchCage { .. } => {
            message.hint("`ironcage audit list` lists the recorded cages")
        }
        Error::Ambiguous { .. } => message.hint("type more of the ID"),
        _ => message,
    }
}
