//! Finds the pending change that a command names, and the part of it.

use crate::error::CliError;
use crate::failure::FailureCode;
use crate::{cages, paths};
use ironcage_client::Connection;
use ironcage_host::SystemFiles;
use ironcage_workspace::{Change, ChangeId, Selection, Store, WorkspaceError, take_owners_rights};
use std::path::{Path, PathBuf};

/// The shortest prefix that is taken for a change ID.
const SHORTEST: usize = 3;

/// Arguments that name a change and a part of it.
#[derive(Debug, clap::Args)]
pub(crate) struct ChangeArgs {
    /// Change ID, then paths in the change [default: all of the workspace's pending change]
    #[arg(value_name = "ID|PATH", add = crate::completion::changes())]
    what: Vec<PathBuf>,
    #[command(flatten)]
    workspace: WorkspaceArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct WorkspaceArgs {
    /// Workspace of the change [default: the one that `ironcage run` would use]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
}

impl WorkspaceArgs {
    pub(crate) fn find(self) -> Result<(Store, PathBuf), CliError> {
        let home = paths::home(&SystemFiles::default())?;
        let workspace = self.resolve(&current_directory()?, &home)?;
        Ok((paths::changes(&home, &SystemFiles::default()), workspace))
    }

    /// The same; from then on this process overrides the modes of its user's files.
    pub(crate) fn open(self) -> Result<(Store, PathBuf), CliError> {
        let found = self.find()?;
        // Refused on hosts without user namespaces; a file that cannot be read there is reported.
        let _ = take_owners_rights();
        Ok(found)
    }

    fn resolve(&self, cwd: &Path, home: &Path) -> Result<PathBuf, CliError> {
        match &self.workspace {
            // A deleted workspace can still have a pending change.
            Some(named) => std::fs::canonicalize(named)
                .or_else(|_| std::path::absolute(named))
                .map_err(|error| {
                    CliError::new(format!("cannot resolve {}: {error}", named.display()))
                }),
            None => Ok(paths::workspace_around(cwd, home, &SystemFiles::default())),
        }
    }
}

fn current_directory() -> Result<PathBuf, CliError> {
    std::env::current_dir()
        .map_err(|error| CliError::new(format!("cannot determine the current directory: {error}")))
}

/// A change, and the part of it that the arguments name.
#[derive(Debug)]
pub(crate) struct PendingChange {
    pub(crate) store: Store,
    pub(crate) change: Change,
    pub(crate) selection: Selection,
    /// The running cage that works on the change; only `find_with_cage` fills it.
    pub(crate) cage: Option<Connection>,
}

impl ChangeArgs {
    /// Finds the change. From then on this process overrides the modes of its user's files.
    pub(crate) fn find(self) -> Result<PendingChange, CliError> {
        self.find_and(|_| Ok(None))
    }

    pub(crate) fn find_with_cage(self) -> Result<PendingChange, CliError> {
        self.find_and(cage_of)
    }

    fn find_and(
        self,
        cage: impl FnOnce(&Change) -> Result<Option<Connection>, CliError>,
    ) -> Result<PendingChange, CliError> {
        let home = paths::home(&SystemFiles::default())?;
        let store = paths::changes(&home, &SystemFiles::default());
        let cwd = current_directory()?;
        let mut paths = self.what;
        let first = paths.first().and_then(|first| first.to_str());
        let id = match first {
            Some(first) if !cwd.join(first).exists() => find_prefix(&store, first)?,
            _ => None,
        };
        let id = id.or_else(|| first.and_then(|first| first.parse::<ChangeId>().ok()));
        let by_id = match id {
            Some(id) => match store.find(&id) {
                Ok(change) => Some(change),
                // A file can have the form of an ID.
                Err(WorkspaceError::Unknown { .. }) if cwd.join(id.as_str()).exists() => None,
                Err(error) => {
                    return Err(
                        change_error(&error).hint("`ironcage change list` lists pending changes")
                    );
                }
            },
            None => None,
        };
        let change = match by_id {
            Some(change) => {
                paths.remove(0);
                change
            }
            None => {
                let workspace = self.workspace.resolve(&cwd, &home)?;
                pending(&store, &workspace)?
            }
        };
        // Before this process enters a user namespace: the supervisor would no longer accept it.
        let cage = cage(&change)?;
        // Refused on hosts without user namespaces; a file that cannot be read there is reported.
        let _ = take_owners_rights();
        let selection =
            Selection::of(&change, &cwd, &paths).map_err(|error| change_error(&error))?;
        Ok(PendingChange {
            store,
            change,
            selection,
            cage,
        })
    }
}

/// The running cage that works on a change. Call it before this process enters a user namespace:
/// the supervisor would no longer accept the connection.
pub(crate) fn cage_of(change: &Change) -> Result<Option<Connection>, CliError> {
    match change.in_use() {
        true => cages::working_on(change),
        false => Ok(None),
    }
}

impl PendingChange {
    /// Fails unless every named path is in the change.
    pub(crate) fn with_all_named(self) -> Result<PendingChange, CliError> {
        let missing = self
            .change
            .missing(&self.selection)
            .map_err(|error| change_error(&error))?;
        match missing {
            None => Ok(self),
            Some(path) => Err(change_error(&WorkspaceError::NotThere {
                path,
                id: self.change.id().clone(),
            })),
        }
    }
}

/// The only ID with this prefix.
fn find_prefix(store: &Store, text: &str) -> Result<Option<ChangeId>, CliError> {
    if text.len() < SHORTEST || !text.starts_with('w') {
        return Ok(None);
    }
    let changes = store.list().map_err(|error| change_error(&error))?;
    let ids = changes.iter().map(Change::id);
    let mut ids = ids.filter(|id| id.as_str().starts_with(text));
    match (ids.next(), ids.next()) {
        (Some(_), Some(_)) => Err(CliError::new(format!(
            "more than one change has an ID that starts with {}",
            ironcage_model::Printable::new(text)
        ))
        .hint("type more of the ID; `ironcage change list` lists pending changes")),
        (id, _) => Ok(id.cloned()),
    }
}

/// Reports the pending change that an ended cage left.
pub(crate) fn report_left(cage: &ironcage_model::CageId) -> Result<(), CliError> {
    let store = paths::changes(
        &paths::home(&SystemFiles::default())?,
        &SystemFiles::default(),
    );
    let changes = store.list().map_err(|error| change_error(&error))?;
    if let Some(left) = changes
        .iter()
        .find(|change| change.cages().last() == Some(cage))
    {
        let id = left.id();
        anstream::eprintln!(
            "ironcage: the cage left pending change {id}; `ironcage diff {id}` to review"
        );
    }
    Ok(())
}

/// The change that the next run in a workspace continues.
pub(crate) fn pending(store: &Store, workspace: &Path) -> Result<Change, CliError> {
    store
        .pending(workspace)
        .map_err(|error| change_error(&error))?
        .ok_or_else(|| {
            let shown = ironcage_model::Printable::new(workspace);
            CliError::new(format!("no pending change for {shown}"))
                .with_failure(FailureCode::NoPendingChange)
                .hint("`ironcage change list` lists the changes of all workspaces")
        })
}

/// An error of a change, with a hint where there is something to do.
pub(crate) fn change_error(error: &WorkspaceError) -> CliError {
    let message = CliError::from_error(error);
    match error {
        WorkspaceError::InUse { .. } => message
            .with_failure(FailureCode::ChangeInUse)
            .hint("stop the cage that works on it, then run this again"),
        WorkspaceError::InMemory { .. } => message.with_failure(FailureCode::ChangeInMemory),
        WorkspaceError::Unknown { .. } => message.with_failure(FailureCode::NoSuchChange),
        WorkspaceError::NotReviewed { .. } => message
            .with_failure(FailureCode::ChangeNotReviewed)
            .hint("review it again: `ironcage diff`"),
        WorkspaceError::Elsewhere { .. } | WorkspaceError::NotThere { .. } => message
            .with_failure(FailureCode::NotInChange)
            .hint("paths are relative to the current directory"),
        _ => message,
    }
}
