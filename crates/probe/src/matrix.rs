//! The suite's test of itself: a probe gets through a cage that lacks what stops it, and what
//! of that stops it alone.

use crate::probe::Probe;
use ironcage_model::{Printable, Switch};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// What one weakened run showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AblationOutcome {
    /// It got through.
    Through,
    /// It did not.
    Stopped,
    /// It could not be started.
    Unknown,
}

impl AblationOutcome {
    /// One word.
    pub const fn name(self) -> &'static str {
        match self {
            AblationOutcome::Through => "through",
            AblationOutcome::Stopped => "stopped",
            AblationOutcome::Unknown => "UNKNOWN",
        }
    }
}

/// A run with some parts only.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Alone {
    /// The part that was there, of those behind the probe.
    pub part: String,
    pub seen: AblationOutcome,
}

/// One probe's line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MatrixLine {
    pub id: String,
    pub title: String,
    /// Whether it gets through without any sandbox; a probe that does not shows nothing.
    pub control: bool,
    /// The whole cage but the parts behind the probe.
    pub without: Option<AblationOutcome>,
    pub detail: String,
    /// The same with one of those parts.
    pub alone: Vec<Alone>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Matrix {
    pub kernel: String,
    /// One line for each probe.
    pub lines: Vec<MatrixLine>,
}

impl MatrixLine {
    pub(crate) fn new(probe: &Probe) -> MatrixLine {
        MatrixLine {
            id: probe.id.to_owned(),
            title: probe.title.to_owned(),
            control: false,
            without: None,
            detail: String::new(),
            alone: Vec::new(),
        }
    }

    /// Whether the line shows what it should, or nothing can be shown: without its parts the
    /// probe gets through.
    pub fn holds(&self) -> bool {
        !self.control || matches!(self.without, None | Some(AblationOutcome::Through))
    }

    /// The parts that do this alone.
    fn parts(&self, wanted: AblationOutcome) -> String {
        let parts = self.alone.iter().filter(|alone| alone.seen == wanted);
        let names: Vec<&str> = parts.map(|alone| alone.part.as_str()).collect();
        names.join(", ")
    }

    /// The line of a Markdown table.
    pub fn markdown(&self) -> String {
        format!(
            "| {} | {} | {} | {} | {} |",
            self.id,
            self.title,
            self.without.map_or("", AblationOutcome::name),
            self.parts(AblationOutcome::Stopped),
            self.parts(AblationOutcome::Through)
        )
    }
}

impl Matrix {
    /// Whether every line shows what it should.
    pub fn holds(&self) -> bool {
        self.lines.iter().all(MatrixLine::holds)
            && self
                .lines
                .iter()
                .flat_map(|line| &line.alone)
                .all(|alone| alone.seen != AblationOutcome::Unknown)
    }

    /// The tables of the documentation.
    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "| probe | what it tries | without its parts | stops it alone | does not stop it alone |\n|---|---|---|---|---|\n",
        );
        let tried = |line: &&MatrixLine| line.control && line.without.is_some();
        for line in self.lines.iter().filter(tried) {
            let _ = writeln!(text, "{}", line.markdown());
        }
        let mut list = |title: &str, lines: Vec<&MatrixLine>| {
            if lines.is_empty() {
                return;
            }
            let ids: Vec<&str> = lines.iter().map(|line| line.id.as_str()).collect();
            let _ = writeln!(text, "\n{title}: {}.", ids.join(", "));
        };
        list(
            "Not discriminating here, so that nothing can be shown",
            self.lines.iter().filter(|line| !line.control).collect(),
        );
        list(
            "Not held by a part that can be left out",
            self.lines
                .iter()
                .filter(|line| line.control && line.without.is_none())
                .collect(),
        );
        text
    }

    /// The text for people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{:<7} {:<12} {:<40} {:<30} DETAIL\n",
            "ID", "WITHOUT", "STOPS IT ALONE", "DOES NOT"
        );
        for line in &self.lines {
            let without = match (line.control, line.without) {
                (false, _) => "not shown",
                (true, None) => "no part",
                (true, Some(seen)) => seen.name(),
            };
            let detail: String = line.detail.chars().take(100).collect();
            let unknown = line.parts(AblationOutcome::Unknown);
            let detail = match unknown.is_empty() {
                true => detail,
                false => format!("UNKNOWN with {unknown}; {detail}"),
            };
            let _ = writeln!(
                text,
                "{:<7} {without:<12} {:<40} {:<30} {}",
                line.id,
                line.parts(AblationOutcome::Stopped),
                line.parts(AblationOutcome::Through),
                Printable::new(&detail)
            );
        }
        text
    }
}

/// What is left out so that, of these, one is there.
pub(crate) fn all_but(parts: &[Switch], kept: Switch) -> Vec<Switch> {
    parts.iter().copied().filter(|part| *part != kept).collect()
}
