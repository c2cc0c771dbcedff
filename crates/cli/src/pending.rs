//! The pending change that a command is about, and the part of it.

use crate::error::CliError;
use crate::{places, running};
use ironcage_runtime::client::Connection;
use ironcage_workspace::{Change, ChangeId, Selection, Store, WorkspaceError, take_owners_rights};
use std::path::{Path, PathBuf};

/// The shortest beginning of an id that is taken for one.
const SHORTEST: usize = 3;

/// The change, and which part of it.
#[derive(Debug, clap::Args)]
pub(crate) struct PendingArgs {
    /// The change's id, then paths in it [default: the workspace's pending change, all of it]
    #[arg(value_name = "ID|PATH", add = crate::completed::changes())]
    what: Vec<PathBuf>,
    #[command(flatten)]
    workspace: WorkspaceArgs,
}

/// The workspace that a command is about.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkspaceArgs {
    /// The workspace whose pending change is meant [default: the one that `ironcage run` takes]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
}

impl WorkspaceArgs {
    /// The store, and the workspace's real path.
    pub(crate) fn find(self) -> Result<(Store, PathBuf), CliError> {
        let home = places::home()?;
        let workspace = self.resolve(&current_directory()?, &home)?;
        Ok((places::changes(&home), workspace))
    }

    /// The same. From then on this process is above the modes of its user's files.
    pub(crate) fn open(self) -> Result<(Store, PathBuf), CliError> {
        let found = self.find()?;
        // Refused on hosts without user namespaces: what cannot be read there is told.
        let _ = take_owners_rights();
        Ok(found)
    }

    fn resolve(&self, cwd: &Path, home: &Path) -> Result<PathBuf, CliError> {
        match &self.workspace {
            // One that is gone can still have a pending change.
            Some(named) => std::fs::canonicalize(named)
                .or_else(|_| std::path::absolute(named))
                .map_err(|error| CliError::new(format!("{}: {error}", named.display()))),
            None => Ok(places::workspace_around(cwd, home)),
        }
    }
}

fn current_directory() -> Result<PathBuf, CliError> {
    std::env::current_dir()
        .map_err(|error| CliError::new(format!("cannot tell the current directory: {error}")))
}

/// A change that was found, and the part of it that was named.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) store: Store,
    pub(crate) change: Change,
    pub(crate) selection: Selection,
    /// The running cage that works on it, where it was asked for.
    pub(crate) cage: Option<Connection>,
}

impl PendingArgs {
    /// Finds the change. From then on this process is above the modes of its user's files.
    pub(crate) fn find(self) -> Result<Pending, CliError> {
        self.find_and(|_| Ok(None))
    }

    /// The same, with the running cage that works on the change.
    pub(crate) fn find_with_cage(self) -> Result<Pending, CliError> {
        self.find_and(cage_of)
    }

    fn find_and(
        self,
        cage: impl FnOnce(&Change) -> Result<Option<Connection>, CliError>,
    ) -> Result<Pending, CliError> {
        let home = places::home()?;
        let store = places::changes(&home);
        let cwd = current_directory()?;
        let mut paths = self.what;
        let first = paths.first().and_then(|first| first.to_str());
        let id = match first {
            Some(first) if !cwd.join(first).exists() => begun(&store, first)?,
            _ => None,
        };
        let id = id.or_else(|| first.and_then(|first| first.parse::<ChangeId>().ok()));
        let by_id = match id {
            Some(id) => match store.find(&id) {
                Ok(change) => Some(change),
                // A file may be called like that.
                Err(WorkspaceError::Unknown { .. }) if cwd.join(id.as_str()).exists() => None,
                Err(error) => return Err(shown(&error).hint("`ironcage changes` lists them")),
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
        // Before this process leaves the namespace in which cages know their users.
        let cage = cage(&change)?;
        // Refused on hosts without user namespaces: what cannot be read there is told.
        let _ = take_owners_rights();
        let selection = Selection::of(&change, &cwd, &paths).map_err(|error| shown(&error))?;
        Ok(Pending {
            store,
            change,
            selection,
            cage,
        })
    }
}

/// The running cage that works on a change, if one does. To be asked for before this process
/// leaves the namespace in which cages know their users.
pub(crate) fn cage_of(change: &Change) -> Result<Option<Connection>, CliError> {
    match change.in_use() {
        true => running::working_on(change),
        false => Ok(None),
    }
}

impl Pending {
    /// The same, if all that was named is in the change.
    pub(crate) fn with_all_named(self) -> Result<Pending, CliError> {
        let missing = self
            .change
            .missing(&self.selection)
            .map_err(|error| shown(&error))?;
        match missing {
            None => Ok(self),
            Some(path) => Err(shown(&WorkspaceError::NotThere {
                path,
                id: self.change.id().clone(),
            })),
        }
    }
}

/// The id that begins so, where that can be the beginning of one and is of one alone.
fn begun(store: &Store, text: &str) -> Result<Option<ChangeId>, CliError> {
    if text.len() < SHORTEST || !text.starts_with('w') {
        return Ok(None);
    }
    let changes = store.list().map_err(|error| shown(&error))?;
    let ids = changes.iter().map(Change::id);
    let mut ids = ids.filter(|id| id.as_str().starts_with(text));
    match (ids.next(), ids.next()) {
        (Some(_), Some(_)) => Err(CliError::new(format!(
            "more than one change begins with {}",
            ironcage_model::Printable::new(text)
        ))
        .hint("write more of the id; `ironcage changes` lists them")),
        (id, _) => Ok(id.cloned()),
    }
}

/// Tells where the change of a cage is that has ended, if it left one.
pub(crate) fn tell_left(cage: &ironcage_model::CageId) -> Result<(), CliError> {
    let store = places::changes(&places::home()?);
    let changes = store.list().map_err(|error| shown(&error))?;
    if let Some(left) = changes
        .iter()
        .find(|change| change.cages().last() == Some(cage))
    {
        let id = left.id();
        anstream::eprintln!(
            "ironcage: what the cage changed is kept aside as {id}: `ironcage diff {id}` shows it"
        );
    }
    Ok(())
}

/// The change that the next run in a workspace continues.
pub(crate) fn pending(store: &Store, workspace: &Path) -> Result<Change, CliError> {
    store
        .pending(workspace)
        .map_err(|error| shown(&error))?
        .ok_or_else(|| {
            let shown = ironcage_model::Printable::new(workspace);
            CliError::new(format!("nothing is pending for {shown}"))
                .hint("`ironcage changes` lists the changes of all workspaces")
        })
}

/// An error of a change, with what can be done about it.
pub(crate) fn shown(error: &WorkspaceError) -> CliError {
    let message = CliError::from_error(error);
    match error {
        WorkspaceError::InUse { .. } => {
            message.hint("end the cage that works on it, then run this again")
        }
        WorkspaceError::Elsewhere { .. } | WorkspaceError::NotThere { .. } => {
            message.hint("paths are taken from the current directory")
        }
        _ => message,
    }
}
