//! The proxy sockets: every address is the namespace's own, and every TCP connection is delivered to
//! a socket that is handed out of it.
//!
//! There is no other interface than the loopback and no process inside. Where the proxy sockets's
//! sockets are closed, connections end in a reset: without the proxy there is no network.

use super::netlink::{ACK, APPEND, Batch, Body, CREATE, EXCLUSIVE, REQUEST};
use crate::error::{Doing, LayerError};
use ironcage_model::Layer;
use ironcage_sys::faults;
use ironcage_sys::inet::{set_transparent, tell_destination};
use ironcage_sys::rustix::net::sockopt::set_ipv6_v6only;
use ironcage_sys::rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, listen, netlink, socket_with,
};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

/// The cage's own address; its resolver is there, as on every other address.
pub const OWN_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The same for IPv6, from a range that belongs to nobody.
pub const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd69, 0x726f, 0x6e63, 0, 0, 0, 0, 1);

/// The resolver of a cage without a network; `resolv.conf` in the plan names the same address.
const DENYING_RESOLVER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 53);

/// Where every connection is delivered.
const PROXY_PORT: u16 = 15001;
const DNS_PORT: u16 = 53;
const LOOPBACK: u32 = 1;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;

/// Sockets in the cage's network namespace, for the proxy outside.
#[derive(Debug)]
pub struct ProxySockets {
    /// Where connections come in.
    pub listeners: Vec<OwnedFd>,
    /// Where questions for names come in.
    pub dns: OwnedFd,
    /// Whether only the ports of the rules are listened on, because the kernel cannot deliver
    /// every connection to one socket; the text says what it lacks.
    pub per_port: Option<String>,
}

/// Makes the proxy sockets in the caller's network namespace. `ports` are those that rules name, or
/// `None` for all; `host_ports` are those of the host's that also appear on the loopback here.
///
/// Preconditions: the caller has CAP_NET_ADMIN over the namespace.
pub fn proxy_sockets(
    ports: Option<&[u16]>,
    host_ports: &[u16],
) -> Result<ProxySockets, LayerError> {
    everything_is_local().doing(Layer::NetNs, || "route every address to the proxy".into())?;
    let dns =
        datagram_socket(DNS_PORT).doing(Layer::NetNs, || "create the resolver socket".into())?;
    let (listeners, per_port) = match deliver(host_ports) {
        Ok(()) => {
            let listener = listener(PROXY_PORT, true).doing(Layer::NetNs, || {
                "create the proxy's listening socket".into()
            })?;
            (vec![listener], None)
        }
        Err(error) => {
            let Some(ports) = ports else {
                return Err(LayerError {
                    layer: Layer::NetNs,
                    action: "deliver every port to the proxy (needs nf_tables with tproxy: \
                             `modprobe nft_tproxy`; or name single ports in every rule)"
                        .into(),
                    source: error,
                    code: ironcage_model::StartCode::LayerFailed,
                });
            };
            let listeners = ports
                .iter()
                .map(|port| {
                    listener(*port, false).doing(Layer::NetNs, || format!("listen on port {port}"))
                })
                .collect::<Result<_, _>>()?;
            (listeners, Some(error.to_string()))
        }
    };
    Ok(ProxySockets {
        listeners,
        dns,
        per_port,
    })
}

/// Loopback up, an address, and a route that makes every destination local.
fn everything_is_local() -> io::Result<()> {
    let mut batch = Batch::default();
    link_up(&mut batch);
    for (family, bits, address, flags, scope) in [
        (INET, 32, OWN_V4.octets().to_vec(), 0, SCOPE_HOST),
        (INET6, 128, OWN_V6.octets().to_vec(), NO_DAD, SCOPE_UNIVERSE),
    ] {
        let optional = family == INET6;
        let address_message = batch.message(NEW_ADDRESS, NEW, |body| {
            body.raw(&[family, bits, flags, 0])
                .raw(&LOOPBACK.to_ne_bytes())
                .attribute(ADDRESS_LOCAL, &address)
                .attribute(ADDRESS_ADDRESS, &address);
        });
        let route_message = batch.message(NEW_ROUTE, NEW, |body| {
            body.raw(&[family, 0, 0, 0, TABLE_LOCAL, PROTOCOL_STATIC, scope, LOCAL])
                .raw(&[0; 4])
                .attribute(ROUTE_OUT, &LOOPBACK.to_ne_bytes())
                // Else the source of a connection would be its destination.
                .attribute(ROUTE_SOURCE, &address);
        });
        if optional {
            // Without IPv6 in the kernel names still have addresses of IPv4 inside.
            return batch.send(None, &[address_message, route_message]);
        }
    }
    Ok(())
}

fn link_up(batch: &mut Batch) {
    batch.message(NEW_LINK, REQUEST | ACK, |body| {
        body.raw(&[0; 4])
            .raw(&LOOPBACK.to_ne_bytes())
            .raw(&UP.to_ne_bytes())
            .raw(&UP.to_ne_bytes());
    });
}

const NEW: u16 = REQUEST | ACK | CREATE | EXCLUSIVE;
const INET: u8 = 2;
const INET6: u8 = 10;
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const UP: u32 = 1;
const ADDRESS_ADDRESS: u16 = 1;
const ADDRESS_LOCAL: u16 = 2;
/// Duplicates are not looked for: there is nobody else.
const NO_DAD: u8 = 2;
const ROUTE_OUT: u16 = 4;
const ROUTE_SOURCE: u16 = 7;
const TABLE_LOCAL: u8 = 255;
const PROTOCOL_STATIC: u8 = 4;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_HOST: u8 = 254;
const LOCAL: u8 = 2;

// nf_tables: messages, attributes and numbers, as linux/netfilter/nf_tables.h has them.
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const SUBSYSTEM: u16 = 10 << 8;
const NEW_TABLE: u16 = SUBSYSTEM;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const FAMILY_INET: u8 = 1;
const TABLE: &str = "cage";
const CHAIN: &str = "proxy";
const PREROUTING: u32 = 0;
/// Where socket matching stands: before any translation of addresses.
const PRIORITY: i32 = -150;
const ACCEPT: u32 = 1;
const REGISTER: u32 = 1;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const META_FAMILY: u32 = 15;
const META_PROTOCOL: u32 = 16;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const TCP: u8 = 6;
const SYN: u8 = 0x02;
const SYN_ACK: u8 = 0x12;

/// Delivers every TCP connection to the proxy's port: one transaction, all or nothing. The
/// loopback's own addresses stay the cage's, but for the host's ports where nobody listens.
fn deliver(host_ports: &[u16]) -> io::Result<()> {
    if faults::lacks("nf_tables") {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    delivery(host_ports).send(Some(netlink::NETFILTER), &[])
}

/// What [`proxy_sockets`] asks of nf_tables, for who wants to know whether a host can do it.
pub fn delivery_messages() -> Vec<u8> {
    // Port 1 stands for a port of the host's, so that all kinds of rules are in it.
    delivery(&[1]).into_bytes()
}

fn delivery(host_ports: &[u16]) -> Batch {
    let mut batch = Batch::default();
    let frame = |body: &mut Body| {
        body.raw(&[0, 0]).raw(&(SUBSYSTEM >> 8).to_be_bytes());
    };
    batch.message(BATCH_BEGIN, REQUEST, frame);
    batch.message(NEW_TABLE, REQUEST | ACK | CREATE, |body| {
        body.raw(&[FAMILY_INET, 0, 0, 0]).text(1, TABLE);
    });
    batch.message(NEW_CHAIN, REQUEST | ACK | CREATE, |body| {
        body.raw(&[FAMILY_INET, 0, 0, 0])
            .text(1, TABLE)
            .text(3, CHAIN)
            .nest(4, |hook| {
                hook.number(1, PREROUTING).number(2, PRIORITY as u32);
            })
            .number(5, ACCEPT)
            .text(7, "filter");
    });
    for family in [INET, INET6] {
        for port in host_ports {
            // Somebody inside listens there: theirs.
            rule(&mut batch, |body| {
                new_connection(body, family, EQUAL);
                to_port(body, *port);
                expression(body, "socket", |data| {
                    data.number(1, SOCKET_WILDCARD).number(2, REGISTER);
                });
                accept(body);
            });
            rule(&mut batch, |body| {
                new_connection(body, family, EQUAL);
                to_port(body, *port);
                to_proxy(body, family);
            });
        }
        rule(&mut batch, |body| {
            new_connection(body, family, NOT_EQUAL);
            to_proxy(body, family);
        });
    }
    batch.message(BATCH_END, REQUEST, frame);
    batch
}

const SOCKET_WILDCARD: u32 = 2;

fn rule(batch: &mut Batch, expressions: impl FnOnce(&mut Body)) {
    batch.message(NEW_RULE, REQUEST | ACK | CREATE | APPEND, |body| {
        body.raw(&[FAMILY_INET, 0, 0, 0])
            .text(1, TABLE)
            .text(2, CHAIN)
            .nest(4, expressions);
    });
}

fn expression(body: &mut Body, name: &str, data: impl FnOnce(&mut Body)) {
    body.nest(1, |element| {
        element.text(1, name).nest(2, data);
    });
}

/// The first packet of a TCP connection; `how` its destination compares with the loopback's.
fn new_connection(body: &mut Body, family: u8, how: u32) {
    for (key, value) in [(META_FAMILY, family), (META_PROTOCOL, TCP)] {
        expression(body, "meta", |data| {
            data.number(1, REGISTER).number(2, key);
        });
        compare(body, EQUAL, &[value]);
    }
    if family == INET {
        payload(body, NETWORK_HEADER, 16, 1);
        compare(body, how, &[127]);
    } else {
        payload(body, NETWORK_HEADER, 24, 16);
        compare(body, how, &Ipv6Addr::LOCALHOST.octets());
    }
    payload(body, TRANSPORT_HEADER, 13, 1);
    expression(body, "bitwise", |data| {
        data.number(1, REGISTER)
            .number(2, REGISTER)
            .number(3, 1)
            .nest(4, |mask| {
                mask.attribute(1, &[SYN_ACK]);
            })
            .nest(5, |flip| {
                flip.attribute(1, &[0]);
            });
    });
    compare(body, EQUAL, &[SYN]);
}

fn to_port(body: &mut Body, port: u16) {
    payload(body, TRANSPORT_HEADER, 2, 2);
    compare(body, EQUAL, &port.to_be_bytes());
}

fn compare(body: &mut Body, how: u32, value: &[u8]) {
    expression(body, "cmp", |data| {
        data.number(1, REGISTER).number(2, how).nest(3, |nest| {
            nest.attribute(1, value);
        });
    });
}

fn payload(body: &mut Body, base: u32, offset: u32, length: u32) {
    expression(body, "payload", |data| {
        data.number(1, REGISTER)
            .number(2, base)
            .number(3, offset)
            .number(4, length);
    });
}

fn accept(body: &mut Body) {
    expression(body, "immediate", |data| {
        // Register zero is the verdict.
        data.number(1, 0).nest(2, |nest| {
            nest.nest(2, |verdict| {
                verdict.number(1, ACCEPT);
            });
        });
    });
}

fn to_proxy(body: &mut Body, family: u8) {
    expression(body, "immediate", |data| {
        data.number(1, REGISTER).nest(2, |nest| {
            nest.attribute(1, &PROXY_PORT.to_be_bytes());
        });
    });
    expression(body, "tproxy", |data| {
        data.number(1, u32::from(family)).number(3, REGISTER);
    });
}

fn socket(kind: SocketType, port: u16, transparent: bool) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET6, kind, flags, None)?;
    set_ipv6_v6only(&socket, false)?;
    if transparent {
        set_transparent(socket.as_fd())?;
    }
    bind(
        &socket,
        &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0),
    )?;
    Ok(socket)
}

fn listener(port: u16, transparent: bool) -> io::Result<OwnedFd> {
    let socket = socket(SocketType::STREAM, port, transparent)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// The resolver's socket of a cage without a network, in the caller's network namespace. Its
/// address is the loopback's, where programs in the cage may still have a resolver of their own on
/// 127.0.0.1.
///
/// Preconditions: the loopback is up, and the caller may bind low ports.
pub fn denying_resolver() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET6, SocketType::DGRAM, flags, None)?;
    tell_destination(socket.as_fd())?;
    let address = DENYING_RESOLVER.to_ipv6_mapped();
    bind(&socket, &SocketAddrV6::new(address, DNS_PORT, 0, 0))?;
    Ok(socket)
}

fn datagram_socket(port: u16) -> io::Result<OwnedFd> {
    let socket = socket(SocketType::DGRAM, port, false)?;
    tell_destination(socket.as_fd())?;
    Ok(socket)
}
