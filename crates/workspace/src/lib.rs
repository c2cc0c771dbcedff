//! The copy-on-write workspace: an agent's changes stay pending until the user decides.
//!
//! A [`Change`] is the upper layers of the overlays that a cage worked in, with what has to be
//! known to judge them later. This crate stores changes, reads them and applies them to the real
//! tree; it mounts nothing. An agent made everything in an upper layer: names, links, special files,
//! attributes and depth are hostile, so nothing here follows a link in one or resolves a path twice.
#![forbid(unsafe_code)]

mod apply;
mod change;
mod content;
mod dependency_tree;
mod differences;
mod digest;
mod discard;
mod duplicate;
mod emptied;
mod error;
mod executed;
#[doc(hidden)] // for the fuzzer in fuzz/
pub mod fuzz;
mod git;
mod gitignore;
mod ignored;
mod known;
mod landed;
mod links;
mod merge;
mod mode;
mod path_text;
mod pth;
mod reading;
mod real_links;
mod renames;
mod rights;
mod selection;
mod store;
mod summary;
mod tree;
pub mod unified;
mod upper;

pub use apply::{Applied, ApplyOptions, Moved, OnConflict};
pub use change::{Applying, Change, ChangeId, InvalidChangeId, Layer, LayerRole, Lock, Moment};
pub use dependency_tree::{DependencyTree, PackageManager};
pub use differences::{Difference, Roots, ShownContent, Versions, differences};
pub use digest::{ReviewDigest, ReviewForm, digest_of, review};
pub use emptied::Emptied;
pub use error::WorkspaceError;
pub use executed::Note;
pub use git::{HowMoved, NamedPlace, ReferenceChange, places_git_obeys};
pub use reading::{Entry, IgnoredTree, Reading, Status};
pub use rights::take_owners_rights;
pub use selection::Selection;
pub use store::{Draft, LayerRequest, Store};
pub use summary::{ReportedPath, Summary};
pub use tree::{Kind, Node};
