//! `ironcage policy`: policy files checked, made from the settings of other sandboxes, tightened
//! by what a run used, and tried against what a run did.

mod tighten;
mod try_out;

use crate::cage_flags::{CageFlags, Judgement};
use crate::error::{CliError, CommandResult};
use crate::places;
use clap::Subcommand;
use ironcage_model::Printable;
use ironcage_policy::import::{self, Imported, Kind, Place};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Check, import, tighten and try policy files.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Say whether a policy file is valid and could start a cage here
    Check {
        /// The file
        #[arg(value_hint = clap::ValueHint::FilePath)]
        file: PathBuf,
    },
    Tighten(tighten::Args),
    Test(try_out::Args),
    /// Make a policy file from the settings of another sandbox
    Import {
        #[command(subcommand)]
        from: From,
    },
}

#[derive(Debug, Subcommand)]
enum From {
    Srt(Srt),
}

/// Import settings of Anthropic's sandbox-runtime (srt), or of Claude Code
///
/// The policy never allows more than the settings did. What became of each setting is told on standard error: what has
/// no equal, what is narrower, what differs, and what is not known.
#[derive(Debug, clap::Args)]
struct Srt {
    /// The settings: srt's (~/.srt-settings.json), or Claude Code's, where they stand below `sandbox`
    settings: PathBuf,
    /// Write the policy to this new file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Where srt would be started: relative paths begin here [default: the repository around the current directory]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Name what patterns match now and leave out denied paths that are not there, instead of keeping out all that they
    /// may come to name
    #[arg(long)]
    as_of_now: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    match args.action {
        Action::Check { file } => check(&file),
        Action::Tighten(args) => tighten::run(&args),
        Action::Test(args) => try_out::run(&args),
        Action::Import {
            from: From::Srt(srt),
        } => import_srt(&srt),
    }
}

fn check(file: &Path) -> CommandResult {
    let flags = CageFlags::of_policy(file, None);
    let resolved = flags.resolve()?;
    let shown = Printable::new(file);
    match flags.judge() {
        Ok(()) => anstream::println!("{shown} is valid: {}", resolved.profile_choice),
        Err(Judgement::NeedsWord(error)) => {
            anstream::println!("{shown} is valid, and needs --i-know at each start: {error}");
        }
        Err(Judgement::Refused(error)) => return Err(error),
    }
    Ok(0)
}

fn import_srt(args: &Srt) -> CommandResult {
    let home = places::home()?;
    let workspace = match &args.workspace {
        Some(workspace) => real(workspace)?,
        None => {
            let cwd = std::env::current_dir().map_err(|error| {
                CliError::new(format!("cannot tell the current directory: {error}"))
            })?;
            places::workspace_around(&cwd, &home)
        }
    };
    let place = Place {
        settings_dir: real(directory_of(&args.settings))?,
        policy_dir: match &args.output {
            Some(output) => real(directory_of(output))?,
            None => workspace.clone(),
        },
        own: places::own(&home),
        as_of_now: args.as_of_now,
        workspace,
        home,
    };
    let imported = import::read(&args.settings)
        .and_then(|text| import::srt(&text, &place))
        .map_err(|error| {
            CliError::from_error(&error)
                .hint("srt's settings are an object with `filesystem` and `network`, or Claude Code's with `sandbox`")
        })?;
    match &args.output {
        Some(output) => write_new(output, &imported.policy)?,
        None => {
            super::man::print(imported.policy.as_bytes())?;
        }
    }
    report(&imported, args, &place);
    Ok(0)
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn real(path: &Path) -> Result<PathBuf, CliError> {
    std::fs::canonicalize(path)
        .map_err(|error| CliError::new(format!("{}: {error}", Printable::new(path))))
}

fn write_new(path: &Path, text: &str) -> Result<(), CliError> {
    let shown = Printable::new(path);
    // `create_new`: an existing file, or a link in its place, is never written through.
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => CliError::new(format!("{shown} exists already"))
                .hint("name another, or remove it first"),
            _ => CliError::new(format!("cannot write {shown}: {error}")),
        })?;
    file.write_all(text.as_bytes())
        .map_err(|error| CliError::new(format!("cannot write {shown}: {error}")))
}

fn report(imported: &Imported, args: &Srt, place: &Place) {
    anstream::eprintln!(
        "imported {}, as if srt had been started in {}",
        Printable::new(&args.settings),
        Printable::new(&place.workspace)
    );
    for kind in Kind::ALL {
        let mut findings = imported
            .findings
            .iter()
            .filter(|finding| finding.kind == kind)
            .peekable();
        if findings.peek().is_some() {
            anstream::eprintln!("\n{}:", kind.heading());
        }
        for finding in findings {
            anstream::eprintln!("  {finding}");
        }
    }
    if let Some(output) = &args.output {
        let shown = Printable::new(output);
        anstream::eprintln!("\nwrote {shown}; read it, then run `ironcage trust {shown}`");
    }
}
