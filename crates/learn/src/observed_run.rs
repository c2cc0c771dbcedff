//! The audit log of one run, sorted.

use ironcage_model::{
    Denial, Ending, EventKind, Lease, LeftOut, NetworkVerdict, Observation, Protocol, Resource,
    Traffic, Usage, Use,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Programs that are named for one refusal.
const PROGRAMS: usize = 3;

/// System calls of one kind that were refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refused {
    pub count: u64,
    /// Some of the programs that called it.
    pub programs: BTreeSet<String>,
}

/// What the record of one run says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedRun {
    /// The command and its arguments.
    pub command: Vec<String>,
    pub workspace: PathBuf,
    /// The profile in force.
    pub profile: String,
    /// What was seen to be used.
    pub seen: Vec<Observation>,
    /// Uses that were observed and not recorded, because there were too many.
    pub left_out: u64,
    /// Connections, of each kind one.
    pub traffic: Vec<Traffic>,
    /// Refused system calls.
    pub denied: BTreeMap<String, Refused>,
    /// Permissions that were given while it ran.
    pub leases: Vec<Lease>,
    /// Permissions that were asked for and not given.
    pub refused_leases: Vec<Resource>,
    /// What it was given, and the most that it used; not there where the run is not over, or was
    /// killed with its supervisor.
    pub usage: Option<Usage>,
    pub ending: Option<Ending>,
}

impl ObservedRun {
    pub fn add(&mut self, event: EventKind) {
        match event {
            EventKind::Start {
                command,
                workspace,
                profile,
                ..
            } => {
                self.command = command;
                self.workspace = workspace.into();
                self.profile = profile;
            }
            EventKind::Denied(denial) => self.add_denial(denial),
            EventKind::Network(traffic) => self.add_traffic(traffic),
            EventKind::Observed(seen) => self.seen.push(seen),
            EventKind::LeftOut {
                what: LeftOut::ObservedUse,
                times,
            } => self.left_out = self.left_out.saturating_add(times),
            EventKind::Lease(lease) => self.leases.push(lease),
            EventKind::LeaseRefused { resource, .. } => self.refused_leases.push(resource),
            EventKind::Exit { ending, usage, .. } => {
                self.ending = Some(ending);
                self.usage = usage.map(|usage| *usage);
            }
            // The others say nothing of what was used.
            _ => {}
        }
    }

    fn add_denial(&mut self, denial: Denial) {
        let refused = self.denied.entry(denial.syscall).or_default();
        refused.count = refused.count.saturating_add(denial.count);
        if refused.programs.len() < PROGRAMS {
            refused.programs.insert(denial.program);
        }
    }

    fn add_traffic(&mut self, traffic: Traffic) {
        let known = self.traffic.iter_mut().find(|known| {
            (known.verdict, &known.host, known.port, known.protocol)
                == (
                    traffic.verdict,
                    &traffic.host,
                    traffic.port,
                    traffic.protocol,
                )
                && known.request == traffic.request
        });
        match known {
            Some(known) => {
                known.connections = known.connections.saturating_add(traffic.connections);
                known.sent = known.sent.saturating_add(traffic.sent);
                known.received = known.received.saturating_add(traffic.received);
            }
            None => self.traffic.push(traffic),
        }
    }

    /// Whether files and programs were observed.
    pub fn is_observed(&self) -> bool {
        self.usage.as_ref().is_some_and(|usage| usage.observed) || !self.seen.is_empty()
    }

    /// Connections that were made, and those that were refused; questions for names only where
    /// nothing came of them.
    pub(crate) fn connections(&self, verdict: NetworkVerdict) -> impl Iterator<Item = &Traffic> {
        self.traffic.iter().filter(move |traffic| {
            traffic.verdict == verdict
                && (traffic.protocol != Protocol::Dns || verdict == NetworkVerdict::Denied)
        })
    }

    /// Calls of groups that were made.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Observation> {
        self.seen.iter().filter(|seen| seen.how == Use::Call)
    }
}
