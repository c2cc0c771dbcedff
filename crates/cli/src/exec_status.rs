//! The status file of `exec`: how the command ended, or why it did not start, for programs. Exit
//! status and standard error cannot tell the command's failures from Ironcage's.

use crate::error::CliError;
use crate::json;
use ironcage_client::ExecEnd;
use ironcage_model::Printable;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

/// Opened before the command starts: a command whose end cannot be reported is not run.
pub(crate) struct StatusFile(Option<File>);

impl StatusFile {
    pub(crate) fn create(path: Option<&Path>) -> Result<StatusFile, CliError> {
        let Some(path) = path else {
            return Ok(StatusFile(None));
        };
        let file = File::create(path).map_err(|error| {
            CliError::new(format!(
                "cannot write the status file {}: {error}",
                Printable::new(path)
            ))
            .hint("name a file, or /dev/fd/N for a descriptor that you pass")
        })?;
        Ok(StatusFile(Some(file)))
    }

    /// Whether somebody reads it, and needs no words on standard error, which is the command's.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn ended(&mut self, end: &ExecEnd, exit_code: u8) -> Result<(), CliError> {
        let mut value = serde_json::to_value(&end.ending).map_err(CliError::new)?;
        if let Some(fields) = value.as_object_mut() {
            fields.insert("exit_code".into(), exit_code.into());
            fields.insert("timed_out".into(), end.timed_out.into());
        }
        self.write(&value)
    }

    pub(crate) fn failed(&mut self, error: &CliError) -> Result<(), CliError> {
        self.write(&json!({ "error": error.document() }))
    }

    /// Writes the one line that it has; later ones are about what is done after the command.
    fn write(&mut self, value: &Value) -> Result<(), CliError> {
        let Some(mut file) = self.0.take() else {
            return Ok(());
        };
        let line = json::line(value).map_err(CliError::new)?;
        writeln!(file, "{line}")
            .map_err(|error| CliError::new(format!("cannot write the status file: {error}")))
    }
}
