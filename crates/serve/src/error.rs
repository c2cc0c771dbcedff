//! Errors of the API: a status, a code that programs branch on, and a sentence.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ironcage_cage_daemon::protocol::{Failure, FailureCode};
use ironcage_client::ClientError;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// Which error it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Code {
    /// The request is not what the API describes.
    InvalidRequest,
    /// There is no key, or it is not valid.
    Unauthorized,
    /// The key lacks a scope, or the project does not allow it.
    Forbidden,
    /// There is no such cage, process, file or other object.
    NotFound,
    /// The route does not take this method.
    MethodNotAllowed,
    /// The object exists already.
    AlreadyExists,
    /// The idempotency key was used with another request.
    IdempotencyMismatch,
    /// The cage has ended.
    CageEnded,
    /// The cage is paused.
    CagePaused,
    /// The cage is not in a state that allows it.
    Conflict,
    /// The cage did not start.
    StartFailed,
    /// The cage may not do that to the file.
    PermissionDenied,
    NotADirectory,
    IsADirectory,
    NotEmpty,
    /// The program cannot be executed.
    NotExecuted,
    /// The storage of the cage is full.
    NoSpace,
    /// The range is not in the file.
    RangeNotSatisfiable,
    /// The body is too large.
    TooLarge,
    /// Too many requests, cages or processes.
    LimitReached,
    /// The client takes what it is sent too slowly.
    TooSlow,
    /// The cage denied it: policy, ceiling or supervisor.
    Denied,
    /// The cage did not answer in time.
    Timeout,
    /// The daemon in the cage does not answer as it should.
    CageUnresponsive,
    /// This service does not offer it.
    NotOffered,
    /// A fault of the service.
    Internal,
}

impl Code {
    pub(crate) const fn status(self) -> StatusCode {
        match self {
            Code::InvalidRequest | Code::NotADirectory | Code::IsADirectory | Code::NotExecuted => {
                StatusCode::BAD_REQUEST
            }
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::Forbidden | Code::PermissionDenied | Code::Denied => StatusCode::FORBIDDEN,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Code::AlreadyExists
            | Code::IdempotencyMismatch
            | Code::CageEnded
            | Code::CagePaused
            | Code::Conflict
            | Code::NotEmpty => StatusCode::CONFLICT,
            Code::StartFailed => StatusCode::UNPROCESSABLE_ENTITY,
            Code::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            Code::RangeNotSatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
            Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::LimitReached => StatusCode::TOO_MANY_REQUESTS,
            Code::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Code::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Code::CageUnresponsive => StatusCode::BAD_GATEWAY,
            Code::NotOffered => StatusCode::NOT_IMPLEMENTED,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// An error of the API.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    pub(crate) code: Code,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// Seconds after which the same may be asked again.
    pub(crate) retry_after: Option<u64>,
}

pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> ApiError {
        ApiError {
            code,
            message: message.into(),
            hint: None,
            retry_after: None,
        }
    }

    /// Says when the same may be asked again.
    pub(crate) fn retry_after(mut self, wait: Duration) -> ApiError {
        self.retry_after = Some(wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> ApiError {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(Code::InvalidRequest, message)
    }

    pub(crate) fn internal(what: &str, error: &dyn std::error::Error) -> ApiError {
        ApiError::new(
            Code::Internal,
            format!("cannot {what}: {}", ironcage_model::in_full(error)),
        )
    }

    pub(crate) fn body(&self) -> ErrorBody {
        ErrorBody {
            error: ErrorDetail {
                code: self.code,
                message: self.message.clone(),
                hint: self.hint.clone(),
            },
        }
    }

    pub(crate) fn no_cage(id: &str) -> ApiError {
        ApiError::new(
            Code::NotFound,
            format!("cage `{}` was not found", id.escape_debug()),
        )
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> ApiError {
        let code = match failure.code {
            FailureCode::NotFound => Code::NotFound,
            FailureCode::AlreadyExists => Code::AlreadyExists,
            FailureCode::PermissionDenied => Code::PermissionDenied,
            FailureCode::NotADirectory => Code::NotADirectory,
            FailureCode::IsADirectory => Code::IsADirectory,
            FailureCode::NotEmpty => Code::NotEmpty,
            FailureCode::InvalidArgument => Code::InvalidRequest,
            FailureCode::NoSpace => Code::NoSpace,
            FailureCode::NotExecuted => Code::NotExecuted,
            FailureCode::TooMany => Code::LimitReached,
            FailureCode::Io => Code::Conflict,
        };
        // The cage wrote it.
        let mut message = failure.message;
        message.truncate(message.floor_char_boundary(2000));
        ApiError::new(code, message)
    }
}

impl From<ClientError> for ApiError {
    fn from(error: ClientError) -> ApiError {
        let code = match &error {
            ClientError::NotFound { .. } => Code::NotFound,
            ClientError::NotRunning { .. } | ClientError::Gone { .. } => Code::CageEnded,
            ClientError::Silent { .. } => Code::Timeout,
            ClientError::Refused { .. } | ClientError::NotGiven { .. } => Code::Denied,
            _ => Code::Internal,
        };
        ApiError::new(code, ironcage_model::in_full(&error))
    }
}

/// The body of an error.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ErrorBody {
    pub(crate) error: ErrorDetail,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ErrorDetail {
    pub(crate) code: Code,
    /// What failed and why, for people.
    pub(crate) message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.code.status(), Json(self.body())).into_response();
        if self.code == Code::LimitReached {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, self.retry_after.unwrap_or(1).into());
        }
        if self.code == Code::Unauthorized {
            let headers = response.headers_mut();
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // For routes that say errors in other words.
        response.extensions_mut().insert(self);
        response
    }
}
