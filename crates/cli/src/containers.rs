//! Containers that engines run with `ironcage-oci-runtime`. That program is asked about them: it
//! keeps their state, and no supervisor lives beside them.

use crate::cages::client_error;
use crate::error::CliError;
use ironcage_audit::Container;
use ironcage_client::Cages;
use ironcage_model::{CageId, Printable};
use ironcage_programs::Program;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Deserialize;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a killed container may take to be gone.
const PATIENCE: Duration = Duration::from_secs(10);
/// By which engines pass on what an image wants to be stopped with.
const STOP_SIGNAL: &str = "org.opencontainers.image.stopSignal";
/// How much of an ID of 64 digits engines show.
const SHOWN: usize = 12;
const HEX_ID: usize = 64;

/// The state of a container, as its runtime reports it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct State {
    id: String,
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) pid: i32,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

impl State {
    pub(crate) fn is_over(&self) -> bool {
        self.status == "stopped"
    }
}

/// Every container of this user, with its state.
pub(crate) fn all(cages: &Cages) -> Result<Vec<(Container, State)>, CliError> {
    let containers = cages.containers().map_err(client_error)?;
    let mut roots: Vec<_> = containers.iter().map(|found| found.root.clone()).collect();
    roots.sort();
    roots.dedup();
    let mut found = Vec::new();
    for root in roots {
        let text = runtime(&root, &["list", "--format", "json"])?;
        let states: Option<Vec<State>> = serde_json::from_str(&text).map_err(CliError::new)?;
        let states = states.unwrap_or_default();
        for container in containers.iter().filter(|container| container.root == root) {
            // One that is removed meanwhile is not there.
            let state = states.iter().find(|state| state.id == container.id);
            found.extend(state.map(|state| (container.clone(), state.clone())));
        }
    }
    Ok(found)
}

/// The ID of a container as its engine shows it.
pub(crate) fn short(id: &str) -> &str {
    let is_hex = id.len() == HEX_ID && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hex { &id[..SHOWN] } else { id }
}

/// Stops a container: its stop signal, and SIGKILL after the grace period.
///
/// Its engine sees that it ended, cleans it up, and may start it again.
pub(crate) fn stop(cages: &Cages, cage: &CageId, grace: Duration) -> Result<bool, CliError> {
    let Some(container) = cages.container(cage).map_err(client_error)? else {
        return Ok(false);
    };
    let state = state(&container)?;
    if state.is_over() {
        return Err(CliError::new(format!(
            "cannot stop container {}: it has ended",
            Printable::new(&container.id)
        ))
        .hint("its engine removes it"));
    }
    let process = opened(&container, &state)?;
    let signal = state.annotations.get(STOP_SIGNAL);
    let signal = signal.map_or("TERM", String::as_str);
    runtime(&container.root, &["kill", &container.id, signal])?;
    let ended = |patience| has_ended(process.as_ref(), patience);
    if !ended(grace)? {
        // One that ended just now is what was asked for.
        let killed = runtime(&container.root, &["kill", &container.id, "KILL"]);
        if !ended(PATIENCE)? {
            killed?;
            return Err(CliError::new(format!(
                "cannot stop container {}: its first process does not end",
                Printable::new(&container.id)
            )));
        }
    }
    Ok(true)
}

fn state(container: &Container) -> Result<State, CliError> {
    let text = runtime(&container.root, &["state", &container.id])?;
    serde_json::from_str(&text).map_err(CliError::new)
}

/// Its first process, which is the container's if that still has it afterwards.
fn opened(container: &Container, state: &State) -> Result<Option<OwnedFd>, CliError> {
    let pid = Pid::from_raw(state.pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    match pid {
        Some(Ok(process)) if self::state(container)?.pid == state.pid => Ok(Some(process)),
        Some(Err(error)) if error != Errno::SRCH => Err(CliError::new(format!(
            "cannot open the first process of container {}: {error}",
            Printable::new(&container.id)
        ))),
        _ => Ok(None),
    }
}

fn has_ended(process: Option<&OwnedFd>, patience: Duration) -> Result<bool, CliError> {
    let Some(process) = process else {
        return Ok(true);
    };
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(CliError::new)?;
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(CliError::new(format!("cannot wait: {error}"))),
        }
    }
}

/// What `ironcage-oci-runtime` prints.
fn runtime(root: &std::path::Path, args: &[&str]) -> Result<String, CliError> {
    let program = Program::OciRuntime
        .find()
        .map_err(|error| CliError::from_error(&error).hint(error.hint()))?;
    let output = Command::new(&program)
        .arg("--root")
        .arg(root)
        .args(args)
        .output()
        .map_err(|error| CliError::new(format!("cannot execute {}: {error}", program.display())))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().next().unwrap_or("it gave no reason");
    let first = first
        .strip_prefix("ironcage-oci-runtime: ")
        .unwrap_or(first);
    Err(CliError::new(Printable::new(first).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_shown_as_engines_show_it() {
        assert_eq!(short(&"ab".repeat(32)), "abababababab");
        assert_eq!(short("web"), "web");
        assert_eq!(short(&"zz".repeat(32)).len(), 64);
    }
}
