//! MCP on HTTP, for the gateway and for Ironcage's own server: bearer token, Host, Origin, bounded bodies, and JSON that is read in one
//! way only.

use crate::error::{McpError, ParseError};
use crate::settings::hex;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use ironcage_command::mcp::Listen;
use rmcp::ServerHandler;
use rmcp::model::ProtocolVersion;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Largest request.
const LARGEST: usize = 4 << 20;
/// How long the head of a request may take to arrive, and how long its body.
const ARRIVES: Duration = Duration::from_secs(30);
/// Shortest token.
const SHORTEST_TOKEN: usize = 16;

/// What answers requests.
pub(crate) trait HttpServer: ServerHandler + Clone {
    /// Waits until it knows its tools: headers of requests without a session are compared with their schemas.
    fn knows_its_tools(&self) -> impl Future<Output = ()> + Send;
}

type Service<S> = StreamableHttpService<S, LocalSessionManager>;
type Body = http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>;

/// Ends when the program is asked to.
pub(crate) async fn asked_to_end() {
    let Ok(mut term) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

/// Answers clients until the program is asked to end.
pub(crate) async fn serve<S: HttpServer>(
    server: S,
    address: SocketAddr,
    args: &Listen,
) -> Result<(), McpError> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| McpError::Listen(address, error))?;
    let address = listener
        .local_addr()
        .map_err(|error| McpError::Listen(address, error))?;
    let token = match &args.token_file {
        Some(path) => Some(read_token(path)?),
        None => None,
    };
    let (token, told) = match token {
        Some(token) => (token, String::new()),
        None => {
            let token = new_token()?;
            let told = format!("; bearer token {token}");
            (token, told)
        }
    };
    let hosts = [
        "localhost".to_owned(),
        address.ip().to_string(),
        address.to_string(),
    ];
    let config = StreamableHttpServerConfig::default()
        .with_allowed_hosts(hosts)
        .with_allowed_origins(args.allow_origin.clone())
        .with_max_request_body_bytes(LARGEST);
    // Without origins in the list, a request from a web page is refused.
    let config = match args.allow_origin.is_empty() {
        true => config.enforce_origin_validation(),
        false => config,
    };
    let sessions = server.clone();
    let service = StreamableHttpService::new(
        move || Ok(sessions.clone()),
        Arc::new(LocalSessionManager::default()),
        config,
    );
    anstream::eprintln!("ironcage: listening on http://{address}/mcp{told}");
    let token = Arc::new(token);
    loop {
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                // One client that failed, or no descriptor left for a moment.
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = asked_to_end() => return Ok(()),
        };
        let _ = stream.set_nodelay(true);
        let (server, service, token) = (server.clone(), service.clone(), token.clone());
        tokio::spawn(async move {
            let answer = hyper::service::service_fn(move |request| {
                let (server, service, token) = (server.clone(), service.clone(), token.clone());
                async move {
                    let answered = answer(&server, service, &token, request).await;
                    Ok::<_, std::convert::Infallible>(answered)
                }
            });
            let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            builder
                .http1()
                .timer(TokioTimer::new())
                .header_read_timeout(ARRIVES);
            let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

fn new_token() -> Result<String, McpError> {
    let mut seed = [0; 32];
    crate::settings::random(&mut seed)?;
    Ok(hex(&seed))
}

fn read_token(path: &Path) -> Result<String, McpError> {
    let text = ironcage_files::read_text(path, 4096, ironcage_files::Links::Follow);
    let text = text.map_err(|error| McpError::Parse {
        path: path.to_owned(),
        cause: ParseError::Unreadable(error),
    })?;
    let token = text.trim().to_owned();
    match token.len() >= SHORTEST_TOKEN {
        true => Ok(token),
        false => Err(McpError::ShortToken(path.to_owned())),
    }
}

fn refused(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(text.to_owned())).boxed());
    *response.status_mut() = status;
    if status == StatusCode::UNAUTHORIZED {
        let value = header::HeaderValue::from_static("Bearer");
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, value);
    }
    response
}

fn has_token(request: &Request<Incoming>, token: &str) -> bool {
    let given = request.headers().get(header::AUTHORIZATION);
    let given = given.and_then(|value| value.to_str().ok());
    let Some((scheme, given)) = given.and_then(|value| value.split_once(' ')) else {
        return false;
    };
    scheme.eq_ignore_ascii_case("bearer") && bool::from(given.as_bytes().ct_eq(token.as_bytes()))
}

/// Whether the request says that it stands for itself.
fn is_stateless(headers: &header::HeaderMap) -> bool {
    let version = headers.get("mcp-protocol-version");
    let version = version.and_then(|version| version.to_str().ok());
    version == Some(ProtocolVersion::V_2026_07_28.as_str())
}

async fn answer<S: HttpServer>(
    server: &S,
    service: Service<S>,
    token: &str,
    request: Request<Incoming>,
) -> Response<Body> {
    if !has_token(&request, token) {
        return refused(StatusCode::UNAUTHORIZED, "missing or wrong bearer token");
    }
    if request.uri().path() != "/mcp" {
        return refused(StatusCode::NOT_FOUND, "the endpoint is /mcp");
    }
    let (mut parts, body) = request.into_parts();
    // The token is ours: no handler and no server sees it.
    parts.headers.remove(header::AUTHORIZATION);
    let body = Limited::new(body, LARGEST).collect();
    let body = match tokio::time::timeout(ARRIVES, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Err(_) => return refused(StatusCode::REQUEST_TIMEOUT, "the request did not arrive"),
        Ok(Err(_)) => return refused(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large"),
    };
    if !body.is_empty()
        && let Err(error) = ironcage_tools::json::read(&body)
        && error.classify() == serde_json::error::Category::Data
    {
        let reason = ironcage_model::ToolReason::MessageAmbiguous {
            error: error.to_string(),
        };
        let text = format!("{reason} [{}]", reason.code());
        return refused(StatusCode::BAD_REQUEST, &text);
    }
    if is_stateless(&parts.headers) {
        server.knows_its_tools().await;
    }
    let request = Request::from_parts(parts, Full::new(body));
    service.handle(request).await
}
