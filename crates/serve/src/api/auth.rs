//! The caller of a request: its key.

use crate::engine::Engine;
use crate::error::{ApiError, ApiResult, Code};
use crate::keys::{Key, KeyError, Scope};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use std::sync::Arc;

/// The key of a request. `Authorization: Bearer KEY` or `X-API-Key: KEY`.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) key: Key,
}

impl Caller {
    pub(crate) fn needs(&self, scope: Scope) -> ApiResult<()> {
        match self.key.may(scope) {
            true => Ok(()),
            false => Err(ApiError::new(
                Code::Forbidden,
                format!("this needs a key with the scope `{}`", scope.name()),
            )
            .hint(format!(
                "ironcage serve key create --scope {} NAME",
                scope.name()
            ))),
        }
    }
}

fn text(headers: &HeaderMap) -> Option<&str> {
    let of = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = of(header::AUTHORIZATION.as_str()).and_then(|value| value.strip_prefix("Bearer "));
    bearer.or_else(|| of("x-api-key")).map(str::trim)
}

impl FromRequestParts<Arc<Engine>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, engine: &Arc<Engine>) -> Result<Self, ApiError> {
        let refused = |message: &str| {
            ApiError::new(Code::Unauthorized, message)
                .hint("`ironcage serve key create NAME` makes a key; send it as `Authorization: Bearer KEY`")
        };
        let wrong = |message: &str| match engine.limits.wrong_key() {
            Ok(()) => refused(message),
            Err(error) => error,
        };
        let text = text(&parts.headers).ok_or_else(|| wrong("the request has no key"))?;
        // Who asks has no key yet: the path of the file is not for them.
        let key = engine.keys.check(text).map_err(|error| match error {
            KeyError::File { source, .. } => ApiError::internal("read the key", &source),
            KeyError::Invalid { source, .. } => ApiError::internal("read the key", &source),
            other => ApiError::internal("check the key", &other),
        })?;
        let key = key.ok_or_else(|| wrong("the key is not valid, or was revoked"))?;
        engine.limits.request(&key)?;
        Ok(Caller { key })
    }
}
