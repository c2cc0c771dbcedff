//! One run: from a plan to an outcome.

use crate::RunError;
use crate::audit_writer::{AuditWriter, in_short, microseconds_since_the_epoch};
use crate::backends::backend;
use crate::background::Background;
use crate::children::{ParentLink, SpawnChild};
use crate::control::{Control, ExitNotifier};
use crate::cores::Cores;
use crate::execs::Execs;
use crate::limits;
use crate::log::OutputLog;
use crate::network::{DenialLine, SupervisorFiles};
use crate::request_reader::RequestReader;
use crate::signing::KeyFilter;
use crate::streams::{join, join_log};
use crate::supervise::{Callbacks, Supervision, SupervisionSetup, failed};
use ironcage_backend::{StartError, StreamKind};
use ironcage_control::{
    Description, Examination, Listener, PermissionRequestDescription, RuntimeDir, State,
};
use ironcage_layers::ablation::without;
use ironcage_model::{
    CageId, Ending, EventKind, Grant, Layer, NetworkReason, Outcome, Taint, Usage,
};
use ironcage_plan::{Bindings, BoundPlan, ChangeBinding, Plan, StaticPart};
use ironcage_state::Archive;
use ironcage_sys::faults;
use ironcage_sys::rustix::rand::{GetRandomFlags, getrandom};
use ironcage_sys::steps::mark;
use ironcage_terminal as terminal;
use ironcage_terminal::chord::Chord;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is run.
pub struct Job<'a> {
    pub plan: &'a Plan,
    /// The name of its workspace's mode, as the policy says it.
    pub workspace_mode: &'static str,
    /// What the policy that it was made from gives, and whether there is more: it goes on record
    /// with the end.
    pub granted: &'a dyn Fn() -> (Vec<Grant>, bool),
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
    /// Where it is, if it was made for this run.
    pub new_change: Option<ChangeBinding>,
    /// Whether the input of a background cage is kept open for those who attach.
    pub keep_input: bool,
    /// Who makes the children that somebody in the cage may open.
    pub child_spawner: Option<&'a SpawnChild<'a>>,
    /// Who writes what is approved for good at the prompt to the user's policy.
    pub permanent: Option<&'a Permanent<'a>>,
    /// What it has of its parent, where it is a child.
    pub parent: Option<ParentLink>,
    /// How network denials are told while the cage runs; `None` where they are not.
    pub denial_line: Option<&'a DenialLine<'a>>,
    /// A short piece of work that nobody waits for, done while the command runs and nothing else is to
    /// be done. Returns whether there is more of it.
    pub idle_step: Option<&'a dyn Fn() -> bool>,
}

/// Writes what a permission request is about to the user's policy.
pub type Permanent<'a> =
    dyn Fn(&CageId, &PermissionRequestDescription) -> Result<(), NotPermanent> + 'a;

/// Why an approval holds for this run alone.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotPermanent(pub String);

/// A run that is over.
#[derive(Debug)]
pub struct FinishedRun {
    pub id: CageId,
    pub outcome: Outcome,
    /// The cage's ephemeral storage, where the plan keeps changes in it.
    pub storage: Option<OwnedFd>,
    /// Those who wait for the end, told when this is dropped: drop it last.
    pub exit_notifier: ExitNotifier,
}

/// Runs a command in a cage, with the caller's standard streams or in the background, to its end.
///
/// Preconditions: the calling process has one thread.
pub fn run(mut job: Job<'_>) -> Result<FinishedRun, RunError> {
    let finished = begin(&mut job);
    if let (Err(error), Some(parent)) = (&finished, &job.parent) {
        parent.refuse(error.reason());
    }
    finished
}

fn begin(job: &mut Job<'_>) -> Result<FinishedRun, RunError> {
    let born = Instant::now();
    let state = ironcage_audit::state_dir()?;
    let runtime = RuntimeDir::of_user(&state);
    // Before anything is started: our own namespaces may change later.
    let examination = Examination::of_this_process()
        .map_err(failed("tell which namespaces this process is in"))?;
    let mut random = [0_u8; 12];
    getrandom(&mut random, GetRandomFlags::empty()).map_err(|e| RunError::Id(e.into()))?;
    let id = CageId::from_entropy(random);
    let prepared = match ironcage_sys::faults::adopts() {
        true => Some(prepare_one(job.plan, &id)?),
        false => None,
    };
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
    // Held until the cage is gone.
    let hardening = job.plan.hardening.as_ref();
    let cores = hardening.map(|item| Cores::claim(&state, item.what.wanted));
    let cores = cores.transpose()?;
    let files = SupervisorFiles::make(job.plan, &runtime, &id)?;
    let plan = job.plan.bind(Bindings {
        cage: &id,
        processors: cores.as_ref().map_or(&[], |cores| &cores.processors),
        change: job.new_change.as_ref(),
        files: files.bindings,
    })?;
    let (sockets, request_reader) = (files.sockets, RequestReader::new(files.request_socket));
    let keys = KeyFilter::new(files.keys, &plan)?;
    let listening = crate::network::listen_for(&plan)?;
    let backend = backend(plan.isolation_level.what.isolation);
    let started = match (&job.parent, prepared) {
        (Some(parent), _) => backend.scope(&plan, &id, parent.sibling()),
        (None, Some(prepared)) => backend.adopt(prepared, &plan, kind),
        (None, None) => backend.start(&plan, &id, kind),
    };
    let mut birth = match started {
        Ok(birth) => birth,
        Err(error) => return Err(not_started(&mut AuditWriter::new(id)?, error, born)),
    };
    mark("PID 1 forked");
    // Done while PID 1 builds the cage, and after the helper's part, which PID 1 needs sooner:
    // there may be no more than two processors. PID 1 starts nothing before it is told to, which
    // `await_ready` does: the command does not run unless its start is on record.
    let helped = birth.await_helper();
    mark("network namespace there");
    let background = job.background.take();
    let baseline = match limits::baseline(&plan) {
        Ok(baseline) => baseline,
        Err(error) => {
            birth.abandon();
            return Err(error);
        }
    };
    let prepared = prepare(job, &plan, &id, (&state, &runtime), background.is_some());
    let PreparedRun {
        mut audit,
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
    if let Some(Err(reason)) = job.parent.as_mut().map(|parent| {
        let mode = job.workspace_mode;
        parent.announce(&id, description.command.clone(), mode, plan.children)
    }) {
        birth.abandon();
        let ending = Ending::Failed {
            reason: reason.clone(),
        };
        audit.write(exit(ending, born, None))?;
        return Err(RunError::NoChild(reason));
    }
    mark("start recorded, socket listens");
    let ready = match helped {
        Ok(()) => birth.await_ready(&plan),
        Err(error) => {
            birth.abandon();
            Err(error)
        }
    };
    let (cage, streams) = match ready {
        Ok(born) => born,
        Err(error) => return Err(not_started(&mut audit, error, born)),
    };
    mark("cage ready");
    if faults::lacks("speed") {
        // As on a busy host: the command is well under way before anybody watches it.
        std::thread::sleep(Duration::from_secs(1));
    }
    crate::network::hide(&sockets);
    request_reader.hide();
    keys.hide(&plan);
    if let Some(reason) = cage.per_port() {
        let error = reason.to_owned();
        let reason = NetworkReason::PortsOfRulesOnly { error }.into();
        audit.write(EventKind::DoorNarrowed { reason })?;
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
            let terms = plan.request_terms();
            // Keys are a person's only where they come from a terminal.
            let call = terms.filter(|_| terminal::is_interactive());
            let call = call.map(|terms| Chord::new(terms.key.byte()));
            join(streams, job.raw_terminal, call)?
        }
    };
    let mut supervision = Supervision::new(SupervisionSetup {
        plan: &plan,
        cage,
        baseline,
        joined,
        control: Control::new(listener, name, examination, description),
        runtime,
        background,
        audit,
        sockets,
        execs: Execs::of_cage(),
        request_reader,
        keys,
        scope: None,
        callbacks: Callbacks {
            child_spawner: job.child_spawner,
            permanent: job.permanent,
            denial_line: job.denial_line,
            idle_step: job.idle_step,
        },
        parent: job.parent.take(),
    })?;
    supervision.begin_history(Instant::now())?;
    supervision.publish_all(listening)?;
    mark("supervision set up");
    let ending = supervision.watch()?;
    mark("command over");
    // What others brought while nobody asked goes on to where it could write.
    supervision.tainted(Instant::now())?;
    if supervision.background.is_some() {
        // Its caller has been told why it did not start; nobody will look for its output.
        let _ = Archive::in_state(&state).remove(&id);
    }
    let usage = supervision.usage((job.granted)());
    let (outcome, exit_notifier) = supervision.close(ending, born, usage)?;
    drop(cores);
    Ok(FinishedRun {
        id,
        outcome,
        storage,
        exit_notifier,
    })
}

/// Prepares the cage that this run adopts, in a test that compares the two ways of a start.
fn prepare_one(plan: &Plan, id: &CageId) -> Result<ironcage_backend::PreparedCage, RunError> {
    let part = StaticPart::of(plan).map_err(StartError::Unfit)?;
    let backend = backend(plan.isolation_level.what.isolation);
    Ok(backend.prepare(&Arc::new(part), id.clone())?)
}

/// What needs no cage to be there yet.
struct PreparedRun {
    audit: AuditWriter,
    description: Description,
    listener: Listener,
    log: Option<OutputLog>,
}

fn prepare(
    job: &Job<'_>,
    plan: &BoundPlan<'_>,
    id: &CageId,
    (state, runtime): (&Path, &RuntimeDir),
    background: bool,
) -> Result<PreparedRun, RunError> {
    let mut audit = AuditWriter::new(id.clone())?;
    let event = start_event(job, plan);
    let description = describe(job, id, &event, background);
    audit.write(event)?;
    let log = match background {
        true => {
            let directory = Archive::in_state(state).make(id);
            let log = directory.and_then(|directory| OutputLog::create(&directory));
            Some(log.map_err(RunError::Log)?)
        }
        false => None,
    };
    Ok(PreparedRun {
        audit,
        description,
        listener: runtime.listen(id)?,
        log,
    })
}

/// Records that the cage did not start, and why.
fn not_started(audit: &mut AuditWriter, error: StartError, born: Instant) -> RunError {
    let reason = error.reason();
    let written = audit.write(exit(Ending::Failed { reason }, born, None));
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
        parent: job.parent.as_ref().map(|parent| parent.parent().clone()),
        children: Vec::new(),
        channels: Vec::new(),
        taint: Taint::NONE,
        plan,
        profile: job.plan.profile.clone(),
        started: microseconds_since_the_epoch(),
        supervisor: ironcage_sys::process::own_pid(),
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

fn start_event(job: &Job<'_>, plan: &BoundPlan<'_>) -> EventKind {
    let command = plan.command.argv.iter();
    let command = command.map(|word| word.to_string_lossy().into_owned());
    let command: Vec<String> = command.collect();
    EventKind::Start {
        name: job.name.clone(),
        command: match job.parent {
            // Its words are an agent's.
            Some(_) => in_short(command),
            None => command,
        },
        workspace: plan.workspace.to_string_lossy().into_owned(),
        profile: plan.profile.clone(),
        isolation: Some(plan.isolation_level.what.isolation),
        runtime: (plan.isolation_level.what.runtime.as_ref())
            .map(|runtime| runtime.path.to_string_lossy().into_owned()),
        plan: plan.digest(),
        layers: plan.layers.clone(),
        degraded: plan.degraded.iter().map(ToString::to_string).collect(),
        shared: plan.shared(),
        parent: job.parent.as_ref().map(|parent| parent.parent().clone()),
    }
}

pub(crate) fn exit(ending: Ending, born: Instant, usage: Option<Box<Usage>>) -> EventKind {
    EventKind::Exit {
        usage,
        ending,
        milliseconds: born.elapsed().as_millis() as u64,
    }
}
