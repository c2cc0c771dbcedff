//! One file per kernel mechanism; each applies its part of a Plan.
//!
//! Nothing here decides anything: the plan says what, these files know how. They act on the
//! calling process and on what it owns; the order in which they are called is the backend's.
#![forbid(unsafe_code)]

mod authorities;
pub mod cgroup;
mod error;
pub mod filter;
mod hiding;
pub mod identity;
pub mod landlock;
pub mod live;
pub mod network;
pub mod overlay;
pub mod privileges;
mod shared;
pub mod side_channels;
pub mod view;
pub mod weakened;

pub use error::LayerError;
pub use overlay::{COPY_ON_WRITE, MAP_OWNER};
