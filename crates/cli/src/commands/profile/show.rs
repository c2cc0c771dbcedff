//! `ironcage profile show`.

use super::find;
use crate::error::{CliError, CommandResult};
use crate::paths;
use crate::values::SuggestedName;
use ironcage_host::SystemFiles;
use ironcage_model::Printable;
use ironcage_policy::{EnvRule, Policy, Sourced, TimeLimit, resolve_profile};
use std::fmt::Display;

/// Show a profile, with the reason for each entry
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Name of the profile
    #[arg(value_parser = SuggestedName::profiles())]
    name: String,
    /// Show every effective value, with defaults and origins
    #[arg(long)]
    merged: bool,
}

pub(super) fn run(args: Args) -> CommandResult {
    let profile = find(&args.name)?;
    if args.merged {
        let policy = resolve_profile(profile.name, &paths::home(&SystemFiles::default())?)
            .map_err(|error| CliError::from_error(&error))?;
        print_merged(&policy);
    } else {
        anstream::print!("{}", profile.text);
    }
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
        "process.guest-root",
        policy.guest_root.value,
        &policy.guest_root,
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
    if let Some(fuel) = &limits.fuel {
        line("limits.fuel", fuel.value, fuel);
    }
    for layer in &policy.require {
        line("layers.require", layer.value.name(), layer);
    }
}
