//! The process that keeps one login: it alone has the token by which others are renewed.
//!
//! It stands beside the proxy, which gets access tokens from it and nothing else. It reads and
//! writes the user's own file, talks to the one server that renews tokens, and hears nothing
//! that the cage says.

use crate::confine;
use crate::decide::Target;
use crate::http::chunk_size;
use crate::resolve::Resolver;
use crate::secret::error::LoginError;
use crate::secret::token_file::{Renewed, TokenFile, Tokens};
use crate::tls;
use crate::upstream::{TunnelEnd, Upstream};
use ironcage_model::{Printable, TokenServer, in_full};
use ironcage_plan::{Network, PlannedLogin};
use ironcage_sys::clone::{Forked, Namespaces, exit_now, fork};
use ironcage_sys::packet;
use ironcage_sys::rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair,
};
use ironcage_sys::rustix::process::getpid;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zeroize::Zeroizing;

/// Longest packet, either way.
pub(super) const LONGEST: usize = 64 * 1024;
/// Longest answer of who renews tokens.
const LONGEST_ANSWER: usize = 256 * 1024;
/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// A token that holds no longer than this is renewed.
pub(super) const MARGIN: Duration = Duration::from_secs(120);

/// What the proxy asks.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Ask {
    /// By which the answer is known.
    pub(super) serial: u32,
    /// Whether the token that it has was refused, whatever it says of itself.
    pub(super) refused: bool,
}

/// What it gets.
#[derive(Serialize, Deserialize)]
pub(super) struct RefresherReply {
    pub(super) serial: u32,
    pub(super) said: Result<Tokens, LoginError>,
}

/// Starts the refresher of a login. Returns the socket at which it is asked, and the tokens as
/// they are.
///
/// # Errors
/// Where there is no login, or no process to keep it. Never with a part of it.
pub(super) fn start(
    login: &PlannedLogin,
    outside: (&Network, &Rc<Upstream>),
) -> Result<(OwnedFd, Tokens), LoginError> {
    let failed = |error: io::Error| not_started(&error);
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| failed(error.into()))?;
    let parent = getpid().as_raw_nonzero().get();
    match fork(Namespaces::NONE, None).map_err(failed)? {
        Forked::Child => {
            drop(ours);
            let ran = catch_unwind(AssertUnwindSafe(|| run(login, outside, parent, &theirs)));
            exit_now(i32::from(ran.is_err()))
        }
        Forked::Parent { .. } => {
            drop(theirs);
            match hear(&ours, true).map_err(failed)? {
                Some(RefresherReply { said, .. }) => Ok((ours, said?)),
                None => Err(LoginError::RefresherEnded),
            }
        }
    }
}

fn not_started(error: &(dyn std::error::Error + 'static)) -> LoginError {
    LoginError::RefresherNotStarted {
        error: in_full(error),
    }
}

/// The proxy's side: takes an answer. `None` where there is none yet, or no refresher any more.
pub(super) fn hear(socket: &OwnedFd, wait: bool) -> io::Result<Option<RefresherReply>> {
    let Some(packet) = packet::receive(socket.as_fd(), wait, LONGEST, 0)? else {
        return Ok(None);
    };
    let bytes = Zeroizing::new(packet.bytes);
    if bytes.is_empty() {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    Ok(Some(serde_json::from_slice(&bytes)?))
}

fn say(socket: &OwnedFd, answer: &RefresherReply) -> io::Result<()> {
    let bytes = Zeroizing::new(serde_json::to_vec(answer)?);
    send(socket, &bytes, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The refresher itself, to the proxy's end.
fn run(login: &PlannedLogin, outside: (&Network, &Rc<Upstream>), parent: i32, socket: &OwnedFd) {
    let mut prepared = TokenRefresher::prepare(login, outside, parent, socket);
    let first = match &mut prepared {
        Ok(refresher) => refresher
            .file
            .read()
            .map(|(_, tokens)| refresher.give(tokens)),
        Err(why) => Err(why.clone()),
    };
    let failed = first.is_err();
    let answer = RefresherReply {
        serial: 0,
        said: first,
    };
    let (Ok(mut refresher), Ok(()), false) = (prepared, say(socket, &answer), failed) else {
        return;
    };
    drop(answer);
    while let Ok(Some(packet)) = packet::receive(socket.as_fd(), true, LONGEST, 0) {
        let Ok(Ask { serial, refused }) = serde_json::from_slice(&packet.bytes) else {
            return;
        };
        let said = refresher.tokens(refused);
        if say(socket, &RefresherReply { serial, said }).is_err() {
            return;
        }
    }
}

struct TokenRefresher {
    file: TokenFile,
    server: TokenServer,
    client: String,
    resolver: Resolver,
    upstream: Rc<Upstream>,
    tls: Arc<rustls::ClientConfig>,
    runtime: tokio::runtime::Runtime,
    /// What was given last.
    given: Zeroizing<String>,
    /// What was renewed and could not be stored yet.
    unstored: Option<Renewed>,
}

impl TokenRefresher {
    fn prepare(
        login: &PlannedLogin,
        (network, upstream): (&Network, &Rc<Upstream>),
        parent: i32,
        socket: &OwnedFd,
    ) -> Result<TokenRefresher, LoginError> {
        let wrong = |error: io::Error| not_started(&error);
        confine::end_with_parent(parent, socket.as_fd()).map_err(|error| not_started(&error))?;
        let file = TokenFile::open(&login.source, login.rule.format).map_err(|error| {
            LoginError::FileNotOpened {
                path: Printable::new(&login.source).to_string(),
                error: error.to_string(),
                login: login.rule.name.clone(),
            }
        })?;
        let refresher = TokenRefresher {
            server: login.rule.token_server.clone(),
            client: login.rule.client.clone(),
            resolver: Resolver::from_host(network),
            upstream: Rc::clone(upstream),
            tls: tls::client(&network.authorities).map_err(wrong)?,
            runtime: crate::serve::runtime().map_err(wrong)?,
            given: Zeroizing::default(),
            unstored: None,
            file,
        };
        let mut ports = refresher.upstream.ports();
        ports.push(refresher.server.port);
        confine::confine_token_refresher(refresher.file.directory(), &ports)
            .map_err(|error| not_started(&error))?;
        Ok(refresher)
    }

    /// Tokens that hold, renewed where they do not.
    fn tokens(&mut self, refused: bool) -> Result<Tokens, LoginError> {
        let _alone = self.file.lock()?;
        if let Some(renewed) = self.unstored.take() {
            self.store(renewed)?;
        }
        let (refresh, tokens) = self.file.read()?;
        let again = refused && *tokens.access == *self.given;
        if !again && tokens.hold_beyond(SystemTime::now() + MARGIN) {
            return Ok(self.give(tokens));
        }
        match self.renew(&refresh) {
            Ok(renewed) => {
                self.store(renewed)?;
                let (_, tokens) = self.file.read()?;
                Ok(self.give(tokens))
            }
            Err(why) => {
                // The agent outside may have renewed it meanwhile, with the same token.
                let (now, tokens) = self.file.read()?;
                if *now != *refresh && tokens.hold_beyond(SystemTime::now() + MARGIN) {
                    return Ok(self.give(tokens));
                }
                Err(why)
            }
        }
    }

    fn give(&mut self, tokens: Tokens) -> Tokens {
        self.given = Zeroizing::new(tokens.access.clone());
        tokens
    }

    /// What was renewed is nowhere else: it is kept until it is stored.
    fn store(&mut self, renewed: Renewed) -> Result<(), LoginError> {
        self.file.store(&renewed).map_err(|error| {
            self.unstored = Some(renewed);
            LoginError::NotStored {
                error: error.to_string(),
            }
        })
    }

    fn renew(&self, refresh: &str) -> Result<Renewed, LoginError> {
        let server = self.server.name.to_string();
        let body = Zeroizing::new(
            serde_json::json!({
                "grant_type": "refresh_token",
                "refresh_token": refresh,
                "client_id": self.client,
            })
            .to_string(),
        );
        let asked = async { timeout(PATIENCE, self.post(&body)).await };
        let answer = match self.runtime.block_on(asked) {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                let error = error.to_string();
                return Err(LoginError::ServerUnreachable { server, error });
            }
            Err(_) => return Err(LoginError::ServerTimeout { server }),
        };
        let (status, body) = answer;
        if status != 200 {
            // A word at most: what else is said there may be anything.
            let word = serde_json::from_slice::<serde_json::Value>(&body).ok();
            let word = word.and_then(|said| Some(said.get("error")?.as_str()?.to_owned()));
            let word = word.filter(|word| {
                word.len() < 40 && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
            });
            return Err(LoginError::ServerRefused {
                server,
                status,
                word,
            });
        }
        Renewed::read(&body).ok_or(LoginError::ServerNoToken { server })
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let TokenServer { name, port, .. } = &self.server;
        let target = Target::Name(name.clone());
        let upstream = self.upstream.server(&target, *port, false);
        if let Some(upstream) = upstream.filter(|_| self.resolver.fixed(name).is_none()) {
            let end = TunnelEnd::Name(name);
            let tunnel = upstream.tunnel(&self.resolver, end, *port).await;
            return tunnel.map_err(|reason| io::Error::other(reason.to_string()));
        }
        let addresses = self.resolver.addresses(name).await;
        let addresses = addresses.map_err(|_| io::Error::other("it has no address"))?;
        let mut connected = Err(io::ErrorKind::NotFound.into());
        for address in addresses {
            connected = TcpStream::connect(SocketAddr::new(address, *port)).await;
            if connected.is_ok() {
                break;
            }
        }
        connected
    }

    async fn post(&self, body: &str) -> io::Result<(u16, Zeroizing<Vec<u8>>)> {
        let TokenServer { name, port, path } = &self.server;
        let mut stream = tls::prove(&self.tls, name, self.connect().await?).await?;
        let host = match port {
            443 => name.to_string(),
            port => format!("{name}:{port}"),
        };
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
             accept: application/json\r\nuser-agent: ironcage\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        stream.flush().await?;
        let mut bytes = Zeroizing::new(Vec::with_capacity(LONGEST_ANSWER));
        loop {
            // The end, or enough of it: some servers keep the connection all the same.
            if let Some(answer) = answer(&bytes, false)? {
                return Ok(answer);
            }
            if bytes.len() >= LONGEST_ANSWER {
                return Err(io::Error::other("the response is too long"));
            }
            let room = (LONGEST_ANSWER - bytes.len()) as u64;
            match (&mut stream).take(room).read_buf(&mut *bytes).await {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            }
        }
        answer(&bytes, true)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// Status and body of an answer, if it is all there.
fn answer(bytes: &[u8], ended: bool) -> io::Result<Option<(u16, Zeroizing<Vec<u8>>)>> {
    let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let wrong = || io::Error::other("the response is not HTTP");
    let (head, body) = bytes.split_at(at + 4);
    let head = std::str::from_utf8(head).map_err(|_| wrong())?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1."));
    let status = status.and_then(|rest| rest.get(2..5)?.parse().ok());
    let status: u16 = status.ok_or_else(wrong)?;
    let field = |wanted: &str| {
        lines.clone().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(wanted).then_some(value.trim())
        })
    };
    if field("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        return Ok(whole(body).map(|body| (status, body)));
    }
    let length = field("content-length").and_then(|length| length.parse::<usize>().ok());
    let body = match length {
        Some(length) => body.get(..length),
        None => Some(body).filter(|_| ended),
    };
    Ok(body.map(|body| (status, Zeroizing::new(body.to_vec()))))
}

/// A body that came in chunks, if all of them are there.
fn whole(mut rest: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let mut body = Zeroizing::new(Vec::with_capacity(rest.len()));
    loop {
        let at = rest.windows(2).position(|two| two == b"\r\n")?;
        let size = usize::try_from(chunk_size(rest.get(..at)?)?).ok()?;
        rest = rest.get(at + 2..)?;
        if size == 0 {
            return Some(body);
        }
        body.extend(rest.get(..size)?);
        rest = rest.get(size.checked_add(2)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_in_each_of_their_forms() {
        let read = |text: &str, ended| {
            let found = answer(text.as_bytes(), ended).unwrap();
            found.map(|(status, body)| (status, String::from_utf8_lossy(&body).into_owned()))
        };
        let ok = |body: &str| Some((200, body.to_owned()));
        let length = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(read(length, false), ok("{}"));
        assert_eq!(read(&length[..length.len() - 1], false), None);
        let chunks =
            "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n";
        assert_eq!(read(chunks, false), ok("{}"));
        assert_eq!(read(&chunks[..chunks.len() - 8], false), None);
        let to_the_end = "HTTP/1.0 400 no\r\n\r\nxy";
        assert_eq!(read(to_the_end, false), None);
        assert_eq!(read(to_the_end, true), Some((400, "xy".to_owned())));
        assert!(answer(b"garbage\r\n\r\n", true).is_err());
    }
}
