//! The listener: connections, their limits, and the end of the service.

use crate::header_time::{ConnectionTimes, Watched, timed};
use crate::tls::Tls;
use axum::Router;
use axum::routing::RouterIntoService;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

/// How long a client may take for the header of a request, and keep a connection without one: pools of
/// clients close theirs before.
pub(crate) const TIMES: ConnectionTimes = ConnectionTimes {
    header: Duration::from_secs(15),
    idle: Duration::from_secs(75),
};
/// How long requests may take to end when the service ends.
const GRACE: Duration = Duration::from_secs(5);
/// Bytes of a header, and fields.
const LONGEST_HEADER: usize = 64 * 1024;
const MOST_FIELDS: usize = 100;

type HttpConnection<S> = http1::Connection<
    TokioIo<Watched<S>>,
    TowerToHyperService<RouterIntoService<hyper::body::Incoming>>,
>;

/// Where the service listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp { address: SocketAddr, tls: bool },
    Unix(PathBuf),
}

impl Address {
    /// Whether other machines reach it, so that it needs TLS.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Address::Tcp { address, .. } if !address.ip().is_loopback())
    }
}

/// Why a text is not an address to listen on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AddressError {
    #[error("expected unix: and an absolute path")]
    RelativePath,
    #[error("`{}` is not ADDRESS:PORT or unix:PATH", text.escape_debug())]
    Invalid { text: String },
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return match path.is_absolute() {
                true => Ok(Address::Unix(path)),
                false => Err(AddressError::RelativePath),
            };
        }
        let (named, tls) = match text.strip_prefix("https://") {
            Some(named) => (named, true),
            None => (text.strip_prefix("http://").unwrap_or(text), false),
        };
        let address: SocketAddr = named.parse().map_err(|_| AddressError::Invalid {
            text: text.to_owned(),
        })?;
        let tls = tls || !address.ip().is_loopback();
        Ok(Address::Tcp { address, tls })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp { address, tls } => {
                let scheme = if *tls { "https" } else { "http" };
                write!(f, "{scheme}://{address}")
            }
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket that listens.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    /// Its path is removed at the end where the service made it.
    Unix(UnixListener, Option<PathBuf>),
}

impl Listener {
    pub(crate) async fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp { address, .. } => Ok(Listener::Tcp(TcpListener::bind(address).await?)),
            Address::Unix(path) => {
                remove_dead(path).await?;
                let listener = UnixListener::bind(path)?;
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
                Ok(Listener::Unix(listener, Some(path.clone())))
            }
        }
    }

    /// A socket that somebody else has bound.
    pub(crate) fn of(socket: OwnedFd) -> io::Result<Listener> {
        let tcp = std::net::TcpListener::from(socket);
        tcp.set_nonblocking(true)?;
        match tcp.local_addr() {
            Ok(_) => Ok(Listener::Tcp(TcpListener::from_std(tcp)?)),
            // Not an Internet address.
            Err(_) => {
                let unix = std::os::unix::net::UnixListener::from(OwnedFd::from(tcp));
                Ok(Listener::Unix(UnixListener::from_std(unix)?, None))
            }
        }
    }

    /// The address with the port that the kernel chose.
    pub(crate) fn address(&self, tls: bool) -> io::Result<Address> {
        Ok(match self {
            Listener::Tcp(listener) => Address::Tcp {
                address: listener.local_addr()?,
                tls,
            },
            Listener::Unix(listener, _) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname().map(Path::to_owned);
                Address::Unix(path.ok_or_else(|| io::Error::other("the socket has no path"))?)
            }
        })
    }
}

/// Removes a socket on which nobody listens.
async fn remove_dead(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {
            match tokio::net::UnixStream::connect(path).await {
                Ok(_) => Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    "somebody listens there already",
                )),
                Err(_) => fs::remove_file(path),
            }
        }
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "it is not a socket",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Serves until the end is asked for. Requests that run then get a moment to end.
pub(crate) async fn serve(
    listener: Listener,
    tls: Option<Tls>,
    router: Router,
    most_connections: usize,
    end: impl Future<Output = ()>,
) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(most_connections));
    let mut end = std::pin::pin!(end);
    loop {
        // A full house is not accepted: clients wait in the kernel's queue.
        let place = tokio::select! {
            place = Arc::clone(&places).acquire_owned() => place,
            () = &mut end => break,
        };
        let Ok(place) = place else { break };
        let accepted = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = &mut end => break,
        };
        match accepted {
            Ok(stream) => {
                let router = router.clone();
                let acceptor = tls.as_ref().map(Tls::acceptor);
                let watcher = graceful.watcher();
                tokio::spawn(async move {
                    let Some(stream) = secured(stream, acceptor).await else {
                        return;
                    };
                    let connection = connection(stream, router);
                    // The client is gone, or does not speak HTTP.
                    let _ = watcher.watch(connection).await;
                    drop(place);
                });
            }
            Err(_) => {
                // Descriptors are used up; some come back.
                drop(place);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    let _ = tokio::time::timeout(GRACE, graceful.shutdown()).await;
    if let Listener::Unix(_, Some(path)) = &listener {
        let _ = fs::remove_file(path);
    }
}

/// A connection of HTTP with its limits.
pub(crate) fn connection<S>(stream: S, router: Router) -> HttpConnection<S>
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let (stream, timer) = timed(stream, TIMES);
    let service = TowerToHyperService::new(router.into_service::<hyper::body::Incoming>());
    let mut builder = http1::Builder::new();
    builder
        .timer(timer)
        .header_read_timeout(TIMES.header)
        .max_buf_size(LONGEST_HEADER)
        .max_headers(MOST_FIELDS)
        .half_close(false);
    builder.serve_connection(TokioIo::new(stream), service)
}

/// The stream behind the handshake of TLS, if there is to be one. A client that does not finish it is
/// given up.
async fn secured(stream: Box<dyn Stream>, tls: Option<TlsAcceptor>) -> Option<Box<dyn Stream>> {
    let Some(tls) = tls else {
        return Some(stream);
    };
    match tokio::time::timeout(TIMES.header, tls.accept(stream)).await {
        Ok(Ok(stream)) => Some(Box::new(stream)),
        _ => None,
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

async fn accept(listener: &Listener) -> io::Result<Box<dyn Stream>> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            // Small answers are the rule.
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
        Listener::Unix(listener, _) => Ok(Box::new(listener.accept().await?.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_other_machines_reach_is_one_with_tls() {
        let parsed = |text: &str| text.parse::<Address>().unwrap();
        for (text, shown, remote) in [
            ("127.0.0.1:1", "http://127.0.0.1:1", false),
            ("http://[::1]:1", "http://[::1]:1", false),
            ("https://127.0.0.1:1", "https://127.0.0.1:1", false),
            ("0.0.0.0:1", "https://0.0.0.0:1", true),
            ("[::]:1", "https://[::]:1", true),
            ("http://192.0.2.1:1", "https://192.0.2.1:1", true),
            ("unix:/run/x", "unix:/run/x", false),
        ] {
            let address = parsed(text);
            assert_eq!(
                (address.to_string().as_str(), address.is_remote()),
                (shown, remote)
            );
        }
        for text in [
            "",
            "1",
            "localhost:1",
            "unix:x",
            "https://",
            "ftp://127.0.0.1:1",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
