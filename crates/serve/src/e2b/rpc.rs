//! The Connect protocol with JSON: errors, single calls, streams.

use crate::error::{ApiError, Code};
use crate::router::UnreadBody;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::BytesMut;
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Flag of the last message of a stream.
const END: u8 = 2;
const COMPRESSED: u8 = 1;
/// Bytes of one message of a stream of a client.
const LONGEST_MESSAGE: usize = 16 << 20;

/// An error of the protocol.
#[derive(Debug, Clone)]
pub(super) struct RpcError {
    code: &'static str,
    message: String,
}

impl RpcError {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> RpcError {
        RpcError {
            code,
            message: message.into(),
        }
    }

    pub(super) fn invalid(message: impl Into<String>) -> RpcError {
        RpcError::new("invalid_argument", message)
    }

    fn body(&self) -> Value {
        json!({ "code": self.code, "message": self.message })
    }
}

impl From<ApiError> for RpcError {
    fn from(error: ApiError) -> RpcError {
        let code = match error.code {
            Code::NotFound => "not_found",
            Code::AlreadyExists => "already_exists",
            Code::PermissionDenied | Code::Forbidden | Code::Denied => "permission_denied",
            Code::Unauthorized => "unauthenticated",
            Code::LimitReached | Code::NoSpace => "resource_exhausted",
            Code::Timeout => "deadline_exceeded",
            Code::CageUnresponsive | Code::CageEnded | Code::CagePaused => "unavailable",
            Code::NotOffered => "unimplemented",
            Code::Conflict | Code::NotEmpty => "failed_precondition",
            Code::Internal => "internal",
            _ => "invalid_argument",
        };
        RpcError::new(code, error.message)
    }
}

impl IntoResponse for RpcError {
    fn into_response(self) -> Response {
        let status = match self.code {
            "not_found" => StatusCode::NOT_FOUND,
            "already_exists" => StatusCode::CONFLICT,
            "permission_denied" => StatusCode::FORBIDDEN,
            "unauthenticated" => StatusCode::UNAUTHORIZED,
            "resource_exhausted" => StatusCode::TOO_MANY_REQUESTS,
            "deadline_exceeded" => StatusCode::GATEWAY_TIMEOUT,
            "unavailable" => StatusCode::SERVICE_UNAVAILABLE,
            "unimplemented" => StatusCode::NOT_IMPLEMENTED,
            "internal" => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        };
        let mut response = (status, axum::Json(self.body())).into_response();
        // For calls whose answer is a stream.
        response.extensions_mut().insert(self);
        response
    }
}

/// An error before the answer of a call that is a stream: there it is the last message of one, and
/// clients take any status but 200 for a fault of the way.
pub(super) async fn errors_in_stream(mut response: Response) -> Response {
    let Some(error) = response.extensions_mut().remove::<RpcError>() else {
        return response;
    };
    let headers = [(header::CONTENT_TYPE, "application/connect+json")];
    let mut response = (headers, envelope(END, &json!({ "error": error.body() }))).into_response();
    response.extensions_mut().insert(UnreadBody);
    response
}

pub(super) type RpcResult<T> = Result<T, RpcError>;
/// The answer to a single call.
pub(super) type JsonReply = RpcResult<axum::Json<Value>>;

/// The body of a single call.
pub(super) fn unary<T: DeserializeOwned>(body: &Bytes) -> RpcResult<T> {
    let body: &[u8] = match body.is_empty() {
        true => b"{}",
        false => body,
    };
    serde_json::from_slice(body)
        .map_err(|error| RpcError::invalid(format!("the message is not valid: {error}")))
}

/// The one message of a call whose answer is a stream.
pub(super) fn enveloped<T: DeserializeOwned>(body: &Bytes) -> RpcResult<T> {
    let (head, rest) = body
        .split_first_chunk::<5>()
        .ok_or_else(|| RpcError::invalid("the message has no envelope"))?;
    let [flags, a, b, c, d] = *head;
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if flags & COMPRESSED != 0 {
        return Err(RpcError::new(
            "unimplemented",
            "compressed messages are not offered",
        ));
    }
    let message = rest.get(..length).filter(|_| rest.len() == length);
    let message = message
        .ok_or_else(|| RpcError::invalid("the envelope has another length than its message"))?;
    serde_json::from_slice(message)
        .map_err(|error| RpcError::invalid(format!("the message is not valid: {error}")))
}

/// The messages of a call whose body is a stream.
pub(super) struct Envelopes {
    body: BodyDataStream,
    came: BytesMut,
}

impl Envelopes {
    pub(super) fn of(body: Body) -> Envelopes {
        Envelopes {
            body: body.into_data_stream(),
            came: BytesMut::new(),
        }
    }

    /// The next message; `None` at the end of the stream.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> RpcResult<Option<T>> {
        loop {
            if let Some([flags, a, b, c, d]) = self.came.first_chunk::<5>() {
                let (flags, length) = (*flags, u32::from_be_bytes([*a, *b, *c, *d]) as usize);
                if length > LONGEST_MESSAGE {
                    return Err(RpcError::new(
                        "resource_exhausted",
                        format!("a message is longer than {LONGEST_MESSAGE} bytes"),
                    ));
                }
                if self.came.len() >= 5 + length {
                    let message = self.came.split_to(5 + length).freeze();
                    if flags & END != 0 {
                        return Ok(None);
                    }
                    return enveloped(&message).map(Some);
                }
            }
            match self.body.next().await {
                Some(Ok(bytes)) => self.came.extend_from_slice(&bytes),
                Some(Err(error)) => {
                    return Err(RpcError::invalid(format!(
                        "the body did not arrive whole: {error}"
                    )));
                }
                None if self.came.is_empty() => return Ok(None),
                None => return Err(RpcError::invalid("the body ends within a message")),
            }
        }
    }
}

fn envelope(flags: u8, message: &Value) -> Bytes {
    let text = message.to_string();
    // A message of ours is at most some MiB.
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(5 + text.len());
    bytes.push(flags);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
    Bytes::from(bytes)
}

/// The stream of an answer.
#[derive(Debug)]
pub(super) struct Messages(mpsc::Sender<Bytes>);

/// The client is gone.
#[derive(Debug)]
pub(super) struct Gone;

impl Messages {
    pub(super) fn channel() -> (Messages, Response) {
        let (sender, receiver) = mpsc::channel(4);
        let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
            let bytes: Bytes = receiver.recv().await?;
            Some((Ok::<_, std::convert::Infallible>(bytes), receiver))
        });
        let headers = [(header::CONTENT_TYPE, "application/connect+json")];
        (
            Messages(sender),
            (headers, Body::from_stream(stream)).into_response(),
        )
    }

    pub(super) async fn send(&self, message: &Value) -> Result<(), Gone> {
        self.0.send(envelope(0, message)).await.map_err(|_| Gone)
    }

    pub(super) async fn end(&self, error: Option<RpcError>) -> Result<(), Gone> {
        let last = match error {
            Some(error) => json!({ "error": error.body() }),
            None => json!({}),
        };
        self.0.send(envelope(END, &last)).await.map_err(|_| Gone)
    }

    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }
}

/// How often a client wants to see that a stream lives.
pub(super) fn keepalive(headers: &HeaderMap) -> Duration {
    let seconds = headers
        .get("keepalive-ping-interval")
        .and_then(|value| value.to_str().ok()?.parse().ok());
    Duration::from_secs(seconds.unwrap_or(90_u64).clamp(1, 3600))
}

/// When the time that a client gives a call is over, if it gives one.
pub(super) fn deadline(headers: &HeaderMap) -> RpcResult<Option<Instant>> {
    let Some(value) = headers.get("connect-timeout-ms") else {
        return Ok(None);
    };
    // The protocol has at most ten digits.
    let milliseconds = value
        .to_str()
        .ok()
        .filter(|text| (1..=10).contains(&text.len()))
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| RpcError::invalid("connect-timeout-ms is not a number of milliseconds"))?;
    match milliseconds {
        0 => Ok(None),
        _ => Ok(Instant::now().checked_add(Duration::from_millis(milliseconds))),
    }
}

/// Waits for a deadline; without one, for ever.
pub(super) async fn passed(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// What a stream ends with whose time is over.
pub(super) fn late() -> RpcError {
    RpcError::new("deadline_exceeded", "the time of the call is over")
}

/// Refuses users that a cage does not have: it has one.
pub(super) fn check_user(headers: &HeaderMap) -> RpcResult<()> {
    let Some(value) = headers.get(header::AUTHORIZATION) else {
        return Ok(());
    };
    let user = value
        .to_str()
        .ok()
        .and_then(|text| text.strip_prefix("Basic "))
        .and_then(|text| BASE64.decode(text).ok())
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| RpcError::new("unauthenticated", "the user is not a Basic authorization"))?;
    allowed_user(user.split(':').next().unwrap_or_default())
}

pub(super) fn allowed_user(user: &str) -> RpcResult<()> {
    match user {
        "" | "user" => Ok(()),
        _ => Err(RpcError::new(
            "permission_denied",
            format!(
                "cannot act as `{}`: a cage has one user, which is the default",
                user.escape_debug()
            ),
        )),
    }
}

/// A path as envd takes it: relative ones are below the home directory.
pub(super) fn from_home(path: &str) -> String {
    match path {
        "" => "~".to_owned(),
        _ if path.starts_with('/') || path == "~" || path.starts_with("~/") => path.to_owned(),
        _ => format!("~/{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_has_just_its_message() {
        let good = envelope(0, &json!({ "a": 1 }));
        assert_eq!(enveloped::<Value>(&good).unwrap(), json!({ "a": 1 }));
        let mut long = good.to_vec();
        long.push(b' ');
        assert!(enveloped::<Value>(&long.into()).is_err());
        for bad in [
            &b""[..],
            b"\0\0\0\0",
            b"\0\0\0\0\x09{}",
            b"\x01\0\0\0\x02{}",
            b"\0\xff\xff\xff\xff{}",
            b"\0\0\0\0\x02[[",
        ] {
            assert!(
                enveloped::<Value>(&Bytes::copy_from_slice(bad)).is_err(),
                "{bad:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_stream_of_messages_is_read_however_it_is_cut() {
        let mut whole = envelope(0, &json!({ "a": 1 })).to_vec();
        whole.extend_from_slice(&envelope(0, &json!({ "a": 2 })));
        for size in [1, 3, 64] {
            let pieces: Vec<_> = whole.chunks(size).map(Bytes::copy_from_slice).collect();
            let pieces = pieces.into_iter().map(Ok::<_, std::convert::Infallible>);
            let mut messages = Envelopes::of(Body::from_stream(futures_util::stream::iter(pieces)));
            for number in [1, 2] {
                let message: Option<Value> = messages.next().await.unwrap();
                assert_eq!(message, Some(json!({ "a": number })));
            }
            assert_eq!(messages.next::<Value>().await.unwrap(), None);
        }
        let cut = Body::from(whole[..whole.len() - 1].to_vec());
        let mut messages = Envelopes::of(cut);
        messages.next::<Value>().await.unwrap();
        assert!(messages.next::<Value>().await.is_err());
        let mut long = Envelopes::of(Body::from(&b"\0\xff\xff\xff\xff"[..]));
        assert!(long.next::<Value>().await.is_err());
    }

    #[test]
    fn a_deadline_is_a_number_of_milliseconds_and_zero_is_none() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("connect-timeout-ms", text.parse().unwrap());
            deadline(&headers)
        };
        assert!(of("300").unwrap().is_some_and(|end| end > Instant::now()));
        assert!(of("9999999999").unwrap().is_some());
        assert!(of("0").unwrap().is_none());
        assert!(deadline(&HeaderMap::new()).unwrap().is_none());
        for wrong in ["", "-1", "1.5", "1s", "99999999999"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn relative_paths_are_below_the_home() {
        for (path, expected) in [
            ("a/b", "~/a/b"),
            ("/a", "/a"),
            ("~/a", "~/a"),
            ("", "~"),
            ("..", "~/.."),
        ] {
            assert_eq!(from_home(path), expected);
        }
    }

    #[test]
    fn a_cage_has_one_user() {
        let of = |user: &str| {
            let mut headers = HeaderMap::new();
            let text = format!("Basic {}", BASE64.encode(user));
            headers.insert(header::AUTHORIZATION, text.parse().unwrap());
            check_user(&headers)
        };
        assert!(of("user:").is_ok() && of(":").is_ok());
        assert!(of("root:").is_err());
        assert!(check_user(&HeaderMap::new()).is_ok());
    }
}
