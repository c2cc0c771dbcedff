//! `ironcage stats`.

use crate::completion::running_cages;
use crate::error::{CliError, CommandResult};
use crate::{cages, json};
use ironcage_client::{ClientError, Connection};
use ironcage_control::{Reply, Request, Stats};
use ironcage_model::CageId;
use serde::Serialize;

/// Show the resource usage of running cages
///
/// Memory, CPU time and processes come from the cage's cgroup. Without a cgroup they are summed
/// over its processes, which leaves out shared memory.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Cage ID, unique ID prefix, or name [default: all running cages]
    #[arg(value_name = "ID", add = running_cages())]
    id: Option<String>,
}

#[derive(Debug, Serialize)]
struct StatsLine {
    id: CageId,
    #[serde(flatten)]
    stats: Stats,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let cages = cages::all()?;
    let mut lines = Vec::new();
    match &args.id {
        Some(text) => {
            let id = cages::find(&cages, text)?;
            let connection = cages.connect(&id).map_err(cages::client_error)?;
            lines.push(request(&connection).map_err(cages::client_error)?);
        }
        None => {
            for found in cages.running().map_err(cages::client_error)? {
                let line = cages.connect(found.id()).and_then(|c| request(&c));
                match line {
                    Ok(line) => lines.push(line),
                    // It ended meanwhile, or its supervisor is stopped.
                    Err(
                        ClientError::NotRunning { .. }
                        | ClientError::Gone { .. }
                        | ClientError::Silent { .. },
                    ) => {}
                    Err(error) => return Err(cages::client_error(error)),
                }
            }
        }
    }
    if args.json {
        let text = json::pretty(&lines).map_err(CliError::new)?;
        anstream::println!("{text}");
        return Ok(0);
    }
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "-".into(), rounded);
    anstream::println!(
        "{:13}  {:>17}  {:>10}  {:>11}  {:>8}  SOURCE",
        "ID",
        "MEMORY",
        "CPU",
        "PIDS",
        "STORAGE"
    );
    for StatsLine { id, stats } in lines {
        let memory = format!("{} / {}", size(stats.memory), rounded(stats.memory_limit));
        let cpu = stats.cpu_microseconds.map_or_else(|| "-".into(), cpu_time);
        let pids = stats
            .pids
            .map_or_else(|| "-".into(), |pids| pids.to_string());
        let pids = format!("{pids} / {}", stats.pids_limit);
        anstream::println!(
            "{:13}  {memory:>17}  {cpu:>10}  {pids:>11}  {:>8}  {}",
            id.as_str(),
            size(stats.storage),
            stats.counted_by
        );
    }
    Ok(0)
}

fn request(connection: &Connection) -> Result<StatsLine, ClientError> {
    match connection.ask(&Request::Stats)? {
        Reply::Stats(stats) => Ok(StatsLine {
            id: connection.id().clone(),
            stats,
        }),
        other => Err(ClientError::Answer(format!("{other:?}"))),
    }
}

fn cpu_time(microseconds: u64) -> String {
    let seconds = microseconds / 1_000_000;
    match seconds {
        0..60 => format!("{:.2} s", microseconds as f64 / 1e6),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

fn rounded(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..1_048_576 => format!("{}K", bytes / 1024),
        1_048_576..1_073_741_824 => format!("{:.1}M", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2}G", bytes as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units_that_people_read() {
        assert_eq!(rounded(12_638_259_200), "11.77G");
        assert_eq!(rounded(1_500_000), "1.4M");
        assert_eq!(cpu_time(1_230_000), "1.23 s");
        assert_eq!(cpu_time(3_725_000_000), "1 h 2 min");
        assert_eq!(cpu_time(125_000_000), "2 min 5 s");
    }
}
