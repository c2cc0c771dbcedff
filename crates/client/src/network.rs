//! The network of a running cage, from the client's side.

use crate::{ClientError, Connection, system};
use ironcage_control::listen_on_loopback as listen;
use ironcage_control::{NetworkRequest, Reply, Request};
use ironcage_model::{Flow, Publish};
use ironcage_sys::packet;
use ironcage_sys::rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long a change may take: the proxy does it in between connections.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest word of the proxy's about one connection.
const LONGEST: usize = 16 * 1024;

impl Connection {
    /// Asks something about the network and waits for the answer.
    pub fn ask_network(&self, request: NetworkRequest) -> Result<Reply, ClientError> {
        self.send(&Request::Network(request))?;
        Ok(self.receive(Some(Instant::now() + PATIENCE))?.0)
    }

    /// Publishes a port inside at the host's loopback.
    pub fn publish(&self, wanted: Publish) -> Result<Publish, ClientError> {
        let (publish, listener) =
            listen(wanted).map_err(system("listen on that port on the host's loopback"))?;
        let request = Request::Network(NetworkRequest::Publish(publish));
        self.send_with(&request, &[listener.as_fd()])?;
        match self.receive(Some(Instant::now() + PATIENCE))?.0 {
            Reply::NetworkChanged { .. } => Ok(publish),
            other => Err(ClientError::Answer(format!("{other:?}"))),
        }
    }

    /// Watches connections as they happen.
    pub fn watch_network(&self) -> Result<Watch, ClientError> {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (own, others) = socketpair(AddressFamily::UNIX, kind, flags, None)
            .map_err(system("make a socket to watch with"))?;
        let request = Request::Network(NetworkRequest::Watch);
        self.send_with(&request, &[others.as_fd()])?;
        match self.receive(Some(Instant::now() + PATIENCE))?.0 {
            Reply::Watching => Ok(Watch(own)),
            other => Err(ClientError::Answer(format!("{other:?}"))),
        }
    }
}

/// Connections of a cage, as they happen.
#[derive(Debug)]
pub struct Watch(OwnedFd);

impl Watch {
    /// The next step of a connection; `None` when the proxy is gone.
    pub fn next(&self) -> Result<Option<Flow>, ClientError> {
        let wrong = system("hear the egress proxy");
        let came = packet::receive(self.0.as_fd(), true, LONGEST, 0).map_err(wrong)?;
        let Some(came) = came.filter(|came| !came.bytes.is_empty()) else {
            return Ok(None);
        };
        // The proxy handles what strangers send: what it says is read as theirs would be.
        let flow = serde_json::from_slice(&came.bytes);
        flow.map(Some)
            .map_err(|error| ClientError::Answer(error.to_string()))
    }
}
