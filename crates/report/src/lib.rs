//! From the audit log of a run to a report: which permissions were open and when, which of them
//! were used, what was requested and what was denied.
//!
//! Pure: events in, a [`Report`] out, which is shown as text, JSON or one HTML page. The agent may
//! have chosen any text in a log, so all of it is escaped where it is shown.
#![forbid(unsafe_code)]

mod authority;
mod chart;
mod entries;
pub mod evidence;
mod happened;
mod html;
mod page;
mod report;
mod text;
mod uses;

pub use authority::{Authority, EntrySpan, EntryUse, Share, Source};
pub use chart::Point;
pub use happened::{DriftLine, LeaseLine, ReportedDenial, RequestLine};
pub use report::Report;
