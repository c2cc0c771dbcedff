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
    /// Those that are a label, or lie within one: they give no more than is needed.
    pub narrow: usize,
    /// Those that lie around a label: they give it, and more.
    pub wide: usize,
}

impl Score {
    /// The share of labels that a need covers.
    pub fn recall(&self) -> f64 {
        share(self.covered, self.labels)
    }

    /// The share of labels that a need names exactly.
    pub fn exact_recall(&self) -> f64 {
        share(self.exact, self.labels)
    }

    /// The share of needs that fit a label, be they wider than it.
    pub fn precision(&self) -> f64 {
        share(self.narrow + self.wide, self.named)
    }

    /// The share of needs that fit a label and are not wider than it.
    pub fn narrow_precision(&self) -> f64 {
        share(self.narrow, self.named)
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
        if labels.iter().any(|label| covers(label, need)) {
            score.narrow += 1;
        } else if labels.iter().any(|label| covers(need, label)) {
            score.wide += 1;
        } else {
            extra.push(format!("{kind} {}", need.display()));
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
    score.narrow += hits;
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

    /// What is missed of each kind, and what is named beyond the labels, against the bars.
    pub(super) fn verdicts(&self) -> Vec<Verdict> {
        let missed = [20.0, 15.0, 5.0, 20.0];
        let mut verdicts = Vec::new();
        for ((name, score), at_most) in self.rows().into_iter().zip(missed) {
            let percent = |share: f64| 100.0 * (1.0 - share);
            let target = |at_most| Target { at_most, unit: "%" };
            verdicts.push(Verdict::new(
                format!("{name} missed"),
                percent(score.recall()),
                target(at_most),
            ));
            verdicts.push(Verdict::new(
                format!("{name} beyond the labels"),
                percent(score.precision()),
                target(20.0),
            ));
        }
        verdicts
    }
}

impl fmt::Display for Scores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<10}{:>8}{:>8}{:>8}{:>8}{:>11}{:>8}",
            "", "labels", "recall", "exact", "needs", "precision", "narrow"
        )?;
        for (name, score) in self.rows() {
            writeln!(
                f,
                "{name:<10}{:>8}{:>8.2}{:>8.2}{:>8}{:>11.2}{:>8.2}",
                score.labels,
                score.recall(),
                score.exact_recall(),
                score.named,
                score.precision(),
                score.narrow_precision()
            )?;
        }
        writeln!(
            f,
            "exact: the need is the labelled path; narrow: the need is not wider than a label"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_around_a_label_covers_it_and_is_wide() {
        let mut score = Score::default();
        let labels = ["/app/out/a", "/app/in"].map(PathBuf::from);
        let needs = ["/app/out", "/app/in/x", "/etc/passwd"].map(PathBuf::from);
        let (missed, extra) = paths(&mut score, "reads", &labels, &needs.into());
        // `/app/in/x` is a part of what the label asks for.
        assert_eq!((score.covered, score.exact), (1, 0));
        assert_eq!((score.narrow, score.wide, score.named), (1, 1, 3));
        assert_eq!(missed, ["reads /app/in"]);
        assert_eq!(extra, ["reads /etc/passwd"]);
        assert!(score.precision() > score.narrow_precision());
    }

    #[test]
    fn the_root_covers_nothing() {
        let mut score = Score::default();
        let labels = [PathBuf::from("/app/a")];
        paths(&mut score, "reads", &labels, &[PathBuf::from("/")].into());
        assert_eq!((score.covered, score.wide), (0, 0));
    }
}
