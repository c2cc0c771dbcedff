//! `/v1/webhooks`: addresses that are told what becomes of the cages of a project.

use super::{Caller, Json, Path, Shared};
use crate::clock;
use crate::engine::{Engine, blocking, store_error};
use crate::error::{ApiError, ApiResult, Code, ErrorBody};
use crate::event_log::Kind;
use crate::keys::{Key, Scope};
use crate::store::WebhookState;
use crate::webhooks::{HookUrl, NewWebhook, Webhook, WebhookError, not_public};
use axum::extract::State;
use axum::http::StatusCode;
use ironcage_model::Resource;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use utoipa::ToSchema;

/// A webhook to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateWebhook {
    /// Where events are sent: `https`, and an address of the internet. A key with the scope `host` may
    /// name any, and `http`.
    #[schema(example = "https://hooks.example.com/cages")]
    pub(crate) url: String,
    /// Events to send [default: all].
    #[serde(default)]
    pub(crate) events: Vec<Kind>,
}

/// A webhook, and how its deliveries go.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WebhookInfo {
    pub(crate) id: String,
    pub(crate) url: String,
    /// Events that it is sent; all of them where this is empty.
    pub(crate) events: BTreeSet<Kind>,
    /// RFC 3339.
    pub(crate) created_at: String,
    /// Deliveries that wait.
    pub(crate) waiting: u64,
    pub(crate) delivered: u64,
    /// Deliveries that were given up: more than 1000 waited, or 300 attempts failed.
    pub(crate) dropped: u64,
    /// Attempts in a row that failed.
    pub(crate) failures: u32,
    /// When the last attempt was, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) attempted_at: Option<String>,
    /// Why the last attempt failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// A webhook that was created.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct CreatedWebhook {
    pub(crate) webhook: WebhookInfo,
    /// The key of its signatures. It is not shown again.
    pub(crate) secret: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WebhookList {
    pub(crate) webhooks: Vec<WebhookInfo>,
}

impl WebhookInfo {
    fn new(webhook: &Webhook, state: WebhookState) -> WebhookInfo {
        WebhookInfo {
            id: webhook.id.clone(),
            url: webhook.url.to_string(),
            events: webhook.events.clone(),
            created_at: clock::rfc3339(webhook.created),
            waiting: state.waiting,
            delivered: state.delivered,
            dropped: state.dropped,
            failures: state.failures,
            attempted_at: state.attempted.map(clock::rfc3339),
            error: state.error,
        }
    }
}

/// An error of webhooks as the API says it: paths of the service are not for the caller.
pub(crate) fn webhook_error(error: WebhookError) -> ApiError {
    match error {
        WebhookError::NotFound { id } => ApiError::new(
            Code::NotFound,
            format!("webhook `{}` was not found", id.escape_debug()),
        ),
        WebhookError::TooMany { .. } => {
            ApiError::new(Code::Conflict, error.to_string()).hint("delete one that is not needed")
        }
        WebhookError::Project => ApiError::invalid(error.to_string()),
        WebhookError::File { source, .. } | WebhookError::Random(source) => {
            ApiError::internal("use webhooks", &source)
        }
        WebhookError::Invalid { source, .. } => ApiError::internal("use webhooks", &source),
    }
}

/// Refuses a receiver that is above the ceiling of a project.
pub(crate) fn check_webhook_ceiling(
    engine: &Engine,
    project: &str,
    url: &HookUrl,
) -> ApiResult<()> {
    let ceiling = engine.projects.of_request(project)?.ceiling;
    if ceiling.hosts.is_none() {
        return Ok(());
    }
    let rule = url.rule().parse().map_err(|_| {
        ApiError::invalid(format!(
            "`{}` is not a host that a ceiling covers",
            url.host
        ))
    })?;
    ceiling.check(&Resource::Host { rule })
}

/// The address of a new webhook, where the key may name it. What a name resolves to is checked with
/// each delivery.
fn checked(engine: &Engine, key: &Key, text: &str) -> ApiResult<HookUrl> {
    let shown: String = text.chars().take(200).collect();
    let shown = shown.escape_debug();
    let url = text.parse::<HookUrl>().map_err(|error| {
        ApiError::invalid(format!("cannot use `{shown}` as a webhook: {error}"))
    })?;
    let forbidden = |why: &str| {
        ApiError::new(
            Code::Forbidden,
            format!("cannot use `{shown}` as a webhook: {why}"),
        )
        .hint("this needs a key with the scope `host`, or `ironcage serve webhook create`")
    };
    if !key.may(Scope::Host) {
        if !url.tls {
            return Err(forbidden("expected https"));
        }
        if let Some(why) = url.address().and_then(not_public) {
            return Err(forbidden(&format!("its address is {why}")));
        }
    }
    check_webhook_ceiling(engine, &key.project, &url)?;
    Ok(url)
}

/// Create a webhook
///
/// Events of the project's cages are sent to it as `POST` requests in the format of Standard Webhooks,
/// each at least once and in their order.
#[utoipa::path(post, path = "/v1/webhooks", tag = "webhooks", request_body = CreateWebhook,
    responses((status = 201, body = CreatedWebhook), (status = "default", body = ErrorBody)))]
pub(super) async fn create_webhook(
    caller: Caller,
    State(engine): Shared,
    Json(wanted): Json<CreateWebhook>,
) -> ApiResult<(StatusCode, axum::Json<CreatedWebhook>)> {
    caller.needs(Scope::Cages)?;
    let url = checked(&engine, &caller.key, &wanted.url)?;
    let new = NewWebhook {
        project: caller.key.project.clone(),
        url,
        events: wanted.events.into_iter().collect(),
        any_address: caller.key.may(Scope::Host),
        operator: false,
    };
    let made = blocking(move || engine.webhooks.create(new).map_err(webhook_error)).await?;
    let answer = CreatedWebhook {
        secret: made.shown_secret(),
        webhook: WebhookInfo::new(&made, WebhookState::default()),
    };
    Ok((StatusCode::CREATED, axum::Json(answer)))
}

/// List the webhooks of the project, the oldest first
#[utoipa::path(get, path = "/v1/webhooks", tag = "webhooks",
    responses((status = 200, body = WebhookList), (status = "default", body = ErrorBody)))]
pub(super) async fn list_webhooks(
    caller: Caller,
    State(engine): Shared,
) -> ApiResult<axum::Json<WebhookList>> {
    caller.needs(Scope::Cages)?;
    let project = caller.key.project.clone();
    let webhooks = blocking(move || {
        let webhooks = engine.webhooks.list(&project).map_err(webhook_error)?;
        let shown = webhooks.iter().map(|webhook| shown(&engine, webhook));
        shown.collect::<ApiResult<Vec<_>>>()
    });
    Ok(axum::Json(WebhookList {
        webhooks: webhooks.await?,
    }))
}

fn shown(engine: &Arc<Engine>, webhook: &Webhook) -> ApiResult<WebhookInfo> {
    let state = engine.store.webhook_state(&webhook.id);
    Ok(WebhookInfo::new(webhook, state.map_err(store_error)?))
}

/// Show a webhook
#[utoipa::path(get, path = "/v1/webhooks/{webhook}", tag = "webhooks", params(("webhook" = String, Path)),
    responses((status = 200, body = WebhookInfo), (status = "default", body = ErrorBody)))]
pub(super) async fn get_webhook(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<WebhookInfo>> {
    caller.needs(Scope::Cages)?;
    let project = caller.key.project.clone();
    let found = blocking(move || {
        let webhook = engine.webhooks.get(&project, &id).map_err(webhook_error)?;
        shown(&engine, &webhook)
    });
    Ok(axum::Json(found.await?))
}

/// Delete a webhook
///
/// What waits for it is not sent.
#[utoipa::path(delete, path = "/v1/webhooks/{webhook}", tag = "webhooks", params(("webhook" = String, Path)),
    responses((status = 204), (status = "default", body = ErrorBody)))]
pub(super) async fn delete_webhook(
    caller: Caller,
    State(engine): Shared,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    caller.needs(Scope::Cages)?;
    let project = caller.key.project.clone();
    blocking(move || {
        engine
            .webhooks
            .delete(&project, &id)
            .map_err(webhook_error)?;
        engine.store.forget_webhook(&id).map_err(store_error)
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projects::{Ceiling, Project};

    #[test]
    fn a_tenant_names_https_on_the_internet_within_the_ceiling_of_its_project() {
        let data = tempfile::tempdir().unwrap();
        let engine = Engine::open(crate::engine::tests::settings(data.path())).unwrap();
        let key = |scopes: &[Scope]| {
            let scopes = scopes.iter().copied().collect();
            engine.keys.create("k", "team", scopes).unwrap().0
        };
        let (tenant, host) = (key(&[Scope::Cages]), key(&[Scope::Cages, Scope::Host]));
        let code = |key: &Key, url: &str| checked(&engine, key, url).err().map(|error| error.code);
        assert_eq!(code(&tenant, "https://hooks.example.com/x"), None);
        for url in [
            "http://hooks.example.com/x",
            "https://127.0.0.1/",
            "https://[::1]/",
            "https://10.0.0.1:8443/",
            "https://169.254.169.254/latest",
        ] {
            assert_eq!(code(&tenant, url), Some(Code::Forbidden), "{url}");
            assert_eq!(code(&host, url), None, "{url}");
        }
        assert_eq!(code(&host, "gopher://x/"), Some(Code::InvalidRequest));
        let project = Project {
            ceiling: Ceiling {
                hosts: Some(vec!["*.example.com".parse().unwrap()]),
                ..Ceiling::default()
            },
            ..Project::default()
        };
        engine.projects.set("team", &project).unwrap();
        for key in [&tenant, &host] {
            assert_eq!(code(key, "https://hooks.example.com/x"), None);
            assert_eq!(code(key, "https://example.org/"), Some(Code::Forbidden));
            assert_eq!(
                code(key, "https://hooks.example.com:22/"),
                Some(Code::Forbidden)
            );
        }
    }
}
