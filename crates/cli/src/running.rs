//! Running cages, as commands meet them: find one, and say what stands against it.

use crate::error::CliError;
use ironcage_model::CageId;
use ironcage_runtime::client::{Cages, ClientError, Connection};

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
