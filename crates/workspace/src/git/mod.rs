//! What is known of git here: its directories, the index, references, objects and settings.
//!
//! All of it is read as files. The host's git is never started in a directory that an agent
//! wrote in; it makes the index of a pack that was copied to a directory of ours.

mod bring;
mod config;
mod index;
mod lock;
mod objects;
mod part;
mod refs;
mod view;

pub(crate) use bring::{bring_over, own_worktree, withheld_settings};
pub(crate) use config::parse as parse_settings;
pub(crate) use index::{Tracked, object_in_index};
pub(crate) use lock::recover as recover_lock;
pub(crate) use part::{Part, sort};

/// Which settings of an agent's configuration stay aside. `None` when it is none that git takes.
pub(crate) fn withheld(real: &str, agents: &str) -> Option<Vec<String>> {
    config::compare(real, agents).map(|change| change.withheld)
}
