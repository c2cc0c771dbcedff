//! HTTP/1.1 between the cage and a server: every request of a connection is read, checked and
//! written again, one after the other.

mod body_stream;
mod exchange;
pub(crate) mod head;
mod judge;
mod passing;
mod pipeline;

pub(crate) use body_stream::chunk_size;
pub(crate) use exchange::{Client, carry};
pub(crate) use head::{Authority, Fields, LONGEST as LONGEST_HEAD, Refused, check_path};
pub(crate) use judge::{Judge, Recorder, refusal};
pub(crate) use passing::Passing;
pub(crate) use pipeline::{NotSent, RequestBody, RequestParts, UpstreamRequest};

#[cfg(test)]
pub(crate) use exchange::secret_tests;
