//! `ironcage stop`: end running cages.

use crate::completed::running_cages;
use crate::error::CommandResult;
use crate::pending::tell_left;
use crate::running;
use ironcage_control::Request;
use ironcage_policy::TimeLimit;
use ironcage_runtime::client::ClientError;
use std::time::Duration;

/// End running cages
///
/// The command gets SIGTERM; what has not ended in time is killed with everything in its cage. In
/// a sticky cage every process gets the signal.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long the command may take to end by itself: seconds, or a time such as 2m
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = grace)]
    time: Duration,
    /// Ids of cages, their beginnings, or names
    #[arg(required = true, value_name = "ID", add = running_cages())]
    ids: Vec<String>,
    /// Do not say where what the cages changed is kept
    #[arg(short, long)]
    quiet: bool,
}

/// Seconds, which may be none or parts of one, or a time with its unit.
fn grace(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let limit = || text.parse::<TimeLimit>().ok().and_then(|limit| limit.0);
    seconds
        .or_else(limit)
        .ok_or_else(|| format!("`{}` is no time such as 10, 0.5 or 2m", text.escape_debug()))
}

pub(crate) fn run(args: Args) -> CommandResult {
    let milliseconds = u64::try_from(args.time.as_millis()).unwrap_or(u64::MAX);
    let cages = running::cages()?;
    let mut connections = Vec::new();
    for text in &args.ids {
        let id = running::find(&cages, text)?;
        let connection = cages.connect(&id).map_err(running::said)?;
        // A supervisor that is stopped itself does not answer, and would be waited for forever.
        match connection.ask(&Request::Stop { milliseconds }) {
            Ok(_) | Err(ClientError::Gone { .. }) => connections.push(connection),
            Err(error) => return Err(running::said(error)),
        }
    }
    for connection in connections {
        match connection.await_end() {
            // Without a word is an end too.
            Ok(_) | Err(ClientError::Gone { .. }) => {
                anstream::println!("{}", connection.id());
                if !args.quiet {
                    tell_left(connection.id())?;
                }
            }
            Err(error) => return Err(running::said(error)),
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
