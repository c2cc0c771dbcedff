//! One run: from a plan to an outcome.

use crate::RunError;
use crate::recorder::Recorder;
use crate::supervise::Supervision;
use crate::terminal;
use ironcage_backend::{Backend as _, StartError, StreamKind};
use ironcage_model::{CageId, Ending, EventKind, Outcome};
use ironcage_namespace::Namespace;
use ironcage_plan::Plan;
use ironcage_sys::rustix::rand::{GetRandomFlags, getrandom};
use std::time::Instant;

/// What is run.
#[derive(Debug)]
pub struct Job<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// A name for the record, if the user gave one.
    pub name: Option<String>,
    /// Whether the command gets a terminal of the cage's own.
    pub terminal: bool,
    /// Whether sequences that make the user's terminal act or answer are let through.
    pub raw_terminal: bool,
}
/// Runs a command in a cage, with the caller's standard streams, to its end.
///
/// Preconditions: the calling process has one thread.
pub fn run(job: &Job<'_>) -> Result<(CageId, Outcome), RunError> {
    let born = Instant::now();
    let mut random = [0_u8; 12];
    getrandom(&mut random, GetRandomFlags::empty()).map_err(|e| RunError::Id(e.into()))?;
    let id = CageId::from_entropy(random);
    let kind = if job.terminal {
        StreamKind::Terminal {
            size: terminal::size(),
        }
    } else {
        StreamKind::Pipes
    };
    let birth = match Namespace.start(job.plan, &id, kind) {
        Ok(birth) => birth,
        Err(error) => return Err(not_started(&mut Recorder::new(id)?, error, born)),
    };
    // Done while PID 1 builds the cage. It starts nothing before it is told to, which `attend`
    // does: the command does not run unless its start is on record.
    let mut recorder = match record_start(job, &id) {
        Ok(recorder) => recorder,
        Err(error) => {
            birth.abandon();
            return Err(error);
        }
    };
    let (cage, streams) = match birth.attend(job.plan) {
        Ok(born) => born,
        Err(error) => return Err(not_started(&mut recorder, error, born)),
    };
    let mut supervision = Supervision::new(job, cage, streams, recorder)?;
    let ending = supervision.watch()?;
    let outcome = supervision.close(job.plan, ending, born)?;
    Ok((id, outcome))
}

/// Opens the record and writes the start.
fn record_start(job: &Job<'_>, id: &CageId) -> Result<Recorder, RunError> {
    let mut recorder = Recorder::new(id.clone())?;
    recorder.write(start_event(job))?;
    Ok(recorder)
}

/// Records that the cage did not start, and why.
fn not_started(recorder: &mut Recorder, error: StartError, born: Instant) -> RunError {
    let reason = error.to_string();
    let written = recorder.write(exit(Ending::Failed { reason }, born));
    written.err().unwrap_or(RunError::Start(error))
}

fn start_event(job: &Job<'_>) -> EventKind {
    let plan = job.plan;
    EventKind::Start {
        name: job.name.clone(),
        command: plan
            .command
            .argv
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        workspace: plan.workspace.to_string_lossy().into_owned(),
        profile: plan.profile.clone(),
        plan: plan.digest(),
        layers: plan.layers.clone(),
        degraded: plan.degraded.iter().map(ToString::to_string).collect(),
    }
}

pub(crate) fn exit(ending: Ending, born: Instant) -> EventKind {
    EventKind::Exit {
        ending,
        milliseconds: born.elapsed().as_millis() as u64,
    }
}
