//! `ironcage request list`.

use crate::completion::running_cages;
use crate::error::{CliError, CommandResult};
use crate::json;
use crate::pending_request::{self, ListedRequest};
use ironcage_model::{Printable, Span, Term};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

/// How often --follow looks for new requests.
const PACE: Duration = Duration::from_millis(500);

/// List pending permission requests
///
/// `ironcage approve CAGE/NUMBER` and `ironcage deny CAGE/NUMBER` answer a request. The reason
/// comes from the agent: do not trust it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Cage ID, unique ID prefix, or name [default: all running cages]
    #[arg(value_name = "ID", add = running_cages())]
    id: Option<String>,
    /// Continue, and show each new request
    #[arg(short, long)]
    follow: bool,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let mut shown = BTreeSet::new();
    loop {
        let list = pending_request::list(args.id.as_deref())?;
        for one in &list {
            let name = (one.cage.clone(), one.described.question.number);
            if !shown.insert(name) {
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
                anstream::println!("no pending requests");
            }
            return Ok(0);
        }
        std::thread::sleep(PACE);
    }
}

fn in_json(one: &ListedRequest) -> Result<String, CliError> {
    let mut value = serde_json::to_value(&one.described).map_err(CliError::new)?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("cage".into(), json!(one.cage.as_str()));
        fields.insert("name".into(), json!(one.name));
    }
    json::line(&value).map_err(CliError::new)
}

fn in_words(one: &ListedRequest) -> String {
    let question = &one.described.question;
    let term = match question.term {
        Term::Milliseconds(time) => format!(" for {}", Span(time)),
        Term::UntilRevoked => String::new(),
    };
    let often = match one.described.asked {
        0 | 1 => String::new(),
        asked => format!(", requested {asked} times"),
    };
    let reason = match question.reason.as_str() {
        "" => "no reason given".to_owned(),
        reason => format!("reason given by the agent: {}", Printable::new(reason)),
    };
    let minutes = one.described.milliseconds_left.div_ceil(60_000);
    let untold = match &one.described.untold {
        Some(why) => format!("\n    {}", Printable::new(why)),
        None => String::new(),
    };
    let announced = match &question.announced {
        Some(named) => format!("\n    the model announced it: {}", Printable::new(named)),
        None => String::new(),
    };
    format!(
        "{}/{}  {} asks for {}{term}{often}\n    {reason}{announced}\n    {} (expires in {minutes} min){untold}",
        one.shown(),
        question.number,
        question.origin.name(),
        question.resource,
        Printable::new(&question.because),
    )
}
