//! What is known of git here: its directories, the index, references, objects and settings.
//!
//! All of it is read as files. The host's git is never started in a directory that an agent
//! wrote in.

mod index;

pub(crate) use index::Tracked;
