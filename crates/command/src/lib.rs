//! Parts that the command lines of several programs share: errors, JSON for terminals, the commands
//! for agents inside a cage, and the arguments of `ironcage-lab`, `ironcage-mcp` and `ironcage-registry`, which
//! `ironcage` documents and passes on.
#![forbid(unsafe_code)]

pub mod error;
pub mod failure;
pub mod image;
pub mod inside;
pub mod json;
pub mod lab;
pub mod mcp;
pub mod serve;
pub mod template;
