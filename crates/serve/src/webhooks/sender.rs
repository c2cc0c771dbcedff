//! One attempt to deliver: resolve, check, connect, prove the server, sign, send.

use super::Webhook;
use super::url::not_public;
use crate::store::Delivery;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use sha2::Sha256;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

/// How long one attempt may take, from the name to the status.
const PATIENCE: Duration = Duration::from_secs(15);
/// Bytes of the header of an answer.
const LONGEST_HEADER: usize = 64 * 1024;

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("cannot resolve {host}")]
    Resolve { host: String, source: io::Error },
    #[error("{host} is at {address} ({why}), which webhooks of this key do not reach")]
    Address {
        host: String,
        address: IpAddr,
        why: &'static str,
    },
    #[error("cannot connect to {host}")]
    Connect { host: String, source: io::Error },
    #[error("this host has no certificate authorities")]
    NoAuthorities,
    #[error("cannot set TLS up")]
    Tls(#[from] rustls::Error),
    #[error("{host} is not a name that a certificate can have")]
    Name {
        host: String,
        source: InvalidDnsNameError,
    },
    #[error("the secret of the webhook is not valid")]
    Secret,
    #[error("cannot write the request")]
    Request(#[from] axum::http::Error),
    #[error("the receiver did not answer in HTTP")]
    Http(#[from] hyper::Error),
    #[error("the receiver answered {0}")]
    Status(StatusCode),
    #[error("the receiver did not answer within {} s", PATIENCE.as_secs())]
    Timeout,
}

/// What speaks TLS to receivers, which have to prove their names.
#[derive(Debug, Default)]
pub(super) struct Authorities(OnceLock<Arc<ClientConfig>>);

impl Authorities {
    /// Reads the certificate authorities of this host once; `SSL_CERT_FILE` names others.
    fn config(&self) -> Result<Arc<ClientConfig>, SendError> {
        if let Some(config) = self.0.get() {
            return Ok(Arc::clone(config));
        }
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(SendError::NoAuthorities);
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let mut config = builder
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::clone(self.0.get_or_init(|| Arc::new(config))))
    }
}

/// The signature of a delivery, as "Standard Webhooks" has it.
pub(super) fn signature(secret: &str, id: &str, time: u64, body: &str) -> Option<String> {
    let key = BASE64.decode(secret).ok()?;
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).ok()?;
    mac.update(format!("{id}.{time}.{body}").as_bytes());
    Some(format!("v1,{}", BASE64.encode(mac.finalize().into_bytes())))
}

/// Sends a delivery. Only a status of 2xx is a success: redirects are not followed, as they would
/// lead where nobody checked.
pub(super) async fn send(
    authorities: &Authorities,
    webhook: &Webhook,
    delivery: &Delivery,
) -> Result<(), SendError> {
    match tokio::time::timeout(PATIENCE, attempt(authorities, webhook, delivery)).await {
        Ok(Ok(status)) if status.is_success() => Ok(()),
        Ok(Ok(status)) => Err(SendError::Status(status)),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(SendError::Timeout),
    }
}

async fn attempt(
    authorities: &Authorities,
    webhook: &Webhook,
    delivery: &Delivery,
) -> Result<StatusCode, SendError> {
    let request = request(webhook, delivery)?;
    let stream = connect(webhook).await?;
    if !webhook.url.tls {
        return exchange(stream, request).await;
    }
    let host = webhook.url.host.clone();
    let name = ServerName::try_from(host.clone());
    let name = name.map_err(|source| SendError::Name {
        host: host.clone(),
        source,
    })?;
    let connector = TlsConnector::from(authorities.config()?);
    let stream = connector.connect(name, stream).await;
    let stream = stream.map_err(|source| SendError::Connect { host, source })?;
    exchange(stream, request).await
}

/// The addresses of a receiver: all of them are ones that this webhook may have, so that a name which
/// is at several does not choose by luck.
async fn addresses(webhook: &Webhook) -> Result<Vec<SocketAddr>, SendError> {
    let (host, port) = (&webhook.url.host, webhook.url.port);
    let failed = |source| SendError::Resolve {
        host: host.clone(),
        source,
    };
    let found: Vec<SocketAddr> = lookup_host((host.as_str(), port))
        .await
        .map_err(failed)?
        .collect();
    let barred = found
        .iter()
        .find_map(|at| not_public(at.ip()).map(|why| (at.ip(), why)));
    match barred {
        Some((address, why)) if !webhook.any_address => Err(SendError::Address {
            host: host.clone(),
            address,
            why,
        }),
        _ => Ok(found),
    }
}

/// Connects to the addresses that were checked: the name is not resolved a second time.
async fn connect(webhook: &Webhook) -> Result<TcpStream, SendError> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no addresses");
    for address in addresses(webhook).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(SendError::Connect {
        host: webhook.url.host.clone(),
        source: last,
    })
}

fn request(webhook: &Webhook, delivery: &Delivery) -> Result<Request<Body>, SendError> {
    let time = crate::clock::now() / 1_000_000;
    let signature = signature(&webhook.secret, &delivery.id, time, &delivery.body);
    Ok(Request::builder()
        .method("POST")
        .uri(&webhook.url.path)
        .header(header::HOST, webhook.url.authority())
        .header(header::CONTENT_TYPE, "application/json")
        .header(
            header::USER_AGENT,
            concat!("ironcage/", env!("CARGO_PKG_VERSION")),
        )
        .header(header::CONNECTION, "close")
        .header("webhook-id", &delivery.id)
        .header("webhook-timestamp", time)
        .header("webhook-signature", signature.ok_or(SendError::Secret)?)
        .body(Body::from(delivery.body.clone()))?)
}

/// Sends the request and waits for the status. What the receiver says besides is not read.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Body>,
) -> Result<StatusCode, SendError> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(LONGEST_HEADER);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let (mut answer, connection) = (pin!(sender.send_request(request)), pin!(connection));
    let answer = tokio::select! {
        biased;
        answer = &mut answer => answer,
        // It ended together with the answer, or before one.
        _ = connection => answer.await,
    };
    Ok(answer?.status())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhooks::{NewWebhook, Webhooks};
    use std::collections::BTreeSet;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    #[test]
    fn a_signature_is_that_of_standard_webhooks() {
        // The example of its specification.
        let signed = signature(
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            "{\"test\": 2432232314}",
        );
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(signed.as_deref(), Some(expected));
        assert_eq!(signature("not base64!", "id", 1, ""), None);
    }

    fn webhook(url: &str, any_address: bool) -> (tempfile::TempDir, Webhook) {
        let data = tempfile::tempdir().unwrap();
        let new = NewWebhook {
            project: "team".to_owned(),
            url: url.parse().unwrap(),
            events: BTreeSet::new(),
            any_address,
            operator: false,
        };
        let made = Webhooks::in_data(data.path()).create(new).unwrap();
        (data, made)
    }

    fn delivery() -> Delivery {
        Delivery {
            id: "evt_1".to_owned(),
            webhook: String::new(),
            project: "team".to_owned(),
            body: "{\"a\":1}".to_owned(),
        }
    }

    /// A receiver that answers once: its port, and what it got.
    async fn receiver(answer: &'static str) -> (u16, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let got = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut got = Vec::new();
            while !got.ends_with(b"{\"a\":1}") {
                let mut buffer = [0; 1024];
                let count = stream.read(&mut buffer).await.unwrap();
                assert_ne!(count, 0);
                got.extend_from_slice(&buffer[..count]);
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(got).unwrap()
        });
        (port, got)
    }

    #[tokio::test]
    async fn a_delivery_is_signed_and_only_2xx_is_a_success() {
        let (port, got) = receiver("HTTP/1.1 204 No Content\r\n\r\n").await;
        let (_data, hook) = webhook(&format!("http://127.0.0.1:{port}/in?a=b"), true);
        send(&Authorities::default(), &hook, &delivery())
            .await
            .unwrap();
        let got = got.await.unwrap();
        assert!(got.starts_with("POST /in?a=b HTTP/1.1\r\n"), "{got}");
        let field = |name: &str| {
            let line = got.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name}: {got}"))
                .to_owned()
        };
        let time = field("webhook-timestamp: ").parse().unwrap();
        let expected = signature(&hook.secret, "evt_1", time, "{\"a\":1}").unwrap();
        assert_eq!(field("webhook-signature: "), expected);
        assert_eq!(field("host: "), format!("127.0.0.1:{port}"));
        for (answer, why) in [
            (
                "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n",
                "302",
            ),
            (
                "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
                "500",
            ),
            ("garbage\r\n\r\n", "HTTP"),
            ("", "HTTP"),
        ] {
            let (port, _) = receiver(answer).await;
            let (_data, hook) = webhook(&format!("http://127.0.0.1:{port}/"), true);
            let error = send(&Authorities::default(), &hook, &delivery()).await;
            assert!(error.unwrap_err().to_string().contains(why), "{answer}");
        }
    }

    #[tokio::test]
    async fn a_webhook_of_a_tenant_does_not_reach_the_host_by_any_name() {
        let (port, got) = receiver("HTTP/1.1 204 No Content\r\n\r\n").await;
        for host in [
            "127.0.0.1",
            "localhost",
            "2130706433",
            "0x7f.1",
            "[::ffff:127.0.0.1]",
        ] {
            let (_data, hook) = webhook(&format!("http://{host}:{port}/"), false);
            let refused = send(&Authorities::default(), &hook, &delivery()).await;
            let refused = refused.unwrap_err();
            assert!(
                matches!(refused, SendError::Address { .. }),
                "{host}: {refused}"
            );
        }
        assert!(!got.is_finished());
        let (_data, hook) = webhook(&format!("http://localhost:{port}/"), true);
        send(&Authorities::default(), &hook, &delivery())
            .await
            .unwrap();
        got.await.unwrap();
    }
}
