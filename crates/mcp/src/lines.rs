//! Messages on standard streams, one a line, each read in one way only.
//!
//! The transport of the SDK takes the last of two equal keys, and another reader the first. Here
//! such a message is refused before anything of it counts.

use rmcp::model::{ErrorCode, ErrorData, JsonRpcMessage};
use rmcp::service::{RxJsonRpcMessage, ServiceRole, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
};
use tokio::sync::Mutex;

/// Longest line. A result may be as long as the policy allows, and the policy allows less.
pub(crate) const LONGEST: usize = 64 << 20;

/// Most values of a message. Each takes many times the memory of its text: a long line of `1,1,1` would take gigabytes.
const MOST_VALUES: usize = 2 << 20;

/// How many values a message can have: separators and brackets that are not within text.
fn values(line: &[u8]) -> usize {
    let (mut within_text, mut escaped, mut found) = (false, false, 0);
    for byte in line {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if within_text => escaped = true,
            b'"' => within_text = !within_text,
            b',' | b'[' | b'{' if !within_text => found += 1,
            _ => {}
        }
    }
    found
}

pub(crate) struct Lines<R, W> {
    reader: BufReader<R>,
    line: Vec<u8>,
    writer: Arc<Mutex<Option<W>>>,
    /// Whether a message that cannot be read is answered, or only noted.
    answers: bool,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Lines<R, W> {
    /// Messages of a client, who is told about a message that cannot be read.
    pub(crate) fn of_client(reader: R, writer: W) -> Self {
        Lines {
            reader: BufReader::with_capacity(64 << 10, reader),
            line: Vec::new(),
            writer: Arc::new(Mutex::new(Some(writer))),
            answers: true,
        }
    }

    /// Messages of a server.
    pub(crate) fn of_server(reader: R, writer: W) -> Self {
        Lines {
            answers: false,
            ..Lines::of_client(reader, writer)
        }
    }

    /// The next line without its end. A line that is not finished stays for the next call.
    async fn next_line(&mut self) -> io::Result<bool> {
        loop {
            let buffer = self.reader.fill_buf().await?;
            if buffer.is_empty() {
                return Ok(false);
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let taken = end.unwrap_or(buffer.len());
            if self.line.len() + taken > LONGEST {
                return Err(io::Error::other("a message is too long"));
            }
            self.line
                .extend_from_slice(buffer.get(..taken).unwrap_or_default());
            let consumed = end.map_or(taken, |end| end + 1);
            std::pin::Pin::new(&mut self.reader).consume(consumed);
            if end.is_some() {
                return Ok(true);
            }
        }
    }
}

async fn write<W: AsyncWrite + Unpin>(writer: &Mutex<Option<W>>, line: &[u8]) -> io::Result<()> {
    let mut writer = writer.lock().await;
    let Some(writer) = writer.as_mut() else {
        return Err(io::ErrorKind::NotConnected.into());
    };
    writer.write_all(line).await?;
    writer.flush().await
}

/// A message, or the error and the ID of the message that it answers.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(line: &[u8]) -> Result<T, (ErrorData, Value)> {
    // A short one has few.
    if line.len() > MOST_VALUES && values(line) > MOST_VALUES {
        let text = "the message has too many values";
        let error = ErrorData::new(ErrorCode::INVALID_REQUEST, text, None);
        return Err((error, Value::Null));
    }
    let value = ironcage_tools::json::read(line).map_err(|error| {
        let reason = ironcage_model::ToolReason::MessageAmbiguous {
            error: error.to_string(),
        };
        let code = match error.classify() {
            serde_json::error::Category::Data => ErrorCode::INVALID_REQUEST,
            _ => ErrorCode::PARSE_ERROR,
        };
        let data = json!({"code": reason.code(), "reason": reason.to_string()});
        (
            ErrorData::new(code, reason.to_string(), Some(data)),
            Value::Null,
        )
    })?;
    let id = value.get("id").cloned().unwrap_or(Value::Null);
    serde_json::from_value(value).map_err(|_| {
        (
            ErrorData::new(ErrorCode::INVALID_REQUEST, "invalid request", None),
            id,
        )
    })
}

impl<Role, R, W> Transport<Role> for Lines<R, W>
where
    Role: ServiceRole,
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
    JsonRpcMessage<Role::PeerReq, Role::PeerResp, Role::PeerNot>: serde::de::DeserializeOwned,
{
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<Role>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let writer = self.writer.clone();
        let line = serde_json::to_vec(&item);
        async move {
            let mut line = line?;
            line.push(b'\n');
            write(&writer, &line).await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<Role>> {
        loop {
            match self.next_line().await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    anstream::eprintln!("ironcage: connection closed: {error}");
                    return None;
                }
            }
            let line = std::mem::take(&mut self.line);
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match parse(&line) {
                Ok(message) => return Some(message),
                Err((error, id)) if self.answers => {
                    let answer = json!({"jsonrpc": "2.0", "id": id, "error": error});
                    let mut line = answer.to_string().into_bytes();
                    line.push(b'\n');
                    // This future is dropped whenever the other side has something to say, and the
                    // answer must not be lost with it.
                    let writer = self.writer.clone();
                    tokio::spawn(async move {
                        // A client that is gone is noticed with the next read.
                        let _ = write(&writer, &line).await;
                    });
                }
                // Programs print other things than messages, too.
                Err((error, _)) if error.code == ErrorCode::PARSE_ERROR => {
                    anstream::eprintln!("ironcage: a server printed a line that is not a message");
                }
                // A request would wait for the answer that this was: whoever waits is told.
                Err((error, _)) => {
                    let message = ironcage_tools::printable(&error.message);
                    anstream::eprintln!("ironcage: connection to a server closed: {message}");
                    return None;
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.writer.lock().await.take();
        Ok(())
    }
}

/// Longest line of a server's standard error that is read at once.
const LONGEST_NOTE: u64 = 64 << 10;

/// Reads a buffered stream line by line and prints it with the name of its server. A line without
/// an end is read in parts.
pub(crate) async fn echo(name: String, mut stream: impl AsyncBufRead + Unpin) {
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut part = (&mut stream).take(LONGEST_NOTE);
        match part.read_until(b'\n', &mut line).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
        let text = String::from_utf8_lossy(&line);
        let text = ironcage_tools::one_line(text.trim_end_matches(['\n', '\r']));
        let text: String = text.chars().take(1000).collect();
        anstream::eprintln!("[{name}] {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_too_many_values_is_not_parsed_and_one_of_much_text_is() {
        let message = |inner: &str| format!("{{\"id\":1,\"text\":{inner}}}").into_bytes();
        let text = message(&format!("\"{}\\\"\"", "a,[{".repeat(MOST_VALUES)));
        assert_eq!(values(&text), 2);
        assert!(parse::<Value>(&text).is_ok());
        let list = message(&format!("[{}1]", "1,".repeat(MOST_VALUES)));
        assert_eq!(values(&list), MOST_VALUES + 3);
        let (error, _) = parse::<Value>(&list).unwrap_err();
        assert_eq!(error.code, ErrorCode::INVALID_REQUEST);
        assert!(parse::<Value>(&message("[1,1]")).is_ok());
    }
}
