//! Connections whose requests are read: HTTP, and TLS that is intercepted where a rule is about
//! methods and paths.
//!
//! Both sides speak the same version: what the client offers is offered to the server, and
//! what the server takes is taken from the client. Nothing is translated.

use crate::buffers;
use crate::connection::{Connection, FIRST_BYTES, reset};
use crate::connections::OpenConnection;
use crate::decide::Denied;
use crate::first_bytes::{LONGEST_FIRST_LINE, Looks, looks_like};
use crate::http::{self, Authority, Judge, Recorder, Refused};
use crate::http2;
use crate::relay::read_more;
use crate::route::Reached;
use crate::secret::{SecretInjector, ServerTrust};
use crate::tls::{Replayed, Spoken, TlsInterceptor};
use crate::traffic_counters::TrafficEvent;
use crate::traffic_log::TrafficLog;
use ironcage_model::{HOST_NAME, HostName, NetworkReason, Protocol};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

/// The traffic_log, as far as requests of one connection go into them.
struct Recording {
    traffic_log: Rc<TrafficLog>,
    open: Rc<OpenConnection>,
}

impl Recorder for Recording {
    fn refuse(&self, kind: TrafficEvent) {
        self.traffic_log.refuse(Some(&self.open), kind);
    }

    fn note(&self, kind: TrafficEvent) {
        self.traffic_log.note(kind);
    }
}

/// Why TLS with a server did not come about.
fn server_failed(error: &io::Error) -> NetworkReason {
    use rustls::{CertificateError, Error};
    let text = error.to_string();
    let inner = error.get_ref();
    match inner.and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            NetworkReason::TlsUnknownIssuer { error: text }
        }
        _ => NetworkReason::TlsServerFailed { error: text },
    }
}

impl Connection<'_> {
    fn judge(&self, name: &HostName, protocol: Protocol) -> Judge {
        let recorder = Rc::new(Recording {
            traffic_log: Rc::clone(&self.service.traffic_log),
            open: Rc::clone(self.open),
        });
        Judge {
            authority: Authority {
                name: name.clone(),
                port: self.port,
                usual_port: if protocol == Protocol::Https { 443 } else { 80 },
            },
            rules: Rc::clone(&self.service.rules),
            rule: self.rule.clone(),
            injector: SecretInjector::of(
                &self.service.store,
                name,
                self.port,
                self.trust(name, protocol),
            ),
            reader: self
                .service
                .reads(name, self.port)
                .filter(|_| protocol == Protocol::Https)
                .cloned(),
            protocol,
            address: RefCell::default(),
            round_trip: Cell::default(),
            takes_urls: Cell::default(),
            recorder,
        }
    }

    fn trust(&self, name: &HostName, protocol: Protocol) -> ServerTrust {
        let own_host = name.as_str() == HOST_NAME;
        match protocol {
            Protocol::Https => ServerTrust::Proved,
            // A port that is published leads back into the cage.
            _ if own_host && !self.service.publishing.publishes(self.port) => ServerTrust::OwnHost,
            _ => ServerTrust::Untrusted,
        }
    }

    /// HTTP whose requests are for the name, every one.
    pub(crate) async fn http(
        &self,
        client: TcpStream,
        name: &HostName,
        seen: Vec<u8>,
        server: Option<Reached>,
    ) -> io::Result<()> {
        let judge = self.judge(name, Protocol::Http);
        let mut client = http::Client::new(client, seen);
        let first = match client.request(&judge).await? {
            Ok(Some(first)) => first,
            Ok(None) => return Ok(()),
            Err(refused) => return client.refuse(&refused).await,
        };
        let server = match server {
            Some(server) => Ok(server),
            None => self.connect_recorded(Protocol::Http).await,
        };
        let reached = match server {
            Ok(reached) => reached,
            Err(denied) => return client.refuse(&unreached(denied)).await,
        };
        let (server, address) = (reached.stream, reached.address);
        judge.takes_urls.set(reached.takes_urls);
        *judge.address.borrow_mut() = address.map(|address| address.to_string());
        judge.round_trip.set(self.open.round_trip());
        let counts = self.count(self.allowed(Protocol::Http, address, None));
        http::carry(&mut client, server, first, (&judge, &counts)).await
    }

    /// A connection to a host that gets requests by rules only: TLS is intercepted, HTTP is read,
    /// and nothing else goes through.
    pub(crate) async fn intercepted(&self, client: TcpStream, name: &HostName) -> io::Result<()> {
        let mut seen = Vec::new();
        let looks = async {
            loop {
                match looks_like(&seen) {
                    Looks::Undecided if seen.len() <= LONGEST_FIRST_LINE => {}
                    looks => return Ok::<_, io::Error>(Some(looks)),
                }
                if !read_more(&client, &mut seen, 4096).await? {
                    return Ok(None);
                }
            }
        };
        let looks = match timeout(FIRST_BYTES, looks).await {
            Ok(looks) => match looks? {
                Some(looks) => looks,
                None => return Ok(()),
            },
            Err(_) => Looks::Undecided,
        };
        match (looks, &self.service.interceptor) {
            (Looks::Http, _) if self.port != 443 => self.http(client, name, seen, None).await,
            (Looks::Tls, Some(interceptor)) if self.port != 80 => {
                self.intercepted_tls(client, name, seen, interceptor).await
            }
            _ => {
                let reason = NetworkReason::NotHttp;
                self.denied(Protocol::Tcp, &Denied::because(reason));
                reset(&client);
                Ok(())
            }
        }
    }

    async fn intercepted_tls(
        &self,
        client: TcpStream,
        name: &HostName,
        mut seen: Vec<u8>,
        interceptor: &TlsInterceptor,
    ) -> io::Result<()> {
        if !self.is_for(&client, name, &mut seen, Protocol::Https).await {
            return Ok(());
        }
        let stream = Replayed::new(seen, client);
        let begun = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream);
        let begun = match timeout(FIRST_BYTES, begun).await {
            Ok(Ok(begun)) => begun,
            Ok(Err(_)) | Err(_) => {
                let error = "the handshake failed".into();
                let reason = NetworkReason::TlsInvalid { error };
                self.denied(Protocol::Https, &Denied::because(reason));
                return Ok(());
            }
        };
        let judge = self.judge(name, Protocol::Https);
        let offered = offered(&begun);
        let (server, address) = match self.connect_recorded(Protocol::Https).await {
            Ok(reached) => (reached.stream, reached.address),
            Err(denied) => {
                let refused = unreached(denied);
                return answer(begun, interceptor, name, &judge, &refused).await;
            }
        };
        *judge.address.borrow_mut() = address.map(|address| address.to_string());
        judge.round_trip.set(self.open.round_trip());
        let connected = timeout(FIRST_BYTES, interceptor.connect(name, server, &offered)).await;
        let (server, spoken) =
            match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(connected) => connected,
                Err(error) => {
                    let refused = Refused::new(502, server_failed(&error));
                    judge.refuse(None, &refused);
                    return answer(begun, interceptor, name, &judge, &refused).await;
                }
            };
        let client = begun.into_stream(interceptor.server(name, spoken)?);
        let client = match timeout(FIRST_BYTES, client).await {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => {
                let error = error.to_string();
                let reason = NetworkReason::TlsClientFailed { error };
                self.denied(Protocol::Https, &Denied::because(reason));
                return Ok(());
            }
            Err(_) => return Ok(()),
        };
        let counts = self.count(self.allowed(Protocol::Https, address, None));
        match spoken {
            Spoken::Two => {
                let share = buffers::share(self.service.connections());
                http2::carry(client, server, (judge, counts), share).await
            }
            Spoken::One => {
                let mut client = http::Client::new(client, Vec::new());
                match client.request(&judge).await? {
                    Ok(Some(first)) => {
                        http::carry(&mut client, server, first, (&judge, &counts)).await
                    }
                    Ok(None) => Ok(()),
                    Err(refused) => client.refuse(&refused).await,
                }
            }
        }
    }
}

/// The answer for a client whose server is not reached: a failure is not to be taken for a denial.
fn unreached(denied: Denied) -> Refused {
    let status = if denied.reason.is_failure() { 502 } else { 403 };
    Refused::new(status, denied.reason)
}

/// What a client can speak, as far as it is known here.
fn offered<S: AsyncRead + AsyncWrite + Unpin>(begun: &StartHandshake<S>) -> Vec<Spoken> {
    let hello = begun.client_hello();
    let Some(names) = hello.alpn() else {
        return vec![Spoken::One];
    };
    let names: Vec<&[u8]> = names.collect();
    [Spoken::Two, Spoken::One]
        .into_iter()
        .filter(|spoken| names.contains(&spoken.name()))
        .collect()
}

/// Answers the first request with a refusal, so that the client learns why.
async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    begun: StartHandshake<S>,
    interceptor: &TlsInterceptor,
    name: &HostName,
    judge: &Judge,
    refused: &Refused,
) -> io::Result<()> {
    let spoken = match offered(&begun).as_slice() {
        [Spoken::Two] => Spoken::Two,
        _ => Spoken::One,
    };
    let client = begun.into_stream(interceptor.server(name, spoken)?);
    let Ok(Ok(client)) = timeout(FIRST_BYTES, client).await else {
        return Ok(());
    };
    match spoken {
        Spoken::Two => http2::refuse(client, refused).await,
        Spoken::One => {
            let mut client = http::Client::new(client, Vec::new());
            match client.request(judge).await? {
                Ok(None) => Ok(()),
                Ok(Some(_)) => client.refuse(refused).await,
                Err(other) => client.refuse(&other).await,
            }
        }
    }
}
