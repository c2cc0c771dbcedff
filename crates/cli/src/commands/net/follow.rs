//! `ironcage net --follow`: connections as they happen.

use crate::error::{CliError, CommandResult};
use crate::output::{print, utc};
use crate::render::traffic::{destination, rule_change, summary};
use crate::{audit_log, cages, json};
use ironcage_audit::LogEntry;
use ironcage_client::{ClientError, Watch};
use ironcage_model::{CageId, EventKind, Flow, FlowStep, Printable};
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// How often the audit log is read.
const PACE: Duration = Duration::from_millis(200);

/// Shows what was recorded, then what happens, until the cage ends.
pub(super) fn run(path: &Path, id: &CageId, json: bool) -> CommandResult {
    // The subscription first, then the log: nothing is lost between the two.
    let watch = watch(id)?;
    let mut seen = 0;
    if !json {
        let records = audit_log::records(path, 0)?;
        seen = records.len();
        print(|out| records.iter().try_for_each(|record| line(out, record)))?;
    }
    if let Some((watch, init)) = watch {
        while let Some(flow) = watch.next().map_err(cages::client_error)? {
            show(&flow, init, json)?;
        }
    }
    if json {
        return Ok(0);
    }
    the_rest(path, id, seen)
}

/// Subscribes to a running cage's connections; `None` if it has ended or has no network. Also
/// returns the process ID of its first process.
fn watch(id: &CageId) -> Result<Option<(Watch, u32)>, CliError> {
    let cages = cages::all()?;
    let connection = match cages.connect(id) {
        Ok(connection) => connection,
        Err(ClientError::NotRunning { .. } | ClientError::Gone { .. }) => return Ok(None),
        Err(error) => return Err(cages::client_error(error)),
    };
    let init = match connection.ask(&ironcage_control::Request::Describe) {
        Ok(ironcage_control::Reply::Description(description)) => description.init,
        _ => 0,
    };
    match connection.watch_network() {
        Ok(watch) => Ok(Some((watch, init))),
        Err(
            ClientError::NotRunning { .. } | ClientError::Gone { .. } | ClientError::Refused { .. },
        ) => Ok(None),
        Err(error) => Err(cages::client_error(error)),
    }
}

/// A connection event in JSON.
#[derive(Debug, Serialize)]
struct FlowEvent<'a> {
    time: u64,
    /// Best effort; no decision depends on it.
    process: Option<Process>,
    #[serde(flatten)]
    flow: &'a Flow,
}

fn show(flow: &Flow, init: u32, json: bool) -> Result<(), CliError> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let time = now.map_or(0, |now| now.as_micros() as u64);
    let process = match flow.step {
        FlowStep::Opened | FlowStep::Failed | FlowStep::Refused if flow.from != 0 => {
            process(init, flow.from)
        }
        _ => None,
    };
    if json {
        let shown = FlowEvent {
            time,
            process,
            flow,
        };
        let text = json::line(&shown).map_err(CliError::new)?;
        return print(|out| writeln!(out, "{text}"));
    }
    let text = step_in_words(flow, process.as_ref());
    print(|out| writeln!(out, "{}  {text}", utc(time)))
}

fn step_in_words(flow: &Flow, process: Option<&Process>) -> String {
    use std::fmt::Write as _;
    let traffic = &flow.traffic;
    let step = match flow.step {
        FlowStep::Refused => "denied",
        FlowStep::Failed => "failed",
        FlowStep::Opened => "opened",
        FlowStep::Request => "request",
        FlowStep::Closed => "closed",
    };
    let mut text = format!("{step:<7}  {}", destination(traffic));
    // Writing to a string cannot fail.
    if let Some(request) = &flow.request {
        let (method, path) = (
            Printable::new(&request.method),
            Printable::new(&request.path),
        );
        let _ = write!(text, ", {method} {path} -> {}", request.status);
    }
    if flow.step == FlowStep::Closed {
        let (sent, received) = (traffic.sent, traffic.received);
        let _ = write!(text, ", {sent} bytes out, {received} in");
    }
    if let Some(rule) = &traffic.rule {
        let _ = write!(text, ", rule {}", Printable::new(rule));
    }
    if let Some(reason) = &traffic.reason {
        let _ = write!(text, ": {reason}");
    }
    if let Some(process) = process {
        let name = Printable::new(&process.name);
        let _ = write!(text, " [{name} {}, best effort]", process.pid);
    }
    if flow.lost > 0 {
        let _ = write!(text, " ({} events before it were dropped)", flow.lost);
    }
    text
}

#[derive(Debug, Serialize)]
struct Process {
    /// On the host.
    pid: u32,
    /// Chosen by the process itself.
    name: String,
}

/// The process that holds the socket with this port inside the cage. A process that passes its
/// socket on, or exits early, is not found.
fn process(init: u32, port: u16) -> Option<Process> {
    let mut inode = None;
    for table in ["tcp", "tcp6"] {
        let text = std::fs::read_to_string(format!("/proc/{init}/net/{table}")).ok()?;
        inode = inode.or_else(|| {
            text.lines().skip(1).find_map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let local = words.get(1)?.rsplit(':').next()?;
                let same = u16::from_str_radix(local, 16).ok()? == port;
                // The proxy's end has the port as its remote one.
                same.then(|| words.get(9).copied().unwrap_or("0").to_owned())
                    .filter(|inode| inode != "0")
            })
        });
    }
    let wanted = format!("socket:[{}]", inode?);
    let namespace = std::fs::read_link(format!("/proc/{init}/ns/pid")).ok()?;
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let at = entry.path();
        if std::fs::read_link(at.join("ns/pid")).ok().as_ref() != Some(&namespace) {
            continue;
        }
        let mut files = std::fs::read_dir(at.join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        let holds = files.any(|file| {
            std::fs::read_link(file.path())
                .is_ok_and(|target| target.as_os_str() == wanted.as_str())
        });
        if holds {
            let name = std::fs::read_to_string(at.join("comm")).unwrap_or_default();
            let name = name.trim_end().to_owned();
            return Some(Process { pid, name });
        }
    }
    None
}

/// Waits for the cage to end, and shows what was only recorded.
fn the_rest(path: &Path, id: &CageId, shown: usize) -> CommandResult {
    let cages = cages::all()?;
    loop {
        let is_running = cages.is_running(id).map_err(cages::client_error)?;
        let records = audit_log::records(path, 0)?;
        if !is_running {
            let ended =
                |record: &&LogEntry| matches!(record.event.kind, EventKind::DoorEnded { .. });
            let rest = records.iter().skip(shown).filter(ended);
            print(|out| rest.clone().try_for_each(|record| line(out, record)))?;
            return Ok(0);
        }
        std::thread::sleep(PACE);
    }
}

fn line(out: &mut dyn Write, record: &LogEntry) -> io::Result<()> {
    let time = utc(record.event.time);
    match &record.event.kind {
        EventKind::Network(traffic) => writeln!(out, "{time}  {}", summary(traffic)),
        EventKind::NetworkRule {
            change,
            rule,
            closed,
        } => {
            let text = rule_change(*change, rule, *closed);
            writeln!(out, "{time}  {text}")
        }
        EventKind::DoorEnded { reason } => {
            writeln!(out, "{time}  the egress proxy ended: {reason}")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::{FlowRequest, NetworkVerdict, Protocol, Traffic};

    #[test]
    fn a_step_is_one_line_and_what_comes_from_the_cage_is_escaped() {
        let flow = Flow {
            number: 3,
            step: FlowStep::Request,
            from: 40000,
            lost: 2,
            request: Some(FlowRequest {
                method: "GET".into(),
                path: "/a\u{1b}[2J".into(),
                status: 200,
            }),
            traffic: Traffic {
                verdict: NetworkVerdict::Allowed,
                host: "a.com".into(),
                port: 80,
                protocol: Protocol::Http,
                address: Some("192.0.2.1".into()),
                rule: Some("a.com".into()),
                reason: None,
                request: None,
                status: None,
                connections: 1,
                sent: 1,
                received: 2,
            },
        };
        let process = Process {
            pid: 7,
            name: "cu\u{7}rl".into(),
        };
        let text = step_in_words(&flow, Some(&process));
        assert!(!text.contains(['\u{1b}', '\u{7}']), "{text}");
        assert!(
            text.contains("-> 200") && text.contains("2 events before it"),
            "{text}"
        );
    }
}
