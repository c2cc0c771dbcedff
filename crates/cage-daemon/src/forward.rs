//! Connections to ports of the cage, which the service passes on.

use crate::connection::{RequestError, Stream};
use crate::protocol::{self, CHUNK, Kind, Reply};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// How long a connection to the loopback may take: one whose queue is full does not answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connects to a port and passes data on, until both sides have ended.
pub(crate) fn connect(port: u16, stream: &mut Stream) -> Result<(), RequestError> {
    let mut peer = dial(port).map_err(RequestError::io(format!("connect to port {port}")))?;
    let ours = peer.try_clone()?;
    stream.reply(&Reply::Connected)?;
    let (reader, writer) = stream.halves();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while let Ok(Some((Kind::Data, bytes))) = protocol::read(reader) {
                if (&ours).write_all(&bytes).is_err() {
                    // What the peer has sent is still passed on.
                    break;
                }
            }
            let _ = ours.shutdown(Shutdown::Write);
            // The service closes the connection when it has everything.
            while let Ok(Some(_)) = protocol::read(reader) {}
            let _ = ours.shutdown(Shutdown::Both);
        });
        let mut buffer = vec![0; CHUNK];
        loop {
            match peer.read(&mut buffer) {
                Ok(0) => break protocol::write(writer, Kind::End, &[]),
                Ok(count) => {
                    let bytes = buffer.get(..count).unwrap_or_default();
                    protocol::write(writer, Kind::Data, bytes)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break protocol::write(writer, Kind::End, &[]),
            }
        }
    })?;
    // It was for this one request.
    Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
}

fn dial(port: u16) -> io::Result<TcpStream> {
    let first = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let second = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&first, PATIENCE)
        .or_else(|error| TcpStream::connect_timeout(&second, PATIENCE).map_err(|_| error))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
