//! What is known of git here: its directories, the index, references, objects and settings.
//!
//! All of it is read as files. The host's git is never started in a directory that an agent
//! wrote in; it makes the index of a pack that was copied to a directory of ours.

mod bring;
mod config;
mod index;
mod lock;
mod moved;
mod objects;
mod part;
mod refs;
mod view;

pub(crate) use bring::{NO_SETTINGS, bring_over, own_worktree, withheld_settings};
pub(crate) use config::{parse as parse_settings, told as told_settings};
pub(crate) use index::{Tracked, object_in_index};
pub(crate) use lock::recover as recover_lock;
pub(crate) use moved::references;
pub use moved::{HowMoved, ReferenceChange};
pub(crate) use part::{Part, sort};

/// What an agent's configuration has that the real one, of a git directory, has not. `None` when
/// it is none that git takes.
pub(crate) fn compare_settings(
    git: &std::path::Path,
    real: &str,
    agents: &str,
) -> Option<config::ConfigChange> {
    let git = crate::tree::open_root(git).ok()?;
    let is_branch = |name: &str| refs::is_branch(&git, name);
    config::compare(real, agents, &is_branch)
}
