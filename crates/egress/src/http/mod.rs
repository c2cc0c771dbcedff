//! HTTP/1.1 between the cage and a server: every request of a connection is read, checked and
//! written anew, one after the other.

mod exchange;
pub(crate) mod head;
mod judge;
mod passing;

pub(crate) use exchange::{Client, carry, chunk_size};
pub(crate) use head::{Authority, Fields, Refused};
pub(crate) use judge::{Asked, Judge, Passed, Recorder, refusal};
pub(crate) use passing::Passing;
