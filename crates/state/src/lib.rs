//! State that outlives a cage: paths of the agent's home and caches of tools, by workspace; and
//! what cages may have brought to the places that they wrote to.
//!
//! Creates, lists, fills and removes these directories; the plan decides which of them a cage sees. An
//! agent writes in them, so nothing here follows a link in them or trusts their depth.
#![forbid(unsafe_code)]

mod archive;
mod copy;
mod error;
mod limit;
mod marks;
mod place;
mod remove;
mod seed;
mod store;
mod tree;

pub use archive::{Archive, EARLIER_LOG, OUTPUT_LOG};
pub use copy::Copied;
pub use error::StateError;
pub use limit::{OverLimit, StateLimits, Trimmed};
pub use marks::{Edition, Mark, Marks};
pub use place::{Place, workspace_key};
pub use remove::{remove_from_inside, remove_tree, renew_directory};
pub use seed::placeholder_number;
pub use store::{Entry, Store};
