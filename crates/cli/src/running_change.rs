//! Applies, snapshots or forks a change while a cage works on it: the supervisor pauses the cage,
//! the change is applied, the cage's mount view is refreshed, and the cage continues.

use crate::cages::client_error;
use crate::error::CliError;
use crate::pending_change::change_error;
use ironcage_client::{ClientError, Connection};
use ironcage_control::Request;
use ironcage_model::Printable;
use ironcage_workspace::{
    Applied, ApplyOptions, Applying, Change, Moved, Selection, Store, WorkspaceError,
};
use std::time::{Duration, Instant};

/// How often a followed change is checked.
const POLL: Duration = Duration::from_millis(300);

/// How long an ending run may take to release its change.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);
/// Attempts when something in the paused cage still changes files.
const TRIES: u32 = 5;

/// An operation on a change whose cage is paused; it can ask which files changed all the same.
type PausedOperation<'a, T> =
    dyn FnMut(&Applying, &mut Moved<'_>) -> Result<T, WorkspaceError> + 'a;

/// A change with the running cage that works on it.
#[derive(Debug)]
pub(crate) struct RunningChange<'a> {
    pub(crate) store: &'a Store,
    pub(crate) change: &'a Change,
    pub(crate) cage: &'a Connection,
}

#[derive(Debug)]
pub(crate) struct ApplyRound {
    pub(crate) applied: Applied,
    pub(crate) runs: bool,
}

impl<'a> RunningChange<'a> {
    pub(crate) fn new(store: &'a Store, change: &'a Change, cage: &'a Connection) -> Self {
        RunningChange {
            store,
            change,
            cage,
        }
    }

    /// Applies the selected part. Nothing is done if the cage cannot be paused.
    pub(crate) fn apply(
        &self,
        selection: &Selection,
        options: &ApplyOptions,
    ) -> Result<ApplyRound, CliError> {
        self.apply_if(selection, options, &|| Ok(()))
    }

    /// The same, where nothing speaks against it once the cage stands still.
    pub(crate) fn apply_if(
        &self,
        selection: &Selection,
        options: &ApplyOptions,
        check: &dyn Fn() -> Result<(), WorkspaceError>,
    ) -> Result<ApplyRound, CliError> {
        let (applied, runs) = self.while_held(&mut |applying, moved| {
            check()?;
            self.store
                .apply_running(self.change, applying, selection, options, moved)
        })?;
        Ok(ApplyRound { applied, runs })
    }

    pub(crate) fn snapshot(&self, name: Option<&str>) -> Result<String, CliError> {
        let kept = self.while_held(&mut |applying, moved| {
            self.store
                .snapshot_running(self.change, applying, name, moved)
        });
        kept.map(|(name, _)| name)
    }

    pub(crate) fn fork(&self) -> Result<Change, CliError> {
        let forked = self.while_held(&mut |applying, moved| {
            self.store.fork_running(self.change, applying, moved)
        });
        forked.map(|(change, _)| change)
    }

    /// Pauses the cage for an operation; returns whether the cage still runs afterwards.
    fn while_held<T>(&self, act: &mut PausedOperation<'_, T>) -> Result<(T, bool), CliError> {
        // Before the cage is paused: the end of its run waits for this.
        let applying = self
            .change
            .begin_applying()
            .map_err(|error| change_error(&error))?;
        let mut tries = 1..TRIES;
        let (result, released) = loop {
            let held = self.cage.hold().map_err(client_error)?;
            let result = act(&applying, &mut || held.moved());
            let released = held.release();
            match &result {
                Err(WorkspaceError::Unsteady { .. }) if tries.next().is_some() => {}
                _ => break (result, released),
            }
        };
        let done = result.map_err(|error| change_error(&error))?;
        let runs = match released {
            Ok(None) => true,
            Ok(Some(stale)) => {
                anstream::eprintln!(
                    "ironcage: the cage may still see old versions of real files: {}",
                    Printable::new(&stale)
                );
                true
            }
            Err(ClientError::Gone { .. }) => false,
            Err(error) => return Err(client_error(error)),
        };
        Ok((done, runs))
    }

    /// Applies files as they change until the cage ends, and then what it wrote last. Returns the
    /// outcome of that last apply, unless nothing was left of the change.
    pub(crate) fn follow(
        &self,
        selection: &Selection,
        options: &ApplyOptions,
        mut report: impl FnMut(&Applied),
    ) -> Result<Option<Applied>, CliError> {
        while self.change.directory().is_dir() {
            let ripe = self
                .change
                .has_more(selection, options)
                .map_err(|error| change_error(&error))?;
            if ripe {
                match self.apply(selection, options) {
                    Ok(round) => {
                        if round.applied.done > 0 {
                            report(&round.applied);
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
            std::thread::sleep(POLL);
        }
        self.apply_last(selection, options)
    }

    /// Applies the rest once the cage's run has released the change.
    fn apply_last(
        &self,
        selection: &Selection,
        options: &ApplyOptions,
    ) -> Result<Option<Applied>, CliError> {
        let begun = Instant::now();
        loop {
            let applied = self.store.apply(self.change, selection, options);
            // The run removes an empty change.
            if !self.change.directory().is_dir() {
                return Ok(applied.ok());
            }
            match applied {
                Err(WorkspaceError::InUse { .. }) if begun.elapsed() < RELEASE_TIMEOUT => {
                    std::thread::sleep(POLL);
                }
                other => return other.map(Some).map_err(|error| change_error(&error)),
            }
        }
    }

    fn is_over(&self) -> bool {
        let asked = self.cage.ask(&Request::Describe);
        matches!(asked, Err(ClientError::Gone { .. }))
    }
}
