//! `ironcage audit verify`.

use super::signed_report::SignedReport;
use crate::audit_log::{self, audit_error};
use crate::completion::recorded_cages;
use crate::error::{CliError, CommandResult};
use crate::output::{print, utc};
use crate::render::event::verdict_text;
use ironcage_audit::{HeadVerdict, PublicKey, SignError, Verdict, check_head};
use ironcage_files::{Links, read_text};
use ironcage_model::{CageId, Printable};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Verify that an audit log is as it was written
///
/// With --report, verifies a signed report and the logs that it was made of, without a network: the
/// logs may be a copy.
///
/// Exit status: 0 if it is intact; 1 if it was tampered with, or if nothing proves where it ends.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Cage ID, unique ID prefix, name, or `last` [default: last]
    #[arg(add = recorded_cages())]
    cage: Option<String>,
    /// Verify every log, including deleted ones that still have a head
    #[arg(long, conflicts_with = "cage")]
    all: bool,
    /// Public key that signed the report, or a file that has it
    #[arg(long, value_name = "KEY|FILE", requires = "report", conflicts_with_all = ["cage", "all"])]
    key: Option<OsString>,
    /// Verify this signed report and its logs
    #[arg(long, value_name = "FILE", requires = "key", value_hint = clap::ValueHint::FilePath)]
    report: Option<PathBuf>,
    /// Directory of the logs [default: the audit directory of this user]
    #[arg(long, value_name = "DIR", requires = "report", value_hint = clap::ValueHint::DirPath)]
    logs: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> CommandResult {
    if let (Some(key), Some(report)) = (&args.key, &args.report) {
        return verify_report(key, report, args.logs);
    }
    let dir = audit_log::directory()?;
    match args.all {
        true => {
            let all = ironcage_audit::recorded(&dir).map_err(audit_error)?;
            verify(&dir, &all, true)
        }
        false => {
            let id = audit_log::find(&dir, args.cage.as_deref())?;
            verify(&dir, &[id], false)
        }
    }
}

/// A key as text, or a file that has it.
fn public_key(key: &OsStr) -> Result<PublicKey, CliError> {
    let failed = |error: &SignError| {
        CliError::from_error(error).hint("`ironcage audit key` prints the public key")
    };
    if let Some(text) = key.to_str()
        && let Ok(key) = text.parse()
    {
        return Ok(key);
    }
    let text = read_text(Path::new(key), 4096, Links::Follow)
        .map_err(|error| CliError::from_error(&error))?;
    text.trim().parse().map_err(|error| failed(&error))
}

fn verify_report(key: &OsStr, report: &Path, logs: Option<PathBuf>) -> CommandResult {
    let key = public_key(key)?;
    let statement = match SignedReport::read(report)?.check(&key) {
        Ok(statement) => statement,
        Err(error) => {
            error.print();
            return Ok(1);
        }
    };
    let dir = match logs {
        Some(dir) => dir,
        None => audit_log::directory()?,
    };
    let mut good = 0;
    let mut lines = Vec::new();
    for head in &statement.heads {
        let verdict = check_head(&dir, head).map_err(audit_error)?;
        let text = match &verdict {
            HeadVerdict::Matches => {
                good += 1;
                continue;
            }
            HeadVerdict::Missing => "the log is missing".to_owned(),
            HeadVerdict::Differs => "the log is not the signed one".to_owned(),
            HeadVerdict::Broken(fault) => format!("broken: {fault}"),
        };
        lines.push(format!("{}  {}", head.cage, Printable::new(&text)));
    }
    print(|out| {
        for line in &lines {
            writeln!(out, "{line}")?;
        }
        writeln!(
            out,
            "signed at {}; {good} of {} logs match their signed heads",
            utc(statement.time),
            statement.heads.len()
        )
    })?;
    Ok(u8::from(!lines.is_empty()))
}

fn verify(dir: &Path, ids: &[CageId], sum: bool) -> CommandResult {
    let mut verdicts = Vec::with_capacity(ids.len());
    for id in ids {
        verdicts.push((id, ironcage_audit::verify(dir, id).map_err(audit_error)?));
    }
    let intact = |verdict: &Verdict| matches!(verdict, Verdict::Intact { .. });
    print(|out| {
        for (id, verdict) in &verdicts {
            writeln!(out, "{id}  {}", verdict_text(verdict))?;
        }
        if verdicts.is_empty() {
            return writeln!(out, "no audit logs");
        }
        if sum {
            let count = |wanted: fn(&Verdict) -> bool| {
                let all = verdicts.iter();
                all.filter(|(_, verdict)| wanted(verdict)).count()
            };
            let good = count(|verdict| matches!(verdict, Verdict::Intact { .. }));
            let broken = count(|verdict| matches!(verdict, Verdict::Broken(_)));
            let all = verdicts.len();
            writeln!(
                out,
                "{all} logs: {good} intact, {} with an unproven tail, {broken} broken",
                all - good - broken
            )?;
        }
        Ok(())
    })?;
    Ok(u8::from(
        !verdicts.iter().all(|(_, verdict)| intact(verdict)),
    ))
}
