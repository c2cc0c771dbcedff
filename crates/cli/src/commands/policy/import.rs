//! `ironcage policy import`: a policy from the settings of another sandbox.

use crate::error::{CliError, CommandResult};
use crate::failure::FailureCode;
use crate::{output, paths};
use clap::Subcommand;
use ironcage_host::SystemFiles;
use ironcage_model::Printable;
use ironcage_policy::import::{self, Imported, Kind, Place};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Make a policy file from the settings of another sandbox
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    source: ImportSource,
}

#[derive(Debug, Subcommand)]
enum ImportSource {
    Srt(SettingsArgs),
    #[command(about = "Import settings of Claude Code, with a `sandbox` section")]
    Claude(SettingsArgs),
    #[command(about = "Import the sandbox settings of Codex (~/.codex/config.toml)")]
    Codex(SettingsArgs),
    #[command(about = "Import the sandbox settings of VS Code's agent (settings.json)")]
    Vscode(SettingsArgs),
}

/// The sandbox whose settings are read.
#[derive(Debug, Clone, Copy)]
enum Sandbox {
    /// srt's and Claude Code's.
    Srt,
    Codex,
    Vscode,
}

/// Import settings of Anthropic's sandbox-runtime (srt), or of Claude Code
///
/// The policy never allows more than the settings did. Standard error reports each setting that
/// has no equivalent, became narrower, differs, or is unknown.
#[derive(Debug, clap::Args)]
struct SettingsArgs {
    /// Settings file
    settings: PathBuf,
    /// Write the policy to the new file FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Directory where the other sandbox would start, for relative paths [default: the repository around the
    /// current directory]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Expand patterns to what they match now, and omit denied paths that do not exist, instead of
    /// also covering what they may match later
    #[arg(long)]
    as_of_now: bool,
}

pub(super) fn run(args: Args) -> CommandResult {
    match args.source {
        ImportSource::Srt(args) | ImportSource::Claude(args) => import(&args, Sandbox::Srt),
        ImportSource::Codex(args) => import(&args, Sandbox::Codex),
        ImportSource::Vscode(args) => import(&args, Sandbox::Vscode),
    }
}

fn import(args: &SettingsArgs, sandbox: Sandbox) -> CommandResult {
    let home = paths::home(&SystemFiles::default())?;
    let workspace = match &args.workspace {
        Some(workspace) => real(workspace)?,
        None => {
            let cwd = std::env::current_dir().map_err(|error| {
                CliError::new(format!("cannot determine the current directory: {error}"))
            })?;
            paths::workspace_around(&cwd, &home, &SystemFiles::default())
        }
    };
    let place = Place {
        settings_dir: real(directory_of(&args.settings))?,
        policy_dir: match &args.output {
            Some(output) => real(directory_of(output))?,
            None => workspace.clone(),
        },
        own: paths::own(&home, &SystemFiles::default()),
        as_of_now: args.as_of_now,
        workspace,
        home,
    };
    let imported = import::read(&args.settings)
        .and_then(|text| match sandbox {
            Sandbox::Srt => import::srt(&text, &place),
            Sandbox::Codex => import::codex(&text, &place),
            Sandbox::Vscode => import::vscode(&text, &place),
        })
        .map_err(|error| {
            CliError::from_error(&error).hint(match sandbox {
                Sandbox::Srt => "expected srt's settings, an object with `filesystem` and `network`, or Claude Code's, with `sandbox`",
                Sandbox::Codex => "expected Codex's config.toml, with `sandbox_mode`",
                Sandbox::Vscode => "expected VS Code's settings.json, with keys that begin with `chat.agent.sandbox.`",
            })
        })?;
    match &args.output {
        Some(output) => write_new(output, &imported.policy)?,
        None => output::print(|out| out.write_all(imported.policy.as_bytes()))?,
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
        .map_err(|error| CliError::new(format!("cannot resolve {}: {error}", Printable::new(path))))
}

fn write_new(path: &Path, text: &str) -> Result<(), CliError> {
    let shown = Printable::new(path);
    // `create_new`: never write through an existing file or link.
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                CliError::new(format!("cannot write {shown}: the file exists"))
                    .with_failure(FailureCode::FileExists)
                    .hint("name another file, or remove it first")
            }
            _ => CliError::new(format!("cannot write {shown}: {error}")),
        })?;
    file.write_all(text.as_bytes())
        .map_err(|error| CliError::new(format!("cannot write {shown}: {error}")))
}

fn report(imported: &Imported, args: &SettingsArgs, place: &Place) {
    anstream::eprintln!(
        "imported {}, as if its sandbox were started in {}",
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
        anstream::eprintln!("\nwrote {shown}; review it, then run `ironcage trust {shown}`");
    }
}
