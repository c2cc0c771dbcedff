//! Orders of the supervisor to a running proxy, one packet each.
//!
//! The supervisor is believed; the checks here are against mistakes.

use ironcage_model::{LiveRule, NetworkLimits, Publish};
use ironcage_sys::packet::{self, ancillary_space};
use ironcage_sys::rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Longest order, and most descriptors with one.
const MAX: usize = 64 * 1024;
const MAX_FDS: usize = 64;

/// What the proxy is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Rules come and go. Answered by [`crate::FromProxy::Changed`] once they hold and what no
    /// longer matches is closed.
    Rules {
        /// By which the answer is known.
        serial: u32,
        /// Rules that hold from now on.
        add: Vec<LiveRule>,
        /// Numbers of those that hold no more.
        remove: Vec<u32>,
    },
    /// Other limits hold. Answered as above.
    Limits {
        /// By which the answer is known.
        serial: u32,
        limits: NetworkLimits,
    },
    /// A port inside is reached at the listening socket that comes with this. Answered as
    /// above.
    Publish {
        /// By which the answer is known.
        serial: u32,
        publish: Publish,
    },
    /// It no longer is; its connections are closed. Answered as above.
    Unpublish {
        /// By which the answer is known.
        serial: u32,
        outer: u16,
    },
    /// The connection into the cage that was wanted, where there is one.
    Dialled { ticket: u32 },
    /// Two sockets come with this: bytes are carried from the one inside to the one outside.
    Carry { name: String },
    /// A secret is put on requests from now on, or no more. Answered as above.
    Secret {
        /// By which the answer is known.
        serial: u32,
        name: String,
        /// On how many requests; none where there is no lease on it.
        uses: SecretUses,
    },
    /// Connections that are carried to this name outside are closed. Answered as above.
    Drop {
        /// By which the answer is known.
        serial: u32,
        name: String,
    },
    /// Connections are told to the socket that comes with this, as they happen.
    Watch,
}

/// How often a secret is put on requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SecretUses {
    /// On every one that is for it.
    Any,
    Some(u32),
    /// On none: there is no lease.
    None,
}

/// What came from the supervisor.
#[derive(Debug)]
pub(crate) enum OrderMessage {
    /// An order, with its descriptors.
    Order(Order, Vec<OwnedFd>),
    /// The supervisor is gone, or says that it is over.
    Over,
}

/// The supervisor's side: tells without waiting.
pub(crate) fn tell(
    proxy: BorrowedFd<'_>,
    order: &Order,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(order)?;
    if bytes.len() > MAX || descriptors.len() > MAX_FDS {
        return Err(io::Error::other("the order is too long"));
    }
    let mut space = [MaybeUninit::uninit(); ancillary_space(MAX_FDS)];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors"));
    }
    sendmsg(
        proxy,
        &[IoSlice::new(&bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )?;
    Ok(())
}

/// The proxy's side: takes the next order, if there is one. An empty packet is the end.
pub(crate) fn hear(supervisor: BorrowedFd<'_>) -> io::Result<Option<OrderMessage>> {
    let Some(packet) = packet::receive(supervisor, false, MAX, MAX_FDS)? else {
        return Ok(None);
    };
    if packet.bytes.is_empty() {
        return Ok(Some(OrderMessage::Over));
    }
    if packet.truncated {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let order = serde_json::from_slice(&packet.bytes)?;
    Ok(Some(OrderMessage::Order(order, packet.descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::NetworkVerdict;
    use ironcage_sys::rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    #[test]
    fn what_is_told_is_heard_with_its_descriptors() {
        let pair = || {
            let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
            socketpair(AddressFamily::UNIX, kind, flags, None).unwrap()
        };
        let (proxy, supervisor) = pair();
        let rule = LiveRule {
            number: 3,
            verdict: NetworkVerdict::Allowed,
            rule: "**.example.com:8443".parse().unwrap(),
            requests: Some("GET,HEAD **.example.com:8443/v1/**".parse().unwrap()),
            uses: Some(3),
            origin: "operator".into(),
        };
        let order = Order::Rules {
            serial: 7,
            add: vec![rule],
            remove: vec![1, 2],
        };
        tell(supervisor.as_fd(), &order, &[]).unwrap();
        let (one, _) = pair();
        tell(supervisor.as_fd(), &Order::Watch, &[one.as_fd()]).unwrap();
        let Some(OrderMessage::Order(heard, fds)) = hear(proxy.as_fd()).unwrap() else {
            panic!("an order");
        };
        assert_eq!((heard, fds.len()), (order, 0));
        let Some(OrderMessage::Order(Order::Watch, fds)) = hear(proxy.as_fd()).unwrap() else {
            panic!("an order");
        };
        assert_eq!(fds.len(), 1);
        assert!(hear(proxy.as_fd()).unwrap().is_none());
        drop(supervisor);
        assert!(matches!(
            hear(proxy.as_fd()).unwrap(),
            Some(OrderMessage::Over)
        ));
    }
}
