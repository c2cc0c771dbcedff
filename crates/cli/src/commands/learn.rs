//! `ironcage learn`.

use super::run::{self, EndedRun, RunOutcome};
use crate::audit_log::{self, audit_error};
use crate::cage_flags::{CageFlags, Judgement};
use crate::error::{CliError, CommandResult};
use crate::{paths, staged_file};
use ironcage_audit::{Error, Reader};
use ironcage_host::{HostCaps, SystemFiles};
use ironcage_learn::{Host, Learned, ObservedRun, Source, learn};
use ironcage_model::{CageId, Mark, Printable};
use ironcage_plan::{NodeKind, amounts};
use ironcage_policy::{Policy, Reach, Resolved, resolve_profile};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  ironcage learn -o policy.toml -- make test
  ironcage learn -o agent.toml --max coding-agent -r ~/data -- claude
  ironcage run --policy policy.toml -- make test";

/// Upper bound of a run without --max.
const BOUND: &str = "learning";
/// The profile that every learned policy extends.
const BASE: &str = "shell";

/// Observe a run and write the smallest policy for it
///
/// The command runs in a cage with everything that --max allows, and the network that its ceiling
/// would allow. Without --max that is every internet host, the system, toolchains, a copy of the
/// workspace, and nothing of your home directory. The audit log gets every file, program, socket,
/// connection and denied system call. The policy allows what was used, each entry with its reason;
/// denied attempts become comments. It never allows more than --max and its ceiling.
///
/// Exit status: that of the command; 125 if no policy could be written.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Write the policy to FILE
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: PathBuf,
    /// Overwrite the file if it exists
    #[arg(long)]
    force: bool,
    /// Profile or policy file that bounds the policy [default: learning]
    #[arg(long, value_name = "PROFILE|FILE", value_hint = clap::ValueHint::AnyPath)]
    max: Option<OsString>,
    #[command(flatten)]
    flags: CageFlags,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
    /// Command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    if args.flags.names_policy() {
        return Err(CliError::new("cannot use --profile or --policy with learn")
            .hint("--max PROFILE|FILE bounds the run"));
    }
    // Before the run, which may take hours.
    staged_file::check(&args.output, args.force)?;
    let mut flags = args.flags;
    flags.observe = true;
    let (profile, file) = bound(args.max.as_deref());
    flags.set_base(profile, file);
    let max = flags.prepare(args.command.clone())?.resolved;
    flags.open_leasable(&max.policy);
    if !args.quiet {
        anstream::eprintln!(
            "ironcage: learning: every use is recorded, which slows the command down"
        );
    }
    let started = run::Args::of(flags, args.command.clone(), args.quiet);
    let ended = match run::execute(started)? {
        RunOutcome::Finished(ended) => ended,
        RunOutcome::InBackground(code) => return Ok(code),
    };
    let learned = write(&args.output, args.force, &max, &ended)?;
    if !args.quiet {
        let shown = Printable::new(&args.output);
        anstream::eprintln!(
            "ironcage: wrote {shown}: {} entries, {} more proposed as comments",
            learned.given,
            learned.proposed
        );
        anstream::eprintln!(
            "  hint: review it, then use it: `ironcage run --policy {shown} -- COMMAND`"
        );
    }
    Ok(ended.code)
}

/// `--max` names a built-in profile, or else a file.
fn bound(max: Option<&std::ffi::OsStr>) -> (Option<String>, Option<PathBuf>) {
    let Some(max) = max else {
        return (Some(BOUND.to_owned()), None);
    };
    let mut profiles = ironcage_policy::profiles();
    match profiles.find(|profile| max == profile.name) {
        Some(profile) => (Some(profile.name.to_owned()), None),
        None => (None, Some(max.into())),
    }
}

/// Directory entries that are searched for sensitive names before a directory is not given.
const MOST_LOOKED: usize = 10_000;

/// The file system of this host.
pub(super) struct LearningHost;

impl Host for LearningHost {
    fn kind(&self, path: &Path) -> Option<NodeKind> {
        let there = std::fs::symlink_metadata(path).ok()?;
        match there.is_dir() {
            true => Some(NodeKind::Directory),
            false if there.is_file() => Some(NodeKind::File),
            // Links are resolved; other policy keys grant sockets and devices.
            false => std::os::unix::fs::FileTypeExt::is_socket(&there.file_type())
                .then_some(NodeKind::File),
        }
    }

    fn sensitive(&self, directory: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut left = vec![directory.to_owned()];
        let mut looked = 0_usize;
        while let Some(directory) = left.pop() {
            let Ok(entries) = std::fs::read_dir(&directory) else {
                continue;
            };
            for entry in entries.flatten() {
                looked += 1;
                if looked > MOST_LOOKED {
                    // What was not looked at may be sensitive.
                    found.push(directory);
                    return found;
                }
                let kind = entry.file_type();
                if kind.as_ref().is_ok_and(std::fs::FileType::is_dir) {
                    left.push(entry.path());
                } else if ironcage_catalog::sensitive::entry(&entry.file_name()).is_some() {
                    found.push(entry.path());
                }
            }
        }
        found
    }
}

/// Reads the audit log of a run.
pub(super) fn read_record(id: &CageId) -> Result<ObservedRun, CliError> {
    let path = ironcage_audit::log_path(&audit_log::directory()?, id);
    let mut record = ObservedRun::default();
    for item in Reader::open(&path).map_err(audit_error)? {
        match item {
            Ok(line) => record.add(line.event.kind),
            Err(error @ Error::Damaged { .. }) => {
                return Err(
                    audit_error(error).hint("Ironcage does not learn from a damaged audit log")
                );
            }
            Err(error) => return Err(audit_error(error)),
        }
    }
    Ok(record)
}

fn write(
    output: &Path,
    force: bool,
    max: &Resolved,
    ended: &EndedRun,
) -> Result<Learned, CliError> {
    let home = paths::home(&SystemFiles::default())?;
    let base = resolve_profile(BASE, &home).map_err(|error| CliError::from_error(&error))?;
    let plan = &ended.prepared.plan;
    let record = read_record(&ended.id)?;
    let learned = learn(&Source {
        record: &record,
        max: &max.policy,
        plan,
        base: &base,
        home: &home,
        host: &LearningHost,
    });
    let mut text = String::new();
    let command = plan.command.argv.iter();
    let command: Vec<String> = command.map(|w| Printable::new(w).to_string()).collect();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "# Written by `ironcage learn` from cage {} in\n# {}\n# of: {}\n#\n\
         # It allows what that run used; each entry names the program. Denied attempts are comments.\n\
         # Another run may need more. Upper bound: {}.\n\n\
         extends = \"{BASE}\"\n",
        ended.id,
        Printable::new(&plan.workspace),
        command.join(" "),
        max.profile_choice,
    );
    if record.left_out > 0 {
        let _ = writeln!(
            text,
            "# Incomplete: the run used more than its audit log lists ({} uses are missing).",
            record.left_out
        );
    }
    text.push_str(&learned.text);
    let staged = staged_file::stage(output, &text)?;
    check(staged.path(), &max.policy, &plan.workspace)?;
    staged.put(force)?;
    Ok(learned)
}

/// Checks that the file is a valid policy, can start a cage, and is within its bound.
fn check(file: &Path, max: &Policy, workspace: &Path) -> Result<(), CliError> {
    let flags = CageFlags::of_policy(file, Some(workspace.to_owned()));
    let resolved = flags.resolve()?;
    let state = paths::state_dir(&paths::home(&SystemFiles::default())?);
    let host = HostCaps::quick(&state).map_err(|error| CliError::from_error(&error))?;
    let reach = Reach::through(max, workspace, Mark::Ask);
    let beyond = reach.lacks(&resolved.policy, |limits| amounts(limits, &host));
    if !beyond.is_empty() {
        return Err(CliError::new(format!(
            "cannot write the learned policy: it exceeds --max: {}",
            beyond.join("; ")
        ))
        .hint("this is a bug in Ironcage; the run's audit log has everything that was observed"));
    }
    match flags.judge() {
        Ok(()) => Ok(()),
        Err(Judgement::NeedsConfirmation(error)) => {
            Err(CliError::from_error(&error)
                .hint("use a smaller --max, or name single files there"))
        }
        Err(Judgement::Refused(error)) => Err(error),
    }
}
