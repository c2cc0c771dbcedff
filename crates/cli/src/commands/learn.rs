//! `ironcage learn`: watches a run and writes the least policy for it.

use super::audit::{logs, said};
use super::run::{self, Ended, Run};
use crate::cage_flags::{CageFlags, Judgement};
use crate::error::{CliError, CommandResult};
use crate::{places, written};
use ironcage_audit::{Error, Reader};
use ironcage_host::HostCaps;
use ironcage_learn::{Host, Learned, Record, Source, learn};
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

/// The profile that bounds a run where nobody named another.
const BOUND: &str = "learning";
/// The profile on which every learned policy stands.
const BASE: &str = "shell";

/// Watch a run and write the least policy for it
///
/// The command runs in a cage that gives what --max gives, and what its ceiling would give of the
/// network; without --max, every host of the internet, the system, toolchains and the workspace
/// as a copy, and nothing of your home directory. Every file, program, socket, connection and
/// refused system call goes on record. The policy that is written gives what was used, each entry
/// with its reason; what was tried in vain stands in it as a comment. It never gives more than
/// --max and its ceiling.
///
/// Exit status: the command's own; 125 where no policy could be written.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Write the policy to this file
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    /// The profile or policy file that the policy never goes beyond [default: learning]
    #[arg(long, value_name = "PROFILE|FILE", value_hint = clap::ValueHint::AnyPath)]
    max: Option<OsString>,
    #[command(flatten)]
    flags: CageFlags,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    if args.flags.names_policy() {
        return Err(CliError::new(
            "--profile and --policy say what a run gets; here that is --max",
        ));
    }
    // Before the run: it may take hours.
    written::check(&args.output, args.force)?;
    let mut flags = args.flags;
    flags.observe = true;
    let (profile, file) = bound(args.max.as_deref());
    flags.set_base(profile, file);
    let max = flags.prepare(args.command.clone())?.resolved;
    flags.open_leasable(&max.policy);
    if !args.quiet {
        anstream::eprintln!(
            "ironcage: learning: what is used goes on record, each use takes longer"
        );
    }
    let started = run::Args::of(flags, args.command.clone(), args.quiet);
    let ended = match run::to_the_end(started)? {
        Run::Ended(ended) => ended,
        Run::InBackground(code) => return Ok(code),
    };
    let learned = write(&args.output, args.force, &max, &ended)?;
    if !args.quiet {
        let shown = Printable::new(&args.output);
        anstream::eprintln!(
            "ironcage: wrote {shown}: {} entries, {} more proposed as comments",
            learned.given,
            learned.proposed
        );
        anstream::eprintln!("  hint: read it; `ironcage run --policy {shown} -- ...` runs with it");
    }
    Ok(ended.code)
}

/// What `--max` names: a profile that ships, else a file.
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

/// Looks at the host itself.
pub(super) struct OnHost;

impl Host for OnHost {
    fn kind(&self, path: &Path) -> Option<NodeKind> {
        let there = std::fs::symlink_metadata(path).ok()?;
        match there.is_dir() {
            true => Some(NodeKind::Directory),
            false if there.is_file() => Some(NodeKind::File),
            // Links were followed; sockets and devices are given by other keys.
            false => std::os::unix::fs::FileTypeExt::is_socket(&there.file_type())
                .then_some(NodeKind::File),
        }
    }
}

/// Reads the record of a run.
pub(super) fn record(id: &CageId) -> Result<Record, CliError> {
    let path = ironcage_audit::log_path(&logs()?, id);
    let mut record = Record::default();
    for item in Reader::open(&path).map_err(said)? {
        match item {
            Ok(line) => record.add(line.event.kind),
            Err(error @ Error::Damaged { .. }) => {
                return Err(said(error).hint("a policy is not made from a damaged record"));
            }
            Err(error) => return Err(said(error)),
        }
    }
    Ok(record)
}

fn write(output: &Path, force: bool, max: &Resolved, ended: &Ended) -> Result<Learned, CliError> {
    let home = places::home()?;
    let base = resolve_profile(BASE, &home).map_err(|error| CliError::from_error(&error))?;
    let plan = &ended.prepared.plan;
    let learned = learn(&Source {
        record: &record(&ended.id)?,
        max: &max.policy,
        plan,
        base: &base,
        home: &home,
        host: &OnHost,
    });
    let mut text = String::new();
    let command = plan.command.argv.iter();
    let command: Vec<String> = command.map(|w| Printable::new(w).to_string()).collect();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "# Made by `ironcage learn` from cage {} in\n# {}\n# of: {}\n#\n\
         # It gives what that run used; each entry says by whom. What was tried in vain is a comment.\n\
         # A run shows what it did, not what it may do: another may need more. Within: {}.\n\n\
         extends = \"{BASE}\"\n",
        ended.id,
        Printable::new(&plan.workspace),
        command.join(" "),
        max.profile_choice,
    );
    text.push_str(&learned.text);
    let staged = written::stage(output, &text)?;
    check(staged.path(), &max.policy, &plan.workspace)?;
    staged.put(force)?;
    Ok(learned)
}

/// Whether the file is a policy, leads to a cage, and is within its bound.
fn check(file: &Path, max: &Policy, workspace: &Path) -> Result<(), CliError> {
    let flags = CageFlags::of_policy(file, Some(workspace.to_owned()));
    let resolved = flags.resolve()?;
    let state = places::state_dir(&places::home()?);
    let host = HostCaps::quick(&state).map_err(|error| CliError::from_error(&error))?;
    let reach = Reach::through(max, workspace, Mark::Ask);
    let beyond = reach.lacks(&resolved.policy, |limits| amounts(limits, &host));
    if !beyond.is_empty() {
        return Err(CliError::new(format!(
            "what was learned is beyond --max, and was not written: {}",
            beyond.join("; ")
        ))
        .hint("this is a mistake of Ironcage's; the record of the run has all that was seen"));
    }
    match flags.judge() {
        Ok(()) => Ok(()),
        Err(Judgement::NeedsWord(error)) => Err(CliError::from_error(&error)
            .hint("learn with --max that gives less, or name single files there")),
        Err(Judgement::Refused(error)) => Err(error),
    }
}
