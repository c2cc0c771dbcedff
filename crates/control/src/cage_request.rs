//! The protocol of the ask socket: permission requests from a cage, and their answers.
//!
//! One line of JSON each way. This protocol is separate from the control protocol, because the
//! client is the agent, or whoever controls it. So it is small and strict: one request in a line,
//! no unknown or duplicate keys, and a limit on everything.

use ironcage_model::{
    Contact, HostRule, LeaseOutcome, LeaseSummary, Printable, Reason, Resource, Right,
};
use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};

/// Longest line, with its end.
pub const LONGEST_CAGE_REQUEST: usize = 64 * 1024;
/// Things that a command of a shell may name.
pub const MOST_NAMED: usize = 64;
/// Longest message of a channel, as it is written.
pub const LONGEST_MESSAGE: usize = 48 * 1024;
/// Longest path.
const LONGEST_PATH: usize = 4095;
/// Longest reason, in characters.
const LONGEST_REASON: usize = 500;
/// Longest that somebody can wait for an answer.
const LONGEST_WAIT: u64 = 24 * 3600;
/// Most words of a command.
const MOST_WORDS: usize = 1024;

/// A child cage that is wanted. Beside the line come three descriptors: pipes for its standard
/// input, output and error.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChildLine {
    /// Its command.
    pub command: Vec<String>,
    /// The directory that it starts in.
    pub cwd: String,
    /// Its policy, as text; the parent's own where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// A line, as it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CageRequestLine {
    /// A path to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
    /// A path to write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<String>,
    /// A host to connect to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// A cage within what this one has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<ChildLine>,
    /// The name of a channel to send `message` through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send: Option<String>,
    /// The name of a channel whose next message is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive: Option<String>,
    /// What is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<serde_json::Value>,
    /// What for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// For how many seconds; as long as the policy lets it where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
    /// How many seconds to wait for a person's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<u64>,
    /// A command of a shell, to be run in a scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<ShellLine>,
}

/// What a command of a shell names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShellLine {
    /// The shell, by its name.
    pub name: String,
    /// Absolute paths that it reads.
    #[serde(default)]
    pub reads: Vec<String>,
    /// Absolute paths that it writes.
    #[serde(default)]
    pub writes: Vec<String>,
    /// Where it connects to.
    #[serde(default)]
    pub contacts: Vec<Contact>,
    /// Whether it may do more than it names.
    #[serde(default)]
    pub open: bool,
    /// Of what it reads, what the cage has by a mount that may be a lease.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_reads: Vec<String>,
    /// The same of what it writes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_writes: Vec<String>,
    /// Whether it leaves something running: then it runs in the cage, and leases are the cage's.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stays: bool,
    /// Directories below which it may write more than it names, by the conventions of its tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub below: Vec<String>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CageRequestKind {
    /// A path, as the cage names it.
    Path {
        /// Which.
        path: PathBuf,
        /// What is to be done with it.
        right: Right,
    },
    /// Connections.
    Host(HostRule),
    /// A child cage.
    Child(ChildLine),
    /// A message for a channel.
    Send {
        /// The channel's name.
        channel: String,
        /// What is sent.
        message: serde_json::Value,
    },
    /// The next message of a channel.
    Receive {
        /// The channel's name.
        channel: String,
    },
}

/// A command of a shell in the cage that is to run in a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellRequest {
    /// The shell, by its name.
    pub name: String,
    /// Absolute paths that it reads.
    pub reads: Vec<PathBuf>,
    /// Absolute paths that it writes.
    pub writes: Vec<PathBuf>,
    /// Where it connects to.
    pub contacts: Vec<Contact>,
    /// Whether it may do more than it names.
    pub open: bool,
    /// Of what it reads, what the cage has by a mount that may be a lease.
    pub held_reads: Vec<PathBuf>,
    /// The same of what it writes.
    pub held_writes: Vec<PathBuf>,
    /// Whether it leaves something running.
    pub stays: bool,
    /// Directories below which it may write more than it names.
    pub below: Vec<PathBuf>,
    /// How many seconds a person's answer is waited for.
    pub wait: u64,
}

/// A line that makes sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CageMessage {
    /// Something is asked for.
    Asks(CageRequest),
    /// A command is to run in a scope.
    Runs(ShellRequest),
}

impl CageRequestKind {
    /// As leases name it, where it is something that is leased.
    pub fn resource(&self) -> Option<Resource> {
        Some(match self {
            CageRequestKind::Path { path, right } => Resource::Path {
                path: path.to_string_lossy().into_owned(),
                right: *right,
            },
            CageRequestKind::Host(rule) => Resource::Host { rule: rule.clone() },
            CageRequestKind::Child(_)
            | CageRequestKind::Send { .. }
            | CageRequestKind::Receive { .. } => return None,
        })
    }
}

/// A request that makes sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CageRequest {
    /// What.
    pub what: CageRequestKind,
    /// What for.
    pub reason: String,
    /// For how many seconds.
    pub seconds: Option<u64>,
    /// How many seconds an answer is waited for.
    pub wait: u64,
}

/// Why a line is not a valid request.
#[derive(Debug, thiserror::Error)]
pub enum CageRequestError {
    /// It is too long.
    #[error("a request must be a line of at most {LONGEST_CAGE_REQUEST} bytes")]
    TooLong,
    /// It cannot be parsed.
    #[error(
        "cannot parse the request: {0}; expected {{\"write\": \"/a/path\", \"reason\": \"...\"}}, or `read`, `host`, `child`, `send` or `receive`"
    )]
    Garbled(String),
    /// It asks for nothing, or for several things.
    #[error(
        "a request must have exactly one of `read`, `write`, `host`, `child`, `send` (with `message`) and `receive`"
    )]
    NotOne,
    /// The channel name is invalid.
    #[error("invalid channel name `{0}`")]
    Channel(String),
    /// The command of a child is invalid.
    #[error(
        "invalid command of a child; expected 1 to {MOST_WORDS} words without NUL, the first not empty"
    )]
    Command,
    /// The path is invalid.
    #[error("invalid path `{0}`; expected an absolute path without `.` and `..`")]
    Path(String),
    /// The host is invalid.
    #[error("invalid host `{0}`; expected NAME, NAME:PORT or an address")]
    Host(String),
    /// A number is out of range.
    #[error("{0} is out of range")]
    Range(&'static str),
}

/// Text of the asker's, short and without what acts on a terminal.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(200).collect();
    Printable::new(&short).to_string()
}

/// A path as it may be named: whole, absolute, without `.` and `..`.
fn whole(text: &str) -> Result<PathBuf, CageRequestError> {
    let path = Path::new(text);
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    let whole = path.components().collect::<PathBuf>();
    if !path.is_absolute()
        || text.len() > LONGEST_PATH
        || text.contains('\0')
        || !path.components().all(plain)
        || whole.as_os_str() != path.as_os_str()
    {
        return Err(CageRequestError::Path(shown(text)));
    }
    Ok(whole)
}

fn wait(line: &CageRequestLine) -> Result<u64, CageRequestError> {
    let wait = line.wait.unwrap_or(0);
    match wait > LONGEST_WAIT {
        true => Err(CageRequestError::Range("`wait`")),
        false => Ok(wait),
    }
}

impl CageMessage {
    /// Reads a line, without its end.
    pub fn read(line: &[u8]) -> Result<Self, CageRequestError> {
        if line.len() > LONGEST_CAGE_REQUEST {
            return Err(CageRequestError::TooLong);
        }
        let mut line: CageRequestLine = serde_json::from_slice(line)
            .map_err(|error| CageRequestError::Garbled(shown(&error.to_string())))?;
        match line.shell.take() {
            None => CageRequest::of(line).map(CageMessage::Asks),
            Some(shell) => ShellRequest::of(shell, &line).map(CageMessage::Runs),
        }
    }
}

impl ShellRequest {
    fn of(shell: ShellLine, line: &CageRequestLine) -> Result<Self, CageRequestError> {
        let others = line.read.is_some() || line.write.is_some() || line.host.is_some();
        let messages = line.send.is_some() || line.receive.is_some() || line.message.is_some();
        if others || messages || line.child.is_some() {
            return Err(CageRequestError::NotOne);
        }
        let held = shell.held_reads.len() + shell.held_writes.len() + shell.below.len();
        let named = shell.reads.len() + shell.writes.len() + shell.contacts.len() + held;
        if named > MOST_NAMED {
            return Err(CageRequestError::Range("the number of paths and hosts"));
        }
        let name = shell.name;
        if name.is_empty() || name.len() > 32 || !name.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(CageRequestError::Range("`name`"));
        }
        let paths = |texts: &[String]| {
            texts
                .iter()
                .map(|text| whole(text))
                .collect::<Result<_, _>>()
        };
        Ok(ShellRequest {
            name,
            reads: paths(&shell.reads)?,
            writes: paths(&shell.writes)?,
            contacts: shell.contacts,
            open: shell.open,
            held_reads: paths(&shell.held_reads)?,
            held_writes: paths(&shell.held_writes)?,
            stays: shell.stays,
            below: paths(&shell.below)?,
            wait: wait(line)?,
        })
    }
}

impl CageRequest {
    fn of(line: CageRequestLine) -> Result<Self, CageRequestError> {
        let wait = wait(&line)?;
        let path = |text: String, right| {
            let path = whole(&text)?;
            Ok(CageRequestKind::Path { path, right })
        };
        let (seconds, reason) = (line.seconds, line.reason.clone());
        let asked = [
            line.read.is_some(),
            line.write.is_some(),
            line.host.is_some(),
            line.child.is_some(),
            line.send.is_some(),
            line.receive.is_some(),
        ];
        let one = asked.iter().filter(|asked| **asked).count() == 1;
        if !one || line.message.is_some() != line.send.is_some() {
            return Err(CageRequestError::NotOne);
        }
        let channel = |name: String| match crate::check_name(&name) {
            Ok(()) => Ok(name),
            Err(_) => Err(CageRequestError::Channel(shown(&name))),
        };
        let what = match line {
            CageRequestLine {
                read: Some(text), ..
            } => path(text, Right::Read)?,
            CageRequestLine {
                write: Some(text), ..
            } => path(text, Right::Write)?,
            CageRequestLine {
                host: Some(text), ..
            } => match text.parse() {
                Ok(rule) => CageRequestKind::Host(rule),
                Err(_) => return Err(CageRequestError::Host(shown(&text))),
            },
            CageRequestLine {
                child: Some(child), ..
            } => {
                path(child.cwd.clone(), Right::Read)?;
                let words = &child.command;
                let whole = words.iter().all(|word| !word.contains('\0'));
                let named = words.first().is_some_and(|word| !word.is_empty());
                if words.len() > MOST_WORDS || !whole || !named {
                    return Err(CageRequestError::Command);
                }
                CageRequestKind::Child(child)
            }
            CageRequestLine {
                send: Some(name),
                message: Some(message),
                ..
            } => CageRequestKind::Send {
                channel: channel(name)?,
                message,
            },
            CageRequestLine {
                receive: Some(name),
                ..
            } => CageRequestKind::Receive {
                channel: channel(name)?,
            },
            _ => return Err(CageRequestError::NotOne),
        };
        if seconds == Some(0) {
            return Err(CageRequestError::Range("`seconds`"));
        }
        if reason.chars().count() > LONGEST_REASON {
            return Err(CageRequestError::Range("the length of `reason`"));
        }
        Ok(CageRequest {
            what,
            reason,
            seconds,
            wait,
        })
    }
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answered {
    /// The child cage was there, and is gone.
    Ended {
        /// Its id.
        child: String,
        /// The exit status of its command, as `ironcage run` would give it.
        status: u8,
    },
    /// A scope is being made; its connection is beside this line.
    Scope,
    /// Nothing of it needs a lease that there is: the command is to run in the cage.
    InCage {
        /// What it will not have, one line each.
        lacks: Vec<String>,
    },
    /// The message is on its way.
    Sent,
    /// A message.
    Message {
        /// It.
        message: serde_json::Value,
    },
    /// There is no message.
    Empty,
    /// The line was not a valid request.
    Invalid {
        /// Why.
        #[serde(flatten)]
        reason: Reason,
    },
    /// What came of a request; of one for a child or a message only that it was denied.
    #[serde(untagged)]
    Outcome(LeaseOutcome<LeaseSummary>),
}

impl Answered {
    /// It is not given, because of this.
    pub fn denied(reason: impl Into<Reason>) -> Self {
        Answered::Outcome(LeaseOutcome::denied(reason))
    }
}
