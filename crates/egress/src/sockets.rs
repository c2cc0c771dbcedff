//! Carries connections to Unix sockets of the host. The supervisor has both ends and hands
//! them over: this process connects to no path, and passes no descriptors on.

use crate::relay::relay;
use crate::serve::Service;
use crate::traffic_counters::TrafficEvent;
use crate::traffic_log::Counts;
use ironcage_model::{NetworkVerdict, Protocol};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use tokio::net::TcpStream;

/// Carries between two connected sockets until both have ended.
pub(crate) fn carry(service: &Rc<Service>, name: String, inside: OwnedFd, outside: OwnedFd) {
    let Some(slot) = service.admit(0) else {
        return;
    };
    let (Ok(inside), Ok(outside)) = (stream(inside), stream(outside)) else {
        return;
    };
    let open = slot.open();
    open.carried_to(&name);
    let task = tokio::task::spawn_local(async move {
        let service = slot.service();
        let host = service.traffic_log.meter.published(&name);
        let kind = TrafficEvent {
            verdict: NetworkVerdict::Allowed,
            host: name.clone(),
            port: 0,
            protocol: Protocol::Unix,
            address: None,
            rule: Some(name),
            request: None,
            status: None,
            reason: None,
        };
        let counts = Counts::begin(&service.traffic_log, &slot.open(), &host, kind);
        // A side that went away is an end like any other.
        let _ = relay(&inside, &outside, &counts).await;
    });
    open.served_by(task.abort_handle());
}

/// A stream of bytes, read, written and shut down as one of TCP is: what is asked of it here
/// does not depend on its family.
fn stream(socket: OwnedFd) -> io::Result<TcpStream> {
    let stream = std::net::TcpStream::from(socket);
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}
