//! One file per kernel mechanism; each applies its part of a Plan.
//!
//! Nothing here decides anything: the plan says what, these files know how. They act on the
//! calling process and on what it owns; the order in which they are called is the backend's.
#![forbid(unsafe_code)]

pub mod ablation;
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

pub use error::LayerError;
