//! `ironcage profile init`.

use super::find;
use crate::error::{CliError, CommandResult};
use crate::failure::FailureCode;
use crate::paths;
use crate::values::SuggestedName;
use ironcage_host::SystemFiles;
use ironcage_model::Printable;
use ironcage_policy::{FILE_NAME, Profile, template};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

/// Write a commented ironcage.toml to the workspace
///
/// `ironcage run` finds the file there.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Profile that the policy extends
    #[arg(default_value = "coding-agent", value_parser = SuggestedName::profiles())]
    name: String,
}

pub(super) fn run(args: Args) -> CommandResult {
    let cwd = std::env::current_dir().map_err(|error| {
        CliError::new(format!("cannot determine the current directory: {error}"))
    })?;
    let workspace = paths::workspace_around(
        &cwd,
        &paths::home(&SystemFiles::default())?,
        &SystemFiles::default(),
    );
    init(&find(&args.name)?, &workspace.join(FILE_NAME))
}

fn init(profile: &Profile, path: &Path) -> CommandResult {
    let shown = Printable::new(path);
    let failed = |error| CliError::new(format!("cannot write {shown}: {error}"));
    // `create_new`: never write through an existing file or link.
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                CliError::new(format!("cannot write {shown}: the file exists"))
                    .with_failure(FailureCode::FileExists)
                    .hint("edit it, or remove it first")
            }
            _ => failed(error),
        })?;
    file.write_all(template(profile).as_bytes())
        .map_err(failed)?;
    anstream::println!("wrote {shown}, which extends the profile {}", profile.name);
    anstream::println!("edit it, then run `ironcage trust` so that it can also widen permissions");
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_writes_a_policy_once_and_never_over_a_file() {
        let path = std::env::temp_dir().join(format!("ironcage-init-{}.toml", std::process::id()));
        let profile = find("strict").unwrap();
        assert_eq!(init(&profile, &path).unwrap(), 0);
        let written = std::fs::read_to_string(&path).unwrap();
        assert!(ironcage_policy::parse(&path, &written).is_ok());
        let again = init(&find("shell").unwrap(), &path);
        let kept = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(again.is_err());
        assert_eq!(kept, written);
    }
}
