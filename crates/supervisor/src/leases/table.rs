//! The leases of one cage: which there are, how far each has come, and what holds it.
//!
//! The part owns its state. It takes events and returns [`Effect`]s; the life of each lease is the
//! state machine of [`ironcage_lease::life`].

use super::mechanism::LeaseMechanism;
use super::requests::{self, Requester};
use crate::effects::Effect;
use ironcage_backend::{LeaseOrder, MountHelper, MountHelperReply, Progress};
use ironcage_control::{LeaseDescription, LeaseState, Reply};
use ironcage_layers::live::Identity;
use ironcage_lease::life::{EndingRules, LeaseEffect, LeaseEvent, LeaseLife, LeasePhase, Release};
use ironcage_model::{
    EventKind, GrantedLease, Holder, Lease, LeaseEnd, LeaseOrigin, Lent, LimitKind, NetworkReason,
    Reason, Resource, Term,
};
use ironcage_model::{LeaseEndCause, RequestOutcome};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How late PID 1 may report that the command was stopped.
const LATE: Duration = Duration::from_secs(2);

/// What comes with a lease that is about to be opened.
#[derive(Debug)]
pub(crate) struct Opening {
    /// What a path was when it was decided upon.
    pub(crate) identity: Option<Identity>,
    /// What came beside the request.
    pub(crate) descriptor: Option<OwnedFd>,
}

/// A lease that was decided, and is to be recorded and opened.
#[derive(Debug)]
pub(crate) struct NewLease {
    pub(crate) lease: Lease,
    pub(crate) requester: Requester,
    pub(crate) mechanism: LeaseMechanism,
    pub(crate) opening: Opening,
    pub(crate) rules: EndingRules,
}

#[derive(Debug)]
struct ActiveLease {
    lease: Lease,
    life: LeaseLife,
    requester: Requester,
    mechanism: LeaseMechanism,
    opening: Option<Opening>,
    /// How often it can still be used, where the supervisor counts that.
    uses_left: Option<u32>,
    /// Clients that wait for its end.
    waiting: Vec<u64>,
    /// Who was found to use it while it ended.
    holders: Vec<Holder>,
}

/// How something that is wanted meets the leases that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseMatch {
    /// A lease gives it, or is about to.
    Has {
        lease: u32,
        origin: LeaseOrigin,
    },
    /// A lease that is ending stands in its way.
    Ending,
    None,
}

/// The leases of one cage.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    helper: Option<MountHelper>,
    active: Vec<ActiveLease>,
    last: u32,
    /// When the cage was last stopped for the end of a lease.
    stopped: Option<Instant>,
    /// What the model's answers opened, of that which is over.
    lent: Lent,
}

impl Leases {
    /// Where the mount helper replies.
    pub(crate) fn helper(&self) -> Option<BorrowedFd<'_>> {
        self.helper.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn set_helper(&mut self, helper: MountHelper) {
        self.helper = Some(helper);
    }

    /// Ends the mount helper.
    pub(crate) fn end_helper(&mut self) {
        self.helper = None;
    }

    /// Orders something of the mount helper. `false` where it takes no order.
    pub(crate) fn order(&self, order: &LeaseOrder) -> bool {
        let helper = self.helper.as_ref();
        helper.is_some_and(|helper| helper.order(order).is_ok())
    }

    /// Takes a reply of the mount helper.
    pub(crate) fn hear_helper(&self) -> io::Result<Option<MountHelperReply>> {
        match &self.helper {
            Some(helper) => helper.hear(),
            None => Ok(None),
        }
    }

    pub(crate) fn is_any(&self) -> bool {
        !self.active.is_empty()
    }

    /// When something is to be done next.
    pub(crate) fn next(&self) -> Option<Instant> {
        let active = self.active.iter();
        active.filter_map(|active| active.life.next()).min()
    }

    pub(crate) fn describe(&self, now: Instant) -> Vec<LeaseDescription> {
        let of = |active: &ActiveLease| LeaseDescription {
            lease: active.lease.clone(),
            state: match active.life.phase() {
                LeasePhase::Opening => LeaseState::Opening,
                LeasePhase::Open => LeaseState::Open,
                LeasePhase::Ending | LeasePhase::Over => LeaseState::Ending,
            },
            milliseconds_left: (active.life.until())
                .map(|until| until.saturating_duration_since(now).as_millis() as u64),
            uses_left: active.uses_left,
        };
        self.active.iter().map(of).collect()
    }

    /// Takes numbers for leases that others hold. Returns the first.
    pub(crate) fn reserve(&mut self, count: usize) -> u32 {
        let first = self.last.wrapping_add(1).max(1);
        self.last = first.wrapping_add(count as u32).wrapping_sub(1);
        first
    }

    /// A lease on a path in one of these places.
    pub(crate) fn in_places(&self, places: &[&Path]) -> Option<&Lease> {
        self.all().find(|lease| match &lease.resource {
            Resource::Path { path, .. } => places
                .iter()
                .any(|place| Path::new(path).starts_with(place)),
            _ => false,
        })
    }

    /// Every lease, however far its end has come.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Lease> {
        self.active.iter().map(|active| &active.lease)
    }

    /// The number that was given last.
    pub(crate) fn last_number(&self) -> u32 {
        self.last
    }

    /// What the model's answers opened, of that which is over.
    pub(crate) fn lent(&self) -> Lent {
        self.lent
    }

    /// How something that is wanted meets what is there.
    pub(crate) fn meet(&self, wanted: &Resource) -> LeaseMatch {
        let mut ending = false;
        for ActiveLease { lease, life, .. } in &self.active {
            let lasts = life.lasts();
            if lasts && requests::covers(&lease.resource, wanted) {
                return LeaseMatch::Has {
                    lease: lease.number,
                    origin: lease.origin,
                };
            }
            ending |= !lasts && ironcage_lease::overlaps(&lease.resource, wanted);
        }
        match ending {
            true => LeaseMatch::Ending,
            false => LeaseMatch::None,
        }
    }

    /// The open lease that gives what is asked for.
    pub(crate) fn open_for(&self, wanted: &Resource) -> Option<&Lease> {
        let mut active = self.active.iter();
        let found = active.find(|active| {
            active.life.phase() == LeasePhase::Open
                && requests::covers(&active.lease.resource, wanted)
        });
        found.map(|active| &active.lease)
    }

    /// The limit that a lease has raised, where one has.
    pub(crate) fn limit(&self, wanted: LimitKind) -> Option<u64> {
        self.all().find_map(|lease| match lease.resource {
            Resource::Limit { limit, value } if limit == wanted => Some(value),
            _ => None,
        })
    }

    /// Counts a use of a leased port or socket. `false` where there is none left.
    pub(crate) fn take_use(&mut self, is_it: impl Fn(&Resource) -> bool) -> bool {
        let mut active = self.active.iter_mut();
        let found = active.find(|active| {
            is_it(&active.lease.resource) && active.life.phase() == LeasePhase::Open
        });
        match found.map(|active| &mut active.uses_left) {
            None => false,
            Some(None) => true,
            Some(Some(0)) => false,
            Some(Some(left)) => {
                *left -= 1;
                true
            }
        }
    }

    /// What is to be opened by which lease; its descriptor is handed over.
    pub(crate) fn take_opening(&mut self, number: u32) -> Option<(Resource, Option<u32>, Opening)> {
        let active = self.get(number)?;
        let opening = active.opening.take()?;
        Some((active.lease.resource.clone(), active.lease.uses, opening))
    }

    /// How far a lease has come.
    pub(crate) fn phase(&self, number: u32) -> Option<LeasePhase> {
        let mut active = self.active.iter();
        let found = active.find(|active| active.lease.number == number);
        found.map(|active| active.life.phase())
    }

    pub(crate) fn mechanism(&self, number: u32) -> Option<&LeaseMechanism> {
        let mut active = self.active.iter();
        let found = active.find(|active| active.lease.number == number);
        found.map(|active| &active.mechanism)
    }

    pub(crate) fn set_mechanism(&mut self, number: u32, mechanism: LeaseMechanism) {
        if let Some(active) = self.get(number) {
            active.mechanism = mechanism;
        }
    }

    /// The lease of which the egress proxy was last told by this order.
    pub(crate) fn by_proxy_order(&self, order: u32) -> Option<u32> {
        let mut active = self.active.iter();
        let found = active.find(|active| {
            matches!(&active.mechanism, LeaseMechanism::Proxy { serial, .. } if *serial == order)
        });
        found.map(|active| active.lease.number)
    }

    /// Adds a lease: it is recorded, and opened when that is done.
    pub(crate) fn add(&mut self, new: NewLease, now: Instant) -> Vec<Effect> {
        let NewLease {
            lease,
            requester,
            mechanism,
            opening,
            rules,
        } = new;
        let number = lease.number;
        self.active.push(ActiveLease {
            life: LeaseLife::requested(rules, lease.term, now),
            uses_left: lease.uses.filter(|_| mechanism.is_counted_here()),
            lease,
            requester,
            mechanism,
            opening: Some(opening),
            waiting: Vec::new(),
            holders: Vec::new(),
        });
        self.handle(number, LeaseEvent::Decided, now)
    }

    /// Takes an event of one lease.
    pub(crate) fn handle(&mut self, number: u32, event: LeaseEvent, now: Instant) -> Vec<Effect> {
        let Some(active) = self.get(number) else {
            return Vec::new();
        };
        let effects = active.life.handle(event, now);
        let mut wanted = Vec::new();
        for effect in effects {
            self.translate(number, effect, &mut wanted);
        }
        self.active
            .retain(|active| active.life.phase() != LeasePhase::Over);
        wanted
    }

    /// The same of every lease that `is_it` holds for.
    fn handle_all(
        &mut self,
        is_it: impl Fn(&LeaseMechanism) -> bool,
        event: LeaseEvent,
        now: Instant,
    ) -> Vec<Effect> {
        let active = self.active.iter().filter(|active| is_it(&active.mechanism));
        let numbers: Vec<u32> = active.map(|active| active.lease.number).collect();
        let mut wanted = Vec::new();
        for number in numbers {
            wanted.extend(self.handle(number, event, now));
        }
        wanted
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Effect> {
        self.handle_all(|_| true, LeaseEvent::Tick, now)
    }

    /// The cage is gone, or is being ended for a lease.
    pub(crate) fn end_with_cage(&mut self, event: LeaseEvent, now: Instant) -> Vec<Effect> {
        self.handle_all(|_| true, event, now)
    }

    /// A lease could not be opened. Whoever asked is told why.
    pub(crate) fn not_opened(&mut self, number: u32, reason: Reason, now: Instant) -> Vec<Effect> {
        let Some(requester) = self.get(number).map(|active| active.requester) else {
            return Vec::new();
        };
        let cause = LeaseEndCause::NotOpened;
        let mut wanted = self.handle(number, LeaseEvent::NotOpened { cause }, now);
        if !wanted.is_empty() {
            let outcome = RequestOutcome::Denied { reason };
            wanted.push(Effect::Report { requester, outcome });
        }
        wanted
    }

    /// Takes a reply of the mount helper, or of whatever else holds the lease.
    pub(crate) fn released(
        &mut self,
        number: u32,
        progress: Progress,
        mut holders: Vec<Holder>,
        now: Instant,
    ) -> Vec<Effect> {
        if let Some(active) = self.get(number) {
            active.holders.append(&mut holders);
        }
        self.handle(number, LeaseEvent::Released(release(progress)), now)
    }

    /// The mount helper is gone or hangs: nothing is known of its leases.
    pub(crate) fn helper_lost(&mut self, now: Instant) -> Vec<Effect> {
        self.end_helper();
        let is_mount = |mechanism: &LeaseMechanism| *mechanism == LeaseMechanism::Mount;
        self.handle_all(is_mount, LeaseEvent::MechanismLost, now)
    }

    /// There is no egress proxy any more: nothing that it held can be used.
    pub(crate) fn proxy_ended(&mut self, now: Instant) -> Vec<Effect> {
        let is_proxy =
            |mechanism: &LeaseMechanism| matches!(mechanism, LeaseMechanism::Proxy { .. });
        let unopened = self.active.iter().filter(|active| {
            is_proxy(&active.mechanism) && active.life.phase() == LeasePhase::Opening
        });
        let unopened: Vec<Requester> = unopened.map(|active| active.requester).collect();
        let cause = LeaseEndCause::ProxyEnded;
        let mut wanted = self.handle_all(is_proxy, LeaseEvent::MechanismEnded { cause }, now);
        wanted.extend(unopened.into_iter().map(|requester| Effect::Report {
            requester,
            outcome: RequestOutcome::Denied {
                reason: NetworkReason::ProxyEnded.into(),
            },
        }));
        wanted
    }

    /// Begins the end of one lease, or of all; a client waits for it. `None` where there is no
    /// such lease.
    pub(crate) fn revoke(
        &mut self,
        client: u64,
        which: Option<u32>,
        now: Instant,
    ) -> (usize, Vec<Effect>) {
        let numbers: Vec<u32> = (self.all().map(|lease| lease.number))
            .filter(|number| which.is_none_or(|which| which == *number))
            .collect();
        let mut wanted = Vec::new();
        let cause = LeaseEndCause::Revoked;
        for number in &numbers {
            if let Some(active) = self.get(*number) {
                active.waiting.push(client);
            }
            wanted.extend(self.handle(*number, LeaseEvent::TakenBack { cause }, now));
        }
        (numbers.len(), wanted)
    }

    /// Whether the cage is stopped while somebody is looked for who holds a lease.
    pub(crate) fn is_expelling(&self) -> bool {
        self.active.iter().any(|active| active.life.is_expelling())
    }

    /// The cage was stopped, or let go on, for the end of a lease.
    pub(crate) fn note_stop(&mut self, now: Instant) {
        self.stopped = Some(now);
    }

    /// Whether the command was stopped for the end of a lease, and by nobody else. PID 1 reports
    /// it as it reports a stop at the terminal, and may report it late.
    pub(crate) fn stopped_by_us(&mut self, now: Instant) -> bool {
        let Some(at) = self.stopped else {
            return false;
        };
        if !self.is_expelling() && now.duration_since(at) > LATE {
            self.stopped = None;
            return false;
        }
        true
    }

    fn get(&mut self, number: u32) -> Option<&mut ActiveLease> {
        let mut active = self.active.iter_mut();
        active.find(|active| active.lease.number == number)
    }

    fn translate(&mut self, number: u32, effect: LeaseEffect, wanted: &mut Vec<Effect>) {
        let Some(index) = (self.active.iter()).position(|active| active.lease.number == number)
        else {
            return;
        };
        let Some(active) = self.active.get(index) else {
            return;
        };
        match effect {
            LeaseEffect::Record => {
                wanted.push(Effect::Audit(EventKind::Lease(active.lease.clone())));
                wanted.push(Effect::LeaseRecorded(number));
            }
            LeaseEffect::Open => wanted.push(Effect::OpenLease(number)),
            LeaseEffect::ReportOpen => wanted.push(Effect::Report {
                requester: active.requester,
                outcome: RequestOutcome::Granted(GrantedLease::Open(active.lease.clone())),
            }),
            LeaseEffect::Close { grace_over } => {
                wanted.push(Effect::CloseLease { number, grace_over });
            }
            LeaseEffect::Leave => wanted.push(Effect::HelperOrder(LeaseOrder::Leave { number })),
            LeaseEffect::Expel => wanted.push(Effect::ExpelHolders(number)),
            // By the helper's word: nobody is looked for by us.
            LeaseEffect::Search { .. } => {}
            LeaseEffect::Freeze => wanted.push(Effect::FreezeCage),
            LeaseEffect::Resume => wanted.push(Effect::ResumeCage),
            LeaseEffect::GiveUpMechanism => wanted.push(match active.mechanism {
                LeaseMechanism::Proxy { .. } => Effect::GiveUpProxy,
                LeaseMechanism::Mount | LeaseMechanism::Cgroup { .. } => Effect::GiveUpHelper,
            }),
            LeaseEffect::KillCage => wanted.push(Effect::KillCage),
            LeaseEffect::End { end, cause, open } => {
                if let Some(path) = active.mechanism.socket() {
                    wanted.push(Effect::CloseSocketProxy(path.to_owned()));
                }
                let open = u64::try_from(open.as_millis()).unwrap_or(u64::MAX);
                if active.lease.origin == LeaseOrigin::Answer && end != LeaseEnd::NotOpened {
                    count(&mut self.lent, active.lease.term, open);
                }
                // The audit log first: who is told may act on it.
                wanted.push(Effect::Audit(EventKind::LeaseEnd {
                    number,
                    end: end.clone(),
                    cause: cause.into(),
                    holders: active.holders.clone(),
                    milliseconds: open,
                }));
                let reply = Reply::LeaseEnded {
                    number,
                    end,
                    holders: active.holders.clone(),
                };
                wanted.extend(active.waiting.iter().map(|client| Effect::Reply {
                    client: *client,
                    reply: reply.clone(),
                }));
            }
        }
    }
}

fn count(lent: &mut Lent, term: Term, open: u64) {
    let given = match term {
        Term::Milliseconds(given) => given,
        Term::UntilRevoked => open,
    };
    lent.leases = lent.leases.saturating_add(1);
    lent.given_milliseconds = lent.given_milliseconds.saturating_add(given);
    lent.open_milliseconds = lent.open_milliseconds.saturating_add(open);
}

/// The helper's word for how far the end of a lease came.
pub(crate) fn release(progress: Progress) -> Release {
    match progress {
        Progress::Revoked => Release::Revoked,
        Progress::Closed => Release::ClosedToNewOpens,
        Progress::Busy => Release::Busy,
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
