//! Listeners that note who reaches them: abstract and pathname sockets, TCP, UDP.

use super::log::{Channel, HitLog};
use super::{StageError, making, random_hex};
use crate::params::Params;
use ironcage_sys::attack;
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::thread;

/// Stand-ins for the address where clouds hand out credentials.
pub(crate) const METADATA: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// What the listeners leave for other parts of the stage.
pub(crate) struct Listeners {
    /// The network namespace that has a listener and nothing else.
    pub(crate) network: File,
}

/// The flags of an answer that there is no such name.
const NO_SUCH_NAME: [u8; 2] = [0x81, 0x83];

fn serve_tcp(listener: TcpListener, channel: Channel, log: &HitLog) {
    let log = log.clone();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let peer = stream.peer_addr();
            let peer = peer.map_or_else(|_| "?".to_owned(), |at| at.to_string());
            log.note(channel, format!("connection from {peer}"));
            // The client may be gone already, which changes nothing: it was here.
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\ncanary\n");
        }
    });
}

fn serve_unix(listener: UnixListener, channel: Channel, name: String, log: &HitLog) {
    let log = log.clone();
    thread::spawn(move || {
        for _stream in listener.incoming() {
            log.note(channel, format!("connection at {name}"));
        }
    });
}

fn serve_datagrams(socket: UnixDatagram, channel: Channel, log: &HitLog) {
    let log = log.clone();
    thread::spawn(move || {
        let mut buffer = [0u8; 512];
        while let Ok(length) = socket.recv(&mut buffer) {
            log.note(channel, format!("{length} bytes"));
        }
    });
}

/// A resolver that knows no name.
fn serve_resolver(socket: UdpSocket, log: &HitLog) {
    let log = log.clone();
    thread::spawn(move || {
        let mut buffer = [0u8; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            log.note(Channel::Resolver, format!("{length} bytes from {from}"));
            if let Some(flags) = buffer.get_mut(2..4) {
                flags.copy_from_slice(&NO_SUCH_NAME);
            }
            // Who asked may have gone.
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
}

fn tcp(address: IpAddr, port: u16) -> Result<(TcpListener, u16), StageError> {
    let what = || format!("a listener on {address} port {port}");
    let listener = TcpListener::bind((address, port)).map_err(making(what()))?;
    let port = listener.local_addr().map_err(making(what()))?.port();
    Ok((listener, port))
}

fn bind_path(path: &Path) -> Result<UnixListener, StageError> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(making(path.display().to_string()))?;
    }
    UnixListener::bind(path).map_err(making(format!("a socket at {}", path.display())))
}

/// A network namespace of its own with one listener; entered by a thread that ends.
fn other_network(log: &HitLog) -> io::Result<(File, u16)> {
    const CLONE_NEWNET: i32 = ironcage_sys::rustix::thread::UnshareFlags::NEWNET.bits() as i32;
    let log = log.clone();
    let made = thread::spawn(move || -> io::Result<(File, u16)> {
        attack::share_nothing(CLONE_NEWNET)?;
        attack::loopback_up()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let network = File::open("/proc/thread-self/ns/net")?;
        serve_tcp(listener, Channel::OtherNetwork, &log);
        Ok((network, port))
    });
    made.join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread ended early")))
}

/// Starts all of them; they end with the process.
pub(crate) fn start(params: &mut Params, log: &HitLog) -> Result<Listeners, StageError> {
    let tag = random_hex(6).map_err(making("random numbers"))?;
    params.abstract_stream = format!("stage-stream-{tag}");
    params.abstract_datagram = format!("stage-datagram-{tag}");
    let name = |text: &str| SocketAddr::from_abstract_name(text.as_bytes());
    let what = "an abstract socket";
    let address = name(&params.abstract_stream).map_err(making(what))?;
    let listener = UnixListener::bind_addr(&address).map_err(making(what))?;
    serve_unix(
        listener,
        Channel::Abstract,
        "an abstract name".to_owned(),
        log,
    );
    let address = name(&params.abstract_datagram).map_err(making(what))?;
    let socket = UnixDatagram::bind_addr(&address).map_err(making(what))?;
    serve_datagrams(socket, Channel::AbstractDatagram, log);

    let uid = ironcage_sys::rustix::process::geteuid().as_raw();
    let runtime = PathBuf::from(format!("/run/user/{uid}"));
    params.socket_paths = vec![
        PathBuf::from("/run/docker.sock"),
        PathBuf::from("/tmp/.X11-unix/X7"),
        PathBuf::from(format!("/tmp/ssh-{tag}/agent.1")),
        runtime.join("bus"),
        runtime.join("wayland-0"),
        runtime.join("gnupg/S.gpg-agent"),
        params.outside.join("service.sock"),
    ];
    for path in &params.socket_paths {
        let listener = bind_path(path)?;
        serve_unix(listener, Channel::Pathname, path.display().to_string(), log);
    }
    params.datagram_path = runtime.join("journal");
    let socket = UnixDatagram::bind(&params.datagram_path).map_err(making("a datagram socket"))?;
    serve_datagrams(socket, Channel::PathDatagram, log);

    let (listener, port) = tcp(Ipv4Addr::LOCALHOST.into(), 0)?;
    params.tcp4 = port;
    serve_tcp(listener, Channel::Tcp4, log);
    let (listener, port) = tcp(Ipv6Addr::LOCALHOST.into(), 0)?;
    params.tcp6 = port;
    serve_tcp(listener, Channel::Tcp6, log);
    for address in METADATA {
        let (listener, _) = tcp(address, 80)?;
        serve_tcp(listener, Channel::Metadata, log);
    }
    for address in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 53)] {
        let socket = UdpSocket::bind((address, 53)).map_err(making("a resolver's socket"))?;
        serve_resolver(socket, log);
    }
    // Free now; the stage's network has no other user.
    let (free, port) = tcp(Ipv4Addr::LOCALHOST.into(), 0)?;
    params.free_port = port;
    drop(free);
    let (network, port) = other_network(log).map_err(making("a second network namespace"))?;
    params.network_tcp = port;
    Ok(Listeners { network })
}
