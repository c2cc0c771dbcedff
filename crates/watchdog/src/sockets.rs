//! Sockets as the kernel lists them: those that listen, and the bytes that wait in those of a cage,
//! memory which no process shows and which only a cgroup counts. The kernel lists the sockets
//! of a network namespace with what each holds (`sock_diag(7)`), to a socket that was made in it.

use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;

/// Messages of netlink: header, and what is asked and answered.
const HEADER: usize = 16;
const BY_FAMILY: u16 = 20;
const REQUEST_AND_DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const EVERY_STATE: u32 = u32::MAX;
const LISTENING: u32 = 1 << 10;

const UNIX: u8 = 1;
const INET: u8 = 2;
const INET6: u8 = 10;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Of a socket of the family UNIX: its peer, the length of its queue, its memory.
const UNIX_SHOW: u32 = 0x04 | 0x10 | 0x20;
const UNIX_ANSWER: usize = 16;
const PEER: u16 = 2;
const QUEUE: u16 = 4;
const UNIX_MEMORY: u16 = 5;
/// Of others: their memory.
const INET_SHOW: u8 = 1 << 6;
const INET_ANSWER: usize = 72;
const INET_MEMORY: u16 = 7;

/// What a socket's memory is made of, by place.
const RECEIVED: usize = 0;
const SENT: usize = 2;
const UNSENT: usize = 5;

const PART: usize = 64 * 1024;

/// Bytes in all sockets of a namespace. `largest` is the most that one socket may send unread: what
/// a closed one has sent is not listed, only that something of it is left.
///
/// # Errors
/// Where the kernel does not list them.
pub(crate) fn bytes(list: &OwnedFd, largest: u64) -> io::Result<u64> {
    let mut all = ask(list, &unix_request(), |answer| of_unix(answer, largest))?;
    for family in [INET, INET6] {
        for protocol in [TCP, UDP] {
            match ask(list, &inet_request(family, protocol, EVERY_STATE), of_inet) {
                Ok(bytes) => all = all.saturating_add(bytes),
                // A kernel without this family or its list.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(all)
}

/// Whether a TCP socket listens on this port where connections to the loopback reach it, in the
/// caller's network namespace. `/proc/net/tcp` would list open connections first, which takes tens
/// of milliseconds.
///
/// # Errors
/// Where the kernel does not list them.
pub fn listens_on_loopback(port: u16) -> io::Result<bool> {
    let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
    let protocol = Some(netlink::SOCK_DIAG);
    let list = socket_with(AddressFamily::NETLINK, kind, flags, protocol)?;
    for family in [INET, INET6] {
        let request = inet_request(family, TCP, LISTENING);
        if ask(&list, &request, |answer| u64::from(is_at(answer, port)))? > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a listed socket has this port, and an address that the loopback leads to.
fn is_at(answer: &[u8], port: u16) -> bool {
    let (Some(own), Some(address)) = (answer.get(4..6), answer.get(8..24)) else {
        return false;
    };
    let four = matches!(answer.first(), Some(&INET));
    let anywhere = address.iter().all(|byte| *byte == 0);
    let mut six = [0; 16];
    six.copy_from_slice(address);
    let loopback = match four {
        true => address.starts_with(&[127]),
        false => Ipv6Addr::from(six).to_canonical().is_loopback(),
    };
    own == port.to_be_bytes() && (anywhere || loopback)
}

fn request(body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend(BY_FAMILY.to_ne_bytes());
    message.extend(REQUEST_AND_DUMP.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

fn unix_request() -> Vec<u8> {
    let mut body = vec![UNIX, 0, 0, 0];
    body.extend(EVERY_STATE.to_ne_bytes());
    body.extend([0; 4]);
    body.extend(UNIX_SHOW.to_ne_bytes());
    body.extend([0; 8]);
    request(&body)
}

fn inet_request(family: u8, protocol: u8, states: u32) -> Vec<u8> {
    let mut body = vec![family, protocol, INET_SHOW, 0];
    body.extend(states.to_ne_bytes());
    body.extend([0; 48]);
    request(&body)
}

/// Sends a request and adds up what is made of each answer.
fn ask(list: &OwnedFd, request: &[u8], of: impl Fn(&[u8]) -> u64) -> io::Result<u64> {
    send(list, request, SendFlags::empty())?;
    let mut part = vec![0; PART];
    let mut all = 0_u64;
    loop {
        let (read, _) = match recv(list, part.as_mut_slice(), RecvFlags::DONTWAIT) {
            Ok(read) => read,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let (bytes, is_last) = messages(part.get(..read).unwrap_or_default(), &of)?;
        all = all.saturating_add(bytes);
        if is_last {
            return Ok(all);
        }
    }
}

/// What the answers of one part add up to, and whether it is the last.
fn messages(mut part: &[u8], of: &impl Fn(&[u8]) -> u64) -> io::Result<(u64, bool)> {
    let mut all = 0_u64;
    while let (Some(length), Some(kind)) = (word(part, 0), half(part, 4)) {
        let length = length as usize;
        let Some(body) = part.get(HEADER..length) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        match kind {
            DONE => return Ok((all, true)),
            ERROR => {
                let errno = word(body, 0).map_or(0, |errno| (errno as i32).saturating_neg());
                return Err(io::Error::from_raw_os_error(errno));
            }
            _ => all = all.saturating_add(of(body)),
        }
        part = part.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok((all, false))
}

/// What a socket of the family UNIX has sent and nobody has read.
fn of_unix(answer: &[u8], largest: u64) -> u64 {
    let (mut memory, mut queue, mut peer) = (0_u64, 0_u64, 0_u32);
    attributes(
        answer.get(UNIX_ANSWER..).unwrap_or_default(),
        |kind, value| match kind {
            PEER => peer = word(value, 0).unwrap_or(0),
            QUEUE => queue = word(value, 0).unwrap_or(0).into(),
            UNIX_MEMORY => memory = word(value, 4 * SENT).unwrap_or(0).into(),
            _ => {}
        },
    );
    // What waits for it counts where it was sent, unless that socket is gone. How much memory it
    // takes is then not told: a byte may take a kilobyte.
    match (peer, queue) {
        (0, 1..) => memory.saturating_add(queue.max(largest)),
        _ => memory,
    }
}

fn of_inet(answer: &[u8]) -> u64 {
    let mut bytes = 0_u64;
    attributes(
        answer.get(INET_ANSWER..).unwrap_or_default(),
        |kind, value| {
            if kind == INET_MEMORY {
                let at = |place: usize| u64::from(word(value, 4 * place).unwrap_or(0));
                bytes = at(RECEIVED).saturating_add(at(SENT).max(at(UNSENT)));
            }
        },
    );
    bytes
}

fn attributes(mut rest: &[u8], mut each: impl FnMut(u16, &[u8])) {
    while let (Some(length), Some(kind)) = (half(rest, 0), half(rest, 2)) {
        let length = usize::from(length);
        let Some(value) = rest.get(4..length) else {
            return;
        };
        each(kind, value);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_sys::rustix::net::socketpair;
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;

    const LARGEST: u64 = 8 << 20;

    fn list() -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        let protocol = Some(netlink::SOCK_DIAG);
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol).unwrap()
    }

    fn pair(kind: SocketType) -> (UnixStream, UnixStream) {
        let (a, b) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        (a.into(), b.into())
    }

    /// Whether sockets hold more than before by at least so much. Other programs of the machine
    /// have sockets, too: the least of several looks counts.
    fn grows_by(least: u64, fill: impl FnOnce() -> Vec<UnixStream>) -> bool {
        // The tests of this file would count each other's sockets.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock();
        let list = list();
        let look = || bytes(&list, LARGEST).unwrap();
        let before = (0..5).map(|_| look()).max().unwrap();
        let _held = fill();
        (0..5).map(|_| look()).min().unwrap() >= before + least
    }

    fn fill(socket: &mut UnixStream) -> u64 {
        socket.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(bytes) = socket.write(&[7; 4096]) {
            sent += bytes as u64;
        }
        sent
    }

    #[test]
    fn what_waits_in_sockets_is_counted_and_an_empty_one_is_not() {
        let hundred = || -> Vec<UnixStream> {
            let pairs = (0..100).flat_map(|_| {
                let (a, b) = pair(SocketType::STREAM);
                [a, b]
            });
            pairs.collect()
        };
        assert!(!grows_by(4 << 20, hundred));
        let filled = || {
            let mut all = hundred();
            for socket in &mut all {
                fill(socket);
            }
            all
        };
        assert!(grows_by(4 << 20, filled));
    }

    #[test]
    fn a_listening_socket_is_found_and_one_that_is_closed_is_not() {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let port = listener.local_addr().unwrap().port();
            assert!(listens_on_loopback(port).unwrap(), "{address}");
            drop(listener);
            assert!(!listens_on_loopback(port).unwrap(), "{address}");
        }
    }

    /// The sender is not listed any more, and what it sent is still there.
    #[test]
    fn what_a_closed_socket_has_sent_is_counted_too() {
        for kind in [SocketType::STREAM, SocketType::DGRAM, SocketType::SEQPACKET] {
            let left = || {
                let (mut sender, receiver) = pair(kind);
                assert!(fill(&mut sender) > 0);
                vec![receiver]
            };
            assert!(grows_by(LARGEST / 2, left), "{kind:?}");
        }
    }

    #[test]
    fn answers_that_are_cut_or_lie_about_their_length_do_no_harm() {
        let none = |_: &[u8]| 1;
        for part in [&b""[..], b"\x10", &[255; 40], &[16, 0, 0, 0, 20, 0]] {
            let _ = messages(part, &none);
        }
        assert!(messages(&[8, 0, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &none).is_err());
        for answer in [&[0; 3][..], &[255; 90], &[0; 72]] {
            let _ = of_unix(answer, LARGEST);
            let _ = of_inet(answer);
        }
    }
}
