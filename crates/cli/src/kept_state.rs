//! Holds what a workspace keeps to the limits of its policy.

use crate::cage_flags::PlannedCage;
use crate::error::CliError;
use crate::output::size;
use crate::paths;
use ironcage_host::SystemFiles;
use ironcage_model::Printable;
use ironcage_state::{OverLimit, StateLimits, Store, Trimmed};
use std::path::PathBuf;

/// Refuses a start while more is kept than the limits allow.
pub(crate) fn check(prepared: &PlannedCage, store: &Store) -> Result<(), CliError> {
    let trimmed = trim(prepared, store)?;
    let Some(over) = trimmed.over else {
        return Ok(());
    };
    Err(
        CliError::new(format!("cannot start the cage: {}", too_much(&over)))
            .hint("`ironcage state reset` removes the state of this workspace")
            .hint("--no-state starts without it")
            .hint(format!(
                "or raise `{}` under [state] in your policy",
                key(&over)
            )),
    )
}

/// Removes the oldest log files after a run, where there are too many, and says so.
pub(crate) fn tidy(prepared: &PlannedCage, quiet: bool) -> Result<(), CliError> {
    if prepared.plan.kept.is_empty() {
        return Ok(());
    }
    let files = SystemFiles::default();
    let store = paths::store(&paths::home(&files)?, &files);
    let trimmed = trim(prepared, &store)?;
    if quiet {
        return Ok(());
    }
    if trimmed.files > 0 {
        anstream::eprintln!(
            "ironcage: removed the {} oldest log files ({}) that were kept for this workspace; `limit` under [state] keeps more",
            trimmed.files,
            size(trimmed.bytes)
        );
    }
    if let Some(over) = &trimmed.over {
        anstream::eprintln!(
            "ironcage: {}; the next run is refused\n  hint: `ironcage state reset` removes it, `{}` under [state] raises the limit",
            too_much(over),
            key(over)
        );
    }
    Ok(())
}

fn trim(prepared: &PlannedCage, store: &Store) -> Result<Trimmed, CliError> {
    let policy = &prepared.resolved.policy;
    let limits = StateLimits {
        workspace: policy.state_limit.value.0,
        path: policy.state_limit_per_path.value.0,
    };
    let kept: Vec<PathBuf> = policy.keep.iter().map(|path| path.value.clone()).collect();
    let trimmed = store.trim(&prepared.plan.workspace, &kept, limits);
    trimmed.map_err(|error| CliError::from_error(&error))
}

fn key(over: &OverLimit) -> &'static str {
    match over.path {
        Some(_) => "limit-per-path",
        None => "limit",
    }
}

fn too_much(over: &OverLimit) -> String {
    let what = match &over.path {
        Some(path) => format!("~/{} of this workspace", Printable::new(path)),
        None => "this workspace".to_owned(),
    };
    match over.bytes {
        Some(bytes) => format!(
            "{} are kept for {what}, more than the limit of {}, and log files are not enough to remove",
            size(bytes),
            size(over.limit)
        ),
        None => format!(
            "the files that are kept for {what} cannot be counted: a directory is unreadable or too deep"
        ),
    }
}
