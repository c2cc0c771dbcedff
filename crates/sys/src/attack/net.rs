//! Sockets of unusual families, and the loopback of the stage's own network.

use super::checked;
use rustix::io::Errno;
use std::ffi::CString;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Makes a socket of any family, type and protocol.
pub fn socket_of(family: i32, kind: i32, protocol: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: socket takes numbers only.
    let fd = checked(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) }.into())?;
    // SAFETY: the kernel has just handed out this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Makes and binds a netlink socket of one protocol.
pub fn netlink_socket(protocol: i32) -> Result<OwnedFd, Errno> {
    let socket = socket_of(libc::AF_NETLINK, libc::SOCK_RAW, protocol)?;
    // SAFETY: an all-zero sockaddr_nl is a valid value of that plain C struct.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as u16;
    let length = std::mem::size_of::<libc::sockaddr_nl>() as u32;
    // SAFETY: the address is a valid sockaddr_nl of the stated length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    checked(bound.into())?;
    Ok(socket)
}

/// Opens a socket for whole frames of an interface, by its name.
pub fn raw_frames(interface: &str) -> Result<OwnedFd, Errno> {
    let all = (libc::ETH_P_ALL as u16).to_be();
    let socket = socket_of(libc::AF_PACKET, libc::SOCK_RAW, i32::from(all))?;
    let name = CString::new(interface).map_err(|_| Errno::INVAL)?;
    // SAFETY: the name is a string with an end, which lives across the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    // SAFETY: an all-zero sockaddr_ll is a valid value of that plain C struct.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = all;
    address.sll_ifindex = i32::try_from(index).map_err(|_| Errno::INVAL)?;
    let length = std::mem::size_of::<libc::sockaddr_ll>() as u32;
    // SAFETY: the address is a valid sockaddr_ll of the stated length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    checked(bound.into())?;
    Ok(socket)
}

fn interface_name(text: &[u8]) -> [libc::c_char; libc::IFNAMSIZ] {
    let mut name = [0; libc::IFNAMSIZ];
    for (slot, byte) in name.iter_mut().take(libc::IFNAMSIZ - 1).zip(text) {
        *slot = *byte as libc::c_char;
    }
    name
}

/// Brings `lo` up in the network namespace of the calling thread.
pub fn loopback_up() -> Result<(), Errno> {
    let socket = socket_of(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: an all-zero ifreq is a valid value of that plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name = interface_name(b"lo");
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    // SAFETY: SIOCSIFFLAGS reads an ifreq.
    checked(
        unsafe {
            libc::ioctl(
                socket.as_raw_fd(),
                libc::SIOCSIFFLAGS as _,
                &raw mut request,
            )
        }
        .into(),
    )
    .map(drop)
}

#[repr(C)]
struct In6Request {
    address: [u8; 16],
    prefix_length: u32,
    interface: i32,
}

/// Adds one address to `lo`.
pub fn add_loopback_address(address: IpAddr) -> Result<(), Errno> {
    match address {
        IpAddr::V4(v4) => {
            let socket = socket_of(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
            // SAFETY: an all-zero ifreq is a valid value of that plain C struct.
            let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
            // An alias of its own, so that 127.0.0.1 stays.
            request.ifr_name = interface_name(b"lo:canary");
            let octets = v4.octets();
            request.ifr_ifru.ifru_addr.sa_family = libc::AF_INET as u16;
            // SAFETY: the union was zeroed and its address part set just before.
            let data = unsafe { &mut request.ifr_ifru.ifru_addr.sa_data };
            for (slot, byte) in data[2..6].iter_mut().zip(octets) {
                *slot = byte as libc::c_char;
            }
            // SAFETY: SIOCSIFADDR reads an ifreq.
            let done = unsafe {
                libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFADDR as _, &raw mut request)
            };
            checked(done.into()).map(drop)
        }
        IpAddr::V6(v6) => {
            let socket = socket_of(libc::AF_INET6, libc::SOCK_DGRAM, 0)?;
            let mut request = In6Request {
                address: v6.octets(),
                prefix_length: 128,
                interface: 1,
            };
            // SAFETY: SIOCSIFADDR on an IPv6 socket reads an in6_ifreq, which this is.
            let done = unsafe {
                libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFADDR as _, &raw mut request)
            };
            checked(done.into()).map(drop)
        }
    }
}
