//! Both APIs as one router, with what holds for every request.

use crate::engine::Engine;
use crate::error::{ApiError, Code};
use crate::{answers, api, e2b, metrics};
use axum::Router;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use futures_util::StreamExt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// Bytes of a body that is read whole. Files are passed on as they come.
const LONGEST_BODY: usize = 16 << 20;
/// How long a body may stand still.
const STALLED: Duration = Duration::from_secs(60);
/// Bytes that are drained behind an error, and for how long.
const DRAINED: usize = 256 * 1024;
const DRAIN: Duration = Duration::from_secs(2);

pub(crate) fn router(engine: Arc<Engine>) -> Router {
    api::router()
        .merge(crate::dashboard::router())
        .merge(e2b::router().route_layer(middleware::from_fn_with_state(
            Arc::clone(&engine),
            e2b::counted,
        )))
        .route("/metrics", get(metrics::metrics))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(LONGEST_BODY))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&engine),
            e2b::forwarded,
        ))
        .layer(middleware::from_fn(around))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&engine),
            metrics::measure,
        ))
        .with_state(engine)
}

async fn no_route(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(200).collect();
    ApiError::new(Code::NotFound, format!("there is no route {path}"))
        .hint("GET /v1/openapi.json describes the routes")
}

async fn no_method(request: Request) -> ApiError {
    ApiError::new(
        Code::MethodNotAllowed,
        format!("this route does not take {}", request.method()),
    )
    .hint("GET /v1/openapi.json describes the routes")
}

/// The data of a request, which a handler reads, and which is drained behind an error.
type Data = Arc<Mutex<BodyDataStream>>;

/// A refusal whose status does not say that it is one, so that the body may not have been read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnreadBody;

async fn around(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let data: Data = Arc::new(Mutex::new(body.into_data_stream()));
    let body = timed(Arc::clone(&data));
    let mut response = answers::counted(next.run(Request::from_parts(parts, body))).await;
    let unread = response.extensions_mut().remove::<UnreadBody>();
    let status = response.status();
    // A cage that is gone is a 502, which clients go on after.
    if status.is_client_error() || status.is_server_error() || unread.is_some() {
        drain(&data).await;
    }
    let headers = response.headers_mut();
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

/// A body that ends with an error when nothing comes for a while.
fn timed(data: Data) -> Body {
    let stream = futures_util::stream::unfold(Some(data), |data| async move {
        let data = data?;
        let next = async { data.lock().await.next().await };
        let next = tokio::time::timeout(STALLED, next).await;
        match next {
            Ok(Some(Ok(bytes))) => Some((Ok::<Bytes, io::Error>(bytes), Some(data))),
            Ok(Some(Err(error))) => Some((Err(io::Error::other(error)), None)),
            Ok(None) => None,
            Err(_) => Some((Err(io::ErrorKind::TimedOut.into()), None)),
        }
    });
    Body::from_stream(stream)
}

/// Takes what is left of a short body that a refusal did not read: otherwise the connection would be
/// closed, while the client sends its next request over it.
async fn drain(data: &Data) {
    let drained = async {
        let mut left = DRAINED;
        let mut data = data.lock().await;
        while let Some(Ok(bytes)) = data.next().await {
            left = left.saturating_sub(bytes.len());
            if left == 0 {
                break;
            }
        }
    };
    // One that does not come is not waited for.
    let _ = tokio::time::timeout(DRAIN, drained).await;
}
