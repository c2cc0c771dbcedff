//! Bodies of HTTP/1.1 on their way, of whichever framing, and what is held back of them.

use super::head::Framing;
use super::passing::Passing;
use crate::secret::Stopped;
use ironcage_model::NetworkReason;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{timeout, timeout_at};

/// Bytes read in one go.
const PART: usize = 16 * 1024;
/// Longest line before a chunk, and longest part after the last one.
const LONGEST_LINE: usize = 1024;
const LONGEST_TRAILER: usize = 16 * 1024;

/// A reader that keeps what was read and not used.
#[derive(Debug)]
pub(crate) struct Source<R> {
    pub(super) inner: R,
    pub(super) buffer: Vec<u8>,
    /// How long it may be silent in the middle of a body.
    pub(super) patience: Option<Duration>,
}

impl<R: AsyncRead + Unpin> Source<R> {
    pub(super) fn new(inner: R, buffer: Vec<u8>) -> Self {
        Source {
            inner,
            buffer,
            patience: None,
        }
    }

    /// Reads more. `false` at the end.
    pub(super) async fn fill(&mut self) -> io::Result<bool> {
        // Not by way of an array: it would be a part of every connection's state.
        self.buffer.reserve(PART);
        Ok(self.inner.read_buf(&mut self.buffer).await? > 0)
    }

    /// Drops what was used.
    pub(super) fn used(&mut self, length: usize) {
        self.buffer.drain(..length.min(self.buffer.len()));
    }

    /// A line, without its end, if all of it is there.
    fn line(&mut self) -> Option<Vec<u8>> {
        let at = self.buffer.windows(2).position(|two| two == b"\r\n")?;
        let line = self.buffer.get(..at).unwrap_or_default().to_vec();
        self.used(at + 2);
        Some(line)
    }
}

/// Where in a body a read begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Boundary {
    /// Where the server may pause: between chunks, or anywhere in a stream without a length.
    Servers,
    /// In the middle of what the server said it would send.
    None,
}

/// Where a body goes: what it passes, and what counts it.
struct BodySink<'a, W, F> {
    sink: &'a mut W,
    /// Whether it goes in chunks.
    chunked: bool,
    passing: Passing,
    count: F,
}

impl<W: AsyncWrite + Unpin, F: Fn(u64) -> io::Result<()>> BodySink<'_, W, F> {
    async fn write(&mut self, part: &[u8]) -> io::Result<()> {
        match self.chunked {
            true => write_chunk(self.sink, part).await?,
            false => self.sink.write_all(part).await?,
        }
        self.passing.went(part);
        Ok(())
    }

    /// Takes a part as it came.
    async fn take(&mut self, part: &[u8]) -> io::Result<()> {
        (self.count)(part.len() as u64)?;
        let on = self.passing.part(part)?;
        self.write(&on).await
    }

    /// Sends what was held back.
    async fn rest(&mut self) -> io::Result<()> {
        let rest = self.passing.rest();
        self.write(&rest).await
    }

    /// Reads more of a body. `false` at the end. What is held back goes on when no more comes, and
    /// at a boundary of the server's when it is due: in the middle of a chunk, or of a body whose
    /// length is known, the rest is sure to follow.
    async fn more<R: AsyncRead + Unpin>(
        &mut self,
        source: &mut Source<R>,
        (patience, at): (Option<Duration>, Boundary),
    ) -> io::Result<bool> {
        let more = loop {
            let due = self.passing.due().filter(|_| at == Boundary::Servers);
            match (due, patience) {
                (Some(due), _) => match timeout_at(due, source.fill()).await {
                    Ok(more) => break more,
                    Err(_) => {
                        self.rest().await?;
                        self.sink.flush().await?;
                    }
                },
                (None, None) => break source.fill().await,
                (None, Some(patience)) => {
                    break match timeout(patience, source.fill()).await {
                        Ok(more) => more,
                        Err(_) => Err(io::Error::other(Stopped {
                            reason: NetworkReason::BodyTimeout,
                        })),
                    };
                }
            }
        };
        if !matches!(more, Ok(true)) && self.passing.holds() {
            self.rest().await?;
            self.sink.flush().await?;
        }
        more
    }

    async fn line<R: AsyncRead + Unpin>(
        &mut self,
        source: &mut Source<R>,
        longest: usize,
    ) -> io::Result<Vec<u8>> {
        loop {
            if let Some(line) = source.line() {
                return Ok(line);
            }
            let wait = (source.patience, Boundary::Servers);
            if source.buffer.len() > longest || !self.more(source, wait).await? {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }

    async fn exactly<R: AsyncRead + Unpin>(
        &mut self,
        source: &mut Source<R>,
        mut left: u64,
    ) -> io::Result<()> {
        while left > 0 {
            let wait = (source.patience, Boundary::None);
            if source.buffer.is_empty() && !self.more(source, wait).await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let most = usize::try_from(left).unwrap_or(usize::MAX);
            let length = source.buffer.len().min(most);
            let part = source.buffer.get(..length).unwrap_or_default();
            self.take(part).await?;
            left -= length as u64;
            if source.buffer.len() == length {
                // As it comes: events of a stream are not held back.
                self.sink.flush().await?;
            }
            source.used(length);
        }
        Ok(())
    }
}

/// Carries a body of known length; chunks are read and framed again.
pub(super) async fn copy<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    source: &mut Source<R>,
    sink: &mut W,
    framing: Framing,
    passing: Passing,
    count: impl Fn(u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut to = BodySink {
        sink,
        chunked: framing == Framing::Chunked,
        passing,
        count,
    };
    match framing {
        Framing::Empty => {}
        Framing::Length(length) => {
            to.exactly(source, length).await?;
            to.rest().await?;
        }
        Framing::Chunked => {
            loop {
                let line = to.line(source, LONGEST_LINE).await?;
                let size = chunk_size(&line).ok_or(io::ErrorKind::InvalidData)?;
                if size == 0 {
                    break;
                }
                to.exactly(source, size).await?;
                if !to.line(source, 2).await?.is_empty() {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
            // The body is over, whatever follows it.
            to.rest().await?;
            let mut trailer = 0;
            loop {
                let line = to.line(source, LONGEST_TRAILER).await?;
                trailer += line.len();
                if trailer > LONGEST_TRAILER {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                if line.is_empty() {
                    break;
                }
            }
            to.sink.write_all(b"0\r\n\r\n").await?;
        }
        Framing::ToTheEnd => return to_the_end(source, to.sink, to.passing, to.count).await,
    }
    to.sink.flush().await
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

pub(super) async fn to_the_end<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    source: &mut Source<R>,
    sink: &mut W,
    passing: Passing,
    count: impl Fn(u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut to = BodySink {
        sink,
        chunked: false,
        passing,
        count,
    };
    loop {
        let wait = (None, Boundary::Servers);
        if source.buffer.is_empty() && !to.more(source, wait).await? {
            to.rest().await?;
            // The other side may be gone already.
            let _ = to.sink.shutdown().await;
            return Ok(());
        }
        let part = std::mem::take(&mut source.buffer);
        to.take(&part).await?;
        to.sink.flush().await?;
    }
}
