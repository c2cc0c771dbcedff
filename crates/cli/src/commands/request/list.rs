//! `ironcage request list`.

use crate::completion::running_cages;
use crate::error::{CliError, CommandResult};
use crate::json;
use crate::pending_request::{self, ListedRequest};
use crate::render::request;
use crate::tool_calls;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

/// How often --follow looks for new requests.
const PACE: Duration = Duration::from_millis(500);

/// List pending permission requests
///
/// `ironcage approve CAGE/NUMBER` and `ironcage deny CAGE/NUMBER` answer a request. The needs of one
/// command are one entry with one answer. A tool call at the MCP gateway is mcp:NUMBER. Reason,
/// command and arguments come from the agent: do not trust them.
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
    let mut calls = BTreeSet::new();
    loop {
        let list = pending_request::list(args.id.as_deref())?;
        for one in &list {
            // As text, what one answer is for is one entry.
            let question = &one.described.question;
            let number = match args.json {
                true => question.number,
                false => question.answered_as(),
            };
            if !shown.insert((one.cage.clone(), number)) {
                continue;
            }
            if args.json {
                let text = in_json(one)?;
                anstream::println!("{text}");
            } else {
                anstream::println!("{}", request::entry(one));
            }
        }
        // Calls belong to no cage.
        let waiting = match &args.id {
            None => tool_calls::pending()?,
            Some(_) => Vec::new(),
        };
        for call in &waiting {
            if !calls.insert(call.number) {
                continue;
            }
            match args.json {
                true => anstream::println!("{}", tool_calls::in_json(call)?),
                false => anstream::println!("{}", tool_calls::entry(call)),
            }
        }
        if !args.follow {
            if list.is_empty() && waiting.is_empty() && !args.json {
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
