//! `ironcage approve`: says yes to a question of a running cage.

use super::grant::in_words;
use crate::always::{self, Rule};
use crate::completed::questions;
use crate::error::{CliError, CommandResult};
use crate::{question, running};
use ironcage_control::ApproveRequest;
use ironcage_model::{Printable, Term};
use ironcage_policy::TimeLimit;
use ironcage_runtime::client::{ClientError, Granted, approve};

/// Say yes to what a running cage asks for
///
/// The lease is opened as if you had granted it: for the time that was asked for, or --for. What
/// is opened is the very file or directory that was asked about, whatever has taken its name since.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The question: CAGE/NUMBER, as `ironcage pending` lists it
    #[arg(value_name = "QUESTION", add = questions())]
    question: String,
    /// For how long: 30s, 10m, or none for as long as the policy lets it [default: as was asked]
    #[arg(long = "for", value_name = "TIME", conflicts_with = "once")]
    time: Option<TimeLimit>,
    /// For one use: one connection. Nobody counts the uses of a path: give that for a time
    #[arg(long)]
    once: bool,
    /// Also write it into your own policy, so that no cage whose ceiling asks for it asks again
    #[arg(long, conflicts_with = "once")]
    always: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let found = question::find_of_cage(&args.question)?;
    let question = &found.described.question;
    let rule = match args.always {
        true => Some(Rule::of(&found.cage, &found.described)?),
        false => None,
    };
    let request = ApproveRequest {
        number: question.number,
        term: args.time.map(|time| match time.0 {
            Some(time) => Term::Milliseconds(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            None => Term::UntilRevoked,
        }),
        uses: args.once.then_some(1),
    };
    match approve(&found.connect()?, request) {
        Ok(Granted::Lease(lease)) => anstream::println!("{}", in_words(&lease)),
        Ok(Granted::ToCommand) => {
            anstream::println!("the command that needs it gets it, and it alone");
        }
        Ok(Granted::InBase { reason }) => {
            anstream::println!("no lease is needed: {}", Printable::new(&reason));
        }
        Err(ClientError::Refused { reason }) => {
            return Err(CliError::new(format!(
                "{} was not given: {}",
                question.resource,
                Printable::new(&reason)
            )));
        }
        Err(error) => return Err(running::said(error)),
    }
    if let Some(rule) = rule {
        match always::write(&rule)? {
            Some(path) => {
                anstream::println!("{}: {}", Printable::new(&path), rule.line());
            }
            None => anstream::println!("your policy says so already: {}", rule.line()),
        }
    }
    Ok(0)
}
