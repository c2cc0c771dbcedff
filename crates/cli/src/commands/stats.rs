//! `ironcage stats`: what running cages use.

use crate::completed::running_cages;
use crate::error::{CliError, CommandResult};
use crate::json;
use crate::running;
use ironcage_control::{Reply, Request, Stats};
use ironcage_model::{CageId, bytes_as_written};
use ironcage_runtime::client::{ClientError, Connection};
use serde::Serialize;

/// Show what running cages use
///
/// Memory, processor time and processes from the cage's cgroup; where it has none, from a look
/// at its processes, which leaves shared memory out.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Id of the cage, its beginning, or the cage's name [default: all]
    #[arg(value_name = "ID", add = running_cages())]
    id: Option<String>,
}

#[derive(Debug, Serialize)]
struct Line {
    id: CageId,
    #[serde(flatten)]
    stats: Stats,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let cages = running::cages()?;
    let mut lines = Vec::new();
    match &args.id {
        Some(text) => {
            let id = running::find(&cages, text)?;
            let connection = cages.connect(&id).map_err(running::said)?;
            lines.push(ask(&connection).map_err(running::said)?);
        }
        None => {
            for found in cages.running().map_err(running::said)? {
                let asked = cages.connect(found.id()).and_then(|c| ask(&c));
                match asked {
                    Ok(line) => lines.push(line),
                    // It ended meanwhile, or is stopped.
                    Err(
                        ClientError::NotRunning { .. }
                        | ClientError::Gone { .. }
                        | ClientError::Silent { .. },
                    ) => {}
                    Err(error) => return Err(running::said(error)),
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
        "{:13}  {:>17}  {:>10}  {:>11}  {:>8}  COUNTED BY",
        "ID",
        "MEMORY",
        "CPU",
        "PIDS",
        "STORAGE"
    );
    for Line { id, stats } in lines {
        let memory = format!(
            "{} / {}",
            size(stats.memory),
            bytes_as_written(stats.memory_limit)
        );
        let cpu = stats
            .cpu_microseconds
            .map_or_else(|| "-".into(), |us| format!("{:.2} s", us as f64 / 1e6));
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

fn ask(connection: &Connection) -> Result<Line, ClientError> {
    match connection.ask(&Request::Stats)? {
        Reply::Stats(stats) => Ok(Line {
            id: connection.id().clone(),
            stats,
        }),
        other => Err(ClientError::Answer(format!("{other:?}"))),
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
