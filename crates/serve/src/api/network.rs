//! `/v1/cages/{id}/network` and `/v1/cages/{id}/ports`: what a running cage reaches, and where it is reached.

use super::permissions::{ask, check_resource};
use super::{Caller, Json, Path, Shared};
use crate::engine::{Engine, Entry};
use crate::error::{ApiError, ApiResult, Code, ErrorBody};
use crate::keys::Scope;
use axum::extract::State;
use axum::http::StatusCode;
use ironcage_client::{ClientError, Connection};
use ironcage_control::{NetworkRequest, NetworkRules, Reply};
use ironcage_model::{NetworkLimits, NetworkVerdict, Publish, Resource};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// Ports of one cage that are published at once.
const MOST_PORTS: usize = 64;

/// What holds for the network of a running cage.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct NetworkState {
    /// Rules that the cage started with.
    pub(crate) rules: Vec<PlannedRule>,
    /// Rules that were added since, by people and by leases.
    pub(crate) live: Vec<NetworkRule>,
    pub(crate) limits: NetworkLimitsState,
}

/// A rule that the cage started with: denying wins.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct PlannedRule {
    pub(crate) verdict: Verdict,
    /// Hosts and ports, or requests of HTTP.
    pub(crate) rule: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct NetworkRule {
    pub(crate) number: u32,
    pub(crate) verdict: Verdict,
    pub(crate) rule: String,
    /// Who added it: `operator`, or what it belongs to.
    pub(crate) origin: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Allow,
    Deny,
}

impl From<NetworkVerdict> for Verdict {
    fn from(verdict: NetworkVerdict) -> Verdict {
        match verdict {
            NetworkVerdict::Allowed => Verdict::Allow,
            NetworkVerdict::Denied => Verdict::Deny,
        }
    }
}

/// Bounds on what goes out; absent is no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkLimitsState {
    /// Connections at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub(crate) connections: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub(crate) requests_per_second: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub(crate) bytes_out_per_host: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub(crate) bytes_out: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub(crate) new_hosts_per_minute: Option<u64>,
    /// Bytes in the body of one request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub(crate) body: Option<u64>,
}

impl From<NetworkLimits> for NetworkLimitsState {
    fn from(limits: NetworkLimits) -> NetworkLimitsState {
        NetworkLimitsState {
            connections: limits.connections,
            requests_per_second: limits.requests_per_second,
            bytes_out_per_host: limits.bytes_out_per_host,
            bytes_out: limits.bytes_out,
            new_hosts_per_minute: limits.new_hosts_per_minute,
            body: limits.body,
        }
    }
}

impl NetworkLimitsState {
    /// These on top of others.
    fn over(self, limits: NetworkLimits) -> NetworkLimits {
        NetworkLimits {
            connections: self.connections.or(limits.connections),
            requests_per_second: self.requests_per_second.or(limits.requests_per_second),
            bytes_out_per_host: self.bytes_out_per_host.or(limits.bytes_out_per_host),
            bytes_out: self.bytes_out.or(limits.bytes_out),
            new_hosts_per_minute: self.new_hosts_per_minute.or(limits.new_hosts_per_minute),
            body: self.body.or(limits.body),
        }
    }

    /// Whether one of these is above what holds.
    fn raises(self, limits: NetworkLimits) -> bool {
        let pairs = [
            (self.connections, limits.connections),
            (self.requests_per_second, limits.requests_per_second),
            (self.bytes_out_per_host, limits.bytes_out_per_host),
            (self.bytes_out, limits.bytes_out),
            (self.new_hosts_per_minute, limits.new_hosts_per_minute),
            (self.body, limits.body),
        ];
        let raised = |pair| matches!(pair, (Some(wanted), Some(held)) if wanted > held);
        pairs.into_iter().any(raised)
    }

    fn has_zero(self) -> bool {
        let all = [
            self.connections,
            self.requests_per_second,
            self.bytes_out_per_host,
            self.bytes_out,
            self.new_hosts_per_minute,
            self.body,
        ];
        all.contains(&Some(0))
    }
}

/// A rule to add: either `host` or, for allowing, `requests`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AddRule {
    pub(crate) verdict: Verdict,
    /// NAME[:PORT], `*.NAME`, an address or a network.
    #[serde(default)]
    #[schema(example = "api.example.com")]
    pub(crate) host: Option<String>,
    /// Only these requests: [METHOD,..] HOST[/PATH].
    #[serde(default)]
    #[schema(example = "GET,HEAD api.example.com/v1/**")]
    pub(crate) requests: Option<String>,
}

/// What a change of the rules did.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct RulesChanged {
    /// Numbers of the rules that came or went.
    pub(crate) numbers: Vec<u32>,
    /// Open connections that no longer match and were closed.
    pub(crate) closed: u64,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishPort {
    /// Port on the loopback of the cage.
    #[schema(minimum = 1, maximum = 65_535)]
    pub(crate) port: u16,
    /// Port at 127.0.0.1 of the host [default: one that is free]. Naming one needs the scope `host`.
    #[serde(default)]
    #[schema(maximum = 65_535)]
    pub(crate) host_port: u16,
}

/// A port of a cage that is reached at 127.0.0.1 of the host, by every user of the host.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Port {
    pub(crate) port: u16,
    pub(crate) host_port: u16,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct PortList {
    pub(crate) ports: Vec<Port>,
}

impl From<Publish> for Port {
    fn from(publish: Publish) -> Port {
        Port {
            port: publish.inner,
            host_port: publish.outer,
        }
    }
}

/// What holds for the network of a cage.
pub(crate) fn rules(cage: &Connection) -> Result<NetworkRules, ClientError> {
    match cage.ask_network(NetworkRequest::Rules)? {
        Reply::NetworkRules(rules) => Ok(*rules),
        other => Err(ClientError::Answer(format!("{other:?}"))),
    }
}

async fn change(entry: &Arc<Entry>, request: NetworkRequest) -> ApiResult<RulesChanged> {
    ask(entry, move |cage| match cage.ask_network(request)? {
        Reply::NetworkChanged { numbers, closed } => Ok(RulesChanged { numbers, closed }),
        other => Err(ClientError::Answer(format!("{other:?}"))),
    })
    .await
}

/// A running cage, for a change by a key.
fn cage(engine: &Engine, caller: &Caller, id: &str) -> ApiResult<Arc<Entry>> {
    let entry = engine.cage(&caller.key, id)?;
    entry.running()?;
    Ok(entry)
}

/// Show the network rules and limits of a running cage
#[utoipa::path(get, path = "/v1/cages/{id}/network", tag = "network", params(("id" = String, Path)),
    responses((status = 200, body = NetworkState), (status = "default", body = ErrorBody)))]
pub(super) async fn network_state(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<NetworkState>> {
    caller.needs(Scope::Read)?;
    let entry = engine.cage(&caller.key, &id)?;
    let found = ask(&entry, rules).await?;
    let planned = |verdict: Verdict, rule: String| PlannedRule { verdict, rule };
    let allowed = found.allow.iter().map(ToString::to_string);
    let allowed = allowed
        .chain(
            found
                .host_ports
                .iter()
                .map(|port| format!("{}:{port}", ironcage_model::HOST_NAME)),
        )
        .chain(found.http.iter().map(ToString::to_string))
        .map(|rule| planned(Verdict::Allow, rule));
    let denied = found
        .deny
        .iter()
        .map(|rule| planned(Verdict::Deny, rule.to_string()));
    Ok(axum::Json(NetworkState {
        rules: allowed.chain(denied).collect(),
        live: found
            .live
            .iter()
            .map(|rule| NetworkRule {
                number: rule.number,
                verdict: rule.verdict.into(),
                rule: rule.written(),
                origin: rule.origin.clone(),
            })
            .collect(),
        limits: found.limits.into(),
    }))
}

/// Add a network rule to a running cage
///
/// It holds at once and until the cage ends; open connections that no longer match are closed. Denying
/// wins. What is allowed is not bound by the ceiling of the cage's policy, so a cage with a policy of
/// its own, and more than hosts by their names, need the scope `host`.
#[utoipa::path(post, path = "/v1/cages/{id}/network/rules", tag = "network", params(("id" = String, Path)),
    request_body = AddRule,
    responses((status = 200, body = RulesChanged), (status = "default", body = ErrorBody)))]
pub(super) async fn add_rule(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<AddRule>,
) -> ApiResult<axum::Json<RulesChanged>> {
    caller.needs(Scope::Permissions)?;
    let entry = cage(&engine, &caller, &id)?;
    let wrong = |error: ironcage_policy::InvalidHostRule| {
        ApiError::invalid(ironcage_model::in_full(&error))
    };
    let request = match (wanted.verdict, wanted.host, wanted.requests) {
        (Verdict::Deny, Some(host), None) => NetworkRequest::Add {
            verdict: NetworkVerdict::Denied,
            rule: ironcage_policy::denied(&host).map_err(wrong)?,
            requests: None,
        },
        (Verdict::Allow, Some(host), None) => NetworkRequest::Add {
            verdict: NetworkVerdict::Allowed,
            rule: ironcage_policy::allowed(&host).map_err(wrong)?,
            requests: None,
        },
        (Verdict::Allow, None, Some(requests)) => {
            let requests = ironcage_policy::requests(&requests).map_err(wrong)?;
            NetworkRequest::Add {
                verdict: NetworkVerdict::Allowed,
                rule: requests.host.clone(),
                requests: Some(requests),
            }
        }
        _ => {
            return Err(ApiError::invalid(
                "give either `host` or, to allow, `requests`",
            ));
        }
    };
    if let NetworkRequest::Add { rule, .. } = &request
        && wanted.verdict == Verdict::Allow
    {
        if entry.has_own_policy() {
            caller.needs(Scope::Host)?;
        }
        let resource = Resource::Host { rule: rule.clone() };
        check_resource(&resource, &caller.key, engine.settings.internet)?;
        engine.ceiling(&entry)?.check(&resource)?;
    }
    Ok(axum::Json(change(&entry, request).await?))
}

/// Remove a network rule that was added
///
/// A rule that denies was added against what the cage reaches otherwise: removing it needs the scope
/// `host`.
#[utoipa::path(delete, path = "/v1/cages/{id}/network/rules/{number}", tag = "network",
    params(("id" = String, Path), ("number" = u32, Path)),
    responses((status = 200, body = RulesChanged), (status = "default", body = ErrorBody)))]
pub(super) async fn remove_rule(
    caller: Caller,
    State(engine): Shared,
    Path((id, number)): Path<(String, u32)>,
) -> ApiResult<axum::Json<RulesChanged>> {
    caller.needs(Scope::Permissions)?;
    let entry = cage(&engine, &caller, &id)?;
    let found = ask(&entry, rules).await?;
    let rule = found.live.iter().find(|rule| rule.number == number);
    let rule = rule.ok_or_else(|| {
        ApiError::new(
            Code::NotFound,
            format!("cage {} has no rule {number} that was added", entry.id),
        )
        .hint(format!("GET /v1/cages/{}/network", entry.id))
    })?;
    if rule.verdict == NetworkVerdict::Denied {
        caller.needs(Scope::Host)?;
    }
    let numbers = vec![number];
    let changed = change(&entry, NetworkRequest::Remove { numbers }).await?;
    Ok(axum::Json(changed))
}

/// Set network limits of a running cage
///
/// Those that are absent stay as they are. Raising one needs the scope `host`.
#[utoipa::path(patch, path = "/v1/cages/{id}/network/limits", tag = "network", params(("id" = String, Path)),
    request_body = NetworkLimitsState,
    responses((status = 200, body = NetworkLimitsState), (status = "default", body = ErrorBody)))]
pub(super) async fn set_limits(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<NetworkLimitsState>,
) -> ApiResult<axum::Json<NetworkLimitsState>> {
    caller.needs(Scope::Permissions)?;
    if wanted.has_zero() {
        return Err(ApiError::invalid("a limit is at least 1"));
    }
    let entry = cage(&engine, &caller, &id)?;
    let may_raise = caller.key.may(Scope::Host);
    let limits = ask(&entry, move |cage| {
        let before = rules(cage)?.limits;
        if !may_raise && wanted.raises(before) {
            return Ok(None);
        }
        let limits = wanted.over(before);
        match cage.ask_network(NetworkRequest::Limits(limits))? {
            Reply::NetworkChanged { .. } => Ok(Some(limits)),
            other => Err(ClientError::Answer(format!("{other:?}"))),
        }
    })
    .await?;
    let limits = limits.ok_or_else(|| {
        let message = "to raise a limit needs a key with the scope `host`";
        ApiError::new(Code::Forbidden, message).hint("without it limits are lowered")
    })?;
    Ok(axum::Json(limits.into()))
}

/// List the ports of a running cage that are published
#[utoipa::path(get, path = "/v1/cages/{id}/ports", tag = "network", params(("id" = String, Path)),
    responses((status = 200, body = PortList), (status = "default", body = ErrorBody)))]
pub(super) async fn list_ports(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<PortList>> {
    caller.needs(Scope::Read)?;
    let entry = engine.cage(&caller.key, &id)?;
    let published = ask(&entry, rules).await?.published;
    Ok(axum::Json(PortList {
        ports: published.into_iter().map(Port::from).collect(),
    }))
}

/// Publish a port of a running cage
///
/// A server on the loopback of the cage is then reached at 127.0.0.1 of the host, by every user of the
/// host, until the cage ends. The cage needs a network, also one without hosts: mode `listed` or `live`.
#[utoipa::path(post, path = "/v1/cages/{id}/ports", tag = "network", params(("id" = String, Path)),
    request_body = PublishPort,
    responses((status = 201, body = Port), (status = "default", body = ErrorBody)))]
pub(super) async fn publish_port(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<PublishPort>,
) -> ApiResult<(StatusCode, axum::Json<Port>)> {
    caller.needs(Scope::Cages)?;
    if wanted.host_port != 0 {
        caller.needs(Scope::Host)?;
    }
    if wanted.port == 0 {
        return Err(ApiError::invalid("a port of a cage is at least 1"));
    }
    let entry = cage(&engine, &caller, &id)?;
    let full = ask(
        &entry,
        |cage| Ok(rules(cage)?.published.len() >= MOST_PORTS),
    )
    .await?;
    if full {
        return Err(ApiError::new(
            Code::LimitReached,
            format!("cage {} publishes {MOST_PORTS} ports already", entry.id),
        )
        .hint("remove one"));
    }
    let publish = Publish {
        outer: wanted.host_port,
        inner: wanted.port,
    };
    let publish = ask(&entry, move |cage| cage.publish(publish)).await?;
    Ok((StatusCode::CREATED, axum::Json(publish.into())))
}

/// Stop publishing a port
#[utoipa::path(delete, path = "/v1/cages/{id}/ports/{host_port}", tag = "network",
    params(("id" = String, Path), ("host_port" = u16, Path, minimum = 1, maximum = 65_535)),
    responses((status = 204), (status = "default", body = ErrorBody)))]
pub(super) async fn remove_port(
    caller: Caller,
    State(engine): Shared,
    Path((id, outer)): Path<(String, u16)>,
) -> ApiResult<StatusCode> {
    caller.needs(Scope::Cages)?;
    let entry = cage(&engine, &caller, &id)?;
    let found = ask(&entry, rules).await?;
    if !found.published.iter().any(|port| port.outer == outer) {
        return Err(ApiError::new(
            Code::NotFound,
            format!(
                "cage {} does not publish the port {outer} of the host",
                entry.id
            ),
        )
        .hint(format!("GET /v1/cages/{}/ports", entry.id)));
    }
    change(&entry, NetworkRequest::Unpublish { outer }).await?;
    Ok(StatusCode::NO_CONTENT)
}
