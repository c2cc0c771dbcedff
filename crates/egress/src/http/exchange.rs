//! One request and its response after the other, with bodies that stream.
//!
//! The next request is read only when the response before it is over: there is no doubt which
//! answer belongs to which, and no request hides behind another.

use super::body_stream::{Source, copy, to_the_end};
use super::head::{self, Framing, Refused, Request};
use super::judge::{Judge, RequestRecord, refusal};
use super::pipeline::{AuthorisedRequest, NotSent, RequestBody};
use crate::traffic_log::Counts;
use ironcage_model::NetworkReason;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::timeout;

/// How long a client may take for a head that it has begun.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);
/// How long a connection without a request is kept.
const IDLE_PATIENCE: Duration = Duration::from_secs(300);
/// How long a client may be silent in the middle of a body.
const BODY_PATIENCE: Duration = Duration::from_secs(300);
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
    ) -> io::Result<Result<Option<(Request, AuthorisedRequest)>, Refused>> {
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
                    let parts = std::mem::take(&mut request.parts);
                    let authorised = judge.authorise(parts).await;
                    return Ok(authorised.map(|authorised| Some((request, authorised))));
                }
                Ok(None) => {}
            }
            match timeout(patience, self.reader.fill()).await {
                Ok(Ok(true)) => {}
                // Asleep in the middle of a head.
                Err(_) if !self.reader.buffer.is_empty() => {
                    let refused = Refused::new(408, NetworkReason::RequestTimeout);
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
    first: (Request, AuthorisedRequest),
    (judge, counts): (&Judge, &Counts),
) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite,
    S: AsyncRead + AsyncWrite,
{
    let (reader, mut writer) = tokio::io::split(server);
    let mut answers = Source::new(reader, Vec::new());
    let (mut request, mut authorised) = first;
    let mut is_first = true;
    loop {
        let limits = (counts, std::mem::take(&mut is_first));
        let mut body = ClientBody {
            framing: request.framing,
            client: &mut *client,
        };
        let upstream = match judge.prepare(authorised, limits, &mut body).await {
            Ok(upstream) => upstream,
            Err(NotSent::Refused(refused)) => return client.refuse(&refused).await,
            Err(NotSent::Broken(error)) => return Err(error),
        };
        let (held, record) = (upstream.body, upstream.record);
        request.parts = upstream.parts;
        if let Some(held) = &held {
            request.framing = Framing::Length(held.upstream().len() as u64);
        }
        let head = request.written(&judge.authority, judge.takes_urls.get());
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
                let mut passing = judge.way_out(&request.parts.fields, held.is_some());
                let Some(held) = held else {
                    let reader = &mut client.reader;
                    return copy(reader, &mut writer, request.framing, passing, sent).await;
                };
                sent(held.upstream().len() as u64)?;
                writer.write_all(held.upstream()).await?;
                writer.flush().await?;
                passing.went(held.as_sent());
                Ok(())
            };
            let writer = &mut client.writer;
            let download = answer(&mut answers, writer, (&request, &record), (judge, counts));
            exchange(upload, download).await
        };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                judge.broke(&record, &error);
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
                judge.unanswered(&record, refused.reason.clone());
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
            Ok(Some(next)) => (request, authorised) = next,
            Ok(None) => return Ok(()),
            Err(refused) => return client.refuse(&refused).await,
        }
    }
}

/// The body of a request that is still to be read from its client.
struct ClientBody<'a, C> {
    framing: Framing,
    client: &'a mut Client<C>,
}

impl<C: AsyncRead + AsyncWrite> RequestBody for ClientBody<'_, C> {
    fn length(&self) -> Option<u64> {
        match self.framing {
            Framing::Length(length) => Some(length),
            Framing::Empty => Some(0),
            Framing::Chunked | Framing::ToTheEnd => None,
        }
    }

    async fn read(&mut self, length: usize, expects: bool) -> Result<Vec<u8>, NotSent> {
        let Client { reader, writer } = &mut *self.client;
        if expects {
            writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
            writer.flush().await?;
        }
        while reader.buffer.len() < length {
            match timeout(HEAD_PATIENCE, reader.fill()).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => {
                    return Err(Refused::new(408, NetworkReason::BodyTimeout).into());
                }
            }
        }
        let body = reader.buffer.get(..length).unwrap_or_default().to_vec();
        reader.used(length);
        Ok(body)
    }
}

/// What follows a response.
#[derive(Debug)]
enum Outcome {
    /// Another request may.
    Next,
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
    (request, record): (&Request, &RequestRecord),
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
                let refused = Refused::new(502, NetworkReason::NoAnswer);
                return Ok(Outcome::Refused(refused));
            }
        };
        source.used(length);
        if judge.takes_urls.get() {
            if response.status == 407 {
                let reason = NetworkReason::UpstreamCredentials;
                return Ok(Outcome::Refused(Refused::new(502, reason)));
            }
            // The proxy's own name.
            response.fields.retain(|(name, _)| name != "via");
        }
        if let Err(refused) = judge.answer(&mut response.fields) {
            return Ok(Outcome::Refused(refused));
        }
        let last = response.last || request.last;
        let head = response.written(last);
        sink.write_all(&head).await?;
        counts.received(head.len() as u64);
        if response.status == 101 || response.status >= 200 {
            judge.answered(record, response.status);
            let parts = &request.parts;
            counts.tell_request(&parts.method, &parts.target, response.status);
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

#[cfg(test)]
pub(crate) mod secret_tests;
#[cfg(test)]
mod tests;
