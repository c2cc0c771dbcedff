//! The supervisor of one scope: a process of its own, forked from the cage's supervisor, which
//! makes the scope, opens its leases, executes the command and ends all of it.
//!
//! It may wait where the cage's supervisor may not. It dies with that one, and the scope with it.

use super::call;
use super::leases::{self, Opened, Wish};
use super::link::Link;
use crate::RunError;
use crate::asking::Asking;
use crate::backends::backend;
use crate::control::Control;
use crate::output::Output;
use crate::recorder::Recorder;
use crate::streams::Joined;
use crate::supervise::{Beginning, SIGKILL, Supervision};
use ironcage_backend::{Keeper, Sibling};
use ironcage_control::{Channel, Description, ExecRequest, Reply, RuntimeDir};
use ironcage_model::{Ending, EventKind, in_full};
use ironcage_plan::Plan;
use ironcage_sys::clone::exit_now;
use ironcage_sys::faults::lease_step as step;
use ironcage_sys::process::close_all_but;
use ironcage_sys::rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use ironcage_sys::rustix::thread::set_name;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

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
        client,
        sibling,
        mut request,
        mut descriptors,
        number,
        first_lease,
        distrusted,
        ..
    } = given;
    let refuse = |reason: String| {
        // Who does not take it learns by the end of the connection.
        let _ = client.send(&Reply::Refused { reason }, &[]);
    };
    let link = Rc::new(Link::new(link));
    let mut recorder = Recorder::of_scope(link.clone());
    let mut plan = plan.scoped();
    crate::asking::without(&mut plan);
    let mut asked = request.scope.take().unwrap_or_default();
    let mut refused = Vec::new();
    if let Some(text) = asked.call.take() {
        let planned = match call::read(&plan, &text) {
            Ok(planned) => planned,
            Err(reason) => {
                refuse(reason);
                return Ok(());
            }
        };
        if let Err(reason) = planned.furnish(&mut plan, &text) {
            refuse(reason);
            return Ok(());
        }
        request.argv = planned.argv;
        request.cwd = planned.cwd;
        (asked, descriptors, refused) = (planned.asked, planned.descriptors, planned.refused);
    }
    let decided = leases::decide_all(
        &plan,
        &asked,
        descriptors,
        (number, first_lease, distrusted),
    );
    let wishes = match decided {
        Ok(wishes) if refused.is_empty() => wishes,
        other => {
            refused.extend(other.err().unwrap_or_default());
            for one in &refused {
                recorder.write(EventKind::LeaseRefused {
                    resource: one.resource.clone(),
                    origin: asked.origin,
                    reason: one.reason.clone(),
                    unrecorded: 0,
                })?;
            }
            let _ = client.send(&Reply::NotGiven(refused), &[]);
            return Ok(());
        }
    };
    if let Err(reason) = leases::plan_for(&mut plan, &wishes) {
        refuse(reason);
        return Ok(());
    }
    for wish in &wishes {
        // On record before anything is open: whoever kills us now leaves no lease that the record
        // does not know.
        recorder.write(EventKind::Lease(wish.lease.clone()))?;
        step();
    }
    let backend = backend(plan.rung.what.isolation);
    let birth = backend.scope(&plan, &description.id, &sibling);
    step();
    let cage = match birth.and_then(|birth| birth.attend(&plan)) {
        // Its command comes later, and brings its own streams.
        Ok((cage, _)) => cage,
        Err(error) => {
            leases::none_opened(&mut recorder, &wishes)?;
            refuse(format!("the scope did not start: {}", in_full(&error)));
            return Ok(());
        }
    };
    step();
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
        runtime: RuntimeDir::of_user(&ironcage_audit::state_dir()?),
        background: None,
        recorder,
        sockets: Vec::new(),
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
    supervision.run_scope(request, wishes)?;
    supervision.close_scope()
}

impl Supervision<'_> {
    fn run_scope(&mut self, request: ExecRequest, wishes: Vec<Wish>) -> Result<(), RunError> {
        if let Some(reason) = self.open_scope_leases(wishes)? {
            self.control.refuse(CLIENT, reason);
            return Ok(());
        }
        step();
        self.exec(CLIENT, request, Instant::now())?;
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
