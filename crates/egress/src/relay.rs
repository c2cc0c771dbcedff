//! Carries bytes from one connection to another, as they are.
//!
//! Small pieces are copied, large ones are moved by the kernel through a pipe (docs/adr/0020). One
//! buffer and one pipe serve all connections: they are filled and emptied without a pause in
//! between, so that an idle connection costs nothing, and nothing of one connection is ever there
//! when the next one is served. Data that the other side does not take at once is kept.

use crate::traffic_log::Counts;
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{Shutdown, shutdown};
use ironcage_sys::rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::future::{Future, poll_fn};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::task::Poll;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Bytes in one go: small copies halve the throughput.
const BUFFER: usize = 128 * 1024;
/// Who sends so much at once sends more: the pipe is taken for what follows.
const MUCH: usize = 48 * 1024;
/// Who sends no more at once is served by the buffer again, in two calls instead of three.
const LITTLE: usize = 4 * 1024;

thread_local! {
    static SHARED: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
    static PIPE: RefCell<Option<Pipe>> = const { RefCell::new(None) };
}

/// A pipe that is empty whenever nobody is in the middle of passing something on.
struct Pipe {
    reader: File,
    writer: OwnedFd,
    /// How many bytes are in it.
    holds: usize,
}

impl Pipe {
    fn new() -> io::Result<Pipe> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Pipe {
            reader: File::from(reader),
            writer,
            holds: 0,
        })
    }

    /// Takes out what is in it.
    fn empty(&mut self) -> io::Result<Vec<u8>> {
        let mut rest = vec![0; self.holds];
        self.reader.read_exact(&mut rest)?;
        self.holds = 0;
        Ok(rest)
    }
}

/// Makes the pipe, before the proxy is confined and has no means to. Without it everything is
/// copied.
///
/// # Errors
/// Where there is none to be had.
pub(crate) fn prepare() -> io::Result<()> {
    let pipe = Pipe::new()?;
    PIPE.set(Some(pipe));
    Ok(())
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
    let last = Cell::new(0);
    let count = |bytes: usize| {
        last.set(bytes);
        count(bytes as u64)
    };
    let mut much = false;
    loop {
        from.readable().await?;
        let moved = match much {
            true => PIPE.with_borrow_mut(|pipe| match pipe.take() {
                // What a connection that failed left in it is for nobody. It is put back only
                // when it is empty.
                Some(mut taken) => {
                    let moved = pass_by_pipe(from, to, &mut taken, count);
                    if taken.empty().is_ok() {
                        *pipe = Some(taken);
                    }
                    Some(moved)
                }
                None => None,
            }),
            false => None,
        };
        let rest = match moved {
            Some(moved) => moved?,
            None => SHARED.with_borrow_mut(|buffer| pass(from, to, buffer, count))?,
        };
        match rest {
            Passed::Nothing => continue,
            Passed::All => {}
            Passed::Some(rest) => write_all(to, &rest).await?,
            Passed::End => {
                // The other side may have ended before.
                let _ = shutdown(to, Shutdown::Write);
                return Ok(());
            }
        }
        much = last.get() >= if much { LITTLE } else { MUCH };
    }
}

enum Passed {
    /// There was nothing after all.
    Nothing,
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
    count: impl Fn(usize) -> io::Result<()>,
) -> io::Result<Passed> {
    let bytes = match from.try_read(buffer) {
        Ok(0) => return Ok(Passed::End),
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Passed::Nothing),
        Err(error) => return Err(error),
    };
    count(bytes)?;
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

/// The same without a copy. Where it fails, something may be left in the pipe.
fn pass_by_pipe(
    from: &TcpStream,
    to: &TcpStream,
    pipe: &mut Pipe,
    count: impl Fn(usize) -> io::Result<()>,
) -> io::Result<Passed> {
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    let filled = from.try_io(Interest::READABLE, || {
        let into = splice(from, None, &pipe.writer, None, BUFFER, flags);
        into.map_err(io::Error::from)
    });
    let bytes = match filled {
        Ok(0) => return Ok(Passed::End),
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Passed::Nothing),
        Err(error) => return Err(error),
    };
    pipe.holds = bytes;
    count(bytes)?;
    while pipe.holds > 0 {
        let taken = to.try_io(Interest::WRITABLE, || {
            let out = splice(&pipe.reader, None, to, None, pipe.holds, flags);
            out.map_err(io::Error::from)
        });
        match taken {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(taken) => pipe.holds = pipe.holds.saturating_sub(taken),
            Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Passed::Some(pipe.empty()?));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Passed::All)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream as Plain};

    /// A connection of two ends: one for us, one for who is far away.
    fn connection() -> (TcpStream, Plain) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let far = Plain::connect(listener.local_addr().expect("its address")).expect("connected");
        let (near, _) = listener.accept().expect("accepted");
        near.set_nonblocking(true).expect("non-blocking");
        (TcpStream::from_std(near).expect("in the runtime"), far)
    }

    fn bytes(seed: usize, length: usize) -> Vec<u8> {
        (0..length)
            .map(|at| (at.wrapping_mul(31).wrapping_add(seed) % 251) as u8)
            .collect()
    }

    /// What came out of one way through, and how that ended.
    fn carried(sent: Vec<u8>, most: usize) -> (Vec<u8>, io::Result<()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let ((from, mut sender), (to, mut taker)) = (connection(), connection());
            let sending = std::thread::spawn(move || {
                // It fails where the way ends early.
                let _ = sender.write_all(&sent);
            });
            let taking = std::thread::spawn(move || {
                let mut came = Vec::new();
                let mut bounded = (&mut taker).take(most as u64);
                let _ = bounded.read_to_end(&mut came);
                came
            });
            let ended = pump(&from, &to, |_| Ok(())).await;
            drop((from, to));
            sending.join().expect("the sender");
            (taking.join().expect("the taker"), ended)
        })
    }

    #[test]
    fn large_and_small_streams_arrive_whole() {
        prepare().expect("a pipe");
        for length in [0, 1, 5000, BUFFER, 9 << 20] {
            let (came, ended) = carried(bytes(7, length), usize::MAX);
            ended.expect("carried");
            assert!(
                came == bytes(7, length),
                "{length} bytes came as {}",
                came.len()
            );
        }
        assert!(PIPE.with_borrow(Option::is_some), "the pipe was kept");
    }

    #[test]
    fn nothing_of_a_connection_that_failed_comes_to_the_next() {
        prepare().expect("a pipe");
        for round in 0..6 {
            // The taker leaves in the middle, with much under way.
            let (_, ended) = carried(bytes(round, 32 << 20), 1 << 20);
            assert!(ended.is_err(), "it was not carried to its end");
            assert!(PIPE.with_borrow(Option::is_some), "the pipe was kept");
            let (came, ended) = carried(bytes(100 + round, 2 << 20), usize::MAX);
            ended.expect("carried");
            assert!(came == bytes(100 + round, 2 << 20), "round {round}");
        }
    }
}
