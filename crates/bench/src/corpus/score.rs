//! Precision and recall of what was read against labels.

use super::Case;
use crate::verdict::{Target, Verdict};
use ironcage_intent::{Destination, Needs};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

/// Labels and needs of one kind.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Score {
    pub labels: usize,
    /// Those that a need covers: the path itself, or a directory around it.
    pub covered: usize,
    /// Those that a need names exactly.
    pub exact: usize,
    /// Needs.
    pub named: usize,
    /// Those that fit a label.
    pub right: usize,
}

impl Score {
    /// The share of labels that a need covers.
    pub fn recall(&self) -> f64 {
        share(self.covered, self.labels)
    }

    /// The share of needs that fit a label.
    pub fn precision(&self) -> f64 {
        share(self.right, self.named)
    }
}

fn share(part: usize, whole: usize) -> f64 {
    match whole {
        0 => 1.0,
        _ => part as f64 / whole as f64,
    }
}

/// The scores of all kinds.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Scores {
    pub(super) reads: Score,
    pub(super) writes: Score,
    pub(super) runs: Score,
    pub(super) hosts: Score,
}

/// Whether a need covers a path. The root covers nothing: everything lies in it.
fn covers(need: &Path, path: &Path) -> bool {
    path == need || (path.starts_with(need) && need.parent().is_some())
}

fn paths(
    score: &mut Score,
    kind: &str,
    labels: &[PathBuf],
    needs: &BTreeSet<PathBuf>,
) -> (Vec<String>, Vec<String>) {
    let (mut missed, mut extra) = (Vec::new(), Vec::new());
    for label in labels {
        score.labels += 1;
        score.exact += usize::from(needs.contains(label));
        match needs.iter().any(|need| covers(need, label)) {
            true => score.covered += 1,
            false => missed.push(format!("{kind} {}", label.display())),
        }
    }
    for need in needs {
        score.named += 1;
        let fits = |label: &&PathBuf| covers(need, label) || covers(label, need);
        match labels.iter().any(|label| fits(&label)) {
            true => score.right += 1,
            false => extra.push(format!("{kind} {}", need.display())),
        }
    }
    (missed, extra)
}

fn names(
    score: &mut Score,
    kind: &str,
    labels: &[String],
    needs: &BTreeSet<String>,
) -> (Vec<String>, Vec<String>) {
    let labels: BTreeSet<String> = labels.iter().cloned().collect();
    let hits = labels.intersection(needs).count();
    score.labels += labels.len();
    score.covered += hits;
    score.exact += hits;
    score.named += needs.len();
    score.right += hits;
    let told = |name: &String| format!("{kind} {name}");
    let missed = labels.difference(needs).map(told).collect();
    let extra = needs.difference(&labels).map(told).collect();
    (missed, extra)
}

impl Scores {
    /// Adds a case. Returns what was missed, and what was named beyond the labels.
    pub(super) fn add(&mut self, case: &Case, needs: &Needs) -> (Vec<String>, Vec<String>) {
        let hosts = needs.destinations.iter().map(|to| match to {
            Destination::Host { name, .. } => name.clone(),
            other => other.to_string(),
        });
        let parts = [
            paths(&mut self.reads, "reads", &case.reads, &needs.reads),
            paths(&mut self.writes, "writes", &case.writes, &needs.writes),
            names(&mut self.runs, "runs", &case.runs, &needs.programs),
            names(&mut self.hosts, "contacts", &case.hosts, &hosts.collect()),
        ];
        let (mut missed, mut extra) = (Vec::new(), Vec::new());
        for (part_missed, part_extra) in parts {
            missed.extend(part_missed);
            extra.extend(part_extra);
        }
        (missed, extra)
    }

    fn rows(&self) -> [(&'static str, &Score); 4] {
        [
            ("reads", &self.reads),
            ("writes", &self.writes),
            ("executes", &self.runs),
            ("hosts", &self.hosts),
        ]
    }

    /// What is missed of each kind, against the bars.
    pub(super) fn verdicts(&self) -> Vec<Verdict> {
        let bars = [20.0, 15.0, 5.0, 20.0];
        let rows = self.rows().into_iter().zip(bars);
        let recall = rows.map(|((name, score), at_most)| {
            let target = Target { at_most, unit: "%" };
            Verdict::new(
                format!("{name} missed"),
                100.0 * (1.0 - score.recall()),
                target,
            )
        });
        recall.collect()
    }
}

impl fmt::Display for Scores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<10}{:>8}{:>8}{:>11}{:>8}",
            "", "labels", "recall", "precision", "exact"
        )?;
        for (name, score) in self.rows() {
            writeln!(
                f,
                "{name:<10}{:>8}{:>8.2}{:>11.2}{:>8.2}",
                score.labels,
                score.recall(),
                score.precision(),
                share(score.exact, score.labels)
            )?;
        }
        Ok(())
    }
}
