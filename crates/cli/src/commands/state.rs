//! `ironcage state`: what outlives cages.

use crate::ask::confirm;
use crate::error::{CliError, CommandResult};
use crate::json;
use crate::places;
use clap::Subcommand;
use ironcage_model::Printable;
use ironcage_policy::caches::kept_files;
use ironcage_policy::credentials;
use ironcage_state::{Entry, Marks, StateError, Store};
use std::path::{Path, PathBuf};

/// What is kept between runs: list it, remove it, bring in files of your own.
///
/// Each workspace has its own: paths of the agent's home that a profile or --state names, and
/// caches. Your own files are never used in their place, and never changed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List workspaces and how much is kept for each
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove all that is kept for a workspace
    Reset {
        /// The workspace [default: the one that `ironcage run` would take]
        workspace: Option<PathBuf>,
        /// Of every workspace
        #[arg(long, conflicts_with = "workspace")]
        all: bool,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// List places that can hold private data or untrusted content, because cages that had come into
    /// contact with it could write there; or forget that
    Taint {
        /// Forget what is known of this place and of all in it, when you have looked at it. Stop
        /// the cages that work there first
        #[arg(long, value_name = "PATH")]
        forget: Option<PathBuf>,
        /// Do not ask
        #[arg(short, long, requires = "forget")]
        yes: bool,
        /// Print JSON
        #[arg(long, conflicts_with = "forget")]
        json: bool,
    },
    /// Copy a file or directory of your home into what is kept for a workspace
    Import {
        /// What to copy
        path: PathBuf,
        /// The workspace [default: the one that `ironcage run` would take]
        #[arg(long, value_name = "DIR")]
        workspace: Option<PathBuf>,
        /// Replace what is kept there
        #[arg(long)]
        replace: bool,
        /// Copy credentials too: the agent will be able to read and send them
        #[arg(long)]
        i_know: bool,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

pub(crate) fn run(args: Args) -> CommandResult {
    let home = places::home()?;
    let store = places::store(&home);
    match args.action {
        Action::Ls { json } => list(&store, json),
        Action::Reset {
            workspace,
            all,
            yes,
        } => {
            let mut kept = store.list().map_err(failed)?;
            if !all {
                let workspace = workspace_or_default(workspace, &home)?;
                kept.retain(|entry| entry.workspace == workspace);
                if kept.is_empty() {
                    // What a removal that was broken off has left has no record any more.
                    store.reset(&workspace).map_err(failed)?;
                    let shown = Printable::new(&workspace).to_string();
                    anstream::println!("nothing is kept for {shown}");
                    return Ok(0);
                }
            }
            reset(&store, &kept, yes)
        }
        Action::Taint { forget, yes, json } => match forget {
            Some(path) => forget_taint(&path, yes),
            None => list_taint(json),
        },
        Action::Import {
            path,
            workspace,
            replace,
            i_know,
            yes,
        } => {
            let workspace = workspace_or_default(workspace, &home)?;
            let import = Import::new(&path, &home)?;
            import.check(&home, i_know)?;
            import.carry_out(&store, &workspace, replace, yes)
        }
    }
}

fn failed(error: StateError) -> CliError {
    let shown = CliError::from_error(&error);
    match error {
        StateError::Exists { .. } => shown.hint("--replace puts your copy in its place"),
        _ => shown,
    }
}

fn workspace_or_default(named: Option<PathBuf>, home: &Path) -> Result<PathBuf, CliError> {
    match named {
        // A workspace that is gone can still have files kept for it.
        Some(path) => std::fs::canonicalize(&path)
            .or_else(|_| std::path::absolute(&path))
            .map_err(|error| CliError::new(format!("{}: {error}", Printable::new(&path)))),
        None => {
            let cwd = std::env::current_dir().map_err(|error| {
                CliError::new(format!("cannot tell the current directory: {error}"))
            })?;
            Ok(places::workspace_around(&cwd, home))
        }
    }
}

fn list(store: &Store, json: bool) -> CommandResult {
    let entries = store.list().map_err(failed)?;
    if json {
        let entries: Vec<_> = entries
            .iter()
            .map(|entry| {
                serde_json::json!({
                    "workspace": entry.workspace.to_string_lossy(),
                    "home": entry.home.to_string_lossy(),
                    "home_bytes": entry.home_bytes,
                    "caches": entry.caches.to_string_lossy(),
                    "cache_bytes": entry.cache_bytes,
                })
            })
            .collect();
        anstream::println!("{}", json::line(&entries).map_err(CliError::new)?);
        return Ok(0);
    }
    if entries.is_empty() {
        anstream::println!("nothing is kept for any workspace");
    }
    for entry in entries {
        let gone = if entry.workspace.is_dir() {
            ""
        } else {
            "  (gone)"
        };
        anstream::println!(
            "{:>9}  caches {:>9}  {}{gone}",
            size(entry.home_bytes),
            size(entry.cache_bytes),
            Printable::new(&entry.workspace)
        );
    }
    Ok(0)
}

pub(crate) fn size(bytes: u64) -> String {
    let mut value = bytes;
    for unit in ["B", "KiB", "MiB"] {
        if value < 10_000 {
            return format!("{value} {unit}");
        }
        value = value.div_ceil(1024);
    }
    format!("{value} GiB")
}

fn marks() -> Result<Marks, CliError> {
    let state = ironcage_audit::state_dir().map_err(|error| CliError::from_error(&error))?;
    Ok(Marks::in_state(&state))
}

fn unreadable(marks: &Marks) -> impl Fn(std::io::Error) -> CliError {
    let path = Printable::new(marks.path()).to_string();
    move |error| CliError::new(format!("{path}: {error}"))
}

fn list_taint(json: bool) -> CommandResult {
    let marks = marks()?;
    let all = marks.all().map_err(unreadable(&marks))?;
    if json {
        anstream::println!("{}", json::line(&all).map_err(CliError::new)?);
        return Ok(0);
    }
    if all.is_empty() {
        anstream::println!("no place can hold private data or untrusted content from a cage");
    }
    for mark in all {
        let from = match &mark.cage {
            Some(cage) => format!("cage {cage}"),
            None => format!(
                "a line of {} that cannot be read",
                Printable::new(marks.path())
            ),
        };
        anstream::println!(
            "{:<21}  {}  ({from})",
            mark.taint.to_string(),
            Printable::new(&mark.place)
        );
    }
    Ok(0)
}

fn forget_taint(path: &Path, yes: bool) -> CommandResult {
    let place = std::fs::canonicalize(path).or_else(|_| std::path::absolute(path));
    let place =
        place.map_err(|error| CliError::new(format!("{}: {error}", Printable::new(path))))?;
    let marks = marks()?;
    let shown = Printable::new(&place).to_string();
    let known = marks.all().map_err(unreadable(&marks))?;
    if !known.iter().any(|mark| mark.place.starts_with(&place)) {
        anstream::println!("nothing is known of {shown}");
        return Ok(0);
    }
    if !yes
        && !confirm(
            "Cages that read it will be given ways out again. Forget it?",
            "nothing was forgotten",
            "--yes",
        )?
    {
        anstream::println!("nothing was forgotten");
        return Ok(1);
    }
    let gone = marks.forget(&place).map_err(unreadable(&marks))?;
    anstream::println!("forgot {gone} of what was known of {shown}");
    Ok(0)
}

/// Removes what is kept, after a question: an agent's logins and history do not come back.
fn reset(store: &Store, kept: &[Entry], yes: bool) -> CommandResult {
    if kept.is_empty() {
        anstream::println!("nothing is kept for any workspace");
        return Ok(0);
    }
    if !yes {
        for entry in kept {
            anstream::println!(
                "{} and {} of caches are kept for {}",
                size(entry.home_bytes),
                size(entry.cache_bytes),
                Printable::new(&entry.workspace)
            );
        }
        if !confirm("Remove it?", "nothing was removed", "--yes")? {
            anstream::println!("nothing was removed");
            return Ok(1);
        }
    }
    for entry in kept {
        if store.reset(&entry.workspace).map_err(failed)? {
            let shown = Printable::new(&entry.workspace).to_string();
            anstream::println!("removed what was kept for {shown}");
        }
    }
    Ok(0)
}

/// A copy that is to be made.
#[derive(Debug)]
struct Import {
    from: PathBuf,
    /// Relative to the home.
    path: PathBuf,
    /// Where the cage has it, relative to the home.
    inside: PathBuf,
}

impl Import {
    fn new(path: &Path, home: &Path) -> Result<Import, CliError> {
        let shown = Printable::new(path).to_string();
        let wrong = |why: &str| Err(CliError::new(format!("{shown}: {why}")));
        let written = match path.strip_prefix("~") {
            Ok(rest) => home.join(rest),
            Err(_) => path.to_owned(),
        };
        let Ok(from) = std::fs::canonicalize(&written) else {
            return wrong("there is no such file or directory");
        };
        let relative = match from.strip_prefix(home) {
            Ok(relative) if !relative.as_os_str().is_empty() => relative.to_owned(),
            _ => return wrong("is not below your home directory"),
        };
        if places::own(home)
            .iter()
            .any(|own| own.starts_with(&from) || from.starts_with(own))
        {
            return wrong("Ironcage's own directories are in no cage");
        }
        let inside = match kept_files::find(&relative) {
            Some(file) => PathBuf::from(file.inside),
            None => relative.clone(),
        };
        Ok(Import {
            from,
            path: relative,
            inside,
        })
    }

    /// Credentials come along only by explicit word.
    fn check(&self, home: &Path, i_know: bool) -> Result<(), CliError> {
        let held: Vec<_> = credentials::ENTRIES
            .iter()
            .filter(|entry| {
                let entry = Path::new(entry.path);
                self.path.starts_with(entry)
                    || (entry.starts_with(&self.path)
                        && home.join(entry).symlink_metadata().is_ok())
            })
            .collect();
        if held.is_empty() || i_know {
            return Ok(());
        }
        let mut error = CliError::new(format!(
            "{} holds credentials, which the agent could then read and send",
            Printable::new(&self.from)
        ));
        for entry in held {
            error = error.hint(format!("~/{}: {}", entry.path, entry.why));
        }
        Err(error
            .hint("log in inside of the cage instead: that login is kept there and can be revoked alone")
            .hint("--i-know copies it all the same"))
    }

    fn carry_out(
        &self,
        store: &Store,
        workspace: &Path,
        replace: bool,
        yes: bool,
    ) -> CommandResult {
        anstream::println!(
            "copies {} to ~/{} of cages in {}",
            Printable::new(&self.from),
            Printable::new(&self.inside),
            Printable::new(workspace)
        );
        if !yes && !confirm("Copy it?", "nothing was copied", "--yes")? {
            anstream::println!("not copied");
            return Ok(1);
        }
        let copied = store
            .import(workspace, &self.from, &self.inside, replace)
            .map_err(failed)?;
        for path in &copied.left_out {
            anstream::println!("left out, not a file: {}", Printable::new(path));
        }
        anstream::println!(
            "copied {} in {} files; cages see it where a profile or --state {} names it",
            size(copied.bytes),
            copied.files,
            Printable::new(&self.path)
        );
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short_and_never_rounded_down_to_nothing() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(9_999), "9999 B");
        assert_eq!(size(10_240), "10 KiB");
        assert_eq!(size(20 << 20), "20 MiB");
        assert_eq!(size(u64::from(u32::MAX) * 100), "400 GiB");
    }
}
