//! `ironcage trust`: which policy files of workspaces may widen permissions.

use crate::cage_flags::{CageFlags, Judgement};
use crate::confirm::confirm;
use crate::error::{CliError, CommandResult};
use crate::paths;
use ironcage_host::SystemFiles;
use ironcage_model::Printable;
use ironcage_policy::{FILE_NAME, Sources, TrustStore, examine, find_policy_file};
use std::path::{Path, PathBuf};

/// Trust a workspace's policy file, after showing what it allows
///
/// A policy file in a workspace can only narrow permissions. Once trusted it can also widen them,
/// until it, or a file that it extends, changes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Policy file, or its directory [default: the one that `ironcage run` would find]
    path: Option<PathBuf>,
    /// List trusted files
    #[arg(long, conflicts_with_all = ["revoke", "path"])]
    list: bool,
    /// Revoke the trust
    #[arg(long)]
    revoke: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let home = paths::home(&SystemFiles::default())?;
    let store = TrustStore::new(&paths::state_dir(&home));
    if args.list {
        return list(&store, home);
    }
    let path = match &args.path {
        Some(path) if path.is_dir() => path.join(FILE_NAME),
        Some(path) => path.clone(),
        None => find(&home)?,
    };
    if args.revoke {
        revoke(&store, &path)
    } else {
        trust(&store, &path, home, args.yes)
    }
}

fn find(home: &Path) -> Result<PathBuf, CliError> {
    let cwd = std::env::current_dir().map_err(|error| {
        CliError::new(format!("cannot determine the current directory: {error}"))
    })?;
    let workspace = paths::workspace_around(&cwd, home, &SystemFiles::default());
    find_policy_file(&workspace, home).ok_or_else(|| {
        let workspace = Printable::new(&workspace);
        CliError::new(format!(
            "cannot find {FILE_NAME} in {workspace} or above it"
        ))
        .hint("`ironcage profile init` writes one")
    })
}

fn list(store: &TrustStore, home: PathBuf) -> CommandResult {
    let trusted = store.list().map_err(|error| CliError::from_error(&error))?;
    if trusted.is_empty() {
        anstream::println!("no trusted files");
    }
    for entry in trusted {
        let digest = entry.digest.to_string();
        let short = digest.get(..12).unwrap_or(&digest);
        let sources = Sources {
            home: home.clone(),
            ..Sources::default()
        };
        let note = match examine(&entry.path, &sources) {
            Ok(now) if now.trusted.digest == entry.digest => "",
            _ if !entry.path.exists() => "  (deleted)",
            _ => "  (changed since, no longer trusted)",
        };
        anstream::println!("{short}  {}{note}", Printable::new(&entry.path));
    }
    Ok(0)
}

fn revoke(store: &TrustStore, path: &Path) -> CommandResult {
    // A deleted file can still be in the list, by its old path.
    let path = std::fs::canonicalize(path)
        .or_else(|_| std::path::absolute(path))
        .map_err(|error| {
            CliError::new(format!("cannot resolve {}: {error}", Printable::new(path)))
        })?;
    let shown = Printable::new(&path);
    if store
        .revoke(&path)
        .map_err(|error| CliError::from_error(&error))?
    {
        anstream::println!("{shown} is no longer trusted");
        return Ok(0);
    }
    Err(
        CliError::new(format!("cannot revoke trust in {shown}: it is not trusted"))
            .hint("`ironcage trust --list` lists trusted files"),
    )
}

/// How `ironcage run` would treat the policy once it is trusted: an error if no cage could start
/// with it, and a note if a start needs another flag.
fn refused_by_run(path: &Path) -> Result<Vec<String>, CliError> {
    let around = path.parent().map(Path::to_owned);
    match CageFlags::of_policy(path, around).judge() {
        Ok(()) => Ok(Vec::new()),
        Err(Judgement::NeedsConfirmation(why)) => {
            Ok(vec![format!("{why}: each start needs --i-know")])
        }
        Err(Judgement::Refused(error)) => {
            Err(error.hint("fix the file first: `ironcage run` would refuse it"))
        }
    }
}

fn trust(store: &TrustStore, path: &Path, home: PathBuf, yes: bool) -> CommandResult {
    let workspace = std::fs::canonicalize(path)
        .ok()
        .and_then(|path| path.parent().map(Path::to_owned))
        .unwrap_or_default();
    let sources = Sources {
        workspace,
        user_config_dir: Some(paths::config_dir(&home)),
        state_dir: Some(paths::state_dir(&home)),
        home,
        ..Sources::default()
    };
    // One read of the files: what is shown is what is recorded.
    let examined = examine(path, &sources).map_err(|error| CliError::from_error(&error))?;
    let shown = Printable::new(&examined.trusted.path);
    if examined.already {
        anstream::println!("{shown} is already trusted");
        return Ok(0);
    }
    if examined.widens.is_empty() {
        anstream::println!("{shown} allows nothing beyond the profile");
    } else {
        anstream::println!("{shown} would allow beyond the profile:");
        for wish in &examined.widens {
            anstream::println!("  {wish}");
        }
    }
    for file in examined
        .files
        .iter()
        .filter(|file| **file != examined.trusted.path)
    {
        anstream::println!(
            "it extends {}, which becomes trusted with it",
            Printable::new(file)
        );
    }
    for note in refused_by_run(&examined.trusted.path)? {
        anstream::println!("{note}");
    }
    if !yes && !confirm("Trust it?", "not trusted", "--yes")? {
        anstream::println!("not trusted");
        return Ok(1);
    }
    store
        .record(&examined.trusted)
        .map_err(|error| CliError::from_error(&error))?;
    anstream::println!("trusted until it, or a file that it extends, changes");
    Ok(0)
}
