//! `ironcage deny`: says no to a question of a running cage.

use crate::completed::questions;
use crate::error::CommandResult;
use crate::{question, running};
use ironcage_runtime::client::deny;

/// Say no to what a running cage asks for
///
/// Who asked is told so, with the reason. The same is not asked again for a while
/// (`questions.remember` in your policy): it is answered with this denial.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The question: CAGE/NUMBER, or its number
    #[arg(value_name = "QUESTION", add = questions())]
    question: String,
    /// Why; who asked reads it
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let found = question::find(&args.question)?;
    let number = found.described.question.number;
    deny(&found.connect()?, number, args.reason).map_err(running::said)?;
    anstream::println!(
        "question {number}: denied: {}",
        found.described.question.resource
    );
    Ok(0)
}
