//! The places that the user's own task names: other places are asked for first.

use crate::bytes;
use serde::Serialize;
use std::path::PathBuf;

/// Where a task was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskSource {
    /// With a flag. It narrows in every policy with a ceiling.
    Flag,
    /// In the prompt on the agent's command line. It narrows where the policy says
    /// `words = "narrow"`.
    Prompt,
    /// By the parent of the cage.
    Parent,
}

/// The places that a task names. Its text is not kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskScope {
    /// Where it was given.
    pub source: TaskSource,
    /// Absolute paths.
    #[serde(serialize_with = "bytes::path_list")]
    pub paths: Vec<PathBuf>,
    /// Hosts, in lower case.
    pub hosts: Vec<String>,
}
