//! Connections whose requests are read: HTTP, and TLS that is opened where a rule is about
//! methods and paths.
//!
//! Both sides speak the same version: what the client offers is offered to the server, and
//! what the server takes is taken from the client. Nothing is translated.

use crate::books::Books;
use crate::buffers;
use crate::connection::{Connection, FIRST_BYTES, Looks, looks_like, reset};
use crate::decide::Denied;
use crate::http::{self, Authority, Judge, Recorder, Refused};
use crate::http2;
use crate::ledger::Kind;
use crate::open::Open;
use crate::relay::read_more;
use crate::secret::Dealing;
use crate::tls::{Opener, Replayed, Spoken};
use ironcage_model::{HostName, Protocol};
use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

/// The books, as far as requests of one connection go into them.
struct Recording {
    books: Rc<Books>,
    open: Rc<Open>,
}

impl Recorder for Recording {
    fn refuse(&self, kind: Kind) {
        self.books.refuse(Some(&self.open), kind);
    }

    fn note(&self, kind: Kind) {
        self.books.note(kind);
    }
}

impl Connection<'_> {
    fn judge(&self, name: &HostName, protocol: Protocol) -> Judge {
        let recorder = Rc::new(Recording {
            books: Rc::clone(&self.service.books),
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
            dealing: Dealing::of(
                &self.service.vault,
                name,
                self.port,
                protocol == Protocol::Https,
            ),
            reader: self
                .service
                .reads(name, self.port)
                .filter(|_| protocol == Protocol::Https)
                .cloned(),
            protocol,
            address: RefCell::default(),
            recorder,
        }
    }

    /// The status for a client whose server is not reached.
    fn unreached(&self, denied: Denied) -> Refused {
        let status = if denied.rule.as_ref() == Some(&self.rule) {
            502
        } else {
            403
        };
        Refused::new(status, denied.reason)
    }

    /// HTTP whose requests are for the name, every one.
    pub(crate) async fn http(
        &self,
        client: TcpStream,
        name: &HostName,
        seen: Vec<u8>,
        server: Option<(TcpStream, IpAddr)>,
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
        let (server, address) = match server {
            Ok(server) => server,
            Err(denied) => return client.refuse(&self.unreached(denied)).await,
        };
        *judge.address.borrow_mut() = Some(address.to_string());
        let counts = self.count(self.allowed(Protocol::Http, address, None));
        http::carry(&mut client, server, first, (&judge, &counts)).await
    }

    /// A connection to a host that gets requests by rules only: TLS is opened, HTTP is read,
    /// and nothing else goes through.
    pub(crate) async fn opened(&self, client: TcpStream, name: &HostName) -> io::Result<()> {
        let mut seen = Vec::new();
        let looks = async {
            loop {
                match looks_like(&seen) {
                    Looks::Undecided => {}
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
        match (looks, &self.service.opener) {
            (Looks::Http, _) if self.port != 443 => self.http(client, name, seen, None).await,
            (Looks::Tls, Some(opener)) if self.port != 80 => {
                self.opened_tls(client, name, seen, opener).await
            }
            _ => {
                let reason = "only requests of HTTP go to this host, and this is none";
                self.denied(Protocol::Tcp, &Denied::because(reason));
                reset(&client);
                Ok(())
            }
        }
    }

    async fn opened_tls(
        &self,
        client: TcpStream,
        name: &HostName,
        mut seen: Vec<u8>,
        opener: &Opener,
    ) -> io::Result<()> {
        if !self.is_for(&client, name, &mut seen, Protocol::Https).await {
            return Ok(());
        }
        let stream = Replayed::new(seen, client);
        let begun = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream);
        let begun = match timeout(FIRST_BYTES, begun).await {
            Ok(Ok(begun)) => begun,
            Ok(Err(_)) | Err(_) => {
                let reason = "its TLS is not understood";
                self.denied(Protocol::Https, &Denied::because(reason));
                return Ok(());
            }
        };
        let judge = self.judge(name, Protocol::Https);
        let offered = offered(&begun);
        let (server, address) = match self.connect_recorded(Protocol::Https).await {
            Ok(connected) => connected,
            Err(denied) => {
                let refused = self.unreached(denied);
                return answer(begun, opener, name, &judge, &refused).await;
            }
        };
        *judge.address.borrow_mut() = Some(address.to_string());
        let connected = timeout(FIRST_BYTES, opener.connect(name, server, &offered)).await;
        let (server, spoken) =
            match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(connected) => connected,
                Err(error) => {
                    let reason = format!("the server's TLS is not to be trusted: {error}");
                    let refused = Refused::new(502, reason);
                    judge.refuse(None, &refused);
                    return answer(begun, opener, name, &judge, &refused).await;
                }
            };
        let client = begun.into_stream(opener.server(name, spoken)?);
        let client = match timeout(FIRST_BYTES, client).await {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => {
                let reason = format!("it does not speak TLS with the cage's authority: {error}");
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
    opener: &Opener,
    name: &HostName,
    judge: &Judge,
    refused: &Refused,
) -> io::Result<()> {
    let spoken = match offered(&begun).as_slice() {
        [Spoken::Two] => Spoken::Two,
        _ => Spoken::One,
    };
    let client = begun.into_stream(opener.server(name, spoken)?);
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
