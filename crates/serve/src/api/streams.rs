//! `/v1/events` and `/v1/cages/{id}/events`: what happens, as it happens.

use super::events::{Events, Gone};
use super::{Caller, Path, Query, Shared};
use crate::engine::{Engine, Entry, blocking};
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::event_log::{Following, ProjectEvent};
use crate::keys::Scope;
use crate::limits::OpenStream;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use ironcage_audit::Tail;
use ironcage_client::Cages;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

/// Events that are read at once.
const BATCH: usize = 64;
/// How often the audit log of a cage is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How often a stream shows that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct CageEvents {
    /// Number of the first event [default: the one after `Last-Event-ID`, or 1].
    pub(crate) from: Option<u64>,
}

/// Why a stream ends or begins again.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct StreamEnd {
    pub(crate) reason: String,
}

fn last_event_id(headers: &HeaderMap) -> ApiResult<Option<&str>> {
    headers
        .get("last-event-id")
        .map(|value| {
            let text = value.to_str().ok().filter(|text| text.len() <= 64);
            text.ok_or_else(|| ApiError::invalid("the header Last-Event-ID is not an id"))
        })
        .transpose()
}

/// Follow the audit log of a cage
///
/// Server-sent events: `audit` with an event as `docs/reference/audit-log.md` describes it, whose `seq`
/// is the id; at the end `end` with how the cage ended, or `stopping` when the service ends before. A
/// client that comes back with `Last-Event-ID` continues after it, also when the service was restarted.
/// One that takes nothing for 30 seconds gets an `error` with an `ErrorBody`, and has to come back; so
/// does one whose key was revoked or has expired.
#[utoipa::path(get, path = "/v1/cages/{id}/events", tag = "events",
    params(("id" = String, Path), CageEvents, ("Last-Event-ID" = Option<String>, Header, description = "Id of the last event that the client has.")),
    responses((status = 200, content_type = "text/event-stream", body = StreamEnd), (status = "default", body = ErrorBody)))]
pub(super) async fn cage_events(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
    Query(query): Query<CageEvents>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    caller.needs(Scope::Read)?;
    let entry = engine.cage(&caller.key, &id)?;
    let after = last_event_id(&headers)?.map(|id| {
        let number: Result<u64, _> = id.parse();
        number.map_err(|_| ApiError::invalid("the header Last-Event-ID is not the id of an event"))
    });
    let after = after.transpose()?.map(|number| number.saturating_add(1));
    let from = after.or(query.from).unwrap_or(1);
    let open = engine.limits.stream(&caller.key)?;
    let cage = entry.id.clone();
    let tail = blocking(move || {
        let log = ironcage_audit::log_path(Cages::of_user()?.audit(), &cage);
        Tail::open(&log).map_err(|error| ApiError::internal("open the audit log", &error))
    })
    .await?;
    let (events, response) = Events::channel();
    tokio::spawn(async move {
        let work = follow_log(&engine, &entry, tail, from, &events, open);
        events.run(&engine, &caller.key, work).await;
    });
    Ok(response)
}

async fn follow_log(
    engine: &Engine,
    entry: &Arc<Entry>,
    mut tail: Tail,
    from: u64,
    events: &Events,
    _open: OpenStream,
) -> Result<(), Gone> {
    let mut shown = tokio::time::Instant::now();
    loop {
        // Before the log is read: what an ended cage wrote is all there.
        let ending = entry.record().ending;
        if tail.has_more().map_err(|_| Gone)? {
            let read = blocking(move || {
                let lines = tail.next_lines(BATCH);
                Ok((tail, lines))
            });
            let (read, lines) = read.await.map_err(|_| Gone)?;
            tail = read;
            let lines = match lines {
                Ok(lines) => lines,
                Err(error) => {
                    let error = ApiError::internal("read the audit log", &error);
                    return events.send("error", &error.body()).await;
                }
            };
            let found = !lines.is_empty();
            for line in lines {
                match line {
                    Ok(event) if event.seq < from => {}
                    Ok(event) => {
                        let id = event.seq.to_string();
                        events.send_with_id(&id, "audit", &event).await?;
                    }
                    Err(error) => {
                        let error = ApiError::internal("read the audit log", &error);
                        events.send("error", &error.body()).await?;
                    }
                }
                shown = tokio::time::Instant::now();
            }
            if found {
                continue;
            }
        }
        if let Some((_, reason)) = ending {
            return events.send("end", &StreamEnd { reason }).await;
        }
        if shown.elapsed() >= KEEP_ALIVE {
            events.keep_alive().await?;
            shown = tokio::time::Instant::now();
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = events.closed() => return Err(Gone),
            () = engine.events.stopped() => return stopping(events).await,
        }
    }
}

async fn stopping(events: &Events) -> Result<(), Gone> {
    let reason = "the service is stopping".to_owned();
    events.send("stopping", &StreamEnd { reason }).await
}

/// Follow what becomes of the cages of a project
///
/// Server-sent events: `cage` with a `ProjectEvent`. A client that comes back with `Last-Event-ID`
/// continues after it; where the events in between are not kept any more, or the service was
/// restarted, `reset` says so, and the client lists the cages again. The last 1,000 events of a
/// project are kept. A client that is slower than that, or takes nothing for 30 seconds, gets an
/// `error` with an `ErrorBody`, and has to come back; so does one whose key was revoked or has expired.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(("Last-Event-ID" = Option<String>, Header, description = "Id of the last event that the client has.")),
    responses((status = 200, content_type = "text/event-stream", body = ProjectEvent), (status = "default", body = ErrorBody)))]
pub(super) async fn project_events(
    caller: Caller,
    State(engine): Shared,
    headers: HeaderMap,
) -> ApiResult<Response> {
    caller.needs(Scope::Read)?;
    let project = caller.key.project.clone();
    let wanted = last_event_id(&headers)?;
    let found = wanted.map(|id| engine.events.after(&project, id));
    let next = engine.events.next(&project);
    let (from, reset) = match found {
        None => (next, false),
        Some(Some(from)) if !matches!(engine.events.from(&project, from, 0), Following::Missed) => {
            (from, false)
        }
        Some(_) => (next, true),
    };
    let open = engine.limits.stream(&caller.key)?;
    let (events, response) = Events::channel();
    tokio::spawn(async move {
        let work = follow_project(&engine, &project, from, reset, &events, open);
        events.run(&engine, &caller.key, work).await;
    });
    Ok(response)
}

async fn follow_project(
    engine: &Engine,
    project: &str,
    mut from: u64,
    reset: bool,
    events: &Events,
    _open: OpenStream,
) -> Result<(), Gone> {
    if reset {
        let reason = "the events after that id are not kept any more: list the cages again";
        let end = StreamEnd {
            reason: reason.to_owned(),
        };
        events.send("reset", &end).await?;
    }
    let mut keep_alive = tokio::time::interval(KEEP_ALIVE);
    loop {
        // Asked for before the log is read: what is told in between wakes it.
        let told = engine.events.told();
        let (found, next) = match engine.events.from(project, from, BATCH) {
            Following::Events(found, next) => (found, next),
            Following::Missed => {
                events.give_up("the client is slower than the events of its project".to_owned());
                return Err(Gone);
            }
        };
        for (number, event) in (from..).zip(&found) {
            let id = engine.events.id(number);
            events.send_with_id(&id, "cage", &**event).await?;
        }
        from = next;
        if !found.is_empty() {
            continue;
        }
        tokio::select! {
            () = told => {}
            _ = keep_alive.tick() => events.keep_alive().await?,
            () = events.closed() => return Err(Gone),
            () = engine.events.stopped() => return stopping(events).await,
        }
    }
}
