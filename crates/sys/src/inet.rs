//! Socket options that rustix lacks: transparent sockets, and datagrams with the address that
//! they were sent to.

use crate::check;
use std::io;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the value lives across the call, and its size is what is said.
    check(i64::from(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(&value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    }))
    .map(drop)
}

/// Lets an IPv6 socket take connections to addresses that are not the host's own, IPv4 in
/// IPv6 included. Needs CAP_NET_ADMIN over the network namespace.
pub fn set_transparent(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1)?;
    set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1)
}

/// Bounds the bytes that wait in a TCP socket before they are sent: a write beyond them has to
/// wait. What is on its way is not counted.
pub fn bound_unsent(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes)
}

/// Makes the kernel tell, with each datagram of an IPv6 socket, the address it was sent to.
pub fn tell_destination(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)
}

/// A datagram that came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    /// How many bytes of the buffer it fills; longer ones are cut.
    pub length: usize,
    /// Who sent it.
    pub from: SocketAddrV6,
    /// The address it was sent to; the answer comes from there.
    pub to: Ipv6Addr,
}

/// Room for one control message with the kernel's `in6_pktinfo`, aligned as it wants it.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// An address as the kernel writes it.
fn kernel_address(address: SocketAddrV6) -> libc::sockaddr_in6 {
    libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: address.port().to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr {
            s6_addr: address.ip().octets(),
        },
        sin6_scope_id: address.scope_id(),
    }
}

/// Length of a control message's header.
const HEADER: usize = size_of::<libc::cmsghdr>();

/// A message of one part. Its fields differ between C libraries, in size and in what lies between
/// them.
fn message(
    name: &mut libc::sockaddr_in6,
    part: &mut libc::iovec,
    control: &mut Control,
    length: usize,
) -> libc::msghdr {
    // SAFETY: a message of zeroes names nothing.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = std::ptr::from_mut(name).cast();
    message.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    message.msg_iov = std::ptr::from_mut(part);
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = length as _;
    message
}

/// Takes a datagram from an IPv6 socket after [`tell_destination`]; `None` for one without a
/// destination, which is dropped.
pub fn receive_datagram(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<Datagram>> {
    let any = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, 0);
    let mut from = kernel_address(any);
    let mut control = Control([0; 64]);
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let length = control.0.len();
    let mut message = message(&mut from, &mut part, &mut control, length);
    // SAFETY: every buffer that the message names lives across the call and is as long as it
    // says.
    let length = check(unsafe {
        libc::recvmsg(
            socket.as_raw_fd(),
            std::ptr::from_mut(&mut message),
            libc::MSG_DONTWAIT,
        ) as i64
    })? as usize;
    // One message is asked for, so it is the first: level and type, then the address.
    #[allow(clippy::unnecessary_cast, reason = "a smaller number with musl")]
    let told = message.msg_controllen as usize;
    let filled = control.0.get(..told).unwrap_or_default();
    let number = |at: usize| {
        let bytes = filled.get(at..at + 4)?;
        Some(i32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let wanted = (Some(libc::IPPROTO_IPV6), Some(libc::IPV6_PKTINFO));
    let to: Option<[u8; 16]> = filled
        .get(HEADER..HEADER + 16)
        .and_then(|bytes| bytes.try_into().ok());
    if (number(8), number(12)) != wanted || from.sin6_family != libc::AF_INET6 as u16 {
        return Ok(None);
    }
    Ok(to.map(|to| Datagram {
        length,
        from: SocketAddrV6::new(
            Ipv6Addr::from(from.sin6_addr.s6_addr),
            u16::from_be(from.sin6_port),
            0,
            from.sin6_scope_id,
        ),
        to: Ipv6Addr::from(to),
    }))
}

/// Sends a datagram from a given address of the socket's host.
pub fn send_datagram(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    from: Ipv6Addr,
    to: SocketAddrV6,
) -> io::Result<()> {
    let mut name = kernel_address(to);
    let mut control = Control([0; 64]);
    let length = HEADER + 20;
    control.0[..8].copy_from_slice(&length.to_ne_bytes());
    control.0[8..12].copy_from_slice(&libc::IPPROTO_IPV6.to_ne_bytes());
    control.0[12..16].copy_from_slice(&libc::IPV6_PKTINFO.to_ne_bytes());
    control.0[HEADER..HEADER + 16].copy_from_slice(&from.octets());
    let mut part = libc::iovec {
        // The kernel only reads there.
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // Header and address, rounded up to eight as the kernel counts.
    let length = length.next_multiple_of(8);
    let message = message(&mut name, &mut part, &mut control, length);
    // SAFETY: every buffer that the message names lives across the call and is as long as it
    // says; the kernel reads them only.
    check(unsafe {
        libc::sendmsg(
            socket.as_raw_fd(),
            std::ptr::from_ref(&message),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        ) as i64
    })
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn a_datagram_tells_where_it_went_and_the_answer_comes_from_there() {
        let server = UdpSocket::bind("[::]:0").unwrap();
        tell_destination(server.as_fd()).unwrap();
        let port = server.local_addr().unwrap().port();
        for (own, target) in [("127.0.0.1:0", "127.0.0.3"), ("[::1]:0", "::1")] {
            let client = UdpSocket::bind(own).unwrap();
            client.connect((target, port)).unwrap();
            client.send(b"ask").unwrap();
            let mut buffer = [0; 16];
            let came = loop {
                match receive_datagram(server.as_fd(), &mut buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    other => break other.unwrap().unwrap(),
                }
            };
            assert_eq!(&buffer[..came.length], b"ask");
            send_datagram(server.as_fd(), b"yes", came.to, came.from).unwrap();
            let mut answer = [0; 16];
            // Connected: what came from another address would not be heard.
            let length = client.recv(&mut answer).unwrap();
            assert_eq!(&answer[..length], b"yes");
        }
    }
}
