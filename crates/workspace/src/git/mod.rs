//! Knowledge of git: its directories, the index, references, objects and settings.
//!
//! All of it is read as files. The host's git is never started on anything of an agent's but what
//! was checked: it makes the index of a pack that was copied to a directory of ours, and tells
//! what is committed in the real repository.

mod bring;
mod config;
pub(crate) mod fuzz;
mod index;
mod lock;
mod moved;
mod named;
mod objects;
mod part;
mod plumbing;
mod refs;
mod repository;
mod staged;
mod view;
mod work_tree;

pub(crate) use bring::{NO_SETTINGS, bring_over, own_worktree, withheld_settings};
pub(crate) use config::{parse as parse_settings, told as told_settings};
pub(crate) use index::{Tracked, object_in_index};
pub(crate) use lock::recover as recover_lock;
pub(crate) use moved::references;
pub use moved::{HowMoved, ReferenceChange};
pub(crate) use named::named_places;
pub use named::{NamedPlace, places_git_obeys};
pub(crate) use part::{Part, UNFINISHED, sort};
pub(crate) use plumbing::Plumbing;
pub(crate) use repository::{
    MAKERS, around as repository_around, is_git_name, is_real_path as is_repository,
};

/// Whether two index files stage the same, whatever they know of the files' times. `false` for
/// one that is not read.
pub(crate) fn same_index(one: &std::fs::File, other: &std::fs::File) -> std::io::Result<bool> {
    let read = |file| crate::content::read_bounded(file, bring::LARGEST);
    let (Some(one), Some(other)) = (read(one)?, read(other)?) else {
        return Ok(false);
    };
    // Which hash the repository has is in its settings; an index of the other one is not read.
    let formats = [index::ObjectFormat::Sha1, index::ObjectFormat::Sha256];
    Ok(formats.into_iter().any(|format| {
        let read = |bytes: &[u8]| index::Index::read(bytes, format);
        match (read(&one), read(&other)) {
            (Ok(one), Ok(other)) => staged::same(&one, &other),
            _ => false,
        }
    }))
}

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
