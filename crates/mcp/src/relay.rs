//! The client of a server on HTTP: it runs in a cage that reaches this server and nothing else.
//!
//! The gateway talks to it as to any server on standard streams. The variable with the token holds a
//! placeholder; the egress proxy puts the token into requests to this server only.

use crate::error::{McpError, RelayError};
use crate::lines::LONGEST;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{IntoTransport, StreamableHttpClientTransport, Transport};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

pub(crate) async fn run(url: &str, token: Option<&str>) -> Result<(), McpError> {
    // A second installation only finds the first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let failed = |cause: RelayError| McpError::Relay {
        url: url.to_owned(),
        cause,
    };
    let mut config = StreamableHttpClientTransportConfig::with_uri(url.to_owned());
    if let Some(variable) = token {
        let value = std::env::var(variable);
        let value = value.map_err(|_| McpError::NoToken(variable.to_owned()))?;
        config = config.auth_header(value);
    }
    // A redirect would lead the token elsewhere.
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let client = client
        .build()
        .map_err(|error| failed(RelayError::Client(error)))?;
    let transport = StreamableHttpClientTransport::with_client(client, config);
    let mut transport = IntoTransport::<RoleClient, _, _>::into_transport(transport);
    let mut input = BufReader::new(tokio::io::stdin());
    let mut output = tokio::io::stdout();
    let mut line = Vec::new();
    loop {
        tokio::select! {
            read = input.read_until(b'\n', &mut line) => {
                match read {
                    Ok(0) => return Ok(()),
                    Ok(_) if line.len() > LONGEST => return Err(failed(RelayError::MessageTooLong)),
                    Ok(_) => {}
                    Err(error) => return Err(failed(RelayError::Input(error))),
                }
                let message: Result<ClientJsonRpcMessage, _> = serde_json::from_slice(&line);
                line.clear();
                let message = message.map_err(|error| failed(RelayError::Message(error)))?;
                let sent = transport.send(message).await;
                sent.map_err(|error| failed(RelayError::Send(Box::new(error))))?;
            }
            message = transport.receive() => {
                let Some(message): Option<ServerJsonRpcMessage> = message else {
                    return Ok(());
                };
                let mut text = serde_json::to_vec(&message)
                    .map_err(|error| failed(RelayError::Message(error)))?;
                text.push(b'\n');
                output.write_all(&text).await.map_err(McpError::Print)?;
                output.flush().await.map_err(McpError::Print)?;
            }
        }
    }
}
