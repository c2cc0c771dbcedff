//! The network of a running cage: a part of the supervisor. It owns the connection to the egress
//! proxy, what was changed since the start, and the sockets that stand in the cage for the host's.
//!
//! A change is asked for by a client or by a lease, carried out by the proxy, and logged once the
//! proxy says that it holds. The proxy handles what strangers send, so it is believed no further
//! than its messages are well-formed.

mod orders;
mod sockets;

use super::pace::TrafficPace;
use super::proxy_link::ProxyLink;
use super::publish::is_ours;
use super::rules::{NewRule, PlannedNetwork, can_be_held, reachable};
use super::socket_proxy::SocketProxy;
use crate::effects::Effect;
use ironcage_control::{NetworkRequest, NetworkRules, Reply};
use ironcage_egress::{Order, Proxy, SecretUses};
use ironcage_model::{
    EventKind, LiveRule, NetworkLimits, NetworkReason, NetworkVerdict, Printable, Publish, Reason,
    RuleChange,
};
use orders::PendingOrder;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// Rules that can be added to one cage.
const MOST_RULES: usize = 1024;
/// Ports that one cage can publish.
const MOST_PUBLISHED: usize = 64;
/// Who adds rules through the control socket.
const OPERATOR: &str = "operator";

/// Something that the network has to know.
#[derive(Debug)]
pub(crate) enum NetworkEvent {
    /// A client asks for something.
    Request {
        client: u64,
        request: NetworkRequest,
        descriptors: Vec<OwnedFd>,
    },
    /// The operator's rule, after the cage has taken on what comes with it.
    AddRule { client: u64, rule: NewRule },
    /// The proxy has said something.
    ProxyReady,
    /// Somebody in the cage connects to a host socket, by its number.
    SocketReady(usize),
    /// Whether the connection that was accepted there may be carried on.
    SocketDecided { allowed: bool },
    /// PID 1 has begun a connection into the cage, or could not.
    Dialled {
        ticket: u32,
        socket: Option<OwnedFd>,
    },
    /// The proxy must not be used any more.
    LoseProxy { reason: Reason },
}

/// The network of one running cage.
#[derive(Debug)]
pub(crate) struct Network {
    /// `None` where the cage has no network.
    planned: Option<PlannedNetwork>,
    proxy: Option<Box<dyn ProxyLink>>,
    rules: Vec<LiveRule>,
    limits: Option<NetworkLimits>,
    published: Vec<Publish>,
    last_rule: u32,
    last_serial: u32,
    pending: Vec<PendingOrder>,
    pace: TrafficPace,
    sockets: Vec<SocketProxy>,
    /// A connection to a host socket that waits for the word of a lease.
    accepted: Option<(usize, OwnedFd)>,
}

impl Network {
    pub(crate) fn new(
        planned: Option<&ironcage_plan::Network>,
        proxy: Option<Proxy>,
        sockets: Vec<SocketProxy>,
        now: Instant,
    ) -> Self {
        let proxy = proxy.map(|proxy| -> Box<dyn ProxyLink> { Box::new(proxy) });
        Network::with(planned.map(PlannedNetwork::of), proxy, sockets, now)
    }

    fn with(
        planned: Option<PlannedNetwork>,
        proxy: Option<Box<dyn ProxyLink>>,
        sockets: Vec<SocketProxy>,
        now: Instant,
    ) -> Self {
        Network {
            planned,
            proxy,
            rules: Vec::new(),
            limits: None,
            published: Vec::new(),
            last_rule: 0,
            last_serial: 0,
            pending: Vec::new(),
            pace: TrafficPace::new(now),
            sockets,
            accepted: None,
        }
    }

    /// Where the proxy speaks, and where somebody in the cage connects to host sockets; nothing
    /// while the log has no room.
    pub(crate) fn descriptors(
        &self,
        now: Instant,
    ) -> Option<(
        BorrowedFd<'_>,
        impl Iterator<Item = (usize, BorrowedFd<'_>)>,
    )> {
        let proxy = self.proxy.as_ref().filter(|_| self.next(now).is_none())?;
        let sockets = self.sockets.iter().enumerate();
        let sockets = sockets.map(|(index, socket)| (index, socket.as_fd()));
        Some((proxy.as_fd(), sockets))
    }

    /// When the proxy is heard again, where it is not now.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        self.proxy.as_ref().and(self.pace.pause(now))
    }

    /// Whether the proxy runs.
    pub(crate) fn has_proxy(&self) -> bool {
        self.proxy.is_some()
    }

    /// By which the answer to the last order is known.
    pub(crate) fn last_serial(&self) -> u32 {
        self.last_serial
    }

    /// Whether the operator has taken something away since the start.
    pub(crate) fn is_narrowed(&self) -> bool {
        let denied = |rule: &LiveRule| rule.verdict == NetworkVerdict::Denied;
        self.limits.is_some() || self.rules.iter().any(denied)
    }

    /// Whether a socket stands in the cage for leases on this one.
    pub(crate) fn has_socket(&self, path: &str) -> bool {
        self.sockets.iter().any(|socket| socket.stands_for(path))
    }

    /// A lease on a socket begins or ends.
    pub(crate) fn set_socket(&mut self, path: &str, open: bool) {
        for socket in self.sockets.iter_mut().filter(|s| s.stands_for(path)) {
            socket.set_open(open);
        }
    }

    pub(crate) fn handle(&mut self, event: NetworkEvent, now: Instant) -> Vec<Effect> {
        match event {
            NetworkEvent::Request {
                client,
                request,
                descriptors,
            } => {
                let done = self.answer(client, request, descriptors);
                let refused = |reason| vec![Effect::refuse(client, reason)];
                self.with_narrowing(done.unwrap_or_else(refused))
            }
            NetworkEvent::AddRule { client, rule } => {
                let added = self.add_rule(Some(client), rule, OPERATOR);
                let refused = added.err().map(|reason| Effect::refuse(client, reason));
                self.with_narrowing(refused.into_iter().collect())
            }
            NetworkEvent::ProxyReady => self.message(now),
            NetworkEvent::SocketReady(index) => self.accept(index, now),
            NetworkEvent::SocketDecided { allowed } => self.carry(allowed, now),
            NetworkEvent::Dialled { ticket, socket } => {
                let descriptors: Vec<_> = socket.iter().map(AsFd::as_fd).collect();
                // A proxy that does not listen any more needs none.
                let _ = self.order(&Order::Dialled { ticket }, &descriptors);
                Vec::new()
            }
            NetworkEvent::LoseProxy { reason } => self.lose(reason),
        }
    }

    /// Scopes and children have proxies of their own, by the rules of the start, and the agent
    /// opened them: they end where something was taken away.
    fn with_narrowing(&self, mut effects: Vec<Effect>) -> Vec<Effect> {
        if self.is_narrowed() {
            effects.push(Effect::EndOtherNetworks);
        }
        effects
    }

    fn answer(
        &mut self,
        client: u64,
        request: NetworkRequest,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Vec<Effect>, NetworkReason> {
        let replied = |reply| vec![Effect::Reply { client, reply }];
        match request {
            NetworkRequest::Rules => {
                let reply = Reply::NetworkRules(Box::new(self.describe()?));
                return Ok(replied(reply));
            }
            NetworkRequest::Add {
                verdict,
                rule,
                requests,
            } => {
                let rule = NewRule {
                    verdict,
                    rule,
                    requests,
                    uses: None,
                };
                // What comes with the rule is on record before it holds.
                return Ok(vec![Effect::AddOperatorRule { client, rule }]);
            }
            NetworkRequest::Remove { numbers } => {
                let operators = self.operators_rules();
                if let Some(number) = numbers.iter().find(|number| !operators.contains(number)) {
                    return Err(NetworkReason::NoSuchRule {
                        number: (*number).into(),
                    });
                }
                self.remove_rules(Some(client), &numbers)?;
            }
            NetworkRequest::Reset => {
                let numbers = self.operators_rules();
                self.remove_rules(Some(client), &numbers)?;
            }
            NetworkRequest::Limits(limits) => {
                let serial = self.next_serial();
                self.order(&Order::Limits { serial, limits }, &[])?;
                self.limits = Some(limits);
                self.await_change(serial, Some(client), EventKind::NetworkLimits(limits));
            }
            NetworkRequest::Publish(publish) => match descriptors.as_slice() {
                [listener] => self.publish(Some(client), publish, listener)?,
                _ => return Err(NetworkReason::NotAListener),
            },
            NetworkRequest::Unpublish { outer } => self.unpublish(Some(client), outer)?,
            NetworkRequest::Watch => {
                let [socket] = descriptors.as_slice() else {
                    return Err(NetworkReason::NoWatchSocket);
                };
                self.order(&Order::Watch, &[socket.as_fd()])?;
                return Ok(replied(Reply::Watching));
            }
        }
        // Answered when the proxy says that it holds.
        Ok(Vec::new())
    }

    fn operators_rules(&self) -> Vec<u32> {
        let operators = self.rules.iter().filter(|rule| rule.origin == OPERATOR);
        operators.map(|rule| rule.number).collect()
    }

    fn describe(&self) -> Result<NetworkRules, NetworkReason> {
        let planned = self.planned.as_ref().ok_or(NetworkReason::NoNetwork)?;
        Ok(NetworkRules {
            live: self.rules.clone(),
            published: self.published.clone(),
            limits: self.limits.unwrap_or(planned.rules.limits),
            ..planned.rules.clone()
        })
    }

    /// Whether a rule could hold.
    ///
    /// # Errors
    /// Why it could not.
    pub(crate) fn can_add_rule(&self, new: &NewRule) -> Result<(), NetworkReason> {
        self.proxy_is_there()?;
        let planned = self.planned.as_ref().ok_or(NetworkReason::NoNetwork)?;
        if new.verdict == NetworkVerdict::Allowed {
            reachable(&new.rule, planned.rules.ports.clone())?;
        }
        if let Some(requests) = &new.requests {
            can_be_held(new.verdict, &new.rule, requests, planned.opens_tls)?;
        }
        if self.rules.len() >= MOST_RULES {
            return Err(NetworkReason::TooManyRules {
                limit: MOST_RULES as u64,
            });
        }
        Ok(())
    }

    /// Whether there is a proxy that takes orders.
    ///
    /// # Errors
    /// Why there is not.
    pub(crate) fn proxy_is_there(&self) -> Result<(), NetworkReason> {
        match (&self.proxy, &self.planned) {
            (Some(_), _) => Ok(()),
            (None, Some(_)) => Err(NetworkReason::ProxyEnded),
            (None, None) => Err(NetworkReason::NoNetwork),
        }
    }

    /// Lets the proxy put a leased secret on requests, or no more.
    ///
    /// # Errors
    /// Where the proxy takes no order.
    pub(crate) fn lease_secret(
        &mut self,
        name: &str,
        uses: SecretUses,
    ) -> Result<(), NetworkReason> {
        let serial = self.next_serial();
        let name = name.to_owned();
        self.order(&Order::Secret { serial, name, uses }, &[])?;
        self.await_answer(serial);
        Ok(())
    }

    /// Closes what is carried to a host socket.
    ///
    /// # Errors
    /// Where the proxy takes no order.
    pub(crate) fn drop_carried(&mut self, path: &str) -> Result<(), NetworkReason> {
        let serial = self.next_serial();
        let name = Printable::new(path).to_string();
        self.order(&Order::Drop { serial, name }, &[])?;
        self.await_answer(serial);
        Ok(())
    }

    /// Adds a rule. It holds, and is recorded, when the proxy has said so; then the client is
    /// answered, where one asked. Returns the rule's number, by which it is taken away.
    ///
    /// # Errors
    /// Why it cannot hold.
    pub(crate) fn add_rule(
        &mut self,
        client: Option<u64>,
        new: NewRule,
        origin: &str,
    ) -> Result<u32, NetworkReason> {
        self.can_add_rule(&new)?;
        let NewRule {
            verdict,
            rule,
            requests,
            uses,
        } = new;
        let number = self.last_rule.checked_add(1);
        let number = number.ok_or(NetworkReason::TooManyRules {
            limit: u32::MAX.into(),
        })?;
        let rule = LiveRule {
            number,
            verdict,
            rule,
            requests,
            uses,
            origin: origin.to_owned(),
        };
        self.order_rules(client, vec![rule], Vec::new())?;
        self.last_rule = number;
        Ok(number)
    }

    /// Takes rules away that were added before. Connections that only they allowed are closed.
    ///
    /// # Errors
    /// Where the proxy takes no order.
    pub(crate) fn remove_rules(
        &mut self,
        client: Option<u64>,
        numbers: &[u32],
    ) -> Result<(), NetworkReason> {
        let gone = self.rules.iter().filter(|r| numbers.contains(&r.number));
        let gone: Vec<LiveRule> = gone.cloned().collect();
        self.order_rules(client, Vec::new(), gone)
    }

    fn order_rules(
        &mut self,
        client: Option<u64>,
        add: Vec<LiveRule>,
        remove: Vec<LiveRule>,
    ) -> Result<(), NetworkReason> {
        let serial = self.next_serial();
        let order = Order::Rules {
            serial,
            add: add.clone(),
            remove: remove.iter().map(|rule| rule.number).collect(),
        };
        self.order(&order, &[])?;
        self.rules.retain(|rule| !remove.contains(rule));
        self.rules.extend(add.iter().cloned());
        let added = add.into_iter().map(|rule| (RuleChange::Added, rule));
        let removed = remove.into_iter().map(|rule| (RuleChange::Removed, rule));
        self.pending.push(PendingOrder {
            serial,
            client,
            changes: added.chain(removed).collect(),
            event: None,
        });
        Ok(())
    }

    /// Whether a port could be published there.
    ///
    /// # Errors
    /// Why it could not.
    pub(crate) fn can_publish(
        &self,
        publish: Publish,
        listener: &OwnedFd,
    ) -> Result<(), NetworkReason> {
        self.proxy_is_there()?;
        if self.published.len() >= MOST_PUBLISHED {
            return Err(NetworkReason::TooManyPublished {
                limit: MOST_PUBLISHED as u64,
            });
        }
        is_ours(listener, publish.outer)
    }

    /// Publishes a port at a listening socket of the host's loopback.
    ///
    /// # Errors
    /// Why it cannot be.
    pub(crate) fn publish(
        &mut self,
        client: Option<u64>,
        publish: Publish,
        listener: &OwnedFd,
    ) -> Result<(), NetworkReason> {
        self.can_publish(publish, listener)?;
        let serial = self.next_serial();
        self.order(&Order::Publish { serial, publish }, &[listener.as_fd()])?;
        self.published.push(publish);
        let change = RuleChange::Added;
        self.await_change(serial, client, EventKind::Published { change, publish });
        Ok(())
    }

    /// Ends the publishing of a port.
    ///
    /// # Errors
    /// Where it is not published, or the proxy takes no order.
    pub(crate) fn unpublish(
        &mut self,
        client: Option<u64>,
        outer: u16,
    ) -> Result<(), NetworkReason> {
        let mut published = self.published.iter();
        let at = published.position(|publish| publish.outer == outer);
        let at = at.ok_or(NetworkReason::NotPublished { port: outer.into() })?;
        let publish = self.published.remove(at);
        let serial = self.next_serial();
        self.order(&Order::Unpublish { serial, outer }, &[])?;
        let change = RuleChange::Removed;
        self.await_change(serial, client, EventKind::Published { change, publish });
        Ok(())
    }
}

#[cfg(test)]
#[path = "part_tests.rs"]
mod tests;
