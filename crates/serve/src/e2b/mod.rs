//! E2B's API on the same port: its control plane, and its envd by the headers of a request.
//!
//! It maps onto the engine and the daemon in the cage, as the native API does.

mod filesystem;
mod interpreter;
mod network;
mod ports;
mod process;
mod rpc;
mod sandboxes;
mod snapshots;
mod templates;
mod transfer;

use crate::api::types::CageState;
use crate::engine::{Engine, Entry};
use crate::error::{ApiError, Code};
use crate::keys;
use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::sync::Arc;

pub(crate) use filesystem::Watchers;
pub(crate) use interpreter::TEMPLATE as CODE_INTERPRETER;
pub(crate) use ports::forwarded;
pub(crate) use templates::Uploads;

/// The version of envd that this is like.
pub(crate) const ENVD: &str = "0.6.7";

pub(crate) fn router() -> Router<Arc<Engine>> {
    Router::new()
        .merge(sandboxes::router())
        .merge(interpreter::router())
        .merge(templates::router())
        .route("/health", get(health))
        .route(
            "/files",
            get(transfer::download)
                .post(transfer::upload)
                .layer(DefaultBodyLimit::disable()),
        )
        .route("/process.Process/List", post(process::list))
        .route("/process.Process/SendInput", post(process::send_input))
        .route("/process.Process/SendSignal", post(process::send_signal))
        .route("/process.Process/CloseStdin", post(process::close_stdin))
        .route("/process.Process/Update", post(process::update))
        .route("/filesystem.Filesystem/Stat", post(filesystem::stat))
        .route("/filesystem.Filesystem/MakeDir", post(filesystem::make_dir))
        .route("/filesystem.Filesystem/Move", post(filesystem::rename))
        .route("/filesystem.Filesystem/ListDir", post(filesystem::list_dir))
        .route("/filesystem.Filesystem/Remove", post(filesystem::remove))
        .route(
            "/filesystem.Filesystem/CreateWatcher",
            post(filesystem::create_watcher),
        )
        .route(
            "/filesystem.Filesystem/GetWatcherEvents",
            post(filesystem::watcher_events),
        )
        .route(
            "/filesystem.Filesystem/RemoveWatcher",
            post(filesystem::remove_watcher),
        )
        .merge(streams())
        .layer(middleware::map_response(in_words_of_e2b))
}

/// Calls whose answer is a stream.
fn streams() -> Router<Arc<Engine>> {
    Router::new()
        .route("/process.Process/Start", post(process::start))
        .route("/process.Process/Connect", post(process::connect))
        .route("/process.Process/StreamInput", post(process::stream_input))
        .route(
            "/filesystem.Filesystem/WatchDir",
            post(filesystem::watch_dir),
        )
        .layer(middleware::map_response(rpc::errors_in_stream))
}

/// An error that came before a handler of these routes, such as that of a key, as E2B's API has it.
async fn in_words_of_e2b(mut response: Response) -> Response {
    match response.extensions_mut().remove::<ApiError>() {
        Some(error) => E2bError(error).into_response(),
        None => response,
    }
}

/// An error as E2B's control plane and the HTTP part of envd say it.
#[derive(Debug)]
pub(crate) struct E2bError(pub(crate) ApiError);

impl From<ApiError> for E2bError {
    fn from(error: ApiError) -> E2bError {
        E2bError(error)
    }
}

impl IntoResponse for E2bError {
    fn into_response(self) -> Response {
        let status = self.0.code.status();
        let message = match self.0.hint {
            Some(hint) => format!("{} ({hint})", self.0.message),
            None => self.0.message,
        };
        let body = axum::Json(json!({ "code": status.as_u16(), "message": message }));
        let mut response = (status, body).into_response();
        if self.0.code == Code::LimitReached {
            let seconds = self.0.retry_after.unwrap_or(1);
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// A sandbox that is gone, as E2B's proxy says it.
fn gone(id: &str) -> Response {
    let id: String = id
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(64)
        .collect();
    let body = json!({ "sandboxId": id, "message": format!("The sandbox {id} was not found"), "code": 502 });
    (StatusCode::BAD_GATEWAY, axum::Json(body)).into_response()
}

/// The sandbox that a request to envd is for, from its headers or its host name.
pub(crate) fn target(headers: &HeaderMap) -> Option<(String, u16)> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(id) = text("e2b-sandbox-id") {
        let port = text("e2b-sandbox-port").and_then(|port| port.parse().ok());
        return Some((id.to_owned(), port.unwrap_or(ENVD_PORT)));
    }
    let (port, id) = text("host")?.split('.').next()?.split_once('-')?;
    Some((id.to_owned(), port.parse().ok()?))
}

const ENVD_PORT: u16 = 49983;

/// A cage that runs, and whose token the request has.
#[derive(Debug)]
pub(crate) struct Sandbox(pub(crate) Arc<Entry>);

/// A cage that runs; its token is not checked.
#[derive(Debug)]
pub(crate) struct Unchecked(Arc<Entry>);

/// The cage that a request is for, where it runs and the port is the one of this route.
async fn addressed(
    headers: &HeaderMap,
    engine: &Arc<Engine>,
    route: u16,
) -> Result<Arc<Entry>, Response> {
    let Some((id, port)) = target(headers) else {
        let message = "the request names no sandbox: E2b-Sandbox-Id, or PORT-ID as the host name";
        return Err(E2bError(ApiError::invalid(message)).into_response());
    };
    let entry = awake(engine, &id, |entry| has_token(headers, entry)).await?;
    match port == route {
        true => Ok(entry),
        false => Err(closed(&id, port)),
    }
}

/// A cage that runs, or that requests resume: those that `may` do so.
async fn awake(
    engine: &Arc<Engine>,
    id: &str,
    may: impl Fn(&Entry) -> bool,
) -> Result<Arc<Entry>, Response> {
    let entry = engine.any_cage(id).ok_or_else(|| gone(id))?;
    let record = entry.record();
    if entry.state() == CageState::Paused && record.e2b.auto_resume && may(&entry) {
        let failed = |error: ApiError| E2bError(error).into_response();
        engine.resume(&entry).await.map_err(failed)?;
        let seconds = record.spec.timeout.unwrap_or(crate::engine::TIMEOUT);
        let (prolonged, engine) = (Arc::clone(&entry), Arc::clone(engine));
        let done = crate::engine::blocking(move || engine.prolong(&prolonged, seconds));
        done.await.map_err(failed)?;
    }
    match entry.running() {
        Ok(_) => Ok(entry),
        Err(_) => Err(gone(id)),
    }
}

/// A port on which nothing listens, as E2B's proxy says it.
fn closed(id: &str, port: u16) -> Response {
    let message = format!("The sandbox is running but the port is not open: {port}");
    let body = json!({ "sandboxId": id, "message": message, "port": port, "code": 502 });
    (StatusCode::BAD_GATEWAY, axum::Json(body)).into_response()
}

impl FromRequestParts<Arc<Engine>> for Unchecked {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, engine: &Arc<Engine>) -> Result<Self, Response> {
        let entry = addressed(&parts.headers, engine, ENVD_PORT).await?;
        Ok(Unchecked(entry))
    }
}

impl FromRequestParts<Arc<Engine>> for Sandbox {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, engine: &Arc<Engine>) -> Result<Self, Response> {
        let Unchecked(entry) = Unchecked::from_request_parts(parts, engine).await?;
        match has_token(&parts.headers, &entry) {
            true => {
                rpc::check_user(&parts.headers).map_err(IntoResponse::into_response)?;
                Ok(Sandbox(entry))
            }
            false => Err(rpc::RpcError::new(
                "unauthenticated",
                "the access token is missing or not valid",
            )
            .into_response()),
        }
    }
}

fn has_token(headers: &HeaderMap, entry: &Entry) -> bool {
    let token = headers
        .get("x-access-token")
        .and_then(|value| value.to_str().ok());
    token.is_some_and(|token| keys::same(token, &entry.record().token))
}

/// The token of ports that are not public, which is given out beside the one of envd: made from it, so
/// that it needs no place in the store.
fn traffic_token(token: &str) -> String {
    keys::hex(&Sha256::digest(format!("traffic:{token}")))
}

fn has_traffic_token(headers: &HeaderMap, entry: &Entry) -> bool {
    let token = headers
        .get("e2b-traffic-access-token")
        .and_then(|value| value.to_str().ok());
    token.is_some_and(|token| keys::same(token, &traffic_token(&entry.record().token)))
}

/// Counts requests to cages before anything else is done for them. Those to the control plane have a key,
/// with which they are counted.
pub(crate) async fn counted(
    State(engine): State<Arc<Engine>>,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> Response {
    let headers = request.headers();
    match target(headers).map(|(id, _)| count(&engine, headers, &id)) {
        None | Some(Ok(())) => next.run(request).await,
        Some(Err(error)) => E2bError(error).into_response(),
    }
}

/// With its token a request counts as one of the key that created the cage, without any as one to that
/// cage. A wrong token, or no such cage, is a request without a valid key.
fn count(engine: &Engine, headers: &HeaderMap, id: &str) -> crate::error::ApiResult<()> {
    let Some(entry) = engine.any_cage(id) else {
        return engine.limits.wrong_key();
    };
    let names = ["x-access-token", "e2b-traffic-access-token"];
    if has_token(headers, &entry) || has_traffic_token(headers, &entry) {
        let key = entry.record().key;
        // The rate of the service, where the key was revoked or cannot be read.
        let quota = engine.keys.quota_of(&key).unwrap_or_default();
        engine.limits.request_of(&key, quota.rate)
    } else if names.iter().any(|name| headers.contains_key(*name)) {
        engine.limits.wrong_key()
    } else {
        engine.limits.open_request(id)
    }
}

async fn health(State(_): State<Arc<Engine>>, Unchecked(_): Unchecked) -> StatusCode {
    StatusCode::NO_CONTENT
}
