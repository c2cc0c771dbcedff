//! The daemon's socket, and the relay that leads to it.

use crate::connection;
use crate::processes::Processes;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Connections at once.
const MOST_CONNECTIONS: usize = 256;
const STACK: usize = 256 * 1024;
/// How long a relay waits for a daemon that is just starting.
const PATIENCE: Duration = Duration::from_secs(10);

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("ironcage-daemon-{name}"))
}

/// Serves connections until the cage ends. The socket has no file: nothing in the cage's file system
/// can take its place, and it ends with the network namespace of the cage.
pub fn serve(name: &str) -> io::Result<()> {
    let listener = UnixListener::bind_addr(&address(name)?)?;
    let processes = Arc::new(Processes::default());
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => {
                // Descriptors are used up; some come back.
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        if open.fetch_add(1, Ordering::AcqRel) >= MOST_CONNECTIONS {
            open.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let (processes, counted) = (Arc::clone(&processes), Arc::clone(&open));
        let thread = std::thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || {
                // The other side is gone, or does not keep to the protocol: the same for the daemon.
                let _ = connection::serve(stream, &processes);
                counted.fetch_sub(1, Ordering::AcqRel);
            });
        if thread.is_err() {
            open.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Connects standard input and output to the daemon, until either side ends.
pub fn relay(name: &str) -> io::Result<()> {
    let address = address(name)?;
    let begun = Instant::now();
    let stream = loop {
        match UnixStream::connect_addr(&address) {
            Ok(stream) => break stream,
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionRefused
                    && begun.elapsed() < PATIENCE =>
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return Err(error),
        }
    };
    let outgoing = stream.try_clone()?;
    std::thread::Builder::new()
        .stack_size(STACK)
        .spawn(move || {
            let _ = copy(&mut io::stdin().lock(), &mut &outgoing);
            // The service is gone: nobody reads the answers.
            let _ = outgoing.shutdown(Shutdown::Both);
        })?;
    copy(&mut &stream, &mut io::stdout().lock())
}

/// Copies without holding anything back.
fn copy(from: &mut impl io::Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; crate::protocol::CHUNK];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(buffer.get(..count).unwrap_or_default())?;
        to.flush()?;
    }
}
