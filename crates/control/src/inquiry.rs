//! The words of the ask socket: what somebody in a cage asks for, and what they are answered.
//!
//! One line of JSON each way. This is not the control protocol and knows nothing of it: whoever
//! speaks here is the agent, or whoever the agent listened to. So it is small and strict: one
//! thing in a line, no key that is not known, none twice, and a bound on everything.

use ironcage_model::{Contact, HostRule, Printable, Resource, Right};
use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};

/// Where the socket is in the cage.
pub const ASK_SOCKET: &str = "/.ironcage/ask";
/// And where Ironcage's own program is, which knows how to ask.
pub const ASK_PROGRAM: &str = "/.ironcage/bin/ironcage";

/// Longest line, with its end.
pub const LONGEST_INQUIRY: usize = 64 * 1024;
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
pub struct InquiryLine {
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
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InquiredThing {
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
pub struct ShellInquiry {
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
    /// How many seconds a person's answer is waited for.
    pub wait: u64,
}

/// A line that makes sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// Something is asked for.
    Asks(Inquiry),
    /// A command is to run in a scope.
    Runs(ShellInquiry),
}

impl InquiredThing {
    /// As leases name it, where it is something that is leased.
    pub fn resource(&self) -> Option<Resource> {
        Some(match self {
            InquiredThing::Path { path, right } => Resource::Path {
                path: path.to_string_lossy().into_owned(),
                right: *right,
            },
            InquiredThing::Host(rule) => Resource::Host { rule: rule.clone() },
            InquiredThing::Child(_)
            | InquiredThing::Send { .. }
            | InquiredThing::Receive { .. } => return None,
        })
    }
}

/// A request that makes sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inquiry {
    /// What.
    pub what: InquiredThing,
    /// What for.
    pub reason: String,
    /// For how many seconds.
    pub seconds: Option<u64>,
    /// How many seconds an answer is waited for.
    pub wait: u64,
}

/// Why a line is no request.
#[derive(Debug, thiserror::Error)]
pub enum InquiryError {
    /// It is too long.
    #[error("a request is a line of at most {LONGEST_INQUIRY} bytes")]
    TooLong,
    /// It is not what it should be.
    #[error(
        "this is no request: {0}; write {{\"write\": \"/a/path\", \"reason\": \"...\"}}, or `read`, `host`, `child`, `send` or `receive`"
    )]
    Garbled(String),
    /// It asks for nothing, or for several things.
    #[error(
        "a request names one of `read`, `write`, `host`, `child`, `send` (with `message`) and `receive`"
    )]
    NotOne,
    /// Its channel has no name.
    #[error("`{0}` is no name of a channel")]
    Channel(String),
    /// A child's command is none.
    #[error("a child's command has 1 to {MOST_WORDS} words without NUL, the first not empty")]
    Command,
    /// Its path is none.
    #[error("`{0}` is no absolute path without `.` and `..`")]
    Path(String),
    /// Its host is none.
    #[error("`{0}` is no host: write NAME, NAME:PORT or an address")]
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
fn whole(text: &str) -> Result<PathBuf, InquiryError> {
    let path = Path::new(text);
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    let whole = path.components().collect::<PathBuf>();
    if !path.is_absolute()
        || text.len() > LONGEST_PATH
        || text.contains('\0')
        || !path.components().all(plain)
        || whole.as_os_str() != path.as_os_str()
    {
        return Err(InquiryError::Path(shown(text)));
    }
    Ok(whole)
}

fn wait(line: &InquiryLine) -> Result<u64, InquiryError> {
    let wait = line.wait.unwrap_or(0);
    match wait > LONGEST_WAIT {
        true => Err(InquiryError::Range("`wait`")),
        false => Ok(wait),
    }
}

impl Said {
    /// Reads a line, without its end.
    pub fn read(line: &[u8]) -> Result<Self, InquiryError> {
        if line.len() > LONGEST_INQUIRY {
            return Err(InquiryError::TooLong);
        }
        let mut line: InquiryLine = serde_json::from_slice(line)
            .map_err(|error| InquiryError::Garbled(shown(&error.to_string())))?;
        match line.shell.take() {
            None => Inquiry::of(line).map(Said::Asks),
            Some(shell) => ShellInquiry::of(shell, &line).map(Said::Runs),
        }
    }
}

impl ShellInquiry {
    fn of(shell: ShellLine, line: &InquiryLine) -> Result<Self, InquiryError> {
        let others = line.read.is_some() || line.write.is_some() || line.host.is_some();
        let messages = line.send.is_some() || line.receive.is_some() || line.message.is_some();
        if others || messages || line.child.is_some() {
            return Err(InquiryError::NotOne);
        }
        let named = shell.reads.len() + shell.writes.len() + shell.contacts.len();
        if named > MOST_NAMED {
            return Err(InquiryError::Range("the number of things that are named"));
        }
        let name = shell.name;
        if name.is_empty() || name.len() > 32 || !name.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(InquiryError::Range("`name`"));
        }
        let paths = |texts: &[String]| {
            texts
                .iter()
                .map(|text| whole(text))
                .collect::<Result<_, _>>()
        };
        Ok(ShellInquiry {
            name,
            reads: paths(&shell.reads)?,
            writes: paths(&shell.writes)?,
            contacts: shell.contacts,
            open: shell.open,
            wait: wait(line)?,
        })
    }
}

impl Inquiry {
    fn of(line: InquiryLine) -> Result<Self, InquiryError> {
        let wait = wait(&line)?;
        let path = |text: String, right| {
            let path = whole(&text)?;
            Ok(InquiredThing::Path { path, right })
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
            return Err(InquiryError::NotOne);
        }
        let channel = |name: String| match crate::check_name(&name) {
            Ok(()) => Ok(name),
            Err(_) => Err(InquiryError::Channel(shown(&name))),
        };
        let what = match line {
            InquiryLine {
                read: Some(text), ..
            } => path(text, Right::Read)?,
            InquiryLine {
                write: Some(text), ..
            } => path(text, Right::Write)?,
            InquiryLine {
                host: Some(text), ..
            } => match text.parse() {
                Ok(rule) => InquiredThing::Host(rule),
                Err(_) => return Err(InquiryError::Host(shown(&text))),
            },
            InquiryLine {
                child: Some(child), ..
            } => {
                path(child.cwd.clone(), Right::Read)?;
                let words = &child.command;
                let whole = words.iter().all(|word| !word.contains('\0'));
                let named = words.first().is_some_and(|word| !word.is_empty());
                if words.len() > MOST_WORDS || !whole || !named {
                    return Err(InquiryError::Command);
                }
                InquiredThing::Child(child)
            }
            InquiryLine {
                send: Some(name),
                message: Some(message),
                ..
            } => InquiredThing::Send {
                channel: channel(name)?,
                message,
            },
            InquiryLine {
                receive: Some(name),
                ..
            } => InquiredThing::Receive {
                channel: channel(name)?,
            },
            _ => return Err(InquiryError::NotOne),
        };
        if seconds == Some(0) {
            return Err(InquiryError::Range("`seconds`"));
        }
        if reason.chars().count() > LONGEST_REASON {
            return Err(InquiryError::Range("the length of `reason`"));
        }
        Ok(Inquiry {
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
    /// It is there now.
    Granted {
        /// What exactly, in words; for what is to be made, the directory around it.
        what: String,
        /// The number of the lease.
        lease: u32,
        /// For how long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        milliseconds: Option<u64>,
    },
    /// It was there all the time.
    Had {
        /// Why.
        reason: String,
    },
    /// It is not given.
    Denied {
        /// Why, and what to do.
        reason: String,
    },
    /// A person is asked, and has not answered yet.
    Pending {
        /// The number of the question.
        question: u32,
        /// Why a person has to.
        reason: String,
    },
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
    /// The line was no request.
    Invalid {
        /// Why.
        reason: String,
    },
}
