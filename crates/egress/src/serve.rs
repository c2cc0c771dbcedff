//! The proxy at work: one thread that answers questions for names and carries connections.

use crate::connection;
use crate::connections::{Ended, OpenConnection, Registry};
use crate::decide::{Denied, Rules, Target};
use crate::dns::{self, A, AAAA, Code, DnsMessage};
use crate::names::Names;
use crate::order::{self, Order, OrderMessage};
use crate::publish::Publishing;
use crate::reader::Reader;
use crate::resolve::Resolver;
use crate::secret::SecretStore;
use crate::sockets;
use crate::tls::TlsInterceptor;
use crate::traffic_counters::TrafficEvent;
use crate::traffic_log::TrafficLog;
use crate::upstream::Upstream;
use crate::wire::{FromProxy, Sockets};
use ironcage_model::{HOST_NAME, HostName, NetworkReason, NetworkVerdict, Protocol};
use ironcage_plan::Models;
use ironcage_sys::faults::proxy_step;
use ironcage_sys::inet::{receive_datagram, send_datagram};
use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{TcpListener, UdpSocket, UnixDatagram};
use tokio::runtime::Runtime;
use tokio::task::{AbortHandle, LocalSet};
use tokio::time::sleep;

/// How often sums are told.
const TELL: Duration = Duration::from_secs(10);
/// Connections at once, at most; fewer where the host's limit on descriptors is lower.
pub(crate) const MOST: u64 = 2048;

/// What all connections of a proxy share.
pub(crate) struct Service {
    pub(crate) rules: Rc<Rules>,
    pub(crate) resolver: Resolver,
    pub(crate) upstream: Rc<Upstream>,
    /// What opens TLS, where a rule needs it.
    pub(crate) interceptor: Option<TlsInterceptor>,
    pub(crate) store: Rc<SecretStore>,
    pub(crate) traffic_log: Rc<TrafficLog>,
    names: RefCell<Names>,
    registry: Registry,
    pub(crate) publishing: Publishing,
    /// Who reads what models answer, where it is read.
    pub(crate) reader: Option<Rc<Reader>>,
    most: u64,
}

/// A connection that counts while it is there.
pub(crate) struct Slot {
    service: Rc<Service>,
    open: Rc<OpenConnection>,
}

impl Slot {
    pub(crate) fn service(&self) -> &Rc<Service> {
        &self.service
    }

    pub(crate) fn open(&self) -> Rc<OpenConnection> {
        Rc::clone(&self.open)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.service.registry.leave(&self.open);
    }
}

impl Service {
    /// `files` is how many descriptors the process can have.
    pub(crate) fn new(
        rules: Rules,
        (resolver, upstream): (Resolver, Rc<Upstream>),
        (interceptor, store): (Option<TlsInterceptor>, SecretStore),
        files: u64,
        traffic_log: TrafficLog,
    ) -> Self {
        Service {
            rules: Rc::new(rules),
            resolver,
            upstream,
            interceptor,
            store: Rc::new(store),
            traffic_log: Rc::new(traffic_log),
            names: RefCell::default(),
            registry: Registry::default(),
            publishing: Publishing::default(),
            reader: None,
            // Two descriptors each, and some for resolvers and the proxy itself.
            most: (files.saturating_sub(64) / 2).clamp(16, MOST),
        }
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> u64 {
        self.registry.count()
    }

    /// Whether requests to a port of a name are read, be they in TLS or not.
    pub(crate) fn opens(&self, name: &HostName, port: u16) -> bool {
        self.rules.requests(name, port).is_some()
            || self.store.is_for(name, port)
            || self.reads(name, port).is_some()
    }

    /// Who reads the answers of a port of a name, where they are read.
    pub(crate) fn reads(&self, name: &HostName, port: u16) -> Option<&Rc<Reader>> {
        let reader = self.reader.as_ref().filter(|_| self.interceptor.is_some());
        reader.filter(|reader| reader.is_for(name, port))
    }

    /// What a connection to an address of the cage's is for.
    pub(crate) fn target(&self, address: IpAddr) -> Result<Target, Denied> {
        match self.names.borrow().name(address) {
            Some(Some(name)) => return Ok(Target::Name(name.clone())),
            Some(None) => return Err(Denied::because(NetworkReason::AddressUnassigned)),
            None => {}
        }
        if address.is_loopback() {
            return Ok(Target::Host);
        }
        Ok(Target::Address(address))
    }

    /// Whether another connection may be there.
    fn has_room(&self) -> Result<(), Denied> {
        let open = self.registry.count();
        if open >= self.most {
            let limit = self.most;
            return Err(Denied::because(NetworkReason::TooManyConnections { limit }));
        }
        self.traffic_log.meter.connection(open)
    }

    /// A place for another connection, from a port; none where there are too many, which is
    /// recorded.
    pub(crate) fn admit(self: &Rc<Self>, from: u16) -> Option<Slot> {
        if let Err(denied) = self.has_room() {
            let kind = TrafficEvent {
                verdict: NetworkVerdict::Denied,
                host: "(any)".into(),
                port: 0,
                protocol: Protocol::Tcp,
                address: None,
                rule: None,
                reason: Some(denied.reason.into()),
                request: None,
                status: None,
            };
            self.traffic_log.refuse(None, kind);
            return None;
        }
        Some(Slot {
            service: Rc::clone(self),
            open: self.registry.enter(from),
        })
    }

    /// Does what the supervisor orders.
    fn obey(self: &Rc<Self>, order: Order, descriptors: Vec<OwnedFd>) {
        proxy_step();
        let (serial, ended) = match order {
            Order::Rules {
                serial,
                add,
                remove,
            } => {
                self.rules.change(add, &remove);
                (serial, self.end_unmatched())
            }
            Order::Limits { serial, limits } => {
                self.traffic_log.meter.set(limits);
                (serial, Vec::new())
            }
            Order::Publish { serial, publish } => {
                for listener in descriptors {
                    // What is no listening socket is closed, and nobody reaches it.
                    let _ = self.publish(publish, listener);
                }
                (serial, Vec::new())
            }
            Order::Unpublish { serial, outer } => {
                self.publishing.end(outer);
                (serial, self.registry.end_published(outer))
            }
            Order::Secret { serial, name, uses } => {
                self.store.lease(&name, uses);
                (serial, Vec::new())
            }
            Order::Drop { serial, name } => (serial, self.registry.end_carried(&name)),
            Order::Carry { name } => {
                if let Ok([inside, outside]) = <[OwnedFd; 2]>::try_from(descriptors) {
                    sockets::carry(self, name, inside, outside);
                }
                return;
            }
            Order::Dialled { ticket } => {
                let socket = descriptors.into_iter().next();
                return self.publishing.dialled(ticket, socket);
            }
            Order::Watch => {
                for socket in descriptors {
                    self.traffic_log.add_watcher(socket);
                }
                return;
            }
        };
        proxy_step();
        self.answer_when_ended(serial, ended);
        proxy_step();
    }

    /// Says that a change holds once all that it ends is closed, not only about to be.
    fn answer_when_ended(self: &Rc<Self>, serial: u32, ended: Vec<AbortHandle>) {
        let closed = ended.len() as u64;
        let changed = FromProxy::Changed { serial, closed };
        if ended.iter().all(AbortHandle::is_finished) {
            return self.traffic_log.answer(changed);
        }
        let traffic_log = Rc::clone(&self.traffic_log);
        tokio::task::spawn_local(async move {
            while !ended.iter().all(AbortHandle::is_finished) {
                tokio::task::yield_now().await;
            }
            traffic_log.answer(changed);
        });
    }

    /// Ends connections that no longer match.
    fn end_unmatched(&self) -> Vec<AbortHandle> {
        let ended = self.registry.end_unmatched(&self.rules);
        let mut tasks = Vec::new();
        for Ended {
            open,
            task,
            target,
            port,
            denied,
        } in ended
        {
            let kind = TrafficEvent {
                verdict: NetworkVerdict::Denied,
                host: target.to_string(),
                port,
                protocol: Protocol::Tcp,
                address: None,
                rule: denied.rule.clone(),
                reason: Some(
                    NetworkReason::Closed {
                        because: denied.reason.to_string(),
                    }
                    .into(),
                ),
                request: None,
                status: None,
            };
            self.traffic_log.refuse(Some(&open), kind);
            tasks.push(task);
        }
        tasks
    }
}

/// The runtime of a process that confines itself afterwards. Where another program of the same build
/// uses tokio's signals, the runtime makes a pair of sockets, which a confined process may not.
pub(crate) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
}

/// Serves until the supervisor is gone.
pub(crate) fn run(
    runtime: &Runtime,
    mut service: Service,
    sockets: Sockets,
    reader: Option<(OwnedFd, &Models)>,
) -> io::Result<()> {
    let tasks = LocalSet::new();
    if let Some((socket, models)) = reader {
        let _guard = (runtime.enter(), tasks.enter());
        service.reader = Some(Reader::new(models, socket, &service.traffic_log)?);
    }
    let service = Rc::new(service);
    for listener in sockets.listeners {
        let _guard = runtime.enter();
        let listener = TcpListener::from_std(listener.into())?;
        tasks.spawn_local(accept(Rc::clone(&service), listener));
    }
    tasks.spawn_local(answer(Rc::clone(&service), sockets.dns));
    let teller = Rc::clone(&service);
    tasks.spawn_local(async move {
        loop {
            sleep(TELL).await;
            teller.traffic_log.tell_sums();
        }
    });
    let ended = Rc::clone(&service);
    tasks.block_on(runtime, async move { until_gone(&ended).await })?;
    service.traffic_log.tell_sums();
    Ok(())
}

/// Obeys the supervisor until it closes its end, which it does when the cage is gone.
async fn until_gone(service: &Rc<Service>) -> io::Result<()> {
    // A socket of packets, of which only its readiness is used.
    let supervisor = service.traffic_log.supervisor();
    let socket = std::os::unix::net::UnixDatagram::from(supervisor.try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let socket = UnixDatagram::from_std(socket)?;
    loop {
        socket.readable().await?;
        let heard = socket.try_io(Interest::READABLE, || {
            order::hear(supervisor)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
        });
        match heard {
            Ok(OrderMessage::Order(order, descriptors)) => service.obey(order, descriptors),
            Ok(OrderMessage::Over) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Ok(()),
        }
    }
}

async fn accept(service: Rc<Service>, listener: TcpListener) {
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
            let linger = ironcage_sys::rustix::net::sockopt::set_socket_linger;
            let _ = linger(&client, Some(Duration::ZERO));
            continue;
        };
        let open = slot.open();
        let task = tokio::task::spawn_local(async move {
            connection::serve(&slot.service, &slot.open, client).await;
        });
        open.served_by(task.abort_handle());
    }
}

/// Answers questions for names.
async fn answer(service: Rc<Service>, socket: OwnedFd) {
    let Ok(socket) = UdpSocket::from_std(socket.into()) else {
        return;
    };
    let mut buffer = vec![0; dns::LONGEST];
    loop {
        if socket.readable().await.is_err() {
            return;
        }
        let came = socket.try_io(Interest::READABLE, || {
            receive_datagram(socket.as_fd(), &mut buffer)
        });
        // Nothing after all, or a client's port that is closed by now.
        let Ok(Some(came)) = came else {
            continue;
        };
        let message = buffer.get(..came.length).unwrap_or_default();
        if let Some(answer) = respond(&service, message) {
            // One that cannot be sent is asked for again.
            let _ = send_datagram(socket.as_fd(), &answer, came.to, came.from);
        }
    }
}

fn respond(service: &Service, message: &[u8]) -> Option<Vec<u8>> {
    let question = match dns::hear(message) {
        DnsMessage::Question(question) => question,
        DnsMessage::Answer(bytes) => return Some(bytes),
        DnsMessage::Nothing => return None,
    };
    let Some(name) = &question.name else {
        return Some(question.answer(Code::NoSuchName, None));
    };
    if let Err(denied) = service.rules.knows(name) {
        service.traffic_log.refuse(
            None,
            TrafficEvent {
                verdict: NetworkVerdict::Denied,
                host: name.to_string(),
                port: 53,
                protocol: Protocol::Dns,
                address: None,
                rule: denied.rule,
                reason: Some(denied.reason.into()),
                request: None,
                status: None,
            },
        );
        return Some(question.answer(Code::NoSuchName, None));
    }
    let exact = service.rules.has_itself(name);
    let Some((four, six)) = service.names.borrow_mut().addresses(name, exact) else {
        service.traffic_log.refuse(
            None,
            TrafficEvent {
                verdict: NetworkVerdict::Denied,
                host: "(any)".into(),
                port: 53,
                protocol: Protocol::Dns,
                address: None,
                rule: None,
                reason: Some(NetworkReason::TooManyNames.into()),
                request: None,
                status: None,
            },
        );
        return Some(question.answer(Code::ServerFailure, None));
    };
    let address = match question.kind {
        A => Some(IpAddr::V4(four)),
        AAAA => Some(IpAddr::V6(six)),
        // Nothing else is known of a name; above all no records that hide where TLS goes.
        _ => None,
    };
    debug_assert!(name.as_str() != HOST_NAME || address.is_none_or(|a| !a.is_loopback()));
    Some(question.answer(Code::NoError, address))
}
