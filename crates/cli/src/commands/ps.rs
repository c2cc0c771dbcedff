//! `ironcage ps`.

use crate::containers::{self, State};
use crate::error::{CliError, CommandResult};
use crate::render::event::ending_short;
use crate::{cages, json, paths};
use ironcage_audit::{Container, Summary};
use ironcage_client::{Cages, RunningCage};
use ironcage_control::Description;
use ironcage_host::{HostCaps, SystemFiles};
use ironcage_model::{CageId, Printable};
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// List running cages
///
/// Each supervisor reports the current state of its cage. A killed supervisor takes its cage with
/// it; this command removes the socket and the cgroup that it left. Containers that Docker, podman
/// or containerd run with `ironcage-oci-runtime` are listed by the IDs of their audit logs.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also list ended background cages and containers, until they are removed
    #[arg(short, long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print only IDs
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
}

#[derive(Debug, Serialize)]
struct CageLine {
    id: CageId,
    name: Option<String>,
    /// running, waiting, stopping, silent, or how it ended; created, running, paused or stopped for
    /// a container.
    status: String,
    running: bool,
    background: bool,
    /// Microseconds since the epoch.
    started: Option<u64>,
    supervisor: Option<u32>,
    command: Vec<String>,
    workspace: Option<String>,
    /// Only for child cages.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<CageId>,
    execs: usize,
    /// Only for containers of an engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<ContainerLine>,
}

#[derive(Debug, Serialize)]
struct ContainerLine {
    /// Its ID, as the engine has it.
    id: String,
    /// Where `ironcage-oci-runtime --root` finds it.
    root: String,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let cages = cages::all()?;
    let home = paths::home(&SystemFiles::default())?;
    // Without the host's cgroups there is nothing in them to remove.
    if let Ok(host) = HostCaps::quick(&paths::state_dir(&home)) {
        ironcage_supervisor::sweep_cgroups(&host.cgroup);
    }
    let mut lines: Vec<CageLine> = cages
        .running()
        .map_err(cages::client_error)?
        .into_iter()
        .map(|found| of_running(found, &cages))
        .collect();
    if args.all {
        let kept = cages.archive().list().map_err(|error| {
            CliError::new(format!("cannot list ended background cages: {error}"))
        })?;
        for id in kept {
            if !lines.iter().any(|line| line.id == id) {
                lines.push(of_ended(id, &cages));
            }
        }
    }
    for (container, state) in containers::all(&cages)? {
        if args.all || !state.is_over() {
            lines.push(of_container(container, state, &cages));
        }
    }
    lines.sort_by(|a, b| b.started.cmp(&a.started).then_with(|| a.id.cmp(&b.id)));
    if args.quiet {
        for line in lines {
            anstream::println!("{}", line.id);
        }
    } else if args.json {
        let text = json::pretty(&lines).map_err(CliError::new)?;
        anstream::println!("{text}");
    } else {
        print(&lines);
    }
    Ok(0)
}

fn of_running(found: RunningCage, cages: &Cages) -> CageLine {
    match found {
        RunningCage::Answered(description) => {
            let Description {
                id,
                name,
                command,
                workspace,
                started,
                supervisor,
                background,
                state,
                execs,
                parent,
                ..
            } = *description;
            CageLine {
                id,
                name,
                status: state.to_string(),
                running: true,
                background,
                started: Some(started),
                supervisor: Some(supervisor),
                command,
                workspace: Some(workspace),
                parent,
                execs: execs.len(),
                container: None,
            }
        }
        RunningCage::Silent { id, supervisor } => {
            let summary = summary(&id, cages);
            CageLine {
                name: summary.name,
                status: "silent".into(),
                running: true,
                background: cages.archive().has(&id),
                started: summary.time,
                supervisor: Some(supervisor),
                command: summary.command,
                workspace: None,
                parent: None,
                execs: 0,
                container: None,
                id,
            }
        }
    }
}

fn of_ended(id: CageId, cages: &Cages) -> CageLine {
    let summary = summary(&id, cages);
    CageLine {
        status: match &summary.ending {
            Some(ending) => ending_short(ending),
            // The supervisor was killed before it could record the end.
            None => "killed".into(),
        },
        name: summary.name,
        running: false,
        background: true,
        started: summary.time,
        supervisor: None,
        command: summary.command,
        workspace: None,
        parent: None,
        execs: 0,
        container: None,
        id,
    }
}

fn of_container(container: Container, state: State, cages: &Cages) -> CageLine {
    let summary = summary(&container.cage, cages);
    CageLine {
        name: Some(containers::short(&container.id).to_owned()),
        running: !state.is_over(),
        status: state.status,
        background: true,
        started: summary.time,
        supervisor: None,
        command: summary.command,
        workspace: None,
        parent: None,
        execs: usize::try_from(container.execs).unwrap_or(usize::MAX),
        container: Some(ContainerLine {
            id: container.id,
            root: container.root.to_string_lossy().into_owned(),
        }),
        id: container.cage,
    }
}

/// From the audit log; empty if the log is gone.
fn summary(id: &CageId, cages: &Cages) -> Summary {
    ironcage_audit::summary(cages.audit(), id).unwrap_or_default()
}

fn print(lines: &[CageLine]) {
    let rows: Vec<[String; 5]> = lines
        .iter()
        .map(|line| {
            let name = match (&line.name, &line.parent) {
                (Some(name), _) => name.clone(),
                (None, Some(parent)) => format!("(child of {parent})"),
                (None, None) => "-".to_owned(),
            };
            let command = match line.command.is_empty() {
                true => "-".to_owned(),
                false => line.command.join(" "),
            };
            [
                line.id.to_string(),
                Printable::new(&name).to_string(),
                line.status.clone(),
                line.started.map_or_else(|| "-".into(), age),
                shortened(&Printable::new(&command).to_string()),
            ]
        })
        .collect();
    let heading = ["ID", "NAME", "STATUS", "AGE", "COMMAND"].map(str::to_owned);
    let width = |column: usize| {
        let cells = rows.iter().chain([&heading]);
        cells
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths = [width(0), width(1), width(2), width(3)];
    for row in [&heading].into_iter().chain(&rows) {
        let [id, name, status, age, command] = row;
        let [w0, w1, w2, w3] = widths;
        anstream::println!("{id:w0$}  {name:w1$}  {status:w2$}  {age:w3$}  {command}");
    }
}

fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    if text.chars().count() <= MOST {
        return text.to_owned();
    }
    let kept: String = text.chars().take(MOST - 3).collect();
    format!("{kept}...")
}

fn age(started: u64) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64);
    let seconds = now.saturating_sub(started) / 1_000_000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d", seconds / 86_400),
    }
}
