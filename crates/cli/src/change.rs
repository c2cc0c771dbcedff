//! The change that a run works on: begun or continued, locked while it lasts, and what becomes
//! of it at the end.

use crate::error::CliError;
use crate::places;
use ironcage_model::CageId;
use ironcage_plan::{ChangeLayer, ChangePlace, Overlaid, Plan, ViewOp};
use ironcage_policy::{Policy, WorkspaceMode};
use ironcage_workspace::{Change, Draft, LayerRequest, LayerRole, Lock, Store, WorkspaceError};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Which change a run is going to work on. Nothing is made or taken yet.
#[derive(Debug, Default)]
pub(crate) enum Choice {
    /// None: nothing of this run is copy-on-write.
    #[default]
    None,
    /// One that an earlier run left.
    Continue(Store, Change),
    /// A new one.
    Begin(Store, Draft),
}

impl Choice {
    /// Chooses: the pending change of the workspace, unless there is none or the user wants to
    /// start from the real files.
    pub(crate) fn make(
        home: &Path,
        workspace: &Path,
        policy: &Policy,
        fresh: bool,
    ) -> Result<Choice, CliError> {
        let mode = policy.workspace_mode.value;
        let beside = !policy.write.is_empty() && mode != WorkspaceMode::Direct;
        if !mode.is_copy_on_write() && !beside {
            return Ok(Choice::None);
        }
        let store = places::changes(home);
        if !fresh && let Some(change) = store.pending(workspace).map_err(shown)? {
            return Ok(Choice::Continue(store, change));
        }
        let draft = store.draft(workspace).map_err(shown)?;
        Ok(Choice::Begin(store, draft))
    }

    /// Where the plan puts its layers.
    pub(crate) fn place(&self) -> ChangePlace {
        match self {
            Choice::None => ChangePlace::default(),
            Choice::Begin(_, draft) => ChangePlace {
                directory: draft.directory.clone(),
                layers: Vec::new(),
            },
            Choice::Continue(_, change) => ChangePlace {
                directory: change.directory().to_owned(),
                layers: change
                    .layers()
                    .iter()
                    .map(|layer| ChangeLayer {
                        real: layer.real.clone(),
                        upper: layer.upper.clone(),
                        work: layer.work.clone(),
                    })
                    .collect(),
            },
        }
    }

    /// Makes what is missing and takes the change for this run alone.
    pub(crate) fn open(self, plan: &Plan, mode: WorkspaceMode) -> Result<Option<Open>, CliError> {
        let layers = |directory: &Path| layers(plan, directory);
        match self {
            Choice::None => Ok(None),
            Choice::Begin(store, draft) => {
                let wanted = layers(&draft.directory);
                if wanted.is_empty() {
                    return Ok(None);
                }
                let change = store
                    .create(&plan.workspace, draft, mode.name(), &wanted)
                    .map_err(shown)?;
                let lock = change.lock().map_err(shown)?;
                Ok(Some(Open {
                    store,
                    change,
                    continued: false,
                    _lock: lock,
                }))
            }
            Choice::Continue(store, mut change) => {
                let wanted = layers(change.directory());
                if wanted.is_empty() {
                    return Ok(None);
                }
                // One upper layer cannot serve two overlays at once: what either sees then is
                // undefined.
                let lock = change.lock().map_err(|error| in_use(&error))?;
                same_directories(&change)?;
                store.extend(&mut change, &wanted).map_err(shown)?;
                Ok(Some(Open {
                    store,
                    change,
                    continued: true,
                    _lock: lock,
                }))
            }
        }
    }
}

/// The overlays of a plan, as the store is to make them.
fn layers(plan: &Plan, directory: &Path) -> Vec<LayerRequest> {
    let overlays = plan.view.iter().filter_map(|item| match &item.what {
        ViewOp::Overlay {
            of, lower, upper, ..
        } => {
            let role = match of {
                Overlaid::Workspace => LayerRole::Workspace,
                Overlaid::Git => LayerRole::Git,
                Overlaid::Granted => LayerRole::Granted,
                // What is kept, and no change to be applied.
                Overlaid::Cache => return None,
            };
            Some((role, lower, upper))
        }
        _ => None,
    });
    overlays
        .map(|(role, lower, upper)| {
            let place = upper.parent().unwrap_or(upper);
            LayerRequest {
                role,
                real: lower.clone(),
                place: place
                    .strip_prefix(directory)
                    .map_or_else(|_| PathBuf::new(), Path::to_owned),
            }
        })
        .collect()
}

/// A change belongs to the directories that it was begun in, not to their names.
fn same_directories(change: &Change) -> Result<(), CliError> {
    for layer in change.layers() {
        let same = std::fs::symlink_metadata(&layer.real)
            .is_ok_and(|now| (now.dev(), now.ino()) == (layer.device, layer.inode));
        if !same {
            return Err(CliError::new(format!(
                "the change {} belongs to a {} that is gone: another directory has its name",
                change.id(),
                layer.real.display()
            ))
            .hint("--fresh starts a change of its own; the earlier one stays")
            .hint(format!("`ironcage discard {}` lets it go", change.id())));
        }
    }
    Ok(())
}

fn in_use(error: &WorkspaceError) -> CliError {
    let message = CliError::from_error(error);
    match error {
        WorkspaceError::InUse { .. } => message
            .hint("wait until that cage has ended; then this run goes on with its change")
            .hint("--fresh starts another change, from the real files"),
        _ => message,
    }
}

fn shown(error: WorkspaceError) -> CliError {
    CliError::from_error(&error)
}

/// A change that this process holds.
#[derive(Debug)]
pub(crate) struct Open {
    store: Store,
    change: Change,
    continued: bool,
    _lock: Lock,
}

impl Open {
    /// Says that the cage starts with what an earlier one left.
    pub(crate) fn announce(&self) {
        if self.continued {
            anstream::eprintln!(
                "ironcage: goes on with the pending change {}; --fresh starts from the real files",
                self.change.id()
            );
        }
    }

    /// Lets a change go that this run began and in which nothing can be: the cage did not start.
    pub(crate) fn abandon(self) -> Result<(), CliError> {
        if self.continued {
            return Ok(());
        }
        self.remove()
    }

    /// What becomes of it when the command has ended.
    pub(crate) fn finish(mut self, cage: &CageId, quiet: bool) -> Result<(), CliError> {
        if self.is_empty() {
            return self.remove();
        }
        self.change.add_cage(cage).map_err(shown)?;
        if !quiet {
            anstream::eprintln!(
                "ironcage: what it changed is kept aside as {}; the real files are as they were",
                self.change.id()
            );
        }
        Ok(())
    }

    /// Whether no layer has anything in it.
    fn is_empty(&self) -> bool {
        self.change.layers().iter().all(|layer| {
            std::fs::read_dir(&layer.upper).is_ok_and(|mut listing| listing.next().is_none())
        })
    }

    fn remove(self) -> Result<(), CliError> {
        let Open {
            store,
            change,
            _lock: lock,
            ..
        } = self;
        drop(lock);
        store.remove(&change).map_err(shown)
    }
}
