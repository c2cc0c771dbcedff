//! The report of a run of the suite: plain data and a table.

use crate::probe::{Kind, Probe, Severity};
use ironcage_model::Printable;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write as _};

/// What was found about one probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It did not get through.
    Blocked,
    /// An effect reached its canary: the sandbox does not hold.
    Escaped,
    /// A surface is reachable and the table of accepted surfaces says why.
    OpenAccepted,
    /// A surface is reachable.
    Open,
    /// It does not succeed uncaged either, so that it proves nothing here.
    NotDiscriminating,
    /// It was not run.
    Skipped,
    /// The sandbox did not start it, so that nothing is known.
    Unknown,
}

impl Verdict {
    /// Whether the sandbox fails the suite for it.
    pub fn fails(self) -> bool {
        matches!(self, Verdict::Escaped | Verdict::Open | Verdict::Unknown)
    }

    /// What it means, in a sentence.
    pub fn meaning(self) -> &'static str {
        match self {
            Verdict::Blocked => "it did not get through, although it does without a sandbox",
            Verdict::Escaped => "it reached its canary outside: the sandbox does not hold",
            Verdict::OpenAccepted => {
                "reachable by design; the reason and the layer behind it are listed"
            }
            Verdict::Open => "a kernel interface is reachable that should not be",
            Verdict::NotDiscriminating => {
                "it does not succeed without a sandbox either: not counted"
            }
            Verdict::Skipped => "it was not run, for the reason given",
            Verdict::Unknown => "the sandbox did not start the probe: nothing is known",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Blocked => "blocked",
            Verdict::Escaped => "ESCAPED",
            Verdict::OpenAccepted => "open (accepted)",
            Verdict::Open => "OPEN",
            Verdict::NotDiscriminating => "not discriminating",
            Verdict::Skipped => "skipped",
            Verdict::Unknown => "UNKNOWN",
        })
    }
}

/// What was found, with what shows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Finding {
    pub verdict: Verdict,
    /// What stopped it, or what shows that nothing did.
    pub detail: String,
    /// What the control showed.
    pub control: String,
}

/// One probe's line in the report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub id: String,
    pub title: String,
    /// Effect or surface.
    pub kind: String,
    pub severity: String,
    #[serde(flatten)]
    pub finding: Finding,
}

impl Row {
    /// The line of a probe.
    pub(crate) fn new(probe: &Probe, finding: Finding) -> Row {
        Row {
            id: probe.id.to_owned(),
            title: probe.title.to_owned(),
            kind: probe.kind.to_string(),
            severity: probe.severity.to_string(),
            finding,
        }
    }
}

/// Something that must work in a sandbox, so that blocking everything is no way to win.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MustWork {
    pub name: String,
    /// Whether it worked; nothing if it was skipped.
    pub works: Option<bool>,
    /// What went wrong, or why it was skipped.
    pub detail: String,
}

/// What a run of the suite found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The sandbox under test.
    pub against: String,
    /// The user id that ran it.
    pub uid: u32,
    pub kernel: String,
    /// One line for each probe.
    pub rows: Vec<Row>,
    pub must_work: Vec<MustWork>,
}

impl Report {
    /// How many probes have this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.rows
            .iter()
            .filter(|row| row.finding.verdict == verdict)
            .count()
    }

    /// Whether the sandbox holds: no escape, no unaccepted surface, everything works.
    pub fn holds(&self) -> bool {
        !self.rows.iter().any(|row| row.finding.verdict.fails())
            && !self.must_work.iter().any(|item| item.works == Some(false))
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_table(&mut text);
        text
    }

    fn write_table(&self, text: &mut String) -> fmt::Result {
        let title_width = self
            .rows
            .iter()
            .map(|row| row.title.chars().count())
            .max()
            .unwrap_or(5);
        writeln!(
            text,
            "Against {} as uid {} on Linux {}",
            self.against, self.uid, self.kernel
        )?;
        writeln!(text)?;
        writeln!(
            text,
            "{:<7} {:<title_width$}  {:<7}  {:<8}  {:<18}  WHAT SHOWS IT",
            "ID", "PROBE", "KIND", "SEVERITY", "VERDICT"
        )?;
        for row in &self.rows {
            writeln!(
                text,
                "{:<7} {:<title_width$}  {:<7}  {:<8}  {:<18}  {}",
                row.id,
                row.title,
                row.kind,
                row.severity,
                row.finding.verdict.to_string(),
                Printable::new(&shortened(&row.finding.detail))
            )?;
        }
        if !self.must_work.is_empty() {
            writeln!(text, "\nMUST WORK")?;
        }
        for item in &self.must_work {
            let state = match item.works {
                Some(true) => "works",
                Some(false) => "FAILS",
                None => "skipped",
            };
            let detail = shortened(&item.detail);
            let line = format!("{:<34} {state:<8} {}", item.name, Printable::new(&detail));
            writeln!(text, "{}", line.trim_end())?;
        }
        writeln!(text, "\n{}", self.summary())
    }

    /// How many effects were blocked, of those that tell the difference.
    pub fn effects(&self) -> (usize, usize) {
        let kind = Kind::Effect.to_string();
        let mut counts = (0, 0);
        for row in self.rows.iter().filter(|row| row.kind == kind) {
            let verdict = row.finding.verdict;
            if !matches!(verdict, Verdict::NotDiscriminating | Verdict::Skipped) {
                counts.1 += 1;
                counts.0 += usize::from(verdict == Verdict::Blocked);
            }
        }
        counts
    }

    /// The counts in one line.
    pub fn summary(&self) -> String {
        let count = |verdict| self.count(verdict);
        let kind_blocked = |kind: Kind| {
            let of_kind = |row: &&Row| row.kind == kind.to_string();
            let counted = self.rows.iter().filter(of_kind).filter(|row| {
                !matches!(
                    row.finding.verdict,
                    Verdict::NotDiscriminating | Verdict::Skipped
                )
            });
            let blocked = self.rows.iter().filter(of_kind);
            let blocked = blocked.filter(|row| row.finding.verdict == Verdict::Blocked);
            format!("{} of {}", blocked.count(), counted.count())
        };
        let works = self
            .must_work
            .iter()
            .filter(|item| item.works == Some(true))
            .count();
        let tried = self
            .must_work
            .iter()
            .filter(|item| item.works.is_some())
            .count();
        format!(
            "effects blocked: {}; surfaces closed: {}; escaped: {}; open: {}; open (accepted): {}; \
             unknown: {}; not discriminating: {}; skipped: {}; must work: {works} of {tried} ({} skipped)",
            kind_blocked(Kind::Effect),
            kind_blocked(Kind::Surface),
            count(Verdict::Escaped),
            count(Verdict::Open),
            count(Verdict::OpenAccepted),
            count(Verdict::Unknown),
            count(Verdict::NotDiscriminating),
            count(Verdict::Skipped),
            self.must_work.len() - tried,
        )
    }

    /// The worst severity among what fails.
    pub fn worst(&self) -> Option<String> {
        let order = [
            Severity::Critical,
            Severity::High,
            Severity::Medium,
            Severity::Low,
        ];
        let fails = |severity: &Severity| {
            let name = severity.to_string();
            self.rows
                .iter()
                .any(|row| row.finding.verdict.fails() && row.severity == name)
        };
        order
            .iter()
            .find(|severity| fails(severity))
            .map(ToString::to_string)
    }
}

fn shortened(text: &str) -> String {
    const WIDTH: usize = 110;
    let mut short: String = text.chars().take(WIDTH).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(verdict: Verdict, works: Option<bool>) -> Report {
        let finding = Finding {
            verdict,
            detail: "\u{1b}[2J".into(),
            control: String::new(),
        };
        let row = Row {
            id: "FS-01".into(),
            title: "t".into(),
            kind: "effect".into(),
            severity: "high".into(),
            finding,
        };
        let item = MustWork {
            name: "x".into(),
            works,
            detail: String::new(),
        };
        Report {
            against: "x".into(),
            uid: 1,
            kernel: "6".into(),
            rows: vec![row],
            must_work: vec![item],
        }
    }

    #[test]
    fn a_sandbox_holds_only_if_nothing_escaped_and_everything_works() {
        assert!(report(Verdict::Blocked, Some(true)).holds());
        assert!(report(Verdict::OpenAccepted, None).holds());
        assert!(!report(Verdict::Escaped, Some(true)).holds());
        assert!(!report(Verdict::Unknown, Some(true)).holds());
        assert!(!report(Verdict::Open, Some(true)).holds());
        assert!(!report(Verdict::Blocked, Some(false)).holds());
    }

    #[test]
    fn what_a_probe_says_cannot_act_on_the_terminal() {
        assert!(!report(Verdict::Blocked, None).table().contains('\u{1b}'));
    }
}
