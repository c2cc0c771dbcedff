//! `ironcage profile`: the profiles that ship, and a policy file to begin with.

use crate::error::{CliError, CommandResult};
use crate::places;
use crate::values::Offered;
use clap::Subcommand;
use ironcage_model::Printable;
use ironcage_policy::{
    EnvRule, FILE_NAME, Policy, Profile, Sourced, TimeLimit, profile, profiles, resolve_profile,
    template,
};
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

/// List and show profiles, or begin a policy file.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the profiles
    List,
    /// Show a profile, with the reason for each entry
    Show {
        /// The profile
        #[arg(value_parser = Offered::profiles())]
        name: String,
        /// Show every value in force, with the defaults and where each came from
        #[arg(long)]
        merged: bool,
    },
    /// Write a commented ironcage.toml in the workspace, where `ironcage run` looks for it
    Init {
        /// The profile it builds on
        #[arg(default_value = "coding-agent", value_parser = Offered::profiles())]
        name: String,
    },
}

pub(crate) fn run(args: Args) -> CommandResult {
    match args.action {
        Action::List => list(),
        Action::Show { name, merged } => show(&find(&name)?, merged),
        Action::Init { name } => {
            let cwd = std::env::current_dir().map_err(|error| {
                CliError::new(format!("cannot tell the current directory: {error}"))
            })?;
            let workspace = places::workspace_around(&cwd, &places::home()?);
            init(&find(&name)?, &workspace.join(FILE_NAME))
        }
    }
}

fn find(name: &str) -> Result<Profile, CliError> {
    profile(name).ok_or_else(|| {
        let shown = ironcage_model::Printable::new(name);
        let names: Vec<&str> = profiles().map(|profile| profile.name).collect();
        CliError::new(format!("there is no profile `{shown}`"))
            .hint(format!("the profiles are {}", names.join(", ")))
    })
}

fn list() -> CommandResult {
    let width = profiles()
        .map(|profile| profile.name.len())
        .max()
        .unwrap_or(0);
    for profile in profiles() {
        anstream::println!("{:width$}  {}", profile.name, profile.about);
    }
    Ok(0)
}

fn show(profile: &Profile, merged: bool) -> CommandResult {
    if merged {
        let policy = resolve_profile(profile.name, &places::home()?)
            .map_err(|error| CliError::from_error(&error))?;
        print_merged(&policy);
    } else {
        anstream::print!("{}", profile.text);
    }
    Ok(0)
}

fn init(profile: &Profile, path: &Path) -> CommandResult {
    let shown = Printable::new(path);
    let failed = |error| CliError::new(format!("cannot write {shown}: {error}"));
    // `create_new`: an existing file, or a link in its place, is never written through.
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                CliError::new(format!("{shown} exists already")).hint("edit it, or remove it first")
            }
            _ => failed(error),
        })?;
    file.write_all(template(profile).as_bytes())
        .map_err(failed)?;
    anstream::println!(
        "wrote {shown}, which builds on the profile {}",
        profile.name
    );
    anstream::println!("edit it, then run `ironcage trust` so that its word counts in full");
    Ok(0)
}

fn line<T>(key: &str, value: impl Display, sourced: &Sourced<T>) {
    anstream::println!("{key:24} {value:32} {}", sourced.origin);
}

fn print_merged(policy: &Policy) {
    let mode = &policy.workspace_mode;
    line("workspace.mode", mode.value.name(), mode);
    let toolchains = &policy.toolchains;
    line("files.toolchains", toolchains.value, toolchains);
    for path in &policy.keep {
        line("state.keep", Printable::new(&path.value).to_string(), path);
    }
    for name in &policy.caches {
        line("state.caches", &name.value, name);
    }
    for rule in &policy.env {
        match &rule.value {
            EnvRule::Pass { name } => line("env.pass", name, rule),
            EnvRule::Set { name, value } => line("env.set", format!("{name}={value}"), rule),
        }
    }
    line("process.hostname", &policy.hostname.value, &policy.hostname);
    line(
        "process.root-inside",
        policy.root_inside.value,
        &policy.root_inside,
    );
    line(
        "process.git-identity",
        policy.git_identity.value,
        &policy.git_identity,
    );
    line(
        "process.side-channels",
        policy.side_channels.value,
        &policy.side_channels,
    );
    line("syscalls.list", &policy.syscalls.value, &policy.syscalls);
    let limits = &policy.limits;
    line(
        "limits.memory",
        limits.memory.value.to_string(),
        &limits.memory,
    );
    line("limits.cpus", limits.cpus.value.to_string(), &limits.cpus);
    line("limits.pids", limits.pids.value, &limits.pids);
    line("limits.disk", limits.disk.value.to_string(), &limits.disk);
    line("limits.inodes", limits.inodes.value, &limits.inodes);
    line("limits.files", limits.files.value, &limits.files);
    line(
        "limits.time",
        TimeLimit(limits.time.value).to_string(),
        &limits.time,
    );
    line(
        "limits.idle",
        TimeLimit(limits.idle.value).to_string(),
        &limits.idle,
    );
    for layer in &policy.require {
        line("layers.require", layer.value.name(), layer);
    }
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

    #[test]
    fn a_profile_that_does_not_exist_is_not_found() {
        assert!(find("nope").is_err());
        assert!(find("coding-agent").is_ok());
    }
}
