//! Brings a change over to the real tree: exactly, or not at all where it would overwrite what
//! the host changed meanwhile; whole, though it be killed at any point.

mod journal;
mod landing;
mod plan;
pub(crate) mod staging;

use crate::differences::Roots;
use crate::error::{Doing as _, WorkspaceError};
use crate::known::Known;
use crate::summary::Told;
use crate::tree::{self, Node};
use crate::unified::quoted;
use crate::{Change, Lock, Selection, Status, Store, upper};
use ironcage_sys::faults::step;
use ironcage_sys::rustix::fs::syncfs;
use journal::{Action, Journal, Phase};
use std::fmt;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

/// More are counted, not listed.
const MOST_LISTED: usize = 20;

/// What to do where the host changed something meanwhile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// Leave both as they are: the agent's stays aside.
    #[default]
    Keep,
    /// The agent's version takes the place of the host's.
    Theirs,
    /// The host's version stays, the agent's goes.
    Ours,
}

/// How a change is applied.
#[derive(Debug, Clone, Default)]
pub struct ApplyOptions {
    /// What to do where the host changed something meanwhile.
    pub on_conflict: OnConflict,
    /// Whether what is flagged stays aside as well, unless it is named or allowed.
    pub hold_flagged: bool,
    /// Paths below the workspace that are allowed though withheld or flagged.
    pub allowed: Vec<PathBuf>,
}

/// What became of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// How many files, links and directories were put, changed or removed.
    pub done: usize,
    /// What stays aside, and why.
    pub held: Vec<Told>,
    /// What the host changed meanwhile: both versions are kept.
    pub conflicts: Vec<PathBuf>,
    /// Whether nothing is left of the change, which is gone with it.
    pub finished: bool,
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} applied", self.done)?;
        if !self.held.is_empty() {
            write!(f, ", {} kept aside", self.held.len())?;
        }
        for told in self.held.iter().take(MOST_LISTED) {
            let path = quoted("", &told.path);
            write!(f, "\n  aside     {path}: {}", told.why)?;
        }
        match self.held.len().checked_sub(MOST_LISTED) {
            Some(rest) if rest > 0 => write!(f, "\n  aside     and {rest} more"),
            _ => Ok(()),
        }
    }
}

impl Store {
    /// Brings the selected part of a change over to the real tree.
    ///
    /// # Errors
    /// When somebody uses the change, or the system refuses. What was begun is then completed
    /// by the next command that takes the change.
    pub fn apply(
        &self,
        change: &Change,
        selection: &Selection,
        options: &ApplyOptions,
    ) -> Result<Applied, WorkspaceError> {
        let lock = change.lock()?;
        self.apply_locked(change, &lock, selection, options)
    }

    /// As [`Store::apply`], by the one who holds the lock: the run that made the change.
    ///
    /// # Errors
    /// As there.
    pub fn apply_locked(
        &self,
        change: &Change,
        _lock: &Lock,
        selection: &Selection,
        options: &ApplyOptions,
    ) -> Result<Applied, WorkspaceError> {
        let roots = Roots::open(change)?;
        let mut reading = change.read_entries(selection)?;
        if options.on_conflict == OnConflict::Keep
            && crate::merge::reconcile(change, &roots, &reading)?
        {
            reading = change.read_entries(selection)?;
        }
        let (steps, mut applied) = plan::plan(change, &roots, &reading, selection, options)?;
        if !steps.is_empty() {
            let mut journal = Journal {
                phase: Phase::Staging,
                steps,
            };
            journal.write(change)?;
            step();
            staging::stage(change, &roots, &mut journal)?;
            step();
            complete(change, &roots, &mut journal)?;
            for planned in journal.steps {
                let path = change.shown(planned.layer, &planned.path);
                match planned.held {
                    Some(why) => applied.held.push(Told { path, why }),
                    None if counts(&planned.action) => applied.done += 1,
                    None => {}
                }
            }
        }
        crate::git::bring_over(change, &roots, &reading, selection, &mut applied)?;
        applied.finished = is_spent(change)?;
        if applied.finished {
            self.remove_locked(change)?;
        }
        Ok(applied)
    }
}

fn counts(action: &Action) -> bool {
    !matches!(action, Action::Finish | Action::Forget)
}

/// Whether a change has nothing left that anybody would miss.
fn is_spent(change: &Change) -> Result<bool, WorkspaceError> {
    let left = change.read_entries(&Selection::everything())?;
    let nothing = left
        .entries
        .iter()
        .all(|entry| entry.status == Status::Touched && entry.obstacle.is_none());
    Ok(nothing && left.ignored.is_empty())
}

/// Completes an apply that was killed. The caller holds the change's lock.
pub(crate) fn resume(change: &Change) -> Result<(), WorkspaceError> {
    crate::git::recover_lock(change)?;
    let Some(mut journal) = Journal::read(change)? else {
        return Ok(());
    };
    let is_gone = |layer: &usize| change.layers()[*layer].real.symlink_metadata().is_err();
    if journal.layers().iter().any(is_gone) {
        // There is no tree any more in which it could be completed.
        return Ok(());
    }
    let roots = Roots::open(change)?;
    match journal.phase {
        // Nothing has happened to the real tree but the copies.
        Phase::Staging => {
            remove_staged(change, &roots, &journal)?;
            Journal::remove(change)
        }
        Phase::Landing | Phase::Clearing => complete(change, &roots, &mut journal),
    }
}

/// From staged to the end.
fn complete(change: &Change, roots: &Roots, journal: &mut Journal) -> Result<(), WorkspaceError> {
    if journal.phase != Phase::Clearing {
        journal.phase = Phase::Landing;
        journal.write(change)?;
        step();
        landing::land(change, roots, journal);
        for layer in journal.layers() {
            let real = &change.layers()[layer].real;
            let root = roots.real(layer).doing("open", real)?;
            syncfs(root).doing("write", real)?;
        }
        note_landed(change, roots, journal)?;
        step();
        journal.phase = Phase::Clearing;
        journal.write(change)?;
    }
    step();
    clear(change, roots, journal)?;
    step();
    remove_staged(change, roots, journal)?;
    step();
    Journal::remove(change)
}

/// Writes down what is ours in the real tree, so that it is not taken for the host's.
fn note_landed(change: &Change, roots: &Roots, journal: &Journal) -> Result<(), WorkspaceError> {
    let mut made = Vec::new();
    for planned in &journal.steps {
        let Action::Put {
            staged: Some(staged),
            ..
        } = planned.action
        else {
            continue;
        };
        let node = roots.real(planned.layer).and_then(|root| {
            let above = tree::open_below(root, planned.path.parent().unwrap_or(Path::new("")))?;
            tree::look(above.as_fd(), planned.path.file_name().unwrap_or_default())
        });
        if let Ok(Some(node)) = node
            && node.place == staged
        {
            made.push((planned.layer, planned.path.as_path(), node));
        }
    }
    Known::add(change, &made)
}

/// What has landed leaves the upper layers.
fn clear(change: &Change, roots: &Roots, journal: &Journal) -> Result<(), WorkspaceError> {
    let landed = || {
        journal
            .steps
            .iter()
            .filter(|planned| planned.held.is_none())
    };
    // All of the first before any of the second: once a name has left, a directory that hides
    // everything would hide what has just landed.
    for planned in landed() {
        let shown = change.shown(planned.layer, &planned.path);
        let above = planned.path.parent().unwrap_or(Path::new(""));
        let (upper, real) = (
            roots.upper(planned.layer).doing("open", &shown)?,
            roots.real(planned.layer).doing("open", &shown)?,
        );
        upper::reveal_to(upper, real, above).doing("clear", &shown)?;
        if let Some(name) = planned.path.file_name() {
            let both = tree::open_below(upper, above)
                .ok()
                .zip(tree::open_below(real, above).ok());
            if let Some((upper, real)) = both {
                upper::reveal(upper.as_fd(), real.as_fd(), name).doing("clear", &shown)?;
            }
        }
        step();
    }
    for planned in landed().collect::<Vec<_>>().into_iter().rev() {
        let shown = change.shown(planned.layer, &planned.path);
        let upper = roots.upper(planned.layer).doing("open", &shown)?;
        if planned.path.as_os_str().is_empty() {
            continue;
        }
        let is_directory = matches!(planned.action, Action::MakeDirectory | Action::Finish);
        if is_directory {
            // Its own hiding goes with it, or stays where something stays in it.
            let both = tree::open_below(upper, &planned.path).ok().zip(
                roots
                    .real(planned.layer)
                    .and_then(|real| tree::open_below(real, &planned.path))
                    .ok(),
            );
            if let Some((upper, real)) = both {
                upper::reveal(upper.as_fd(), real.as_fd(), "".as_ref()).doing("clear", &shown)?;
            }
        }
        step();
        upper::take_out(upper, &planned.path, is_directory).doing("clear", &shown)?;
    }
    Ok(())
}

fn remove_staged(change: &Change, roots: &Roots, journal: &Journal) -> Result<(), WorkspaceError> {
    for layer in journal.layers() {
        let real = &change.layers()[layer].real;
        let root = roots.real(layer).doing("open", real)?;
        let before = Node::of(root).doing("look at", real)?;
        staging::remove(root, change.id()).doing("remove what was staged in", real)?;
        // That there was a directory for a while is nobody's business.
        staging::set_times(root, &before).doing("set the time of", real)?;
    }
    Ok(())
}
