//! `ironcage changes`: the pending changes of all workspaces.

use crate::commands::state::size;
use crate::error::CommandResult;
use crate::pending::shown;
use crate::places;
use ironcage_model::Printable;
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
        anstream::println!("{}", serde_json::Value::from(list));
        return Ok(0);
    }
    for change in &changes {
        let note = match (change.in_use(), is_current(change)) {
            (true, _) => "  (in use)",
            (_, false) => "  (set aside by a newer one)",
            _ => "",
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

/// How long ago, in one unit.
fn in_words(seconds: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(86_400, "d"), (3_600, "h"), (60, "min")];
    let unit = UNITS.iter().find(|(length, _)| seconds >= *length);
    unit.map_or_else(
        || format!("{seconds} s"),
        |(length, name)| format!("{} {name}", seconds / length),
    )
}
