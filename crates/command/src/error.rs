//! Errors for the user: what failed, why, and what to do.

use crate::failure::FailureCode;
use crate::json;
use ironcage_model::{Printable, Reason, StartCode};
use std::fmt;

/// Exit status for Ironcage's own errors, so that they cannot be taken for the command's.
pub const EXIT_OURS: u8 = 125;

/// With this variable set, errors have their code in brackets behind the message: for scripts, and
/// for the tests. With the value `json`, an error is one JSON object on a line: for the SDKs.
const WITH_CODES: &str = "IRONCAGE_ERROR_CODES";

/// An error for the terminal.
#[derive(Debug)]
pub struct CliError {
    message: String,
    hints: Vec<String>,
    code: Option<StartCode>,
    /// The code of a denial.
    denial: Option<String>,
    failure: Option<FailureCode>,
}

/// An exit status, or an error to print.
pub type CommandResult = Result<u8, CliError>;

/// Removes the errno that the standard library appends: `No such file or directory (os error 2)`.
pub fn without_numbers(message: &str) -> String {
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

/// Escapes what acts on a terminal: errors quote paths and the answers of servers. Lines stay
/// lines.
fn printable(text: &str) -> String {
    let lines: Vec<String> = text
        .split('\n')
        .map(|line| Printable::new(line).to_string())
        .collect();
    lines.join("\n")
}

impl CliError {
    /// `message` is `cannot VERB OBJECT: CAUSE`.
    pub fn new(message: impl fmt::Display) -> Self {
        CliError {
            message: printable(&without_numbers(&message.to_string())),
            hints: Vec::new(),
            code: None,
            denial: None,
            failure: None,
        }
    }

    /// An error with the chain of its sources on one line.
    pub fn from_error(error: &dyn std::error::Error) -> Self {
        CliError::new(ironcage_model::in_full(error))
    }

    /// Adds what the user can do.
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hints.push(printable(&hint.to_string()));
        self
    }

    /// Says which failure to start it is.
    pub fn with_code(mut self, code: StartCode) -> Self {
        self.code = Some(code);
        self
    }

    /// Says which denial it is.
    pub fn with_denial(mut self, reason: &Reason) -> Self {
        self.denial = reason.code().map(str::to_owned);
        self
    }

    /// Says which failure it is that is neither a denial nor a failed start.
    pub fn with_failure(mut self, failure: FailureCode) -> Self {
        self.failure = Some(failure);
        self
    }

    /// As programs read it: `message`, `code` if it has one, whether it is a denial, and `hints`.
    pub fn document(&self) -> serde_json::Value {
        serde_json::json!({
            "message": self.message,
            "code": self.any_code(),
            "denied": self.denial.is_some(),
            "hints": self.hints,
        })
    }

    /// The code, where a cage did not start.
    pub fn code(&self) -> Option<StartCode> {
        self.code
    }

    /// The code of whatever failed, where it has one.
    fn any_code(&self) -> Option<&str> {
        let start = self.code.map(StartCode::code);
        let failure = self.failure.map(FailureCode::code);
        start.or(self.denial.as_deref()).or(failure)
    }

    /// The message without its hints.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Prints the error on standard error.
    pub fn print(&self) {
        let document = || json::line(&serde_json::json!({ "error": self.document() })).ok();
        match std::env::var_os(WITH_CODES) {
            Some(form)
                if form == "json"
                    && let Some(line) = document() =>
            {
                anstream::eprintln!("{line}");
            }
            Some(_) => anstream::eprintln!("{}", self.text(true)),
            None => anstream::eprintln!("{self}"),
        }
    }

    fn text(&self, with_code: bool) -> String {
        let mut text = format!("ironcage: {}", self.message);
        if let Some(code) = self.any_code().filter(|_| with_code) {
            text.push_str(&format!(" [{code}]"));
        }
        for hint in &self.hints {
            text.push_str("\n  hint: ");
            text.push_str(hint);
        }
        text
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::LeaseReason;

    #[test]
    fn nothing_that_an_error_quotes_acts_on_a_terminal() {
        let error = CliError::new("cannot open \u{1b}[2Ja\nb é").hint("try \u{9b}6n");
        assert_eq!(
            error.to_string(),
            "ironcage: cannot open \\u{1b}[2Ja\nb é\n  hint: try \\u{9b}6n"
        );
    }

    #[test]
    fn the_code_stands_behind_the_message_where_it_is_asked_for() {
        let start = CliError::new("cannot start")
            .with_code(StartCode::NoCommand)
            .hint("try");
        assert_eq!(start.to_string(), "ironcage: cannot start\n  hint: try");
        let code = StartCode::NoCommand.code();
        assert_eq!(
            start.text(true),
            format!("ironcage: cannot start [{code}]\n  hint: try")
        );
        let denied = CliError::new("no").with_denial(&LeaseReason::NoCeiling.into());
        assert_eq!(denied.text(true), "ironcage: no [lease-no-ceiling]");
        assert_eq!(CliError::new("no").text(true), "ironcage: no");
    }

    #[test]
    fn programs_read_the_code_and_the_hints() {
        let denied = CliError::new("no")
            .with_denial(&LeaseReason::NoCeiling.into())
            .hint("try");
        assert_eq!(
            denied.document(),
            serde_json::json!({ "message": "no", "code": "lease-no-ceiling", "denied": true, "hints": ["try"] })
        );
        let other = CliError::new("gone").with_failure(FailureCode::NoSuchCage);
        assert_eq!(
            other.document(),
            serde_json::json!({ "message": "gone", "code": "no-such-cage", "denied": false, "hints": [] })
        );
        assert_eq!(other.text(true), "ironcage: gone [no-such-cage]");
    }

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

/// A value of an argument that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid {kind} `{}`: expected {expected}", .text.escape_debug())]
pub struct InvalidValue {
    kind: &'static str,
    text: String,
    expected: &'static str,
}

impl InvalidValue {
    pub fn new(kind: &'static str, text: &str, expected: &'static str) -> Self {
        InvalidValue {
            kind,
            text: text.to_owned(),
            expected,
        }
    }
}
