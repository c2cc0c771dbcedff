//! `ironcage policy check`.

use crate::cage_flags::{CageFlags, Judgement};
use crate::error::CommandResult;
use ironcage_model::Printable;
use std::path::PathBuf;

/// Check that a policy file is valid and can start a cage here
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Policy file
    #[arg(value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
}

pub(super) fn run(args: Args) -> CommandResult {
    let flags = CageFlags::of_policy(&args.file, None);
    let resolved = flags.resolve()?;
    let shown = Printable::new(&args.file);
    match flags.judge() {
        Ok(()) => anstream::println!("{shown} is valid: {}", resolved.profile_choice),
        Err(Judgement::NeedsConfirmation(error)) => {
            anstream::println!("{shown} is valid, but every start needs --i-know: {error}");
        }
        Err(Judgement::Refused(error)) => return Err(error),
    }
    Ok(0)
}
