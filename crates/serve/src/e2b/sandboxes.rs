//! The control plane of E2B's API.

use super::network::{self, Egress, WantedNetwork};
use super::{E2bError, ENVD, snapshots, templates};
use crate::api::types::{CageState, CreateCage, OnTimeout};
use crate::api::{Caller, Json, Path, Query, idempotency_key, metadata_filter};
use crate::clock;
use crate::engine::{Engine, Entry, Order, blocking};
use crate::error::{ApiError, ApiResult, Code};
use crate::keys::Scope;
use crate::store::E2bState;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use ironcage_client::{Cages, ClientError};
use ironcage_control::{Reply, Request, Stats};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) type Shared = State<Arc<Engine>>;
pub(super) type E2bResult<T> = Result<T, E2bError>;

const PAGE: usize = 100;
/// The template of sandboxes without one, and the one of E2B's code interpreter.
const DEFAULT_TEMPLATES: [&str; 2] = ["base", super::CODE_INTERPRETER];

pub(super) fn router() -> Router<Arc<Engine>> {
    Router::new()
        .route("/sandboxes", get(list).post(create_v1))
        .route("/v2/sandboxes", get(list).post(create))
        .route("/sandboxes/{id}", get(detail).delete(kill))
        .route("/sandboxes/{id}/timeout", post(set_timeout))
        .route("/sandboxes/{id}/refreshes", post(refresh))
        .route("/sandboxes/{id}/connect", post(connect))
        .route("/v2/sandboxes/{id}/connect", post(connect))
        .route("/sandboxes/{id}/resume", post(connect))
        .route("/sandboxes/{id}/pause", post(pause))
        .route("/sandboxes/{id}/metrics", get(metrics))
        .route("/sandboxes/metrics", get(metrics_of_all))
        .route("/sandboxes/{id}/snapshots", post(snapshots::create))
        .route("/sandboxes/{id}/fork", post(snapshots::fork))
        .route("/sandboxes/{id}/network", put(network::update))
        .route("/snapshots", get(snapshots::list))
        .route("/volumes", get(not_offered).post(not_offered))
        .route("/volumes/{*rest}", get(not_offered).delete(not_offered))
        .route("/secrets", get(not_offered).post(not_offered))
        .route(
            "/secrets/{*rest}",
            get(not_offered).post(not_offered).delete(not_offered),
        )
}

/// What of E2B's API this service does not have.
async fn not_offered(_caller: Caller, uri: axum::http::Uri) -> E2bError {
    let message = format!("{} is not offered by this service", uri.path());
    E2bError(
        ApiError::new(Code::NotOffered, message)
            .hint("docs/guides/service.md lists what of E2B's API is offered"),
    )
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewSandbox {
    #[serde(rename = "templateID")]
    template: String,
    timeout: Option<u32>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    #[serde(default)]
    auto_pause: bool,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<Value>,
    #[serde(rename = "allow_internet_access")]
    internet: Option<bool>,
    network: Option<WantedNetwork>,
    mcp: Option<Value>,
    iam: Option<Value>,
    volume_mounts: Option<Vec<Value>>,
}

pub(super) fn not_yet(what: &str) -> ApiError {
    ApiError::new(
        Code::NotOffered,
        format!("{what} is not offered by this service"),
    )
}

async fn create(
    caller: Caller,
    State(engine): Shared,
    headers: HeaderMap,
    Json(wanted): Json<NewSandbox>,
) -> E2bResult<Response> {
    create_with(caller, engine, headers, wanted, 300).await
}

/// The first version, whose sandboxes live for 15 s where nothing is said.
async fn create_v1(
    caller: Caller,
    State(engine): Shared,
    headers: HeaderMap,
    Json(wanted): Json<NewSandbox>,
) -> E2bResult<Response> {
    create_with(caller, engine, headers, wanted, 15).await
}

async fn create_with(
    caller: Caller,
    engine: Arc<Engine>,
    headers: HeaderMap,
    wanted: NewSandbox,
    timeout: u32,
) -> E2bResult<Response> {
    caller.needs(Scope::Cages)?;
    let given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
    if given(&wanted.mcp) {
        return Err(not_yet("`mcp`").into());
    }
    if given(&wanted.iam) {
        return Err(not_yet("`iam`").into());
    }
    if wanted
        .volume_mounts
        .is_some_and(|mounts| !mounts.is_empty())
    {
        return Err(not_yet("`volumeMounts`").into());
    }
    if wanted.auto_pause && wanted.auto_pause_memory == Some(false) {
        return Err(not_yet("a pause without memory").into());
    }
    let resumes = |value: &Value| value.get("enabled") == Some(&Value::Bool(true));
    let egress = Egress::new(wanted.internet, wanted.network.unwrap_or_default())?;
    let network = egress.network(engine.settings.internet)?;
    egress.check(&engine, &caller.key)?;
    let mut e2b = E2bState {
        auto_resume: wanted.auto_resume.as_ref().is_some_and(resumes),
        ..E2bState::default()
    };
    egress.note(&mut e2b);
    let template = wanted.template;
    let named = (!DEFAULT_TEMPLATES.contains(&template.as_str())).then(|| template.clone());
    let snapshot = match named.as_deref() {
        Some(name) => match templates::snapshot_of(&engine, &caller.key, name)?
            .map_or_else(|| snapshots::by_name(&engine, &caller.key, name), Ok)
        {
            Ok(found) => Some(found),
            Err(error) if error.code == Code::NotFound => None,
            Err(error) => return Err(error.into()),
        },
        None => None,
    };
    // What it was made of decides what the service provides to it.
    let template = match snapshot
        .as_ref()
        .and_then(|snapshot| snapshot.e2b_template.clone())
    {
        Some(base) if base == super::CODE_INTERPRETER => base,
        _ => template,
    };
    let spec = CreateCage {
        template: named.filter(|_| snapshot.is_none()),
        snapshot: snapshot.map(|snapshot| snapshot.id),
        metadata: wanted.metadata.unwrap_or_default(),
        env: wanted.env_vars.unwrap_or_default(),
        timeout: Some(wanted.timeout.unwrap_or(timeout)),
        on_timeout: Some(match wanted.auto_pause {
            true => OnTimeout::Pause,
            false => OnTimeout::Delete,
        }),
        network: Some(network),
        ..CreateCage::default()
    };
    let order = Order {
        spec,
        e2b_template: Some(template),
        e2b,
        idempotency_key: idempotency_key(&headers)?,
    };
    let entry = engine.create(&caller.key, order).await?;
    network::settle(&engine, &entry).await?;
    Ok((StatusCode::CREATED, axum::Json(sandbox(&entry))).into_response())
}

/// A sandbox with its token.
pub(super) fn sandbox(entry: &Entry) -> Value {
    let record = entry.record();
    json!({
        "templateID": record.e2b_template.as_deref().unwrap_or("base"),
        "sandboxID": entry.id.as_str(),
        "clientID": "ironcage",
        "envdVersion": ENVD,
        "envdAccessToken": record.token,
        "trafficAccessToken": super::traffic_token(&record.token),
    })
}

fn state_name(state: CageState) -> &'static str {
    match state {
        CageState::Paused => "paused",
        CageState::Running | CageState::Ended => "running",
    }
}

/// A sandbox as it is listed.
fn listed(entry: &Entry, stats: Option<&Stats>) -> Value {
    let record = entry.record();
    let mebibytes = |bytes: u64| bytes >> 20;
    json!({
        "templateID": record.e2b_template.as_deref().unwrap_or("base"),
        "sandboxID": entry.id.as_str(),
        "clientID": "ironcage",
        "startedAt": clock::rfc3339(record.created),
        "endAt": clock::rfc3339(record.ends),
        "cpuCount": cpus(),
        "memoryMB": stats.map_or(0, |stats| mebibytes(stats.memory_limit)),
        "diskSizeMB": 0,
        "state": state_name(entry.state()),
        "envdVersion": ENVD,
        "metadata": record.spec.metadata,
    })
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListQuery {
    metadata: Option<String>,
    state: Option<String>,
    order: Option<String>,
    started_after: Option<String>,
    template: Option<String>,
    limit: Option<usize>,
    next_token: Option<String>,
}

async fn list(
    caller: Caller,
    State(engine): Shared,
    Query(query): Query<ListQuery>,
) -> E2bResult<Response> {
    caller.needs(Scope::Read)?;
    let metadata = metadata_filter(query.metadata.as_deref())?;
    // The SDKs quote names and values once more than a query string does.
    let metadata: BTreeMap<_, _> = metadata
        .iter()
        .map(|(name, value)| (unquoted(name), unquoted(value)))
        .collect();
    let states: Vec<&str> = match query.state.as_deref() {
        Some(text) if !text.is_empty() => text.split(',').collect(),
        _ => vec!["running", "paused"],
    };
    let after = match query.started_after.as_deref() {
        Some(text) => clock::parse(text)
            .ok_or_else(|| ApiError::invalid("startedAfter is not a time in RFC 3339"))?,
        None => 0,
    };
    let limit = query.limit.unwrap_or(PAGE).clamp(1, 1000);
    let matches = |entry: &Arc<Entry>| {
        let record = entry.record();
        entry.state() != CageState::Ended
            && states.contains(&state_name(entry.state()))
            && metadata
                .iter()
                .all(|(name, value)| record.spec.metadata.get(name) == Some(value))
            && query
                .template
                .as_deref()
                .is_none_or(|wanted| record.e2b_template.as_deref() == Some(wanted))
            && record.created >= after
    };
    let mut found: Vec<_> = engine
        .list(&caller.key)
        .into_iter()
        .filter(matches)
        .collect();
    if query.order.as_deref() == Some("asc") {
        found.reverse();
    }
    let from = match query
        .next_token
        .as_deref()
        .filter(|token| !token.is_empty())
    {
        Some(token) => {
            let place = found.iter().position(|entry| entry.id.as_str() == token);
            place.ok_or_else(|| ApiError::invalid("nextToken is not valid any more"))? + 1
        }
        None => 0,
    };
    let page: Vec<_> = found.iter().skip(from).take(limit).collect();
    let shown: Vec<Value> = page.iter().map(|entry| listed(entry, None)).collect();
    let mut response = axum::Json(shown).into_response();
    if found.len() > from + page.len()
        && let Some(last) = page.last()
        && let Ok(value) = HeaderValue::from_str(last.id.as_str())
    {
        response
            .headers_mut()
            .insert(HeaderName::from_static("x-next-token"), value);
    }
    Ok(response)
}

/// Text without its percent-encoding; one that is not valid stays as it is.
fn unquoted(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after
            .get(..2)
            .filter(|digits| *first == b'%' && digits.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// A sandbox that the caller sees and that has not ended.
pub(super) fn find(engine: &Engine, caller: &Caller, id: &str) -> ApiResult<Arc<Entry>> {
    let entry = engine.cage(&caller.key, id)?;
    match entry.state() {
        CageState::Ended => Err(ApiError::no_cage(id)),
        CageState::Running | CageState::Paused => Ok(entry),
    }
}

async fn stats(entry: &Entry) -> ApiResult<Stats> {
    let id = entry.id.clone();
    blocking(
        move || match Cages::of_user()?.connect(&id)?.ask(&Request::Stats)? {
            Reply::Stats(stats) => Ok(stats),
            other => Err(ClientError::Answer(format!("{other:?}")).into()),
        },
    )
    .await
}

async fn detail(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> E2bResult<axum::Json<Value>> {
    caller.needs(Scope::Read)?;
    let entry = find(&engine, &caller, &id)?;
    let stats = stats(&entry).await.ok();
    let mut shown = listed(&entry, stats.as_ref());
    let record = entry.record();
    let on_timeout = match record.on_timeout {
        OnTimeout::Delete => "kill",
        OnTimeout::Pause => "pause",
    };
    if let Some(shown) = shown.as_object_mut() {
        // With it, a key that only reads would write.
        if caller.key.may(Scope::Cages) {
            shown.insert("envdAccessToken".into(), record.token.into());
        }
        let e2b = record.e2b;
        shown.insert(
            "lifecycle".into(),
            json!({ "autoResume": e2b.auto_resume, "onTimeout": on_timeout }),
        );
        shown.insert("network".into(), network::shown(&e2b));
        if let Some(internet) = e2b.internet {
            shown.insert("allowInternetAccess".into(), internet.into());
        }
    }
    Ok(axum::Json(shown))
}

async fn kill(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> E2bResult<StatusCode> {
    caller.needs(Scope::Cages)?;
    let entry = find(&engine, &caller, &id)?;
    engine.delete(&entry).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
struct Timeout {
    timeout: u32,
}

async fn set_timeout(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<Timeout>,
) -> E2bResult<StatusCode> {
    caller.needs(Scope::Cages)?;
    let entry = find(&engine, &caller, &id)?;
    let update = crate::api::types::UpdateCage {
        // E2B takes zero for at once.
        timeout: Some(wanted.timeout.max(1)),
        ..Default::default()
    };
    blocking(move || engine.update(&entry, update)).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
struct Refresh {
    duration: Option<u32>,
}

async fn refresh(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<Refresh>,
) -> E2bResult<StatusCode> {
    caller.needs(Scope::Cages)?;
    let entry = find(&engine, &caller, &id)?;
    let seconds = wanted.duration.unwrap_or(15).clamp(1, 3600);
    blocking(move || engine.prolong(&entry, seconds)).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Default, Deserialize)]
struct Connect {
    timeout: Option<u32>,
    memory: Option<bool>,
}

async fn connect(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<Connect>,
) -> E2bResult<Response> {
    caller.needs(Scope::Cages)?;
    let entry = find(&engine, &caller, &id)?;
    if wanted.memory == Some(false) {
        return Err(not_yet("a reboot from disk").into());
    }
    let resumed = entry.state() == CageState::Paused;
    engine.resume(&entry).await?;
    let (changed, seconds) = (
        Arc::clone(&entry),
        wanted.timeout.unwrap_or(crate::engine::TIMEOUT).max(1),
    );
    blocking(move || engine.prolong(&changed, seconds)).await?;
    let status = match resumed {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    Ok((status, axum::Json(sandbox(&entry))).into_response())
}

#[derive(Debug, Default, Deserialize)]
struct Pause {
    memory: Option<bool>,
}

async fn pause(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    body: axum::body::Bytes,
) -> E2bResult<StatusCode> {
    caller.needs(Scope::Cages)?;
    let wanted: Pause = match body.is_empty() {
        true => Pause::default(),
        false => {
            serde_json::from_slice(&body).map_err(|error| ApiError::invalid(error.to_string()))?
        }
    };
    if wanted.memory == Some(false) {
        return Err(not_yet("a pause without memory").into());
    }
    let entry = find(&engine, &caller, &id)?;
    if entry.state() == CageState::Paused {
        return Err(
            ApiError::new(Code::Conflict, format!("sandbox {id} is paused already")).into(),
        );
    }
    engine.pause(&entry).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Default, Deserialize)]
struct MetricsQuery {
    /// Seconds since the epoch.
    start: Option<u64>,
    end: Option<u64>,
}

/// What a sandbox uses now. Nothing is kept of earlier.
async fn metrics(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Query(query): Query<MetricsQuery>,
) -> E2bResult<axum::Json<Vec<Value>>> {
    caller.needs(Scope::Read)?;
    let entry = find(&engine, &caller, &id)?;
    let (start, end) = (query.start.unwrap_or(0), query.end.unwrap_or(u64::MAX));
    if start > end {
        return Err(ApiError::invalid("the start is after the end").into());
    }
    let now = clock::now() / 1_000_000;
    Ok(axum::Json(
        match start <= now && entry.record().created / 1_000_000 <= end {
            true => vec![sample(&entry, &stats(&entry).await?)],
            false => Vec::new(),
        },
    ))
}

#[derive(Debug, Default, Deserialize)]
struct MetricsOfAll {
    sandbox_ids: Option<String>,
}

/// The same for several sandboxes, by their ids.
async fn metrics_of_all(
    caller: Caller,
    State(engine): Shared,
    Query(query): Query<MetricsOfAll>,
) -> E2bResult<axum::Json<Value>> {
    caller.needs(Scope::Read)?;
    let ids = query.sandbox_ids.unwrap_or_default();
    let ids: Vec<&str> = ids.split(',').filter(|id| !id.is_empty()).collect();
    if ids.len() > PAGE {
        return Err(ApiError::invalid(format!("expected at most {PAGE} sandboxes")).into());
    }
    let mut found = serde_json::Map::new();
    for id in ids {
        if let Ok(entry) = find(&engine, &caller, id)
            && let Ok(stats) = stats(&entry).await
        {
            found.insert(id.to_owned(), sample(&entry, &stats));
        }
    }
    Ok(axum::Json(json!({ "sandboxes": found })))
}

fn sample(entry: &Entry, stats: &Stats) -> Value {
    let now = clock::now();
    let running = now.saturating_sub(entry.record().created).max(1);
    // The mean since the start: one look has no rate.
    let used = stats.cpu_microseconds.unwrap_or(0) as f64 * 100.0 / running as f64 / cpus() as f64;
    json!({
        "timestamp": clock::rfc3339(now),
        "timestampUnix": now / 1_000_000,
        "cpuCount": cpus(),
        "cpuUsedPct": (used * 100.0).round() / 100.0,
        "memUsed": stats.memory.unwrap_or(0),
        "memTotal": stats.memory_limit,
        "memCache": 0,
        "diskUsed": stats.storage.unwrap_or(0),
        "diskTotal": 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_is_unquoted_and_other_text_stays() {
        for (quoted, text) in [
            ("a%26b", "a&b"),
            ("%C3%BC", "\u{fc}"),
            ("100%", "100%"),
            ("%zz", "%zz"),
            ("%FF", "%FF"),
            ("", ""),
        ] {
            assert_eq!(unquoted(quoted), text);
        }
    }
}
