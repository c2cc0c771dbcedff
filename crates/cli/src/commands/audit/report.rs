//! `ironcage audit report`.

use super::key::signing_key;
use super::signed_report::SignedReport;
use crate::audit_log::{self, audit_error};
use crate::error::{CliError, CommandResult};
use crate::json;
use crate::output::print;
use crate::staged_file;
use crate::values::age;
use ironcage_audit::{Error, Reader, Verdict, head_to_sign, verify};
use ironcage_model::{CageId, Printable};
use ironcage_report::evidence::{EvidenceReport, Facts, Framework, UnknownFramework};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const EXAMPLES: &str = "\
Examples:
  ironcage audit report --framework eu-ai-act --since 30d
  ironcage audit report --framework aisvs -o november.json
  ironcage audit verify --key \"$(ironcage audit key)\" --report november.json";

/// Map the logs of a period to the controls of a framework
///
/// Counts what the logs show for each control, and says what they cannot show. The file that -o
/// writes has the signed head of every log, so that a log that is changed later is found offline.
///
/// Exit status: 1 if a log of the period was tampered with.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// eu-ai-act, aisvs, aiuc-1 or casf
    #[arg(long, value_name = "NAME", value_parser = framework)]
    framework: Framework,
    /// Only cages that started less than AGE ago, for example 30d [default: all]
    #[arg(long, value_name = "AGE", value_parser = age)]
    since: Option<Duration>,
    /// Write the signed report to FILE as JSON
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Overwrite the file if it exists
    #[arg(long, requires = "output")]
    force: bool,
    /// Print the signed report as JSON
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

fn framework(text: &str) -> Result<Framework, UnknownFramework> {
    text.parse()
}

pub(super) fn run(args: Args) -> CommandResult {
    if let Some(file) = &args.output {
        staged_file::check(file, args.force)?;
    }
    let dir = audit_log::directory()?;
    let now = microseconds(SystemTime::now());
    let since = args.since.map(|age| {
        microseconds(
            SystemTime::now()
                .checked_sub(age)
                .unwrap_or(SystemTime::UNIX_EPOCH),
        )
    });
    let period = Period::read(&dir, since)?;
    let broken = period.facts.logs.broken > 0;
    let report = EvidenceReport::of(args.framework, period.facts, since, now);
    if args.output.is_none() && !args.json {
        print(|out| write!(out, "{report}"))?;
        return Ok(u8::from(broken));
    }
    let signed = SignedReport::sign(&report, now, period.heads, &signing_key()?)?;
    let text = json::pretty(&signed).map_err(CliError::new)?;
    match &args.output {
        Some(file) => {
            staged_file::stage(file, &format!("{text}\n"))?.put(args.force)?;
            anstream::eprintln!(
                "ironcage: wrote {}, signed by {}",
                Printable::new(file),
                signed.key
            );
        }
        None => print(|out| writeln!(out, "{text}"))?,
    }
    Ok(u8::from(broken))
}

fn microseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    })
}

/// The logs of a period.
struct Period {
    facts: Facts,
    heads: Vec<ironcage_audit::SignedHead>,
}

impl Period {
    fn read(dir: &Path, since: Option<u64>) -> Result<Self, CliError> {
        let mut period = Period {
            facts: Facts::default(),
            heads: Vec::new(),
        };
        let headings = ironcage_audit::list(dir).map_err(audit_error)?;
        // A head without its log: the log was deleted by hand, which no period leaves out.
        for id in ironcage_audit::recorded(dir).map_err(audit_error)? {
            if !headings.iter().any(|heading| heading.id == id) {
                period.add(dir, &id)?;
            }
        }
        for heading in headings {
            // A log whose first line cannot be read has no time: it belongs to every period.
            let before = |since| heading.time.is_some_and(|time| time < since);
            if !since.is_some_and(before) {
                period.add(dir, &heading.id)?;
            }
        }
        Ok(period)
    }

    fn add(&mut self, dir: &Path, id: &CageId) -> Result<(), CliError> {
        let logs = &mut self.facts.logs;
        match verify(dir, id).map_err(audit_error)? {
            Verdict::Intact { .. } => logs.intact += 1,
            Verdict::TailUnproven(_) => logs.unproven += 1,
            Verdict::Broken(fault) => {
                logs.broken += 1;
                // What was tampered with proves nothing, and no signature makes it good.
                let fault = fault.to_string();
                anstream::eprintln!(
                    "ironcage: cage {id} is not counted: its log is broken: {}",
                    Printable::new(&fault)
                );
                return Ok(());
            }
        }
        if let Ok(head) = head_to_sign(dir, id).map_err(audit_error)? {
            self.heads.push(head);
        }
        let path = ironcage_audit::log_path(dir, id);
        for item in Reader::open(&path).map_err(audit_error)? {
            match item {
                Ok(entry) => self.facts.add(&entry.event.kind),
                Err(Error::Damaged { .. }) => {}
                Err(error) => return Err(audit_error(error)),
            }
        }
        Ok(())
    }
}
