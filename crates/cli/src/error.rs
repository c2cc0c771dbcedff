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

/// A message without the numbers that the standard library puts behind the kernel's words:
/// `No such file or directory (os error 2)`.
pub(crate) fn without_numbers(message: &str) -> String {
    const BEFORE: &str = " (os error ";
    let mut text = String::new();
    let mut rest = message;
    while let Some((words, after)) = rest.split_once(BEFORE) {
        text.push_str(words);
        match after.split_once(')') {
            Some((number, tail)) if number.bytes().all(|byte| byte.is_ascii_digit()) => rest = tail,
            _ => {
                text.push_str(BEFORE);
                rest = after;
            }
        }
    }
    text.push_str(rest);
    text
}

impl CliError {
    /// An error that says what happened, naming the object.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        CliError {
            message: without_numbers(&message.to_string()),
            hints: Vec::new(),
        }
    }

    /// From an error value, with the chain of its sources on one line.
    pub(crate) fn from_error(error: &dyn std::error::Error) -> Self {
        CliError::new(ironcage_model::in_full(error))
    }

    /// Adds what the user can do about it.
    pub(crate) fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hints.push(hint.to_string());
        self
    }

    /// What happened, without what can be done about it.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Prints the error on standard error.
    pub(crate) fn print(&self) {
        anstream::eprintln!("ironcage: {}", self.message);
        for hint in &self.hints {
            anstream::eprintln!("  hint: {hint}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_errors_are_left_out_and_nothing_else() {
        let of = |text: &str| without_numbers(text);
        assert_eq!(of("x: No such file (os error 2)"), "x: No such file");
        assert_eq!(of("a (os error 2): b (os error 13) c"), "a: b c");
        for kept in ["(os error ", "x (os error x)", "x (os error 2", "plain"] {
            assert_eq!(of(kept), kept);
        }
    }
}
