//! Evidence for auditors: what the logs of a period show for the controls of a framework.
//!
//! A log is evidence, not compliance. Each control says which facts of the log speak to it; what a
//! log cannot show is said too.

mod facts;
mod frameworks;

pub use facts::{Facts, LogState};
pub use frameworks::{Control, Framework, UnknownFramework};

use serde::Serialize;
use std::fmt;

/// Whether the period has something to show for a control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Events of the period speak to it.
    Evidence,
    /// Such events are logged, and the period has none.
    NoEvents,
    /// An audit log cannot show it.
    NotShown,
}

impl Status {
    const fn name(self) -> &'static str {
        match self {
            Status::Evidence => "evidence",
            Status::NoEvents => "no events",
            Status::NotShown => "not shown",
        }
    }
}

/// A fact of the period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FactLine {
    pub fact: &'static str,
    pub count: u64,
}

/// One control, with what the period shows for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ControlLine {
    pub id: &'static str,
    /// In our own words; the framework's text decides.
    pub about: &'static str,
    pub status: Status,
    pub facts: Vec<FactLine>,
    /// What has to come from elsewhere.
    pub beyond: &'static str,
}

/// The report of a period for one framework. It has whole numbers only, so that its digest does not
/// depend on how a language writes fractions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EvidenceReport {
    pub framework: &'static str,
    /// The text that the ids were looked up in.
    pub edition: &'static str,
    /// Microseconds since the epoch; absent without a bound.
    pub since: Option<u64>,
    pub until: u64,
    pub facts: Facts,
    pub controls: Vec<ControlLine>,
}

impl EvidenceReport {
    pub fn of(framework: Framework, facts: Facts, since: Option<u64>, until: u64) -> Self {
        let controls = framework.controls().iter().map(|control| {
            let facts: Vec<FactLine> = control
                .facts
                .iter()
                .map(|fact| FactLine {
                    fact: fact.name(),
                    count: facts.count(*fact),
                })
                .collect();
            let status = match facts.as_slice() {
                [] => Status::NotShown,
                facts if facts.iter().any(|line| line.count > 0) => Status::Evidence,
                _ => Status::NoEvents,
            };
            ControlLine {
                id: control.id,
                about: control.about,
                status,
                facts,
                beyond: control.beyond,
            }
        });
        EvidenceReport {
            framework: framework.name(),
            edition: framework.edition(),
            since,
            until,
            controls: controls.collect(),
            facts,
        }
    }
}

impl fmt::Display for EvidenceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.framework, self.edition)?;
        let logs = &self.facts.logs;
        writeln!(
            f,
            "{} logs: {} intact, {} with an unproven tail, {} broken",
            logs.intact + logs.unproven + logs.broken,
            logs.intact,
            logs.unproven,
            logs.broken
        )?;
        for control in &self.controls {
            writeln!(
                f,
                "\n{}  {}  [{}]",
                control.id,
                control.about,
                control.status.name()
            )?;
            for line in &control.facts {
                writeln!(f, "  {:>8}  {}", line.count, line.fact)?;
            }
            if !control.beyond.is_empty() {
                writeln!(f, "  not from this log: {}", control.beyond)?;
            }
        }
        writeln!(
            f,
            "\nA log is evidence for these controls and does not fulfil them."
        )
    }
}
