//! HTTP/1.1 between the cage and a server: every request of a connection is read, checked and
//! written anew, one after the other.

mod exchange;
mod head;

pub(crate) use exchange::{Client, Ended, carry};
pub(crate) use head::{Authority, Refused};
