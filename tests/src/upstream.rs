//! An HTTP proxy of a network, on the loopback: cages reach servers through it.

use crate::web::own_address;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A proxy that knows some servers by name, and remembers the heads of all requests.
#[derive(Debug)]
pub struct UpstreamProxy {
    /// Where it listens.
    pub address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
}

struct Known {
    /// `NAME:PORT` to the server.
    servers: BTreeMap<String, SocketAddr>,
    /// The `Proxy-Authorization` that it needs.
    authorization: Option<String>,
}

impl UpstreamProxy {
    /// Starts one that leads these destinations to servers, for those who know its password.
    ///
    /// # Panics
    /// When it cannot.
    pub fn start(servers: &[(&str, SocketAddr)], authorization: Option<&str>) -> UpstreamProxy {
        UpstreamProxy::start_at(own_address(), servers, authorization)
    }

    /// Starts one at an address of this host.
    ///
    /// # Panics
    /// When it cannot.
    pub fn start_at(
        address: Ipv4Addr,
        servers: &[(&str, SocketAddr)],
        authorization: Option<&str>,
    ) -> UpstreamProxy {
        let listener = TcpListener::bind((address, 0)).expect("an address");
        let address = listener.local_addr().expect("an address");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&heard);
        let servers = servers.iter().map(|(name, at)| ((*name).to_owned(), *at));
        let known = Arc::new(Known {
            servers: servers.collect(),
            authorization: authorization.map(str::to_owned),
        });
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (notes, known) = (Arc::clone(&notes), Arc::clone(&known));
                // A client that goes away is none of the test's business.
                std::thread::spawn(move || drop(serve(stream, &known, &notes)));
            }
        });
        UpstreamProxy { address, heard }
    }

    /// The heads of requests.
    ///
    /// # Panics
    /// When a test has panicked meanwhile.
    pub fn heard(&self) -> String {
        self.heard.lock().expect("a list").concat()
    }
}

fn serve(mut client: TcpStream, known: &Known, notes: &Mutex<Vec<String>>) -> io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    notes.lock().expect("a list").push(head.clone());
    let (line, fields) = head.split_once("\r\n").unwrap_or_default();
    let mut words = line.split(' ');
    let (method, target) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let sent = fields.lines().find_map(|field| {
        let (name, value) = field.split_once(": ")?;
        name.eq_ignore_ascii_case("proxy-authorization")
            .then_some(value)
    });
    if known.authorization.is_some() && sent != known.authorization.as_deref() {
        let refused = "HTTP/1.1 407 Proxy Authentication Required\r\n\
                       Proxy-Authenticate: Basic realm=\"the realm\"\r\nContent-Length: 0\r\n\r\n";
        return client.write_all(refused.as_bytes());
    }
    let url = target.strip_prefix("http://");
    let (host, path) = match url.map(|url| url.split_once('/').unwrap_or((url, ""))) {
        Some((host, path)) if host.contains(':') => (host.to_owned(), Some(path)),
        Some((host, path)) => (format!("{host}:80"), Some(path)),
        None => (target.to_owned(), None),
    };
    let Some(server) = known.servers.get(&host) else {
        return client.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    };
    let mut server = TcpStream::connect(server)?;
    match path {
        None => client
            .write_all(b"HTTP/1.1 200 Connection established\r\nVia: 1.1 the-proxy\r\n\r\n")?,
        Some(path) => {
            let line = format!("{method} /{path} HTTP/1.1\r\n{fields}");
            server.write_all(line.as_bytes())?;
        }
    }
    let (mut up, mut down) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || io::copy(&mut up, &mut down));
    io::copy(&mut server, &mut client)?;
    client.shutdown(std::net::Shutdown::Both)
}
