//! `ironcage changes`: the pending changes of all workspaces.

use crate::commands::state::size;
use crate::error::{CliError, CommandResult};
use crate::json;
use crate::pending::shown;
use crate::places;
use ironcage_model::Printable;
use ironcage_workspace::{Change, ChangeId};
use std::time::{SystemTime, UNIX_EPOCH};

/// List pending changes: what cages did and nobody has applied yet.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let home = places::home()?;
    let store = places::changes(&home);
    let changes = store.list().map_err(|error| shown(&error))?;
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
        let note = match (change.in_use(), standing(change, current.as_ref())) {
            (true, _) => "  (in use)".to_owned(),
            (_, Standing::Current) => String::new(),
            (_, Standing::Beside(first)) => format!("  (made beside {first})"),
            (_, Standing::Forked(fork)) => format!("  (forked as {fork})"),
            (_, standing) => format!("  ({})", standing.prunable().unwrap_or_default()),
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

/// What a change is among those of its workspace.
pub(super) enum Standing<'a> {
    /// The next run goes on with it.
    Current,
    /// The next run goes on with this other one first.
    Beside(&'a ChangeId),
    /// The next run goes on with this fork of it first.
    Forked(&'a ChangeId),
    /// A newer one was wanted.
    SetAside,
    /// There is nowhere to apply it.
    WorkspaceGone,
}

impl Standing<'_> {
    /// Why nobody would miss it, if so.
    pub(super) fn prunable(&self) -> Option<&'static str> {
        match self {
            Standing::Current | Standing::Beside(_) | Standing::Forked(_) => None,
            Standing::SetAside => Some("set aside by a newer one"),
            Standing::WorkspaceGone => Some("workspace gone"),
        }
    }
}

/// What a change is, by the one that the next run goes on with.
pub(super) fn standing<'a>(change: &'a Change, current: Option<&'a Change>) -> Standing<'a> {
    let fork = current.filter(|current| current.fork_of() == Some(change.id()));
    let current = current.map(Change::id);
    if change.workspace().symlink_metadata().is_err() {
        return Standing::WorkspaceGone;
    }
    if let Some(fork) = fork {
        return Standing::Forked(fork.id());
    }
    match change.beside() {
        _ if current == Some(change.id()) => Standing::Current,
        Some(first) if current == Some(first) => Standing::Beside(first),
        _ => Standing::SetAside,
    }
}

/// How long ago, in one unit.
fn in_words(seconds: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(86_400, "d"), (3_600, "h"), (60, "min")];
    let unit = UNITS.iter().find(|(length, _)| seconds >= *length);
    unit.map_or_else(
        || format!("{seconds} s"),
        |(length, name)| format!("{} {name}", seconds / length),
    )
}
