//! Events of a run besides uses: leases, permission requests, denials and drift.

use ironcage_model::{
    Approver, EventKind, Lease, LeaseEnd, LeaseOrigin, NetworkVerdict, PermissionRequest,
    PermissionRequestEnd, Trust,
};
use serde::Serialize;

/// Lines of one kind that a report keeps; the rest is counted.
pub(crate) const MOST: usize = 2000;

/// A lease, from its grant to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeaseLine {
    pub number: u32,
    pub what: String,
    pub reason: String,
    pub origin: LeaseOrigin,
    pub approver: Approver,
    pub from: u64,
    /// Its end, or the last event of the log.
    pub until: u64,
    /// Not there while it is open.
    pub end: Option<LeaseEnd>,
    /// Processes that still used it at its end.
    pub holders: usize,
}

/// A permission request, and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestLine {
    pub number: u32,
    pub what: String,
    pub because: String,
    pub time: u64,
    /// Not there while it is pending.
    pub end: Option<PermissionRequestEnd>,
    pub milliseconds: Option<u64>,
}

/// Something that was denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReportedDenial {
    pub time: u64,
    /// `system-call`, `connection`, `lease`, `child`, `control-socket` or `message`.
    pub kind: &'static str,
    pub what: String,
    pub count: u64,
    /// The reason's stable name, where the log has one.
    pub code: Option<String>,
    pub reason: String,
}

/// What happened differs from what the model said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DriftLine {
    pub time: u64,
    pub what: String,
    pub trust: Trust,
}

/// The lines, as they are collected.
#[derive(Debug, Default)]
pub(crate) struct Happened {
    pub(crate) leases: Vec<(Lease, LeaseLine)>,
    pub(crate) requests: Vec<RequestLine>,
    pub(crate) denials: Vec<ReportedDenial>,
    pub(crate) drift: Vec<DriftLine>,
    /// Lines beyond `MOST` of a kind.
    pub(crate) left_out: u64,
}

impl Happened {
    pub(crate) fn add(&mut self, time: u64, event: &EventKind) {
        match event {
            EventKind::Lease(lease) => self.open_lease(time, lease),
            EventKind::LeaseEnd {
                number,
                end,
                holders,
                ..
            } => {
                let mut open = self.leases.iter_mut().rev().map(|(_, line)| line);
                if let Some(line) = open.find(|line| line.number == *number && line.end.is_none()) {
                    line.until = match end {
                        LeaseEnd::NotOpened => line.from,
                        _ => time,
                    };
                    line.end = Some(end.clone());
                    line.holders = holders.len();
                }
            }
            EventKind::Question(request) => self.ask(time, request),
            EventKind::QuestionEnd {
                number,
                end,
                milliseconds,
                ..
            } => {
                let mut asked = self.requests.iter_mut().rev();
                if let Some(line) = asked.find(|line| line.number == *number) {
                    line.end = Some(*end);
                    line.milliseconds = Some(*milliseconds);
                }
            }
            EventKind::Drift { what, trust, .. } => {
                let line = DriftLine {
                    time,
                    what: what.clone(),
                    trust: *trust,
                };
                push(&mut self.drift, line, &mut self.left_out);
            }
            _ => {
                if let Some(line) = denial(time, event) {
                    push(&mut self.denials, line, &mut self.left_out);
                }
            }
        }
    }

    fn open_lease(&mut self, time: u64, lease: &Lease) {
        let line = LeaseLine {
            number: lease.number,
            what: lease.resource.to_string(),
            reason: lease.reason.clone(),
            origin: lease.origin,
            approver: lease.approver,
            from: time,
            until: time,
            end: None,
            holders: 0,
        };
        self.leases.push((lease.clone(), line));
    }

    fn ask(&mut self, time: u64, request: &PermissionRequest) {
        let line = RequestLine {
            number: request.number,
            what: request.resource.to_string(),
            because: request.because.clone(),
            time,
            end: None,
            milliseconds: None,
        };
        push(&mut self.requests, line, &mut self.left_out);
    }
}

fn push<T>(lines: &mut Vec<T>, line: T, left_out: &mut u64) {
    match lines.len() < MOST {
        true => lines.push(line),
        false => *left_out = left_out.saturating_add(1),
    }
}

fn denial(time: u64, event: &EventKind) -> Option<ReportedDenial> {
    let line =
        |kind, what: String, count, reason: Option<&ironcage_model::Reason>| ReportedDenial {
            time,
            kind,
            what,
            count,
            code: reason.and_then(|reason| reason.code()).map(str::to_owned),
            reason: reason.map(ToString::to_string).unwrap_or_default(),
        };
    Some(match event {
        EventKind::Denied(denial) => line(
            "system-call",
            format!("{} by {}", denial.syscall, denial.program),
            denial.count,
            None,
        ),
        EventKind::Network(traffic) if traffic.verdict == NetworkVerdict::Denied => line(
            "connection",
            format!(
                "{}:{} ({})",
                traffic.host,
                traffic.port,
                traffic.protocol.name()
            ),
            traffic.connections,
            traffic.reason.as_ref(),
        ),
        EventKind::LeaseRefused {
            resource,
            reason,
            unrecorded,
            ..
        } => line(
            "lease",
            resource.to_string(),
            unrecorded.saturating_add(1),
            Some(reason),
        ),
        EventKind::ChildRefused { reason } => {
            line("child", "a child cage".to_owned(), 1, Some(reason))
        }
        EventKind::PeerRefused { reason } => {
            line("control-socket", "a connection".to_owned(), 1, Some(reason))
        }
        EventKind::Message {
            channel,
            reason: Some(reason),
            ..
        } => line("message", channel.clone(), 1, Some(reason)),
        EventKind::ToolCall(call) if call.because.is_some() => {
            let what = format!("{} of {}", call.name, call.server);
            line("mcp-call", what, 1, call.because.as_deref())
        }
        EventKind::IntentRuin { path, reason, .. } => {
            line("tool-call", format!("removes {path}"), 1, Some(reason))
        }
        _ => return None,
    })
}
