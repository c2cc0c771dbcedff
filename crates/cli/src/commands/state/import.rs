//! `ironcage state import`.

use super::{state_error, workspace_or_default};
use crate::confirm::confirm;
use crate::error::{CliError, CommandResult};
use crate::output::size;
use crate::paths;
use ironcage_host::SystemFiles;
use ironcage_model::Printable;
use ironcage_policy::caches::kept_files;
use ironcage_policy::credentials;
use ironcage_state::Store;
use std::path::{Path, PathBuf};

/// Copy a file or directory of your home into a workspace's state
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// File or directory to copy
    path: PathBuf,
    /// Workspace [default: the one that `ironcage run` would use]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Overwrite what is kept there
    #[arg(long)]
    replace: bool,
    /// Copy credentials too: the agent will be able to read and send them
    #[arg(long)]
    i_know: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

pub(super) fn run(args: Args) -> CommandResult {
    let home = paths::home(&SystemFiles::default())?;
    let store = paths::store(&home, &SystemFiles::default());
    let workspace = workspace_or_default(args.workspace, &home)?;
    let import = StateImport::new(&args.path, &home)?;
    import.check(&home, args.i_know)?;
    import.carry_out(&store, &workspace, args.replace, args.yes)
}

#[derive(Debug)]
struct StateImport {
    from: PathBuf,
    /// Relative to the home.
    path: PathBuf,
    /// Where the cage has it, relative to the home.
    inside: PathBuf,
}

impl StateImport {
    fn new(path: &Path, home: &Path) -> Result<StateImport, CliError> {
        let shown = Printable::new(path).to_string();
        let wrong = |why: &str| Err(CliError::new(format!("cannot import {shown}: {why}")));
        let written = match path.strip_prefix("~") {
            Ok(rest) => home.join(rest),
            Err(_) => path.to_owned(),
        };
        let Ok(from) = std::fs::canonicalize(&written) else {
            return wrong("no such file or directory");
        };
        let relative = match from.strip_prefix(home) {
            Ok(relative) if !relative.as_os_str().is_empty() => relative.to_owned(),
            _ => return wrong("it is not below your home directory"),
        };
        if paths::own(home, &SystemFiles::default())
            .iter()
            .any(|own| own.starts_with(&from) || from.starts_with(own))
        {
            return wrong("Ironcage's own directories never enter a cage");
        }
        let inside = match kept_files::find(&relative) {
            Some(file) => PathBuf::from(file.inside),
            None => relative.clone(),
        };
        Ok(StateImport {
            from,
            path: relative,
            inside,
        })
    }

    /// Credentials need an explicit flag.
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
            "cannot import {}: it holds credentials, which the agent could read and send",
            Printable::new(&self.from)
        ));
        for entry in held {
            error = error.hint(format!("~/{}: {}", entry.path, entry.why));
        }
        Err(error
            .hint("log in inside the cage instead: that login is kept there and can be revoked on its own")
            .hint("--i-know copies it anyway"))
    }

    fn carry_out(
        &self,
        store: &Store,
        workspace: &Path,
        replace: bool,
        yes: bool,
    ) -> CommandResult {
        anstream::println!(
            "copy {} to ~/{} of cages in {}",
            Printable::new(&self.from),
            Printable::new(&self.inside),
            Printable::new(workspace)
        );
        if !yes && !confirm("Copy it?", "nothing copied", "--yes")? {
            anstream::println!("nothing copied");
            return Ok(1);
        }
        let copied = store
            .import(workspace, &self.from, &self.inside, replace)
            .map_err(state_error)?;
        for path in &copied.left_out {
            anstream::println!("skipped, not a regular file: {}", Printable::new(path));
        }
        anstream::println!(
            "copied {} in {} files; cages see it if a profile or --state {} names it",
            size(copied.bytes),
            copied.files,
            Printable::new(&self.path)
        );
        Ok(0)
    }
}
