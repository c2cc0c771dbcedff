//! Asks the user yes or no.

use crate::error::CliError;
use std::io::{BufRead as _, IsTerminal as _, Write as _};

/// Asks a question that ends in `?`. Without a terminal nobody can answer, and so nothing is
/// done: the error says what was not done and which flag does it without asking.
pub(crate) fn confirm(question: &str, undone: &str, flag: &str) -> Result<bool, CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(
            CliError::new(format!("{undone}: standard input is no terminal to ask on"))
                .hint(format!("{flag} does it without asking")),
        );
    }
    let failed = |error: std::io::Error| CliError::new(format!("cannot ask: {error}"));
    anstream::print!("{question} [y/N] ");
    std::io::stdout().flush().map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
