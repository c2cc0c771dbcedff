//! Requests to a running cage and its replies, as plain types.

use crate::{NetworkRequest, NetworkRules};
use ironcage_model::{
    CageId, Ending, GrantedLease, Holder, LayerReport, Lease, LeaseEnd, LeaseOrigin, LeaseOutcome,
    PermissionRequest, Reason, Resource, Right, Taint, Term,
};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// What the cage is. Answered by [`Reply::Description`].
    Describe,
    /// What the cage uses. Answered by [`Reply::Stats`].
    Stats,
    /// Answered by [`Reply::Ended`] when the cage is gone.
    Wait,
    /// Ends the cage: asks its command to end, and kills it after a while. Answered by
    /// [`Reply::Stopping`], then by [`Reply::Ended`].
    Stop {
        /// How long the command may take to end by itself.
        milliseconds: u64,
    },
    /// Starts another command in the cage. Answered by [`Reply::Started`] with the outer ends of
    /// its streams, then by [`Reply::ExecEnded`]. A connection has one exec at most, and unless
    /// it is detached the exec ends with the connection.
    Exec(ExecRequest),
    /// Sends a signal to the exec of this connection. Not answered.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// The exec of this connection has ended, but others still hold its output: the descriptors
    /// beside this message are read on, so that they can go on writing. Not answered.
    Leave,
    /// Joins the cage's command. Answered by [`Reply::Attached`].
    Attach,
    /// Something about the network.
    Network(NetworkRequest),
    /// Asks for a lease. Answered by [`Reply::Lease`].
    Grant(GrantRequest),
    /// Asks for a lease for a tool call, as the agent's controller and not as the user: what the ceiling marks `ask` becomes a
    /// question. Answered by [`Reply::Lease`].
    GrantForCall(GrantRequest),
    /// Takes a lease back, or all of them. Answered by [`Reply::Revoking`], then by
    /// [`Reply::LeaseEnded`] for each.
    Revoke {
        /// Which; all where none is named.
        number: Option<u32>,
    },
    /// Which leases are open. Answered by [`Reply::Leases`].
    Leases,
    /// Takes an end of a channel, a socket beside it. Answered by [`Reply::ChannelChanged`].
    OpenChannel(ChannelRequest),
    /// Takes a channel away. Answered by [`Reply::ChannelChanged`].
    CloseChannel {
        /// Its name.
        name: String,
    },
    /// Which questions wait for an answer. Answered by [`Reply::Questions`].
    Questions,
    /// Says yes to a question. Answered by [`Reply::Lease`] when the lease is open.
    Approve(ApproveRequest),
    /// Says no to a question. Answered by [`Reply::Denied`].
    Deny {
        /// Which.
        number: u32,
        /// Why, for who asked.
        reason: String,
    },
    /// Stops every process of the cage until [`Request::Release`] or the end of the connection.
    /// Answered by [`Reply::Held`], when they have been told to stop.
    Hold,
    /// Refreshes the cage's copy-on-write views of the real files, and resumes what this connection
    /// holds. Answered by [`Reply::Released`].
    Release,
    /// Resumes a cage that drift has frozen, or that is paused. Answered by [`Reply::Resumed`].
    Resume,
    /// Stops every process of the cage until [`Request::Unpause`], also when this connection ends.
    /// Answered by [`Reply::Paused`].
    Pause,
    /// Resumes a cage that is paused, and no other. Answered by [`Reply::Resumed`].
    Unpause,
}

/// A lease that is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantRequest {
    /// What.
    pub wanted: LeaseTarget,
    /// For how long.
    pub term: Term,
    /// How many times it can be used, where that is counted.
    #[serde(default)]
    pub uses: Option<u32>,
    /// What for.
    pub reason: String,
}

/// What a lease is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseTarget {
    /// The path whose descriptor is beside the message.
    Path {
        /// What is to be done with it.
        right: Right,
    },
    /// A name in the directory whose descriptor is beside the message, for a scope: to be made,
    /// written, replaced or removed.
    Name {
        /// One name, without a slash.
        name: String,
    },
    /// Anything but a path. A port comes with its listening socket.
    Other(Resource),
}

impl LeaseTarget {
    /// Whether a descriptor of a file or directory comes with it.
    pub fn has_path(&self) -> bool {
        matches!(self, LeaseTarget::Path { .. } | LeaseTarget::Name { .. })
    }
}

/// A question that is approved, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApproveRequest {
    /// Which.
    pub number: u32,
    /// For how long; as was asked for where nothing is said.
    #[serde(default)]
    pub term: Option<Term>,
    /// For how many uses; as was asked for where nothing is said.
    #[serde(default)]
    pub uses: Option<u32>,
}

/// A question that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionRequestDescription {
    /// The question.
    #[serde(flatten)]
    pub question: PermissionRequest,
    /// How often the same was asked.
    pub asked: u32,
    /// How long an answer is still waited for.
    pub milliseconds_left: u64,
    /// Why somebody was not told of it who should have been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untold: Option<String>,
}

/// A lease that is open, or whose end is not proved yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseDescription {
    /// The lease.
    pub lease: Lease,
    /// How far it has come.
    pub state: LeaseState,
    /// How long it still lives, where it has a time.
    pub milliseconds_left: Option<u64>,
    /// How often it can still be used, where that is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses_left: Option<u32>,
}

/// How far a lease has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseState {
    /// It is being opened.
    Opening,
    /// It is in force.
    Open,
    /// Its end has begun, and somebody still uses it.
    Ending,
}

impl LeaseState {
    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            LeaseState::Opening => "opening",
            LeaseState::Open => "open",
            LeaseState::Ending => "ending",
        }
    }
}

/// A command to start in a running cage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// Program and arguments.
    pub argv: Vec<Bytes>,
    /// Variables on top of the cage's own environment.
    pub env: Vec<(Bytes, Bytes)>,
    /// Working directory inside; the cage's own where none is given.
    pub cwd: Option<Bytes>,
    /// What its streams are.
    pub streams: ExecStreams,
    /// Where it is to run in a scope of its own: with which leases. Descriptors of paths are
    /// beside the message, in their order.
    #[serde(default)]
    pub scope: Option<ScopeRequest>,
}

/// A scope that is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScopeRequest {
    /// What it is to have besides what the cage has.
    pub leases: Vec<GrantRequest>,
    /// Who asks for it.
    pub origin: LeaseOrigin,
    /// A tool call to carry out, as a model wrote it; then there is no program, and the leases are
    /// those that the call needs.
    #[serde(default)]
    pub call: Option<String>,
    /// A command of a shell in the cage, which says itself what is to be executed.
    #[serde(default)]
    pub shell: Option<ShellIntent>,
    /// For how many seconds a person's answer is waited for.
    #[serde(default)]
    pub wait: u64,
}

/// A command of a shell in the cage, as the record has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellIntent {
    /// The shell.
    pub shell: String,
    /// What the command names that cannot even be asked for.
    pub refused: Vec<DeniedLease>,
    /// Whether it may do more than it names.
    pub open: bool,
    /// Which of the leases it only needs if the cage has them by a lease of its own.
    pub held: Vec<usize>,
}

impl Default for ScopeRequest {
    fn default() -> Self {
        ScopeRequest {
            leases: Vec::new(),
            origin: LeaseOrigin::Operator,
            call: None,
            shell: None,
            wait: 0,
        }
    }
}

/// A lease that was asked for and not given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedLease {
    /// What.
    pub resource: Resource,
    /// Why, and what to do.
    #[serde(flatten)]
    pub reason: Reason,
    /// Whether a person could give it.
    pub ask: bool,
}

impl fmt::Display for DeniedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.resource, self.reason.with_code())
    }
}

/// What the streams of an exec are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExecStreams {
    /// Pipes, whose outer ends come with the answer: input (if any), output, errors.
    Pipes {
        /// Whether there is an input; without one it is at its end from the start.
        input: bool,
    },
    /// A terminal of its own, whose controlling end comes with the answer.
    Terminal(Size),
    /// No input, and the output goes where the cage's own goes.
    Detached,
    /// Those whose descriptors are beside the message: a shell's in the cage, for a scope.
    Given,
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

/// What the supervisor answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// What the cage is.
    Description(Box<Description>),
    /// What the cage uses.
    Stats(Stats),
    /// The cage is gone.
    Ended(Ending),
    /// The cage was asked to end.
    Stopping,
    /// An exec is starting. Descriptors: the outer ends of its streams.
    Started {
        /// Its number in the record.
        number: u32,
    },
    /// The program of a detached exec is running.
    Executed,
    /// An exec is over.
    ExecEnded(Ending),
    /// Joined. Descriptors: where its output can be read, then where its input is written if
    /// it has one; a terminal's size is set there too.
    Attached {
        /// Whether the command is on a terminal of the cage's own.
        terminal: bool,
        /// Whether there is an input.
        input: bool,
    },
    /// What holds for the network.
    NetworkRules(Box<NetworkRules>),
    /// A change of the network holds.
    NetworkChanged {
        /// Numbers of the rules that came or went.
        numbers: Vec<u32>,
        /// Open connections that no longer match and were closed.
        closed: u64,
    },
    /// Connections are told as they happen.
    Watching,
    /// What came of a request for a lease, or of an approval.
    Lease(LeaseOutcome<GrantedLease>),
    /// So many leases are being taken back.
    Revoking {
        /// How many.
        count: u32,
    },
    /// A lease is over.
    LeaseEnded {
        /// Which.
        number: u32,
        /// What can be said of it.
        end: LeaseEnd,
        /// Who still used it.
        holders: Vec<Holder>,
    },
    /// A scope was not started, because it was not given all that it was to have.
    NotGiven(Vec<DeniedLease>),
    /// A person was asked about something that a scope is to have; the answer is waited for.
    Asked {
        /// The question's number.
        question: u32,
        /// What it is about.
        resource: Resource,
    },
    /// What a shell's command will not have. It runs without.
    Lacks(Vec<DeniedLease>),
    /// A shell's command is given nothing: it is to run in the cage.
    InCage,
    /// The leases of the cage.
    Leases(Vec<LeaseDescription>),
    /// A channel was opened or closed.
    ChannelChanged,
    /// The questions that wait for an answer.
    Questions(Vec<PermissionRequestDescription>),
    /// A question was denied.
    Denied {
        /// Which.
        number: u32,
    },
    /// The cage's processes were told to stop. Descriptor: its process file system, in which all
    /// but the first stop in a moment.
    Held,
    /// The cage goes on.
    Resumed,
    /// The cage's processes were told to stop, and stay stopped.
    Paused,
    /// They go on.
    Released {
        /// Why the views could not be renewed, if they could not.
        stale: Option<String>,
    },
    /// The request was refused.
    Refused {
        /// Why, and what to do.
        #[serde(flatten)]
        reason: Reason,
    },
}

/// In which direction a cage has a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChannelRole {
    /// Out of it.
    Send,
    /// Into it.
    Receive,
}

/// An end of a channel for a cage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelRequest {
    /// Its name.
    pub name: String,
    /// Which end.
    pub role: ChannelRole,
    /// The cage at the other end.
    pub peer: CageId,
    /// What messages look like, as [`crate::Schema`] reads it.
    pub schema: String,
    /// Most bytes of a message.
    pub size: u32,
    /// Most messages in a minute.
    pub rate: u32,
    /// The longest queue of messages.
    pub queue: u32,
}

/// A channel that a cage has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelDescription {
    /// Its name.
    pub name: String,
    /// In which direction.
    pub role: ChannelRole,
    /// The cage at the other end.
    pub peer: CageId,
    /// Messages in the queue.
    pub queued: u32,
}

/// What a cage is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Its id.
    pub id: CageId,
    /// The name that the user gave, if any.
    pub name: Option<String>,
    /// The command's arguments; bytes that are not UTF-8 are replaced. Empty where there is none.
    pub command: Vec<String>,
    /// The workspace.
    pub workspace: String,
    /// The pending change that it works on, if there is one.
    pub change: Option<String>,
    /// The cage that opened it, where it is a child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<CageId>,
    /// Child cages that it opened and that live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<CageId>,
    /// Channels to and from other cages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<ChannelDescription>,
    /// What it may have come into contact with.
    #[serde(default, skip_serializing_if = "Taint::is_none")]
    pub taint: Taint,
    /// The profile in force.
    pub profile: String,
    /// SHA-256 of the plan.
    pub plan: String,
    /// When it started, in microseconds since the epoch.
    pub started: u64,
    /// The supervisor's process id.
    pub supervisor: u32,
    /// The process id of PID 1, outside.
    pub init: u32,
    /// Whether it runs in the background.
    pub background: bool,
    /// Whether it outlives its first command.
    pub sticky: bool,
    /// Whether the command is on a terminal of the cage's own.
    pub terminal: bool,
    /// What it is about.
    pub state: State,
    /// Commands that were started in it and still run.
    pub execs: Vec<ExecDescription>,
    /// What each layer enforces.
    pub layers: Vec<LayerReport>,
}

/// What a running cage is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Its command runs.
    Running,
    /// Its first command is over, and it waits for others.
    Waiting,
    /// It was asked to end.
    Stopping,
    /// Its processes are stopped until somebody resumes it.
    Paused,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Running => "running",
            State::Waiting => "waiting",
            State::Stopping => "stopping",
            State::Paused => "paused",
        })
    }
}

/// A command that was started in a running cage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecDescription {
    /// Its number in the record.
    pub number: u32,
    /// Its arguments.
    pub command: Vec<String>,
}

/// What a cage uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Bytes of memory, and how they were counted.
    pub memory: Option<u64>,
    /// The most that it may use.
    pub memory_limit: u64,
    /// The most bytes of memory at any time.
    pub memory_peak: Option<u64>,
    /// Processor time in microseconds.
    pub cpu_microseconds: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// How many there may be.
    pub pids_limit: u64,
    /// Bytes in ephemeral storage.
    pub storage: Option<u64>,
    /// What counted: `cgroup`, or `processes` where nothing but a look at each process does.
    pub counted_by: String,
}

/// Bytes of the operating system: text where they are UTF-8, else a list of numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => serializer.collect_seq(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of bytes")
            }
            fn visit_str<E>(self, text: &str) -> Result<Bytes, E> {
                Ok(Bytes(text.as_bytes().to_vec()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Bytes, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = items.next_element::<u8>()? {
                    bytes.push(byte);
                }
                Ok(Bytes(bytes))
            }
        }
        deserializer.deserialize_any(Either)
    }
}
