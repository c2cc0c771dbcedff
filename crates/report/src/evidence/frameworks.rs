//! The controls that an audit log speaks to.
//!
//! Only ids that were looked up are here, each described in our own words. Where a text was not
//! available, its edition says so.

use super::facts::Fact;
use std::fmt;
use std::str::FromStr;

/// A control of a framework.
#[derive(Debug)]
pub struct Control {
    pub(super) id: &'static str,
    pub(super) about: &'static str,
    pub(super) facts: &'static [Fact],
    pub(super) beyond: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framework {
    EuAiAct,
    Aisvs,
    Aiuc1,
    Casf,
}

/// A name that is not one of the frameworks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownFramework(pub String);

impl fmt::Display for UnknownFramework {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.escape_debug();
        write!(
            f,
            "unknown framework `{text}`; expected eu-ai-act, aisvs, aiuc-1 or casf"
        )
    }
}

impl std::error::Error for UnknownFramework {}

impl FromStr for Framework {
    type Err = UnknownFramework;

    fn from_str(text: &str) -> Result<Self, UnknownFramework> {
        let mut all = Framework::ALL.into_iter();
        all.find(|framework| framework.name() == text)
            .ok_or_else(|| UnknownFramework(text.to_owned()))
    }
}

impl Framework {
    pub const ALL: [Framework; 4] = [
        Framework::EuAiAct,
        Framework::Aisvs,
        Framework::Aiuc1,
        Framework::Casf,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Framework::EuAiAct => "eu-ai-act",
            Framework::Aisvs => "aisvs",
            Framework::Aiuc1 => "aiuc-1",
            Framework::Casf => "casf",
        }
    }

    /// What the ids were looked up in.
    pub(super) const fn edition(self) -> &'static str {
        match self {
            Framework::EuAiAct => {
                "Regulation (EU) 2024/1689, articles 12 and 14; they bind providers of high-risk systems"
            }
            Framework::Aisvs => {
                "OWASP AISVS 1.0, chapters C9 and C12, from the project's repository; numbers differ between its revisions"
            }
            Framework::Aiuc1 => {
                "AIUC-1, pages of B006, D003 and E015; the id E015 was found in a mapping by others, its text on the standard's own page"
            }
            Framework::Casf => "Common Agent Sandboxing Framework 0.1 (docs/casf)",
        }
    }

    pub(super) const fn controls(self) -> &'static [Control] {
        match self {
            Framework::EuAiAct => EU_AI_ACT,
            Framework::Aisvs => AISVS,
            Framework::Aiuc1 => AIUC_1,
            Framework::Casf => CASF,
        }
    }
}

const fn control(
    id: &'static str,
    about: &'static str,
    facts: &'static [Fact],
    beyond: &'static str,
) -> Control {
    Control {
        id,
        about,
        facts,
        beyond,
    }
}

const EU_AI_ACT: &[Control] = &[
    control(
        "12(1)",
        "Events are recorded automatically over the lifetime of the system",
        &[Fact::Events, Fact::Starts, Fact::Exits, Fact::IntactLogs],
        "how long logs are kept: `ironcage audit prune` removes them only on request",
    ),
    control(
        "12(2)(a)",
        "Situations that may present a risk can be identified",
        &[
            Fact::SystemCallsDenied,
            Fact::ConnectionsDenied,
            Fact::LeasesRefused,
            Fact::Drift,
            Fact::Planted,
            Fact::Tainted,
        ],
        "whether a situation is a risk within the meaning of article 79(1)",
    ),
    control(
        "12(2)(b)",
        "Logs facilitate post-market monitoring",
        &[Fact::Events, Fact::LimitsReached, Fact::DegradedStarts],
        "the monitoring plan of article 72",
    ),
    control(
        "12(2)(c)",
        "Logs facilitate monitoring of the operation by deployers",
        &[
            Fact::Starts,
            Fact::ConnectionsAllowed,
            Fact::LeasesGranted,
            Fact::ToolCallsRead,
        ],
        "",
    ),
    control(
        "14(1)",
        "Natural persons can oversee the system while it is in use",
        &[Fact::RequestsAsked, Fact::LeasesGranted, Fact::Drift],
        "who these persons are, and their competence",
    ),
    control(
        "14(4)(a)",
        "Overseers can monitor the operation and detect anomalies",
        &[
            Fact::Drift,
            Fact::SystemCallsDenied,
            Fact::ConnectionsDenied,
        ],
        "whether they understand the system's capacities and limitations",
    ),
    control(
        "14(4)(b)",
        "Overseers stay aware of automation bias",
        &[],
        "training; an audit log shows answers, not how they came about",
    ),
    control(
        "14(4)(d)",
        "Overseers can decide not to use or to override the output",
        &[
            Fact::RequestsApproved,
            Fact::RequestsDenied,
            Fact::RequestsUnanswered,
        ],
        "decisions about changes: `ironcage apply` and `ironcage discard` are not logged here",
    ),
    control(
        "14(4)(e)",
        "Overseers can intervene or halt the system in a safe state",
        &[
            Fact::Stopped,
            Fact::Frozen,
            Fact::Resumed,
            Fact::LeasesRevoked,
        ],
        "",
    ),
];

const AISVS: &[Control] = &[
    control(
        "9.1.1",
        "Budgets for each execution are enforced",
        &[Fact::LimitsReached],
        "budgets of tokens and money: the log has processes, memory, storage and time",
    ),
    control(
        "9.2.1",
        "High-impact actions need a person's approval",
        &[
            Fact::RequestsAsked,
            Fact::RequestsApproved,
            Fact::RequestsDenied,
        ],
        "which actions count as high-impact: the policy's ceiling says",
    ),
    control(
        "9.2.5",
        "Approvals expire",
        &[Fact::RequestsUnanswered, Fact::LeasesRevoked],
        "",
    ),
    control(
        "9.3.1",
        "Tools run in a sandbox with least privilege",
        &[Fact::Starts, Fact::FullLayers, Fact::DegradedStarts],
        "whether the policy is the least: `ironcage report` has excess authority-seconds",
    ),
    control(
        "9.3.2",
        "Quotas of tools are enforced and logged",
        &[Fact::LimitsReached],
        "",
    ),
    control(
        "9.4.3",
        "Audit logs are tamper-evident and reconstruct who acted",
        &[Fact::IntactLogs, Fact::Starts, Fact::LeasesGranted],
        "the user behind an agent, where several share an account",
    ),
    control(
        "9.6.1",
        "A policy enforced by the runtime authorises actions",
        &[
            Fact::LeasesGranted,
            Fact::LeasesRefused,
            Fact::ConnectionsDenied,
            Fact::SystemCallsDenied,
        ],
        "",
    ),
    control(
        "9.7.1",
        "Gates evaluate actions before they run",
        &[Fact::ToolCallsRead, Fact::LeasesRefused],
        "",
    ),
    control(
        "9.7.4",
        "A mismatch between intent and result leads to containment",
        &[Fact::Drift, Fact::Frozen],
        "",
    ),
    control(
        "9.8.1",
        "Agents of different domains are isolated",
        &[Fact::Children, Fact::Messages],
        "how tenants are assigned to hosts and users",
    ),
    control(
        "12.5.2",
        "Approvals are logged with approver, time, parameters and outcome",
        &[
            Fact::RequestsAsked,
            Fact::RequestsApproved,
            Fact::RequestsDenied,
        ],
        "the approver's identity beyond the user account",
    ),
    control(
        "12.5.3",
        "Kill switches and overrides are logged",
        &[Fact::Stopped, Fact::Frozen, Fact::Resumed],
        "",
    ),
];

const AIUC_1: &[Control] = &[
    control(
        "B006",
        "Agents do not act beyond their scope and privileges",
        &[
            Fact::FullLayers,
            Fact::LeasesRefused,
            Fact::ConnectionsDenied,
            Fact::SystemCallsDenied,
            Fact::Drift,
        ],
        "integration with identity management",
    ),
    control(
        "D003",
        "Unsafe tool calls are restricted",
        &[
            Fact::ToolCallsRead,
            Fact::LeasesRefused,
            Fact::RequestsAsked,
            Fact::LimitsReached,
        ],
        "scheduled reviews of tool use",
    ),
    control(
        "E015",
        "Processes, actions and outputs of the system are logged",
        &[
            Fact::Events,
            Fact::Starts,
            Fact::IntactLogs,
            Fact::RequestsApproved,
            Fact::Children,
        ],
        "model inputs and outputs, which are not in this log; retention",
    ),
];

const CASF: &[Control] = &[
    control(
        "CASF-2.3",
        "Resources are bounded, and a limit that is reached is told",
        &[Fact::LimitsReached],
        "the probes: `ironcage probe run --casf`",
    ),
    control(
        "CASF-2.9",
        "One way out, decided and recorded",
        &[Fact::ConnectionsAllowed, Fact::ConnectionsDenied],
        "the probes",
    ),
    control(
        "CASF-2.10",
        "Nothing runs with less than was asked",
        &[Fact::FullLayers, Fact::DegradedStarts],
        "",
    ),
    control(
        "CASF-2.11",
        "There is a record",
        &[
            Fact::Starts,
            Fact::SystemCallsDenied,
            Fact::LimitsReached,
            Fact::Exits,
        ],
        "",
    ),
    control(
        "CASF-3.3",
        "The record proves itself",
        &[Fact::IntactLogs],
        "",
    ),
    control(
        "CASF-3.4",
        "A grant has a ceiling and an end that is proven",
        &[
            Fact::LeasesGranted,
            Fact::LeasesRefused,
            Fact::LeasesRevoked,
        ],
        "the ceiling: the policy file whose digest the start has",
    ),
];
