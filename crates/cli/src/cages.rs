//! Running cages: commands find one, connect to it, and render its errors here.

use crate::error::CliError;
use crate::failure::FailureCode;
use crate::pending_change::change_error;
use ironcage_client::{Cages, ClientError, Connection, RunningCage};
use ironcage_control::{Reply, Request};
use ironcage_model::CageId;
use ironcage_workspace::{Change, Store};

/// Every cage of this user.
pub(crate) fn all() -> Result<Cages, CliError> {
    Cages::of_user().map_err(client_error)
}

/// The cage that an argument names, running or not.
pub(crate) fn find(cages: &Cages, text: &str) -> Result<CageId, CliError> {
    cages.find(text).map_err(client_error)
}

/// Connects to the running cage that an argument names.
pub(crate) fn connect(text: &str) -> Result<Connection, CliError> {
    let cages = all()?;
    let id = find(&cages, text)?;
    cages.connect(&id).map_err(client_error)
}

/// The pending change that a running cage works on.
pub(crate) fn change_of(store: &Store, cage: &Connection) -> Result<Option<Change>, CliError> {
    let Reply::Description(description) = cage.ask(&Request::Describe).map_err(client_error)?
    else {
        return Ok(None);
    };
    let changes = store.list().map_err(|error| change_error(&error))?;
    let mut mine = changes
        .into_iter()
        .filter(|change| Some(change.id().as_str()) == description.change.as_deref());
    Ok(mine.next())
}

/// Connects to the running cage that works on a pending change.
pub(crate) fn working_on(change: &Change) -> Result<Option<Connection>, CliError> {
    let cages = all()?;
    for found in cages.running().map_err(client_error)? {
        if let RunningCage::Answered(description) = found
            && description.change.as_deref() == Some(change.id().as_str())
        {
            let cage = cages.connect(&description.id).map_err(client_error)?;
            // The supervisor checks the peer when it answers, not when a connection is made.
            cage.ask(&Request::Describe).map_err(client_error)?;
            return Ok(Some(cage));
        }
    }
    Ok(None)
}

/// A reply of another kind than the request's.
pub(crate) fn unexpected(reply: &Reply) -> CliError {
    client_error(ClientError::Answer(format!("{reply:?}")))
}

/// An error of the connection to a cage, with a hint where there is something to do.
pub(crate) fn client_error(error: ClientError) -> CliError {
    let message = CliError::from_error(&error);
    match error {
        ClientError::NotFound { .. } => message
            .hint("`ironcage ps -a` lists cages; `ironcage audit list` lists their logs")
            .with_failure(FailureCode::NoSuchCage),
        ClientError::Container { .. } => message
            .hint("`ironcage stop` and `ironcage audit` work with it; its engine does the rest"),
        ClientError::Ambiguous { .. } => message
            .hint("type more of the ID")
            .with_failure(FailureCode::CageAmbiguous),
        ClientError::Refused { reason } => message.with_denial(&reason),
        ClientError::NotGiven { refused } => match refused.first() {
            Some(first) => message.with_denial(&first.reason),
            None => message,
        },
        ClientError::NotRunning { id } | ClientError::Gone { id } => message
            .hint(format!("`ironcage audit show {id}` shows what it did"))
            .with_failure(FailureCode::CageNotRunning),
        _ => message,
    }
}
