//! The cage's own network namespace: loopback and nothing else, or the sockets of the egress proxy.

mod netlink;
mod proxy_sockets;

pub use proxy_sockets::{
    OWN_V4, OWN_V6, ProxySockets, delivery_messages, denying_resolver, proxy_sockets,
};

use crate::error::{Doing, LayerError};
use ironcage_model::Layer;
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::io::write;
use ironcage_sys::rustix::system::sethostname;

/// Brings the loopback interface up.
pub fn loopback_up() -> Result<(), LayerError> {
    ironcage_sys::net::loopback_up().doing(Layer::NetNs, || "bring the loopback up".into())
}

/// Lets everybody in this network namespace bind ports below 1024: the ports are the cage's
/// own, and servers expect to listen on 80. Where `/proc/sys` is read-only, as in some
/// containers, they stay closed as on any system: a convenience, not a layer.
pub fn open_low_ports() {
    const FILE: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    let opened = open(FILE, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    if let Ok(file) = opened {
        let _ = write(&file, b"0");
        // Its caller ends soon, and closes all at once.
        std::mem::forget(file);
    }
}

/// Sets the host name of the cage's UTS namespace.
pub fn set_hostname(name: &str) -> Result<(), LayerError> {
    sethostname(name.as_bytes()).doing(Layer::UtsNs, || format!("set the host name {name}"))
}
