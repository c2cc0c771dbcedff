//! Changes of a running cage's network: asked by clients or by the runtime itself, carried out
//! by the door, recorded once they hold.

use crate::RunError;
use crate::supervise::Supervision;
use ironcage_control::{NetworkRequest, NetworkRules, Reply};
use ironcage_egress::{Order, SecretUses};
use ironcage_model::{
    EventKind, HostRule, HttpRule, LiveRule, NetworkLimits, NetworkVerdict, Ports, Printable,
    Publish, Resource, RuleChange, Taint,
};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// Rules that can be added to one cage.
const MOST: usize = 1024;
/// Who adds rules through the control socket.
const OPERATOR: &str = "operator";

/// A rule that is to be added.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Whether it allows or denies.
    pub(crate) verdict: NetworkVerdict,
    /// Which hosts and ports.
    pub(crate) rule: HostRule,
    /// Which requests of those hosts, where it allows some only.
    pub(crate) requests: Option<HttpRule>,
    /// How many connections or requests, where that is counted.
    pub(crate) uses: Option<u32>,
}

/// What was ordered and not answered yet.
#[derive(Debug)]
struct Awaited {
    serial: u32,
    client: Option<u64>,
    changes: Vec<(RuleChange, LiveRule)>,
    /// What is recorded once it holds, where it is not about rules.
    event: Option<EventKind>,
}

/// What moved in the network of a cage since its start.
#[derive(Debug, Default)]
pub(crate) struct LiveNetwork {
    rules: Vec<LiveRule>,
    limits: Option<NetworkLimits>,
    pub(crate) published: Vec<Publish>,
    last_rule: u32,
    last_serial: u32,
    awaited: Vec<Awaited>,
}

impl LiveNetwork {
    /// By which the answer to the last order is known.
    pub(crate) fn last_serial(&self) -> u32 {
        self.last_serial
    }

    /// Whether the operator has taken something away since the start.
    pub(crate) fn is_narrowed(&self) -> bool {
        let denied = |rule: &LiveRule| rule.verdict == NetworkVerdict::Denied;
        self.limits.is_some() || self.rules.iter().any(denied)
    }
}

impl Supervision<'_> {
    /// Does what a client asks about the network, or says why not.
    pub(crate) fn answer_network(
        &mut self,
        key: u64,
        request: NetworkRequest,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), RunError> {
        let done = match request {
            NetworkRequest::Rules => self.network_rules().map(|rules| {
                let reply = Reply::NetworkRules(Box::new(rules));
                self.control.reply(key, &reply, &[]);
            }),
            NetworkRequest::Add {
                verdict,
                rule,
                requests,
            } => {
                let reached = Resource::Host { rule: rule.clone() };
                let brings = match verdict {
                    NetworkVerdict::Allowed => self.plan.taint_of(&reached),
                    _ => Taint::NONE,
                };
                let because = format!("the operator allowed {reached}");
                self.take_on(brings, &because, Instant::now())?;
                let wanted = Wanted {
                    verdict,
                    rule,
                    requests,
                    uses: None,
                };
                self.add_network_rule(Some(key), wanted, OPERATOR).map(drop)
            }
            NetworkRequest::Remove { numbers } => {
                let known = self.network.rules.iter();
                let operators = known.filter(|rule| rule.origin == OPERATOR);
                let operators: Vec<u32> = operators.map(|rule| rule.number).collect();
                match numbers.iter().find(|number| !operators.contains(number)) {
                    Some(number) => Err(format!(
                        "no rule that was added with `net allow` or `net deny` has the number {number}"
                    )),
                    None => self.remove_network_rules(Some(key), &numbers),
                }
            }
            NetworkRequest::Reset => {
                let known = self.network.rules.iter();
                let operators = known.filter(|rule| rule.origin == OPERATOR);
                let numbers: Vec<u32> = operators.map(|rule| rule.number).collect();
                self.remove_network_rules(Some(key), &numbers)
            }
            NetworkRequest::Limits(limits) => self.set_network_limits(key, limits),
            NetworkRequest::Publish(publish) => match descriptors.as_slice() {
                [listener] => self.publish(Some(key), publish, listener),
                _ => Err("publishing needs one socket beside the request".into()),
            },
            NetworkRequest::Unpublish { outer } => self.unpublish(Some(key), outer),
            NetworkRequest::Watch => self.watch_network(key, descriptors),
        };
        if let Err(reason) = done {
            self.control.refuse(key, reason);
        }
        if self.network.is_narrowed() {
            // They have doors of their own, by the rules of the start, and the agent opened them.
            self.scopes.end_those_of_shells();
            self.children.ask_to_end();
        }
        Ok(())
    }

    fn network_rules(&self) -> Result<NetworkRules, String> {
        let network = self.plan.network.as_ref().ok_or_else(no_door)?;
        let rules = |items: &[ironcage_plan::Item<ironcage_plan::NetworkRule>]| {
            items.iter().map(|item| item.what.rule.clone()).collect()
        };
        Ok(NetworkRules {
            allow: rules(&network.allow),
            http: (network.http.iter())
                .map(|item| item.what.rule.clone())
                .collect(),
            deny: rules(&network.deny),
            host_ports: network.host_ports.iter().map(|p| p.what.port).collect(),
            ports: network.ports(),
            live: self.network.rules.clone(),
            published: self.network.published.clone(),
            limits: self.network.limits.unwrap_or(network.limits),
        })
    }

    /// Whether a rule could hold.
    ///
    /// # Errors
    /// In words, where it could not.
    pub(crate) fn can_add_rule(&self, wanted: &Wanted) -> Result<(), String> {
        self.door_is_there()?;
        let network = self.plan.network.as_ref().ok_or_else(no_door)?;
        if wanted.verdict == NetworkVerdict::Allowed {
            reachable(&wanted.rule, network.ports())?;
        }
        if let Some(requests) = &wanted.requests {
            can_be_held(wanted.verdict, &wanted.rule, requests, network.opens_tls())?;
        }
        if self.network.rules.len() >= MOST {
            return Err(format!(
                "{MOST} rules were added to this cage; take some away with `net remove`"
            ));
        }
        Ok(())
    }

    /// Whether there is a door that can be told something.
    ///
    /// # Errors
    /// In words, where there is none.
    pub(crate) fn door_is_there(&self) -> Result<(), String> {
        match (self.cage.door(), &self.plan.network) {
            (Some(_), _) => Ok(()),
            (None, Some(_)) => Err("the network door of this cage has ended".into()),
            (None, None) => Err(no_door()),
        }
    }

    /// Lets the door put a leased secret on requests, or no more.
    ///
    /// # Errors
    /// In words, where it cannot be told.
    pub(crate) fn lease_secret(&mut self, name: &str, uses: SecretUses) -> Result<(), String> {
        let serial = self.next_serial();
        let name = name.to_owned();
        self.tell_door(&Order::Secret { serial, name, uses }, &[])?;
        self.await_answer(serial);
        Ok(())
    }

    /// Closes what is carried to a socket of the host's.
    ///
    /// # Errors
    /// In words, where the door cannot be told.
    pub(crate) fn drop_carried(&mut self, path: &str) -> Result<(), String> {
        let serial = self.next_serial();
        let name = Printable::new(path).to_string();
        self.tell_door(&Order::Drop { serial, name }, &[])?;
        self.await_answer(serial);
        Ok(())
    }

    /// An order whose answer is for a lease alone, which has its own record.
    fn await_answer(&mut self, serial: u32) {
        self.network.awaited.push(Awaited {
            serial,
            client: None,
            changes: Vec::new(),
            event: None,
        });
    }

    /// Adds a rule. It holds, and is recorded, when the door has said so; then the client is
    /// answered, where one asked. Returns the rule's number, by which it is taken away.
    ///
    /// # Errors
    /// In words, where it cannot hold.
    pub(crate) fn add_network_rule(
        &mut self,
        client: Option<u64>,
        wanted: Wanted,
        origin: &str,
    ) -> Result<u32, String> {
        self.can_add_rule(&wanted)?;
        let Wanted {
            verdict,
            rule,
            requests,
            uses,
        } = wanted;
        let number = self.network.last_rule.checked_add(1);
        let number = number.ok_or("no number is left for another rule")?;
        let rule = LiveRule {
            number,
            verdict,
            rule,
            requests,
            uses,
            origin: origin.to_owned(),
        };
        self.order_rules(client, vec![rule], Vec::new())?;
        self.network.last_rule = number;
        Ok(number)
    }

    /// Takes rules away that were added before. Connections that only they allowed are closed.
    ///
    /// # Errors
    /// In words, where the door cannot be told.
    pub(crate) fn remove_network_rules(
        &mut self,
        client: Option<u64>,
        numbers: &[u32],
    ) -> Result<(), String> {
        let known = self.network.rules.iter();
        let gone: Vec<LiveRule> = known
            .filter(|rule| numbers.contains(&rule.number))
            .cloned()
            .collect();
        self.order_rules(client, Vec::new(), gone)
    }

    fn order_rules(
        &mut self,
        client: Option<u64>,
        add: Vec<LiveRule>,
        remove: Vec<LiveRule>,
    ) -> Result<(), String> {
        let serial = self.next_serial();
        self.tell_door(
            &Order::Rules {
                serial,
                add: add.clone(),
                remove: remove.iter().map(|rule| rule.number).collect(),
            },
            &[],
        )?;
        let rules = &mut self.network.rules;
        rules.retain(|rule| !remove.contains(rule));
        rules.extend(add.iter().cloned());
        let added = add.into_iter().map(|rule| (RuleChange::Added, rule));
        let removed = remove.into_iter().map(|rule| (RuleChange::Removed, rule));
        self.network.awaited.push(Awaited {
            serial,
            client,
            changes: added.chain(removed).collect(),
            event: None,
        });
        Ok(())
    }

    fn set_network_limits(&mut self, key: u64, limits: NetworkLimits) -> Result<(), String> {
        let serial = self.next_serial();
        self.tell_door(&Order::Limits { serial, limits }, &[])?;
        self.network.limits = Some(limits);
        self.await_change(serial, Some(key), EventKind::NetworkLimits(limits));
        Ok(())
    }

    pub(crate) fn await_change(&mut self, serial: u32, client: Option<u64>, event: EventKind) {
        self.network.awaited.push(Awaited {
            serial,
            client,
            changes: Vec::new(),
            event: Some(event),
        });
    }

    fn watch_network(&mut self, key: u64, descriptors: Vec<OwnedFd>) -> Result<(), String> {
        let [socket] = descriptors.as_slice() else {
            return Err("watching needs one socket beside the request".into());
        };
        self.tell_door(&Order::Watch, &[socket.as_fd()])?;
        self.control.reply(key, &Reply::Watching, &[]);
        Ok(())
    }

    pub(crate) fn next_serial(&mut self) -> u32 {
        self.network.last_serial = self.network.last_serial.wrapping_add(1);
        self.network.last_serial
    }

    pub(crate) fn tell_door(
        &self,
        order: &Order,
        descriptors: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<(), String> {
        self.door_is_there()?;
        let door = self.cage.door().ok_or_else(no_door)?;
        door.tell(order, descriptors)
            .map_err(|error| format!("the network door does not listen: {error}"))
    }

    /// The door says that a change holds: it is recorded, and who asked is told.
    pub(crate) fn network_changed(&mut self, serial: u32, closed: u64) -> Result<(), RunError> {
        let awaited = &mut self.network.awaited;
        let Some(at) = awaited.iter().position(|order| order.serial == serial) else {
            return Ok(());
        };
        let Awaited {
            client,
            changes,
            event,
            ..
        } = awaited.remove(at);
        let numbers = changes.iter().map(|(_, rule)| rule.number).collect();
        for (change, rule) in changes {
            self.recorder.write(EventKind::NetworkRule {
                change,
                rule,
                closed,
            })?;
        }
        if let Some(event) = event {
            self.recorder.write(event)?;
        }
        if let Some(key) = client {
            let reply = Reply::NetworkChanged { numbers, closed };
            self.control.reply(key, &reply, &[]);
        }
        self.lease_changed(serial)
    }

    /// Records what the door was told and has not answered: it may hold already.
    pub(crate) fn record_awaited_changes(&mut self) -> Result<(), RunError> {
        while let Some(order) = self.network.awaited.first() {
            self.network_changed(order.serial, 0)?;
        }
        Ok(())
    }

    /// The door has ended: nothing that was ordered holds, and nothing goes out.
    pub(crate) fn network_gone(&mut self) -> Result<(), RunError> {
        for order in std::mem::take(&mut self.network.awaited) {
            if let Some(key) = order.client {
                let reason = "the network door ended before it could do that";
                self.control.refuse(key, reason);
            }
        }
        self.leases_without_door()?;
        // Nobody carries anything any more: who connects is refused, and does not wait.
        self.sockets.clear();
        Ok(())
    }
}

fn no_door() -> String {
    "the cage was started without a network; start it with --network live, or with a rule".into()
}

/// Whether the door can hold a host to requests at all.
fn can_be_held(
    verdict: NetworkVerdict,
    rule: &HostRule,
    requests: &HttpRule,
    opens_tls: bool,
) -> Result<(), String> {
    if verdict != NetworkVerdict::Allowed || requests.host != *rule {
        return Err("a rule over requests allows some of one host's, and denies none".into());
    }
    if rule.ports == Ports::One(80) || opens_tls {
        return Ok(());
    }
    Err("the programs in this cage know no authority of its own, by which TLS could be opened to see requests; start the cage with --network live, or name port 80".into())
}

/// Whether the door may connect to the ports of a rule at all: it gave up the others for good
/// when it started.
fn reachable(rule: &HostRule, ports: Option<Vec<u16>>) -> Result<(), String> {
    let Some(ports) = ports else {
        return Ok(());
    };
    let wanted: &[u16] = match &rule.ports {
        Ports::Web => &[80, 443],
        Ports::One(port) => std::slice::from_ref(port),
        Ports::Any => &[],
    };
    let missing: Vec<String> = wanted
        .iter()
        .filter(|port| !ports.contains(port))
        .map(u16::to_string)
        .collect();
    if missing.is_empty() && rule.ports != Ports::Any {
        return Ok(());
    }
    let known: Vec<String> = ports.iter().map(u16::to_string).collect();
    let (missing, known) = (missing.join(" and "), known.join(", "));
    Err(if rule.ports == Ports::Any {
        format!(
            "the door of this cage reaches ports {known} only, for good; name one of them, or start the cage with --network live"
        )
    } else {
        format!(
            "the door of this cage reaches ports {known} only, for good, and this is about {missing}; start the cage with --network live"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_held_where_they_can_be_seen() {
        let held = |text: &str, verdict, opens_tls| {
            let requests: HttpRule = text.parse().unwrap();
            can_be_held(verdict, &requests.host.clone(), &requests, opens_tls)
        };
        assert!(held("GET a.com/x", NetworkVerdict::Allowed, true).is_ok());
        assert!(held("GET a.com:80/x", NetworkVerdict::Allowed, false).is_ok());
        let refused = held("GET a.com/x", NetworkVerdict::Allowed, false).unwrap_err();
        assert!(refused.contains("--network live"), "{refused}");
        assert!(held("GET a.com/x", NetworkVerdict::Denied, true).is_err());
        let requests: HttpRule = "GET a.com/x".parse().unwrap();
        let other: HostRule = "b.com".parse().unwrap();
        assert!(can_be_held(NetworkVerdict::Allowed, &other, &requests, true).is_err());
    }

    #[test]
    fn a_door_that_gave_up_ports_is_not_told_to_use_them() {
        let may = |text: &str, ports: Option<&[u16]>| {
            let rule: HostRule = text.parse().unwrap();
            reachable(&rule, ports.map(<[u16]>::to_vec))
        };
        assert!(may("a.com", None).is_ok());
        assert!(may("a.com:*", None).is_ok());
        assert!(may("a.com", Some(&[80, 443])).is_ok());
        assert!(may("a.com:443", Some(&[443])).is_ok());
        let refused = may("a.com", Some(&[443])).unwrap_err();
        assert!(refused.contains("about 80;"), "{refused}");
        assert!(may("a.com:22", Some(&[80, 443])).is_err());
        assert!(may("a.com:*", Some(&[80, 443])).is_err());
    }
}
