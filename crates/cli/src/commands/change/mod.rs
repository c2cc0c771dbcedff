//! `ironcage change`: the pending changes of copy-on-write workspaces.

pub(crate) mod apply;
pub(crate) mod diff;
pub(crate) mod discard;
mod fork;
mod list;
mod prune;
mod restore;
mod snapshot;

use crate::command_group::command_group;

/// Review, apply and manage pending changes
///
/// A run on a copy-on-write workspace leaves a pending change; the real files stay as they are
/// until you apply it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

command_group! {
    List => list,
    Diff => diff,
    Apply => apply,
    Discard => discard,
    Snapshot => snapshot,
    Restore => restore,
    Fork => fork,
    Prune => prune,
}
