//! The table of a cage's leases: what is open, until when, and how far the end of each has come.
//!
//! A lease is on record before it is opened, and its end only when that is proved. In between
//! stands the keeper, who does what is ordered and answers later; nothing here waits for it.

mod ends;
mod facts;
mod means;

pub(crate) use facts::{Seen, look};

use crate::RunError;
use crate::backends::backend;
use crate::supervise::Supervision;
use ironcage_backend::{Keeper, Kept, LeaseOrder};
use ironcage_control::{GrantRequest, LeaseDescription, LeaseState, Reply, Wanted};
use ironcage_lease::{Asked, AskedPath, Decision, Given, History, MOST_ASKED, decide};
use ironcage_model::{EventKind, Holder, Lease, LeaseOrigin, Resource, Scope, Term};
use ironcage_sys::faults::lease_step as step;
use means::{Means, Ready, Told};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the keeper may take for an order. One that hangs is worse than none: nothing is
/// known of its leases.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest reason that is put on record.
pub(crate) const REASON: usize = 500;

/// The leases of one cage.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    keeper: Option<Keeper>,
    held: Vec<Held>,
    last: u32,
    /// When the cage was last stopped for the end of a lease.
    stopped: Option<Instant>,
    pace: Pace,
}

/// How many requests came within this second.
#[derive(Debug, Default)]
struct Pace {
    since: Option<Instant>,
    asked: u32,
    /// Refusals that have no line of their own on record.
    unrecorded: u64,
}

impl Pace {
    /// Counts a request; how many came before it within the second.
    fn count(&mut self, now: Instant) -> u32 {
        let over = |since: Instant| now.duration_since(since) >= Duration::from_secs(1);
        if self.since.is_none_or(over) {
            self.since = Some(now);
            self.asked = 0;
        }
        let before = self.asked;
        self.asked = before.saturating_add(1);
        before
    }
}

/// One lease.
#[derive(Debug)]
struct Held {
    lease: Lease,
    born: Instant,
    /// When its time is up.
    until: Option<Instant>,
    stage: Stage,
    /// What holds it.
    means: Means,
    /// How often it can still be used, where the supervisor counts that.
    left: Option<u32>,
    /// Who is told how it ended.
    waiting: Vec<u64>,
    /// Why it ends.
    cause: &'static str,
    holders: Vec<Holder>,
}

/// How far a lease has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The keeper is opening it, for this client.
    Opening {
        client: u64,
        by: Instant,
    },
    Open,
    /// The keeper is closing it, once.
    Closing {
        by: Instant,
        /// When those who use it have had time enough.
        grace: Instant,
    },
    /// Somebody uses it, and may still let go.
    Draining {
        next: Instant,
        grace: Instant,
    },
    /// The cage is stopped, and the keeper is killing who uses it.
    Expelling {
        by: Instant,
    },
    /// The keeper is taking it off for who has nothing of it yet.
    Leaving {
        by: Instant,
    },
}

impl Leases {
    /// Where the keeper answers.
    pub(crate) fn keeper(&self) -> Option<BorrowedFd<'_>> {
        self.keeper.as_ref().map(AsFd::as_fd)
    }

    /// Whether there is any.
    pub(crate) fn is_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// When something is to be done next.
    pub(crate) fn next(&self) -> Option<Instant> {
        let of = |held: &Held| match held.stage {
            Stage::Open => held.until,
            Stage::Draining { next, .. } => Some(next),
            Stage::Opening { by, .. }
            | Stage::Closing { by, .. }
            | Stage::Expelling { by }
            | Stage::Leaving { by } => Some(by),
        };
        self.held.iter().filter_map(of).min()
    }

    fn describe(&self, now: Instant) -> Vec<LeaseDescription> {
        let of = |held: &Held| LeaseDescription {
            lease: held.lease.clone(),
            state: match held.stage {
                Stage::Opening { .. } => LeaseState::Opening,
                Stage::Open => LeaseState::Open,
                _ => LeaseState::Ending,
            },
            milliseconds_left: held
                .until
                .map(|until| until.saturating_duration_since(now).as_millis() as u64),
            uses_left: held.left,
        };
        self.held.iter().map(of).collect()
    }

    /// Takes so many numbers for leases that others keep. Returns the first.
    pub(crate) fn reserve(&mut self, count: usize) -> u32 {
        let first = self.last.wrapping_add(1).max(1);
        self.last = first.wrapping_add(count as u32).wrapping_sub(1);
        first
    }

    /// A lease on a path in one of these places.
    pub(crate) fn in_places(&self, places: &[&Path]) -> Option<&Lease> {
        let mut leases = self.held.iter().map(|held| &held.lease);
        leases.find(|lease| match &lease.resource {
            Resource::Path { path, .. } => places
                .iter()
                .any(|place| Path::new(path).starts_with(place)),
            _ => false,
        })
    }

    fn position(&self, number: u32) -> Option<usize> {
        let mut held = self.held.iter();
        held.position(|held| held.lease.number == number)
    }
}

impl Supervision<'_> {
    /// Every lease that is open, or whose end is not proved.
    pub(crate) fn list_leases(&mut self, key: u64, now: Instant) {
        let mut list = self.leases.describe(now);
        list.extend(self.scopes.describe_leases());
        self.control.reply(key, &Reply::Leases(list), &[]);
    }

    /// Somebody asks for a lease. Whatever stands against it is told, and is on record.
    pub(crate) fn grant(
        &mut self,
        key: u64,
        request: GrantRequest,
        descriptors: Vec<OwnedFd>,
        now: Instant,
    ) -> Result<(), RunError> {
        let origin = LeaseOrigin::Operator;
        let before = self.leases.pace.count(now);
        let mut descriptors = descriptors.into_iter();
        let first = descriptors.next();
        let seen = match (&request.wanted, &first) {
            (Wanted::Path { .. }, None) => {
                let reason = "nothing was named: the path comes as a descriptor";
                self.control.refuse(key, reason);
                return Ok(());
            }
            (Wanted::Path { .. }, Some(handle)) => match facts::look(handle) {
                Ok(seen) => Some(seen),
                Err(error) => {
                    self.control
                        .refuse(key, format!("it cannot be looked at: {error}"));
                    return Ok(());
                }
            },
            (Wanted::Other(_), _) => None,
        };
        let (what, named) = match (&request.wanted, &seen) {
            (Wanted::Path { right }, Some(seen)) => (
                ironcage_lease::Wanted::Path(AskedPath {
                    path: &seen.path,
                    right: *right,
                    facts: seen.facts.clone(),
                }),
                Resource::Path {
                    path: seen.path.to_string_lossy().into_owned(),
                    right: *right,
                },
            ),
            (Wanted::Other(resource), _) => {
                (ironcage_lease::Wanted::Other(resource), resource.clone())
            }
            (Wanted::Path { .. }, None) => return Ok(()),
        };
        let asked = Asked {
            what,
            term: request.term,
            uses: request.uses,
            scope: Scope::Cage,
            origin,
        };
        let history = History {
            open: self.leases.held.iter().map(|h| h.lease.clone()).collect(),
            asked: before,
        };
        let given = match decide(self.plan, &asked, &history) {
            Decision::Give { given, .. } => given,
            Decision::Base { reason } => {
                self.control.reply(key, &Reply::InBase { reason }, &[]);
                return Ok(());
            }
            Decision::Ask { reason } | Decision::Refuse { reason } => {
                return self.refuse_lease(key, named, origin, reason);
            }
        };
        if self.control.stopping.is_some() {
            self.control.refuse(key, "the cage is being stopped");
            return Ok(());
        }
        let Given {
            resource,
            term,
            uses,
            approver,
        } = given;
        self.leases.last = self.leases.last.wrapping_add(1).max(1);
        let number = self.leases.last;
        let asked = Ready {
            number,
            identity: seen.map(|seen| seen.identity),
            descriptor: first,
        };
        // Whatever stands against it in the host is found before it is on record.
        let means = match self.means_of(&resource, &asked) {
            Ok(found) => found,
            Err(reason) => return self.refuse_lease(key, resource, origin, reason),
        };
        let lease = Lease {
            number,
            resource,
            scope: Scope::Cage,
            term,
            uses,
            reason: request.reason.chars().take(REASON).collect(),
            origin,
            approver,
        };
        // On record before anything is open: whoever kills us now leaves no lease that the
        // record does not know.
        self.recorder.write(EventKind::Lease(lease.clone()))?;
        step();
        self.leases.held.push(Held {
            lease,
            born: now,
            until: None,
            stage: Stage::Opening {
                client: key,
                by: now + PATIENCE,
            },
            // The door counts what goes through it by itself.
            left: match &means {
                Means::Door {
                    what: Told::Port(_) | Told::Socket(_),
                    ..
                } => uses,
                _ => None,
            },
            means,
            waiting: Vec::new(),
            cause: "it could not be opened",
            holders: Vec::new(),
        });
        self.open_lease(&asked, now)
    }

    fn refuse_lease(
        &mut self,
        key: u64,
        resource: Resource,
        origin: LeaseOrigin,
        reason: String,
    ) -> Result<(), RunError> {
        self.control.refuse(key, reason.clone());
        // However many ask: a record that nobody can read through tells nothing.
        let pace = &mut self.leases.pace;
        if pace.asked > MOST_ASKED {
            pace.unrecorded = pace.unrecorded.saturating_add(1);
            return Ok(());
        }
        self.recorder.write(EventKind::LeaseRefused {
            resource,
            origin,
            reason,
            unrecorded: std::mem::take(&mut pace.unrecorded),
        })
    }

    fn start_keeper(&mut self) -> Result<(), String> {
        if self.leases.keeper.is_some() {
            return Ok(());
        }
        let backend = backend(self.plan.rung.what.isolation);
        let keeper = backend.keeper(self.plan, &self.cage).map_err(|error| {
            let source = std::error::Error::source(&error);
            source.map_or(error.to_string(), |source| format!("{error}: {source}"))
        })?;
        self.leases.keeper = Some(keeper);
        Ok(())
    }

    /// Gives an order to the keeper. Where it takes none, the leases are ended with the cage.
    fn order(&mut self, order: &LeaseOrder) -> Result<(), RunError> {
        step();
        let taken = match &self.leases.keeper {
            Some(keeper) => keeper.order(order).is_ok(),
            None => false,
        };
        match taken {
            true => Ok(()),
            false => self.lose_keeper(),
        }
    }

    /// Takes what the keeper answers.
    pub(crate) fn hear_keeper(&mut self, now: Instant) -> Result<(), RunError> {
        let Some(keeper) = &self.leases.keeper else {
            return Ok(());
        };
        match keeper.hear() {
            Ok(None) => Ok(()),
            Ok(Some(Kept::Opened { number, failed })) => self.opened(number, failed, now),
            Ok(Some(Kept::Ended {
                number,
                progress,
                holders,
                ..
            })) => self.came(number, progress, holders, now),
            Err(_) => self.lose_keeper(),
        }
    }

    fn opened(
        &mut self,
        number: u32,
        failed: Option<String>,
        now: Instant,
    ) -> Result<(), RunError> {
        step();
        let Some(index) = self.leases.position(number) else {
            return Ok(());
        };
        let Some(held) = self.leases.held.get_mut(index) else {
            return Ok(());
        };
        let Stage::Opening { client, .. } = held.stage else {
            return Ok(());
        };
        if let Some(reason) = failed {
            self.control.refuse(client, reason);
            return self.not_opened(index);
        }
        held.stage = Stage::Open;
        held.cause = "nothing more is known of it";
        held.born = now;
        // Taken back before it was open: then it ends at once.
        held.until = held.until.or(match held.lease.term {
            Term::Milliseconds(time) => now.checked_add(Duration::from_millis(time)),
            Term::UntilRevoked => None,
        });
        let lease = held.lease.clone();
        self.control.reply(client, &Reply::Granted(lease), &[]);
        Ok(())
    }
}
