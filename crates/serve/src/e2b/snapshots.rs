//! Snapshots and forks of E2B's API. They have files, and no memory.

use super::network;
use super::sandboxes::{E2bResult, Shared, find, not_yet, sandbox};
use crate::api::{Caller, Json, Path, Query};
use crate::engine::Engine;
use crate::error::{ApiError, ApiResult, Code};
use crate::keys::{Key, Scope};
use crate::store::SnapshotRecord;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

const PAGE: usize = 100;
/// The tag of every name: another snapshot of a name takes it over.
const TAG: &str = "default";

/// A snapshot as that API names it: by `NAME`, `PROJECT/NAME` or its id, each with a tag or without.
pub(super) fn by_name(engine: &Engine, key: &Key, text: &str) -> ApiResult<SnapshotRecord> {
    let name = match text.rsplit_once(':') {
        Some((name, TAG | "latest")) => name,
        _ => text,
    };
    let own = name.strip_prefix(&*key.project);
    let name = own.and_then(|rest| rest.strip_prefix('/')).unwrap_or(name);
    engine.find_snapshot(key, name)
}

fn shown(record: &SnapshotRecord) -> Value {
    let names: Vec<String> = record
        .name
        .iter()
        .map(|name| format!("{}/{name}:{TAG}", record.project))
        .collect();
    json!({ "snapshotID": record.id, "names": names })
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct NewSnapshot {
    name: Option<String>,
    memory: Option<bool>,
}

pub(super) async fn create(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<NewSnapshot>,
) -> E2bResult<Response> {
    caller.needs(Scope::Cages)?;
    let entry = find(&engine, &caller, &id)?;
    if wanted.memory == Some(true) {
        let error = not_yet("a snapshot of memory");
        return Err(error.hint("leave `mode` out, or say \"filesystem\"").into());
    }
    let name = wanted.name.map(|name| match name.strip_suffix(":default") {
        Some(name) => name.to_owned(),
        None => name,
    });
    let record = engine.snapshot(&entry, name).await?;
    Ok((StatusCode::CREATED, axum::Json(shown(&record))).into_response())
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SnapshotQuery {
    #[serde(rename = "sandboxID")]
    sandbox: Option<String>,
    name: Option<String>,
    limit: Option<usize>,
    next_token: Option<String>,
}

pub(super) async fn list(
    caller: Caller,
    State(engine): Shared,
    Query(query): Query<SnapshotQuery>,
) -> E2bResult<Response> {
    caller.needs(Scope::Read)?;
    let named = match &query.name {
        None => None,
        Some(name) => match by_name(&engine, &caller.key, name) {
            Ok(record) => Some(record.id),
            Err(error) if error.code == Code::NotFound => Some(String::new()),
            Err(error) => return Err(error.into()),
        },
    };
    let mut found = engine.snapshots(&caller.key)?;
    found.retain(|record| {
        let of = query.sandbox.as_ref().is_none_or(|id| record.cage == *id);
        of && named.as_ref().is_none_or(|id| record.id == *id)
    });
    let from = match query
        .next_token
        .as_deref()
        .filter(|token| !token.is_empty())
    {
        None => 0,
        Some(token) => {
            let place = found.iter().position(|record| record.id == token);
            place.ok_or_else(|| ApiError::invalid("nextToken is not valid any more"))? + 1
        }
    };
    let limit = query.limit.unwrap_or(PAGE).clamp(1, PAGE);
    let page: Vec<_> = found.iter().skip(from).take(limit).collect();
    let body: Vec<Value> = page.iter().map(|record| shown(record)).collect();
    let mut response = axum::Json(body).into_response();
    if found.len() > from + page.len()
        && let Some(last) = page.last()
        && let Ok(value) = HeaderValue::from_str(&last.id)
    {
        let name = HeaderName::from_static("x-next-token");
        response.headers_mut().insert(name, value);
    }
    Ok(response)
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Fork {
    timeout: Option<u32>,
    count: Option<usize>,
}

pub(super) async fn fork(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(wanted): Json<Fork>,
) -> E2bResult<Response> {
    caller.needs(Scope::Cages)?;
    let entry = find(&engine, &caller, &id)?;
    let count = wanted.count.unwrap_or(1);
    let forks = engine
        .fork(&caller.key, &entry, count, wanted.timeout)
        .await?;
    let mut answers = Vec::with_capacity(forks.len());
    for fork in forks {
        let settled = match fork {
            Ok(entry) => network::settle(&engine, &entry).await.map(|()| entry),
            Err(error) => Err(error),
        };
        answers.push(match settled {
            Ok(entry) => json!({ "sandbox": sandbox(&entry) }),
            Err(error) => {
                let status = error.code.status().as_u16();
                json!({ "error": { "code": status, "message": error.message } })
            }
        });
    }
    Ok((StatusCode::CREATED, axum::Json(answers)).into_response())
}
