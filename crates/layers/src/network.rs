//! The cage's own network namespace: loopback and nothing else.

use crate::error::{Doing, LayerError};
use ironcage_model::Layer;
use ironcage_sys::rustix::system::sethostname;

/// Brings the loopback interface up.
pub fn loopback_up() -> Result<(), LayerError> {
    ironcage_sys::net::loopback_up().doing(Layer::NetNs, || "bring the loopback up".into())
}

/// Sets the host name of the cage's UTS namespace.
pub fn set_hostname(name: &str) -> Result<(), LayerError> {
    sethostname(name.as_bytes()).doing(Layer::UtsNs, || format!("set the host name {name}"))
}
