//! `ironcage request deny`, or `ironcage deny`.

use crate::completion::pending_requests;
use crate::error::CommandResult;
use crate::render::request::answered_together;
use crate::{cages, pending_request, tool_calls};
use ironcage_client::deny;

/// Deny a permission request of a running cage
///
/// The requester receives the denial and its reason. Repeated requests for the same resource are
/// denied automatically for as long as `questions.remember` says. If one command requested several
/// things, the answer is for all of them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// CAGE/NUMBER or mcp:NUMBER, or the number alone if only one cage has such a request
    #[arg(value_name = "REQUEST", add = pending_requests())]
    request: String,
    /// Reason, for the requester and the audit log
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

pub(crate) fn run(args: Args) -> CommandResult {
    if let Some(number) = tool_calls::number(&args.request)? {
        return tool_calls::answer(number, false, false);
    }
    let found = pending_request::find(&args.request)?;
    let number = found.described.question.number;
    deny(&found.connect()?, number, args.reason).map_err(cages::client_error)?;
    anstream::println!(
        "request {number}: denied: {}",
        found.described.question.resource
    );
    if !found.others.is_empty() {
        anstream::println!("{}", answered_together(&found));
    }
    Ok(0)
}
