//! Places in the guest that lead to the same places of the cage, and connections from the cage to
//! ports of the guest's loopback.

use crate::boot::{BootError, ROOT, doing};
use ironcage_guest::{Carried, Frame, GUEST_SESSIONS, Kind, MAX_CONNECTIONS, Relay};
use ironcage_sys::rustix::event::{PollFd, PollFlags};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::mount::mount_bind;
use ironcage_sys::rustix::net::sockopt::socket_error;
use ironcage_sys::rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, accept_with, connect, shutdown, socket_with,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Where the sockets are made that the agent sees elsewhere.
const SOCKETS: &str = "/sockets";

#[derive(Debug)]
struct Listening {
    socket: OwnedFd,
    /// The index of its relay.
    relay: u32,
}

#[derive(Debug)]
struct Connection {
    socket: File,
    carried: Carried,
    /// A connection to this port of the loopback that has not come about yet, and the address that
    /// is tried after this one.
    connecting: Option<(u16, Option<IpAddr>)>,
}

/// What is carried in this guest.
#[derive(Debug, Default)]
pub(crate) struct Relays {
    listening: Vec<Listening>,
    open: BTreeMap<u32, Connection>,
    next: u32,
}

impl Relays {
    /// Listens at every place of the setup, once the root and the loopback are there.
    pub(crate) fn listen(places: &[Relay]) -> Result<Relays, BootError> {
        let mut listening = Vec::new();
        for (relay, place) in (0..).zip(places) {
            let mut add = |socket| listening.push(Listening { socket, relay });
            match place {
                Relay::Socket(path) => add(socket(relay, Path::new(OsStr::from_bytes(path)))?),
                Relay::Port(port) => {
                    let at = |address: IpAddr| TcpListener::bind((address, *port));
                    let bound = at(Ipv4Addr::LOCALHOST.into());
                    add(OwnedFd::from(
                        bound.map_err(doing(format!("listen at port {port}")))?,
                    ));
                    // A kernel need not have it.
                    if let Ok(bound) = at(Ipv6Addr::LOCALHOST.into()) {
                        add(OwnedFd::from(bound));
                    }
                }
            }
        }
        for listening in &listening {
            crate::session::set_nonblocking(&listening.socket)
                .map_err(doing("set up a listening socket"))?;
        }
        Ok(Relays {
            listening,
            open: BTreeMap::new(),
            next: GUEST_SESSIONS,
        })
    }

    /// What is waited for. A connection that can go neither way is left out: its end is of no use
    /// until there is credit.
    pub(crate) fn poll<'a>(&'a self, fds: &mut Vec<PollFd<'a>>, room: bool) {
        for connection in self.open.values() {
            let mut want = PollFlags::empty();
            if connection.connecting.is_some() {
                want |= PollFlags::OUT;
            } else {
                if room && connection.carried.wants_to_read() {
                    want |= PollFlags::IN;
                }
                if connection.carried.wants_to_write() {
                    want |= PollFlags::OUT;
                }
            }
            if !want.is_empty() {
                fds.push(PollFd::new(&connection.socket, want));
            }
        }
        if room && self.open.len() < MAX_CONNECTIONS {
            let all = self.listening.iter();
            fds.extend(all.map(|listening| PollFd::new(&listening.socket, PollFlags::IN)));
        }
    }

    /// Takes a frame. `false` where it is about no connection.
    pub(crate) fn obey(&mut self, frame: &Frame, out: &mut Vec<u8>) -> bool {
        let session = frame.session;
        if frame.kind == Kind::Connect {
            let port = frame.value().and_then(|port| u16::try_from(port).ok());
            let full = self.open.len() >= MAX_CONNECTIONS || self.open.contains_key(&session);
            match port.filter(|_| !full) {
                Some(port) => self.dial(session, port, out),
                None => say_failed(session, Errno::MFILE, out),
            }
            return true;
        }
        let Some(connection) = self.open.get_mut(&session) else {
            // One that is over by now.
            return session >= GUEST_SESSIONS;
        };
        let ends = match frame.kind {
            Kind::Failed | Kind::Hangup => true,
            _ if connection.carried.obey(frame) => false,
            _ => {
                Frame::new(Kind::Hangup, session).write_to(out);
                true
            }
        };
        if ends {
            self.open.remove(&session);
        }
        true
    }

    fn insert(&mut self, session: u32, socket: OwnedFd, connecting: Option<(u16, Option<IpAddr>)>) {
        let connection = Connection {
            socket: File::from(socket),
            carried: Carried::new(session),
            connecting,
        };
        self.open.insert(session, connection);
    }

    fn dial(&mut self, session: u32, port: u16, out: &mut Vec<u8>) {
        match begin(Ipv4Addr::LOCALHOST.into(), port) {
            Ok(socket) => {
                let next = Some(Ipv6Addr::LOCALHOST.into());
                self.insert(session, socket, Some((port, next)));
            }
            Err(error) => say_failed(session, error, out),
        }
    }

    /// Takes connections, and carries what can be carried.
    pub(crate) fn turn(&mut self, room: bool, out: &mut Vec<u8>) {
        if room {
            self.accept(out);
        }
        self.open.retain(|session, connection| {
            if !connection.has_come_about(*session, out) {
                return connection.connecting.is_some();
            }
            let Connection {
                socket, carried, ..
            } = connection;
            match carried.turn(socket, room, out) {
                Ok(true) => {
                    // One that is gone already needs no end.
                    let _ = shutdown(&*socket, Shutdown::Write);
                }
                Ok(false) => {}
                Err(_) => {
                    Frame::new(Kind::Hangup, *session).write_to(out);
                    return false;
                }
            }
            !carried.is_over()
        });
    }

    fn accept(&mut self, out: &mut Vec<u8>) {
        for index in 0..self.listening.len() {
            let Some(listening) = self.listening.get(index) else {
                return;
            };
            if self.open.len() >= MAX_CONNECTIONS {
                return;
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let relay = listening.relay;
            let Ok(socket) = accept_with(&listening.socket, flags) else {
                continue;
            };
            let session = self.next;
            self.next = session.checked_add(1).unwrap_or(GUEST_SESSIONS);
            Frame::number(Kind::Connect, session, relay).write_to(out);
            self.insert(session, socket, None);
        }
    }
}

impl Connection {
    /// Whether it is there. One that failed leaves nothing that is awaited.
    fn has_come_about(&mut self, session: u32, out: &mut Vec<u8>) -> bool {
        let Some((port, next)) = self.connecting else {
            return true;
        };
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
        let now = ironcage_sys::rustix::time::Timespec::default();
        let ready = ironcage_sys::rustix::event::poll(&mut fds, Some(&now));
        if !ready.is_ok_and(|count| count > 0) {
            return false;
        }
        let error = match socket_error(self.socket.as_fd()) {
            Ok(Ok(())) => {
                self.connecting = None;
                Frame::new(Kind::Start, session).write_to(out);
                return true;
            }
            Ok(Err(error)) | Err(error) => error,
        };
        let another = next.map(|address| begin(address, port));
        match another {
            Some(Ok(socket)) => {
                self.socket = File::from(socket);
                self.connecting = Some((port, None));
            }
            _ => {
                self.connecting = None;
                say_failed(session, error, out);
            }
        }
        false
    }
}

fn say_failed(session: u32, error: Errno, out: &mut Vec<u8>) {
    Frame::number(Kind::Failed, session, error.raw_os_error() as u32).write_to(out);
}

fn begin(address: IpAddr, port: u16) -> Result<OwnedFd, Errno> {
    let family = match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &SocketAddr::new(address, port)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// A socket at a path of the view: the file there is another's, and leads nowhere in this guest.
fn socket(number: u32, path: &Path) -> Result<OwnedFd, BootError> {
    fs::create_dir_all(SOCKETS).map_err(doing(format!("make {SOCKETS}")))?;
    let own = Path::new(SOCKETS).join(number.to_string());
    let action = || format!("listen at {}", path.display());
    let listener = UnixListener::bind(&own).map_err(doing(action()))?;
    fs::set_permissions(&own, Permissions::from_mode(0o666)).map_err(doing(action()))?;
    let place = Path::new(ROOT).join(path.strip_prefix("/").unwrap_or(path));
    mount_bind(&own, &place).map_err(doing(action()))?;
    Ok(OwnedFd::from(listener))
}
