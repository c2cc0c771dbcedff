//! The few messages between the proxy, the supervisor and the helper that makes the proxy sockets,
//! one packet each.
//!
//! The proxy handles what strangers send; the supervisor takes what comes from it as if the
//! agent had sent it: bounded, checked, no trust in lengths.

use ironcage_model::{Overheard, Reason, Traffic};
use ironcage_sys::packet::{self, ancillary_space};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg,
};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longest message.
const MAX: usize = 8192;
/// Most descriptors in one message, and listening sockets that fit.
const MAX_FDS: usize = 64;

const SOCKETS: u8 = b's';
const READY: u8 = b'r';
const FAILED: u8 = b'f';
const TRAFFIC: u8 = b't';
const AUTHORITY: u8 = b'a';
const CHANGED: u8 = b'c';
const DIAL: u8 = b'd';
const OVERHEARD: u8 = b'o';
const SUM: u8 = b'm';

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromProxy {
    /// It is confined and has its sockets. The text says what is narrower than it could be.
    Ready {
        /// Why only single ports are listened on; `None` where every one is.
        per_port: Option<String>,
    },
    /// It could not start.
    Failed(Reason),
    /// The certificate authority that it made for the cage.
    Authority(String),
    /// The first connection of its kind, at once.
    Traffic(Traffic),
    /// Connections of a kind since they were last told.
    Sum(Traffic),
    /// What was ordered holds.
    Changed {
        serial: u32,
        /// Connections that no longer matched.
        closed: u64,
    },
    /// A connection into the cage is wanted, for a port that is published. Answered by
    /// [`crate::Order::Dialled`].
    Dial {
        /// By which the answer is known.
        ticket: u32,
        port: u16,
        /// Whether by IPv6.
        six: bool,
    },
    /// Something between the agent and its model.
    Overheard(Overheard),
    /// The other end is gone.
    Closed,
}

fn garbled() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "invalid message from the egress proxy",
    )
}

/// The helper's side: hands the proxy's sockets to the door. The resolver's socket is the
/// first.
///
/// # Errors
/// Where the proxy is gone, or there are more sockets than one message holds.
pub fn give_sockets(
    proxy: BorrowedFd<'_>,
    dns: &OwnedFd,
    listeners: &[OwnedFd],
    per_port: Option<&str>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); ancillary_space(MAX_FDS)];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = std::iter::once(dns)
        .chain(listeners)
        .map(AsFd::as_fd)
        .collect();
    if fds.len() > MAX_FDS || !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other(format!(
            "the rules name {} ports, and {} can be listened on one by one; nf_tables would deliver all",
            listeners.len(),
            MAX_FDS - 1
        )));
    }
    let mut bytes = vec![SOCKETS];
    bytes.extend(per_port.unwrap_or_default().bytes().take(MAX - 1));
    sendmsg(
        proxy,
        &[IoSlice::new(&bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// The helper's side: says that there are no sockets to come, and why.
///
/// # Errors
/// Where the proxy is gone.
pub fn give_failure(proxy: BorrowedFd<'_>, reason: &str) -> io::Result<()> {
    let mut bytes = vec![FAILED];
    bytes.extend(reason.bytes().take(MAX - 1));
    send(proxy, &bytes, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The sockets of the proxy sockets, on the proxy's side.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) dns: OwnedFd,
    pub(crate) listeners: Vec<OwnedFd>,
    pub(crate) per_port: Option<String>,
}

/// The proxy's side: waits for its sockets. `None` when the other end is gone.
pub(crate) fn take_sockets(socket: BorrowedFd<'_>) -> io::Result<Option<Sockets>> {
    let Some((bytes, mut fds)) = receive_packet(socket, true)? else {
        return Ok(None);
    };
    if let Some((&FAILED, reason)) = bytes.split_first() {
        return Err(io::Error::other(String::from_utf8_lossy(reason)));
    }
    let Some((&SOCKETS, text)) = bytes.split_first() else {
        return if bytes.is_empty() {
            Ok(None)
        } else {
            Err(garbled())
        };
    };
    // Without a listening socket it only answers for names.
    if fds.is_empty() {
        return Err(garbled());
    }
    let listeners = fds.split_off(1);
    let dns = fds.pop().ok_or_else(garbled)?;
    let text = String::from_utf8_lossy(text).into_owned();
    Ok(Some(Sockets {
        dns,
        listeners,
        per_port: Some(text).filter(|text| !text.is_empty()),
    }))
}

fn receive_packet(
    socket: BorrowedFd<'_>,
    wait: bool,
) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let Some(packet) = packet::receive(socket, wait, MAX, MAX_FDS)? else {
        return Ok(None);
    };
    if packet.truncated {
        return Err(garbled());
    }
    Ok(Some((packet.bytes, packet.descriptors)))
}

/// Takes the next message of the door. With `wait` false, `None` when there is none.
pub(crate) fn receive(socket: BorrowedFd<'_>, wait: bool) -> io::Result<Option<FromProxy>> {
    // Descriptors that come with a message are closed here: the proxy has none to give.
    let Some((bytes, _)) = receive_packet(socket, wait)? else {
        return Ok(None);
    };
    let Some((tag, rest)) = bytes.split_first() else {
        return Ok(Some(FromProxy::Closed));
    };
    let text = || String::from_utf8_lossy(rest).into_owned();
    Ok(Some(match *tag {
        READY => FromProxy::Ready {
            per_port: Some(text()).filter(|text| !text.is_empty()),
        },
        FAILED => FromProxy::Failed(serde_json::from_slice(rest).map_err(|_| garbled())?),
        AUTHORITY => FromProxy::Authority(text()),
        TRAFFIC => FromProxy::Traffic(serde_json::from_slice(rest).map_err(|_| garbled())?),
        SUM => FromProxy::Sum(serde_json::from_slice(rest).map_err(|_| garbled())?),
        CHANGED => {
            let (serial, closed) = serde_json::from_slice(rest).map_err(|_| garbled())?;
            FromProxy::Changed { serial, closed }
        }
        DIAL => {
            let (ticket, port, six) = serde_json::from_slice(rest).map_err(|_| garbled())?;
            FromProxy::Dial { ticket, port, six }
        }
        OVERHEARD => FromProxy::Overheard(serde_json::from_slice(rest).map_err(|_| garbled())?),
        _ => return Err(garbled()),
    }))
}

/// The proxy's side: says something, without waiting. `false` when there is no room now.
pub(crate) fn say(socket: BorrowedFd<'_>, message: &FromProxy) -> io::Result<bool> {
    let mut bytes = match message {
        FromProxy::Ready { per_port } => {
            let mut bytes = vec![READY];
            bytes.extend(per_port.as_deref().unwrap_or_default().bytes());
            bytes
        }
        FromProxy::Failed(reason) => {
            let mut bytes = vec![FAILED];
            bytes.extend(serde_json::to_vec(reason)?);
            bytes
        }
        FromProxy::Authority(text) => {
            let mut bytes = vec![AUTHORITY];
            bytes.extend(text.bytes());
            bytes
        }
        FromProxy::Traffic(traffic) => {
            let mut bytes = vec![TRAFFIC];
            bytes.extend(serde_json::to_vec(traffic)?);
            bytes
        }
        FromProxy::Sum(traffic) => {
            let mut bytes = vec![SUM];
            bytes.extend(serde_json::to_vec(traffic)?);
            bytes
        }
        FromProxy::Changed { serial, closed } => {
            let mut bytes = vec![CHANGED];
            bytes.extend(serde_json::to_vec(&(serial, closed))?);
            bytes
        }
        FromProxy::Dial { ticket, port, six } => {
            let mut bytes = vec![DIAL];
            bytes.extend(serde_json::to_vec(&(ticket, port, six))?);
            bytes
        }
        FromProxy::Overheard(overheard) => {
            let mut bytes = vec![OVERHEARD];
            bytes.extend(serde_json::to_vec(overheard)?);
            bytes
        }
        FromProxy::Closed => return Ok(true),
    };
    bytes.truncate(MAX);
    match send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::{NetworkVerdict, Protocol};
    use ironcage_sys::rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap()
    }

    #[test]
    fn what_is_said_is_heard_and_garbage_is_an_error() {
        let (proxy, supervisor) = pair();
        let traffic = Traffic {
            verdict: NetworkVerdict::Denied,
            host: "a.com\u{1b}".into(),
            port: 443,
            protocol: Protocol::Tls,
            address: None,
            rule: None,
            reason: Some(ironcage_model::NetworkReason::HostNotAllowed.into()),
            request: Some("GET /".into()),
            status: Some(403),
            connections: 3,
            sent: 1,
            received: 2,
        };
        for message in [
            FromProxy::Ready { per_port: None },
            FromProxy::Failed(Reason::Start {
                code: ironcage_model::StartCode::SecretMissing,
                text: "why".into(),
            }),
            FromProxy::Authority("certificate".into()),
            FromProxy::Traffic(traffic.clone()),
            FromProxy::Sum(traffic),
            FromProxy::Changed {
                serial: 7,
                closed: 2,
            },
            FromProxy::Dial {
                ticket: 1,
                port: 3000,
                six: true,
            },
            FromProxy::Overheard(Overheard::Returned(vec!["t1".into()])),
        ] {
            assert!(say(proxy.as_fd(), &message).unwrap());
            assert_eq!(receive(supervisor.as_fd(), false).unwrap(), Some(message));
        }
        assert_eq!(receive(supervisor.as_fd(), false).unwrap(), None);
        send(&proxy, b"t{\"host\":1}", SendFlags::empty()).unwrap();
        assert!(receive(supervisor.as_fd(), false).is_err());
        drop(proxy);
        assert_eq!(
            receive(supervisor.as_fd(), false).unwrap(),
            Some(FromProxy::Closed)
        );
    }

    #[test]
    fn sockets_go_to_the_proxy() {
        let (proxy, helper) = pair();
        let (one, two) = pair();
        give_sockets(helper.as_fd(), &one, &[two], Some("why")).unwrap();
        let taken = take_sockets(proxy.as_fd()).unwrap().unwrap();
        assert_eq!(taken.listeners.len(), 1);
        assert_eq!(taken.per_port.as_deref(), Some("why"));
        drop(helper);
        assert!(take_sockets(proxy.as_fd()).unwrap().is_none());
    }
}
