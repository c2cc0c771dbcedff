//! The connection to the egress proxy.

use ironcage_egress::{FromProxy, Order, Proxy};
use ironcage_model::Traffic;
use std::io;
use std::os::fd::BorrowedFd;

/// The connection to the egress proxy. Nothing here waits but `close`.
pub(super) trait ProxyLink: std::fmt::Debug {
    fn as_fd(&self) -> BorrowedFd<'_>;
    fn send(&self, order: &Order, descriptors: &[BorrowedFd<'_>]) -> io::Result<()>;
    fn receive(&self) -> io::Result<Option<FromProxy>>;
    /// Ends the proxy in order. Returns what it has counted and not told yet.
    fn close(self: Box<Self>) -> Vec<Traffic>;
}

impl ProxyLink for Proxy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control()
    }

    fn send(&self, order: &Order, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.tell(order, descriptors)
    }

    fn receive(&self) -> io::Result<Option<FromProxy>> {
        self.hear()
    }

    fn close(self: Box<Self>) -> Vec<Traffic> {
        Proxy::close(*self)
    }
}
