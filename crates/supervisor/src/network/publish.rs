//! Ports of a cage's that are reached at the host's loopback: the listening sockets are made
//! here, outside; the egress proxy accepts at them, and PID 1 begins the connections inside.

use crate::RunError;
use ironcage_control::listen_on_loopback;
use ironcage_model::{NetworkReason, Publish, Resource};
use ironcage_plan::Plan;
use ironcage_sys::rustix::net::sockopt::socket_acceptconn;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;

/// A port that is listened on, before its cage is there.
#[derive(Debug)]
pub(crate) struct ListeningPort {
    pub(super) publish: Publish,
    pub(super) listener: OwnedFd,
}

/// Listens for every port of the plan.
pub(crate) fn listen_for(plan: &Plan) -> Result<Vec<ListeningPort>, RunError> {
    let ports = plan.network.iter().flat_map(|network| &network.publish);
    let mut listening = Vec::new();
    for item in ports {
        let Publish { outer, inner } = item.what;
        let (publish, listener) =
            listen_on_loopback(item.what).map_err(|source| RunError::Publish {
                outer,
                inner,
                source,
            })?;
        listening.push(ListeningPort { publish, listener });
    }
    Ok(listening)
}

/// Whether a lease is about this port.
pub(crate) fn is_port(resource: &Resource, publish: Publish) -> bool {
    matches!(resource, Resource::Port { publish: own } if *own == publish)
}

/// Whether a descriptor that came from a client is what it is said to be: a socket that listens
/// on this port of the host's loopback, and nowhere else.
pub(super) fn is_ours(listener: &OwnedFd, port: u16) -> Result<(), NetworkReason> {
    let copy = listener
        .try_clone()
        .map_err(|_| NetworkReason::NotAListener)?;
    let address = TcpListener::from(copy).local_addr();
    let listens = socket_acceptconn(listener).unwrap_or(false);
    match address {
        Ok(address) if listens && address.ip() == Ipv4Addr::LOCALHOST && address.port() == port => {
            Ok(())
        }
        _ => Err(NetworkReason::NotAListener),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listening_sockets_of_the_loopback_are_published() {
        let (publish, listener) = listen_on_loopback(Publish {
            outer: 0,
            inner: 80,
        })
        .unwrap();
        assert!(is_ours(&listener, publish.outer).is_ok());
        assert!(is_ours(&listener, publish.outer.wrapping_add(1)).is_err());
        let everywhere = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = everywhere.local_addr().unwrap().port();
        assert!(is_ours(&everywhere.into(), port).is_err());
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(is_ours(&file.into(), 80).is_err());
    }
}
