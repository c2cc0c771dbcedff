//! Connections between guest and cage: from places in the guest that the plan lists to the same
//! places of the cage, and from the cage to ports of the guest's loopback.
//!
//! The guest names a place by its index, so there is no address of its choosing. It reaches there
//! what a program in a namespace cage would: the supervisor's sockets and the egress proxy, with
//! their rules.

use crate::{VmError, address, doing};
use ironcage_guest::{Carried, Frame, GUEST_SESSIONS, Kind, MAX_CONNECTIONS, PORTS_SOCKET, Relay};
use ironcage_sys::rustix::event::{PollFd, PollFlags};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown,
    socket_with,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::time::Duration;

/// How long somebody in the cage who has connected may take to say to which port. They say so at
/// once: only a guest that has broken out of its machine could wait.
const PORT_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Connection {
    socket: File,
    carried: Carried,
}

/// What is carried for one machine.
#[derive(Debug)]
pub(crate) struct Relays {
    places: Vec<Relay>,
    ports: UnixListener,
    open: BTreeMap<u32, Connection>,
}

impl Relays {
    pub(crate) fn new(places: Vec<Relay>) -> Result<Relays, VmError> {
        let ports = UnixListener::bind_addr(&address(PORTS_SOCKET)?)
            .map_err(doing("make the socket for ports"))?;
        ports
            .set_nonblocking(true)
            .map_err(doing("set up the socket for ports"))?;
        Ok(Relays {
            places,
            ports,
            open: BTreeMap::new(),
        })
    }

    /// What is waited for. A connection that can go neither way is left out: its end is of no use
    /// until there is credit.
    pub(crate) fn poll<'a>(&'a self, fds: &mut Vec<PollFd<'a>>, room: bool) {
        for connection in self.open.values() {
            let mut want = PollFlags::empty();
            if room && connection.carried.wants_to_read() {
                want |= PollFlags::IN;
            }
            if connection.carried.wants_to_write() {
                want |= PollFlags::OUT;
            }
            if !want.is_empty() {
                fds.push(PollFd::new(&connection.socket, want));
            }
        }
        if room && self.open.len() < MAX_CONNECTIONS {
            fds.push(PollFd::new(&self.ports, PollFlags::IN));
        }
    }

    /// Takes one connection to a port of the guest, under the next number of a session.
    pub(crate) fn accept(&mut self, session: u32, to_guest: &mut Vec<u8>) -> bool {
        if self.open.len() >= MAX_CONNECTIONS {
            return false;
        }
        let Ok((mut stream, _)) = self.ports.accept() else {
            return false;
        };
        let mut port = [0; 2];
        let named = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(PORT_PATIENCE)))
            .and_then(|()| stream.read_exact(&mut port))
            .and_then(|()| stream.set_nonblocking(true));
        if named.is_err() {
            return false;
        }
        let port = u16::from_be_bytes(port);
        Frame::number(Kind::Connect, session, port.into()).write_to(to_guest);
        self.insert(session, OwnedFd::from(stream));
        true
    }

    fn insert(&mut self, session: u32, socket: OwnedFd) {
        let connection = Connection {
            socket: File::from(socket),
            carried: Carried::new(session),
        };
        self.open.insert(session, connection);
    }

    /// Takes a frame of the guest's. `false` where it is about no connection.
    pub(crate) fn obey(&mut self, frame: &Frame, to_guest: &mut Vec<u8>) -> bool {
        if frame.kind == Kind::Connect {
            self.connect(frame, to_guest);
            return true;
        }
        let Some(connection) = self.open.get_mut(&frame.session) else {
            // One that is over by now.
            return frame.session >= GUEST_SESSIONS;
        };
        let ends = match frame.kind {
            // It has come about in the guest.
            Kind::Start => false,
            Kind::Failed | Kind::Hangup => true,
            _ if connection.carried.obey(frame) => false,
            _ => {
                Frame::new(Kind::Hangup, frame.session).write_to(to_guest);
                true
            }
        };
        if ends {
            self.open.remove(&frame.session);
        }
        true
    }

    /// Begins a connection to a place, or says why not.
    fn connect(&mut self, frame: &Frame, to_guest: &mut Vec<u8>) {
        let session = frame.session;
        let place = frame.value().and_then(|index| usize::try_from(index).ok());
        let place = place.and_then(|index| self.places.get(index));
        let taken = session < GUEST_SESSIONS || self.open.contains_key(&session);
        let begun = match place {
            _ if taken => Err(Errno::INVAL),
            _ if self.open.len() >= MAX_CONNECTIONS => Err(Errno::MFILE),
            None => Err(Errno::INVAL),
            Some(place) => begin(place),
        };
        match begun {
            Ok(socket) => self.insert(session, socket),
            Err(error) => {
                let errno = error.raw_os_error() as u32;
                Frame::number(Kind::Failed, session, errno).write_to(to_guest);
            }
        }
    }

    /// Carries what can be carried.
    pub(crate) fn turn(&mut self, room: bool, to_guest: &mut Vec<u8>) {
        self.open.retain(|session, connection| {
            let Connection { socket, carried } = connection;
            match carried.turn(socket, room, to_guest) {
                Ok(true) => {
                    // One that is gone already needs no end.
                    let _ = shutdown(&*socket, Shutdown::Write);
                }
                Ok(false) => {}
                Err(_) => {
                    Frame::new(Kind::Hangup, *session).write_to(to_guest);
                    return false;
                }
            }
            !carried.is_over()
        });
    }
}

/// A connection that comes about at once, or on its own: nothing here waits for it.
fn begin(place: &Relay) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match place {
        Relay::Socket(path) => {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            connect(&socket, &SocketAddrUnix::new(path.as_slice())?)?;
            Ok(socket)
        }
        Relay::Port(port) => {
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
            match connect(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, *port))) {
                Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
                Err(error) => Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_guest::{Decoder, STDIN, WINDOW};
    use std::io::Write as _;

    fn relays(places: Vec<Relay>) -> Relays {
        let ports = UnixListener::bind_addr(
            &address(&format!(
                "ironcage-test-{}-{:?}",
                std::process::id(),
                std::thread::current().id()
            ))
            .unwrap(),
        )
        .unwrap();
        Relays {
            places,
            ports,
            open: BTreeMap::new(),
        }
    }

    fn frames(bytes: &[u8]) -> Vec<Frame> {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        std::iter::from_fn(|| decoder.next_frame().unwrap()).collect()
    }

    #[test]
    fn a_guest_reaches_a_listed_place_and_nothing_by_another_number() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let listed = path.as_os_str().as_encoded_bytes().to_vec();
        let mut relays = relays(vec![Relay::Socket(listed)]);
        let mut out = Vec::new();
        let begin = |session, index| Frame::number(Kind::Connect, session, index);
        // A number of a command's session, and places that are not listed.
        for frame in [
            begin(1, 0),
            begin(GUEST_SESSIONS, 1),
            begin(GUEST_SESSIONS, u32::MAX),
        ] {
            assert!(relays.obey(&frame, &mut out));
        }
        assert!(relays.open.is_empty());
        let failed = frames(&out);
        assert!(failed.len() == 3 && failed.iter().all(|frame| frame.kind == Kind::Failed));
        out.clear();
        assert!(relays.obey(&begin(GUEST_SESSIONS, 0), &mut out));
        assert!(out.is_empty());
        let (mut end, _) = listener.accept().unwrap();
        let said = Frame::data(GUEST_SESSIONS, STDIN, b"to the place");
        assert!(relays.obey(&said, &mut out));
        relays.turn(true, &mut out);
        let mut got = [0; 12];
        end.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"to the place");
        end.write_all(b"back").unwrap();
        relays.turn(true, &mut out);
        assert!(frames(&out).iter().any(|frame| frame.payload == b"back"));
    }

    #[test]
    fn a_flood_of_connections_and_bytes_stays_within_bounds() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        let _listener = UnixListener::bind(&path).unwrap();
        let listed = path.as_os_str().as_encoded_bytes().to_vec();
        let mut relays = relays(vec![Relay::Socket(listed)]);
        let mut out = Vec::new();
        for index in 0..1000 {
            let frame = Frame::number(Kind::Connect, GUEST_SESSIONS + index, 0);
            assert!(relays.obey(&frame, &mut out));
        }
        assert!(relays.open.len() <= MAX_CONNECTIONS);
        let first = *relays.open.keys().next().unwrap();
        out.clear();
        // More than is credited, with nobody who reads: it ends this one alone.
        let before = relays.open.len();
        let data = Frame::data(first, STDIN, &[0; 16 << 10]);
        for _ in 0..=WINDOW as usize / (16 << 10) {
            relays.obey(&data, &mut out);
        }
        assert_eq!(relays.open.len(), before - 1);
        assert_eq!(frames(&out)[0].kind, Kind::Hangup);
    }
}
