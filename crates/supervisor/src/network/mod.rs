//! The network of a running cage. [`part`] owns it; here the loop gives it events and carries out
//! what needs others: taint, leases, PID 1.

mod denials;
mod denying_resolver;
mod held_socket;
mod pace;
mod part;
mod proxy_link;
mod publish;
mod rules;
mod socket_proxy;

pub use denials::DenialLine;
pub(crate) use denials::NetworkDenials;
pub(crate) use denying_resolver::DenyingResolver;
pub(crate) use held_socket::HeldSocket;
pub(crate) use part::{Network, NetworkEvent};
pub(crate) use publish::{ListeningPort, is_port, listen_for};
pub(crate) use rules::NewRule;
pub(crate) use socket_proxy::{SocketProxy, SupervisorFiles, hide};

use crate::RunError;
use crate::supervise::Supervision;
use ironcage_model::{NetworkVerdict, Publish, Reason, Resource, Taint};
use std::path::Path;
use std::time::Instant;

impl Supervision<'_> {
    /// Gives an event to the network.
    pub(crate) fn network_event(
        &mut self,
        event: NetworkEvent,
        now: Instant,
    ) -> Result<(), RunError> {
        let effects = self.network.handle(event, now);
        self.apply(effects, now)
    }

    /// Publishes what was listened for before the start.
    pub(crate) fn publish_all(&mut self, listening: Vec<ListeningPort>) -> Result<(), RunError> {
        for ListeningPort { publish, listener } in listening {
            if self.network.publish(None, publish, &listener).is_ok() {
                let effects = self.network.record_pending();
                self.apply(effects, Instant::now())?;
            }
        }
        Ok(())
    }

    /// The operator allows something: the cage takes on what comes with it before it holds.
    pub(crate) fn add_operator_rule(
        &mut self,
        client: u64,
        rule: NewRule,
        now: Instant,
    ) -> Result<(), RunError> {
        let reached = Resource::Host {
            rule: rule.rule.clone(),
        };
        let brings = match rule.verdict {
            NetworkVerdict::Allowed => self.plan.taint_of(&reached),
            _ => Taint::NONE,
        };
        let because = format!("the operator allowed {reached}");
        self.take_on(brings, &because, now)?;
        self.network_event(NetworkEvent::AddRule { client, rule }, now)
    }

    /// The proxy wants a connection into the cage. It gets one to a port that is published without
    /// a lease, or by a use of one.
    pub(crate) fn dial_inside(
        &mut self,
        (ticket, port, six): (u32, u16, bool),
        published: &[Publish],
        now: Instant,
    ) -> Result<(), RunError> {
        let leased = |publish: &Publish| self.is_leased_port(*publish);
        let mut at = published.iter();
        let known = published.iter().any(|publish| !leased(publish))
            || at.any(|publish| self.leases.take_use(|resource| is_port(resource, *publish)));
        if known && self.cage.dial(ticket, port, six).is_ok() {
            return Ok(());
        }
        let socket = None;
        self.network_event(NetworkEvent::Dialled { ticket, socket }, now)
    }

    /// Somebody in the cage connects to a host socket that is leased.
    pub(crate) fn use_socket(&mut self, real: &Path, now: Instant) -> Result<(), RunError> {
        let is_it = |resource: &Resource| matches!(resource, Resource::Socket { path } if real.as_os_str() == path.as_str());
        let allowed = self.leases.take_use(is_it);
        self.network_event(NetworkEvent::SocketDecided { allowed }, now)
    }

    /// The egress proxy has ended, or is to: nothing goes out any more.
    pub(crate) fn lose_proxy(&mut self, reason: Reason, now: Instant) -> Result<(), RunError> {
        self.network_event(NetworkEvent::LoseProxy { reason }, now)
    }

    /// Ends the proxy and records what it has not told yet.
    pub(crate) fn close_proxy(&mut self) -> Result<(), RunError> {
        let effects = self.network.close();
        self.apply(effects, Instant::now())
    }
}
