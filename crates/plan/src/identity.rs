//! The agent's identity to git and ssh: files made from the user's own, with nothing in them that
//! runs, unlocks or tells more than it must.

pub(crate) mod git;
pub(crate) mod ssh;
