//! One connection of the cage's, from its acceptance to its end.

use crate::buffers;
use crate::connections::{Looked, OpenConnection};
use crate::decide::{Denied, Target};
use crate::first_bytes::{
    FIRST_LINE, HANDSHAKE, LONGEST_FIRST_LINE, LONGEST_WATCHED, Looks, first_line, looks_like,
    shorten,
};
use crate::hello::{self, Hello};
use crate::http::{self, Refused};
use crate::relay::{First, first, read_more, relay, write_all};
use crate::route::Reached;
use crate::serve::Service;
use crate::shared_address::is_beside_ruled;
use crate::traffic_counters::TrafficEvent;
use crate::traffic_log::Counts;
use ironcage_model::{HOST_NAME, HostName, NetworkReason, NetworkVerdict, Protocol, Reason};
use ironcage_sys::rustix::net::sockopt::set_socket_linger;
use ironcage_sys::rustix::net::{Shutdown, shutdown};
use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a client may take for its first bytes where they decide.
pub(crate) const FIRST_BYTES: Duration = Duration::from_secs(30);

/// What is expected of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// TLS for the name, on 443.
    Tls,
    /// HTTP for the name, on 80.
    Http,
    /// Anything; where it is one of the two, the name is held to as well.
    Anything,
    Bytes,
}

/// A connection that is being decided.
pub(crate) struct Connection<'a> {
    pub(crate) service: &'a Service,
    pub(crate) open: &'a Rc<OpenConnection>,
    /// The count of bytes to its host.
    host: Rc<Cell<u64>>,
    pub(crate) target: Target,
    pub(crate) port: u16,
    pub(crate) rule: String,
}

/// Serves one connection to its end.
pub(crate) async fn serve(service: &Service, open: &Rc<OpenConnection>, client: TcpStream) {
    let Ok(wanted) = client.local_addr() else {
        return;
    };
    let (address, port) = (wanted.ip().to_canonical(), wanted.port());
    let _ = client.set_nodelay(true);
    buffers::bound(&client, service.connections());
    let target = match service.target(address) {
        Ok(target) => target,
        Err(denied) => {
            let host = address.to_string();
            record_denied(service, open, host, port, Protocol::Tcp, &denied);
            return reset(&client);
        }
    };
    let expected = match (&target, port) {
        (Target::Name(name), _) if name.as_str() == HOST_NAME => Expected::Bytes,
        (Target::Name(_), 443) => Expected::Tls,
        (Target::Name(_), 80) => Expected::Http,
        (Target::Name(_), _) => Expected::Anything,
        (Target::Address(_), _) if service.rules.binds_names() => Expected::Anything,
        (Target::Address(_) | Target::Host, _) => Expected::Bytes,
    };
    let decided = service.rules.begin(&target, port).and_then(|rule| {
        let now = Instant::now();
        service.traffic_log.meter.request(now)?;
        let host = service.traffic_log.meter.host(&target.to_string(), now)?;
        Ok((rule, host))
    });
    let (rule, host) = match decided {
        Ok(decided) => decided,
        Err(denied) => {
            let host = target.to_string();
            record_denied(service, open, host, port, Protocol::Tcp, &denied);
            return match port {
                80 => refuse_http(client, &denied).await,
                443 => refuse_tls(&client).await,
                _ => reset(&client),
            };
        }
    };
    // On its own: most connections need nothing of it.
    let beside = match &target {
        Target::Name(name) if service.interceptor.is_some() && !service.rules.is_host(name) => {
            match service.upstream.is_for(&target, port) {
                // Where it leads is known beyond the upstream proxy only.
                true => !service.rules.ruled(port).is_empty(),
                false => {
                    let (rules, resolver) = (&service.rules, &service.resolver);
                    Box::pin(is_beside_ruled(rules, resolver, name, port)).await
                }
            }
        }
        _ => false,
    };
    let looked = match &target {
        Target::Name(name) if beside || service.opens(name, port) => {
            Looked::Opened(service.rules.requests(name, port))
        }
        _ => Looked::Closed,
    };
    let intercepted = looked != Looked::Closed;
    open.lets(target.clone(), port, looked);
    let connection = Connection {
        service,
        open,
        host,
        target,
        port,
        rule,
    };
    // A side that went away is an end like any other.
    let _ = match (expected, connection.target.clone()) {
        (_, Target::Name(name)) if intercepted => {
            Box::pin(connection.intercepted(client, &name)).await
        }
        (Expected::Tls, Target::Name(name)) => connection.tls(&client, &name).await,
        (Expected::Http, Target::Name(name)) => {
            // On its own: the state of HTTP is large, and most connections have none.
            Box::pin(connection.http(client, &name, Vec::new(), None)).await
        }
        (Expected::Anything, Target::Name(name)) => connection.anything(client, &name).await,
        (Expected::Anything, Target::Address(_)) => connection.unnamed(&client).await,
        _ => connection.bytes(&client).await,
    };
}

fn record_denied(
    service: &Service,
    open: &OpenConnection,
    host: String,
    port: u16,
    protocol: Protocol,
    denied: &Denied,
) {
    let kind = TrafficEvent {
        verdict: NetworkVerdict::Denied,
        host,
        port,
        protocol,
        address: None,
        rule: denied.rule.clone(),
        reason: Some(denied.reason.clone().into()),
        request: None,
        status: None,
    };
    service.traffic_log.refuse(Some(open), kind);
}

/// Ends a connection so that its client sees that it was refused.
pub(crate) fn reset(client: &TcpStream) {
    // Without it the connection ends in order; refused it is either way.
    let _ = set_socket_linger(client, Some(Duration::ZERO));
}

async fn refuse_http(client: TcpStream, denied: &Denied) {
    let mut client = http::Client::new(client, Vec::new());
    let refused = Refused::new(403, denied.reason.clone());
    let _ = timeout(FIRST_BYTES, client.refuse(&refused)).await;
}

async fn refuse_tls(client: &TcpStream) {
    let _ = write_all(client, &hello::ACCESS_DENIED).await;
    let _ = shutdown(client, Shutdown::Write);
    let mut rest = Vec::new();
    // What the client still sends would turn the alert into a reset.
    let drain = async {
        while matches!(read_more(client, &mut rest, 4096).await, Ok(true)) {
            rest.clear()
        }
    };
    let _ = timeout(Duration::from_secs(1), drain).await;
}

impl Connection<'_> {
    pub(crate) fn allowed(
        &self,
        protocol: Protocol,
        address: Option<IpAddr>,
        reason: Option<NetworkReason>,
    ) -> TrafficEvent {
        TrafficEvent {
            verdict: NetworkVerdict::Allowed,
            host: self.target.to_string(),
            port: self.port,
            protocol,
            address: address.map(|address| address.to_string()),
            rule: Some(self.rule.clone()),
            reason: reason.map(Reason::from),
            request: None,
            status: None,
        }
    }

    pub(crate) fn denied(&self, protocol: Protocol, denied: &Denied) {
        let host = self.target.to_string();
        record_denied(self.service, self.open, host, self.port, protocol, denied);
    }

    /// Counts the connection from here on.
    pub(crate) fn count(&self, kind: TrafficEvent) -> Counts {
        Counts::begin(&self.service.traffic_log, self.open, &self.host, kind)
    }

    async fn bytes(&self, client: &TcpStream) -> io::Result<()> {
        let Ok(reached) = self.connect_recorded(Protocol::Tcp).await else {
            reset(client);
            return Ok(());
        };
        let (server, address) = (reached.stream, reached.address);
        let counts = self.count(self.allowed(Protocol::Tcp, address, None));
        let carried = relay(client, &server, &counts).await;
        if carried.is_err() {
            reset(client);
        }
        carried
    }

    /// Whether the first message of TLS is for the name. One that is not is refused and recorded;
    /// `seen` has what was read of it.
    pub(crate) async fn is_for(
        &self,
        client: &TcpStream,
        name: &HostName,
        seen: &mut Vec<u8>,
        protocol: Protocol,
    ) -> bool {
        let reason = match timeout(FIRST_BYTES, hello(client, seen)).await {
            Ok(Ok(Hello::For(Some(asked)))) if asked == *name => return true,
            Ok(Ok(Hello::For(Some(asked)))) => other_name(&asked),
            Ok(Ok(Hello::For(None))) => NetworkReason::TlsNoName,
            Ok(Ok(Hello::Refused(why))) => why,
            Ok(Ok(Hello::Incomplete)) | Ok(Err(_)) => return false,
            Err(_) => NetworkReason::TlsTimeout,
        };
        self.denied(protocol, &Denied::because(reason));
        refuse_tls(client).await;
        false
    }

    /// TLS whose first message is for the name. It is not intercepted.
    async fn tls(&self, client: &TcpStream, name: &HostName) -> io::Result<()> {
        let mut seen = Vec::new();
        if !self.is_for(client, name, &mut seen, Protocol::Tls).await {
            return Ok(());
        }
        let Ok(reached) = self.connect_recorded(Protocol::Tls).await else {
            reset(client);
            return Ok(());
        };
        let (server, address) = (reached.stream, reached.address);
        self.go_on(client, Protocol::Tls, &server, address, &seen)
            .await
    }

    /// Sends what was seen, then carries.
    async fn go_on(
        &self,
        client: &TcpStream,
        protocol: Protocol,
        server: &TcpStream,
        address: Option<IpAddr>,
        seen: &[u8],
    ) -> io::Result<()> {
        let counts = self.count(self.allowed(protocol, address, None));
        counts.send(seen.len() as u64)?;
        write_all(server, seen).await?;
        let carried = relay(client, server, &counts).await;
        if carried.is_err() {
            reset(client);
        }
        carried
    }

    /// A port that carries anything. Who speaks first tells what it is: where the client does,
    /// TLS and HTTP are held to the name.
    async fn anything(&self, client: TcpStream, name: &HostName) -> io::Result<()> {
        let Ok(reached) = self.connect_recorded(Protocol::Tcp).await else {
            reset(&client);
            return Ok(());
        };
        let (server, address) = (reached.stream, reached.address);
        let mut seen = Vec::new();
        let mut silent = match first(client.readable(), server.readable()).await {
            First::B(_) => true,
            First::A(ready) => ready.map(|()| false)?,
        };
        loop {
            if !silent {
                match timeout(FIRST_LINE, read_more(&client, &mut seen, 4096)).await {
                    Ok(more) => {
                        if !more? {
                            // Said little, and that was all.
                            break;
                        }
                    }
                    // It may wait for an answer to what it said.
                    Err(_) => silent = true,
                }
            }
            if silent {
                match self.undecided(&client, &server, address, seen).await? {
                    Some(first) => seen = first,
                    None => return Ok(()),
                }
                silent = false;
            }
            match looks_like(&seen) {
                Looks::Undecided if seen.len() > LONGEST_FIRST_LINE => silent = true,
                Looks::Undecided => {}
                Looks::Other => break,
                Looks::Http => {
                    let server = Some(Reached {
                        stream: server,
                        address,
                        takes_urls: false,
                    });
                    return Box::pin(self.http(client, name, seen, server)).await;
                }
                Looks::Tls => {
                    return self.named_tls(&client, name, seen, &server, address).await;
                }
            }
        }
        self.go_on(&client, Protocol::Tcp, &server, address, &seen)
            .await
    }

    /// Carries a connection of which it is not clear yet what it is: the server spoke first, or the
    /// client pauses in its first line. Returns the client's first bytes where they are a request or
    /// begin TLS, and nothing of the client went out before: a slow client is held to the name like
    /// a fast one. Where something did go out, such a connection is over, because that was not held
    /// to the name.
    async fn undecided(
        &self,
        client: &TcpStream,
        server: &TcpStream,
        address: Option<IpAddr>,
        mut seen: Vec<u8>,
    ) -> io::Result<Option<Vec<u8>>> {
        let counts = self.count(self.allowed(Protocol::Tcp, address, None));
        counts.send(seen.len() as u64)?;
        write_all(server, &seen).await?;
        let mut part = vec![0; 4096];
        let mut watched = seen.len();
        // No server reads a longer line.
        while watched <= LONGEST_WATCHED {
            let (from, to) = match first(client.readable(), server.readable()).await {
                First::A(ready) => (ready.map(|()| client)?, server),
                First::B(ready) => (ready.map(|()| server)?, client),
            };
            let length = match from.try_read(&mut part) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            };
            let came = part.get(..length).unwrap_or_default();
            if std::ptr::eq(from, server) {
                counts.received(length as u64);
                write_all(to, came).await?;
                continue;
            }
            let is_first = watched == 0;
            seen.extend(came);
            watched += length;
            let looks = first_line(&seen);
            if matches!(looks, Looks::Http | Looks::Tls) {
                if is_first {
                    return Ok(Some(seen));
                }
                let reason = NetworkReason::ProtocolChanged;
                self.denied(Protocol::Tcp, &Denied::because(reason));
                reset(client);
                return Ok(None);
            }
            counts.send(length as u64)?;
            write_all(to, came).await?;
            if looks == Looks::Other {
                break;
            }
            shorten(&mut seen);
        }
        let carried = relay(client, server, &counts).await;
        if carried.is_err() {
            reset(client);
        }
        carried.map(|()| None)
    }

    /// A connection to an address. Where the client begins with TLS, it is for no name over which
    /// there are rules.
    async fn unnamed(&self, client: &TcpStream) -> io::Result<()> {
        let Ok(reached) = self.connect_recorded(Protocol::Tcp).await else {
            reset(client);
            return Ok(());
        };
        let (server, address) = (reached.stream, reached.address);
        let mut seen = Vec::new();
        if let First::A(ready) = first(client.readable(), server.readable()).await {
            ready?;
            while matches!(seen.as_slice(), [] | [HANDSHAKE])
                && read_more(client, &mut seen, 4096).await?
            {}
        }
        if !matches!(seen.as_slice(), [HANDSHAKE, 3, ..]) {
            return self
                .go_on(client, Protocol::Tcp, &server, address, &seen)
                .await;
        }
        let refused = match timeout(FIRST_BYTES, hello(client, &mut seen)).await {
            Ok(Ok(Hello::For(Some(asked)))) if self.service.rules.binds(&asked, self.port) => {
                NetworkReason::TlsNameHasRules {
                    name: asked.to_string(),
                }
            }
            Ok(Ok(Hello::Refused(why))) => why,
            Ok(Ok(Hello::For(_))) => {
                return self
                    .go_on(client, Protocol::Tls, &server, address, &seen)
                    .await;
            }
            Ok(Ok(Hello::Incomplete)) | Ok(Err(_)) => return Ok(()),
            Err(_) => NetworkReason::TlsTimeout,
        };
        self.denied(Protocol::Tls, &Denied::because(refused));
        refuse_tls(client).await;
        Ok(())
    }

    /// TLS on a port that carries anything: for the name, or for none.
    async fn named_tls(
        &self,
        client: &TcpStream,
        name: &HostName,
        mut seen: Vec<u8>,
        server: &TcpStream,
        address: Option<IpAddr>,
    ) -> io::Result<()> {
        let hello = timeout(FIRST_BYTES, hello(client, &mut seen)).await;
        let refused = match hello {
            Ok(Ok(Hello::For(None))) => None,
            Ok(Ok(Hello::For(Some(asked)))) if asked == *name => None,
            Ok(Ok(Hello::For(Some(asked)))) => Some(other_name(&asked)),
            Ok(Ok(Hello::Refused(why))) => Some(why),
            Ok(Ok(Hello::Incomplete)) | Ok(Err(_)) => return Ok(()),
            Err(_) => Some(NetworkReason::TlsTimeout),
        };
        if let Some(reason) = refused {
            self.denied(Protocol::Tls, &Denied::because(reason));
            refuse_tls(client).await;
            return Ok(());
        }
        self.go_on(client, Protocol::Tls, server, address, &seen)
            .await
    }
}

fn other_name(asked: &HostName) -> NetworkReason {
    NetworkReason::TlsOtherName {
        name: asked.to_string(),
    }
}

/// Reads until the first message of TLS is all there, or cannot be one.
async fn hello(client: &TcpStream, seen: &mut Vec<u8>) -> io::Result<Hello> {
    loop {
        match hello::read(seen) {
            Hello::Incomplete => {}
            other => return Ok(other),
        }
        let room = hello::LONGEST.saturating_sub(seen.len()).max(1);
        if !read_more(client, seen, room).await? {
            return Ok(Hello::Incomplete);
        }
    }
}
