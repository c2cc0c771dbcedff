//! The arguments of `ironcage probe` and `ironcage bench`. `ironcage-lab` executes them; `ironcage`
//! describes, completes and checks them.

#![allow(
    missing_docs,
    reason = "the comments are help texts, and these have none of their own"
)]

pub mod bench;
pub mod probe;
