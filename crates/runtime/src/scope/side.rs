//! The supervisor of one scope: a process of its own, forked from the cage's supervisor, which
//! makes the scope, opens its leases, executes the command and ends all of it.
//!
//! It may wait where the cage's supervisor may not. It dies with that one, and the scope with it.

use super::leases::{self, Deciding, Opened, Wish};
use super::link::{Asks, Brings, Link, Report};
use super::{asking, call, shell};
use crate::RunError;
use crate::asking::Asking;
use crate::backends::backend;
use crate::control::Control;
use crate::leases::Seen;
use crate::limits::counted_by_cgroup;
use crate::output::Output;
use crate::recorder::Recorder;
use crate::sockets;
use crate::strangers::{let_go, words_only};
use crate::streams::Joined;
use crate::supervise::{Beginning, SIGKILL, Supervision, failed};
use ironcage_backend::{Keeper, Sibling};
use ironcage_control::{
    Channel, Description, ExecRequest, GrantRequest, NotGiven, Reply, RuntimeDir,
};
use ironcage_model::{Ending, EventKind, IntentRecord, Resource, Taint, in_full};
use ironcage_plan::{Plan, ScopeOf};
use ironcage_sys::clone::exit_now;
use ironcage_sys::faults::lease_step as step;
use ironcage_sys::process::close_all_but;
use ironcage_sys::rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use ironcage_sys::rustix::thread::set_name;
use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// By which the one client of a scope is known.
pub(crate) const CLIENT: u64 = 1;

/// What the scope's supervisor is given.
pub(super) struct Given<'a> {
    pub(super) plan: &'a Plan,
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
pub(crate) struct Side {
    /// To the cage's supervisor.
    pub(crate) link: Rc<Link>,
    /// How the command ended, once it has.
    pub(crate) ended: Option<Ending>,
    /// When the first of its leases runs out, and the scope with it.
    pub(crate) deadline: Option<Instant>,
    /// What the scope has of its cage.
    pub(super) sibling: Sibling,
    pub(super) keeper: Option<Keeper>,
    pub(super) open: Vec<Opened>,
}

/// Runs a scope to its end.
pub(super) fn run(given: Given<'_>) -> ! {
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

fn supervise(given: Given<'_>) -> Result<(), RunError> {
    let Given {
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
    let link = Rc::new(Link::new(link));
    let mut recorder = Recorder::of_scope(link.clone());
    let cage_plan = plan;
    let mut asked = request.scope.take().unwrap_or_default();
    let mut plan = plan.scoped(match asked.shell {
        Some(_) => ScopeOf::Shell,
        None => ScopeOf::Operator,
    });
    crate::asking::without(&mut plan);
    let mut refused = Vec::new();
    let mut streams = None;
    if let Some(text) = asked.call.take() {
        let wait = asked.wait;
        let planned = match call::read(&plan, &text) {
            Ok(planned) => planned,
            Err(reason) => {
                refuse(&client, reason);
                return Ok(());
            }
        };
        if let Err(reason) = planned.furnish(&mut plan, &text) {
            refuse(&client, reason);
            return Ok(());
        }
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
    let mut ticket = 0;
    let have_asked = |not_given: &NotGiven, grant: &GrantRequest, seen: Option<&Seen>| {
        ticket += 1;
        let asks = Asks {
            ticket,
            resource: not_given.resource.clone(),
            identity: seen.map(|seen| asking::numbers(seen.identity)),
            grant: grant.clone(),
            origin: asked.origin,
            because: not_given.reason.clone(),
        };
        asking::ask(&link, &client, asks, Duration::from_secs(asked.wait))
    };
    let deciding = Deciding {
        plan: &plan,
        origin: asked.origin,
        exec: number,
        first: first_lease,
        distrusted,
        taint,
    };
    let (wishes, not_given) =
        leases::decide_all(&deciding, &asked.leases, descriptors, have_asked)?;
    refused.extend(not_given);
    if let Some(shell) = shell {
        let wanted = wishes.iter().map(|wish| wish.lease.resource.clone());
        let lacking = refused.iter().chain(&shell.refused);
        recorder.write(EventKind::Intent(IntentRecord {
            tool: shell.shell,
            call: None,
            needs: wanted
                .chain(lacking.map(|one| one.resource.clone()))
                .collect(),
            open: shell.open,
            shell: true,
        }))?;
        refused.extend(shell.refused);
    }
    for one in &refused {
        recorder.write(EventKind::LeaseRefused {
            resource: one.resource.clone(),
            origin: asked.origin,
            reason: one.reason.clone(),
            unrecorded: 0,
        })?;
    }
    // A shell's command does without what nobody could give it, as every command in a cage does.
    let fatal = |one: &NotGiven| streams.is_none() || one.ask;
    if refused.iter().any(fatal) {
        let _ = client.send(&Reply::NotGiven(refused), &[]);
        return Ok(());
    }
    if streams.is_some() {
        let _ = client.send(&Reply::Lacks(refused), &[]);
        if wishes.is_empty() {
            let _ = client.send(&Reply::InCage, &[]);
            return Ok(());
        }
    }
    if let Err(error) = link.ask(&Report::Make(Box::new(Brings::of(&wishes)))) {
        refuse(&client, error.to_string());
        return Ok(());
    }
    let runtime = RuntimeDir::of_user(&ironcage_audit::state_dir()?);
    let sockets = leases::plan_for(&mut plan, &wishes, cage_plan).and_then(|()| {
        let mut view = Cow::Borrowed(&plan);
        let made = sockets::stand_in(&mut view, &runtime, &description.id);
        let made = made.map_err(|error| in_full(&error))?;
        Ok((made, view.into_owned()))
    });
    let sockets = match sockets {
        Ok((sockets, view)) => {
            plan = view;
            sockets
        }
        Err(reason) => {
            refuse(&client, reason);
            return Ok(());
        }
    };
    // What the cage and its other scopes have stays in the cage's own group.
    let is_limit = |wish: &Wish| matches!(wish.lease.resource, Resource::Limit { .. });
    sibling.own_limits = wishes.iter().any(is_limit);
    for wish in &wishes {
        // On record before anything is open: whoever kills us now leaves no lease that the record
        // does not know.
        recorder.write(EventKind::Lease(wish.lease.clone()))?;
        step();
    }
    let backend = backend(plan.rung.what.isolation);
    let birth = backend.scope(&plan, &description.id, &sibling);
    step();
    let mut cage = match birth.and_then(|birth| birth.attend(&plan)) {
        // Its command comes later, and brings its own streams.
        Ok((cage, _)) => cage,
        Err(error) => {
            leases::none_opened(&mut recorder, &wishes)?;
            refuse(
                &client,
                format!("the scope did not start: {}", in_full(&error)),
            );
            return Ok(());
        }
    };
    if plan.shares_storage() {
        let beside = cage.stand_beside(&sibling);
        beside.map_err(failed("keep a handle of the cage's storage"))?;
    }
    step();
    sockets::hide(&sockets);
    let mut supervision = Supervision::new(Beginning {
        plan: &plan,
        cage,
        joined: Joined {
            input: None,
            outputs: Vec::new(),
            terminal: None,
            output: Output::default(),
        },
        control: Control::of_scope(client, description, number)?,
        runtime,
        background: None,
        recorder,
        sockets,
        asking: Asking::default(),
        scope: Some(Side {
            link,
            ended: None,
            deadline: None,
            sibling,
            keeper: None,
            open: Vec::new(),
        }),
        maker: None,
        kin: None,
    })?;
    supervision.run_scope(request, streams, wishes)?;
    supervision.close_scope()
}

/// Says why not. Who does not take it learns by the end of the connection.
fn refuse(client: &Channel, reason: String) {
    let _ = client.send(&Reply::Refused { reason }, &[]);
}

impl Supervision<'_> {
    fn run_scope(
        &mut self,
        request: ExecRequest,
        streams: Option<[OwnedFd; 3]>,
        wishes: Vec<Wish>,
    ) -> Result<(), RunError> {
        if let Some(reason) = self.open_scope_leases(wishes)? {
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
        let_go(held);
        executed?;
        if self.control.execs.is_empty() {
            // Refused, and told so.
            return Ok(());
        }
        step();
        self.watch().map(drop)
    }

    /// Whether the scope is to end now.
    pub(crate) fn scope_is_over(&self, now: Instant) -> bool {
        let Some(side) = &self.scope else {
            return false;
        };
        let late = side.deadline.is_some_and(|deadline| now >= deadline);
        side.ended.is_some() || side.link.is_ended() || late
    }

    /// Ends everything in the scope, then its leases, and tells how it was.
    fn close_scope(mut self) -> Result<(), RunError> {
        step();
        // Every process of it at once.
        self.cage.kill();
        step();
        for denial in self.refusals.remainder() {
            self.recorder.write(EventKind::Denied(denial))?;
        }
        if let Some(hit) = self.hit.clone() {
            self.recorder.write(EventKind::Limit(hit))?;
        }
        // Of a group of its own; the cage's is looked at when the cage ends.
        for hit in counted_by_cgroup(&self.cage) {
            self.recorder.write(EventKind::Limit(hit))?;
        }
        // First: what a door still carries is not revoked.
        self.close_door()?;
        self.end_scope_leases()?;
        let ended = self.scope.as_ref().and_then(|side| side.ended.clone());
        let ending = match (ended, &self.hit) {
            (Some(ending), _) => ending,
            (None, Some(hit)) => Ending::Limit { hit: hit.clone() },
            (None, None) => Ending::Signalled { signal: SIGKILL },
        };
        self.finish_execs(&ending)?;
        step();
        // Here at the latest all of it is gone.
        self.cage.bury()?;
        Ok(())
    }
}
