//! Requests to ports of a sandbox's own programs, passed on to the loopback of its cage.
//!
//! Which port a request is for is in its headers or its host name (`PORT-ID.DOMAIN`), so this
//! comes before the routes. The bytes go through the daemon of the cage: no port of the host is used.

use super::{E2bError, ENVD_PORT, awake, closed, has_traffic_token, interpreter, target};
use crate::daemon::{Link, PATIENCE, Received};
use crate::engine::{Engine, Entry};
use crate::error::{ApiError, Code};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ironcage_cage_daemon::protocol::{CHUNK, Kind, Reply, Request as DaemonRequest};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// How long a program may take to begin its answer.
const ANSWER: Duration = Duration::from_secs(300);
/// Headers that are about one connection, and those by which the service found the sandbox.
const OURS: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("e2b-sandbox-id"),
    HeaderName::from_static("e2b-sandbox-port"),
    HeaderName::from_static("e2b-traffic-access-token"),
];

/// Passes a request for a port of a sandbox on; others go to the routes.
pub(crate) async fn forwarded(
    State(engine): State<Arc<Engine>>,
    request: Request,
    next: Next,
) -> Response {
    match target(request.headers()) {
        Some((id, port)) if port != ENVD_PORT && port != interpreter::PORT => {
            let done = forward(&engine, &id, port, request).await;
            done.unwrap_or_else(|refused| refused)
        }
        _ => next.run(request).await,
    }
}

async fn forward(
    engine: &Arc<Engine>,
    id: &str,
    port: u16,
    request: Request,
) -> Result<Response, Response> {
    let headers = request.headers();
    let may =
        |entry: &Entry| !entry.record().e2b.private_ports || has_traffic_token(headers, entry);
    let entry = awake(engine, id, may).await?;
    let e2b = entry.record().e2b;
    if !may(&entry) {
        let message = "the traffic access token is missing or not valid";
        return Err((StatusCode::FORBIDDEN, message).into_response());
    }
    let stream = connect(&entry, port).await;
    let stream = stream.map_err(|error| match error.code {
        Code::LimitReached => E2bError(error).into_response(),
        _ => closed(id, port),
    })?;
    let handshake = http1::Builder::new().handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|_| closed(id, port))?;
    // It ends with the answer, or with the client that does not want it any more.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    let outgoing = rewritten(request, port, e2b.mask_host.as_deref());
    let outgoing =
        outgoing.map_err(|error| E2bError(ApiError::invalid(error.to_string())).into_response())?;
    let answer = tokio::time::timeout(ANSWER, sender.send_request(outgoing)).await;
    let refused = |status: StatusCode, why: &str| (status, why.to_owned()).into_response();
    match answer {
        Ok(Ok(response)) => Ok(returned(response.map(Body::new))),
        Ok(Err(_)) => Err(refused(
            StatusCode::BAD_GATEWAY,
            "the program behind the port did not answer in HTTP",
        )),
        Err(_) => Err(refused(
            StatusCode::GATEWAY_TIMEOUT,
            "the program behind the port did not answer in time",
        )),
    }
}

/// The request as the program gets it: its path alone, and without what was for the service.
fn rewritten(
    request: Request,
    port: u16,
    mask: Option<&str>,
) -> Result<Request, axum::http::Error> {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query();
    parts.uri = Uri::builder()
        .path_and_query(path.map_or("/", |path| path.as_str()))
        .build()?;
    parts.version = Version::HTTP_11;
    for name in &OURS {
        parts.headers.remove(name);
    }
    if let Some(mask) = mask {
        let host = HeaderValue::from_str(&mask.replace("${PORT}", &port.to_string()))?;
        parts.headers.insert(header::HOST, host);
    }
    Ok(Request::from_parts(parts, body))
}

/// The answer as the client gets it.
fn returned(mut response: Response) -> Response {
    for name in &OURS {
        response.headers_mut().remove(name);
    }
    response
}

/// Connects to a port of the cage.
async fn connect(entry: &Entry, port: u16) -> Result<DuplexStream, ApiError> {
    let daemon = entry.running()?;
    let mut link = daemon.send(&DaemonRequest::Connect { port }).await?;
    match link.receive(Some(PATIENCE)).await? {
        Received::Reply(Reply::Connected) => {}
        _ => return Err(daemon.garbled("not a connection")),
    }
    let (ours, theirs) = tokio::io::duplex(CHUNK);
    tokio::spawn(pump(link, theirs));
    Ok(ours)
}

/// Passes bytes on, until the program has closed its side or the client is gone.
async fn pump(mut link: Link, stream: DuplexStream) {
    let (mut from, mut to) = tokio::io::split(stream);
    let mut buffer = vec![0; CHUNK];
    loop {
        tokio::select! {
            // The connection to the program is closed by this end only when nobody reads any more.
            read = from.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    let bytes = buffer.get(..count).unwrap_or_default();
                    if link.write(Kind::Data, bytes).await.is_err() {
                        return;
                    }
                }
            },
            received = link.receive(None) => match received {
                Ok(Received::Data(Kind::Data, bytes)) => {
                    if to.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_sees_its_own_path_and_nothing_of_the_service() {
        let request = Request::builder()
            .uri("http://3000-cabc.example.com/a?b=c")
            .header("host", "3000-cabc.example.com")
            .header("e2b-traffic-access-token", "secret")
            .header("connection", "close")
            .header("x-own", "1")
            .body(Body::empty())
            .unwrap();
        let rewritten = rewritten(request, 3000, Some("${PORT}-app.test")).unwrap();
        assert_eq!(rewritten.uri(), "/a?b=c");
        let names: Vec<_> = rewritten.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["host", "x-own"]);
        assert_eq!(rewritten.headers()["host"], "3000-app.test");
    }
}
