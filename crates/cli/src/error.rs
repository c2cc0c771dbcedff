//! Errors as the user meets them: what happened, why, what to do.

use std::fmt;

/// Exit status for Ironcage's own errors, so that they cannot be taken for the command's.
pub(crate) const EXIT_OURS: u8 = 125;

/// An error on its way to the terminal.
#[derive(Debug)]
pub(crate) struct CliError {
    message: String,
    hints: Vec<String>,
}

/// What every command returns: an exit status, or an error to print.
pub(crate) type CommandResult = Result<u8, CliError>;

impl CliError {
    /// An error that says what happened, naming the object.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        CliError {
            message: message.to_string(),
            hints: Vec::new(),
        }
    }

    /// From an error value, with the chain of its sources on one line.
    pub(crate) fn from_error(error: &dyn std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            let text = inner.to_string();
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = inner.source();
        }
        CliError::new(message)
    }

    /// Adds what the user can do about it.
    pub(crate) fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hints.push(hint.to_string());
        self
    }

    /// Prints the error on standard error.
    pub(crate) fn print(&self) {
        anstream::eprintln!("ironcage: {}", self.message);
        for hint in &self.hints {
            anstream::eprintln!("  hint: {hint}");
        }
    }
}
