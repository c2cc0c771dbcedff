//! One request and its response after the other, with bodies that stream.
//!
//! The next request is read only when the response before it is over: there is no doubt which
//! answer belongs to which, and no request hides behind another.

use super::head::{self, Framing, Refused, Request};
use super::judge::{Asked, Judge, Passed, refusal};
use super::passing::Passing;
use crate::books::Counts;
use crate::secret::Stopped;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::timeout;

/// How long a client may take for a head that it has begun.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);
/// How long a connection without a request is kept.
const IDLE_PATIENCE: Duration = Duration::from_secs(300);
/// How long a client may be silent in the middle of a body.
const BODY_PATIENCE: Duration = Duration::from_secs(300);
/// Bytes read in one go.
const PART: usize = 16 * 1024;
/// Longest line before a chunk, and longest part after the last one.
const LONGEST_LINE: usize = 1024;
const LONGEST_TRAILER: usize = 16 * 1024;

/// A reader that keeps what was read and not used.
#[derive(Debug)]
pub(crate) struct Source<R> {
    inner: R,
    buffer: Vec<u8>,
    /// How long it may be silent in the middle of a body.
    patience: Option<Duration>,
}

impl<R: AsyncRead + Unpin> Source<R> {
    fn new(inner: R, buffer: Vec<u8>) -> Self {
        Source {
            inner,
            buffer,
            patience: None,
        }
    }

    /// Reads more of a body. `false` at the end.
    async fn more(&mut self) -> io::Result<bool> {
        let Some(patience) = self.patience else {
            return self.fill().await;
        };
        match timeout(patience, self.fill()).await {
            Ok(more) => more,
            Err(_) => Err(io::Error::other(Stopped {
                reason: "the body of the request did not come in time".into(),
            })),
        }
    }

    /// Reads more. `false` at the end.
    async fn fill(&mut self) -> io::Result<bool> {
        // Not by way of an array: it would be a part of every connection's state.
        self.buffer.reserve(PART);
        Ok(self.inner.read_buf(&mut self.buffer).await? > 0)
    }

    /// Drops what was used.
    fn used(&mut self, length: usize) {
        self.buffer.drain(..length.min(self.buffer.len()));
    }

    /// A line, without its end.
    async fn line(&mut self, longest: usize) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                let line = self.buffer.get(..at).unwrap_or_default().to_vec();
                self.used(at + 2);
                return Ok(line);
            }
            if self.buffer.len() > longest || !self.more().await? {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }
}

/// The cage's side of a connection.
#[derive(Debug)]
pub(crate) struct Client<S> {
    reader: Source<ReadHalf<S>>,
    writer: WriteHalf<S>,
}

impl<S: AsyncRead + AsyncWrite> Client<S> {
    /// `seen` was read from the stream before.
    pub(crate) fn new(stream: S, seen: Vec<u8>) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Client {
            reader: Source {
                patience: Some(BODY_PATIENCE),
                ..Source::new(reader, seen)
            },
            writer,
        }
    }

    /// The next request, which stays in the buffer's front until its head is used up. `None`
    /// where there is no other.
    pub(crate) async fn request(
        &mut self,
        judge: &Judge,
    ) -> io::Result<Result<Option<(Request, Passed)>, Refused>> {
        loop {
            let patience = if self.reader.buffer.is_empty() {
                IDLE_PATIENCE
            } else {
                HEAD_PATIENCE
            };
            match head::request(&self.reader.buffer, &judge.authority) {
                Err(refused) => {
                    judge.refuse(None, &refused);
                    return Ok(Err(refused));
                }
                Ok(Some((mut request, length))) => {
                    self.reader.used(length);
                    if let Err(refused) = judge.refresh(&request.fields).await {
                        return Ok(Err(refused));
                    }
                    let passed = judge.judge(Asked {
                        method: &request.method,
                        target: &mut request.target,
                        fields: &mut request.fields,
                    });
                    return Ok(passed.map(|passed| Some((request, passed))));
                }
                Ok(None) => {}
            }
            match timeout(patience, self.reader.fill()).await {
                Ok(Ok(true)) => {}
                // Asleep in the middle of a head.
                Err(_) if !self.reader.buffer.is_empty() => {
                    let refused = Refused::new(408, "the request did not come in time");
                    judge.refuse(None, &refused);
                    return Ok(Err(refused));
                }
                // Gone, or asleep.
                Ok(Ok(false)) | Err(_) => return Ok(Ok(None)),
                Ok(Err(error)) => return Err(error),
            }
        }
    }

    /// Answers a request that does not go on, and ends the connection.
    pub(crate) async fn refuse(&mut self, refused: &Refused) -> io::Result<()> {
        self.writer.write_all(&refuse(refused)).await?;
        self.writer.shutdown().await?;
        // What the client still sends would turn the answer into a reset.
        let drain = async {
            while let Ok(true) = self.reader.fill().await {
                self.reader.buffer.clear()
            }
        };
        let _ = timeout(Duration::from_secs(1), drain).await;
        Ok(())
    }
}

/// The answer to a request that does not go on, in words that a program can read.
fn refuse(refused: &Refused) -> Vec<u8> {
    let status = refused.status;
    let words = match status {
        403 => "Forbidden",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        505 => "HTTP Version Not Supported",
        _ => "Bad Request",
    };
    let body = refusal(refused);
    format!(
        "HTTP/1.1 {status} {words}\r\ncontent-type: application/json\r\nx-ironcage: refused\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Carries requests to a server, the first of which was read before, until there is no other.
pub(crate) async fn carry<C, S>(
    client: &mut Client<C>,
    server: S,
    first: (Request, Passed),
    (judge, counts): (&Judge, &Counts),
) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite,
    S: AsyncRead + AsyncWrite,
{
    let (reader, mut writer) = tokio::io::split(server);
    let mut answers = Source::new(reader, Vec::new());
    let (mut request, mut passed) = first;
    let mut is_first = true;
    loop {
        if let Some(refused) = over_a_limit(&request, counts, is_first) {
            judge.stop(&passed, &refused);
            return client.refuse(&refused).await;
        }
        is_first = false;
        let held = match hold(client, &mut request, judge).await? {
            Ok(held) => held,
            Err(refused) => {
                judge.stop(&passed, &refused);
                return client.refuse(&refused).await;
            }
        };
        let asked = (
            request.method.as_str(),
            request.target.as_str(),
            &request.fields,
        );
        match judge.sign(asked, held.as_deref()) {
            Ok(Some((target, fields))) => (request.target, request.fields) = (target, fields),
            Ok(None) => {}
            Err(refused) => {
                judge.stop(&passed, &refused);
                return client.refuse(&refused).await;
            }
        }
        let head = request.written(&judge.authority);
        counts.send(head.len() as u64)?;
        writer.write_all(&head).await?;
        let body = Cell::new(0_u64);
        let outcome = {
            let sent = |bytes| {
                body.set(body.get().saturating_add(bytes));
                counts.body(body.get())?;
                counts.send(bytes)
            };
            let upload = async {
                let mut passing = judge.way_out(&request.fields, held.is_some());
                let Some(held) = held else {
                    let reader = &mut client.reader;
                    return copy(reader, &mut writer, request.framing, passing, sent).await;
                };
                sent(held.len() as u64)?;
                writer.write_all(&held).await?;
                writer.flush().await?;
                passing.went(&held);
                Ok(())
            };
            let writer = &mut client.writer;
            let download = answer(&mut answers, writer, (&request, &passed), (judge, counts));
            exchange(upload, download).await
        };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                judge.broke(&passed, &error);
                return Err(error);
            }
        };
        match outcome {
            Outcome::Next => {}
            Outcome::Last => {
                client.writer.shutdown().await?;
                return Ok(());
            }
            Outcome::Refused(refused) => {
                judge.unanswered(&passed, &refused.reason);
                return client.refuse(&refused).await;
            }
            Outcome::Switched => {
                let sent = |bytes| counts.send(bytes);
                let received = |bytes| {
                    counts.received(bytes);
                    Ok(())
                };
                let (out, back) = judge.both_ways();
                crate::relay::both(
                    to_the_end(&mut client.reader, &mut writer, out, sent),
                    to_the_end(&mut answers, &mut client.writer, back, received),
                )
                .await?;
                return Ok(());
            }
        }
        match client.request(judge).await? {
            Ok(Some(next)) => (request, passed) = next,
            Ok(None) => return Ok(()),
            Err(refused) => return client.refuse(&refused).await,
        }
    }
}

/// Reads a small body before its request goes on, where secrets make that necessary.
async fn hold<C: AsyncRead + AsyncWrite>(
    client: &mut Client<C>,
    request: &mut Request,
    judge: &Judge,
) -> io::Result<Result<Option<Vec<u8>>, Refused>> {
    let length = match request.framing {
        Framing::Length(length) => Some(length),
        Framing::Empty => Some(0),
        Framing::Chunked | Framing::ToTheEnd => None,
    };
    let asked = (
        request.method.as_str(),
        request.target.as_str(),
        &request.fields,
    );
    let _room = match judge.holds_body(asked, length) {
        Ok(Some(room)) => room,
        Ok(None) => return Ok(Ok(None)),
        Err(refused) => return Ok(Err(refused)),
    };
    let (Some(length), Some(dealing)) = (length, &judge.dealing) else {
        return Ok(Ok(None));
    };
    if request.fields.iter().any(|(name, _)| name == "expect") {
        request.fields.retain(|(name, _)| name != "expect");
        client
            .writer
            .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
            .await?;
        client.writer.flush().await?;
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    while client.reader.buffer.len() < length {
        match timeout(HEAD_PATIENCE, client.reader.fill()).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                let reason = "the body of the request did not come in time";
                return Ok(Err(Refused::new(408, reason)));
            }
        }
    }
    let mut body = client
        .reader
        .buffer
        .get(..length)
        .unwrap_or_default()
        .to_vec();
    client.reader.used(length);
    Ok(dealing.body(&request.fields, &mut body).map(|()| {
        request.framing = Framing::Length(body.len() as u64);
        Some(body)
    }))
}

/// Why a request does not go on, where there are too many or its body is too long.
fn over_a_limit(request: &Request, counts: &Counts, first: bool) -> Option<Refused> {
    let body = match request.framing {
        Framing::Length(length) => Some(length),
        _ => None,
    };
    if let Err(denied) = counts.requests(first) {
        return Some(Refused::new(429, denied.reason));
    }
    let denied = counts.says_body(body.unwrap_or(0)).err()?;
    Some(Refused::new(413, denied.reason))
}

/// What follows a response.
#[derive(Debug)]
enum Outcome {
    /// Another request may.
    Next,
    /// Nothing.
    Last,
    /// Bytes of another protocol.
    Switched,
    /// Nothing: the server's answer was none.
    Refused(Refused),
}

/// A request's body goes while its response comes. A response that is over before the body is
/// ends the connection.
async fn exchange(
    upload: impl Future<Output = io::Result<()>>,
    download: impl Future<Output = io::Result<Outcome>>,
) -> io::Result<Outcome> {
    let (mut upload, mut download) = (pin!(upload), pin!(download));
    let mut sent = false;
    poll_fn(move |context| {
        if !sent && let Poll::Ready(result) = upload.as_mut().poll(context) {
            result?;
            sent = true;
        }
        match download.as_mut().poll(context) {
            Poll::Ready(Ok(Outcome::Next)) if !sent => Poll::Ready(Ok(Outcome::Last)),
            other => other,
        }
    })
    .await
}

/// Reads the response to a request and passes it on.
async fn answer<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    source: &mut Source<R>,
    sink: &mut W,
    (request, passed): (&Request, &Passed),
    (judge, counts): (&Judge, &Counts),
) -> io::Result<Outcome> {
    loop {
        let (mut response, length) = loop {
            match head::response(&source.buffer, request) {
                Ok(Some(found)) => break found,
                Ok(None) => {}
                Err(refused) => return Ok(Outcome::Refused(refused)),
            }
            if !source.fill().await? {
                let reason = "the server closed the connection without an answer";
                return Ok(Outcome::Refused(Refused::new(502, reason)));
            }
        };
        source.used(length);
        if let Err(refused) = judge.answer(&mut response.fields) {
            return Ok(Outcome::Refused(refused));
        }
        let last = response.last || request.last;
        let head = response.written(last);
        sink.write_all(&head).await?;
        counts.received(head.len() as u64);
        if response.status == 101 || response.status >= 200 {
            judge.answered(passed, response.status);
            counts.tell_request(&request.method, &request.target, response.status);
        }
        if response.status == 101 {
            sink.flush().await?;
            return Ok(Outcome::Switched);
        }
        if response.status < 200 {
            sink.flush().await?;
            continue;
        }
        let passing = judge.way_back(response.status, &response.fields);
        copy(source, sink, response.framing, passing, |bytes| {
            counts.received(bytes);
            Ok(())
        })
        .await?;
        return Ok(if last { Outcome::Last } else { Outcome::Next });
    }
}

/// Carries a body of known length; chunks are read and made anew.
async fn copy<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    source: &mut Source<R>,
    sink: &mut W,
    framing: Framing,
    mut passing: Passing,
    count: impl Fn(u64) -> io::Result<()>,
) -> io::Result<()> {
    match framing {
        Framing::Empty => {}
        Framing::Length(length) => {
            exactly(source, sink, length, false, (&mut passing, &count)).await?;
            let rest = passing.rest();
            sink.write_all(&rest).await?;
            passing.went(&rest);
        }
        Framing::Chunked => {
            loop {
                let line = source.line(LONGEST_LINE).await?;
                let size = chunk_size(&line).ok_or(io::ErrorKind::InvalidData)?;
                if size == 0 {
                    break;
                }
                exactly(source, sink, size, true, (&mut passing, &count)).await?;
                if !source.line(2).await?.is_empty() {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
            let mut trailer = 0;
            loop {
                let line = source.line(LONGEST_TRAILER).await?;
                trailer += line.len();
                if trailer > LONGEST_TRAILER {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                if line.is_empty() {
                    break;
                }
            }
            let rest = passing.rest();
            write_chunk(sink, &rest).await?;
            passing.went(&rest);
            sink.write_all(b"0\r\n\r\n").await?;
        }
        Framing::ToTheEnd => return to_the_end(source, sink, passing, count).await,
    }
    sink.flush().await
}

async fn write_chunk<W: AsyncWrite + Unpin>(sink: &mut W, part: &[u8]) -> io::Result<()> {
    if part.is_empty() {
        return Ok(());
    }
    sink.write_all(format!("{:x}\r\n", part.len()).as_bytes())
        .await?;
    sink.write_all(part).await?;
    sink.write_all(b"\r\n").await
}

/// The size that a line before a chunk says. What may follow it is dropped.
pub(crate) fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii_end();
    let plain = (1..=15).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(digits).ok()?;
    plain.then(|| u64::from_str_radix(text, 16).ok())?
}

async fn exactly<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    source: &mut Source<R>,
    sink: &mut W,
    mut left: u64,
    chunked: bool,
    (passing, count): (&mut Passing, &impl Fn(u64) -> io::Result<()>),
) -> io::Result<()> {
    while left > 0 {
        if source.buffer.is_empty() && !source.more().await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX);
        let length = source.buffer.len().min(most);
        count(length as u64)?;
        let part = source.buffer.get(..length).unwrap_or_default();
        let part = passing.part(part)?;
        match chunked {
            true => write_chunk(sink, &part).await?,
            false => sink.write_all(&part).await?,
        }
        left -= length as u64;
        if source.buffer.len() == length {
            // As it comes: events of a stream are not held back.
            sink.flush().await?;
        }
        passing.went(&part);
        source.used(length);
    }
    Ok(())
}

async fn to_the_end<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    source: &mut Source<R>,
    sink: &mut W,
    mut passing: Passing,
    count: impl Fn(u64) -> io::Result<()>,
) -> io::Result<()> {
    loop {
        if source.buffer.is_empty() && !source.fill().await? {
            let rest = passing.rest();
            sink.write_all(&rest).await?;
            passing.went(&rest);
            // The other side may be gone already.
            let _ = sink.shutdown().await;
            return Ok(());
        }
        let part = std::mem::take(&mut source.buffer);
        count(part.len() as u64)?;
        let part = passing.part(&part)?;
        sink.write_all(&part).await?;
        sink.flush().await?;
        passing.went(&part);
    }
}

#[cfg(test)]
mod tests;
