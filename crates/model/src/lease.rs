//! Leases: permissions beyond a cage's base, given for a while and taken back.

use crate::{HostRule, HttpRule, KeyPurpose, LimitKind, Printable, Publish, bytes_as_written};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// What may be done with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Right {
    /// Reading and executing.
    Read,
    /// Also writing.
    Write,
}

impl Right {
    /// As it is written in policies and flags.
    pub const fn name(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::Write => "write",
        }
    }
}

/// How a part of the ceiling is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// At once where another part asks first: a person has said yes for good. By itself it gives
    /// nothing.
    Always,
    /// At once, to whoever asks.
    Auto,
    /// When a person says so.
    Ask,
    /// Never.
    Deny,
}

impl Mark {
    /// Every mark, the widest first.
    pub const ALL: [Mark; 4] = [Mark::Always, Mark::Auto, Mark::Ask, Mark::Deny];

    /// Whether it gives anything by itself.
    pub const fn gives(self) -> bool {
        matches!(self, Mark::Auto | Mark::Ask)
    }

    /// Whether a part that asks about a path counts before one that gives at once: where it is no
    /// wider than that one. A part that asks around one that gives does not.
    pub fn asks_before(asks: &Path, gives: &Path) -> bool {
        asks.starts_with(gives)
    }

    /// As it is written in policies.
    pub const fn name(self) -> &'static str {
        match self {
            Mark::Always => "always",
            Mark::Auto => "auto",
            Mark::Ask => "ask",
            Mark::Deny => "deny",
        }
    }
}

/// What becomes of those who still use a lease when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Holders {
    /// They are killed; where they cannot be found, the whole cage is.
    Kill,
    /// They keep what they have open: nothing new can be opened, and the record says so.
    Keep,
}

impl Holders {
    /// As it is written in policies.
    pub const fn name(self) -> &'static str {
        match self {
            Holders::Kill => "kill",
            Holders::Keep => "keep",
        }
    }
}

/// Where the commands of the agent's shell run, the narrower way first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShellMode {
    /// Each that needs a lease runs in a scope of its own, which alone has it.
    Scoped,
    /// All of them in the cage.
    Plain,
}

impl ShellMode {
    /// Both.
    pub const ALL: [ShellMode; 2] = [ShellMode::Scoped, ShellMode::Plain];

    /// As it is written in policies.
    pub const fn name(self) -> &'static str {
        match self {
            ShellMode::Scoped => "scoped",
            ShellMode::Plain => "plain",
        }
    }
}

/// What the words of a model's answer do, besides standing beside questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WordsMode {
    /// What a call needs that strays from them is asked for.
    Narrow,
    /// Nothing.
    Note,
}

impl WordsMode {
    /// Both.
    pub const ALL: [WordsMode; 2] = [WordsMode::Narrow, WordsMode::Note];

    /// As it is written in policies.
    pub const fn name(self) -> &'static str {
        match self {
            WordsMode::Narrow => "narrow",
            WordsMode::Note => "note",
        }
    }
}

/// Text that names no such way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownShellMode(pub String);

impl fmt::Display for UnknownShellMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.escape_debug();
        write!(f, "unknown shell mode `{text}`; expected scoped or plain")
    }
}

impl std::error::Error for UnknownShellMode {}

impl std::str::FromStr for ShellMode {
    type Err = UnknownShellMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = ShellMode::ALL.into_iter();
        all.find(|mode| mode.name() == text)
            .ok_or_else(|| UnknownShellMode(text.to_owned()))
    }
}

/// Where the socket for permission requests is in a cage.
pub const ASK_SOCKET: &str = "/.ironcage/ask";
/// Where the program is that sends them.
pub const ASK_PROGRAM: &str = "/.ironcage/bin/ironcage";
/// Where the reader program is in a cage whose shell runs commands in scopes.
pub const READER_PROGRAM: &str = "/.ironcage/bin/reader";
/// Where programs stand in a cage that are named like shells and bring each command to a scope.
pub const SHELL_PLACE: &str = "/.ironcage/shell";

/// What a lease is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Resource {
    /// A file or directory of the host. A program is given by being seen.
    Path {
        /// Its real path, without links.
        path: String,
        /// What may be done with it.
        right: Right,
    },
    /// Connections to hosts.
    Host {
        /// Which hosts and ports.
        rule: HostRule,
    },
    /// Requests of HTTP.
    Http {
        /// Which requests.
        rule: HttpRule,
    },
    /// A secret, put on requests by the egress proxy.
    Secret {
        /// The variable that holds its placeholder in the cage.
        name: String,
    },
    /// A Unix socket of the host's.
    Socket {
        /// Its path.
        path: String,
    },
    /// A port inside that is reached at the host's loopback.
    Port {
        /// The ports.
        #[serde(flatten)]
        publish: Publish,
    },
    /// A wider limit: memory in bytes, processors in thousandths, or processes.
    Limit {
        /// Which.
        limit: LimitKind,
        /// How much.
        value: u64,
    },
    /// A group of system calls.
    Syscalls {
        /// Its name.
        group: String,
    },
    /// A capability in the cage's own namespaces.
    Capability {
        /// Its name.
        name: String,
    },
    /// One signature by a key that stays outside. It is asked for and never leased.
    Key {
        /// The key, as the policy names it.
        key: String,
        /// What is signed.
        #[serde(flatten)]
        purpose: KeyPurpose,
    },
}

impl Resource {
    /// What kind of resource it is, in words.
    pub const fn kind(&self) -> &'static str {
        match self {
            Resource::Path { .. } => "path",
            Resource::Host { .. } => "host",
            Resource::Http { .. } => "requests",
            Resource::Secret { .. } => "secret",
            Resource::Socket { .. } => "socket",
            Resource::Port { .. } => "port",
            Resource::Limit { .. } => "limit",
            Resource::Syscalls { .. } => "system calls",
            Resource::Capability { .. } => "capability",
            Resource::Key { .. } => "key",
        }
    }

    /// Whether something could leave a cage by it.
    pub const fn leads_out(&self) -> bool {
        match self {
            Resource::Host { .. }
            | Resource::Http { .. }
            | Resource::Secret { .. }
            | Resource::Socket { .. }
            | Resource::Key { .. }
            | Resource::Port { .. } => true,
            Resource::Path { .. }
            | Resource::Limit { .. }
            | Resource::Syscalls { .. }
            | Resource::Capability { .. } => false,
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Path { path, right } => {
                write!(f, "{} {}", right.name(), Printable::new(path))
            }
            Resource::Host { rule } => write!(f, "host {rule}"),
            Resource::Http { rule } => write!(f, "requests {rule}"),
            Resource::Secret { name } => write!(f, "secret {}", Printable::new(name)),
            Resource::Socket { path } => write!(f, "socket {}", Printable::new(path)),
            Resource::Port { publish } => write!(f, "port {publish}"),
            Resource::Limit { limit, value } => match limit {
                LimitKind::Memory => write!(f, "{limit} {}", bytes_as_written(*value)),
                LimitKind::Cpus => write!(f, "{limit} {}.{:03}", value / 1000, value % 1000),
                _ => write!(f, "{limit} {value}"),
            },
            Resource::Syscalls { group } => write!(f, "system calls {}", Printable::new(group)),
            Resource::Capability { name } => write!(f, "capability {}", Printable::new(name)),
            Resource::Key { key, purpose } => {
                write!(f, "key {} to {purpose}", Printable::new(key))
            }
        }
    }
}

/// Who uses a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Every process of the cage.
    Cage,
    /// One command and what it starts, in a scope of its own.
    Exec {
        /// The command's number in its cage.
        number: u32,
    },
}

/// How long a lease lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Term {
    /// This many milliseconds.
    Milliseconds(u64),
    /// Until somebody takes it back, or the cage ends.
    UntilRevoked,
}

impl Term {
    /// The time, where there is one.
    pub fn duration(self) -> Option<Duration> {
        match self {
            Term::Milliseconds(time) => Some(Duration::from_millis(time)),
            Term::UntilRevoked => None,
        }
    }
}

/// Where a request for a lease came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseOrigin {
    /// The user of the cage, outside, at its control socket.
    Operator,
    /// A tool call of the agent's, brought by its controller. Whatever it says may have been
    /// said by an attacker.
    ToolCall,
    /// Somebody in the cage, at its ask socket.
    Ask,
    /// What the model answered, read at the egress proxy.
    Answer,
    /// A command of a shell in the cage, which is to run in a scope.
    Shell,
}

impl LeaseOrigin {
    /// In words: who asked.
    pub const fn name(self) -> &'static str {
        match self {
            LeaseOrigin::Operator => "the operator",
            LeaseOrigin::ToolCall => "a tool call",
            LeaseOrigin::Ask => "a process in the cage",
            LeaseOrigin::Answer => "the model's response",
            LeaseOrigin::Shell => "a shell command",
        }
    }
}

/// Who allowed a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Approver {
    /// The policy: that part of the ceiling is `auto`.
    Policy,
    /// The user of the cage.
    Operator,
}

/// A permission that was given to a cage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its number in its cage, from 1.
    pub number: u32,
    /// What it is about.
    pub resource: Resource,
    /// Who uses it.
    pub scope: Scope,
    /// How long it lives.
    pub term: Term,
    /// How many times it can be used, where that is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    /// What it is for, as was said by who asked.
    pub reason: String,
    /// Who asked.
    pub origin: LeaseOrigin,
    /// Who allowed it.
    pub approver: Approver,
}

/// What can be said of a lease that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseEnd {
    /// Nobody in the cage has anything of it any more; the kernel has proved it.
    Revoked,
    /// It is out of the cage's view, and nothing can be written or executed through it; who had a
    /// file open may still read that, and who had a directory open what lies in it.
    ClosedToNewOpens,
    /// It could not be opened, and never was.
    NotOpened,
    /// The cage ended, and everything in it.
    CageEnded,
    /// Its end could not be proved, so the cage was ended.
    CageKilled,
}

impl LeaseEnd {
    /// In words.
    pub const fn name(&self) -> &'static str {
        match self {
            LeaseEnd::Revoked => "revoked",
            LeaseEnd::ClosedToNewOpens => "closed to new opens",
            LeaseEnd::NotOpened => "not opened",
            LeaseEnd::CageEnded => "ended with its cage",
            LeaseEnd::CageKilled => "ended by killing the cage",
        }
    }
}

/// A process that still used a lease when it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its id in the cage.
    pub pid: u32,
    /// Its own name for itself (fifteen bytes at most).
    pub program: String,
    /// What it had: a descriptor, a mapping, a working directory.
    pub what: String,
    /// Whether it was killed for it.
    pub killed: bool,
}
