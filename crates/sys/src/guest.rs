//! System calls of the init of a microVM's guest.

use crate::check;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Loads a module of the kernel from its file. One that is loaded already is fine.
pub fn load_module(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the parameters are an empty string, which lives across the call; the kernel checks
    // the module itself.
    let result = check(unsafe {
        libc::syscall(
            libc::SYS_finit_module,
            file.as_raw_fd(),
            c"".as_ptr(),
            0 as libc::c_int,
        )
    });
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        other => other.map(drop),
    }
}

/// The kernel's `struct ifreq` with an address, or with flags.
#[repr(C)]
struct Interface {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; 24],
}

impl Interface {
    fn new(name: &str, value: &[u8]) -> io::Result<Interface> {
        let mut request = Interface {
            name: [0; libc::IFNAMSIZ],
            value: [0; 24],
        };
        let too_long = || io::Error::from(io::ErrorKind::InvalidInput);
        let place = request.name.get_mut(..name.len().min(libc::IFNAMSIZ - 1));
        place
            .filter(|place| place.len() == name.len())
            .ok_or_else(too_long)?
            .copy_from_slice(name.as_bytes());
        let place = request.value.get_mut(..value.len());
        place.ok_or_else(too_long)?.copy_from_slice(value);
        Ok(request)
    }

    fn set(&mut self, socket: &OwnedFd, call: libc::c_ulong) -> io::Result<()> {
        // SAFETY: the structure is as large as the kernel's `struct ifreq` (40 bytes) and lives
        // across the call.
        check(i64::from(unsafe {
            libc::ioctl(
                socket.as_raw_fd(),
                call as libc::Ioctl,
                std::ptr::from_mut(self),
            )
        }))
        .map(drop)
    }
}

/// A `struct sockaddr_in` without a port.
fn socket_address(address: Ipv4Addr) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    bytes[4..8].copy_from_slice(&address.octets());
    bytes
}

/// Gives an interface its address and brings it up, with a default route by `gateway`.
pub fn configure_interface(
    name: &str,
    address: Ipv4Addr,
    mask: Ipv4Addr,
    gateway: Ipv4Addr,
) -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    Interface::new(name, &socket_address(address))?.set(&socket, libc::SIOCSIFADDR)?;
    Interface::new(name, &socket_address(mask))?.set(&socket, libc::SIOCSIFNETMASK)?;
    let up = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    Interface::new(name, &up.to_ne_bytes())?.set(&socket, libc::SIOCSIFFLAGS)?;
    // SAFETY: integers and pointers only, for which zero is a value.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    let place = |address| {
        let bytes = socket_address(address);
        let mut place = libc::sockaddr {
            sa_family: libc::AF_INET as libc::sa_family_t,
            sa_data: [0; 14],
        };
        for (to, from) in place.sa_data.iter_mut().zip(&bytes[2..]) {
            *to = *from as libc::c_char;
        }
        place
    };
    route.rt_dst = place(Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = place(Ipv4Addr::UNSPECIFIED);
    route.rt_gateway = place(gateway);
    route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
    // SAFETY: a whole `struct rtentry`, which lives across the call.
    check(i64::from(unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCADDRT as libc::Ioctl,
            std::ptr::from_mut(&mut route),
        )
    }))
    .map(drop)
}

/// Adds bytes to the kernel's pool of randomness, counts them as random, and has its generator begin
/// with them now: a machine that was restored would give out what its template's others do for up to
/// a minute.
pub fn add_entropy(random: BorrowedFd<'_>, bytes: &[u8; 32]) -> io::Result<()> {
    #[repr(C)]
    struct Pool {
        bits: libc::c_int,
        size: libc::c_int,
        bytes: [u8; 32],
    }
    /// `_IOW('R', 0x03, int[2])`.
    const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
    /// `_IO('R', 0x07)`.
    const RNDRESEEDCRNG: libc::c_ulong = 0x5207;
    let pool = Pool {
        bits: 256,
        size: 32,
        bytes: *bytes,
    };
    // SAFETY: a `struct rand_pool_info` with as many bytes as it says, which lives across the call.
    check(i64::from(unsafe {
        libc::ioctl(
            random.as_raw_fd(),
            RNDADDENTROPY as libc::Ioctl,
            std::ptr::from_ref(&pool),
        )
    }))?;
    // SAFETY: no memory is involved.
    let begun = check(i64::from(unsafe {
        libc::ioctl(random.as_raw_fd(), RNDRESEEDCRNG as libc::Ioctl)
    }));
    match begun {
        // It was never begun, and begins with these bytes.
        Err(error) if error.raw_os_error() == Some(libc::ENODATA) => Ok(()),
        other => other.map(drop),
    }
}
