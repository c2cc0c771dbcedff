//! The door at work: one thread that answers questions for names and carries connections.

use crate::connection;
use crate::decide::{Denied, Rules, Target};
use crate::dns::{self, A, AAAA, Code, Heard};
use crate::ledger::{Counts, Kind, Ledger};
use crate::names::Names;
use crate::resolve::Resolver;
use crate::wire::{self, FromDoor, Sockets};
use ironcage_model::{HOST_NAME, NetworkVerdict, Protocol, Traffic};
use ironcage_sys::inet::{receive_datagram, send_datagram};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{TcpListener, UdpSocket, UnixDatagram};
use tokio::task::LocalSet;
use tokio::time::sleep;

/// How often sums are told.
const TELL: Duration = Duration::from_secs(10);
/// Connections at once, at most; fewer where the host's limit on descriptors is lower.
const MOST: u64 = 8192;

/// What all connections of a door share.
pub(crate) struct Service {
    pub(crate) rules: Rules,
    pub(crate) resolver: Resolver,
    names: RefCell<Names>,
    ledger: RefCell<Ledger>,
    open: Cell<u64>,
    most: u64,
    supervisor: OwnedFd,
}

/// A connection that counts while it is there.
struct Slot(Rc<Service>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get().saturating_sub(1));
    }
}

impl Service {
    /// `files` is how many descriptors the process can have.
    pub(crate) fn new(rules: Rules, resolver: Resolver, files: u64, supervisor: OwnedFd) -> Self {
        Service {
            rules,
            resolver,
            names: RefCell::default(),
            ledger: RefCell::default(),
            open: Cell::new(0),
            // Two descriptors each, and some for resolvers and the door itself.
            most: (files.saturating_sub(64) / 2).clamp(16, MOST),
            supervisor,
        }
    }

    /// What a connection to an address of the cage's is for.
    pub(crate) fn target(&self, address: IpAddr) -> Result<Target, Denied> {
        match self.names.borrow().name(address) {
            Some(Some(name)) => return Ok(Target::Name(name.clone())),
            Some(None) => return Err(Denied::because("the address stands for no name")),
            None => {}
        }
        if address.is_loopback() {
            return Ok(Target::Host);
        }
        Ok(Target::Address(address))
    }

    /// Counts a connection, and tells of it where it is the first of its kind.
    pub(crate) fn record(&self, kind: Kind) -> Rc<Counts> {
        let (counts, told) = self.ledger.borrow_mut().open(kind);
        if let Some(told) = told {
            self.tell(told);
        }
        counts
    }

    fn tell(&self, told: Traffic) {
        let message = FromDoor::Traffic(told);
        if !matches!(wire::say(self.supervisor.as_fd(), &message), Ok(true))
            && let FromDoor::Traffic(told) = &message
        {
            // The supervisor is busy: it hears of it with the next sums.
            self.ledger.borrow_mut().put_back(told);
        }
    }

    fn tell_sums(&self) {
        let sums = self.ledger.borrow().sums();
        for told in sums {
            self.tell(told);
        }
    }
}

/// Serves until the supervisor is gone.
pub(crate) fn run(service: Service, sockets: Sockets) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    let service = Rc::new(service);
    let tasks = LocalSet::new();
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
            teller.tell_sums();
        }
    });
    let ended = Rc::clone(&service);
    tasks.block_on(&runtime, async move { until_gone(&ended).await })?;
    service.tell_sums();
    Ok(())
}

/// Until the supervisor closes its end, which it does when the cage is gone.
async fn until_gone(service: &Service) -> io::Result<()> {
    // A socket of packets, of which only its readiness is used.
    let socket = std::os::unix::net::UnixDatagram::from(service.supervisor.try_clone()?);
    socket.set_nonblocking(true)?;
    let socket = UnixDatagram::from_std(socket)?;
    loop {
        socket.readable().await?;
        let heard = socket.try_io(Interest::READABLE, || {
            wire::receive(service.supervisor.as_fd(), false)?
                .ok_or_else(|| io::ErrorKind::WouldBlock.into())
        });
        match heard {
            Ok(FromDoor::Closed) => return Ok(()),
            // The supervisor says nothing yet but that it is over.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Ok(()),
        }
    }
}

async fn accept(service: Rc<Service>, listener: TcpListener) {
    loop {
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(_) => {
                // No descriptor left, or the client went away again.
                sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        if service.open.get() >= service.most {
            service.record(Kind {
                verdict: NetworkVerdict::Denied,
                host: "(any)".into(),
                port: 0,
                protocol: Protocol::Tcp,
                address: None,
                rule: None,
                reason: Some(format!("more than {} connections at once", service.most)),
            });
            let linger = ironcage_sys::rustix::net::sockopt::set_socket_linger;
            let _ = linger(&client, Some(Duration::ZERO));
            continue;
        }
        service.open.set(service.open.get() + 1);
        let slot = Slot(Rc::clone(&service));
        tokio::task::spawn_local(async move {
            connection::serve(&slot.0, client).await;
        });
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
        Heard::Question(question) => question,
        Heard::Answer(bytes) => return Some(bytes),
        Heard::Nothing => return None,
    };
    let Some(name) = &question.name else {
        return Some(question.answer(Code::NoSuchName, None));
    };
    if let Err(denied) = service.rules.knows(name) {
        service.record(Kind {
            verdict: NetworkVerdict::Denied,
            host: name.to_string(),
            port: 53,
            protocol: Protocol::Dns,
            address: None,
            rule: denied.rule,
            reason: Some(denied.reason),
        });
        return Some(question.answer(Code::NoSuchName, None));
    }
    let Some((four, six)) = service.names.borrow_mut().addresses(name) else {
        service.record(Kind {
            verdict: NetworkVerdict::Denied,
            host: "(any)".into(),
            port: 53,
            protocol: Protocol::Dns,
            address: None,
            rule: None,
            reason: Some("too many names".into()),
        });
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
