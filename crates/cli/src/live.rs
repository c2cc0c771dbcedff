//! Applies a change while a cage works on it: the cage stands still, the change is brought over,
//! the cage's view is renewed, and it goes on.

use crate::error::CliError;
use crate::pending::shown;
use crate::running::said;
use ironcage_control::Request;
use ironcage_model::Printable;
use ironcage_runtime::client::{ClientError, Connection};
use ironcage_workspace::{
    Applied, ApplyOptions, Applying, Change, Moved, Selection, Store, WorkspaceError,
};
use std::time::{Duration, Instant};

/// How often a change that is followed is looked at.
const LOOK: Duration = Duration::from_millis(300);

/// How long the end of a run may take that has a change in use.
const LAST: Duration = Duration::from_secs(60);
/// How often it is tried when something in the cage moves after all.
const TRIES: u32 = 5;

/// What is done with a change whose cage stands still; it asks what moved all the same.
type Act<'a, T> = dyn FnMut(&Applying, &mut Moved<'_>) -> Result<T, WorkspaceError> + 'a;

/// A change with the running cage that works on it.
#[derive(Debug)]
pub(crate) struct Live<'a> {
    pub(crate) store: &'a Store,
    pub(crate) change: &'a Change,
    pub(crate) cage: &'a Connection,
}

/// What came of an apply, and whether the cage still runs.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) applied: Applied,
    pub(crate) runs: bool,
}

impl Live<'_> {
    /// Applies the selected part. Nothing is done where the cage does not stand still.
    pub(crate) fn apply(
        &self,
        selection: &Selection,
        options: &ApplyOptions,
    ) -> Result<Round, CliError> {
        let (applied, runs) = self.while_held(&mut |applying, moved| {
            self.store
                .apply_running(self.change, applying, selection, options, moved)
        })?;
        Ok(Round { applied, runs })
    }

    /// Keeps the state of the change by a name.
    pub(crate) fn snapshot(&self, name: Option<&str>) -> Result<String, CliError> {
        let kept = self.while_held(&mut |applying, moved| {
            self.store
                .snapshot_running(self.change, applying, name, moved)
        });
        kept.map(|(name, _)| name)
    }

    /// Makes a second change from the same state.
    pub(crate) fn fork(&self) -> Result<Change, CliError> {
        let forked = self.while_held(&mut |applying, moved| {
            self.store.fork_running(self.change, applying, moved)
        });
        forked.map(|(change, _)| change)
    }

    /// Does something while the cage stands still. Whether it still runs afterwards.
    fn while_held<T>(&self, act: &mut Act<'_, T>) -> Result<(T, bool), CliError> {
        // Before the cage is asked: its end waits for this.
        let applying = self
            .change
            .begin_applying()
            .map_err(|error| shown(&error))?;
        let mut tries = 1..TRIES;
        let (result, released) = loop {
            let held = self.cage.hold().map_err(said)?;
            let result = act(&applying, &mut || held.moved());
            let released = held.release();
            match &result {
                Err(WorkspaceError::Unsteady { .. }) if tries.next().is_some() => {}
                _ => break (result, released),
            }
        };
        let done = result.map_err(|error| shown(&error))?;
        let runs = match released {
            Ok(None) => true,
            Ok(Some(stale)) => {
                anstream::eprintln!(
                    "ironcage: the cage may still see real files as they were: {}",
                    Printable::new(&stale)
                );
                true
            }
            Err(ClientError::Gone { .. }) => false,
            Err(error) => return Err(said(error)),
        };
        Ok((done, runs))
    }

    /// Applies what changes, until the cage is gone, and then what it wrote last. What came of
    /// that, unless nothing was left of the change.
    pub(crate) fn follow(
        &self,
        selection: &Selection,
        options: &ApplyOptions,
        mut tell: impl FnMut(&Applied),
    ) -> Result<Option<Applied>, CliError> {
        while self.change.directory().is_dir() {
            let ripe = self
                .change
                .has_more(selection, options)
                .map_err(|error| shown(&error))?;
            if ripe {
                match self.apply(selection, options) {
                    Ok(round) => {
                        if round.applied.done > 0 {
                            tell(&round.applied);
                        }
                        if !round.runs {
                            break;
                        }
                    }
                    Err(error) if self.is_over() => {
                        // It ended in between.
                        drop(error);
                        break;
                    }
                    Err(error) => return Err(error),
                }
            } else if self.is_over() {
                break;
            }
            std::thread::sleep(LOOK);
        }
        self.apply_last(selection, options)
    }

    /// Applies what is left when the run of the cage has let its change go.
    fn apply_last(
        &self,
        selection: &Selection,
        options: &ApplyOptions,
    ) -> Result<Option<Applied>, CliError> {
        let begun = Instant::now();
        loop {
            let applied = self.store.apply(self.change, selection, options);
            // Its run removes a change in which nothing is.
            if !self.change.directory().is_dir() {
                return Ok(applied.ok());
            }
            match applied {
                Err(WorkspaceError::InUse { .. }) if begun.elapsed() < LAST => {
                    std::thread::sleep(LOOK);
                }
                other => return other.map(Some).map_err(|error| shown(&error)),
            }
        }
    }

    fn is_over(&self) -> bool {
        let asked = self.cage.ask(&Request::Describe);
        matches!(asked, Err(ClientError::Gone { .. }))
    }
}
