//! QEMU's own control socket (QMP): for the few commands that save a machine and restore one.
//!
//! QEMU answers with lines of JSON. They are bounded, as a QEMU that a guest has taken over writes
//! them.

use serde_json::{Value, json};
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The longest line that is read.
const LONGEST: usize = 64 << 10;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("QEMU's control socket failed: {0}")]
    Socket(#[from] io::Error),
    #[error("QEMU ended, or closed its control socket")]
    Closed,
    #[error("QEMU did not answer in {} s", .0.as_secs())]
    Late(Duration),
    #[error("QEMU sent what is not an answer")]
    Garbage,
    #[error("QEMU refused `{command}`: {why}")]
    Refused { command: String, why: String },
}

/// The socket, for one conversation that has to end in time.
pub(crate) struct Commands {
    stream: UnixStream,
    buffer: Vec<u8>,
    limit: Duration,
    until: Instant,
}

impl Commands {
    /// Begins the conversation.
    pub(crate) fn new(stream: UnixStream, limit: Duration) -> Result<Commands, CommandError> {
        let mut commands = Commands {
            stream,
            buffer: Vec::new(),
            limit,
            until: Instant::now() + limit,
        };
        // The greeting.
        commands.line()?;
        commands.execute("qmp_capabilities", json!({}))?;
        Ok(commands)
    }

    /// The guest's memory is in a file that stays: only the rest is saved and restored.
    pub(crate) fn leave_memory(&mut self, events: bool) -> Result<(), CommandError> {
        let on = |capability: &str| json!({ "capability": capability, "state": true });
        let mut capabilities = vec![on("x-ignore-shared")];
        capabilities.extend(events.then(|| on("events")));
        let arguments = json!({ "capabilities": capabilities });
        self.execute("migrate-set-capabilities", arguments)
    }

    /// Has a command carried out.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> Result<(), CommandError> {
        let mut text = json!({ "execute": command, "arguments": arguments }).to_string();
        text.push('\n');
        self.stream.write_all(text.as_bytes())?;
        loop {
            let answer = self.line()?;
            if answer.get("return").is_some() {
                return Ok(());
            }
            if let Some(error) = answer.get("error") {
                return Err(CommandError::Refused {
                    command: command.to_owned(),
                    why: word(error.get("desc")),
                });
            }
        }
    }

    /// Waits until the state is saved.
    pub(crate) fn saved(&mut self) -> Result<(), CommandError> {
        loop {
            let line = self.line()?;
            if line.get("event").and_then(Value::as_str) != Some("MIGRATION") {
                continue;
            }
            let status = line.get("data").and_then(|data| data.get("status"));
            match status.and_then(Value::as_str) {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => {
                    return Err(CommandError::Refused {
                        command: "migrate".into(),
                        why: word(status),
                    });
                }
                _ => {}
            }
        }
    }

    fn line(&mut self) -> Result<Value, CommandError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|_| CommandError::Garbage);
            }
            if self.buffer.len() > LONGEST {
                return Err(CommandError::Garbage);
            }
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CommandError::Late(self.limit));
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut part = [0; 4096];
            match self.stream.read(&mut part) {
                Ok(0) => return Err(CommandError::Closed),
                Ok(count) => self
                    .buffer
                    .extend_from_slice(part.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(CommandError::Late(self.limit));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Text of QEMU's, for a person.
fn word(value: Option<&Value>) -> String {
    let text = value.and_then(Value::as_str).unwrap_or("no reason given");
    let text = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    text.take(400).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(60);

    /// A conversation with a QEMU that has said all this already.
    fn told(text: &str) -> (Result<Commands, CommandError>, UnixStream) {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        theirs.write_all(text.as_bytes()).unwrap();
        (Commands::new(ours, TIME), theirs)
    }

    #[test]
    fn answers_are_told_from_events_and_a_refusal_has_its_reason() {
        let (commands, mut qemu) = told("{\"QMP\":{}}\n{\"return\":{}}\n");
        let mut commands = commands.unwrap();
        qemu.write_all(b"{\"event\":\"RESUME\"}\n{\"return\":{}}\n")
            .unwrap();
        commands.leave_memory(false).unwrap();
        qemu.write_all(b"{\"error\":{\"desc\":\"no\\u001b such\"}}\n")
            .unwrap();
        let error = commands.execute("migrate", json!({})).unwrap_err();
        assert_eq!(error.to_string(), "QEMU refused `migrate`: no  such");
        qemu.write_all(b"{\"event\":\"MIGRATION\",\"data\":{\"status\":\"active\"}}\n{\"event\":\"MIGRATION\",\"data\":{\"status\":\"completed\"}}\n").unwrap();
        commands.saved().unwrap();
    }

    #[test]
    fn garbage_and_an_end_are_errors_and_a_line_has_a_bound() {
        assert!(matches!(told("garbage\n").0, Err(CommandError::Garbage)));
        assert!(matches!(
            told(&"x".repeat(2 * LONGEST)).0,
            Err(CommandError::Garbage)
        ));
        let (theirs, ours) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(matches!(
            Commands::new(ours, TIME),
            Err(CommandError::Closed)
        ));
        let (_theirs, ours) = UnixStream::pair().unwrap();
        assert!(matches!(
            Commands::new(ours, Duration::from_millis(1)),
            Err(CommandError::Late(_))
        ));
    }
}
