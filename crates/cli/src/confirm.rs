//! Yes-or-no prompts.

use crate::error::CliError;
use crate::failure::FailureCode;
use std::io::{BufRead as _, IsTerminal as _, Write as _};

/// Asks a question that ends in `?`. Without a terminal nobody can answer, so nothing is done:
/// the error says what was not done, and which flag does it without a prompt.
pub(crate) fn confirm(question: &str, undone: &str, flag: &str) -> Result<bool, CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::new(format!(
            "{undone}: cannot ask for confirmation, standard input is not a terminal"
        ))
        .with_failure(FailureCode::ConfirmationNeeded)
        .hint(format!("{flag} skips the prompt")));
    }
    let failed =
        |error: std::io::Error| CliError::new(format!("cannot ask for confirmation: {error}"));
    anstream::print!("{question} [y/N] ");
    std::io::stdout().flush().map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
