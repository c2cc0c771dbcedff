//! The connections that are there, so that those can be ended that no longer match.

use crate::decide::{Denied, Rules, Target};
use ironcage_model::{HttpRule, NetworkReason};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::AbortHandle;

/// How far a connection is looked into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Looked {
    /// Not into its requests.
    Closed,
    /// Into every request: those that were allowed when it began, `None` where all were.
    Opened(Option<Vec<HttpRule>>),
}

impl Looked {
    /// Whether a connection may go on where these requests are allowed now: the next ones are
    /// held to them, but those that are under way were allowed before.
    fn still_holds(&self, now: Option<Vec<HttpRule>>) -> Result<(), Denied> {
        let narrower = match (self, now) {
            (_, None) => false,
            (Looked::Closed | Looked::Opened(None), Some(_)) => true,
            (Looked::Opened(Some(before)), Some(now)) => {
                before.iter().any(|rule| !now.contains(rule))
            }
        };
        match narrower {
            true => Err(Denied::because(NetworkReason::RequestRulesChanged)),
            false => Ok(()),
        }
    }
}

/// One connection of the cage's.
#[derive(Debug, Default)]
pub(crate) struct OpenConnection {
    pub(crate) number: u64,
    /// The port inside from which it came.
    pub(crate) from: u16,
    /// Where to, once that is decided, and how far it is looked into.
    target: RefCell<Option<(Target, u16, Looked)>>,
    /// Where the name led to.
    address: Cell<Option<IpAddr>>,
    /// How long it took to connect there.
    round_trip: Cell<Duration>,
    /// The port of the host's at which it came in, where it did.
    published: Cell<Option<u16>>,
    /// The socket of the host's to which it is carried, where it is.
    carried: RefCell<Option<String>>,
    task: RefCell<Option<AbortHandle>>,
}

impl OpenConnection {
    /// It was let through to there.
    pub(crate) fn lets(&self, target: Target, port: u16, looked: Looked) {
        self.target.replace(Some((target, port, looked)));
    }

    /// The name led to this address.
    pub(crate) fn leads_to(&self, address: IpAddr) {
        self.address.set(Some(address));
    }

    /// Where it led to; `None` where that is not known here.
    pub(crate) fn led_to(&self) -> Option<IpAddr> {
        self.address.get()
    }

    /// It took this long to connect there.
    pub(crate) fn connected_in(&self, round_trip: Duration) {
        self.round_trip.set(round_trip);
    }

    pub(crate) fn round_trip(&self) -> Duration {
        self.round_trip.get()
    }

    /// It came in at this port of the host's.
    pub(crate) fn published(&self, outer: u16) {
        self.published.set(Some(outer));
    }

    /// It is carried to this socket of the host's.
    pub(crate) fn carried_to(&self, name: &str) {
        self.carried.replace(Some(name.to_owned()));
    }

    /// The task that serves it.
    pub(crate) fn served_by(&self, task: AbortHandle) {
        self.task.replace(Some(task));
    }

    /// Whether it still may be there.
    fn matches(&self, rules: &Rules) -> Result<(), (Target, u16, Denied)> {
        let target = self.target.borrow();
        let Some((target, port, looked)) = &*target else {
            // It is decided by the rules as they are by then.
            return Ok(());
        };
        let still = rules
            .decide(target, *port)
            .and_then(|_| match (target, self.address.get()) {
                (Target::Name(name), Some(address)) if !rules.is_host(name) => {
                    rules.may_lead_to(address, *port)
                }
                _ => Ok(()),
            })
            .and_then(|()| match target {
                Target::Name(name) => looked.still_holds(rules.requests(name, *port)),
                _ => Ok(()),
            });
        still.map_err(|denied| (target.clone(), *port, denied))
    }
}

/// A connection that no longer matches and is being ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) open: Rc<OpenConnection>,
    pub(crate) task: AbortHandle,
    pub(crate) target: Target,
    pub(crate) port: u16,
    pub(crate) denied: Denied,
}

fn abort(tasks: impl Iterator<Item = AbortHandle>) -> Vec<AbortHandle> {
    tasks.inspect(AbortHandle::abort).collect()
}

/// All connections that are there.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    all: RefCell<HashMap<u64, Rc<OpenConnection>>>,
    last: Cell<u64>,
}

impl Registry {
    pub(crate) fn count(&self) -> u64 {
        self.all.borrow().len() as u64
    }

    /// Another one, from a port inside.
    pub(crate) fn enter(&self, from: u16) -> Rc<OpenConnection> {
        let number = self.last.get().wrapping_add(1);
        self.last.set(number);
        let open = Rc::new(OpenConnection {
            number,
            from,
            ..OpenConnection::default()
        });
        self.all.borrow_mut().insert(number, Rc::clone(&open));
        open
    }

    pub(crate) fn leave(&self, open: &OpenConnection) {
        self.all.borrow_mut().remove(&open.number);
    }

    /// Ends what came in at a port of the host's.
    pub(crate) fn end_published(&self, outer: u16) -> Vec<AbortHandle> {
        let all = self.all.borrow();
        let came = all
            .values()
            .filter(|open| open.published.get() == Some(outer));
        abort(came.filter_map(|open| open.task.take()))
    }

    /// Ends what is carried to a socket of the host's.
    pub(crate) fn end_carried(&self, name: &str) -> Vec<AbortHandle> {
        let all = self.all.borrow();
        let carried = all
            .values()
            .filter(|open| open.carried.borrow().as_deref() == Some(name));
        abort(carried.filter_map(|open| open.task.take()))
    }

    /// Ends what no longer matches; who that was.
    pub(crate) fn end_unmatched(&self, rules: &Rules) -> Vec<Ended> {
        let all = self.all.borrow();
        let mut ended = Vec::new();
        for open in all.values() {
            if let Err((target, port, denied)) = open.matches(rules)
                && let Some(task) = open.task.take()
            {
                task.abort();
                ended.push(Ended {
                    open: Rc::clone(open),
                    task,
                    target,
                    port,
                    denied,
                });
            }
        }
        ended
    }
}
