//! `ironcage profile list`.

use crate::error::CommandResult;
use ironcage_policy::profiles;

/// List the built-in profiles
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run() -> CommandResult {
    let width = profiles()
        .map(|profile| profile.name.len())
        .max()
        .unwrap_or(0);
    for profile in profiles() {
        anstream::println!("{:width$}  {}", profile.name, profile.about);
    }
    Ok(0)
}
