//! Ports of a cage's that are reached at the host's loopback: the listening sockets are made
//! here, outside; the door accepts at them, and PID 1 begins the connections inside.

use crate::RunError;
use crate::supervise::Supervision;
use ironcage_egress::Order;
use ironcage_model::{EventKind, Publish, Resource, RuleChange};
use ironcage_plan::Plan;
use ironcage_sys::rustix::net::sockopt::socket_acceptconn;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};

/// Ports that one cage can publish.
const MOST: usize = 64;

/// A port that is listened on, before its cage is there.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) publish: Publish,
    listener: OwnedFd,
}

/// Listens on the host's loopback for a port inside.
pub(crate) fn listen(wanted: Publish) -> std::io::Result<(Publish, OwnedFd)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, wanted.outer))?;
    let outer = listener.local_addr()?.port();
    let publish = Publish { outer, ..wanted };
    Ok((publish, listener.into()))
}

/// Listens for every port of the plan.
pub(crate) fn listen_for(plan: &Plan) -> Result<Vec<Listening>, RunError> {
    let ports = plan.network.iter().flat_map(|network| &network.publish);
    let mut listening = Vec::new();
    for item in ports {
        let Publish { outer, inner } = item.what;
        let (publish, listener) = listen(item.what).map_err(|source| RunError::Publish {
            outer,
            inner,
            source,
        })?;
        listening.push(Listening { publish, listener });
    }
    Ok(listening)
}

impl Supervision<'_> {
    /// Publishes what was listened for before the start.
    pub(crate) fn publish_all(&mut self, listening: Vec<Listening>) -> Result<(), RunError> {
        for Listening { publish, listener } in listening {
            if self.publish(None, publish, &listener).is_ok() {
                self.record_awaited_changes()?;
            }
        }
        Ok(())
    }

    /// Whether a port could be published there.
    ///
    /// # Errors
    /// In words, where it could not.
    pub(crate) fn can_publish(&self, publish: Publish, listener: &OwnedFd) -> Result<(), String> {
        self.door_is_there()?;
        if self.network.published.len() >= MOST {
            return Err(format!("{MOST} ports of this cage are published already"));
        }
        is_ours(listener, publish.outer)
    }

    /// Publishes a port at a listening socket of the host's loopback.
    ///
    /// # Errors
    /// In words, where it cannot be.
    pub(crate) fn publish(
        &mut self,
        client: Option<u64>,
        publish: Publish,
        listener: &OwnedFd,
    ) -> Result<(), String> {
        self.can_publish(publish, listener)?;
        let serial = self.next_serial();
        let order = Order::Publish { serial, publish };
        self.tell_door(&order, &[listener.as_fd()])?;
        self.network.published.push(publish);
        let event = EventKind::Published {
            change: RuleChange::Added,
            publish,
        };
        self.await_change(serial, client, event);
        Ok(())
    }

    /// Ends the publishing of a port.
    ///
    /// # Errors
    /// In words, where it is not published.
    pub(crate) fn unpublish(&mut self, client: Option<u64>, outer: u16) -> Result<(), String> {
        let published = &mut self.network.published;
        let at = published.iter().position(|publish| publish.outer == outer);
        let at = at.ok_or_else(|| format!("no port of this cage is published at {outer}"))?;
        let publish = published.remove(at);
        let serial = self.next_serial();
        self.tell_door(&Order::Unpublish { serial, outer }, &[])?;
        let event = EventKind::Published {
            change: RuleChange::Removed,
            publish,
        };
        self.await_change(serial, client, event);
        Ok(())
    }

    /// The door wants a connection into the cage. It gets one to a port that is published.
    pub(crate) fn dial(&mut self, ticket: u32, port: u16, six: bool) {
        let published = self.network.published.clone();
        let mut at = published.iter().filter(|publish| publish.inner == port);
        let leased = |publish: &Publish| self.is_leased_port(*publish);
        // By a port that is published without a lease, or by a use of one.
        let known = at.clone().any(|publish| !leased(publish))
            || at.any(|publish| self.use_lease(|resource| is_port(resource, *publish)));
        if !known || self.cage.dial(ticket, port, six).is_err() {
            self.dialled(ticket, None);
        }
    }

    /// PID 1 has begun a connection, or could not.
    pub(crate) fn dialled(&self, ticket: u32, socket: Option<OwnedFd>) {
        let descriptors: Vec<_> = socket.iter().map(AsFd::as_fd).collect();
        // A door that does not listen any more needs none.
        let _ = self.tell_door(&Order::Dialled { ticket }, &descriptors);
    }
}

/// Whether a lease is about this port.
pub(crate) fn is_port(resource: &Resource, publish: Publish) -> bool {
    matches!(resource, Resource::Port { publish: own } if *own == publish)
}

/// Whether a descriptor that came from a client is what it is said to be: a socket that listens
/// on this port of the host's loopback, and nowhere else.
fn is_ours(listener: &OwnedFd, port: u16) -> Result<(), String> {
    let copy = listener.try_clone().map_err(|error| error.to_string())?;
    let address = TcpListener::from(copy).local_addr();
    let listens = socket_acceptconn(listener).unwrap_or(false);
    match address {
        Ok(address) if listens && address.ip() == Ipv4Addr::LOCALHOST && address.port() == port => {
            Ok(())
        }
        _ => Err("what came is no socket that listens on the host's loopback".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listening_sockets_of_the_loopback_are_published() {
        let (publish, listener) = listen(Publish {
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
