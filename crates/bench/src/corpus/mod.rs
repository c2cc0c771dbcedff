//! `bench intent --corpus NAME`: how well the reader tells what scripts need that somebody else
//! wrote, and what harmful commands do in a cage.

mod attacks;
mod redcode;
mod score;
mod sessions;
mod trial;

pub use attacks::{AttacksReport, AttacksRequest, bench_attacks};
pub use score::Score;
pub use sessions::{SessionsReport, SessionsRequest, bench_sessions};

use crate::statistics::Summary;
use crate::verdict::{Target, Verdict};
use crate::{ArmError, BenchError, HostFacts};
use ironcage_intent::{Code, CodeNeeds, Context, Needs, Shell, Sources, Table, Unsure};
use ironcage_reader::Reader;
use score::Scores;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Scripts with labels, in the manner of other people's tasks.
const FOREIGN: &str = include_str!("foreign.toml");
/// Scripts that were first scored before any change to the reader.
const HELD_OUT: &str = include_str!("heldout.toml");
/// Solution scripts as terminal benchmarks have them.
const TERMINAL: &str = include_str!("terminal.toml");
/// More kinds of work, labelled before the reader was run on any of them.
const FRESH: &str = include_str!("fresh.toml");

/// A set that was labelled after the reader was extended by `FRESH`, and before it was run on it.
const SECOND: &str = include_str!("second.toml");

/// Lines of the script whose reading is timed, and how often that is done.
const LINES: usize = 2000;
const READINGS: usize = 20;

const READING: Target = Target {
    at_most: 20.0,
    unit: "ms",
};
const UNKNOWN: Target = Target {
    at_most: 15.0,
    unit: "%",
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cases {
    case: Vec<Case>,
}

/// A command, the files that it finds, and what it needs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    command: String,
    #[serde(default)]
    pub(crate) reads: Vec<PathBuf>,
    #[serde(default)]
    pub(crate) writes: Vec<PathBuf>,
    #[serde(default)]
    pub(crate) runs: Vec<String>,
    #[serde(default)]
    pub(crate) hosts: Vec<String>,
    #[serde(default)]
    files: BTreeMap<PathBuf, String>,
}

/// The files of one case, with the reader's languages.
#[derive(Debug)]
struct Staged {
    files: BTreeMap<PathBuf, String>,
    reader: Reader,
}

impl Sources for Staged {
    fn file(&self, path: &Path) -> Option<String> {
        self.files.get(path).cloned()
    }

    fn code(&self, code: &Code<'_>) -> Option<CodeNeeds> {
        self.reader.code(code)
    }
}

fn failed(reason: &dyn fmt::Display) -> BenchError {
    BenchError::Failed {
        arm: "reader".to_owned(),
        reason: ArmError::Result(reason.to_string()),
    }
}

impl Case {
    /// A case with these labels for reads and writes, and for programs.
    fn new(
        name: String,
        command: String,
        (reads, writes): (Vec<PathBuf>, Vec<PathBuf>),
        runs: Vec<String>,
        files: BTreeMap<PathBuf, String>,
    ) -> Case {
        Case {
            name,
            command,
            reads,
            writes,
            runs,
            hosts: Vec::new(),
            files,
        }
    }

    /// What the reader finds.
    fn read(&self) -> Result<Needs, BenchError> {
        let staged = Staged {
            files: self.files.clone(),
            reader: Reader::without_files().map_err(|error| failed(&error))?,
        };
        let table = Table::shipped().map_err(|error| failed(&error))?;
        let table = table.following(Box::new(staged));
        let context = Context {
            cwd: "/app".into(),
            home: Some("/root".into()),
        };
        Ok(Shell::new(&table).read(&self.command, &context))
    }
}

/// A set of labelled scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelledCorpus {
    Foreign,
    HeldOut,
    Terminal,
    Fresh,
    Second,
}

impl LabelledCorpus {
    const fn name(self) -> &'static str {
        match self {
            LabelledCorpus::Foreign => "foreign",
            LabelledCorpus::HeldOut => "heldout",
            LabelledCorpus::Terminal => "terminal",
            LabelledCorpus::Fresh => "fresh",
            LabelledCorpus::Second => "second",
        }
    }
}

fn cases(corpus: LabelledCorpus) -> Result<Vec<Case>, BenchError> {
    let text = match corpus {
        LabelledCorpus::Foreign => FOREIGN,
        LabelledCorpus::HeldOut => HELD_OUT,
        LabelledCorpus::Terminal => TERMINAL,
        LabelledCorpus::Fresh => FRESH,
        LabelledCorpus::Second => SECOND,
    };
    let read: Result<Cases, _> = toml::from_str(text);
    Ok(read.map_err(|error| failed(&error))?.case)
}

/// How well the reader did on one case.
#[derive(Debug, Clone, Serialize)]
struct CaseReport {
    name: String,
    /// Labels that no need covers.
    missed: Vec<String>,
    /// Needs that no label covers.
    extra: Vec<String>,
    /// What it says that it does not know.
    unknown: Vec<String>,
}

/// How well the reader did.
#[derive(Debug, Clone, Serialize)]
pub struct CorpusReport {
    bench: &'static str,
    corpus: &'static str,
    host: HostFacts,
    cases: usize,
    scores: Scores,
    unknown_everything: usize,
    /// Reading a script of 2,000 lines, in milliseconds.
    reading_milliseconds: Summary,
    details: Vec<CaseReport>,
    verdicts: Vec<Verdict>,
}

/// Reads every labelled script.
pub fn bench_corpus(corpus: LabelledCorpus) -> Result<CorpusReport, BenchError> {
    let mut scores = Scores::default();
    let mut details = Vec::new();
    let mut unknown_everything = 0;
    let cases = cases(corpus)?;
    for case in &cases {
        let needs = case.read()?;
        let everything = needs
            .unknown
            .iter()
            .any(|unknown| unknown.what == Unsure::Everything);
        unknown_everything += usize::from(everything);
        let (missed, extra) = scores.add(case, &needs);
        let unknown = needs.unknown.iter().map(ToString::to_string);
        details.push(CaseReport {
            name: case.name.clone(),
            missed,
            extra,
            unknown: unknown.collect(),
        });
    }
    let reading_milliseconds = reading()?;
    let share = 100.0 * unknown_everything as f64 / cases.len().max(1) as f64;
    let mut verdicts = vec![
        Verdict::new(
            "reading 2,000 lines, p99",
            reading_milliseconds.p99,
            READING,
        ),
        Verdict::new("scripts with everything unknown", share, UNKNOWN),
    ];
    verdicts.extend(scores.verdicts());
    Ok(CorpusReport {
        bench: "intent",
        corpus: corpus.name(),
        host: HostFacts::now(),
        cases: cases.len(),
        scores,
        unknown_everything,
        reading_milliseconds,
        details,
        verdicts,
    })
}

/// Times the reading of a long script, with the tables read before.
fn reading() -> Result<Summary, BenchError> {
    let mut text = String::from("import os, subprocess\nBASE = '/data'\n");
    for number in 0..LINES / 5 {
        text.push_str(&format!(
            "def step{number}(name, out='/out/{number}'):\n    path = os.path.join(BASE, name, 'part{number}.csv')\n    with open(path) as source, open(f'{{out}}/{{name}}', 'w') as target:\n        target.write(source.read().replace('a', 'b'))\nstep{number}('n{number}')\n"
        ));
    }
    let command = format!("python3 - <<'EOF'\n{text}EOF\n");
    let reader = Reader::without_files().map_err(|error| failed(&error))?;
    let table = Table::shipped().map_err(|error| failed(&error))?;
    let files = BTreeMap::from([(PathBuf::from("/app/long.py"), text)]);
    let table = table.following(Box::new(Staged { files, reader }));
    let context = Context {
        cwd: "/app".into(),
        home: None,
    };
    // Longer than a command may be: it is read from its file.
    let command = match command.len() > 60_000 {
        true => "python3 long.py".to_owned(),
        false => command,
    };
    let mut times = Vec::new();
    for _ in 0..READINGS {
        let start = Instant::now();
        let needs = Shell::new(&table).read(&command, &context);
        times.push(start.elapsed().as_secs_f64() * 1e3);
        if needs.writes.len() < 100 {
            let names = needs.writes.len();
            return Err(failed(&format!(
                "the long script was not read: {names} writes"
            )));
        }
    }
    Summary::of(&times).ok_or_else(|| failed(&"no samples"))
}

impl fmt::Display for CorpusReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.host)?;
        writeln!(f, "ironcage-lab bench intent --corpus {}\n", self.corpus)?;
        for case in &self.details {
            if case.missed.is_empty() && case.extra.is_empty() && case.unknown.is_empty() {
                continue;
            }
            writeln!(f, "{}", case.name)?;
            for (label, entries) in [
                ("missed", &case.missed),
                ("extra", &case.extra),
                ("unknown", &case.unknown),
            ] {
                for entry in entries {
                    writeln!(f, "    {label:<8}{entry}")?;
                }
            }
        }
        writeln!(
            f,
            "\n{} scripts, {} with everything unknown",
            self.cases, self.unknown_everything
        )?;
        write!(f, "{}", self.scores)?;
        writeln!(
            f,
            "reading a script of {LINES} lines: median {:.1} ms, p99 {:.1} ms",
            self.reading_milliseconds.median, self.reading_milliseconds.p99
        )?;
        for verdict in &self.verdicts {
            writeln!(f, "{verdict}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_scripts_are_read_as_well_as_the_bars_say() {
        let report = bench_corpus(LabelledCorpus::Foreign).expect("the corpus is read");
        println!("{report}");
        let Scores {
            reads,
            writes,
            runs,
            hosts,
        } = &report.scores;
        assert!(
            writes.recall() >= 0.85 && writes.precision() >= 0.80,
            "writes {writes:?}"
        );
        assert!(
            reads.recall() >= 0.80 && reads.precision() >= 0.80,
            "reads {reads:?}"
        );
        assert!(
            runs.recall() >= 0.95 && runs.precision() >= 0.80,
            "runs {runs:?}"
        );
        assert!(
            hosts.recall() >= 0.80 && hosts.precision() >= 0.80,
            "hosts {hosts:?}"
        );
        let share = report.unknown_everything as f64 / report.cases as f64;
        assert!(
            share < 0.15,
            "{} of {}",
            report.unknown_everything,
            report.cases
        );
    }

    #[test]
    fn solution_scripts_are_read_as_well_as_the_bars_say() {
        let report = bench_corpus(LabelledCorpus::Terminal).expect("the corpus is read");
        println!("{report}");
        let scores = &report.scores;
        assert!(scores.writes.recall() >= 0.85 && scores.writes.precision() >= 0.80);
        assert!(scores.reads.recall() >= 0.80 && scores.reads.precision() >= 0.80);
        assert!(scores.runs.recall() >= 0.95 && scores.runs.precision() >= 0.80);
        let share = report.unknown_everything as f64 / report.cases as f64;
        assert!(share < 0.15, "{}", report.unknown_everything);
    }

    #[test]
    fn fresh_scripts_are_read_as_well_as_the_bars_say() {
        let report = bench_corpus(LabelledCorpus::Fresh).expect("the corpus is read");
        println!("{report}");
        let scores = &report.scores;
        assert!(scores.writes.recall() >= 0.85 && scores.writes.precision() >= 0.80);
        assert!(scores.reads.recall() >= 0.80 && scores.reads.precision() >= 0.80);
        assert!(scores.runs.recall() >= 0.95 && scores.runs.precision() >= 0.80);
        let share = report.unknown_everything as f64 / report.cases as f64;
        assert!(share < 0.15, "{}", report.unknown_everything);
    }

    #[test]
    fn the_second_set_of_scripts_is_read() {
        let report = bench_corpus(LabelledCorpus::Second).expect("the corpus is read");
        println!("{report}");
        assert_eq!(report.cases, 25);
    }

    #[test]
    fn scripts_that_nobody_tuned_for_are_read() {
        let report = bench_corpus(LabelledCorpus::HeldOut).expect("the corpus is read");
        println!("{report}");
        assert_eq!(report.cases, 30);
    }
}
