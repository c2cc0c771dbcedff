//! The part of a probe that runs in the sandbox: attempts, and what came of them.
//!
//! It has one thread, so that attempts which may be fatal run in forked children. It decides
//! nothing: what it prints is evidence for the oracle outside.

use crate::errno;
use crate::params::Params;
use crate::probe::Probe;
use ironcage_sys::attack::{self, ChildEnd};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// The first line that a probe prints: the sandbox did start it.
pub(crate) const STARTED: &str = "@started";
/// Printed when a probe has all that it could get, and holds it.
pub(crate) const HOLDING: &str = "@holding";
/// The file of the suite's directory that tells a probe to let go.
pub(crate) const RELEASE: &str = "release";
/// How long a probe holds what it has where nobody tells it to let go: time enough for whatever
/// ends it on a busy machine.
const LONGEST_HOLD: Duration = Duration::from_secs(10);

/// Begins the line with the observation.
pub(crate) const OBSERVED: &str = "@observed ";

/// What a probe knows inside.
#[derive(Debug)]
pub(crate) struct Inside {
    /// Places, numbers and names.
    pub(crate) params: Params,
    /// The copy of the suite's program that runs.
    pub(crate) program: std::path::PathBuf,
    /// A copy of `ironcage` itself, for an agent that uses the sandbox's own commands.
    pub(crate) ironcage: std::path::PathBuf,
}

impl Inside {
    /// Holds what the probe has got until somebody has looked at it from outside.
    pub(crate) fn hold(&self) {
        let mut out = io::stdout();
        let _ = writeln!(out, "{HOLDING}").and_then(|()| out.flush());
        let release = self.params.workspace.join(".suite").join(RELEASE);
        let started = Instant::now();
        while !release.exists() && started.elapsed() < LONGEST_HOLD {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What a probe saw inside.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Observation {
    /// Whether an attempt was answered with success.
    pub(crate) reached: bool,
    /// What was answered, attempt by attempt.
    pub(crate) detail: String,
    /// What was read, on its way out.
    pub(crate) data: String,
}

/// Attempts of one probe, collected.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    reached: Vec<String>,
    refused: Vec<String>,
    data: Vec<u8>,
}

impl Attempts {
    pub(crate) fn new() -> Self {
        Attempts::default()
    }

    /// Notes the answer to one attempt.
    pub(crate) fn note<T>(
        &mut self,
        what: &str,
        answer: Result<T, impl Into<io::Error>>,
    ) -> Option<T> {
        match answer {
            Ok(value) => {
                self.reached.push(what.to_owned());
                Some(value)
            }
            Err(error) => {
                let text = format!("{what}: {}", errno::of(&error.into()));
                self.refused.push(text);
                None
            }
        }
    }

    /// Notes an attempt that succeeded or did not, in words.
    pub(crate) fn say(&mut self, reached: bool, text: impl Into<String>) {
        if reached {
            self.reached.push(text.into())
        } else {
            self.refused.push(text.into())
        }
    }

    /// Carries bytes out.
    pub(crate) fn carry(&mut self, bytes: &[u8]) {
        self.data.extend_from_slice(bytes);
        self.data.push(b'\n');
    }

    /// Reads at most 64 KiB of a file and carries it out.
    pub(crate) fn read(&mut self, what: &str, path: impl AsRef<Path>) -> bool {
        let answer = File::open(path).and_then(|file| {
            let mut content = Vec::new();
            file.take(64 << 10)
                .read_to_end(&mut content)
                .map(|_| content)
        });
        let content = self.note(what, answer);
        if let Some(content) = &content {
            self.carry(content);
        }
        content.is_some()
    }

    /// Makes an attempt in a child of its own, as it may be the death of the caller.
    pub(crate) fn isolated<T>(
        &mut self,
        what: &str,
        mut attempt: impl FnMut() -> Result<T, ironcage_sys::rustix::io::Errno>,
    ) {
        let end = attack::fork_run(|| match attempt() {
            Ok(_) => 0,
            Err(error) => error.raw_os_error(),
        });
        match end {
            Ok(ChildEnd::Exited(0)) => self.say(true, what),
            Ok(ChildEnd::Exited(code)) => {
                let error = io::Error::from_raw_os_error(code);
                self.say(false, format!("{what}: {}", errno::of(&error)));
            }
            Ok(ChildEnd::Killed(signal)) => {
                self.say(false, format!("{what}: {}", errno::signal(signal)));
            }
            // Where there are no children, it is risked here.
            Err(_) => {
                self.note(what, attempt());
            }
        }
    }

    /// Whether any attempt succeeded so far.
    pub(crate) fn any(&self) -> bool {
        !self.reached.is_empty()
    }

    /// The observation: what succeeded, else what was refused.
    pub(crate) fn done(self) -> Observation {
        let reached = self.any();
        let mut list = if reached { self.reached } else { self.refused };
        list.dedup();
        Observation {
            reached,
            detail: list.join("; "),
            data: String::from_utf8_lossy(&self.data).into_owned(),
        }
    }
}

/// Prints what was seen so far; for probes that do not return.
pub(crate) fn publish(observation: &Observation) {
    let text = serde_json::to_string(observation).unwrap_or_default();
    let mut out = io::stdout().lock();
    // A reader that went away is no reason to stop: the oracle looks at the canaries.
    let _ = writeln!(out, "{OBSERVED}{text}").and_then(|()| out.flush());
}

/// Runs one probe in this process and prints what it saw.
pub(crate) fn run(probe: &Probe, inside: &Inside) {
    let mut out = io::stdout();
    let _ = writeln!(out, "{STARTED}").and_then(|()| out.flush());
    publish(&(probe.inside)(inside));
}
