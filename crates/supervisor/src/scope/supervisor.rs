//! The supervisor of one scope: a process of its own, forked from the cage's supervisor, which
//! makes the scope, opens its leases, executes the command and ends all of it.
//!
//! It may wait where the cage's supervisor may not. It dies with that one, and the scope with it.

use super::command_text::{all_shell_words, shell_words};
use super::deciding::{LeaseDecider, NeedToAsk, decide_all};
use super::judge::{JudgedCommand, LeaseJudge, telling_environment};
use super::leases::ScopeLease;
use super::link::{FromScope, ScopeLink, ScopeNeeds, ScopePermissionRequest, ScopeTaint};
use super::{approval, call, planning, shell};
use crate::RunError;
use crate::audit_writer::AuditWriter;
use crate::backends::backend;
use crate::control::Control;
use crate::execs::Execs;
use crate::leases::shortened;
use crate::limits::{self, counted_by_cgroup};
use crate::network::{self, SupervisorFiles};
use crate::request_reader::RequestReader;
use crate::signing::KeyFilter;
use crate::streams::JoinedStreams;
use crate::supervise::{Callbacks, Supervision, SupervisionSetup, failed};
use crate::untrusted_fds::{close_elsewhere, words_only};
use ironcage_backend::{MountHelper, Sibling};
use ironcage_control::{Channel, DeniedLease, Description, ExecRequest, Reply, RuntimeDir};
use ironcage_intent::Table;
use ironcage_model::{
    Ending, EventKind, IntentRecord, Lease, Reason, Resource, SupervisorReason, Taint, in_full,
};
use ironcage_plan::{Bindings, BoundPlan, ScopeOf};
use ironcage_sys::clone::exit_now;
use ironcage_sys::faults::lease_step as step;
use ironcage_sys::process::{close_all_but, close_together};
use ironcage_sys::rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use ironcage_sys::rustix::thread::set_name;
use libc::SIGKILL;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// By which the one client of a scope is known.
pub(crate) const CLIENT: u64 = 1;

/// What one command names of each sort that is put on record.
const MOST_RECORDED: usize = 8;

/// What the scope's supervisor is given.
pub(super) struct ScopeSetup<'a> {
    pub(super) plan: &'a BoundPlan<'a>,
    pub(super) description: Description,
    pub(super) supervisor: Pid,
    pub(super) link: Channel,
    pub(super) client: Channel,
    pub(super) sibling: Sibling,
    pub(super) request: ExecRequest,
    pub(super) descriptors: Vec<OwnedFd>,
    pub(super) number: u32,
    pub(super) first_lease: u32,
    /// Whether nothing is given at once in this cage any more.
    pub(super) distrusted: bool,
    /// What it may have come into contact with.
    pub(super) taint: Taint,
}

/// What makes a supervision that of a scope.
#[derive(Debug)]
pub(crate) struct ScopeState {
    /// To the cage's supervisor.
    pub(super) link: Rc<ScopeLink>,
    /// How the command ended, once it has.
    pub(super) ended: Option<Ending>,
    /// When the first of its leases runs out, and the scope with it.
    pub(super) deadline: Option<Instant>,
    /// What the scope has of its cage.
    pub(super) sibling: Sibling,
    pub(super) helper: Option<MountHelper>,
    pub(super) leases: Vec<ScopeLease>,
}

impl ScopeState {
    /// To the cage's supervisor.
    pub(crate) fn link(&self) -> &ScopeLink {
        &self.link
    }

    /// Its leases.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter().map(ScopeLease::lease)
    }

    /// When the first of its leases runs out, and the scope with it.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Its command is over. That is told when everything else in the scope has ended, and its
    /// leases are proved to be.
    pub(crate) fn command_ended(&mut self, ending: Ending) {
        self.ended = Some(ending);
    }

    /// Whether the scope is to end now.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        let late = self.deadline.is_some_and(|deadline| now >= deadline);
        self.ended.is_some() || self.link.is_ended() || late
    }
}

/// Runs a scope to its end.
pub(super) fn run(given: ScopeSetup<'_>) -> ! {
    let tethered = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    if !tethered || getppid() != Some(given.supervisor) {
        exit_now(1);
    }
    let mut kept = vec![given.link.as_fd(), given.client.as_fd()];
    kept.extend(given.sibling.descriptors());
    kept.extend(given.descriptors.iter().map(AsFd::as_fd));
    // What the cage's supervisor holds is not ours: an end of a stream held here would never end.
    if close_all_but(&kept).is_err() {
        exit_now(1);
    }
    drop(kept);
    let _ = set_name(c"ironcage-scope");
    step();
    exit_now(i32::from(supervise(given).is_err()))
}

fn supervise(given: ScopeSetup<'_>) -> Result<(), RunError> {
    let ScopeSetup {
        plan,
        description,
        link,
        mut client,
        mut sibling,
        mut request,
        mut descriptors,
        number,
        first_lease,
        distrusted,
        taint,
        ..
    } = given;
    let link = Rc::new(ScopeLink::new(link));
    let mut audit = AuditWriter::of_scope(link.clone());
    let cage_plan = plan;
    let mut asked = request.scope.take().unwrap_or_default();
    let mut plan = plan.scoped(match asked.shell {
        Some(_) => ScopeOf::Shell,
        None => ScopeOf::Operator,
    });
    let mut refused = Vec::new();
    let mut streams = None;
    let mut command = None;
    if let Some(text) = asked.call.take() {
        let wait = asked.wait;
        let planned = match call::read(&plan, &text) {
            Ok(planned) => planned,
            Err(not_planned) => {
                if let Some(denied) = not_planned.denied {
                    audit.write(EventKind::ToolCall(*denied))?;
                }
                refuse(&client, *not_planned.reason);
                return Ok(());
            }
        };
        if let Err(reason) = planned.furnish(&mut plan, &text) {
            refuse(&client, reason);
            return Ok(());
        }
        // What a program of ours carries out is told by the call alone.
        command = planned.tool.then_some(text);
        request.argv = planned.argv;
        request.cwd = planned.cwd;
        (asked, descriptors, refused) = (planned.asked, planned.descriptors, planned.refused);
        asked.wait = wait;
    }
    let shell = asked.shell.take();
    if shell.is_some() {
        match shell::hear(&client) {
            Ok(told) => (request, streams) = (told.request, Some(told.streams)),
            Err(reason) => {
                refuse(&client, reason);
                return Ok(());
            }
        }
        // Nothing is open yet; from here on no descriptor of the agent's comes to this process.
        client = words_only(client).map_err(failed("put somebody between us and the shell"))?;
        // A shell says all of them.
        plan.command.env.clear();
    }
    let by_tool = command.is_some();
    let command = command.unwrap_or_else(|| shell_words(&request.argv));
    let have_asked = |needs: &[NeedToAsk<'_>]| {
        let request = |(ticket, need): (usize, &NeedToAsk<'_>)| ScopePermissionRequest {
            ticket: ticket as u32,
            resource: need.not_given.resource.clone(),
            identity: (need.seen.as_ref()).map(|seen| approval::numbers(seen.identity)),
            grant: need.grant.clone(),
            origin: asked.origin,
            because: need.not_given.reason.clone(),
        };
        let needs = ScopeNeeds {
            command: command.clone(),
            requests: needs.iter().enumerate().map(request).collect(),
        };
        approval::ask(&link, &client, needs, Duration::from_secs(asked.wait))
    };
    let leases = plan.leases.as_ref();
    let judge_words = leases.map_or(&[][..], |leases| &leases.judge);
    let judged = || {
        let own = &cage_plan.command.env;
        let table = Table::shipped().ok();
        let told = table.map(|table| telling_environment(&table, &request.env, own));
        JudgedCommand {
            text: match by_tool {
                true => command.clone(),
                false => all_shell_words(&request.argv),
            },
            environment: told.unwrap_or_default(),
        }
    };
    let deciding = LeaseDecider {
        plan: &plan,
        origin: asked.origin,
        exec: number,
        first: first_lease,
        distrusted,
        taint,
        judge: LeaseJudge::of(judge_words, asked.origin, judged),
        // A shell's command does without what nobody could give it.
        all_or_nothing: streams.is_none(),
    };
    let (mut leases, not_given) = decide_all(&deciding, &asked.leases, descriptors, have_asked)?;
    refused.extend(not_given);
    if let Some(shell) = shell {
        let wanted = leases.iter().map(|lease| lease.lease().resource.clone());
        let lacking = refused.iter().chain(&shell.refused);
        audit.write(EventKind::Intent(IntentRecord {
            tool: shell.shell,
            call: None,
            needs: wanted
                .chain(lacking.map(|one| one.resource.clone()))
                .take(MOST_RECORDED)
                .map(shortened)
                .collect(),
            open: shell.open,
            shell: true,
        }))?;
        refused.extend(shell.refused);
    }
    // An agent names as many as it likes, in as many commands: the first line counts the rest.
    let mut unrecorded = refused.len().saturating_sub(MOST_RECORDED) as u64;
    for one in refused.iter().take(MOST_RECORDED) {
        audit.write(EventKind::LeaseRefused {
            resource: shortened(one.resource.clone()),
            origin: asked.origin,
            reason: one.reason.clone(),
            unrecorded: std::mem::take(&mut unrecorded),
        })?;
    }
    // A shell's command does without what nobody could give it, as every command in a cage does.
    let fatal = |one: &DeniedLease| streams.is_none() || one.ask;
    if refused.iter().any(fatal) {
        let _ = client.send(&Reply::NotGiven(refused), &[]);
        return Ok(());
    }
    if streams.is_some() {
        let _ = client.send(&Reply::Lacks(refused), &[]);
        if leases.is_empty() {
            let _ = client.send(&Reply::InCage, &[]);
            return Ok(());
        }
    }
    if let Err(error) = link.ask(&FromScope::Make(Box::new(ScopeTaint::of(&leases)))) {
        let reason = error.downcast::<Reason>();
        let failed = |error: io::Error| SupervisorReason::ScopeFailed {
            error: error.to_string(),
        };
        refuse(&client, reason.unwrap_or_else(|error| failed(error).into()));
        return Ok(());
    }
    let runtime = RuntimeDir::of_user(&ironcage_audit::state_dir()?);
    if let Err(reason) = planning::plan_for(&mut plan, &leases, cage_plan) {
        refuse(&client, reason);
        return Ok(());
    }
    let files = match SupervisorFiles::make(&plan, &runtime, &description.id) {
        Ok(files) => files,
        Err(error) => {
            let error = in_full(&error);
            refuse(&client, SupervisorReason::ScopeFailed { error });
            return Ok(());
        }
    };
    let sockets = files.sockets;
    let plan = plan.bind(Bindings {
        cage: &description.id,
        processors: &[],
        change: None,
        files: files.bindings,
    })?;
    // What the cage and its other scopes have stays in the cage's own group.
    let is_limit = |lease: &ScopeLease| matches!(lease.lease().resource, Resource::Limit { .. });
    sibling.own_limits = leases.iter().any(is_limit);
    let baseline = limits::baseline(&plan)?;
    for lease in &mut leases {
        lease.record(&mut audit)?;
    }
    let backend = backend(plan.isolation_level.what.isolation);
    let birth = backend.scope(&plan, &description.id, &sibling);
    step();
    let mut cage = match birth.and_then(|birth| birth.await_ready(&plan)) {
        // Its command comes later, and brings its own streams.
        Ok((cage, _)) => cage,
        Err(error) => {
            for lease in &mut leases {
                lease.abandon(&mut audit)?;
            }
            let error = in_full(&error);
            refuse(&client, SupervisorReason::ScopeFailed { error });
            return Ok(());
        }
    };
    if plan.shares_storage() {
        let beside = cage.stand_beside(&sibling);
        beside.map_err(failed("keep a handle of the cage's storage"))?;
    }
    step();
    network::hide(&sockets);
    let mut supervision = Supervision::new(SupervisionSetup {
        plan: &plan,
        cage,
        baseline,
        joined: JoinedStreams::none(),
        control: Control::of_scope(client, description)?,
        runtime,
        background: None,
        audit,
        sockets,
        execs: Execs::of_scope(number, plan.digest()),
        request_reader: RequestReader::default(),
        keys: KeyFilter::default(),
        scope: Some(ScopeState {
            link,
            ended: None,
            deadline: None,
            sibling,
            helper: None,
            leases: Vec::new(),
        }),
        callbacks: Callbacks::default(),
        parent: None,
    })?;
    supervision.run_scope(request, streams, leases)?;
    supervision.close_scope()
}

/// Says why not. Who does not take it learns by the end of the connection.
fn refuse(client: &Channel, reason: impl Into<Reason>) {
    let reason = reason.into();
    let _ = client.send(&Reply::Refused { reason }, &[]);
}

impl Supervision<'_> {
    fn run_scope(
        &mut self,
        request: ExecRequest,
        streams: Option<[OwnedFd; 3]>,
        leases: Vec<ScopeLease>,
    ) -> Result<(), RunError> {
        if let Some(reason) = self.open_scope_leases(leases)? {
            self.control.refuse(CLIENT, reason);
            return Ok(());
        }
        step();
        let held = streams
            .as_ref()
            .map(|streams| streams.each_ref().map(OwnedFd::try_clone));
        let held = held.into_iter().flatten().collect::<io::Result<Vec<_>>>();
        let held = held.map_err(failed("hold the streams"))?;
        let executed = self.exec(CLIENT, request, streams, Instant::now());
        close_elsewhere(held);
        executed?;
        if self.execs.count() == 0 {
            // Refused, and told so.
            return Ok(());
        }
        step();
        self.watch().map(drop)
    }

    /// Ends everything in the scope, then its leases, and tells how it was.
    fn close_scope(mut self) -> Result<(), RunError> {
        step();
        // Every process of it at once.
        self.cage.kill();
        step();
        for denial in self.denials.remainder() {
            self.audit.write(EventKind::Denied(denial))?;
        }
        if let Some(hit) = self.limits.hit().cloned() {
            self.audit.write(EventKind::Limit(hit))?;
        }
        // Of a group of its own; the cage's is looked at when the cage ends.
        for hit in counted_by_cgroup(&self.cage) {
            self.audit.write(EventKind::Limit(hit))?;
        }
        // First: what a proxy still carries is not revoked.
        self.close_proxy()?;
        self.end_scope_leases()?;
        let ended = self.scope.as_ref().and_then(|side| side.ended.clone());
        let ending = match (ended, self.limits.hit()) {
            (Some(ending), _) => ending,
            (None, Some(hit)) => Ending::Limit { hit: hit.clone() },
            (None, None) => Ending::Signalled { signal: SIGKILL },
        };
        self.finish_execs(&ending)?;
        step();
        // Here at the latest all of it is gone.
        let mounts = self.cage.bury()?;
        close_together(mounts).map_err(failed("close descriptors"))
    }
}
