//! One run: from a plan to an outcome.

use crate::RunError;
use crate::archive::Archive;
use crate::backends::backend;
use crate::background::Background;
use crate::control::{Control, Farewell};
use crate::cores::Cores;
use crate::family::{Kin, Maker};
use crate::log::OutputLog;
use crate::recorder::{Recorder, in_short, microseconds_since_the_epoch};
use crate::streams::{join, join_log};
use crate::supervise::{Beginning, Supervision, failed};
use crate::terminal;
use crate::terminal::chord::Chord;
use ironcage_backend::{StartError, StreamKind};
use ironcage_control::{Description, Examination, Listener, RuntimeDir, State};
use ironcage_layers::weakened::{weaken, without};
use ironcage_model::{CageId, Ending, EventKind, Layer, Outcome, Taint, Usage, in_full};
use ironcage_plan::Plan;
use ironcage_policy::{Policy, granted};
use ironcage_sys::rustix::rand::{GetRandomFlags, getrandom};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

/// What is run.
pub struct Job<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The policy that it was made from: what it gives goes on record with the end.
    pub policy: &'a Policy,
    /// A name for the record, if the user gave one.
    pub name: Option<String>,
    /// Whether the command gets a terminal of the cage's own.
    pub terminal: bool,
    /// Whether sequences that make the user's terminal act or answer are let through.
    pub raw_terminal: bool,
    /// Who waits for the cage to run, where it does so in the background.
    pub background: Option<Background>,
    /// The pending change that the cage works on, if there is one.
    pub change: Option<String>,
    /// Whether the input of a background cage is kept open for those who attach.
    pub keep_input: bool,
    /// Who makes the children that somebody in the cage may open.
    pub children: Option<&'a Maker<'a>>,
    /// What it has of its parent, where it is a child.
    pub kin: Option<Kin>,
}

/// A run that is over.
#[derive(Debug)]
pub struct Finished {
    /// The cage.
    pub id: CageId,
    /// How it was.
    pub outcome: Outcome,
    /// The cage's ephemeral storage, where the plan keeps changes in it.
    pub storage: Option<OwnedFd>,
    /// Those who wait for the end, told when this is dropped: drop it last.
    pub farewell: Farewell,
}

/// Runs a command in a cage, with the caller's standard streams or in the background, to its end.
///
/// Preconditions: the calling process has one thread.
pub fn run(mut job: Job<'_>) -> Result<Finished, RunError> {
    let finished = begin(&mut job);
    if let (Err(error), Some(kin)) = (&finished, &job.kin) {
        kin.refuse(in_full(error));
    }
    finished
}

fn begin(job: &mut Job<'_>) -> Result<Finished, RunError> {
    let born = Instant::now();
    let state = ironcage_audit::state_dir()?;
    let runtime = RuntimeDir::of_user(&state);
    // Before anything is started: our own namespaces may change later.
    let examination = Examination::of_this_process()
        .map_err(failed("tell which namespaces this process is in"))?;
    let mut random = [0_u8; 12];
    getrandom(&mut random, GetRandomFlags::empty()).map_err(|e| RunError::Id(e.into()))?;
    let id = CageId::from_entropy(random);
    let name = match &job.name {
        Some(name) => Some(runtime.claim(name, &id)?),
        None => None,
    };
    let kind = if job.terminal && !without(Layer::Session) {
        StreamKind::Terminal {
            size: terminal::size(),
        }
    } else {
        StreamKind::Pipes
    };
    let mut plan = weaken(job.plan.placed(&id));
    // Held until the cage is gone.
    let mut cores = None;
    if let Some(wanted) = plan.hardening.as_ref().map(|item| item.what.wanted) {
        let claimed = Cores::claim(&state, wanted)?;
        if let Some(hardening) = &mut plan.to_mut().hardening {
            hardening.what.processors.clone_from(&claimed.processors);
        }
        cores = Some(claimed);
    }
    let sockets = crate::sockets::stand_in(&mut plan, &runtime, &id)?;
    let asking = crate::asking::furnish(&mut plan, (&runtime, &id), sockets.len())?;
    let listening = crate::publish::listen_for(&plan)?;
    let backend = backend(plan.rung.what.isolation);
    let started = match &job.kin {
        Some(kin) => backend.scope(&plan, &id, kin.sibling()),
        None => backend.start(&plan, &id, kind),
    };
    let mut birth = match started {
        Ok(birth) => birth,
        Err(error) => return Err(not_started(&mut Recorder::new(id)?, error, born)),
    };
    // Done while PID 1 builds the cage, and after the helper's part, which PID 1 needs sooner:
    // there may be no more than two processors. PID 1 starts nothing before it is told to, which
    // `attend` does: the command does not run unless its start is on record.
    let helped = birth.await_helper();
    let background = job.background.take();
    let prepared = prepare(job, &id, &state, &runtime, background.is_some());
    let Prepared {
        mut recorder,
        mut description,
        listener,
        log,
    } = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            birth.abandon();
            return Err(error);
        }
    };
    if let Some(Err(reason)) = job.kin.as_mut().map(|kin| {
        let mode = job.policy.workspace_mode.value.name();
        kin.announce(&id, description.command.clone(), mode, plan.children)
    }) {
        birth.abandon();
        let ending = Ending::Failed {
            reason: reason.clone(),
        };
        recorder.write(exit(ending, born, None))?;
        return Err(RunError::NoChild(reason));
    }
    let attended = match helped {
        Ok(()) => birth.attend(&plan),
        Err(error) => {
            birth.abandon();
            Err(error)
        }
    };
    let (cage, streams) = match attended {
        Ok(born) => born,
        Err(error) => return Err(not_started(&mut recorder, error, born)),
    };
    crate::sockets::hide(&sockets);
    asking.hide();
    if let Some(reason) = cage.per_port() {
        let reason = reason.to_owned();
        recorder.write(EventKind::DoorNarrowed { reason })?;
    }
    let storage = match plan.in_memory().next().and(cage.storage()) {
        Some(storage) => {
            let kept = storage.try_clone_to_owned();
            Some(kept.map_err(failed("keep a handle of the cage's storage"))?)
        }
        None => None,
    };
    description.init = cage.pid().as_raw_nonzero().get().unsigned_abs();
    let joined = match log {
        Some(log) => join_log(streams, log, job.keep_input)?,
        None => {
            let leases = plan.leases.as_ref();
            // Keys are a person's only where they come from a terminal.
            let call = leases.filter(|_| terminal::is_interactive());
            let call = call.map(|leases| Chord::new(leases.questions.key.byte()));
            join(streams, job.raw_terminal, call)?
        }
    };
    let mut supervision = Supervision::new(Beginning {
        plan: &plan,
        cage,
        joined,
        control: Control::new(listener, name, examination, description),
        runtime,
        background,
        recorder,
        sockets,
        asking,
        scope: None,
        maker: job.children,
        kin: job.kin.take(),
    })?;
    supervision.begin_history(Instant::now())?;
    supervision.publish_all(listening)?;
    let ending = supervision.watch()?;
    // What others brought while nobody asked goes on to where it could write.
    supervision.tainted(Instant::now())?;
    if supervision.background.is_some() {
        // Its caller has been told why it did not start; nobody will look for its output.
        let _ = Archive::in_state(&state).remove(&id);
    }
    let usage = supervision.usage(granted(job.policy));
    let (outcome, farewell) = supervision.close(ending, born, usage)?;
    drop(cores);
    Ok(Finished {
        id,
        outcome,
        storage,
        farewell,
    })
}

/// What needs no cage to be there yet.
struct Prepared {
    recorder: Recorder,
    description: Description,
    listener: Listener,
    log: Option<OutputLog>,
}

fn prepare(
    job: &Job<'_>,
    id: &CageId,
    state: &Path,
    runtime: &RuntimeDir,
    background: bool,
) -> Result<Prepared, RunError> {
    let mut recorder = Recorder::new(id.clone())?;
    let event = start_event(job);
    let description = describe(job, id, &event, background);
    recorder.write(event)?;
    let log = match background {
        true => {
            let directory = Archive::in_state(state).make(id);
            let log = directory.and_then(|directory| OutputLog::create(&directory));
            Some(log.map_err(RunError::Log)?)
        }
        false => None,
    };
    Ok(Prepared {
        recorder,
        description,
        listener: runtime.listen(id)?,
        log,
    })
}

/// Records that the cage did not start, and why.
fn not_started(recorder: &mut Recorder, error: StartError, born: Instant) -> RunError {
    let reason = error.to_string();
    let written = recorder.write(exit(Ending::Failed { reason }, born, None));
    written.err().unwrap_or(RunError::Start(error))
}

fn describe(job: &Job<'_>, id: &CageId, event: &EventKind, background: bool) -> Description {
    let (command, workspace, plan) = match event {
        EventKind::Start {
            command,
            workspace,
            plan,
            ..
        } => (command.clone(), workspace.clone(), plan.clone()),
        _ => Default::default(),
    };
    Description {
        id: id.clone(),
        name: job.name.clone(),
        command,
        workspace,
        change: job.change.clone(),
        parent: job.kin.as_ref().map(|kin| kin.parent.clone()),
        children: Vec::new(),
        channels: Vec::new(),
        taint: Taint::NONE,
        plan,
        profile: job.plan.profile.clone(),
        started: microseconds_since_the_epoch(),
        supervisor: std::process::id(),
        // Not there yet.
        init: 0,
        background,
        sticky: job.plan.sticky,
        terminal: job.terminal,
        state: State::Running,
        execs: Vec::new(),
        layers: job.plan.layers.clone(),
    }
}

fn start_event(job: &Job<'_>) -> EventKind {
    let plan = job.plan;
    let command = plan.command.argv.iter();
    let command = command.map(|word| word.to_string_lossy().into_owned());
    let command: Vec<String> = command.collect();
    EventKind::Start {
        name: job.name.clone(),
        command: match job.kin {
            // Its words are an agent's.
            Some(_) => in_short(command),
            None => command,
        },
        workspace: plan.workspace.to_string_lossy().into_owned(),
        profile: plan.profile.clone(),
        isolation: Some(plan.rung.what.isolation),
        runtime: (plan.rung.what.runtime.as_ref())
            .map(|runtime| runtime.path.to_string_lossy().into_owned()),
        plan: plan.digest(),
        layers: plan.layers.clone(),
        degraded: plan.degraded.iter().map(ToString::to_string).collect(),
        shared: plan.shared(),
        parent: job.kin.as_ref().map(|kin| kin.parent.clone()),
    }
}

pub(crate) fn exit(ending: Ending, born: Instant, usage: Option<Box<Usage>>) -> EventKind {
    EventKind::Exit {
        usage,
        ending,
        milliseconds: born.elapsed().as_millis() as u64,
    }
}
