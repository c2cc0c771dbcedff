//! `/v1/cages`.

use super::types::{Cage, CageList, CageState, CreateCage, ListCages, UpdateCage};
use super::{Caller, Json, Path, Query, Shared};
use crate::engine::Order;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::keys::Scope;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use std::collections::BTreeMap;

/// Cages of a page where nothing is said, and at most.
const PAGE: usize = 100;
const LARGEST_PAGE: usize = 1000;

/// The idempotency key of a request.
pub(crate) fn idempotency_key(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let Some(value) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let text = value.to_str().ok().filter(|text| {
        (1..=255).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    });
    text.map(|text| Some(text.to_owned())).ok_or_else(|| {
        ApiError::invalid(
            "the idempotency key has 1 to 255 letters, digits and the characters - _ .",
        )
    })
}

/// Metadata that is looked for, from a query string in a parameter.
pub(crate) fn metadata_filter(text: Option<&str>) -> ApiResult<BTreeMap<String, String>> {
    let Some(text) = text else {
        return Ok(BTreeMap::new());
    };
    let uri = format!("/?{text}").parse::<axum::http::Uri>();
    let uri = uri.map_err(|_| ApiError::invalid("the metadata is not a query string"))?;
    let query = axum::extract::Query::<BTreeMap<String, String>>::try_from_uri(&uri);
    let query = query.map_err(|error| {
        ApiError::invalid(format!("the metadata is not a query string: {error}"))
    })?;
    Ok(query.0)
}

/// Create a cage
///
/// Answers when the cage runs. With the header `Idempotency-Key`, the same request creates one cage,
/// however often it is sent within a day.
#[utoipa::path(post, path = "/v1/cages", tag = "cages", request_body = CreateCage,
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._-]+$", description = "1 to 255 letters, digits and - _ .")),
    responses((status = 201, body = Cage), (status = "default", body = ErrorBody)))]
pub(super) async fn create_cage(
    caller: Caller,
    State(engine): Shared,
    headers: HeaderMap,
    Json(spec): Json<CreateCage>,
) -> ApiResult<(StatusCode, axum::Json<Cage>)> {
    caller.needs(Scope::Cages)?;
    let order = Order {
        spec,
        e2b_template: None,
        e2b: crate::store::E2bState::default(),
        idempotency_key: idempotency_key(&headers)?,
    };
    let entry = engine.create(&caller.key, order).await?;
    Ok((StatusCode::CREATED, axum::Json(entry.shown())))
}

/// List cages, the newest first
#[utoipa::path(get, path = "/v1/cages", tag = "cages", params(ListCages),
    responses((status = 200, body = CageList), (status = "default", body = ErrorBody)))]
pub(super) async fn list_cages(
    caller: Caller,
    State(engine): Shared,
    Query(query): Query<ListCages>,
) -> ApiResult<axum::Json<CageList>> {
    caller.needs(Scope::Read)?;
    let states = match &query.state {
        None => vec![CageState::Running, CageState::Paused],
        Some(text) => text.split(',').map(state).collect::<ApiResult<_>>()?,
    };
    let metadata = metadata_filter(query.metadata.as_deref())?;
    let limit = match query.limit.unwrap_or(PAGE) {
        limit @ 1..=LARGEST_PAGE => limit,
        other => {
            return Err(ApiError::invalid(format!(
                "the limit is {other}; expected 1 to {LARGEST_PAGE}"
            )));
        }
    };
    let mut cages = Vec::new();
    // Newer cages that come meanwhile do not move the page.
    let mut skipping = query.cursor.as_deref().filter(|cursor| !cursor.is_empty());
    let mut next_cursor = None;
    for entry in engine.list(&caller.key) {
        if let Some(cursor) = skipping {
            if entry.id.as_str() == cursor {
                skipping = None;
            }
            continue;
        }
        let shown = entry.shown();
        let matches = metadata
            .iter()
            .all(|(name, value)| shown.metadata.get(name) == Some(value));
        if !states.contains(&shown.state) || !matches {
            continue;
        }
        if cages.len() == limit {
            next_cursor = cages.last().map(|cage: &Cage| cage.id.clone());
            break;
        }
        cages.push(shown);
    }
    if let Some(cursor) = skipping {
        return Err(ApiError::invalid(format!(
            "the cursor `{}` is not valid any more",
            cursor.escape_debug()
        ))
        .hint("list from the start"));
    }
    Ok(axum::Json(CageList { cages, next_cursor }))
}

fn state(text: &str) -> ApiResult<CageState> {
    match text {
        "running" => Ok(CageState::Running),
        "paused" => Ok(CageState::Paused),
        "ended" => Ok(CageState::Ended),
        _ => Err(ApiError::invalid(format!(
            "unknown state `{}`; expected running, paused or ended",
            text.escape_debug()
        ))
        .hint("leave `state` out for the cages that run or are paused")),
    }
}

/// Get a cage
///
/// One that has ended can be seen for an hour, unless it was deleted.
#[utoipa::path(get, path = "/v1/cages/{id}", tag = "cages", params(("id" = String, Path)),
    responses((status = 200, body = Cage), (status = "default", body = ErrorBody)))]
pub(super) async fn get_cage(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<Cage>> {
    caller.needs(Scope::Read)?;
    Ok(axum::Json(engine.cage(&caller.key, &id)?.shown()))
}

/// Change the end of a cage, or its metadata
#[utoipa::path(patch, path = "/v1/cages/{id}", tag = "cages", params(("id" = String, Path)),
    request_body = UpdateCage,
    responses((status = 200, body = Cage), (status = "default", body = ErrorBody)))]
pub(super) async fn update_cage(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Json(update): Json<UpdateCage>,
) -> ApiResult<axum::Json<Cage>> {
    caller.needs(Scope::Cages)?;
    let entry = engine.cage(&caller.key, &id)?;
    let changed = std::sync::Arc::clone(&entry);
    crate::engine::blocking(move || engine.update(&changed, update)).await?;
    Ok(axum::Json(entry.shown()))
}

/// End a cage
///
/// Answers when no process of it is left. A pending change of a directory stays, as for
/// `ironcage run`.
#[utoipa::path(delete, path = "/v1/cages/{id}", tag = "cages", params(("id" = String, Path)),
    responses((status = 204), (status = "default", body = ErrorBody)))]
pub(super) async fn delete_cage(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    caller.needs(Scope::Cages)?;
    let entry = engine.cage(&caller.key, &id)?;
    engine.delete(&entry).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Stop every process of a cage
///
/// They keep their memory and go on where they were when the cage is resumed. The time of the cage
/// goes on, too.
#[utoipa::path(post, path = "/v1/cages/{id}/pause", tag = "cages", params(("id" = String, Path)),
    responses((status = 200, body = Cage), (status = "default", body = ErrorBody)))]
pub(super) async fn pause_cage(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<Cage>> {
    caller.needs(Scope::Cages)?;
    let entry = engine.cage(&caller.key, &id)?;
    engine.pause(&entry).await?;
    Ok(axum::Json(entry.shown()))
}

/// Let a paused cage go on
#[utoipa::path(post, path = "/v1/cages/{id}/resume", tag = "cages", params(("id" = String, Path)),
    responses((status = 200, body = Cage), (status = "default", body = ErrorBody)))]
pub(super) async fn resume_cage(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<Cage>> {
    caller.needs(Scope::Cages)?;
    let entry = engine.cage(&caller.key, &id)?;
    engine.resume(&entry).await?;
    Ok(axum::Json(entry.shown()))
}
