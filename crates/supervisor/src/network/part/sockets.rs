//! Connections to the sockets that stand in the cage for the host's.

use super::Network;
use crate::effects::Effect;
use ironcage_egress::Order;
use ironcage_model::{EventKind, NetworkReason, NetworkVerdict, Protocol, Traffic};
use std::os::fd::AsFd;
use std::time::Instant;

impl Network {
    /// Takes one connection to a socket that stands for one of the host's.
    pub(super) fn accept(&mut self, index: usize, now: Instant) -> Vec<Effect> {
        let Some(socket) = self.sockets.get(index) else {
            return Vec::new();
        };
        let Some(inside) = socket.accept() else {
            return Vec::new();
        };
        let leased = socket.leased();
        let path = socket.real().to_owned();
        self.accepted = Some((index, inside));
        match leased {
            None => self.carry(true, now),
            Some(false) => self.carry(false, now),
            Some(true) => vec![Effect::UseSocket(path)],
        }
    }

    /// Carries on the connection that was accepted last, or closes it.
    pub(super) fn carry(&mut self, allowed: bool, now: Instant) -> Vec<Effect> {
        let Some((index, inside)) = self.accepted.take() else {
            return Vec::new();
        };
        let Some(socket) = self.sockets.get(index) else {
            return Vec::new();
        };
        let name = socket.name();
        let logged = |traffic| vec![Effect::Audit(EventKind::Network(traffic))];
        if !allowed {
            self.pace.count(now);
            return logged(Traffic {
                verdict: NetworkVerdict::Denied,
                reason: Some(NetworkReason::LeaseUsedUp.into()),
                ..unconnected(name)
            });
        }
        let carried = socket.dial().map_err(|error| error.to_string());
        let carried = carried.and_then(|outside| {
            let order = Order::Carry { name: name.clone() };
            let told = self.order(&order, &[inside.as_fd(), outside.as_fd()]);
            told.map_err(|error| error.to_string())
        });
        let Err(error) = carried else {
            return Vec::new();
        };
        self.pace.count(now);
        logged(Traffic {
            reason: Some(NetworkReason::CannotConnect { error }.into()),
            ..unconnected(name)
        })
    }
}

/// A connection to a host socket that did not come about.
pub(super) fn unconnected(name: String) -> Traffic {
    Traffic {
        verdict: NetworkVerdict::Allowed,
        rule: Some(name.clone()),
        host: name,
        port: 0,
        protocol: Protocol::Unix,
        address: None,
        request: None,
        status: None,
        reason: None,
        connections: 1,
        sent: 0,
        received: 0,
    }
}
