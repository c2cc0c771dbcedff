//! Reports connections that nobody outside the cage sees: those of a cage without a network, and
//! those to the loopback, which is the cage's own.
//!
//! The filter reports `connect` with the length of an Internet address, and every such call is
//! carried out whatever is read here: nothing is decided by it, so it does not matter that the
//! caller can change the address after it was read. The kernel refuses the connection.

use ironcage_egress::OTHERS;
use ironcage_model::{HOST_NAME, NetworkReason, NetworkVerdict, Protocol, Traffic};
use ironcage_plan::Plan;
use ironcage_sys::process::read_memory;
use ironcage_sys::rustix::fs::getxattr;
use ironcage_sys::seccomp::{self, Notification};
use ironcage_watchdog::listens_on_loopback;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

/// Destinations outside the cage that are counted one by one; the rest is counted together.
const MOST_ADDRESSES: usize = 64;
/// Loopback ports, besides: addresses do not crowd them out.
const MOST_PORTS: usize = 32;
/// Longest list of a cage's sockets that is read: the cage decides how many it has.
const LONGEST_TABLE: u64 = 1 << 20;
/// The resolver of a cage: what is wrong with a lookup is told by its answer.
const DNS_PORT: u16 = 53;

/// Where a connection was to go, as far as somebody has to hear of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Destination {
    Address(SocketAddr),
    /// The host, by its name in cages.
    Host(u16),
    /// The loopback. It is the cage's own, and a person may have meant the host's.
    Loopback(u16),
}

/// The connections of one cage that were reported.
#[derive(Debug, Default)]
pub(crate) struct ConnectReports {
    seen: BTreeMap<Destination, u64>,
    /// Loopback ports where nothing has to be told.
    served: Vec<u16>,
    others: u64,
}

impl ConnectReports {
    /// What goes on record of a call that waits for its answer: the first to a destination.
    pub(crate) fn look(
        &mut self,
        plan: &Plan,
        listener: BorrowedFd<'_>,
        notification: &Notification,
    ) -> Option<Traffic> {
        let pid = notification.pid;
        let destination = destination(plan, address_of(notification)?)?;
        if self.is_served(destination) || !is_stream(notification) {
            return None;
        }
        // Only then it was read from the caller, and not from another process of that number.
        if !seccomp::still_waits(listener, notification.id) {
            return None;
        }
        self.note(destination, |port| {
            // In this order: the host's list is short, and the cage's takes long to make.
            listens_on_loopback(port).unwrap_or(false) && !listens_inside(pid, port)
        })
    }

    fn is_served(&self, destination: Destination) -> bool {
        matches!(destination, Destination::Loopback(port) if self.served.contains(&port))
    }

    /// Counts a destination. `offered` is whether a service of the host is what a loopback port
    /// may have meant, because nothing listens there in the cage.
    fn note(
        &mut self,
        destination: Destination,
        offered: impl FnOnce(u16) -> bool,
    ) -> Option<Traffic> {
        if self.is_served(destination) {
            return None;
        }
        if let Some(count) = self.seen.get_mut(&destination) {
            *count += 1;
            return None;
        }
        let loopback = |known: &Destination| matches!(known, Destination::Loopback(..));
        let ports = self.seen.keys().filter(|known| loopback(known)).count();
        if let Destination::Loopback(port) = destination {
            if ports + self.served.len() >= MOST_PORTS {
                return None;
            }
            if !offered(port) {
                self.served.push(port);
                return None;
            }
        } else if self.seen.len() - ports >= MOST_ADDRESSES {
            self.others += 1;
            return None;
        }
        self.seen.insert(destination, 1);
        Some(traffic(destination, 1))
    }

    /// The counts that the first reports did not have.
    pub(crate) fn remainder(&self) -> Vec<Traffic> {
        let more = self.seen.iter().filter(|(_, count)| **count > 1);
        let more = more.map(|(destination, count)| traffic(*destination, count - 1));
        let others = (self.others > 0).then(|| Traffic {
            host: OTHERS.into(),
            ..traffic(Destination::Host(0), self.others)
        });
        more.chain(others).collect()
    }
}

fn traffic(destination: Destination, connections: u64) -> Traffic {
    let (host, port, reason) = match destination {
        Destination::Address(address) => (
            address.ip().to_string(),
            address.port(),
            NetworkReason::AddressNotAllowed,
        ),
        Destination::Host(port) => (
            HOST_NAME.to_owned(),
            port,
            NetworkReason::LoopbackPortNotAllowed,
        ),
        Destination::Loopback(port) => (
            Ipv4Addr::LOCALHOST.to_string(),
            port,
            NetworkReason::LoopbackPortNotAllowed,
        ),
    };
    Traffic {
        verdict: NetworkVerdict::Denied,
        host,
        port,
        protocol: Protocol::Tcp,
        address: None,
        rule: None,
        reason: Some(reason.into()),
        request: None,
        status: None,
        connections,
        sent: 0,
        received: 0,
    }
}

/// What an address is in this cage; `None` where the egress proxy tells of it, or nobody has to.
fn destination(plan: &Plan, address: SocketAddr) -> Option<Destination> {
    let (ip, port) = (address.ip().to_canonical(), address.port());
    if port == 0 || port == DNS_PORT {
        return None;
    }
    if ip == Ipv4Addr::LOCALHOST || ip == Ipv6Addr::LOCALHOST {
        let network = plan.network.iter();
        let mut open = network.flat_map(|network| &network.host_ports);
        let reached = open.any(|item| item.what.port == port);
        return (!reached).then_some(Destination::Loopback(port));
    }
    if plan.network.is_some() || ip.is_loopback() || ip.is_unspecified() {
        return None;
    }
    // The resolver of such a cage gives an address to no other name.
    Some(match ironcage_egress::stands_for_a_name(ip) {
        true => Destination::Host(port),
        false => Destination::Address(SocketAddr::new(ip, port)),
    })
}

/// Whether it is a TCP socket that is being connected. Connecting a datagram socket sends nothing.
fn is_stream(notification: &Notification) -> bool {
    // The low half of the register is the descriptor.
    let (pid, descriptor) = (notification.pid, notification.arguments[0] as u32);
    let mut protocol = [0; 16];
    let socket = format!("/proc/{pid}/fd/{descriptor}");
    getxattr(socket, "system.sockprotoname", &mut protocol[..]).is_ok()
        && (protocol.starts_with(b"TCP") || protocol.starts_with(b"MPTCP"))
}

/// The address that a socket is being connected to.
fn address_of(notification: &Notification) -> Option<SocketAddr> {
    const LONGEST: usize = size_of::<libc::sockaddr_in6>();
    let [_, at, length, ..] = notification.arguments;
    let mut bytes = [0; LONGEST];
    let length = usize::try_from(length).ok()?.min(LONGEST);
    let room = bytes.get_mut(..length)?;
    (read_memory(notification.pid, at, room).ok()? == length).then_some(())?;
    socket_address(room)
}

/// A socket address as it is in memory.
fn socket_address(bytes: &[u8]) -> Option<SocketAddr> {
    const INET: u16 = libc::AF_INET as u16;
    const INET6: u16 = libc::AF_INET6 as u16;
    let part = |from: usize, to: usize| bytes.get(from..to);
    let port = u16::from_be_bytes(part(2, 4)?.try_into().ok()?);
    let ip: IpAddr = match u16::from_ne_bytes(part(0, 2)?.try_into().ok()?) {
        INET => <[u8; 4]>::try_from(part(4, 8)?).ok()?.into(),
        INET6 => <[u8; 16]>::try_from(part(8, 24)?).ok()?.into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Whether a TCP socket listens on a port in the network namespace of a process.
fn listens_inside(pid: u32, port: u16) -> bool {
    ["tcp", "tcp6"].iter().any(|table| {
        let Ok(file) = File::open(format!("/proc/{pid}/net/{table}")) else {
            return false;
        };
        let mut text = String::new();
        let read = file.take(LONGEST_TABLE).read_to_string(&mut text);
        let found = text.lines().filter_map(listening).any(|open| open == port);
        // Of so many sockets it is not known, and nothing is told that may be wrong.
        found || read.is_ok_and(|length| length as u64 == LONGEST_TABLE)
    })
}

/// The port of a row of the kernel's table that is a listening socket.
fn listening(row: &str) -> Option<u16> {
    const LISTENING: &str = "0A";
    let mut fields = row.split_ascii_whitespace().skip(1);
    let (local, state) = (fields.next()?, fields.nth(1)?);
    let (_, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    (state == LISTENING).then_some(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: usize) -> Destination {
        let ip = Ipv4Addr::from_bits(0x0a00_0000 + number as u32);
        Destination::Address(SocketAddr::new(ip.into(), 80))
    }

    fn loopback(port: u16) -> Destination {
        Destination::Loopback(port)
    }

    #[test]
    fn the_first_connection_is_told_and_the_rest_is_counted() {
        let mut reports = ConnectReports::default();
        let first = reports.note(address(1), |_| false).unwrap();
        assert_eq!((first.host.as_str(), first.port), ("10.0.0.1", 80));
        assert_eq!(first.connections, 1);
        assert!(reports.note(address(1), |_| false).is_none());
        assert!(reports.note(address(1), |_| false).is_none());
        let rest = reports.remainder();
        assert_eq!(rest.len(), 1);
        assert_eq!(rest[0].connections, 2);
    }

    #[test]
    fn a_loopback_port_is_told_only_where_the_host_has_what_the_cage_has_not() {
        let mut reports = ConnectReports::default();
        assert!(reports.note(loopback(8000), |_| false).is_none());
        // Looked up once.
        assert!(reports.note(loopback(8000), |_| true).is_none());
        let told = reports.note(loopback(9000), |port| port == 9000).unwrap();
        let reason = NetworkReason::LoopbackPortNotAllowed;
        assert_eq!(told.reason, Some(reason.into()));
    }

    #[test]
    fn junk_addresses_are_counted_and_leave_loopback_ports_their_rows() {
        let mut reports = ConnectReports::default();
        for number in 0..1000 {
            reports.note(address(number), |_| false);
        }
        assert!(reports.note(loopback(8000), |_| true).is_some());
        let rest = reports.remainder();
        assert_eq!(rest.len(), 1);
        assert_eq!(rest[0].connections, 1000 - MOST_ADDRESSES as u64);
        for port in 1..1000 {
            reports.note(loopback(port), |_| true);
        }
        assert_eq!(reports.seen.len(), MOST_ADDRESSES + MOST_PORTS);
    }

    #[test]
    fn addresses_are_read_as_the_kernel_reads_them() {
        let four = [2, 0, 0x1f, 0x40, 10, 9, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0];
        let expected: SocketAddr = "10.9.8.7:8000".parse().unwrap();
        assert_eq!(socket_address(&four), Some(expected));
        let mut six = [0; 28];
        six[..4].copy_from_slice(&[10, 0, 0x1f, 0x40]);
        six[23] = 1;
        let expected: SocketAddr = "[::1]:8000".parse().unwrap();
        assert_eq!(socket_address(&six), Some(expected));
        assert_eq!(socket_address(&[1, 0, b'/', b'x']), None);
        assert_eq!(socket_address(&four[..6]), None);
        assert_eq!(socket_address(&[]), None);
    }

    #[test]
    fn listening_sockets_are_told_from_others() {
        let row = "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 0";
        assert_eq!(listening(row), Some(8000));
        let open = "   1: 0100007F:1F40 0100007F:9C40 01 00000000:00000000 00:00000000 0";
        assert_eq!(listening(open), None);
        assert_eq!(listening("  sl  local_address rem_address   st"), None);
    }
}
