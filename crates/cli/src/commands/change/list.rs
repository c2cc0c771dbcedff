//! `ironcage change list`.

use crate::error::{CliError, CommandResult};
use crate::json;
use crate::output::size;
use crate::paths;
use crate::pending_change::change_error;
use ironcage_host::SystemFiles;
use ironcage_model::Printable;
use ironcage_workspace::{Change, ChangeId};
use std::time::{SystemTime, UNIX_EPOCH};

/// List the pending changes of all workspaces
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let home = paths::home(&SystemFiles::default())?;
    let store = paths::changes(&home, &SystemFiles::default());
    let changes = store.list().map_err(|error| change_error(&error))?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let age =
        |began: i64| u64::try_from(began).map_or(0, |began| now.as_secs().saturating_sub(began));
    let is_current = |change: &ironcage_workspace::Change| matches!(store.pending(change.workspace()), Ok(Some(current)) if current.id() == change.id());
    if args.json {
        let list: Vec<_> = changes
            .iter()
            .map(|change| {
                serde_json::json!({
                    "id": change.id(),
                    "workspace": change.workspace().to_string_lossy(),
                    "mode": change.mode(),
                    "began": change.began().seconds,
                    "age_seconds": age(change.began().seconds),
                    "bytes": change.bytes(),
                    "cages": change.cages(),
                    "current": is_current(change),
                    "in_use": change.in_use(),
                })
            })
            .collect();
        anstream::println!("{}", json::line(&list).map_err(CliError::new)?);
        return Ok(0);
    }
    for change in &changes {
        let current = store.pending(change.workspace()).ok().flatten();
        let note = match (change.in_use(), ChangeStatus::of(change, current.as_ref())) {
            (true, _) => "  (in use)".to_owned(),
            (_, ChangeStatus::Current) => String::new(),
            (_, ChangeStatus::Beside(first)) => format!("  (made beside {first})"),
            (_, ChangeStatus::Forked(fork)) => format!("  (forked as {fork})"),
            (_, status) => format!("  ({})", status.prunable().unwrap_or_default()),
        };
        anstream::println!(
            "{}  {:>9}  {:>8}  {}{note}",
            change.id(),
            size(change.bytes()),
            in_words(age(change.began().seconds)),
            Printable::new(change.workspace())
        );
    }
    Ok(0)
}

/// The place of a change among those of its workspace.
pub(super) enum ChangeStatus<'a> {
    /// The next run continues it.
    Current,
    /// The next run continues this other change first.
    Beside(&'a ChangeId),
    /// The next run continues this fork of it first.
    Forked(&'a ChangeId),
    /// A newer change replaced it.
    Superseded,
    /// There is nowhere to apply it.
    WorkspaceGone,
}

impl<'a> ChangeStatus<'a> {
    /// `current` is the change that the next run in the workspace continues.
    pub(super) fn of(change: &'a Change, current: Option<&'a Change>) -> ChangeStatus<'a> {
        let fork = current.filter(|current| current.fork_of() == Some(change.id()));
        let current = current.map(Change::id);
        if change.workspace().symlink_metadata().is_err() {
            return ChangeStatus::WorkspaceGone;
        }
        if let Some(fork) = fork {
            return ChangeStatus::Forked(fork.id());
        }
        match change.beside() {
            _ if current == Some(change.id()) => ChangeStatus::Current,
            Some(first) if current == Some(first) => ChangeStatus::Beside(first),
            _ => ChangeStatus::Superseded,
        }
    }

    /// Why `ironcage change prune` may remove it.
    pub(super) fn prunable(&self) -> Option<&'static str> {
        match self {
            ChangeStatus::Current | ChangeStatus::Beside(_) | ChangeStatus::Forked(_) => None,
            ChangeStatus::Superseded => Some("superseded by a newer change"),
            ChangeStatus::WorkspaceGone => Some("workspace deleted"),
        }
    }
}

/// An age in its largest unit.
fn in_words(seconds: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(86_400, "d"), (3_600, "h"), (60, "min")];
    let unit = UNITS.iter().find(|(length, _)| seconds >= *length);
    unit.map_or_else(
        || format!("{seconds} s"),
        |(length, name)| format!("{} {name}", seconds / length),
    )
}
