//! Actions that a model announces for its agent, as the egress proxy reports them.
//!
//! Whoever reads this treats it as written by an attacker: it names things, and grants nothing.

use crate::{Reason, Resource};
use serde::{Deserialize, Serialize};

/// Most entries of one kind in an intent.
pub const MOST_INTENDED: usize = 32;

/// Something that was read between an agent and its model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overheard {
    /// A tool is about to be called.
    Call(Intent),
    /// Places that the model's words name, before what it calls next.
    Words(Announced),
    /// The results of these calls went to the model: they are over.
    Returned(Vec<String>),
    /// Something could not be read, so often since it was last told.
    NotRead {
        /// How often.
        times: u64,
        /// Why, the last time.
        why: String,
    },
}

/// What a model's words and visible reasoning name. It is no request, and grants nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Announced {
    /// Absolute paths.
    pub paths: Vec<String>,
    /// Hosts, without their ports.
    pub hosts: Vec<String>,
}

/// A call of a tool, and what it needs as far as its text tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// The name by which its result will refer to it.
    pub id: Option<String>,
    /// The tool.
    pub tool: String,
    /// Absolute paths that are read.
    pub reads: Vec<String>,
    /// Absolute paths that are made, changed or removed.
    pub writes: Vec<String>,
    /// Of those that hold the home or the workspace, which are removed with all that is in them;
    /// with a `*` at the end, much of what is.
    pub removes: Vec<String>,
    /// Where it connects to.
    pub contacts: Vec<Contact>,
    /// Whether it may do more than it names, or names more than is told.
    pub open: bool,
    /// Whether it is of a shell.
    pub shell: bool,
    /// That the rules for tools do not allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<Box<DeniedCall>>,
}

/// Why the rules for tools do not allow a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeniedCall {
    /// With its code.
    pub reason: Reason,
    /// The rule that decided.
    pub rule: String,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Where a call connects to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contact {
    /// A host, as a rule names it: `a.com` or `a.com:22`.
    Host(String),
    /// What a tool is set up to use: a bundle of the policy.
    Bundle(String),
    /// A remote of the repository, by its name; `@upstream` is the one that the branch follows.
    Remote(String),
}

/// A call that was read in a model's answer, as it is on record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentRecord {
    /// The tool.
    pub tool: String,
    /// The name by which its result will refer to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// What it needs that the cage does not have by itself.
    pub needs: Vec<Resource>,
    /// Whether it may do more than it names.
    pub open: bool,
    /// Whether it is a command that a shell in the cage is about to run, and no call.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shell: bool,
}

/// How far a cage is trusted to do what its model says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// As its policy says.
    #[default]
    Full,
    /// What answers open is open for a shorter time.
    Shortened,
    /// Nothing is given at once: a person is asked.
    Asked,
    /// It is stopped, for a person to look at.
    Frozen,
}

impl Trust {
    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Trust::Full => "as its policy says",
            Trust::Shortened => "leases are shorter",
            Trust::Asked => "a person is asked for what was given at once",
            Trust::Frozen => "the cage is stopped",
        }
    }
}
