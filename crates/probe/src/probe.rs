//! A probe: a plain value.

use crate::inside::{Inside, Observation};
use crate::oracle::Oracle;
use serde::Serialize;
use std::fmt;

/// The subject of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Class {
    /// Files outside the view.
    Fs,
    /// Descriptors that the launcher leaked.
    Fd,
    /// Processes outside.
    Pr,
    /// Sockets, shared memory and queues of the host.
    Ip,
    Ne,
    /// System calls.
    Sy,
    /// Kernel interfaces in /proc, /sys and /dev.
    Ki,
    /// Secrets and identity of the host.
    Se,
    Tt,
    /// Files that the host would later execute or trust.
    Ps,
    /// Resources.
    Rs,
    /// Start, end and what stays behind.
    Lf,
    /// The supervisor and other cages.
    Su,
    /// Permissions for a while, and their end.
    Le,
    /// Oracles: what answers tell of a secret that the egress proxy adds.
    Or,
    /// Encodings that a request negotiates for an answer with such a secret.
    Ng,
    /// Keys in the user's agents.
    Ka,
    /// Tools of servers that an agent calls.
    To,
}

impl Class {
    /// Every class, in the order of the report.
    pub const ALL: [Class; 18] = [
        Class::Fs,
        Class::Fd,
        Class::Pr,
        Class::Ip,
        Class::Ne,
        Class::Sy,
        Class::Ki,
        Class::Se,
        Class::Tt,
        Class::Ps,
        Class::Rs,
        Class::Lf,
        Class::Su,
        Class::Le,
        Class::Or,
        Class::Ng,
        Class::Ka,
        Class::To,
    ];

    /// The two letters that begin its probes' ids.
    pub const fn prefix(self) -> &'static str {
        match self {
            Class::Fs => "FS",
            Class::Fd => "FD",
            Class::Pr => "PR",
            Class::Ip => "IP",
            Class::Ne => "NE",
            Class::Sy => "SY",
            Class::Ki => "KI",
            Class::Se => "SE",
            Class::Tt => "TT",
            Class::Ps => "PS",
            Class::Rs => "RS",
            Class::Lf => "LF",
            Class::Su => "SU",
            Class::Le => "LE",
            Class::Or => "OR",
            Class::Ng => "NG",
            Class::Ka => "KA",
            Class::To => "TO",
        }
    }

    /// What its probes are about.
    pub const fn subject(self) -> &'static str {
        match self {
            Class::Fs => "files outside the view",
            Class::Fd => "leaked descriptors",
            Class::Pr => "processes outside",
            Class::Ip => "sockets, shared memory and queues of the host",
            Class::Ne => "network",
            Class::Sy => "system calls",
            Class::Ki => "kernel interfaces in /proc, /sys and /dev",
            Class::Se => "secrets and identity of the host",
            Class::Tt => "terminal",
            Class::Ps => "files that the host would later execute or trust",
            Class::Rs => "resources",
            Class::Lf => "start, end and what stays behind",
            Class::Su => "supervisor and other cages",
            Class::Le => "permissions for a while, and their end",
            Class::Or => "oracles about secrets at the egress proxy",
            Class::Ng => "negotiated encodings of answers with secrets",
            Class::Ka => "keys in the user's agents",
            Class::To => "tools of MCP servers",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.prefix())
    }
}

/// What it means when a probe gets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A canary was read, changed, signalled or reached: an escape.
    Effect,
    /// A kernel interface is reachable: room for an attack.
    Surface,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Effect => "effect",
            Kind::Surface => "surface",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The host or its secrets are lost.
    Critical,
    /// A good step towards that.
    High,
    /// Harm within bounds.
    Medium,
    /// Knowledge of the host.
    Low,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Severity::Critical => "critical",
            Severity::High => "high",
            Severity::Medium => "medium",
            Severity::Low => "low",
        })
    }
}

/// How the sandbox is started for a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setup {
    /// The command in the workspace, nothing else.
    Plain,
    /// With one directory outside granted for reading.
    ReadGrant,
    /// With one directory in the workspace hidden.
    Mask,
    /// From a working directory outside the workspace.
    OutsideCwd,
    /// With a host file, open for reading and writing, as standard input.
    HostStdin,
    /// From a terminal, as a user starts it.
    Terminal,
    /// With small limits on memory, processes, files, disk and processors. What the probe holds
    /// is looked at from outside, and then it is told to let go.
    Limits,
    /// The same, but in the sandbox it is to be ended by a limit, and is not told.
    LimitsUntilEnded,
    /// With the same limits, and the change of the workspace in memory.
    LimitsInMemory,
    /// The same with a share of one processor.
    CpuShare,
    /// With a time limit of one second.
    Deadline,
    /// Beside a second sandbox of the same user.
    Sibling,
    /// The given number of times.
    Repeated(u32),
    /// With output that nobody reads for a while.
    SlowReader,
    /// The launcher is killed while the command runs.
    LauncherKilled,
    /// The launcher is killed, another run follows, and what is left is counted.
    LauncherKilledCounted,
    /// The suite tries to reach a listener of the probe while it runs.
    Listening,
    /// The suite tries to take a lock while it runs.
    Locking,
    /// Its processes are watched from outside.
    Watched,
    /// With a network of which the policy allows this.
    Proxy(ProxyRules),
    /// With a network of which the policy allows one host, and the sandbox's own record of the run is
    /// looked at afterwards.
    Crowded,
    /// In a workspace that brings settings which would give it more.
    HostilePolicy,
    /// In a workspace whose settings the user has approved and somebody has exchanged since.
    Exchanged,
    /// Twice; what the first run leaves is the second's to find.
    Again,
    /// The sandbox's own record of the run is examined afterwards.
    Recorded,
    /// What the run changed is applied to the real files, where the sandbox keeps it aside.
    Applied,
    /// As root of an image that it can write, of which an image is made afterwards.
    Committed,
    /// With a lease on a directory outside, which is ended while the probe holds it.
    Leased,
    /// Beside a scope that has such a lease.
    Scoped,
    /// With one key of the user's agent, for commits.
    Keys,
    /// As the MCP servers of an agent that the suite plays.
    Tools,
}

impl Setup {
    /// Whether it has limits, and what they did is to be known.
    pub(crate) fn is_limited(self) -> bool {
        matches!(
            self,
            Setup::Limits | Setup::LimitsUntilEnded | Setup::LimitsInMemory | Setup::CpuShare
        )
    }
}

/// What the policy of a run with a network allows of [`crate::stage::allowed::NAME`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProxyRules {
    /// Reading packages: GET and HEAD below `/pkg`.
    Reading,
    /// GET and POST below `/pkg`.
    Posting,
    /// The host, and no more than [`ProxyRules::BUDGET`] bytes to it.
    Budget,
    Name,
    /// Every host of the internet.
    Open,
    /// The host, with a secret that the proxy puts on.
    Secret,
    /// The same for a host that echoes; and another one that does.
    Echo,
    /// The host, reached through the upstream proxy of the user's network, whose own port on the
    /// host is allowed too.
    Upstream,
}

impl ProxyRules {
    /// Bytes that may go out.
    pub(crate) const BUDGET: u64 = 64 << 10;
}

/// How the probe is shown to be able to succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    /// Uncaged, as the same user.
    SameUser,
    /// Uncaged as the same user; if that fails, with every capability in the stage's user
    /// namespace.
    Privileged,
    /// With every capability, in a mount namespace that has the mask or the read-only grant.
    PrivilegedMounts,
    /// Under a launcher of the suite's own that makes the mistake.
    FaultyLauncher,
}

/// One containment test.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Probe {
    /// Its id in the catalogue.
    pub id: &'static str,
    pub class: Class,
    /// Effect or surface.
    pub kind: Kind,
    pub severity: Severity,
    /// What it does, in one line.
    pub title: &'static str,
    /// What is outside and decides.
    pub canary: &'static str,
    /// What should stop it.
    pub layers: &'static [&'static str],
    /// Where it is described.
    pub references: &'static [&'static str],
    /// How the sandbox is started for it.
    #[serde(skip)]
    pub(crate) setup: Setup,
    /// How it is shown to be able to succeed.
    #[serde(skip)]
    pub(crate) control: Control,
    #[serde(skip)]
    pub(crate) inside: fn(&Inside) -> Observation,
    #[serde(skip)]
    pub(crate) oracle: Oracle,
}

impl Probe {
    /// What the probes of a class share: an effect of high severity, started plainly, with an
    /// uncaged run of the same user as its control.
    pub(crate) const fn of(class: Class) -> Probe {
        fn nothing(_: &Inside) -> Observation {
            Observation::default()
        }
        Probe {
            id: "",
            class,
            kind: Kind::Effect,
            severity: Severity::High,
            title: "",
            canary: "",
            layers: &[],
            references: &[],
            setup: Setup::Plain,
            control: Control::SameUser,
            inside: nothing,
            oracle: Oracle::Reached,
        }
    }
}
