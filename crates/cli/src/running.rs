//! Running cages, as commands meet them: find one, and say what stands against it.

use crate::error::CliError;
use crate::pending::shown;
use ironcage_control::{Reply, Request};
use ironcage_model::CageId;
use ironcage_runtime::client::{Cages, ClientError, Connection, Found};
use ironcage_workspace::{Change, Store};

/// The cages of this user.
pub(crate) fn cages() -> Result<Cages, CliError> {
    Cages::of_user().map_err(said)
}

/// The cage that a user means, running or not.
pub(crate) fn find(cages: &Cages, text: &str) -> Result<CageId, CliError> {
    cages.find(text).map_err(said)
}

/// Connects to the running cage that a user means.
pub(crate) fn connect(text: &str) -> Result<Connection, CliError> {
    let cages = cages()?;
    let id = find(&cages, text)?;
    cages.connect(&id).map_err(said)
}

/// The pending change that a running cage works on.
pub(crate) fn change_of(store: &Store, cage: &Connection) -> Result<Option<Change>, CliError> {
    let Reply::Description(description) = cage.ask(&Request::Describe).map_err(said)? else {
        return Ok(None);
    };
    let changes = store.list().map_err(|error| shown(&error))?.into_iter();
    let mut mine =
        changes.filter(|change| Some(change.id().as_str()) == description.change.as_deref());
    Ok(mine.next())
}

/// Connects to the running cage that works on a pending change.
pub(crate) fn working_on(change: &Change) -> Result<Option<Connection>, CliError> {
    let cages = cages()?;
    for found in cages.running().map_err(said)? {
        if let Found::Answered(description) = found
            && description.change.as_deref() == Some(change.id().as_str())
        {
            let cage = cages.connect(&description.id).map_err(said)?;
            // The supervisor looks at who it is when it answers, not when somebody knocks.
            cage.ask(&Request::Describe).map_err(said)?;
            return Ok(Some(cage));
        }
    }
    Ok(None)
}

/// An error in words, with what can be done.
pub(crate) fn said(error: ClientError) -> CliError {
    let shown = CliError::from_error(&error);
    match error {
        ClientError::NotFound { .. } => {
            shown.hint("`ironcage ps -a` lists cages; `ironcage audit list` lists records")
        }
        ClientError::Ambiguous { .. } => shown.hint("write more of the id"),
        ClientError::NotRunning { id } => {
            shown.hint(format!("`ironcage audit show {id}` shows what it did"))
        }
        ClientError::Gone { id } => shown.hint(format!(
            "`ironcage audit show {id}` shows what was recorded"
        )),
        _ => shown,
    }
}
