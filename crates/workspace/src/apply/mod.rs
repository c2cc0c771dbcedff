//! Brings a change over to the real tree: exactly, or not at all where it would overwrite what
//! the host changed meanwhile; whole, though it be killed at any point.

mod access;
mod journal;
mod landing;
mod plan;
pub(crate) mod staging;
#[cfg(test)]
mod tests;

use crate::differences::Roots;
use crate::error::{Doing as _, WorkspaceError};
use crate::known::Known;
use crate::landed::{Landed, Left};
use crate::reading::Reading;
use crate::summary::{MOST_LISTED, ReportedPath, told};
use crate::tree::{self, Node};
use crate::{Applying, Change, Lock, Moment, ReferenceChange, Selection, Status, Store, upper};
use ironcage_sys::faults::step;
use ironcage_sys::rustix::fs::syncfs;
use journal::{Action, Journal, Phase};
pub(crate) use plan::is_named;
use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

/// What to do about what both changed.
pub(crate) const REMEDY: &str = "where both changed: `ironcage apply --theirs PATH` takes the agent's version, `--ours PATH` keeps yours";

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
    /// Whether git directories stay aside.
    pub without_git: bool,
}

/// What became of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// How many files, links and directories were put, changed or removed, but for those that
    /// came over by the rules of git.
    pub done: usize,
    /// Branches, tags and HEADs that were made, moved or deleted.
    pub references: BTreeSet<ReferenceChange>,
    /// How many files of objects came over.
    pub objects: usize,
    /// How many other files of git directories did: indexes, logs, settings.
    pub of_git: usize,
    /// What stays aside, and why.
    pub held: Vec<ReportedPath>,
    /// What the host changed meanwhile: both versions are kept.
    pub conflicts: Vec<PathBuf>,
    /// What was applied though the host would execute or trust it.
    pub flagged: BTreeSet<ReportedPath>,
    /// Whether nothing is left of the change, which is gone with it.
    pub finished: bool,
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} applied", self.done)?;
        let of_git = [
            (self.references.len(), "reference", "references"),
            (self.objects, "object", "objects"),
            (self.of_git, "other file of git", "other files of git"),
        ];
        for (count, one, several) in of_git.iter().filter(|(count, ..)| *count > 0) {
            let what = if *count == 1 { one } else { several };
            write!(f, ", {count} {what}")?;
        }
        if !self.held.is_empty() {
            write!(f, ", {} pending", self.held.len())?;
        }
        told(f, "pending", &self.held)?;
        for reference in self.references.iter().take(MOST_LISTED) {
            write!(f, "\n  applied   {reference}")?;
        }
        match self.references.len().checked_sub(MOST_LISTED) {
            Some(rest) if rest > 0 => write!(f, "\n  applied   and {rest} more references")?,
            _ => {}
        }
        told(f, "applied", &self.flagged)?;
        match self.conflicts.is_empty() {
            true => Ok(()),
            false => write!(f, "\n  {REMEDY}"),
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
        let mut applied = bring_over(change, selection, options, Afterwards::Clear, &mut || None)?;
        applied.finished = is_spent(change)?;
        if applied.finished {
            self.remove_locked(change)?;
        }
        Ok(applied)
    }

    /// Brings the selected part of a change over while a cage works on it, which must stand
    /// still meanwhile. Nothing leaves the upper layers before the cage has ended; the change
    /// stays. Where both sides changed something, both stay.
    ///
    /// `moved` is asked once more when all has been read and nothing has happened yet.
    ///
    /// # Errors
    /// As [`Store::apply`]; [`WorkspaceError::Unsteady`] when something in the cage moved:
    /// nothing was applied then.
    pub fn apply_running(
        &self,
        change: &Change,
        _applying: &Applying,
        selection: &Selection,
        options: &ApplyOptions,
        moved: &mut Moved<'_>,
    ) -> Result<Applied, WorkspaceError> {
        resume_with(change, Afterwards::Keep)?;
        bring_over(change, selection, options, Afterwards::Keep, moved)
    }
}

/// Tells what of a cage moved since it was made to stand still, if anything did.
pub type Moved<'a> = dyn FnMut() -> Option<String> + 'a;

fn unsteady(change: &Change, what: String) -> WorkspaceError {
    WorkspaceError::Unsteady {
        id: change.id().clone(),
        what,
    }
}

/// What becomes of that in the upper layers which was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Afterwards {
    /// It leaves them.
    Clear,
    /// A cage works on them: it stays, and is written down.
    Keep,
}

fn bring_over(
    change: &Change,
    selection: &Selection,
    options: &ApplyOptions,
    afterwards: Afterwards,
    moved: &mut Moved<'_>,
) -> Result<Applied, WorkspaceError> {
    let roots = Roots::open(change)?;
    let mut reading = change.read_entries(selection)?;
    // A merge changes the agent's version, which nobody may do under its hands.
    if afterwards == Afterwards::Clear
        && options.on_conflict == OnConflict::Keep
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
        journal.hold_whole();
        step();
        if let Some(what) = moved() {
            remove_staged(change, &roots, &journal)?;
            Journal::remove(change)?;
            return Err(unsteady(change, what));
        }
        complete(change, &roots, &mut journal, afterwards)?;
        for planned in journal.steps {
            // One line for a tree that is applied as a whole.
            let told = planned.whole.as_ref().unwrap_or(&planned.path);
            let path = change.shown(planned.layer, told);
            match planned.held {
                Some(why) if planned.whole.is_some() => {
                    let told = ReportedPath { path, why };
                    if applied.held.last() != Some(&told) {
                        applied.held.push(told);
                    }
                }
                Some(why) => applied.held.push(ReportedPath { path, why }),
                None if counts(&planned.action) => applied.done += 1,
                None => {}
            }
        }
    } else if let Some(what) = moved() {
        return Err(unsteady(change, what));
    }
    if !options.without_git {
        crate::git::bring_over(
            change,
            &roots,
            &reading,
            (selection, options),
            &mut applied,
            afterwards,
        )?;
    }
    if afterwards == Afterwards::Keep {
        outlast_a_tick(change)?;
    }
    Ok(applied)
}

/// Waits until what the agent writes from now on has another time than what was applied: stamps
/// of files are as coarse as the kernel's tick.
fn outlast_a_tick(change: &Change) -> Result<(), WorkspaceError> {
    const TICK: std::time::Duration = std::time::Duration::from_millis(20);
    let landed = Landed::read(change)?;
    let last = landed
        .iter()
        .filter_map(|(_, _, left)| left.changed())
        .max();
    if last.is_some_and(|last| last >= Moment::before_now(TICK)) {
        std::thread::sleep(TICK);
    }
    Ok(())
}

fn counts(action: &Action) -> bool {
    !matches!(action, Action::Finish | Action::Forget)
}

impl Change {
    /// Whether an apply would bring anything over.
    ///
    /// # Errors
    /// Where a layer cannot be read.
    pub fn has_more(
        &self,
        selection: &Selection,
        options: &ApplyOptions,
    ) -> Result<bool, WorkspaceError> {
        let any = |reading: &Reading| {
            reading.entries.iter().any(|entry| {
                let git = entry.git.is_some() && options.without_git;
                entry.status != Status::Touched
                    && !git
                    && plan::is_applied(self, entry, selection, options)
            })
        };
        // By names first: this is asked often, and the whole look takes a walk.
        Ok(any(&self.read_names(selection)?) && any(&self.read_entries(selection)?))
    }
}

/// Whether a change has nothing left that anybody would miss.
fn is_spent(change: &Change) -> Result<bool, WorkspaceError> {
    // What is left is told by names: what the host would execute of it changes nothing.
    let left = change.read_names(&Selection::everything())?;
    let nothing = left
        .entries
        .iter()
        .all(|entry| entry.status == Status::Touched && entry.obstacle.is_none());
    Ok(nothing && left.ignored.is_empty())
}

/// Completes an apply that was killed. The caller holds the change's lock.
pub(crate) fn resume(change: &Change) -> Result<(), WorkspaceError> {
    resume_with(change, Afterwards::Clear)?;
    settle(change)
}

/// Takes out of the upper layers what was applied while a cage worked on them, and is as it was
/// then. The caller holds the change's lock, and no cage works on it.
pub(crate) fn settle(change: &Change) -> Result<(), WorkspaceError> {
    let landed = Landed::read(change)?;
    if landed.is_empty() {
        return Ok(());
    }
    let step = |(layer, path, left): (usize, &Path, Left)| journal::Step {
        layer,
        path: path.to_owned(),
        action: match left {
            Left::Directory(_) => Action::Finish,
            _ => Action::Forget,
        },
        held: None,
        whole: None,
        finish: None,
        left,
        judged: None,
    };
    let journal = Journal {
        phase: Phase::Clearing,
        steps: landed.iter().map(step).collect(),
    };
    let gone = |layer: &usize| change.layers()[*layer].real.symlink_metadata().is_err();
    if !journal.layers().iter().any(gone) {
        let roots = Roots::open(change)?;
        for (layer, path, left) in landed.iter() {
            if let Left::Directory(place) = left {
                let shown = change.shown(layer, path);
                let upper = roots.upper(layer).doing("open", &shown)?;
                upper::show_all(upper, path, place).doing("clear", &shown)?;
            }
        }
        clear(change, &roots, &journal)?;
    }
    Landed::remove(change)
}

fn resume_with(change: &Change, afterwards: Afterwards) -> Result<(), WorkspaceError> {
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
        Phase::Landing | Phase::Clearing => complete(change, &roots, &mut journal, afterwards),
    }
}

/// From staged to the end.
fn complete(
    change: &Change,
    roots: &Roots,
    journal: &mut Journal,
    afterwards: Afterwards,
) -> Result<(), WorkspaceError> {
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
    match afterwards {
        Afterwards::Clear => clear(change, roots, journal)?,
        Afterwards::Keep => {
            let done = journal.steps.iter().filter(|step| step.held.is_none());
            Landed::add(
                change,
                done.map(|step| (step.layer, step.path.clone(), step.left)),
            )?;
        }
    }
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
            .filter(|planned| planned.held.is_none() && is_left(roots, planned))
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

/// Whether the upper layer is still as it was when the apply was planned: a cage may have gone on
/// since.
fn is_left(roots: &Roots, planned: &journal::Step) -> bool {
    let above = planned.path.parent().unwrap_or(Path::new(""));
    let name = planned.path.file_name().unwrap_or_default();
    let found = roots.upper(planned.layer).and_then(|upper| {
        let above = tree::open_below(upper, above)?;
        tree::look(above.as_fd(), name)
    });
    // Without a name it is the layer's own directory, which is never taken out.
    name.is_empty() || found.is_ok_and(|found| Left::of(found.as_ref()) == planned.left)
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
