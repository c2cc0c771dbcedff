//! The log of connections: sums for the audit log, each one for whoever watches, and how
//! much more may go out.

use crate::connections::OpenConnection;
use crate::decide::Denied;
use crate::limits::Meter;
use crate::traffic_counters::{Sums, TrafficCounters, TrafficEvent};
use crate::wire::{self, FromProxy};
use ironcage_model::{
    Flow, FlowRequest, FlowStep, NetworkLimits, NetworkVerdict, Overheard, Reason, Traffic,
};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{SendFlags, send};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

/// Those who watch at once.
const WATCHERS: usize = 8;

/// How soon something is said again that the supervisor had no room for.
const RETRY: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct Watcher {
    socket: OwnedFd,
    lost: Cell<u64>,
}

/// The traffic_log of a door.
#[derive(Debug)]
pub(crate) struct TrafficLog {
    pub(crate) meter: Meter,
    counters: RefCell<TrafficCounters>,
    watchers: RefCell<Vec<Watcher>>,
    /// Answers that the supervisor had no room for.
    unsaid: RefCell<VecDeque<FromProxy>>,
    /// What was read of models' exchanges and could not be told: how often, and why.
    unheard: RefCell<(u64, String)>,
    supervisor: OwnedFd,
}

impl TrafficLog {
    pub(crate) fn new(limits: NetworkLimits, supervisor: OwnedFd) -> Self {
        TrafficLog {
            meter: Meter::new(limits),
            counters: RefCell::default(),
            watchers: RefCell::default(),
            unsaid: RefCell::default(),
            unheard: RefCell::default(),
            supervisor,
        }
    }

    pub(crate) fn supervisor(&self) -> BorrowedFd<'_> {
        self.supervisor.as_fd()
    }

    /// Counts what was refused, and tells of it where it is the first of its kind.
    pub(crate) fn refuse(&self, open: Option<&OpenConnection>, kind: TrafficEvent) {
        self.watch(open, FlowStep::Refused, &kind, (0, 0), None);
        self.enter(kind);
    }

    /// Counts what was allowed and found nobody.
    pub(crate) fn fail(&self, open: &OpenConnection, kind: TrafficEvent) {
        self.watch(Some(open), FlowStep::Failed, &kind, (0, 0), None);
        self.enter(kind);
    }

    /// Counts a request that was answered. Its bytes are its connection's.
    pub(crate) fn note(&self, kind: TrafficEvent) {
        self.enter(kind);
    }

    fn enter(&self, kind: TrafficEvent) -> Rc<Sums> {
        let (sums, told) = self.counters.borrow_mut().open(kind);
        if let Some(told) = told {
            self.tell(told, FromProxy::Traffic);
        }
        sums
    }

    fn tell(&self, told: Traffic, how: fn(Traffic) -> FromProxy) {
        let message = how(told);
        if !matches!(wire::say(self.supervisor(), &message), Ok(true))
            && let FromProxy::Traffic(told) | FromProxy::Sum(told) = &message
        {
            // The supervisor is busy: it hears of it with the next sums.
            self.counters.borrow_mut().put_back(told);
        }
    }

    /// Tells the sums that were not told yet.
    pub(crate) fn tell_sums(&self) {
        let sums = self.counters.borrow().sums();
        for told in sums {
            self.tell(told, FromProxy::Sum);
        }
    }

    /// Tells what was read of a model's exchange. The supervisor is not waited for: what it has
    /// no room for is told as not read, with what comes next.
    pub(crate) fn overhear(&self, overheard: Overheard) {
        let (lost, why) = self.unheard.take();
        let told = if lost == 0 {
            true
        } else {
            let before = FromProxy::Overheard(Overheard::NotRead {
                times: lost,
                why: why.clone(),
            });
            matches!(wire::say(self.supervisor(), &before), Ok(true))
        };
        let (mut times, mut last) = match told {
            true => (0, String::new()),
            false => (lost, why),
        };
        let more = match &overheard {
            Overheard::NotRead { times, why } => (*times, why.clone()),
            Overheard::Call(_) | Overheard::Words(_) | Overheard::Returned(_) => {
                (1, "the supervisor had no room for it".to_owned())
            }
        };
        let message = FromProxy::Overheard(overheard);
        if !told || !matches!(wire::say(self.supervisor(), &message), Ok(true)) {
            times = times.saturating_add(more.0);
            last = more.1;
        }
        self.unheard.replace((times, last));
    }

    /// Says something to the supervisor, now or as soon as there is room.
    pub(crate) fn answer(self: &Rc<Self>, message: FromProxy) {
        let waits = !self.unsaid.borrow().is_empty();
        self.unsaid.borrow_mut().push_back(message);
        if !waits && !self.say_on() {
            let traffic_log = Rc::clone(self);
            tokio::task::spawn_local(async move {
                while !traffic_log.say_on() {
                    tokio::time::sleep(RETRY).await;
                }
            });
        }
    }

    /// Says what could not be said before. `false` while something is left.
    fn say_on(&self) -> bool {
        let mut unsaid = self.unsaid.borrow_mut();
        while let Some(message) = unsaid.front() {
            match wire::say(self.supervisor(), message) {
                Ok(false) => return false,
                // Said, or there is nobody left to hear it.
                Ok(true) | Err(_) => drop(unsaid.pop_front()),
            }
        }
        true
    }

    /// Somebody watches from now on. Of many the oldest is let go.
    pub(crate) fn add_watcher(&self, socket: OwnedFd) {
        let mut watchers = self.watchers.borrow_mut();
        if watchers.len() >= WATCHERS {
            watchers.remove(0);
        }
        watchers.push(Watcher {
            socket,
            lost: Cell::new(0),
        });
    }

    fn watch(
        &self,
        open: Option<&OpenConnection>,
        step: FlowStep,
        kind: &TrafficEvent,
        (sent, received): (u64, u64),
        request: Option<FlowRequest>,
    ) {
        let mut watchers = self.watchers.borrow_mut();
        if watchers.is_empty() {
            return;
        }
        let mut flow = Flow {
            number: open.map_or(0, |open| open.number),
            step,
            from: open.map_or(0, |open| open.from),
            lost: 0,
            request,
            traffic: kind.traffic(1, sent, received),
        };
        watchers.retain(|watcher| {
            flow.lost = watcher.lost.get();
            let Ok(bytes) = serde_json::to_vec(&flow) else {
                return true;
            };
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match send(&watcher.socket, &bytes, flags) {
                Ok(_) => watcher.lost.set(0),
                Err(Errno::AGAIN) => watcher.lost.set(flow.lost.saturating_add(1)),
                // Gone.
                Err(_) => return false,
            }
            true
        });
    }
}

/// The count of one connection that was let through. Its end is told when it is dropped.
#[derive(Debug)]
pub(crate) struct Counts {
    traffic_log: Rc<TrafficLog>,
    open: Rc<OpenConnection>,
    kind: TrafficEvent,
    sums: Rc<Sums>,
    host: Rc<Cell<u64>>,
    sent: Cell<u64>,
    received: Cell<u64>,
    stopped: Cell<bool>,
}

impl Counts {
    /// Counts a connection that is let through, and tells of it.
    pub(crate) fn begin(
        traffic_log: &Rc<TrafficLog>,
        open: &Rc<OpenConnection>,
        host: &Rc<Cell<u64>>,
        kind: TrafficEvent,
    ) -> Self {
        traffic_log.watch(Some(open), FlowStep::Opened, &kind, (0, 0), None);
        Counts {
            sums: traffic_log.enter(kind.clone()),
            traffic_log: Rc::clone(traffic_log),
            open: Rc::clone(open),
            kind,
            host: Rc::clone(host),
            sent: Cell::new(0),
            received: Cell::new(0),
            stopped: Cell::new(false),
        }
    }

    /// Counts bytes that are about to go out.
    ///
    /// # Errors
    /// Where they are more than may: then they do not go, and the connection ends.
    pub(crate) fn send(&self, bytes: u64) -> io::Result<()> {
        if let Err(denied) = self.traffic_log.meter.send(&self.host, bytes) {
            self.stop(&denied);
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                Reason::from(denied.reason),
            ));
        }
        self.sent.set(self.sent.get().saturating_add(bytes));
        self.sums.sent(bytes);
        Ok(())
    }

    /// Counts bytes that came in.
    pub(crate) fn received(&self, bytes: u64) {
        self.received.set(self.received.get().saturating_add(bytes));
        self.sums.received(bytes);
    }

    /// Whether another request may go out. The first of a connection was asked for when the
    /// connection was.
    pub(crate) fn requests(&self, first: bool) -> Result<(), Denied> {
        match first {
            true => Ok(()),
            false => self.traffic_log.meter.request(std::time::Instant::now()),
        }
    }

    /// Whether a request may have a body of so many bytes as it says.
    pub(crate) fn says_body(&self, bytes: u64) -> Result<(), Denied> {
        self.traffic_log.meter.body(bytes)
    }

    /// Whether a body may have become so long.
    ///
    /// # Errors
    /// Where it may not: then the rest does not go, and the connection ends.
    pub(crate) fn body(&self, bytes: u64) -> io::Result<()> {
        self.traffic_log.meter.body(bytes).map_err(|denied| {
            self.stop(&denied);
            io::Error::new(io::ErrorKind::QuotaExceeded, Reason::from(denied.reason))
        })
    }

    /// Tells a request and the status of its answer to whoever watches.
    pub(crate) fn tell_request(&self, method: &str, path: &str, status: u16) {
        if self.traffic_log.watchers.borrow().is_empty() {
            return;
        }
        let path = path.split('?').next().unwrap_or_default();
        let request = FlowRequest {
            method: method.chars().take(32).collect(),
            path: path.chars().take(512).collect(),
            status,
        };
        let bytes = (self.sent.get(), self.received.get());
        let open = Some(self.open.as_ref());
        self.traffic_log
            .watch(open, FlowStep::Request, &self.kind, bytes, Some(request));
    }

    /// Records once that a limit ended it.
    fn stop(&self, denied: &Denied) {
        if !self.stopped.replace(true) {
            let kind = TrafficEvent {
                verdict: NetworkVerdict::Denied,
                // No rule denies it.
                rule: None,
                reason: Some(denied.reason.clone().into()),
                ..self.kind.clone()
            };
            self.traffic_log.refuse(Some(&self.open), kind);
        }
    }
}

impl Drop for Counts {
    fn drop(&mut self) {
        let bytes = (self.sent.get(), self.received.get());
        let open = Some(self.open.as_ref());
        self.traffic_log
            .watch(open, FlowStep::Closed, &self.kind, bytes, None);
    }
}

#[cfg(test)]
impl Counts {
    /// For a connection that nobody hears of.
    pub(crate) fn uncounted() -> Self {
        use ironcage_model::Protocol;
        use ironcage_sys::rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (_, supervisor) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let traffic_log = Rc::new(TrafficLog::new(NetworkLimits::default(), supervisor));
        let kind = TrafficEvent {
            verdict: NetworkVerdict::Allowed,
            host: "a.com".into(),
            port: 80,
            protocol: Protocol::Http,
            address: None,
            rule: None,
            reason: None,
            request: None,
            status: None,
        };
        Counts::begin(&traffic_log, &Rc::default(), &Rc::default(), kind)
    }
}
