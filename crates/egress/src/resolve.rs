//! Names to addresses, outside: the plan's own, the host's file, then the host's resolvers.
//!
//! The settings are read before the proxy is confined. A name is looked up when a connection is
//! made, and the connection goes to the address that was checked.

use crate::dns::{self, A, AAAA, DnsReply};
use ironcage_model::HostName;
use ironcage_plan::Network;
use ironcage_sys::rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use ironcage_sys::rustix::rand::{GetRandomFlags, getrandom};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

/// Resolvers that are asked, as the C library does.
const SERVERS: usize = 3;
/// How long one is waited for.
const PATIENCE: Duration = Duration::from_secs(3);
const ROUNDS: usize = 2;
/// How long an answer is used again, at most.
const LONGEST_MEMORY: Duration = Duration::from_secs(60);
/// How long it is believed that there is no such name.
const SHORT_MEMORY: Duration = Duration::from_secs(5);
/// Names that are remembered.
const MEMORY: usize = 1024;
/// Files of the host are read up to here.
const LONGEST_FILE: u64 = 1 << 20;

/// Why a name has no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unresolved {
    /// There is no such name, or it has no address.
    NoSuchName,
    /// No resolver answered.
    NoAnswer,
}

#[derive(Debug, Clone)]
struct Remembered {
    addresses: Vec<IpAddr>,
    until: Instant,
}

/// Looks names up.
#[derive(Debug)]
pub(crate) struct Resolver {
    fixed: HashMap<HostName, Vec<IpAddr>>,
    servers: Vec<SocketAddr>,
    memory: RefCell<HashMap<HostName, Remembered>>,
}

impl Resolver {
    /// Reads the host's settings. Later there are no files to be read.
    pub(crate) fn from_host(network: &Network) -> Self {
        let text = |path: &str| {
            let links = ironcage_files::Links::Follow;
            ironcage_files::read_text(Path::new(path), LONGEST_FILE, links).unwrap_or_default()
        };
        let mut fixed = hosts(&text("/etc/hosts"));
        for item in &network.resolve {
            fixed.insert(item.what.name.clone(), vec![item.what.address]);
        }
        Resolver {
            fixed,
            servers: servers(&text("/etc/resolv.conf")),
            memory: RefCell::default(),
        }
    }

    /// One that knows these names, and asks nobody.
    #[cfg(test)]
    pub(crate) fn of_known(known: impl IntoIterator<Item = (HostName, IpAddr)>) -> Self {
        let known = known
            .into_iter()
            .map(|(name, address)| (name, vec![address]));
        Resolver {
            fixed: known.collect(),
            servers: Vec::new(),
            memory: RefCell::default(),
        }
    }

    /// The addresses that the plan or the host's file has for a name: nobody is asked for them.
    pub(crate) fn fixed(&self, name: &HostName) -> Option<&[IpAddr]> {
        self.fixed.get(name).map(Vec::as_slice)
    }

    /// The addresses of a name, IPv4 first.
    pub(crate) async fn addresses(&self, name: &HostName) -> Result<Vec<IpAddr>, Unresolved> {
        if let Some(known) = self.fixed.get(name) {
            return Ok(known.clone());
        }
        let now = Instant::now();
        let known = self.memory.borrow().get(name).cloned();
        if let Some(known) = known.filter(|known| known.until > now) {
            return match known.addresses.is_empty() {
                true => Err(Unresolved::NoSuchName),
                false => Ok(known.addresses),
            };
        }
        let mut addresses = Vec::new();
        let mut least = u32::MAX;
        let mut heard = false;
        for kind in [A, AAAA] {
            match self.ask(name, kind).await {
                Some(DnsReply::Addresses(found, seconds)) => {
                    heard = true;
                    least = least.min(seconds);
                    addresses.extend(found);
                }
                Some(DnsReply::NoSuchName) => heard = true,
                Some(DnsReply::Truncated | DnsReply::Failed) | None => {}
            }
        }
        if addresses.is_empty() {
            if !heard {
                return Err(Unresolved::NoAnswer);
            }
            self.remember(name, &[], SHORT_MEMORY);
            return Err(Unresolved::NoSuchName);
        }
        self.remember(name, &addresses, Duration::from_secs(u64::from(least)));
        Ok(addresses)
    }

    fn remember(&self, name: &HostName, addresses: &[IpAddr], how_long: Duration) {
        let mut memory = self.memory.borrow_mut();
        let now = Instant::now();
        if memory.len() >= MEMORY {
            memory.retain(|_, known| known.until > now);
        }
        // Junk that is remembered makes room: nobody waits for a resolver at each connection
        // because of names that somebody made up.
        if memory.len() >= MEMORY {
            let first = memory.iter().min_by_key(|(_, known)| known.until);
            let first = first.map(|(name, _)| name.clone());
            first.and_then(|name| memory.remove(&name));
        }
        memory.insert(
            name.clone(),
            Remembered {
                addresses: addresses.to_vec(),
                until: now + how_long.min(LONGEST_MEMORY),
            },
        );
    }

    async fn ask(&self, name: &HostName, kind: u16) -> Option<DnsReply> {
        let mut failed = None;
        for _ in 0..ROUNDS {
            for server in &self.servers {
                let said = match timeout(PATIENCE, over_udp(*server, name, kind)).await {
                    Ok(Ok(DnsReply::Truncated)) => {
                        timeout(PATIENCE, over_tcp(*server, name, kind)).await
                    }
                    other => other,
                };
                match said {
                    Ok(Ok(DnsReply::Failed)) => failed = Some(DnsReply::Failed),
                    Ok(Ok(said)) => return Some(said),
                    Ok(Err(_)) | Err(_) => {}
                }
            }
        }
        failed
    }
}

fn number() -> io::Result<u16> {
    let mut bytes = [0; 2];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u16::from_ne_bytes(bytes))
}

/// A socket of its own for each question: its port is as much a secret as its number.
async fn over_udp(server: SocketAddr, name: &HostName, kind: u16) -> io::Result<DnsReply> {
    let family = match server {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    connect(&socket, &server)?;
    let socket = UdpSocket::from_std(socket.into())?;
    let id = number()?;
    socket.send(&dns::ask(id, name, kind)).await?;
    let mut buffer = vec![0; dns::LONGEST];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let message = buffer.get(..length).unwrap_or_default();
        if let Some(said) = dns::read(message, id, name, kind) {
            return Ok(said);
        }
    }
}

async fn over_tcp(server: SocketAddr, name: &HostName, kind: u16) -> io::Result<DnsReply> {
    let mut stream = TcpStream::connect(server).await?;
    let id = number()?;
    let question = dns::ask(id, name, kind);
    let mut message = (question.len() as u16).to_be_bytes().to_vec();
    message.extend(question);
    stream.write_all(&message).await?;
    let mut length = [0; 2];
    stream.read_exact(&mut length).await?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer).await?;
    dns::read(&answer, id, name, kind).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The resolvers of a `resolv.conf`.
fn servers(text: &str) -> Vec<SocketAddr> {
    let mut servers: Vec<SocketAddr> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next()? == "nameserver").then_some(())?;
            let address: IpAddr = words.next()?.parse().ok()?;
            Some(SocketAddr::new(address, 53))
        })
        .take(SERVERS)
        .collect();
    if servers.is_empty() {
        // As the C library has it.
        servers.push((Ipv4Addr::LOCALHOST, 53).into());
    }
    servers
}

/// The names of a `hosts` file.
fn hosts(text: &str) -> HashMap<HostName, Vec<IpAddr>> {
    let mut known: HashMap<HostName, Vec<IpAddr>> = HashMap::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else {
            continue;
        };
        for name in words.filter_map(|word| HostName::from_ascii(word.as_bytes()).ok()) {
            let addresses = known.entry(name).or_default();
            if addresses.len() < 16 && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_files_are_read_as_the_c_library_reads_them() {
        let found =
            servers("# x\nsearch a.com\nnameserver 192.0.2.1\nnameserver ::1\nnameserver odd\n");
        assert_eq!(
            found,
            ["192.0.2.1:53".parse().unwrap(), "[::1]:53".parse().unwrap()]
        );
        assert_eq!(servers(""), ["127.0.0.1:53".parse().unwrap()]);
        let known = hosts("127.0.0.1 localhost Box.local # me\n::1 localhost\nodd line\n");
        let name = |text: &str| HostName::from_ascii(text.as_bytes()).unwrap();
        assert_eq!(known[&name("localhost")].len(), 2);
        assert_eq!(known[&name("box.local")].len(), 1);
        assert!(!known.contains_key(&name("me")));
    }

    #[test]
    fn junk_that_is_remembered_makes_room_for_what_comes_later() {
        let resolver = Resolver {
            servers: Vec::new(),
            fixed: HashMap::new(),
            memory: RefCell::default(),
        };
        let name = |text: &str| HostName::from_ascii(text.as_bytes()).unwrap();
        for number in 0..2 * MEMORY {
            resolver.remember(&name(&format!("junk{number}.example")), &[], SHORT_MEMORY);
        }
        let address = "192.0.2.7".parse().unwrap();
        resolver.remember(&name("api.example.com"), &[address], LONGEST_MEMORY);
        for number in 0..MEMORY / 2 {
            resolver.remember(&name(&format!("more{number}.example")), &[], SHORT_MEMORY);
        }
        let memory = resolver.memory.borrow();
        assert_eq!(memory.len(), MEMORY);
        assert_eq!(memory[&name("api.example.com")].addresses, [address]);
    }
}
