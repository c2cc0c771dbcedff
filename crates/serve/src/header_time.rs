//! How long a client may take for the header of a request.
//!
//! hyper has one time for both: the wait for a request, and its header. Pools of clients keep a
//! connection for longer than a header may take: one that is closed while they use it again is an
//! error to their caller. So the wait between two requests has a time of its own, and the time of a
//! header begins with its first byte.

use hyper::rt::{Sleep, Timer};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The times of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionTimes {
    /// From its first byte, or from the beginning of the connection, to its end.
    pub(crate) header: Duration,
    /// From an answer to the first byte of the next request.
    pub(crate) idle: Duration,
}

/// What the stream of a connection and its timer know of each other.
#[derive(Debug, Default)]
struct Activity {
    /// Something was read since the wait for the present header began.
    read: AtomicBool,
    /// A header was waited for before.
    had_request: AtomicBool,
}

/// A stream and the timer for its connection.
pub(crate) fn timed<S>(stream: S, times: ConnectionTimes) -> (Watched<S>, HeaderTimer) {
    let activity = Arc::new(Activity::default());
    let timer = HeaderTimer {
        times,
        activity: Arc::clone(&activity),
    };
    (Watched { stream, activity }, timer)
}

/// A timer that hyper asks for the time of each header.
#[derive(Debug, Clone)]
pub(crate) struct HeaderTimer {
    times: ConnectionTimes,
    activity: Arc<Activity>,
}

impl HeaderTimer {
    fn begin(&self) -> Pin<Box<dyn Sleep>> {
        self.activity.read.store(false, Ordering::Relaxed);
        let first = !self.activity.had_request.swap(true, Ordering::Relaxed);
        let time = match first {
            true => self.times.header,
            false => self.times.idle,
        };
        Box::pin(HeaderWait {
            sleep: Box::pin(tokio::time::sleep(time)),
            header: self.times.header,
            activity: Arc::clone(&self.activity),
            // The time of the first header has begun.
            begun: first,
        })
    }
}

impl Timer for HeaderTimer {
    fn sleep(&self, _: Duration) -> Pin<Box<dyn Sleep>> {
        self.begin()
    }

    fn sleep_until(&self, _: Instant) -> Pin<Box<dyn Sleep>> {
        self.begin()
    }
}

/// The wait for one header.
struct HeaderWait {
    sleep: Pin<Box<tokio::time::Sleep>>,
    header: Duration,
    activity: Arc<Activity>,
    begun: bool,
}

impl Future for HeaderWait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if !self.begun && self.activity.read.load(Ordering::Relaxed) {
            self.begun = true;
            let end = tokio::time::Instant::now() + self.header;
            self.sleep.as_mut().reset(end);
        }
        self.sleep.as_mut().poll(context)
    }
}

impl Sleep for HeaderWait {}

/// A stream that notes when something is read from it.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    stream: S,
    activity: Arc<Activity>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.read.store(true, Ordering::Relaxed);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::{TIMES, connection};
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::time::sleep;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    fn client() -> DuplexStream {
        let (client, server) = tokio::io::duplex(4096);
        let router = Router::new().route("/", get(async || "answer"));
        tokio::spawn(connection(server, router));
        client
    }

    async fn answered(client: &mut DuplexStream) {
        client.write_all(REQUEST).await.unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"answer") {
            assert_ne!(client.read_buf(&mut text).await.unwrap(), 0, "closed");
        }
    }

    /// The time until the server closes, on a clock that stands still while something can run.
    async fn closed(client: &mut DuplexStream) -> Duration {
        let begun = tokio::time::Instant::now();
        client.read_to_end(&mut Vec::new()).await.unwrap();
        begun.elapsed()
    }

    fn near(time: Duration, expected: Duration) -> bool {
        time >= expected && time < expected + Duration::from_secs(1)
    }

    #[tokio::test(start_paused = true)]
    async fn a_pool_uses_an_idle_connection_again_and_it_ends_in_the_end() {
        let mut client = client();
        for _ in 0..3 {
            answered(&mut client).await;
            sleep(TIMES.header * 2).await;
        }
        answered(&mut client).await;
        assert!(near(closed(&mut client).await, TIMES.idle));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_header_has_no_more_time_after_a_wait_than_at_the_beginning() {
        let mut first = client();
        first.write_all(&REQUEST[..9]).await.unwrap();
        assert!(near(closed(&mut first).await, TIMES.header));
        let mut silent = client();
        assert!(near(closed(&mut silent).await, TIMES.header));
        let mut later = client();
        answered(&mut later).await;
        sleep(TIMES.header * 2).await;
        later.write_all(&REQUEST[..9]).await.unwrap();
        let begun = tokio::time::Instant::now();
        // Bytes that trickle in do not make it longer.
        sleep(TIMES.header / 2).await;
        later.write_all(&REQUEST[9..12]).await.unwrap();
        closed(&mut later).await;
        assert!(near(begun.elapsed(), TIMES.header));
    }
}
