//! `ironcage pending`: what running cages wait for a person to say.

use crate::completed::running_cages;
use crate::error::{CliError, CommandResult};
use crate::json;
use crate::question::{Waiting, waiting};
use ironcage_model::{Printable, Span, Term};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

/// How often it is looked for new ones.
const PACE: Duration = Duration::from_millis(500);

/// List what running cages ask you for
///
/// Each question is answered with `ironcage approve` or `ironcage deny`, by CAGE/NUMBER, or by its
/// number alone where one cage has such a question. What is said to be the reason was said inside.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only of this cage: its id, the beginning of it, or its name
    #[arg(value_name = "ID", add = running_cages())]
    id: Option<String>,
    /// Go on, and show each question as it comes
    #[arg(short, long)]
    follow: bool,
    /// Print JSON, a line for each
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let mut told = BTreeSet::new();
    loop {
        let list = waiting(args.id.as_deref())?;
        for one in &list {
            let name = (one.cage.clone(), one.described.question.number);
            if !told.insert(name) {
                continue;
            }
            if args.json {
                let text = in_json(one)?;
                anstream::println!("{text}");
            } else {
                anstream::println!("{}", in_words(one));
            }
        }
        if !args.follow {
            if list.is_empty() && !args.json {
                anstream::println!("no question waits for an answer");
            }
            return Ok(0);
        }
        std::thread::sleep(PACE);
    }
}

fn in_json(one: &Waiting) -> Result<String, CliError> {
    let mut value = serde_json::to_value(&one.described).map_err(CliError::new)?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("cage".into(), json!(one.cage.as_str()));
        fields.insert("name".into(), json!(one.name));
    }
    json::line(&value).map_err(CliError::new)
}

fn in_words(one: &Waiting) -> String {
    let question = &one.described.question;
    let term = match question.term {
        Term::Milliseconds(time) => format!(" for {}", Span(time)),
        Term::UntilRevoked => String::new(),
    };
    let often = match one.described.asked {
        0 | 1 => String::new(),
        asked => format!(", asked {asked} times"),
    };
    let reason = match question.reason.as_str() {
        "" => "no reason was given".to_owned(),
        reason => format!("said inside: {}", Printable::new(reason)),
    };
    let minutes = one.described.milliseconds_left.div_ceil(60_000);
    let untold = match &one.described.untold {
        Some(why) => format!("\n    {}", Printable::new(why)),
        None => String::new(),
    };
    let announced = match &question.announced {
        Some(named) => format!(
            "\n    the model's words named it: {}",
            Printable::new(named)
        ),
        None => String::new(),
    };
    format!(
        "{}/{}  {} asks for {}{term}{often}\n    {reason}{announced}\n    {} (an answer is waited for {minutes} min){untold}",
        one.shown(),
        question.number,
        question.origin.name(),
        question.resource,
        Printable::new(&question.because),
    )
}
