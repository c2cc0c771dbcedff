//! Carries bytes from one connection to another, as they are.
//!
//! One buffer serves all connections: it is filled and emptied without a pause in between, so
//! that an idle connection costs no memory. What the other side does not take at once is kept.

use crate::books::Counts;
use ironcage_sys::rustix::net::{Shutdown, shutdown};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use tokio::net::TcpStream;

/// Bytes in one go: small copies halve the throughput.
const BUFFER: usize = 128 * 1024;

thread_local! {
    static SHARED: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// Waits for two things at once; ends when both are done, or one fails.
pub(crate) async fn both<A, B>(first: A, second: B) -> io::Result<()>
where
    A: Future<Output = io::Result<()>>,
    B: Future<Output = io::Result<()>>,
{
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut first_done, mut second_done) = (false, false);
    poll_fn(move |context| {
        if !first_done && let Poll::Ready(result) = first.as_mut().poll(context) {
            result?;
            first_done = true;
        }
        if !second_done && let Poll::Ready(result) = second.as_mut().poll(context) {
            result?;
            second_done = true;
        }
        if first_done && second_done {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    })
    .await
}

/// Which of two things came first.
pub(crate) enum First<A, B> {
    /// The first.
    A(A),
    /// The second.
    B(B),
}

/// Waits for the first of two things.
pub(crate) async fn first<A: Future, B: Future>(a: A, b: B) -> First<A::Output, B::Output> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(move |context| {
        if let Poll::Ready(output) = a.as_mut().poll(context) {
            return Poll::Ready(First::A(output));
        }
        if let Poll::Ready(output) = b.as_mut().poll(context) {
            return Poll::Ready(First::B(output));
        }
        Poll::Pending
    })
    .await
}

/// Carries both ways until both sides have ended.
pub(crate) async fn relay(
    inside: &TcpStream,
    outside: &TcpStream,
    counts: &Counts,
) -> io::Result<()> {
    both(
        pump(inside, outside, |bytes| counts.send(bytes)),
        pump(outside, inside, |bytes| {
            counts.received(bytes);
            Ok(())
        }),
    )
    .await
}

/// Carries one way until its source ends, and says so to the other side. What is read is
/// counted before it goes on, and an error there ends it.
async fn pump(
    from: &TcpStream,
    to: &TcpStream,
    count: impl Fn(u64) -> io::Result<()>,
) -> io::Result<()> {
    loop {
        from.readable().await?;
        let rest = SHARED.with_borrow_mut(|buffer| pass(from, to, buffer, &count))?;
        match rest {
            Passed::Nothing | Passed::All => {}
            Passed::Some(rest) => write_all(to, &rest).await?,
            Passed::End => {
                // The other side may have ended before.
                let _ = shutdown(to, Shutdown::Write);
                return Ok(());
            }
        }
    }
}

enum Passed {
    /// There was nothing after all.
    Nothing,
    /// All that was there.
    All,
    /// All but what the other side has not taken yet.
    Some(Vec<u8>),
    /// The source has ended.
    End,
}

fn pass(
    from: &TcpStream,
    to: &TcpStream,
    buffer: &mut [u8],
    count: impl Fn(u64) -> io::Result<()>,
) -> io::Result<Passed> {
    let bytes = match from.try_read(buffer) {
        Ok(0) => return Ok(Passed::End),
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Passed::Nothing),
        Err(error) => return Err(error),
    };
    count(bytes as u64)?;
    let filled = buffer.get(..bytes).unwrap_or_default();
    let taken = match to.try_write(filled) {
        Ok(taken) => taken,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => return Err(error),
    };
    let rest = filled.get(taken..).unwrap_or_default();
    if rest.is_empty() {
        return Ok(Passed::All);
    }
    Ok(Passed::Some(rest.to_vec()))
}

/// Writes all of it.
pub(crate) async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(taken) => bytes = bytes.get(taken..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Adds what has come to a buffer. `false` at the end.
pub(crate) async fn read_more(
    from: &TcpStream,
    into: &mut Vec<u8>,
    most: usize,
) -> io::Result<bool> {
    loop {
        from.readable().await?;
        let mut part = [0; 4096];
        let room = most.min(part.len());
        match from.try_read(part.get_mut(..room).unwrap_or_default()) {
            Ok(0) => return Ok(false),
            Ok(bytes) => {
                into.extend(part.get(..bytes).unwrap_or_default());
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
