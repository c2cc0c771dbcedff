//! Events: what a cage leaves in the record.

use crate::{
    CageId, Ending, Holder, IntentRecord, Isolation, KeyUse, LayerReport, Lease, LeaseEnd,
    LeaseOrigin, LimitHit, LiveRule, NetworkLimits, PermissionRequest, PermissionRequestEnd,
    Publish, Reason, RecordedCause, Resource, RuleChange, Taint, Trust,
};
use serde::{Deserialize, Serialize};

/// A system call that the filter refused, counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// Its name, or `syscall_N` for a number without one.
    pub syscall: String,
    /// The program that called it, as the kernel names it (fifteen bytes at most).
    pub program: String,
    /// How often since the last record of it.
    pub count: u64,
}

/// What the egress proxy said to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkVerdict {
    /// It went out.
    Allowed,
    /// It did not.
    Denied,
}

/// What became of a message in a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageVerdict {
    /// It is on its way.
    Sent,
    /// Somebody has it.
    Received,
    /// It was not carried.
    Refused,
}

/// As what the egress proxy carried a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// A question for a name.
    Dns,
    /// Bytes, not looked at.
    Tcp,
    /// TLS, its name checked and not opened.
    Tls,
    /// HTTP, every request checked.
    Http,
    /// HTTP in TLS that was opened, every request checked.
    Https,
    /// Bytes to a Unix socket of the host's.
    Unix,
}

impl Protocol {
    /// As it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Dns => "dns",
            Protocol::Tcp => "tcp",
            Protocol::Tls => "tls",
            Protocol::Http => "http",
            Protocol::Https => "https",
            Protocol::Unix => "unix",
        }
    }
}

/// Connections of one kind through the egress proxy, counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Whether they went out.
    pub verdict: NetworkVerdict,
    /// The name or the address that was asked for.
    pub host: String,
    /// The port.
    pub port: u16,
    /// As what they were carried.
    pub protocol: Protocol,
    /// Where the name led to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The rule that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Why they did not go out.
    #[serde(flatten)]
    pub reason: Option<Reason>,
    /// Method and path of requests, without what is asked of the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// What requests were answered with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How many since the last record of this kind.
    pub connections: u64,
    /// Bytes that went out since then.
    pub sent: u64,
    /// Bytes that came in since then.
    pub received: u64,
}

/// How something was used that is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// Looked at: whether it is there, its size and times.
    Look,
    /// Opened to read.
    Read,
    /// Opened to write, made, renamed or removed.
    Write,
    /// Executed.
    Execute,
    /// Connected to: a Unix socket by its path.
    Connect,
    /// Called: a system call of a group that the policy gives.
    Call,
}

impl Use {
    /// As it is shown.
    pub const fn name(self) -> &'static str {
        match self {
            Use::Look => "look at",
            Use::Read => "read",
            Use::Write => "write",
            Use::Execute => "execute",
            Use::Connect => "connect",
            Use::Call => "call",
        }
    }
}

/// What was seen to be used where a run is observed; the first time only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// How.
    pub how: Use,
    /// The path in the cage, without links; or the system call. Bytes that are not UTF-8 are
    /// replaced.
    pub what: String,
    /// The program, as the kernel names it (fifteen bytes at most).
    pub program: String,
    /// Whether it was there and could be used so, as far as the view says; what is to be made
    /// counts by the directory that it is made in.
    pub found: bool,
    /// Whether it stands for everything below the path, because too much was seen to be told one
    /// by one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub below: bool,
}

/// Something that the policy of a run gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The key of the policy, such as `network.allow`.
    pub key: String,
    /// Its value, as a policy writes it.
    pub value: String,
    /// Where that came from.
    pub origin: String,
}

/// What a run was given and the most that it used, for who wants to give it less.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Most bytes of memory at once, as far as somebody counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// The limit on it, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<u64>,
    /// Most processes and threads at once, as far as somebody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// The limit on them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids_limit: Option<u64>,
    /// Whether files, programs and calls of groups were observed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub observed: bool,
    /// What the policy gave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub granted: Vec<Grant>,
    /// Whether it gave more than is told here.
    #[serde(default, skip_serializing_if = "is_false")]
    pub more: bool,
}

/// What has no line of its own because there was too much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeftOut {
    /// Connections to the control socket.
    Connection,
    /// Child cages that were asked for.
    Child,
    /// Messages on channels.
    Message,
    /// Requests for leases.
    LeaseRequest,
    /// Uses of an observed run.
    ObservedUse,
    /// Uses of keys.
    KeyUse,
}

impl LeftOut {
    /// In words, of several.
    pub const fn plural(self) -> &'static str {
        match self {
            LeftOut::Connection => "denied connections to the control socket",
            LeftOut::Child => "denied child cages",
            LeftOut::Message => "denied messages",
            LeftOut::LeaseRequest => "denied lease requests",
            LeftOut::ObservedUse => "observed uses",
            LeftOut::KeyUse => "denied uses of keys",
        }
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum EventKind {
    /// A cage was built and its command started.
    Start {
        /// Name given by the user, if any.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// The command's arguments; bytes that are not UTF-8 are replaced.
        command: Vec<String>,
        /// The workspace's path.
        workspace: String,
        /// The profile in force.
        profile: String,
        /// How the cage is made; not there in records of versions that did not write it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        isolation: Option<Isolation>,
        /// The OCI runtime that makes it, where one does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        runtime: Option<String>,
        /// SHA-256 of the plan.
        plan: String,
        /// What each layer enforces.
        layers: Vec<LayerReport>,
        /// Layers that the user allowed to be weaker than the policy requires.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        degraded: Vec<String>,
        /// What the cage has in common with others, as its policy names it: directories of the
        /// host that it writes to, and what it reaches through the egress proxy.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        shared: Vec<String>,
        /// The cage that opened it, where it is a child.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<CageId>,
    },
    /// The cage opened a child cage, which has a record of its own.
    ChildOpened {
        /// The child.
        child: CageId,
        /// Its command; bytes that are not UTF-8 are replaced.
        command: Vec<String>,
        /// How it has the workspace, which is the same one.
        workspace: String,
    },
    /// A child cage is gone.
    ChildEnded {
        /// The child.
        child: CageId,
        /// The exit status that was passed on.
        status: u8,
        /// How long it lived.
        milliseconds: u64,
    },
    /// Somebody in the cage wanted a child cage and did not get it; the first sixty-four are
    /// recorded.
    ChildRefused {
        /// Why.
        #[serde(flatten)]
        reason: Reason,
    },
    /// The operator opened a channel to another cage, or from one.
    ChannelOpened {
        /// Its name.
        channel: String,
        /// The other cage.
        peer: CageId,
        /// Whether this cage sends.
        sends: bool,
        /// Most bytes of a message.
        size: u32,
        /// Most messages in a minute.
        rate: u32,
        /// Most messages that nobody has received yet.
        queue: u32,
    },
    /// A message was sent, received or refused; refused ones are recorded 64 times.
    Message {
        /// The channel's name.
        channel: String,
        /// Who sends.
        from: CageId,
        /// Who receives.
        to: CageId,
        /// How long it is.
        bytes: u32,
        /// What became of it.
        verdict: MessageVerdict,
        /// Why, where it was refused.
        #[serde(flatten)]
        reason: Option<Reason>,
    },
    /// The cage may have come into contact with private data or untrusted content.
    Tainted {
        /// All that it has now.
        taint: Taint,
        /// By what it came to it.
        because: String,
    },
    /// A channel is gone.
    ChannelClosed {
        /// Its name.
        channel: String,
        /// Why.
        #[serde(flatten)]
        reason: Reason,
        /// Messages that nobody has received.
        #[serde(default, skip_serializing_if = "is_zero")]
        unread: u64,
    },
    /// A system call was refused.
    Denied(Denial),
    /// Connections were made, or refused, through the egress proxy.
    Network(Traffic),
    /// A rule of the network changed while the cage ran.
    NetworkRule {
        /// What happened to it.
        change: RuleChange,
        /// The rule.
        #[serde(flatten)]
        rule: LiveRule,
        /// Open connections that no longer match and were closed.
        closed: u64,
    },
    /// A port of the cage's is reached at the host's loopback, or no more.
    Published {
        /// What happened.
        change: RuleChange,
        /// The ports.
        #[serde(flatten)]
        publish: Publish,
    },
    /// Limits of the network changed while the cage ran; all that hold since.
    NetworkLimits(NetworkLimits),
    /// The egress proxy listens on the ports of the rules only, because the kernel cannot
    /// deliver every connection to it.
    DoorNarrowed {
        /// What the kernel lacks.
        #[serde(flatten)]
        reason: Reason,
    },
    /// The egress proxy ended before its cage, which has no network since.
    DoorEnded {
        /// How, as far as it is known.
        #[serde(flatten)]
        reason: Reason,
    },
    /// A key outside the cage was used, or a use was denied. Written before anything is signed.
    KeyUse(KeyUse),
    /// A limit was reached.
    Limit(LimitHit),
    /// Files appeared that the host would execute or trust, and that were not there to be
    /// protected when the cage started.
    Planted {
        /// Their paths; bytes that are not UTF-8 are replaced.
        paths: Vec<String>,
    },
    /// Another command was started in the running cage.
    Exec {
        /// Its number in this cage, from 1.
        number: u32,
        /// Its arguments; bytes that are not UTF-8 are replaced.
        command: Vec<String>,
        /// Whether it outlives who started it.
        detached: bool,
        /// Whether it runs beside the cage, in a scope of its own.
        #[serde(default, skip_serializing_if = "is_false")]
        scope: bool,
        /// SHA-256 of the scope's plan, in hexadecimal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan: Option<String>,
    },
    /// A command that was started in the running cage is over.
    ExecExit {
        /// Its number.
        number: u32,
        /// How it ended.
        #[serde(flatten)]
        ending: Ending,
        /// How long it ran.
        milliseconds: u64,
    },
    /// A permission was given to the running cage, and is in force.
    Lease(Lease),
    /// A permission was asked for and not given.
    LeaseRefused {
        /// What was asked for.
        resource: Resource,
        /// Who asked.
        origin: LeaseOrigin,
        /// Why not.
        #[serde(flatten)]
        reason: Reason,
        /// Requests that were refused before this one and have no record of their own, because
        /// too many came.
        #[serde(default, skip_serializing_if = "is_zero")]
        unrecorded: u64,
    },
    /// A permission is over.
    LeaseEnd {
        /// Its number.
        number: u32,
        /// What can be said of it.
        end: LeaseEnd,
        /// Why it ended.
        cause: RecordedCause,
        /// Who still used it when it was to end.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        holders: Vec<Holder>,
        /// How long it was open.
        milliseconds: u64,
    },
    /// A person is asked whether a permission is given.
    Question(PermissionRequest),
    /// A question is over.
    QuestionEnd {
        /// Its number.
        number: u32,
        /// What became of it.
        end: PermissionRequestEnd,
        /// What was said with the answer.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
        /// How often the same was asked while it was open.
        asked: u32,
        /// How long it was open.
        milliseconds: u64,
    },
    /// A tool call was read in a model's answer that needs what the cage does not have.
    Intent(IntentRecord),
    /// A tool call was read in a model's answer that removes the home or the workspace, or
    /// directories around them.
    IntentRuin {
        /// The tool.
        tool: String,
        /// The name by which its result will refer to it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<String>,
        /// What is removed; with a `*` at the end, much of what is in it.
        path: String,
        /// What holds it, or that nothing does.
        #[serde(flatten)]
        reason: Reason,
    },
    /// Something between the agent and its model could not be read.
    IntentUnread {
        /// How often, since it was last on record.
        times: u64,
        /// Why, the last time.
        #[serde(flatten)]
        reason: Reason,
    },
    /// What happened differs from what the model's answer said.
    Drift {
        /// In words.
        what: String,
        /// How many there were, this one included.
        number: u32,
        /// How far the cage is trusted now.
        trust: Trust,
    },
    /// A cage that was stopped for drift goes on.
    Resumed,
    /// A client stopped every process of the cage.
    Paused,
    /// A cage that was paused goes on.
    Unpaused,
    /// Somebody was not told of a question who should have been.
    QuestionUntold {
        /// The question's number.
        number: u32,
        /// Who, and why.
        #[serde(flatten)]
        reason: Reason,
    },
    /// Somebody connected to the cage's control socket who may not; sixteen are recorded at once,
    /// then one a minute.
    PeerRefused {
        /// Why.
        #[serde(flatten)]
        reason: Reason,
    },
    /// Refusals of one kind that have no line of their own because there were too many; told at
    /// the cage's end.
    LeftOut {
        /// Of what.
        what: LeftOut,
        /// How many.
        times: u64,
    },
    /// Something was used, in a run that is observed.
    Observed(Observation),
    /// The MCP gateway decided about a call.
    ToolCall(crate::ToolCall),
    /// The cage is gone.
    Exit {
        /// How it ended.
        #[serde(flatten)]
        ending: Ending,
        /// How long it lived.
        milliseconds: u64,
        /// What it was given and used; not there in records of versions that did not write it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Box<Usage>>,
    },
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One record: when, where, what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Microseconds since the epoch.
    pub time: u64,
    /// The cage.
    pub cage: CageId,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

fn is_false(value: &bool) -> bool {
    !value
}
