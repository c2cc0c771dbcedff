//! `ironcage stop`.

use crate::completion::running_cages;
use crate::error::{CommandResult, InvalidValue};
use crate::pending_change::report_left;
use crate::{cages, containers};
use ironcage_client::ClientError;
use ironcage_control::Request;
use ironcage_policy::TimeLimit;
use std::time::Duration;

/// Stop running cages
///
/// The command gets SIGTERM; after the grace period it is killed with everything in the cage. In a
/// sticky cage every process gets the signal. A container of an engine gets the stop signal of its
/// image where the engine passes that on; the engine's restart policy applies.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Grace period before the command is killed: seconds, or a duration such as 2m
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = grace)]
    time: Duration,
    /// Cage IDs, unique ID prefixes, or names
    #[arg(required = true, value_name = "ID", add = running_cages())]
    ids: Vec<String>,
    /// Do not report pending changes
    #[arg(short, long)]
    quiet: bool,
}

/// Seconds, possibly zero or fractional, or a duration with a unit.
fn grace(text: &str) -> Result<Duration, InvalidValue> {
    let seconds = text
        .parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let limit = || text.parse::<TimeLimit>().ok().and_then(|limit| limit.0);
    let expected = "for example 10, 0.5 or 2m";
    let invalid = || InvalidValue::new("duration", text, expected);
    seconds.or_else(limit).ok_or_else(invalid)
}

pub(crate) fn run(args: Args) -> CommandResult {
    let milliseconds = u64::try_from(args.time.as_millis()).unwrap_or(u64::MAX);
    let cages = cages::all()?;
    let mut connections = Vec::new();
    for text in &args.ids {
        let id = cages::find(&cages, text)?;
        if containers::stop(&cages, &id, args.time)? {
            anstream::println!("{id}");
            continue;
        }
        let connection = cages.connect(&id).map_err(cages::client_error)?;
        // Wait for the reply: a stopped supervisor never sends one, and would block us forever.
        match connection.ask(&Request::Stop { milliseconds }) {
            Ok(_) | Err(ClientError::Gone { .. }) => connections.push(connection),
            Err(error) => return Err(cages::client_error(error)),
        }
    }
    for connection in connections {
        match connection.await_end() {
            // A closed connection is an end, too.
            Ok(_) | Err(ClientError::Gone { .. }) => {
                anstream::println!("{}", connection.id());
                if !args.quiet {
                    report_left(connection.id())?;
                }
            }
            Err(error) => return Err(cages::client_error(error)),
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_seconds_or_has_a_unit() {
        assert_eq!(grace("0"), Ok(Duration::ZERO));
        assert_eq!(grace("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(grace("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["-1", "soon", "inf", "none"] {
            assert!(grace(wrong).is_err(), "{wrong}");
        }
    }
}
