//! The network of a sandbox of E2B's API.
//!
//! A sandbox starts with a network without hosts, and gets its hosts as rules of a running cage: so an
//! update can replace all of them.

use super::sandboxes::{E2bResult, Shared, find, not_yet};
use crate::api::types::{CageNetwork, NetworkMode};
use crate::api::{Caller, Json, Path, ask, check_resource, network_rules};
use crate::engine::{Engine, Entry};
use crate::error::{ApiError, ApiResult, Code};
use crate::keys::{Key, Scope};
use crate::store::{E2bState, RulesIntent};
use axum::extract::State;
use axum::http::StatusCode;
use ironcage_client::{ClientError, Connection};
use ironcage_control::{NetworkRequest, Reply};
use ironcage_model::{Destination, HostRule, NetworkVerdict, Ports, Resource};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Hosts of one sandbox.
const MOST_HOSTS: usize = 512;

/// A network as it is asked for, at the creation and in an update.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WantedNetwork {
    allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    rules: Option<BTreeMap<String, Value>>,
    egress_proxy: Option<Value>,
    dns_servers: Option<Vec<String>>,
    allow_public_traffic: Option<bool>,
    mask_request_host: Option<String>,
    https_ports: Option<Vec<u16>>,
    /// Only in an update; a creation has it beside its network.
    #[serde(rename = "allow_internet_access")]
    internet: Option<bool>,
}

/// What stands for every address there.
fn is_all(host: &str) -> bool {
    matches!(host, "0.0.0.0/0" | "::/0" | "*")
}

/// What a sandbox reaches, once it is understood.
#[derive(Debug, Clone)]
pub(super) struct Egress {
    internet: Option<bool>,
    allow_out: Vec<String>,
    deny_out: Vec<String>,
    private_ports: bool,
    mask_host: Option<String>,
    /// Every host.
    open: bool,
    rules: Vec<(NetworkVerdict, HostRule)>,
}

impl Egress {
    pub(super) fn new(internet: Option<bool>, wanted: WantedNetwork) -> ApiResult<Egress> {
        if wanted.rules.is_some_and(|rules| !rules.is_empty()) {
            return Err(not_yet("`network.rules`"));
        }
        if wanted.egress_proxy.is_some_and(|proxy| !proxy.is_null()) {
            return Err(not_yet("`network.egressProxy`"));
        }
        if wanted
            .dns_servers
            .is_some_and(|servers| !servers.is_empty())
        {
            return Err(not_yet("`network.dnsServers`")
                .hint("the service resolves the names of allowed hosts: leave the servers out"));
        }
        if wanted.https_ports.is_some_and(|ports| !ports.is_empty()) {
            return Err(not_yet("`network.httpsPorts`"));
        }
        let is_name = |mask: &String| {
            (1..=255).contains(&mask.len()) && mask.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if wanted
            .mask_request_host
            .as_ref()
            .is_some_and(|mask| !is_name(mask))
        {
            return Err(ApiError::invalid("maskRequestHost is not a host name"));
        }
        let internet = internet.or(wanted.internet);
        let allow_out = wanted.allow_out.unwrap_or_default();
        let deny_out = wanted.deny_out.unwrap_or_default();
        if allow_out.len() + deny_out.len() > MOST_HOSTS {
            return Err(ApiError::invalid(format!(
                "the network names more than {MOST_HOSTS} hosts"
            )));
        }
        let opens = internet == Some(true) || allow_out.iter().any(|host| is_all(host));
        let closes = internet == Some(false) || deny_out.iter().any(|host| is_all(host));
        let mut rules = Vec::new();
        let wrong = |error: ironcage_policy::InvalidHostRule| {
            ApiError::invalid(ironcage_model::in_full(&error))
        };
        for host in allow_out.iter().filter(|host| !is_all(host)) {
            let rule = ironcage_policy::allowed(host).map_err(wrong)?;
            rules.push((NetworkVerdict::Allowed, rule));
        }
        for host in deny_out.iter().filter(|host| !is_all(host)) {
            let rule = ironcage_policy::denied(host).map_err(wrong)?;
            rules.push((NetworkVerdict::Denied, rule));
        }
        Ok(Egress {
            internet,
            allow_out,
            deny_out,
            private_ports: wanted.allow_public_traffic == Some(false),
            mask_host: wanted.mask_request_host,
            open: opens && !closes,
            rules,
        })
    }

    /// The network that a cage starts with: one without hosts, or the whole one.
    pub(super) fn network(&self, may_open: bool) -> ApiResult<CageNetwork> {
        let mode = match (self.open, may_open) {
            (true, true) => NetworkMode::Open,
            (true, false) => {
                let error = ApiError::new(
                    Code::Forbidden,
                    "this service does not open the whole network",
                );
                return Err(error.hint(
                    "name hosts in network.allowOut, or start the service with --allow-internet",
                ));
            }
            (false, _) => NetworkMode::Live,
        };
        Ok(CageNetwork {
            mode: Some(mode),
            ..CageNetwork::default()
        })
    }

    fn allows(&self) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|(verdict, _)| *verdict == NetworkVerdict::Allowed)
    }

    /// Refuses hosts that a key may not give.
    pub(super) fn check(&self, engine: &Engine, key: &Key) -> ApiResult<()> {
        let ceiling = engine.projects.of_request(&key.project)?.ceiling;
        let allowed = self
            .rules
            .iter()
            .filter(|(verdict, _)| *verdict == NetworkVerdict::Allowed);
        for (_, rule) in allowed {
            let resource = Resource::Host { rule: rule.clone() };
            check_resource(&resource, key, engine.settings.internet)?;
            ceiling.check(&resource)?;
        }
        Ok(())
    }

    /// Notes it in the state of a sandbox; the rules of the cage follow.
    pub(super) fn note(&self, state: &mut E2bState) {
        state.internet = self.internet;
        state.allow_out.clone_from(&self.allow_out);
        state.deny_out.clone_from(&self.deny_out);
        state.rules_pending = !self.rules.is_empty();
        state.private_ports = self.private_ports;
        state.mask_host.clone_from(&self.mask_host);
    }
}

/// The network of a sandbox as it is shown.
pub(super) fn shown(state: &E2bState) -> Value {
    let mut shown = json!({
        "allowOut": state.allow_out,
        "denyOut": state.deny_out,
        "allowPublicTraffic": !state.private_ports,
    });
    if let (Some(mask), Some(shown)) = (&state.mask_host, shown.as_object_mut()) {
        shown.insert("maskRequestHost".into(), mask.as_str().into());
    }
    shown
}

/// Gives a new cage the rules that its creation asked for. One that does not get them is ended: a
/// host that was to be denied must not be reached.
pub(super) async fn settle(engine: &Arc<Engine>, entry: &Arc<Entry>) -> ApiResult<()> {
    let _turn = entry.rules.lock().await;
    let state = entry.record().e2b;
    if !state.rules_pending {
        return Ok(());
    }
    let wanted = WantedNetwork {
        allow_out: Some(state.allow_out),
        deny_out: Some(state.deny_out),
        ..WantedNetwork::default()
    };
    let egress = Egress::new(state.internet, wanted)?;
    let settled = match apply(engine, entry, &egress).await {
        Ok(rules) => engine.note_e2b(entry, |state| {
            (state.rules, state.rules_intent) = (rules, None);
            state.rules_pending = false;
        }),
        Err(error) => Err(error),
    };
    if settled.is_err() {
        engine.delete(entry).await?;
    }
    settled
}

/// Replaces the rules that this API added, and returns the numbers of the new ones. Rules of an operator
/// stay. Denials come first, and earlier permissions go last, so no host is reached in between that is
/// reached neither before nor after.
///
/// What is to be added is noted first: where the service is killed before it notes the numbers, the next
/// update finds the rules, and removes them.
async fn apply(engine: &Arc<Engine>, entry: &Arc<Entry>, egress: &Egress) -> ApiResult<Vec<u32>> {
    let (mut rules, open) = (egress.rules.clone(), egress.open);
    let is_open =
        entry.record().spec.network.and_then(|network| network.mode) == Some(NetworkMode::Open);
    let allows = egress.allows();
    let conflict = |why: &str| {
        ApiError::new(Code::Conflict, format!("cannot change the network: {why}"))
            .hint("create another sandbox with the network that is needed")
    };
    match (is_open, open) {
        (false, true) => {
            return Err(conflict(
                "the sandbox was created without the whole network",
            ));
        }
        (true, false) if allows => {
            return Err(conflict(
                "the sandbox was created with the whole network, which a list of hosts cannot narrow",
            ));
        }
        (true, false) => {
            let every = HostRule {
                to: Destination::Any,
                ports: Ports::Any,
            };
            rules.push((NetworkVerdict::Denied, every));
        }
        (true, true) | (false, false) => {}
    }
    rules.sort_by_key(|(verdict, _)| *verdict == NetworkVerdict::Allowed);
    let live = ask(entry, network_rules).await?.live;
    let own = entry.record().e2b.own_rules(&live);
    engine.note_e2b(entry, |state| {
        state.rules_intent = Some(RulesIntent {
            replaced: own.clone(),
            before: live.iter().map(|rule| rule.number).collect(),
            rules: rules.clone(),
        });
    })?;
    ask(entry, move |cage| {
        let found = network_rules(cage)?;
        let mut new = Vec::new();
        for (verdict, rule) in rules {
            let requests = None;
            let added = NetworkRequest::Add {
                verdict,
                rule,
                requests,
            };
            match change(cage, added) {
                Ok(numbers) => new.extend(numbers),
                Err(error) => {
                    // As it was before, as far as that is possible.
                    if !new.is_empty() {
                        let _ = change(cage, NetworkRequest::Remove { numbers: new });
                    }
                    return Err(error);
                }
            }
        }
        let earlier = found.live.iter().map(|rule| rule.number);
        let numbers: Vec<_> = earlier.filter(|number| own.contains(number)).collect();
        if !numbers.is_empty() {
            change(cage, NetworkRequest::Remove { numbers })?;
        }
        Ok(new)
    })
    .await
}

fn change(cage: &Connection, request: NetworkRequest) -> Result<Vec<u32>, ClientError> {
    match cage.ask_network(request)? {
        Reply::NetworkChanged { numbers, .. } => Ok(numbers),
        other => Err(ClientError::Answer(format!("{other:?}"))),
    }
}

/// Replaces what a running sandbox reaches.
pub(super) async fn update(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<WantedNetwork>,
) -> E2bResult<StatusCode> {
    caller.needs(Scope::Cages)?;
    let entry = find(&engine, &caller, &id)?;
    entry.running()?;
    let egress = Egress::new(None, wanted)?;
    egress.network(engine.settings.internet)?;
    egress.check(&engine, &caller.key)?;
    if egress.allows() && entry.has_own_policy() {
        caller.needs(Scope::Host)?;
    }
    let _turn = entry.rules.lock().await;
    let rules = apply(&engine, &entry, &egress).await?;
    engine.note_e2b(&entry, |state| {
        (state.rules, state.rules_intent) = (rules, None);
        let ports = (state.private_ports, state.mask_host.clone());
        egress.note(state);
        // An update is about what goes out.
        (state.private_ports, state.mask_host) = ports;
        state.rules_pending = false;
    })?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::OPERATOR;
    use ironcage_model::LiveRule;

    fn egress(internet: Option<bool>, allow: &[&str], deny: &[&str]) -> ApiResult<Egress> {
        let owned = |hosts: &[&str]| Some(hosts.iter().map(|host| (*host).to_owned()).collect());
        let wanted = WantedNetwork {
            allow_out: owned(allow),
            deny_out: owned(deny),
            ..WantedNetwork::default()
        };
        Egress::new(internet, wanted)
    }

    #[test]
    fn the_network_is_closed_unless_it_is_opened_on_both_sides() {
        let mode = |internet, allow: &[&str], deny: &[&str], may_open| {
            let network = egress(internet, allow, deny).unwrap().network(may_open);
            let network = network.map_err(|error| error.code);
            network.map(|network| network.mode)
        };
        let (live, open) = (Ok(Some(NetworkMode::Live)), Ok(Some(NetworkMode::Open)));
        assert_eq!(mode(None, &[], &[], true), live);
        assert_eq!(mode(Some(false), &[], &[], true), live);
        assert_eq!(mode(Some(true), &[], &["0.0.0.0/0"], true), live);
        assert_eq!(mode(Some(true), &[], &[], true), open);
        assert_eq!(mode(Some(true), &[], &[], false), Err(Code::Forbidden));
        assert_eq!(mode(None, &["0.0.0.0/0"], &[], false), Err(Code::Forbidden));
    }

    #[test]
    fn rules_of_an_update_that_was_cut_off_are_its_own_and_those_of_others_are_not() {
        let wanted = egress(None, &["a.example"], &["b.example"]).unwrap();
        let live = |number, host: &str, origin: &str| LiveRule {
            number,
            verdict: NetworkVerdict::Allowed,
            rule: ironcage_policy::allowed(host).unwrap(),
            requests: None,
            uses: None,
            origin: origin.to_owned(),
        };
        let found = [
            live(1, "old.example", OPERATOR),
            live(2, "a.example", OPERATOR),
            live(3, "a.example", "lease 1"),
            live(4, "earlier.example", OPERATOR),
            live(5, "a.example", OPERATOR),
            live(6, "other.example", OPERATOR),
        ];
        let mut state = E2bState {
            rules: vec![1],
            ..E2bState::default()
        };
        assert_eq!(state.own_rules(&found), [1]);
        // The second one was there before: an operator gave it.
        state.rules_intent = Some(RulesIntent {
            // One of another update that was cut off.
            replaced: vec![4],
            before: vec![1, 2, 4],
            rules: wanted.rules,
        });
        // It is in the store across the kill.
        let stored = serde_json::to_vec(&state).unwrap();
        let state: E2bState = serde_json::from_slice(&stored).unwrap();
        assert_eq!(state.own_rules(&found), [1, 4, 5]);
    }

    #[test]
    fn hosts_become_rules_and_what_stands_for_all_does_not() {
        let some = egress(
            None,
            &["api.example.com"],
            &["0.0.0.0/0", "bad.example.com"],
        )
        .unwrap();
        let verdicts: Vec<_> = some.rules.iter().map(|(verdict, _)| *verdict).collect();
        assert_eq!(verdicts, [NetworkVerdict::Allowed, NetworkVerdict::Denied]);
        assert!(egress(None, &["not a host"], &[]).is_err());
        let mut state = E2bState::default();
        some.note(&mut state);
        assert!(state.rules_pending && !state.private_ports);
        egress(None, &[], &["0.0.0.0/0"]).unwrap().note(&mut state);
        assert!(!state.rules_pending);
    }
}
