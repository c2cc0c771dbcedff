//! Ports of the cage's that are reached at the host's loopback.
//!
//! The listening socket was made outside and comes from the supervisor; a connection into the
//! cage is begun by its PID 1, which is there. This process makes neither.

use crate::connections::OpenConnection;
use crate::relay::relay;
use crate::serve::Service;
use crate::traffic_counters::TrafficEvent;
use crate::traffic_log::Counts;
use crate::wire::FromProxy;
use ironcage_model::{NetworkReason, NetworkVerdict, Protocol, Publish, Reason};
use ironcage_sys::rustix::net::sockopt::set_socket_linger;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// How long a connection into the cage may take to come about.
const PATIENCE: Duration = Duration::from_secs(15);

/// What PID 1 answered: nothing yet, or a socket if it had one.
#[derive(Debug, Default)]
struct Awaited {
    answer: RefCell<Option<Option<OwnedFd>>>,
    waker: RefCell<Option<Waker>>,
}

/// The ports that are published, and connections into the cage that are awaited.
#[derive(Debug, Default)]
pub(crate) struct Publishing {
    ports: RefCell<HashMap<u16, AbortHandle>>,
    awaited: RefCell<HashMap<u32, Rc<Awaited>>>,
    last: Cell<u32>,
}

/// Forgets what is awaited when nobody waits for it any more.
struct Ticket<'a> {
    publishing: &'a Publishing,
    number: u32,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.publishing.awaited.borrow_mut().remove(&self.number);
    }
}

impl Publishing {
    /// PID 1 has answered.
    pub(crate) fn dialled(&self, ticket: u32, socket: Option<OwnedFd>) {
        if let Some(awaited) = self.awaited.borrow().get(&ticket) {
            awaited.answer.replace(Some(socket));
            if let Some(waker) = awaited.waker.take() {
                waker.wake();
            }
        }
    }

    /// Whether a loopback port of the host leads into the cage.
    pub(crate) fn publishes(&self, outer: u16) -> bool {
        self.ports.borrow().contains_key(&outer)
    }

    /// A port is no longer published.
    pub(crate) fn end(&self, outer: u16) {
        if let Some(task) = self.ports.borrow_mut().remove(&outer) {
            task.abort();
        }
    }
}

impl Service {
    /// Publishes a port whose listening socket the supervisor has.
    ///
    /// # Errors
    /// Where it is no listening socket.
    pub(crate) fn publish(self: &Rc<Self>, publish: Publish, listener: OwnedFd) -> io::Result<()> {
        let listener = std::net::TcpListener::from(listener);
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let task = tokio::task::spawn_local(accept(Rc::clone(self), publish, listener));
        self.publishing.end(publish.outer);
        let handle = task.abort_handle();
        self.publishing
            .ports
            .borrow_mut()
            .insert(publish.outer, handle);
        Ok(())
    }

    /// A connection into the cage.
    async fn dial(&self, port: u16) -> Option<TcpStream> {
        for six in [false, true] {
            let socket = timeout(PATIENCE, self.begin(port, six)).await.ok()?;
            let Some(stream) = socket.and_then(|socket| {
                let stream = std::net::TcpStream::from(socket);
                stream.set_nonblocking(true).ok()?;
                TcpStream::from_std(stream).ok()
            }) else {
                continue;
            };
            let came = timeout(PATIENCE, stream.writable()).await;
            if matches!(came, Ok(Ok(()))) && matches!(stream.take_error(), Ok(None)) {
                return Some(stream);
            }
        }
        None
    }

    async fn begin(&self, port: u16, six: bool) -> Option<OwnedFd> {
        let publishing = &self.publishing;
        let number = publishing.last.get().wrapping_add(1);
        publishing.last.set(number);
        let ticket = Ticket { publishing, number };
        let awaited = Rc::new(Awaited::default());
        publishing
            .awaited
            .borrow_mut()
            .insert(ticket.number, Rc::clone(&awaited));
        self.traffic_log.answer(FromProxy::Dial {
            ticket: number,
            port,
            six,
        });
        poll_fn(|context| match awaited.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                awaited.waker.replace(Some(context.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}

fn kind(publish: Publish, verdict: NetworkVerdict, reason: Option<NetworkReason>) -> TrafficEvent {
    TrafficEvent {
        verdict,
        host: "(the cage)".into(),
        port: publish.inner,
        protocol: Protocol::Tcp,
        address: None,
        rule: Some(format!("publish {publish}")),
        reason: reason.map(Reason::from),
        request: None,
        status: None,
    }
}

async fn accept(service: Rc<Service>, publish: Publish, listener: TcpListener) {
    loop {
        let (client, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                // No descriptor left, or the client went away again.
                sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let Some(slot) = service.admit(from.port()) else {
            let _ = set_socket_linger(&client, Some(Duration::ZERO));
            continue;
        };
        let open = slot.open();
        let task = tokio::task::spawn_local(async move {
            let open = slot.open();
            carry(slot.service(), &open, publish, client).await;
        });
        open.published(publish.outer);
        open.served_by(task.abort_handle());
    }
}

async fn carry(service: &Service, open: &Rc<OpenConnection>, publish: Publish, client: TcpStream) {
    let reset = |client: &TcpStream| {
        let _ = set_socket_linger(client, Some(Duration::ZERO));
    };
    let Some(inside) = service.dial(publish.inner).await else {
        let reason = NetworkReason::NobodyListens;
        let kind = kind(publish, NetworkVerdict::Allowed, Some(reason));
        service.traffic_log.fail(open, kind);
        return reset(&client);
    };
    let host = service
        .traffic_log
        .meter
        .published(&format!("publish {publish}"));
    let kind = kind(publish, NetworkVerdict::Allowed, None);
    let counts = Counts::begin(&service.traffic_log, open, &host, kind);
    let _ = client.set_nodelay(true);
    let _ = inside.set_nodelay(true);
    if relay(&inside, &client, &counts).await.is_err() {
        reset(&client);
    }
}
