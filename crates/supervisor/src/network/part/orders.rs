//! Orders to the egress proxy, and what it answers: a change is recorded once the proxy says that
//! it holds.

use super::super::pace::AT_ONCE;
use super::Network;
use crate::effects::Effect;
use ironcage_control::Reply;
use ironcage_egress::{FromProxy, Order};
use ironcage_model::{EventKind, LiveRule, NetworkReason, Reason, RuleChange};
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// What was ordered and not answered yet.
#[derive(Debug)]
pub(super) struct PendingOrder {
    pub(super) serial: u32,
    pub(super) client: Option<u64>,
    pub(super) changes: Vec<(RuleChange, LiveRule)>,
    /// What is recorded once it holds, where it is not about rules.
    pub(super) event: Option<EventKind>,
}

impl Network {
    pub(super) fn await_change(&mut self, serial: u32, client: Option<u64>, event: EventKind) {
        self.pending.push(PendingOrder {
            serial,
            client,
            changes: Vec::new(),
            event: Some(event),
        });
    }

    /// An order whose answer is for a lease alone, which has its own record.
    pub(super) fn await_answer(&mut self, serial: u32) {
        self.pending.push(PendingOrder {
            serial,
            client: None,
            changes: Vec::new(),
            event: None,
        });
    }

    pub(super) fn next_serial(&mut self) -> u32 {
        self.last_serial = self.last_serial.wrapping_add(1);
        self.last_serial
    }

    pub(super) fn order(
        &self,
        order: &Order,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), NetworkReason> {
        self.proxy_is_there()?;
        let proxy = self.proxy.as_ref().ok_or(NetworkReason::NoNetwork)?;
        let sent = proxy.send(order, descriptors);
        sent.map_err(|error| NetworkReason::ProxyUnreachable {
            error: error.to_string(),
        })
    }

    /// Takes one message of the proxy.
    pub(super) fn message(&mut self, now: Instant) -> Vec<Effect> {
        let Some(proxy) = &self.proxy else {
            return Vec::new();
        };
        self.pace.count(now);
        let ended = match proxy.receive() {
            Ok(Some(FromProxy::Traffic(traffic))) => {
                return vec![
                    Effect::Audit(EventKind::Network(traffic.clone())),
                    Effect::CompareTraffic(traffic),
                ];
            }
            Ok(Some(FromProxy::Changed { serial, closed })) => return self.changed(serial, closed),
            Ok(Some(FromProxy::Dial { ticket, port, six })) => {
                let published = self.published.iter();
                let published = published.filter(|publish| publish.inner == port);
                return vec![Effect::DialInside {
                    ticket,
                    port,
                    six,
                    published: published.copied().collect(),
                }];
            }
            Ok(Some(FromProxy::Sum(traffic))) => {
                return vec![Effect::Audit(EventKind::Network(traffic))];
            }
            Ok(Some(FromProxy::Overheard(overheard))) => return vec![Effect::Overheard(overheard)],
            Ok(None | Some(FromProxy::Ready { .. } | FromProxy::Authority(_))) => {
                return Vec::new();
            }
            Ok(Some(FromProxy::Failed(reason))) => reason,
            Ok(Some(FromProxy::Closed)) => NetworkReason::ProxyDied.into(),
            // Not to be believed any more, and so not to be used.
            Err(error) => {
                let error = error.to_string();
                NetworkReason::ProxyUnreachable { error }.into()
            }
        };
        self.lose(ended)
    }

    /// The proxy says that a change holds: it is recorded, and who asked is told.
    pub(super) fn changed(&mut self, serial: u32, closed: u64) -> Vec<Effect> {
        let mut pending = self.pending.iter();
        let Some(at) = pending.position(|order| order.serial == serial) else {
            return Vec::new();
        };
        let PendingOrder {
            client,
            changes,
            event,
            ..
        } = self.pending.remove(at);
        let numbers = changes.iter().map(|(_, rule)| rule.number).collect();
        let changes = changes.into_iter().map(|(change, rule)| {
            Effect::Audit(EventKind::NetworkRule {
                change,
                rule,
                closed,
            })
        });
        let mut effects: Vec<Effect> = changes.collect();
        effects.extend(event.map(Effect::Audit));
        effects.extend(client.map(|client| Effect::Reply {
            client,
            reply: Reply::NetworkChanged { numbers, closed },
        }));
        effects.push(Effect::ProxyAnswered(serial));
        effects
    }

    /// What the proxy was told and has not answered is recorded: it may hold already.
    pub(crate) fn record_pending(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        while let Some(order) = self.pending.first() {
            effects.extend(self.changed(order.serial, 0));
        }
        effects
    }

    /// The proxy has ended, or is to: nothing that was ordered holds, and nothing goes out.
    pub(super) fn lose(&mut self, reason: Reason) -> Vec<Effect> {
        self.proxy = None;
        let mut effects = vec![Effect::Audit(EventKind::DoorEnded { reason })];
        let pending = std::mem::take(&mut self.pending).into_iter();
        let clients = pending.filter_map(|order| order.client);
        effects.extend(clients.map(|client| Effect::refuse(client, NetworkReason::ProxyEnded)));
        // Nobody carries anything any more: who connects is refused, and does not wait.
        self.sockets.clear();
        effects.push(Effect::ProxyGone);
        effects
    }

    /// Ends the proxy and records what it has not told yet. Waits for it.
    pub(crate) fn close(&mut self) -> Vec<Effect> {
        let mut effects = self.record_pending();
        if let Some(proxy) = self.proxy.take() {
            let traffic = proxy.close().into_iter().take(AT_ONCE as usize);
            effects.extend(traffic.map(|traffic| Effect::Audit(EventKind::Network(traffic))));
        }
        effects
    }
}
