//! The part without a process: which effects follow from which events.

use super::sockets::unconnected;
use super::*;
use ironcage_egress::FromProxy;
use ironcage_model::Traffic;
use ironcage_model::{HostRule, HttpRule};
use std::io;

#[test]
fn requests_are_held_where_they_can_be_seen() {
    let held = |text: &str, verdict, opens_tls| {
        let requests: HttpRule = text.parse().unwrap();
        can_be_held(verdict, &requests.host.clone(), &requests, opens_tls)
    };
    assert!(held("GET a.com/x", NetworkVerdict::Allowed, true).is_ok());
    assert!(held("GET a.com:80/x", NetworkVerdict::Allowed, false).is_ok());
    let refused = held("GET a.com/x", NetworkVerdict::Allowed, false).unwrap_err();
    assert_eq!(refused, NetworkReason::NoInterception);
    assert!(held("GET a.com/x", NetworkVerdict::Denied, true).is_err());
    let requests: HttpRule = "GET a.com/x".parse().unwrap();
    let other: HostRule = "b.com".parse().unwrap();
    assert!(can_be_held(NetworkVerdict::Allowed, &other, &requests, true).is_err());
}

#[test]
fn a_proxy_that_gave_up_ports_is_not_told_to_use_them() {
    let may = |text: &str, ports: Option<&[u16]>| {
        let rule: HostRule = text.parse().unwrap();
        reachable(&rule, ports.map(<[u16]>::to_vec))
    };
    assert!(may("a.com", None).is_ok());
    assert!(may("a.com:*", None).is_ok());
    assert!(may("a.com", Some(&[80, 443])).is_ok());
    assert!(may("a.com:443", Some(&[443])).is_ok());
    let refused = may("a.com", Some(&[443])).unwrap_err();
    assert!(
        matches!(&refused, NetworkReason::PortsFixed { wanted, .. } if wanted == "80"),
        "{refused}"
    );
    assert!(may("a.com:22", Some(&[80, 443])).is_err());
    assert!(may("a.com:*", Some(&[80, 443])).is_err());
}

/// A proxy that keeps what it is told, and says what the test has it say.
#[derive(Debug, Default)]
struct FakeProxy {
    orders: std::cell::RefCell<Vec<Order>>,
    says: std::cell::RefCell<std::collections::VecDeque<FromProxy>>,
    deaf: std::cell::Cell<bool>,
}

impl ProxyLink for std::rc::Rc<FakeProxy> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        ironcage_sys::rustix::stdio::stdin()
    }
    fn send(&self, order: &Order, _: &[BorrowedFd<'_>]) -> io::Result<()> {
        if self.deaf.get() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.orders.borrow_mut().push(order.clone());
        Ok(())
    }
    fn receive(&self) -> io::Result<Option<FromProxy>> {
        Ok(self.says.borrow_mut().pop_front())
    }
    fn close(self: Box<Self>) -> Vec<Traffic> {
        vec![unconnected("last".into())]
    }
}

const CLIENT: u64 = 7;

fn network() -> (Network, std::rc::Rc<FakeProxy>) {
    let planned = PlannedNetwork {
        rules: NetworkRules {
            allow: Vec::new(),
            http: Vec::new(),
            deny: Vec::new(),
            host_ports: Vec::new(),
            ports: Some(vec![80, 443]),
            live: Vec::new(),
            published: Vec::new(),
            limits: NetworkLimits::default(),
        },
        opens_tls: false,
    };
    let proxy = std::rc::Rc::new(FakeProxy::default());
    let link = Box::new(proxy.clone());
    let part = Network::with(Some(planned), Some(link), Vec::new(), Instant::now());
    (part, proxy)
}

fn rule(text: &str, verdict: NetworkVerdict) -> NewRule {
    NewRule {
        verdict,
        rule: text.parse().unwrap(),
        requests: None,
        uses: None,
    }
}

fn add(part: &mut Network, text: &str, verdict: NetworkVerdict) -> Vec<Effect> {
    let event = NetworkEvent::AddRule {
        client: CLIENT,
        rule: rule(text, verdict),
    };
    part.handle(event, Instant::now())
}

fn say(part: &mut Network, proxy: &FakeProxy, message: FromProxy) -> Vec<Effect> {
    proxy.says.borrow_mut().push_back(message);
    part.handle(NetworkEvent::ProxyReady, Instant::now())
}

#[test]
fn a_rule_is_logged_and_answered_when_the_proxy_says_that_it_holds() {
    let (mut part, proxy) = network();
    assert!(add(&mut part, "a.com", NetworkVerdict::Allowed).is_empty());
    assert!(matches!(&proxy.orders.borrow()[..], [Order::Rules { add, .. }] if add.len() == 1));
    let (serial, closed) = (part.last_serial(), 3);
    let effects = say(&mut part, &proxy, FromProxy::Changed { serial, closed });
    assert!(
        matches!(
            &effects[..],
            [
                Effect::Audit(EventKind::NetworkRule { change: RuleChange::Added, closed: 3, .. }),
                Effect::Reply { client: CLIENT, reply: Reply::NetworkChanged { closed: 3, .. } },
                Effect::ProxyAnswered(answered),
            ] if *answered == serial
        ),
        "{effects:?}"
    );
    // The same answer once more is about nothing.
    assert!(say(&mut part, &proxy, FromProxy::Changed { serial, closed }).is_empty());
    assert!(!part.is_narrowed());
}

#[test]
fn what_cannot_hold_is_refused_and_not_ordered() {
    let (mut part, proxy) = network();
    let effects = add(&mut part, "a.com:22", NetworkVerdict::Allowed);
    assert!(matches!(
        &effects[..],
        [Effect::Reply {
            client: CLIENT,
            reply: Reply::Refused { .. }
        }]
    ));
    assert!(proxy.orders.borrow().is_empty());
    proxy.deaf.set(true);
    let effects = add(&mut part, "a.com", NetworkVerdict::Allowed);
    assert!(matches!(
        &effects[..],
        [Effect::Reply {
            reply: Reply::Refused { .. },
            ..
        }]
    ));
    assert!(part.rules.is_empty() && part.pending.is_empty());
}

#[test]
fn a_rule_of_the_operator_waits_for_what_comes_with_it() {
    let (mut part, proxy) = network();
    let rule = rule("a.com", NetworkVerdict::Allowed);
    let request = NetworkRequest::Add {
        verdict: rule.verdict,
        rule: rule.rule.clone(),
        requests: None,
    };
    let event = NetworkEvent::Request {
        client: CLIENT,
        request,
        descriptors: Vec::new(),
    };
    let effects = part.handle(event, Instant::now());
    let client = CLIENT;
    assert_eq!(effects, [Effect::AddOperatorRule { client, rule }]);
    assert!(proxy.orders.borrow().is_empty());
}

#[test]
fn a_narrowed_network_ends_the_networks_beside_it() {
    let (mut part, _proxy) = network();
    assert!(add(&mut part, "a.com", NetworkVerdict::Allowed).is_empty());
    let effects = add(&mut part, "b.com", NetworkVerdict::Denied);
    assert_eq!(effects, [Effect::EndOtherNetworks]);
    assert!(part.is_narrowed());
}

#[test]
fn a_connection_inside_is_wanted_with_the_ports_that_lead_there() {
    let (mut part, proxy) = network();
    let published = Publish {
        outer: 8080,
        inner: 80,
    };
    part.published = vec![published, Publish { outer: 1, inner: 2 }];
    let dial = FromProxy::Dial {
        ticket: 4,
        port: 80,
        six: false,
    };
    let effects = say(&mut part, &proxy, dial);
    let wanted = Effect::DialInside {
        ticket: 4,
        port: 80,
        six: false,
        published: vec![published],
    };
    assert_eq!(effects, [wanted]);
    let event = NetworkEvent::Dialled {
        ticket: 4,
        socket: None,
    };
    assert!(part.handle(event, Instant::now()).is_empty());
    assert_eq!(proxy.orders.borrow()[..], [Order::Dialled { ticket: 4 }]);
}

#[test]
fn who_waits_for_a_lost_proxy_is_told_and_its_leases_end() {
    let (mut part, proxy) = network();
    add(&mut part, "a.com", NetworkVerdict::Allowed);
    let effects = say(&mut part, &proxy, FromProxy::Closed);
    assert!(
        matches!(
            &effects[..],
            [
                Effect::Audit(EventKind::DoorEnded { .. }),
                Effect::Reply {
                    client: CLIENT,
                    reply: Reply::Refused { .. }
                },
                Effect::ProxyGone,
            ]
        ),
        "{effects:?}"
    );
    assert!(!part.has_proxy());
    assert_eq!(part.proxy_is_there(), Err(NetworkReason::ProxyEnded));
    assert!(part.close().is_empty());
}

#[test]
fn what_was_not_answered_is_logged_at_the_end_before_the_last_traffic() {
    let (mut part, _proxy) = network();
    add(&mut part, "a.com", NetworkVerdict::Allowed);
    let effects = part.close();
    assert!(
        matches!(
            &effects[..],
            [
                Effect::Audit(EventKind::NetworkRule { .. }),
                Effect::Reply { .. },
                Effect::ProxyAnswered(_),
                Effect::Audit(EventKind::Network(_)),
            ]
        ),
        "{effects:?}"
    );
}
