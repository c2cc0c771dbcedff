//! The decision over a destination. Pure: rules in, verdict out.

use ironcage_model::{
    Destination, HOST_NAME, HostName, HostRule, HttpRule, LiveRule, NetworkReason, NetworkVerdict,
    Ports, special,
};
use ironcage_plan::Network;
use std::cell::RefCell;
use std::net::IpAddr;

/// What a connection of the cage's is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A name, by the address that stands for it.
    Name(HostName),
    /// An address as it is.
    Address(IpAddr),
    /// The host's own loopback.
    Host,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Name(name) => write!(f, "{name}"),
            Target::Address(address) => write!(f, "{address}"),
            Target::Host => f.write_str(HOST_NAME),
        }
    }
}

/// Why a destination is not reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Denied {
    /// The rule that denies it, where one does.
    pub(crate) rule: Option<String>,
    pub(crate) reason: NetworkReason,
}

impl Denied {
    pub(crate) fn because(reason: NetworkReason) -> Self {
        Denied { rule: None, reason }
    }

    fn by(rule: &HostRule) -> Self {
        Denied {
            rule: Some(rule.to_string()),
            reason: NetworkReason::DeniedByRule,
        }
    }
}

/// The rules of a cage.
#[derive(Debug)]
pub(crate) struct Rules {
    allow: Vec<HostRule>,
    deny: Vec<HostRule>,
    http: Vec<HttpRule>,
    host_ports: Vec<u16>,
    /// Those that were added while the cage runs; the uses of each are those that are left.
    live: RefCell<Vec<LiveRule>>,
}

impl Rules {
    pub(crate) fn of(network: &Network) -> Self {
        let rules = |items: &[ironcage_plan::Item<ironcage_plan::NetworkRule>]| {
            items.iter().map(|item| item.what.rule.clone()).collect()
        };
        Rules {
            allow: rules(&network.allow),
            deny: rules(&network.deny),
            http: (network.http.iter())
                .map(|item| item.what.rule.clone())
                .collect(),
            host_ports: network
                .host_ports
                .iter()
                .map(|item| item.what.port)
                .collect(),
            live: RefCell::default(),
        }
    }

    /// Rules over requests alone.
    #[cfg(test)]
    pub(crate) fn of_requests(http: Vec<HttpRule>) -> Self {
        Rules {
            allow: Vec::new(),
            deny: Vec::new(),
            http,
            host_ports: Vec::new(),
            live: RefCell::default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn deny_for_test(&self, rule: HostRule) {
        let denied = LiveRule {
            number: 1,
            verdict: NetworkVerdict::Denied,
            rule,
            requests: None,
            uses: None,
            origin: "operator".into(),
        };
        self.change(vec![denied], &[]);
    }

    /// Rules come and go while the cage runs.
    pub(crate) fn change(&self, add: Vec<LiveRule>, remove: &[u32]) {
        let mut live = self.live.borrow_mut();
        live.retain(|rule| !remove.contains(&rule.number));
        live.extend(add);
    }

    /// The first rule of a verdict for which something holds, those of the plan before others.
    fn find(&self, verdict: NetworkVerdict, holds: impl Fn(&HostRule) -> bool) -> Option<HostRule> {
        let planned = match verdict {
            NetworkVerdict::Allowed => &self.allow,
            NetworkVerdict::Denied => &self.deny,
        };
        if let Some(rule) = planned.iter().find(|rule| holds(rule)) {
            return Some(rule.clone());
        }
        let live = self.live.borrow();
        let mut added = live
            .iter()
            .filter(|rule| rule.verdict == verdict && rule.is_whole());
        added
            .find(|rule| holds(&rule.rule))
            .map(|rule| rule.rule.clone())
    }

    fn allowing(&self, holds: impl Fn(&HostRule) -> bool) -> Option<HostRule> {
        self.find(NetworkVerdict::Allowed, holds)
    }

    fn denying(&self, holds: impl Fn(&HostRule) -> bool) -> Option<HostRule> {
        self.find(NetworkVerdict::Denied, holds)
    }

    /// Whether a name is the host's own.
    pub(crate) fn is_host(&self, name: &HostName) -> bool {
        name.as_str() == HOST_NAME
    }

    /// Whether a live rule names the host itself, which no rule of a plan does.
    fn live_host(&self, verdict: NetworkVerdict, holds: impl Fn(Ports) -> bool) -> bool {
        let live = self.live.borrow();
        live.iter().any(|rule| {
            rule.verdict == verdict
                && rule.is_whole()
                && holds(rule.rule.ports)
                && matches!(&rule.rule.to, Destination::Name(name) if self.is_host(name))
        })
    }

    /// Whether a name is known inside at all: whether it gets an address there.
    pub(crate) fn knows(&self, name: &HostName) -> Result<(), Denied> {
        if self.is_host(name) {
            // A port that is not allowed is denied with its number, which is what a rule needs.
            return Ok(());
        }
        if let Some(rule) = self.denying(|rule| rule.knows(name) && rule.ports == Ports::Any) {
            return Err(Denied::by(&rule));
        }
        if self.is_known(name) {
            return Ok(());
        }
        Err(Denied::because(NetworkReason::HostNotAllowed))
    }

    fn is_known(&self, name: &HostName) -> bool {
        self.allowing(|rule| rule.knows(name)).is_some()
            || self.any_http(|rule| rule.host.knows(name)).is_some()
    }

    /// Whether a rule has this very name, and not only names below another.
    pub(crate) fn has_itself(&self, name: &HostName) -> bool {
        let has = |rule: &HostRule| match &rule.to {
            Destination::Name(own) | Destination::NameAndBelow(own) => own == name,
            Destination::Any | Destination::Below(_) | Destination::Net { .. } => false,
        };
        self.is_host(name)
            || self.allowing(has).is_some()
            || self.any_http(|rule| has(&rule.host)).is_some()
    }

    /// The first rule over requests for which something holds, those of the plan before others.
    fn any_http(&self, holds: impl Fn(&HttpRule) -> bool) -> Option<HttpRule> {
        if let Some(rule) = self.http.iter().find(|rule| holds(rule)) {
            return Some(rule.clone());
        }
        let live = self.live.borrow();
        let mut added = live.iter().filter_map(|rule| rule.requests.as_ref());
        added.find(|rule| holds(rule)).cloned()
    }

    /// Requests that a port of a name gets; `None` where it gets every one.
    pub(crate) fn requests(&self, name: &HostName, port: u16) -> Option<Vec<HttpRule>> {
        let live = self.live.borrow();
        let added = live.iter().filter_map(|rule| rule.requests.as_ref());
        let all = self.http.iter().chain(added);
        let about = all.filter(|rule| rule.is_about(name, port));
        let rules: Vec<HttpRule> = about.cloned().collect();
        (!rules.is_empty()).then_some(rules)
    }

    /// Names that rules write out, as far as they are about a port: those that get some requests
    /// only.
    pub(crate) fn ruled(&self, port: u16) -> Vec<HostName> {
        let live = self.live.borrow();
        let added = live.iter().filter_map(|rule| rule.requests.as_ref());
        let about = self.http.iter().chain(added).map(|rule| &rule.host);
        about.filter_map(|host| written_out(host, port)).collect()
    }

    /// The same with those that rules deny.
    pub(crate) fn bound(&self, port: u16) -> Vec<HostName> {
        let mut names = self.ruled(port);
        let live = self.live.borrow();
        let added = live.iter().filter(|rule| rule.is_whole());
        let added = added.filter(|rule| rule.verdict == NetworkVerdict::Denied);
        let denied = self.deny.iter().chain(added.map(|rule| &rule.rule));
        names.extend(denied.filter_map(|host| written_out(host, port)));
        names
    }

    /// Whether a name is denied, or gets some requests only.
    pub(crate) fn binds(&self, name: &HostName, port: u16) -> bool {
        self.denying(|rule| rule.names(name, port)).is_some()
            || self.any_http(|rule| rule.is_about(name, port)).is_some()
    }

    /// Whether something is denied, or gets some requests only, by its name.
    pub(crate) fn binds_names(&self) -> bool {
        let by_name = |rule: &HostRule| !matches!(rule.to, Destination::Net { .. });
        self.denying(by_name).is_some() || self.any_http(|_| true).is_some()
    }

    /// Whether a connection may be made; the rule that says so.
    pub(crate) fn decide(&self, target: &Target, port: u16) -> Result<String, Denied> {
        match target {
            Target::Host => self.host(port),
            Target::Name(name) if self.is_host(name) => self.host(port),
            Target::Name(name) => {
                if let Some(rule) = self.denying(|rule| rule.names(name, port)) {
                    return Err(Denied::by(&rule));
                }
                if let Some(rule) = self.any_http(|rule| rule.is_about(name, port)) {
                    return Ok(rule.to_string());
                }
                match self.allowing(|rule| rule.names(name, port)) {
                    Some(rule) => Ok(rule.to_string()),
                    None if self.is_known(name) => {
                        Err(Denied::because(NetworkReason::PortNotAllowed))
                    }
                    None => Err(Denied::because(NetworkReason::HostNotAllowed)),
                }
            }
            Target::Address(address) => self.address(*address, port),
        }
    }

    /// Whether a connection may begin: as [`Self::decide`], and it counts as a use of the rule
    /// that allows it, where uses are counted.
    pub(crate) fn begin(&self, target: &Target, port: u16) -> Result<String, Denied> {
        let decided = self.decide(target, port)?;
        let holds = |rule: &HostRule| match target {
            Target::Host => {
                matches!(&rule.to, Destination::Name(name) if self.is_host(name))
                    && rule.ports.contains(port)
            }
            Target::Name(name) => rule.names(name, port),
            Target::Address(address) => rule.covers(*address, port),
        };
        let own_port = match target {
            Target::Host => self.host_ports.contains(&port),
            Target::Name(name) if self.is_host(name) => self.host_ports.contains(&port),
            // Its requests are counted, one by one.
            Target::Name(name) => self.any_http(|rule| rule.is_about(name, port)).is_some(),
            Target::Address(_) => false,
        };
        if own_port || self.allow.iter().any(holds) {
            return Ok(decided);
        }
        self.count(|rule| rule.is_whole() && holds(&rule.rule))?;
        Ok(decided)
    }

    /// Counts a request as a use of a rule that allows it, where uses are counted.
    pub(crate) fn begin_request(&self, holds: impl Fn(&HttpRule) -> bool) -> Result<(), Denied> {
        if self.http.iter().any(&holds) {
            return Ok(());
        }
        self.count(|rule| rule.requests.as_ref().is_some_and(&holds))
    }

    /// Takes a use of the added rules for which something holds: of none where one of them is
    /// not counted.
    fn count(&self, holds: impl Fn(&LiveRule) -> bool) -> Result<(), Denied> {
        let mut live = self.live.borrow_mut();
        let allowing =
            |rule: &&mut LiveRule| rule.verdict == NetworkVerdict::Allowed && holds(rule);
        let mut counted = Vec::new();
        for rule in live.iter_mut().filter(allowing) {
            match &mut rule.uses {
                None => return Ok(()),
                Some(left) => counted.push(left),
            }
        }
        match counted.into_iter().find(|left| **left > 0) {
            Some(left) => *left -= 1,
            None => return Err(Denied::because(NetworkReason::LeaseUsedUp)),
        }
        Ok(())
    }

    /// A port of the host's own.
    fn host(&self, port: u16) -> Result<String, Denied> {
        let rule = format!("{HOST_NAME}:{port}");
        if self.live_host(NetworkVerdict::Denied, |ports| ports.contains(port)) {
            return Err(Denied {
                rule: Some(rule),
                reason: NetworkReason::DeniedByRule,
            });
        }
        let live = self.live_host(NetworkVerdict::Allowed, |ports| ports.contains(port));
        if live || self.host_ports.contains(&port) {
            return Ok(rule);
        }
        Err(Denied::because(NetworkReason::LoopbackPortNotAllowed))
    }

    fn address(&self, address: IpAddr, port: u16) -> Result<String, Denied> {
        self.not_denied(address, port)?;
        let everywhere = |rule: &HttpRule| {
            matches!(rule.host.to, Destination::Any) && rule.host.ports.contains(port)
        };
        if self.any_http(everywhere).is_some() {
            return Err(Denied::because(NetworkReason::AddressNotAName));
        }
        if let Some(rule) = self.naming(address, port) {
            return Ok(rule.to_string());
        }
        let open = self.allowing(|rule| rule.covers(address, port));
        match (open, special(address)) {
            (Some(rule), None) => Ok(rule.to_string()),
            (Some(_), Some(kind)) => Err(Denied::because(NetworkReason::AddressSpecial {
                kind: kind.to_string(),
            })),
            (None, _) => Err(Denied::because(NetworkReason::AddressNotAllowed)),
        }
    }

    fn not_denied(&self, address: IpAddr, port: u16) -> Result<(), Denied> {
        match self.denying(|rule| rule.covers(address, port)) {
            Some(rule) => Err(Denied::by(&rule)),
            None => Ok(()),
        }
    }

    /// The rule that names this very address, or its network.
    fn naming(&self, address: IpAddr, port: u16) -> Option<HostRule> {
        self.allowing(|rule| {
            matches!(rule.to, Destination::Net { .. }) && rule.covers(address, port)
        })
    }

    /// Whether a rule names this address itself, so that it may even be the host's own.
    pub(crate) fn names_address(&self, address: IpAddr, port: u16) -> bool {
        self.naming(address, port).is_some()
    }

    /// Whether an allowed name may lead to this address.
    pub(crate) fn may_lead_to(&self, address: IpAddr, port: u16) -> Result<(), Denied> {
        self.not_denied(address, port)?;
        match special(address) {
            Some(kind) if self.naming(address, port).is_none() => {
                Err(Denied::because(NetworkReason::NameLeadsTo {
                    address: address.to_string(),
                    kind: kind.to_string(),
                }))
            }
            _ => Ok(()),
        }
    }
}

/// The name that a rule writes out, where it is about a port.
fn written_out(rule: &HostRule, port: u16) -> Option<HostName> {
    match &rule.to {
        Destination::Name(name) | Destination::NameAndBelow(name) if rule.ports.contains(port) => {
            Some(name.clone())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::Ports;

    fn name(text: &str) -> HostName {
        HostName::from_ascii(text.as_bytes()).unwrap()
    }

    fn host(text: &str, ports: Ports) -> HostRule {
        HostRule {
            to: Destination::NameAndBelow(name(text)),
            ports,
        }
    }

    fn net(text: &str, prefix: u8, ports: Ports) -> HostRule {
        HostRule {
            to: Destination::net(text.parse().unwrap(), prefix).unwrap(),
            ports,
        }
    }

    fn rules(allow: Vec<HostRule>, deny: Vec<HostRule>) -> Rules {
        Rules {
            allow,
            deny,
            http: Vec::new(),
            host_ports: vec![5432],
            live: RefCell::default(),
        }
    }

    #[test]
    fn denying_wins_and_nothing_is_allowed_by_silence() {
        let rules = rules(
            vec![host("example.com", Ports::Web)],
            vec![host("bad.example.com", Ports::Any)],
        );
        let decide = |text: &str, port| rules.decide(&Target::Name(name(text)), port);
        assert_eq!(decide("example.com", 443).unwrap(), "**.example.com");
        assert!(decide("a.example.com", 80).is_ok());
        assert!(decide("a.example.com", 22).is_err());
        let denied = decide("bad.example.com", 443).unwrap_err();
        assert_eq!(denied.rule.as_deref(), Some("**.bad.example.com:*"));
        assert!(decide("other.com", 443).is_err());
        assert!(rules.knows(&name("bad.example.com")).is_err());
        assert!(rules.knows(&name("example.com")).is_ok());
        let address = Target::Address("1.1.1.1".parse().unwrap());
        assert!(rules.decide(&address, 443).is_err());
    }

    #[test]
    fn the_hosts_ports_are_those_named() {
        let rules = rules(Vec::new(), Vec::new());
        assert!(rules.decide(&Target::Host, 5432).is_ok());
        assert!(rules.decide(&Target::Host, 22).is_err());
        let own = Target::Name(name(HOST_NAME));
        assert!(rules.decide(&own, 5432).is_ok());
        assert!(rules.decide(&own, 22).is_err());
    }

    #[test]
    fn special_addresses_need_a_rule_that_names_them() {
        let any = HostRule {
            to: Destination::Any,
            ports: Ports::Any,
        };
        let open = rules(
            vec![any, net("10.0.0.5", 32, Ports::One(443))],
            vec![net("8.8.8.8", 32, Ports::Any)],
        );
        let address = |text: &str, port| {
            let address = text.parse().unwrap();
            (
                open.decide(&Target::Address(address), port).is_ok(),
                open.may_lead_to(address, port).is_ok(),
            )
        };
        assert_eq!(address("1.1.1.1", 1), (true, true));
        assert_eq!(address("8.8.8.8", 53), (false, false));
        assert_eq!(address("10.0.0.5", 443), (true, true));
        assert_eq!(address("10.0.0.5", 80), (false, false));
        assert_eq!(address("127.0.0.1", 443), (false, false));
        assert_eq!(address("169.254.169.254", 80), (false, false));
        assert_eq!(address("::ffff:169.254.169.254", 80), (false, false));
    }

    #[test]
    fn live_rules_come_and_go_and_denying_still_wins() {
        let rules = rules(
            vec![host("example.com", Ports::Web)],
            vec![host("never.com", Ports::Any)],
        );
        let live = |number, verdict, text: &str| LiveRule {
            number,
            verdict,
            rule: text.parse().unwrap(),
            requests: None,
            uses: None,
            origin: "operator".into(),
        };
        let allows = |text: &str, port| rules.decide(&Target::Name(name(text)), port).is_ok();
        assert!(!allows("new.com", 443));
        rules.change(
            vec![
                live(1, NetworkVerdict::Allowed, "new.com"),
                live(2, NetworkVerdict::Allowed, "never.com"),
                live(3, NetworkVerdict::Denied, "a.example.com:*"),
                live(4, NetworkVerdict::Allowed, "host.ironcage:6379"),
            ],
            &[],
        );
        assert!(allows("new.com", 443) && rules.knows(&name("new.com")).is_ok());
        assert!(!allows("never.com", 443));
        assert!(!allows("a.example.com", 443) && allows("b.example.com", 443));
        assert!(rules.decide(&Target::Host, 6379).is_ok());
        rules.change(
            vec![live(5, NetworkVerdict::Denied, "host.ironcage:5432")],
            &[1, 3, 4],
        );
        assert!(!allows("new.com", 443));
        assert!(allows("a.example.com", 443));
        assert!(rules.decide(&Target::Host, 6379).is_err());
        assert!(rules.decide(&Target::Host, 5432).is_err());
    }

    #[test]
    fn live_rules_over_requests_narrow_and_do_not_allow_as_a_whole() {
        let rules = rules(vec![host("example.com", Ports::Web)], Vec::new());
        let live = |number, text: &str| {
            let requests: HttpRule = text.parse().unwrap();
            LiveRule {
                number,
                verdict: NetworkVerdict::Allowed,
                rule: requests.host.clone(),
                requests: Some(requests),
                uses: None,
                origin: "operator".into(),
            }
        };
        let asked = |text: &str| rules.requests(&name(text), 443).map(|found| found.len());
        assert_eq!(asked("example.com"), None);
        rules.change(
            vec![
                live(1, "GET example.com/a/**"),
                live(2, "POST new.com/x"),
                live(3, "host.ironcage:5433/**"),
            ],
            &[],
        );
        assert_eq!((asked("example.com"), asked("new.com")), (Some(1), Some(1)));
        assert!(rules.knows(&name("new.com")).is_ok());
        let decided = rules.decide(&Target::Name(name("new.com")), 443).unwrap();
        assert_eq!(decided, "POST new.com/x");
        assert!(rules.decide(&Target::Host, 5433).is_err());
        rules.change(Vec::new(), &[1, 2]);
        assert_eq!((asked("example.com"), asked("new.com")), (None, None));
        assert!(rules.decide(&Target::Name(name("new.com")), 443).is_err());
    }

    #[test]
    fn counted_rules_allow_as_often_as_they_say_and_what_began_goes_on() {
        let rules = rules(vec![host("example.com", Ports::Web)], Vec::new());
        let counted = |number, text: &str, requests: Option<&str>| LiveRule {
            number,
            verdict: NetworkVerdict::Allowed,
            rule: text.parse().unwrap(),
            requests: requests.map(|text| text.parse().unwrap()),
            uses: Some(2),
            origin: "lease 1".into(),
        };
        let (whole, single) = (counted(1, "new.com", None), "GET api.com/x");
        rules.change(vec![whole, counted(2, "api.com", Some(single))], &[]);
        let new = Target::Name(name("new.com"));
        assert!(rules.begin(&new, 443).is_ok() && rules.begin(&new, 80).is_ok());
        let spent = rules.begin(&new, 443).unwrap_err();
        assert_eq!(spent.reason, NetworkReason::LeaseUsedUp);
        // What is open still matches.
        assert!(rules.decide(&new, 443).is_ok());
        let known = Target::Name(name("example.com"));
        for _ in 0..5 {
            assert!(rules.begin(&known, 443).is_ok());
            assert!(rules.begin(&Target::Name(name("api.com")), 443).is_ok());
        }
        let about = |rule: &HttpRule| rule.to_string() == single;
        assert!(rules.begin_request(about).is_ok() && rules.begin_request(about).is_ok());
        assert!(rules.begin_request(about).is_err());
    }
}
