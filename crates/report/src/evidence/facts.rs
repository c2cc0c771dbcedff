//! Facts that the logs of a period show, counted.

use ironcage_model::{
    Ending, Enforcement, EventKind, LeaseEnd, MessageVerdict, NetworkVerdict, PermissionRequestEnd,
    Trust,
};
use serde::Serialize;

/// How sound the logs of a period are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LogState {
    pub intact: u64,
    pub unproven: u64,
    pub broken: u64,
}

/// A fact that controls refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fact {
    Events,
    IntactLogs,
    Starts,
    FullLayers,
    DegradedStarts,
    Exits,
    SystemCallsDenied,
    ConnectionsAllowed,
    ConnectionsDenied,
    LimitsReached,
    LeasesGranted,
    LeasesRefused,
    LeasesRevoked,
    RequestsAsked,
    RequestsApproved,
    RequestsDenied,
    RequestsUnanswered,
    ToolCallsRead,
    Drift,
    Frozen,
    Resumed,
    Stopped,
    Children,
    Messages,
    Planted,
    Tainted,
}

impl Fact {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Fact::Events => "events logged",
            Fact::IntactLogs => "logs whose hash chain and head are intact",
            Fact::Starts => "starts logged with command, policy digest and layers",
            Fact::FullLayers => "layers enforced in full",
            Fact::DegradedStarts => "starts with a layer weaker than required, as the user allowed",
            Fact::Exits => "exits logged with their cause",
            Fact::SystemCallsDenied => "system calls denied",
            Fact::ConnectionsAllowed => "connections allowed, with host and rule",
            Fact::ConnectionsDenied => "connections denied, with reason",
            Fact::LimitsReached => "limits reached",
            Fact::LeasesGranted => "leases granted, with resource, origin and approver",
            Fact::LeasesRefused => "leases refused, with reason",
            Fact::LeasesRevoked => "leases whose revocation was proved",
            Fact::RequestsAsked => "permission requests put to a person",
            Fact::RequestsApproved => "permission requests approved",
            Fact::RequestsDenied => "permission requests denied",
            Fact::RequestsUnanswered => "permission requests without an answer, which gave nothing",
            Fact::ToolCallsRead => "tool calls read before they ran",
            Fact::Drift => "deviations from what the model announced",
            Fact::Frozen => "cages frozen for such deviations",
            Fact::Resumed => "frozen cages that a person resumed",
            Fact::Stopped => "cages stopped by a person or a limit",
            Fact::Children => "child cages, each with a log of its own",
            Fact::Messages => "messages between cages, sent, received or refused",
            Fact::Planted => "files found that the host would execute",
            Fact::Tainted => "contacts with private data or untrusted content",
        }
    }

    const ALL: usize = Fact::Tainted as usize + 1;
}

/// The counts of a period.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Facts {
    pub logs: LogState,
    pub cages: u64,
    #[serde(skip)]
    counts: Vec<u64>,
}

impl Facts {
    pub(crate) fn count(&self, fact: Fact) -> u64 {
        match fact {
            Fact::IntactLogs => self.logs.intact,
            fact => self.counts.get(fact as usize).copied().unwrap_or(0),
        }
    }

    fn more(&mut self, fact: Fact, by: u64) {
        self.counts.resize(Fact::ALL, 0);
        if let Some(count) = self.counts.get_mut(fact as usize) {
            *count = count.saturating_add(by);
        }
    }

    /// Adds an event of a cage.
    pub fn add(&mut self, event: &EventKind) {
        self.more(Fact::Events, 1);
        match event {
            EventKind::Start {
                layers, degraded, ..
            } => {
                self.cages += 1;
                self.more(Fact::Starts, 1);
                let full = layers
                    .iter()
                    .filter(|layer| layer.enforcement == Enforcement::Full)
                    .count();
                self.more(Fact::FullLayers, full as u64);
                self.more(Fact::DegradedStarts, u64::from(!degraded.is_empty()));
            }
            EventKind::Exit { ending, .. } => {
                self.more(Fact::Exits, 1);
                let stopped = matches!(ending, Ending::Stopped | Ending::Limit { .. });
                self.more(Fact::Stopped, u64::from(stopped));
            }
            EventKind::Denied(denial) => self.more(Fact::SystemCallsDenied, denial.count),
            EventKind::Network(traffic) => match traffic.verdict {
                NetworkVerdict::Allowed => {
                    self.more(Fact::ConnectionsAllowed, traffic.connections);
                }
                NetworkVerdict::Denied => self.more(Fact::ConnectionsDenied, traffic.connections),
            },
            EventKind::Limit(_) => self.more(Fact::LimitsReached, 1),
            EventKind::Lease(_) => self.more(Fact::LeasesGranted, 1),
            EventKind::LeaseRefused { unrecorded, .. } => {
                self.more(Fact::LeasesRefused, unrecorded.saturating_add(1));
            }
            EventKind::LeaseEnd { end, .. } => {
                let proved = matches!(
                    end,
                    LeaseEnd::Revoked | LeaseEnd::CageEnded | LeaseEnd::CageKilled
                );
                self.more(Fact::LeasesRevoked, u64::from(proved));
            }
            EventKind::Question(_) => self.more(Fact::RequestsAsked, 1),
            EventKind::QuestionEnd { end, .. } => {
                let fact = match end {
                    PermissionRequestEnd::Approved | PermissionRequestEnd::NotOpened => {
                        Fact::RequestsApproved
                    }
                    PermissionRequestEnd::Denied => Fact::RequestsDenied,
                    PermissionRequestEnd::Expired
                    | PermissionRequestEnd::Withdrawn
                    | PermissionRequestEnd::CageEnded => Fact::RequestsUnanswered,
                };
                self.more(fact, 1);
            }
            EventKind::Intent(_) | EventKind::IntentRuin { .. } => {
                self.more(Fact::ToolCallsRead, 1);
            }
            EventKind::Drift { trust, .. } => {
                self.more(Fact::Drift, 1);
                self.more(Fact::Frozen, u64::from(*trust == Trust::Frozen));
            }
            EventKind::Resumed => self.more(Fact::Resumed, 1),
            EventKind::ChildOpened { .. } => self.more(Fact::Children, 1),
            EventKind::Message { verdict, .. } => {
                // Received ones were sent before: each is counted once.
                let counts = !matches!(verdict, MessageVerdict::Received);
                self.more(Fact::Messages, u64::from(counts));
            }
            EventKind::Planted { paths } => self.more(Fact::Planted, paths.len() as u64),
            EventKind::Tainted { .. } => self.more(Fact::Tainted, 1),
            _ => {}
        }
    }
}
