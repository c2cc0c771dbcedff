//! The leases of one scope: decided before it is made, opened before its command runs, and ended
//! when every process in it is dead.
//!
//! Then whoever still holds something of a lease is outside of the scope: it was handed over in a
//! socket of the shared workspace. The kernel tells that somebody does; who, is looked for in the
//! cage.

use super::link::{Report, Said};
use super::side::Side;
use crate::RunError;
use crate::backends::backend;
use crate::leases::{REASON, Seen, look};
use crate::recorder::Recorder;
use crate::supervise::{Supervision, failed};
use crate::taint::brought;
use ironcage_backend::{Keeper, Kept, LeaseOrder, LeasedFrom, Progress, Sought};
use ironcage_cedar::decide;
use ironcage_control::{GrantRequest, NotGiven, Wanted};
use ironcage_layers::cgroup;
use ironcage_lease::{Asked, AskedPath, Decision, Given, History};
use ironcage_model::{
    EventKind, Holder, Holders, Lease, LeaseEnd, LeaseOrigin, LimitKind, Resource, Scope, Taint,
};
use ironcage_plan::{Capability, Item, NetworkRule, Plan, RequestRule};
use ironcage_sys::faults::lease_step as step;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the keeper may take for an order.
const PATIENCE: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

/// How often holders are looked for and killed before it is said that they cannot be found.
const ROUNDS: u32 = 20;
/// How long those who were killed may take to be gone, each round.
const PAUSE: Duration = Duration::from_millis(10);

/// A lease that is to be opened.
#[derive(Debug)]
pub(super) struct Wish {
    pub(super) lease: Lease,
    /// What was seen, where it is a path.
    seen: Option<Seen>,
    /// The listening socket, where it is a port.
    listener: Option<OwnedFd>,
    /// What the cage takes on with it.
    pub(super) brings: Taint,
}

/// A lease that is open.
#[derive(Debug)]
pub(super) struct Opened {
    lease: Lease,
    born: Instant,
    /// Whether the keeper has it; else it is a part of the scope's plan and ends with the scope.
    kept: bool,
}

/// What a scope's leases are decided by.
pub(super) struct Deciding<'a> {
    pub(super) plan: &'a Plan,
    pub(super) origin: LeaseOrigin,
    pub(super) exec: u32,
    /// The number of its first lease.
    pub(super) first: u32,
    /// Whether nothing is given at once in this cage any more.
    pub(super) distrusted: bool,
    /// What the cage may have come into contact with.
    pub(super) taint: Taint,
}

/// Decides what a scope gets: what is given, and what is not. `ask` has a person asked about what
/// is given only then.
pub(super) fn decide_all(
    deciding: &Deciding<'_>,
    asked: &[GrantRequest],
    descriptors: Vec<OwnedFd>,
    mut ask: impl FnMut(&NotGiven, &GrantRequest, Option<&Seen>) -> Result<Said, RunError>,
) -> Result<(Vec<Wish>, Vec<NotGiven>), RunError> {
    let mut descriptors = descriptors.into_iter();
    let mut wishes: Vec<Wish> = Vec::new();
    let mut refused = Vec::new();
    for request in asked {
        let number = deciding.first.wrapping_add(wishes.len() as u32);
        let handle = match request.wanted {
            Wanted::Path { .. } | Wanted::Other(Resource::Port { .. }) => descriptors.next(),
            Wanted::Other(_) => None,
        };
        let mut request = request.clone();
        let mut decided = deciding.decide_one(&request, handle.as_ref(), &wishes, false);
        if let Decided::Ask(not_given, seen) = decided {
            decided = match ask(&not_given, &request, seen.as_ref())? {
                Said::Yes { term, .. } => {
                    request.term = term;
                    let again = deciding.decide_one(&request, handle.as_ref(), &wishes, true);
                    same(again, seen.as_ref())
                }
                Said::No { reason } => Decided::Refuse(NotGiven {
                    reason,
                    ..not_given
                }),
            };
        }
        match decided {
            Decided::Base => {}
            Decided::Give(given, seen) => {
                let lease = Lease {
                    number,
                    resource: given.resource,
                    scope: Scope::Exec {
                        number: deciding.exec,
                    },
                    term: given.term,
                    uses: given.uses,
                    reason: request.reason.chars().take(REASON).collect(),
                    origin: deciding.origin,
                    approver: given.approver,
                };
                let brings = brought(deciding.plan, &lease.resource);
                wishes.push(Wish {
                    brings: brings.map_err(failed("read what is known of a place"))?,
                    lease,
                    listener: handle.filter(|_| seen.is_none()),
                    seen,
                });
            }
            Decided::Ask(not_given, _) | Decided::Refuse(not_given) => refused.push(not_given),
        }
    }
    Ok((wishes, refused))
}

/// What was decided of one.
enum Decided {
    Base,
    Give(Given, Option<Seen>),
    Ask(NotGiven, Option<Seen>),
    Refuse(NotGiven),
}

/// A yes holds for what the person read.
fn same(decided: Decided, before: Option<&Seen>) -> Decided {
    match decided {
        Decided::Give(given, seen)
            if seen.as_ref().map(|seen| (&seen.path, seen.identity))
                != before.map(|seen| (&seen.path, seen.identity)) =>
        {
            Decided::Refuse(NotGiven {
                resource: given.resource,
                reason: "what was asked about is not there any more: it was moved, or replaced"
                    .into(),
                ask: false,
            })
        }
        other => other,
    }
}

impl Deciding<'_> {
    fn decide_one(
        &self,
        request: &GrantRequest,
        handle: Option<&OwnedFd>,
        wishes: &[Wish],
        approved: bool,
    ) -> Decided {
        let (seen, resource) = match &request.wanted {
            Wanted::Path { right } => {
                let unseen = |reason: String| {
                    Decided::Refuse(NotGiven {
                        resource: Resource::Path {
                            path: String::new(),
                            right: *right,
                        },
                        reason,
                        ask: false,
                    })
                };
                let Some(handle) = handle else {
                    return unseen("nothing was named: a path comes as a descriptor".into());
                };
                let seen = match look(handle, *right) {
                    Ok(seen) => seen,
                    Err(error) => return unseen(format!("it cannot be looked at: {error}")),
                };
                let path = seen.path.to_string_lossy().into_owned();
                (
                    Some(seen),
                    Resource::Path {
                        path,
                        right: *right,
                    },
                )
            }
            Wanted::Other(resource) => (None, resource.clone()),
        };
        let what = match (&request.wanted, &seen) {
            (Wanted::Path { right }, Some(seen)) => ironcage_lease::Wanted::Path(AskedPath {
                path: &seen.path,
                right: *right,
                facts: seen.facts.clone(),
            }),
            _ => ironcage_lease::Wanted::Other(&resource),
        };
        let asked = Asked {
            what,
            term: request.term,
            uses: request.uses,
            scope: Scope::Exec { number: self.exec },
            origin: self.origin,
            approved,
        };
        let history = History {
            open: wishes.iter().map(|wish| wish.lease.clone()).collect(),
            asked: 0,
            distrusted: self.distrusted,
            unannounced: false,
            taint: wishes
                .iter()
                .fold(self.taint, |taint, wish| taint.with(wish.brings)),
        };
        let not_given = |reason, ask| NotGiven {
            resource: resource.clone(),
            reason,
            ask,
        };
        match decide(self.plan, &asked, &history) {
            Decision::Give { given, .. } => Decided::Give(given, seen),
            Decision::Base { .. } => Decided::Base,
            Decision::Ask { reason } => Decided::Ask(not_given(reason, true), seen),
            Decision::Refuse { reason } => Decided::Refuse(not_given(reason, false)),
        }
    }
}

/// Puts into a scope's plan what is not a path: it holds from the scope's start to its end. `cage`
/// is the plan of its cage.
pub(super) fn plan_for(plan: &mut Plan, wishes: &[Wish], cage: &Plan) -> Result<(), String> {
    let none = "the cage has no network door; start it with a ceiling that names hosts";
    for wish in wishes {
        let origin = format!("lease {}", wish.lease.number);
        match &wish.lease.resource {
            Resource::Path { .. } => {}
            Resource::Host { rule } => {
                let network = plan.network.as_mut().ok_or(none)?;
                let what = NetworkRule {
                    rule: rule.clone(),
                    bundle: None,
                };
                network.allow.push(Item { what, origin });
            }
            Resource::Syscalls { group } => {
                let filter = plan.seccomp.with_group(group);
                plan.seccomp = filter.ok_or("there is no such group of system calls")?;
            }
            Resource::Capability { name } => {
                let found = ironcage_policy::capabilities::find(name);
                let found = found.filter(|found| found.allowed);
                let found = found.ok_or("no cage can have this capability")?;
                let what = Capability {
                    name: found.name.to_owned(),
                    number: found.number.into(),
                };
                plan.capabilities.push(Item { what, origin });
            }
            Resource::Http { rule } => {
                let network = plan.network.as_mut().ok_or(none)?;
                if !network.opens_tls() {
                    return Err("the cage's door opens no TLS: this host has no certificate authorities to know servers by; install ca-certificates and start the cage again".into());
                }
                let what = RequestRule { rule: rule.clone() };
                network.http.push(Item { what, origin });
            }
            Resource::Secret { name } => {
                let network = plan.network.as_mut().ok_or(none)?;
                let mut secrets = network.secrets.iter_mut();
                let known = secrets.find(|item| item.what.rule.name == *name);
                let known = known.ok_or("the cage has no such secret")?;
                known.what.rule.leased = false;
            }
            Resource::Socket { path } => {
                let outer = cage.network.iter().flat_map(|network| &network.sockets);
                let mut outer = outer.filter(|item| item.what.path.as_os_str() == path.as_str());
                let gone = "it was not there when the cage started; start the cage again";
                let mut socket = outer.next().ok_or(gone)?.clone();
                socket.what.leased = false;
                let network = plan.network.as_mut().ok_or(none)?;
                network.sockets.push(socket);
            }
            // By a listener of the scope's own door, when that is there.
            Resource::Port { .. } => {
                plan.network.as_ref().ok_or(none)?;
            }
            Resource::Limit { limit, value } => {
                let bounds = &mut plan.bounds;
                let (bound, controller) = match limit {
                    LimitKind::Memory => (&mut bounds.memory, "memory"),
                    LimitKind::Cpus => (&mut bounds.cpu, "cpu"),
                    LimitKind::Pids => (&mut bounds.pids, "pids"),
                    _ => return Err(format!("{limit} is the cage's")),
                };
                if !cgroup::has_controller(&cage.cgroup, controller) {
                    return Err(format!(
                        "{limit} is not bounded by a cgroup here, and what bounds it instead only ever tightens; `ironcage doctor` says what is missing"
                    ));
                }
                bound.what.value = *value;
                bound.origin = origin;
            }
        }
    }
    Ok(())
}

/// What was on record, and came to nothing.
pub(super) fn none_opened(recorder: &mut Recorder, wishes: &[Wish]) -> Result<(), RunError> {
    for wish in wishes {
        recorder.write(EventKind::LeaseEnd {
            number: wish.lease.number,
            end: LeaseEnd::NotOpened,
            cause: "its scope did not start".into(),
            holders: Vec::new(),
            milliseconds: 0,
        })?;
    }
    Ok(())
}

/// Gives an order and waits for what came of it.
fn order(keeper: &Keeper, order: &LeaseOrder) -> io::Result<Kept> {
    keeper.order(order)?;
    answer(keeper)
}

fn answer(keeper: &Keeper) -> io::Result<Kept> {
    loop {
        if let Some(answer) = keeper.hear()? {
            return Ok(answer);
        }
        let mut fds = [PollFd::new(keeper, PollFlags::IN)];
        if poll(&mut fds, Some(&PATIENCE)).is_ok_and(|ready| ready == 0) {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

impl Supervision<'_> {
    fn side(&mut self) -> Result<&mut Side, RunError> {
        let none = || io::Error::other("this is no scope");
        self.scope
            .as_mut()
            .ok_or_else(|| failed("look after a scope")(none()))
    }

    /// Opens what was decided. Returns why it could not, if it could not.
    pub(super) fn open_scope_leases(
        &mut self,
        wishes: Vec<Wish>,
    ) -> Result<Option<String>, RunError> {
        let mut wishes = wishes.into_iter();
        while let Some(wish) = wishes.next() {
            let failure = match (&wish.lease.resource, &wish.seen) {
                (Resource::Path { .. }, Some(_)) => self.open_path(&wish)?,
                (Resource::Port { publish }, _) => match &wish.listener {
                    Some(listener) => self.publish(None, *publish, listener).err(),
                    None => Some("a port comes with its listening socket".into()),
                },
                _ => None,
            };
            if let Some(reason) = failure {
                let rest: Vec<Wish> = std::iter::once(wish).chain(wishes).collect();
                none_opened(&mut self.recorder, &rest)?;
                return Ok(Some(reason));
            }
            let born = Instant::now();
            let kept = wish.seen.is_some();
            let ends = wish.lease.term.duration();
            let side = self.side()?;
            if let Some(at) = ends.and_then(|time| born.checked_add(time)) {
                side.deadline = Some(side.deadline.map_or(at, |known| known.min(at)));
            }
            side.open.push(Opened {
                lease: wish.lease,
                born,
                kept,
            });
        }
        Ok(None)
    }

    fn open_path(&mut self, wish: &Wish) -> Result<Option<String>, RunError> {
        let (Resource::Path { path, right }, Some(seen)) = (&wish.lease.resource, &wish.seen)
        else {
            return Ok(None);
        };
        if self.side()?.keeper.is_none() {
            let backend = backend(self.plan.rung.what.isolation);
            match backend.keeper(self.plan, &self.cage) {
                Ok(keeper) => self.side()?.keeper = Some(keeper),
                Err(error) => return Ok(Some(error.to_string())),
            }
        }
        step();
        let part = match self.plan.is_locked(Path::new(path)) {
            false => None,
            true => {
                let backend = backend(self.plan.rung.what.isolation);
                let cloned = backend.part(self.plan, &self.side()?.sibling, Path::new(path));
                match cloned {
                    Ok(part) => Some(part),
                    Err(error) => {
                        return Ok(Some(format!("it is not in the cage's view: {error}")));
                    }
                }
            }
        };
        step();
        let Some(keeper) = &self.side()?.keeper else {
            return Ok(None);
        };
        let opening = LeaseOrder::Open {
            number: wish.lease.number,
            path: path.clone(),
            from: match part {
                Some(_) => LeasedFrom::Beside,
                None => LeasedFrom::Host {
                    device: seen.identity.device,
                    inode: seen.identity.inode,
                },
            },
            right: *right,
        };
        let given = match &part {
            Some(part) => keeper.order_with(&opening, part.as_fd()),
            None => keeper.order(&opening),
        };
        // Ours would be a user like any other.
        drop(part);
        match given.and_then(|()| answer(keeper)) {
            Ok(Kept::Opened { failed, .. }) => Ok(failed),
            Ok(Kept::Ended { .. }) => Ok(Some("the keeper of leases is confused".into())),
            Err(error) => Ok(Some(format!("the keeper of leases is gone: {error}"))),
        }
    }

    /// Ends every lease of the scope. Its processes are dead: the kernel proves that nobody has
    /// anything of a lease, or somebody outside has.
    pub(super) fn end_scope_leases(&mut self) -> Result<(), RunError> {
        let cause = match &self.scope {
            Some(side) if side.ended.is_some() => "its command ended",
            Some(side) if side.deadline.is_some_and(|at| Instant::now() >= at) => "its time was up",
            _ => "its scope was ended",
        };
        for opened in std::mem::take(&mut self.side()?.open) {
            step();
            let (end, holders) = match opened.kept {
                true => self.end_kept(&opened.lease)?,
                false => (LeaseEnd::Revoked, Vec::new()),
            };
            step();
            self.recorder.write(EventKind::LeaseEnd {
                number: opened.lease.number,
                end,
                cause: cause.into(),
                holders,
                milliseconds: opened.born.elapsed().as_millis() as u64,
            })?;
            step();
        }
        // With it goes the last process in the scope's mount namespace.
        self.side()?.keeper = None;
        Ok(())
    }

    fn end_kept(&mut self, lease: &Lease) -> Result<(LeaseEnd, Vec<Holder>), RunError> {
        let number = lease.number;
        let policy = self.plan.leases.as_ref().map(|leases| leases.holders);
        let mut told = Vec::new();
        let Some(mut mounts) = self.close_by(&LeaseOrder::Close { number }) else {
            return self.end_with_cage(told);
        };
        if policy == Some(Holders::Keep)
            && let Err(held) = &mounts
        {
            told = self.seek(lease, held, false);
            match self.close_by(&LeaseOrder::Leave { number }) {
                Some(left) => mounts = left,
                None => return self.end_with_cage(told),
            }
        }
        let mut held = match mounts {
            Ok(end) => return Ok((end, told)),
            // Who writes is not left alone: there is nobody left who could wait for him.
            Err(held) => held,
        };
        let link = self.side()?.link.clone();
        let asked = |report: &Report| link.ask(report).map_err(failed("end a lease"));
        // Stopped, so that nobody hands on what others are killed for.
        asked(&Report::Freeze)?;
        let mut ended = None;
        for _ in 0..ROUNDS {
            for holder in self.seek(lease, &held, true) {
                if told.iter().all(|known| known.pid != holder.pid) {
                    told.push(holder);
                }
            }
            match self.close_by(&LeaseOrder::Close { number }) {
                Some(Ok(end)) => {
                    ended = Some(end);
                    break;
                }
                Some(Err(still)) => held = still,
                None => break,
            }
            std::thread::sleep(PAUSE);
        }
        asked(&Report::Resume)?;
        match ended {
            Some(end) => Ok((end, told)),
            // Not found: it lies in a socket, or another scope has it.
            None => self.end_with_cage(told),
        }
    }

    fn end_with_cage(&mut self, told: Vec<Holder>) -> Result<(LeaseEnd, Vec<Holder>), RunError> {
        let link = self.side()?.link.clone();
        let ended = link.ask(&Report::EndCage);
        ended.map_err(failed("end the cage with a lease"))?;
        Ok((LeaseEnd::CageKilled, told))
    }

    /// Who in the cage uses a lease of the scope's.
    fn seek(&self, lease: &Lease, mounts: &[u64], kill: bool) -> Vec<Holder> {
        let (Some(side), Resource::Path { path, .. }) = (&self.scope, &lease.resource) else {
            return Vec::new();
        };
        let backend = backend(self.plan.rung.what.isolation);
        let sought = Sought { mounts, path, kill };
        // Who cannot be looked for is not found.
        let found = backend.seek(self.plan, &side.sibling, &sought);
        found.unwrap_or_default()
    }

    /// What can be said of a lease after an order, or by which mounts it is still used; `None`
    /// where the keeper is gone, and nothing is known.
    fn close_by(&mut self, what: &LeaseOrder) -> Option<Result<LeaseEnd, Vec<u64>>> {
        let keeper = self.scope.as_ref()?.keeper.as_ref()?;
        match order(keeper, what) {
            Ok(Kept::Ended {
                progress, mounts, ..
            }) => Some(match progress {
                Progress::Revoked => Ok(LeaseEnd::Revoked),
                Progress::Closed => Ok(LeaseEnd::ClosedToNewOpens),
                Progress::Busy => Err(mounts),
            }),
            Ok(Kept::Opened { .. }) | Err(_) => None,
        }
    }
}
