//! Collects the events of one run.

use crate::authority::{Authority, EntrySpan, EntryUse, Unknown};
use crate::chart::{self, Point};
use crate::entries::{self, Base, Span};
use crate::happened::{DriftLine, Happened, LeaseLine, ReportedDenial, RequestLine};
use crate::uses::Uses;
use ironcage_model::{
    CageId, Ending, Event, EventKind, LiveRule, NetworkVerdict, RuleChange, Usage,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;

/// What the log of one run says.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub cage: CageId,
    pub command: Vec<String>,
    pub profile: String,
    pub workspace: String,
    /// Microseconds since the epoch: the first and the last event.
    pub from: u64,
    pub until: u64,
    /// Not there while the cage runs, or where its supervisor was killed.
    pub ending: Option<Ending>,
    pub authority: Authority,
    /// Every path and host that was open.
    pub entries: Vec<EntrySpan>,
    pub leases: Vec<LeaseLine>,
    pub requests: Vec<RequestLine>,
    pub denials: Vec<ReportedDenial>,
    pub drift: Vec<DriftLine>,
    /// Authority over time.
    pub chart: Vec<Point>,
    /// What the log cannot show.
    pub notes: Vec<String>,
}

/// Events as they come, sorted.
#[derive(Default)]
struct Collected {
    command: Vec<String>,
    profile: String,
    workspace: String,
    times: Option<(u64, u64)>,
    ending: Option<Ending>,
    usage: Option<Usage>,
    uses: Uses,
    happened: Happened,
    rules: Vec<(LiveRule, u64, Option<u64>)>,
}

impl Collected {
    fn add(&mut self, event: Event) {
        let time = event.time;
        let (from, until) = self.times.unwrap_or((time, time));
        self.times = Some((from.min(time), until.max(time)));
        self.uses.add(time, &event.kind);
        self.happened.add(time, &event.kind);
        match event.kind {
            EventKind::Start {
                command,
                workspace,
                profile,
                ..
            } => {
                self.command = command;
                self.workspace = workspace;
                self.profile = profile;
            }
            EventKind::NetworkRule { change, rule, .. } => self.rule(time, change, rule),
            EventKind::Exit { ending, usage, .. } => {
                self.ending = Some(ending);
                self.usage = usage.map(|usage| *usage);
            }
            _ => {}
        }
    }

    fn rule(&mut self, time: u64, change: RuleChange, rule: LiveRule) {
        if rule.verdict != NetworkVerdict::Allowed {
            return;
        }
        match change {
            RuleChange::Added => self.rules.push((rule, time, None)),
            RuleChange::Removed => {
                let mut open = self.rules.iter_mut();
                let known =
                    open.find(|(known, _, end)| known.number == rule.number && end.is_none());
                if let Some((_, _, end)) = known {
                    *end = Some(time);
                }
            }
        }
    }
}

impl Report {
    /// The report of a run. `home` is the home directory of the cage's user, by which entries of
    /// the policy that are relative to it are found.
    pub fn of(cage: CageId, events: impl IntoIterator<Item = Event>, home: Option<&Path>) -> Self {
        let mut all = Collected::default();
        for event in events {
            all.add(event);
        }
        let (from, until) = all.times.unwrap_or_default();
        let mut found = Vec::new();
        let base = Base {
            uses: &all.uses,
            workspace: Path::new(&all.workspace),
            home,
            from,
            until,
        };
        for grant in all.usage.iter().flat_map(|usage| &usage.granted) {
            found.extend(base.entries(grant));
        }
        let mut leases = Vec::new();
        for (lease, mut line) in std::mem::take(&mut all.happened.leases) {
            if line.end.is_none() {
                line.until = until;
            }
            let span = Span {
                from: line.from,
                until: line.until,
            };
            found.extend(entries::of_lease(&lease, span, &all.uses));
            leases.push(line);
        }
        for (rule, from, end) in &all.rules {
            let span = Span {
                from: *from,
                until: end.unwrap_or(until),
            };
            found.push(entries::of_rule(rule, span, &all.uses));
        }
        let notes = notes(&all, &found);
        Report {
            cage,
            command: all.command,
            profile: all.profile,
            workspace: all.workspace,
            from,
            until,
            ending: all.ending,
            authority: Authority::of(&found),
            chart: chart::points(&found, from, until),
            entries: found,
            leases,
            requests: all.happened.requests,
            denials: all.happened.denials,
            drift: all.happened.drift,
            notes,
        }
    }

    /// Seconds from the first to the last event.
    pub fn seconds(&self) -> f64 {
        self.until.saturating_sub(self.from) as f64 / 1e6
    }
}

fn notes(all: &Collected, entries: &[EntrySpan]) -> Vec<String> {
    let mut notes = Vec::new();
    match &all.usage {
        None => notes.push(
            "the base policy is not counted: its entries are in the exit event, which this log does not have"
                .to_owned(),
        ),
        Some(usage) if usage.more => {
            notes.push("the policy gave more entries than the log lists; the rest is not counted".to_owned());
        }
        Some(_) => {}
    }
    let unknown: BTreeSet<Unknown> = entries
        .iter()
        .filter_map(|entry| match entry.used {
            EntryUse::Unknown { because } => Some(because),
            _ => None,
        })
        .collect();
    notes.extend(unknown.into_iter().map(|because| because.text().to_owned()));
    if all.happened.left_out > 0 {
        notes.push(format!(
            "{} more events are not listed here",
            all.happened.left_out
        ));
    }
    notes
}
