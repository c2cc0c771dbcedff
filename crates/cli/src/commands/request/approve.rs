//! `ironcage request approve`, or `ironcage approve`.

use crate::approved_rule::{self, ApprovedRule};
use crate::commands::lease::grant::GrantReport;
use crate::completion::pending_requests;
use crate::error::{CliError, CommandResult};
use crate::pending_request;
use crate::render::request::answered_together;
use crate::tool_calls;
use ironcage_client::approve;
use ironcage_control::ApproveRequest;
use ironcage_model::{LeaseOutcome, Printable, Resource, Term};
use ironcage_policy::TimeLimit;

/// Approve a permission request of a running cage
///
/// The cage gets a lease for the requested time, or --for. The lease opens the file or directory
/// that was requested, even if something else has taken its name since. If one command requested
/// several things, the answer is for all of them. A tool call that waits at the MCP gateway
/// (mcp:NUMBER) is made once, with the arguments that the list shows.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// CAGE/NUMBER or mcp:NUMBER, as `ironcage request list` shows it
    #[arg(value_name = "REQUEST", add = pending_requests())]
    request: String,
    /// Duration of the lease, for example 30s or 10m; `none` is as long as the policy allows
    /// [default: as requested]
    #[arg(long = "for", value_name = "TIME", conflicts_with = "once")]
    time: Option<TimeLimit>,
    /// Allow one use (one connection). Not available for paths: use --for
    #[arg(long)]
    once: bool,
    /// Also add it to your own policy, so that no cage needs to ask for it again
    #[arg(long, conflicts_with = "once")]
    always: bool,
    /// Print the open leases as JSON
    #[arg(long, conflicts_with = "always")]
    json: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    if let Some(number) = tool_calls::number(&args.request)? {
        if args.time.is_some() || args.always || args.once {
            let title = "cannot approve a tool call for a time or always: it is made once";
            return Err(CliError::new(title).hint("approve it without the flag"));
        }
        return tool_calls::answer(number, true, args.json);
    }
    let found = pending_request::find_of_cage(&args.request)?;
    let question = &found.described.question;
    if let Resource::Key { .. } = &question.resource
        && (args.time.is_some() || args.always)
    {
        let flag = if args.always { "--always" } else { "--for" };
        return Err(CliError::new(format!(
            "cannot approve {} with {flag}: a key is approved for one use at a time",
            question.resource
        ))
        .hint("approve it without the flag, or start the cage without --confirm-keys"));
    }
    let mut rules = Vec::new();
    for one in found.all().into_iter().filter(|_| args.always) {
        rules.push(ApprovedRule::of(&found.cage, one)?);
    }
    let request = ApproveRequest {
        number: question.number,
        term: args.time.map(|time| match time.0 {
            Some(time) => Term::Milliseconds(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            None => Term::UntilRevoked,
        }),
        uses: args.once.then_some(1),
    };
    let granted = approve(&found.connect()?, request);
    let mut granted_leases = GrantReport::new(args.json);
    match (&question.resource, &granted) {
        (key @ Resource::Key { .. }, Ok(LeaseOutcome::Granted(_))) if !args.json => {
            anstream::println!("approved for one use: {key}");
        }
        _ => granted_leases.take(granted, &question.resource)?,
    }
    if args.json {
        return granted_leases.finish();
    }
    if !found.others.is_empty() {
        anstream::println!("{}", answered_together(&found));
    }
    for rule in rules {
        match approved_rule::write(&rule)? {
            Some(path) => {
                anstream::println!("{}: {}", Printable::new(&path), rule.line());
            }
            None => anstream::println!("your policy already has: {}", rule.line()),
        }
    }
    Ok(0)
}
