//! The listener: connections, their limits, and the end of the service.

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

/// How long a client may take for the header of a request.
const HEADER: Duration = Duration::from_secs(15);
/// How long requests may take to end when the service ends.
const GRACE: Duration = Duration::from_secs(5);
/// Bytes of a header, and fields.
const LONGEST_HEADER: usize = 64 * 1024;
const MOST_FIELDS: usize = 100;

/// Where the service listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return match path.is_absolute() {
                true => Ok(Address::Unix(path)),
                false => Err("expected unix: and an absolute path".to_owned()),
            };
        }
        let address: SocketAddr = text
            .parse()
            .map_err(|_| format!("`{}` is not ADDRESS:PORT or unix:PATH", text.escape_debug()))?;
        match address.ip().is_loopback() {
            true => Ok(Address::Tcp(address)),
            false => Err(format!(
                "{address} is not a loopback address; the service speaks HTTP without TLS: put a TLS proxy before it"
            )),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "http://{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket that listens.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    pub(crate) async fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp(address) => Ok(Listener::Tcp(TcpListener::bind(address).await?)),
            Address::Unix(path) => {
                remove_dead(path).await?;
                let listener = UnixListener::bind(path)?;
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
                Ok(Listener::Unix(listener, path.clone()))
            }
        }
    }

    /// The address with the port that the kernel chose.
    pub(crate) fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Listener::Tcp(listener) => Address::Tcp(listener.local_addr()?),
            Listener::Unix(_, path) => Address::Unix(path.clone()),
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
                let service = TowerToHyperService::new(
                    router.clone().into_service::<hyper::body::Incoming>(),
                );
                let mut builder = hyper::server::conn::http1::Builder::new();
                builder
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEADER)
                    .max_buf_size(LONGEST_HEADER)
                    .max_headers(MOST_FIELDS)
                    .half_close(false);
                let connection = builder.serve_connection(TokioIo::new(stream), service);
                let watched = graceful.watch(connection);
                tokio::spawn(async move {
                    // The client is gone, or does not speak HTTP.
                    let _ = watched.await;
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
    if let Listener::Unix(_, path) = &listener {
        let _ = fs::remove_file(path);
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
