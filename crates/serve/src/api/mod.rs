//! The native API: routes below `/v1`, and their description.

mod auth;
mod cages;
mod changes;
mod events;
mod files;
mod network;
mod permissions;
mod processes;
mod snapshots;
mod streams;
pub(crate) mod types;
mod usage;
mod webhooks;

pub(crate) use auth::Caller;
pub(crate) use cages::{idempotency_key, metadata_filter};
pub(crate) use files::{content_of, write_stream};
pub(crate) use network::rules as network_rules;
pub(crate) use permissions::{ask, check_resource, look};
pub(crate) use processes::environment;
pub(crate) use webhooks::{check_webhook_ceiling, webhook_error};

use crate::engine::Engine;
use crate::error::{ApiError, Code, ErrorBody, ErrorDetail};
use crate::log_places::LogPlaces;
use axum::Router;
use axum::body::Bytes;
use axum::extract::FromRequest;
use axum::http::StatusCode;
use axum::routing::{delete, get, patch, post};
use serde::de::DeserializeOwned;
use std::sync::{Arc, OnceLock};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

/// The description of the native API.
#[derive(Debug, OpenApi)]
#[openapi(
    info(
        title = "Ironcage service",
        description = "Cages for AI agents by HTTP. Every error has the body `ErrorBody`, whose `code` programs branch on. Streams are server-sent events.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    paths(
        service_info,
        cages::create_cage,
        cages::list_cages,
        cages::get_cage,
        cages::update_cage,
        cages::delete_cage,
        cages::pause_cage,
        cages::resume_cage,
        processes::start_process,
        processes::list_processes,
        processes::get_process,
        processes::process_output,
        processes::write_stdin,
        processes::send_signal,
        processes::resize_pty,
        processes::run_command,
        files::list_files,
        files::remove_file,
        files::stat_file,
        files::read_file,
        files::write_file,
        files::make_directory,
        files::move_file,
        files::watch_files,
        permissions::list_leases,
        permissions::grant_lease,
        permissions::revoke_lease,
        permissions::list_requests,
        permissions::approve_request,
        permissions::deny_request,
        permissions::usage,
        permissions::audit_log,
        permissions::explain_denials,
        network::network_state,
        network::add_rule,
        network::remove_rule,
        network::set_limits,
        network::list_ports,
        network::publish_port,
        network::remove_port,
        streams::cage_events,
        streams::project_events,
        changes::list_changes,
        changes::get_change,
        changes::diff_change,
        changes::apply_change,
        changes::discard_change,
        snapshots::take_snapshot,
        snapshots::restore_snapshot,
        snapshots::fork_cage,
        snapshots::list_snapshots,
        snapshots::get_snapshot,
        snapshots::delete_snapshot,
        usage::project_usage,
        webhooks::create_webhook,
        webhooks::list_webhooks,
        webhooks::get_webhook,
        webhooks::delete_webhook,
    ),
    components(schemas(
        ErrorBody,
        ErrorDetail,
        Code,
        types::OutputEvent,
        types::FileChange,
        streams::StreamEnd,
    )),
    modifiers(&Security),
    security(("key" = []))
)]
pub(crate) struct Description;

struct Security;

impl Modify for Security {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let components = openapi.components.get_or_insert_default();
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("key", scheme);
    }
}

/// The description as it is checked in.
pub(crate) fn description() -> Result<String, serde_json::Error> {
    let mut text = Description::openapi().to_pretty_json()?;
    text.push('\n');
    Ok(text)
}

pub(crate) type Shared = axum::extract::State<Arc<Engine>>;

pub(crate) fn router() -> Router<Arc<Engine>> {
    Router::new()
        .route("/v1", get(service_info))
        .route("/v1/openapi.json", get(openapi))
        .route("/v1/cages", get(cages::list_cages).post(cages::create_cage))
        .route(
            "/v1/cages/{id}",
            get(cages::get_cage)
                .patch(cages::update_cage)
                .delete(cages::delete_cage),
        )
        .route("/v1/cages/{id}/pause", post(cages::pause_cage))
        .route("/v1/cages/{id}/resume", post(cages::resume_cage))
        .route("/v1/cages/{id}/run", post(processes::run_command))
        .route(
            "/v1/cages/{id}/processes",
            get(processes::list_processes).post(processes::start_process),
        )
        .route(
            "/v1/cages/{id}/processes/{pid}",
            get(processes::get_process),
        )
        .route(
            "/v1/cages/{id}/processes/{pid}/output",
            get(processes::process_output),
        )
        .route(
            "/v1/cages/{id}/processes/{pid}/stdin",
            post(processes::write_stdin),
        )
        .route(
            "/v1/cages/{id}/processes/{pid}/signal",
            post(processes::send_signal),
        )
        .route(
            "/v1/cages/{id}/processes/{pid}/resize",
            post(processes::resize_pty),
        )
        .route(
            "/v1/cages/{id}/files",
            get(files::list_files).delete(files::remove_file),
        )
        .route("/v1/cages/{id}/files/entry", get(files::stat_file))
        .route(
            "/v1/cages/{id}/files/content",
            get(files::read_file).put(files::write_file),
        )
        .route(
            "/v1/cages/{id}/files/directories",
            post(files::make_directory),
        )
        .route("/v1/cages/{id}/files/move", post(files::move_file))
        .route("/v1/cages/{id}/files/watch", get(files::watch_files))
        .route(
            "/v1/cages/{id}/leases",
            get(permissions::list_leases).post(permissions::grant_lease),
        )
        .route(
            "/v1/cages/{id}/leases/{number}",
            delete(permissions::revoke_lease),
        )
        .route("/v1/cages/{id}/requests", get(permissions::list_requests))
        .route(
            "/v1/cages/{id}/requests/{number}/approve",
            post(permissions::approve_request),
        )
        .route(
            "/v1/cages/{id}/requests/{number}/deny",
            post(permissions::deny_request),
        )
        .route("/v1/cages/{id}/usage", get(permissions::usage))
        .route(
            "/v1/cages/{id}/audit",
            get(permissions::audit_log).layer(axum::Extension(LogPlaces::default())),
        )
        .route("/v1/cages/{id}/why", get(permissions::explain_denials))
        .route("/v1/cages/{id}/network", get(network::network_state))
        .route("/v1/cages/{id}/network/rules", post(network::add_rule))
        .route(
            "/v1/cages/{id}/network/rules/{number}",
            delete(network::remove_rule),
        )
        .route("/v1/cages/{id}/network/limits", patch(network::set_limits))
        .route(
            "/v1/cages/{id}/ports",
            get(network::list_ports).post(network::publish_port),
        )
        .route(
            "/v1/cages/{id}/ports/{host_port}",
            delete(network::remove_port),
        )
        .route("/v1/cages/{id}/events", get(streams::cage_events))
        .route("/v1/events", get(streams::project_events))
        .route("/v1/changes", get(changes::list_changes))
        .route("/v1/changes/{change}", get(changes::get_change))
        .route("/v1/changes/{change}/diff", get(changes::diff_change))
        .route("/v1/changes/{change}/apply", post(changes::apply_change))
        .route(
            "/v1/changes/{change}/discard",
            post(changes::discard_change),
        )
        .route("/v1/cages/{id}/snapshots", post(snapshots::take_snapshot))
        .route("/v1/cages/{id}/restore", post(snapshots::restore_snapshot))
        .route("/v1/cages/{id}/fork", post(snapshots::fork_cage))
        .route("/v1/snapshots", get(snapshots::list_snapshots))
        .route(
            "/v1/snapshots/{snapshot}",
            get(snapshots::get_snapshot).delete(snapshots::delete_snapshot),
        )
        .route("/v1/usage", get(usage::project_usage))
        .route(
            "/v1/webhooks",
            get(webhooks::list_webhooks).post(webhooks::create_webhook),
        )
        .route(
            "/v1/webhooks/{webhook}",
            get(webhooks::get_webhook).delete(webhooks::delete_webhook),
        )
}

/// What the service is
#[utoipa::path(get, path = "/v1", tag = "service", responses((status = 200, body = types::ServiceInfo), (status = "default", body = ErrorBody)))]
async fn service_info(
    caller: Caller,
    axum::extract::State(engine): Shared,
) -> axum::Json<types::ServiceInfo> {
    axum::Json(types::ServiceInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cages: engine
            .list(&caller.key)
            .iter()
            .filter(|entry| entry.state() != types::CageState::Ended)
            .count(),
    })
}

/// The document, which is made once: it needs no key.
async fn openapi() -> Result<([(axum::http::HeaderName, &'static str); 1], Bytes), ApiError> {
    static DOCUMENT: OnceLock<Bytes> = OnceLock::new();
    let text = match DOCUMENT.get() {
        Some(text) => text.clone(),
        None => {
            let made = description();
            let made = made.map_err(|error| ApiError::internal("describe the API", &error))?;
            DOCUMENT.get_or_init(|| Bytes::from(made)).clone()
        }
    };
    Ok((
        [(axum::http::header::CONTENT_TYPE, "application/json")],
        text,
    ))
}

/// A body in JSON. What is wrong with it is said as every error of the API is.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: axum::extract::Request, state: &S) -> Result<Self, ApiError> {
        // Pages of other origins cannot send this type without asking first.
        let kind = request.headers().get(axum::http::header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.split(';').next().unwrap_or_default().trim() != "application/json" {
            return Err(ApiError::invalid(
                "the body is not JSON: expected the type application/json",
            ));
        }
        let body = axum::body::Bytes::from_request(request, state).await;
        let body = body.map_err(|rejection| {
            let code = match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => Code::TooLarge,
                _ => Code::InvalidRequest,
            };
            ApiError::new(code, rejection.body_text())
        })?;
        // A list of values would be taken for an object, too.
        if !body.trim_ascii_start().starts_with(b"{") {
            return Err(ApiError::invalid("the body is not a JSON object"));
        }
        serde_json::from_slice(&body).map(Json).map_err(|error| {
            ApiError::invalid(format!("the body is not what this route takes: {error}"))
        })
    }
}

/// Parameters of a query.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> axum::extract::FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        state: &S,
    ) -> Result<Self, ApiError> {
        let query = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        query
            .map(|axum::extract::Query(value)| Query(value))
            .map_err(|rejection| ApiError::invalid(rejection.body_text()))
    }
}

/// Parts of a path.
#[derive(Debug)]
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> axum::extract::FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        state: &S,
    ) -> Result<Self, ApiError> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(value)| Path(value))
            .map_err(|rejection| ApiError::invalid(rejection.body_text()))
    }
}
