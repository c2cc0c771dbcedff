//! Where a value of a policy came from.

use ironcage_model::Printable;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// Where a value came from. Shown by `ironcage plan` beside each item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Ironcage's own default, the same in every profile.
    BuiltIn,
    /// A profile that ships with Ironcage.
    Profile { name: String },
    /// A policy or configuration file.
    File {
        path: PathBuf,
        /// The line of the value, from one.
        line: usize,
    },
    /// A flag on the command line, as typed.
    Flag {
        /// The flag, such as `--memory`.
        flag: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::BuiltIn => f.write_str("built in"),
            Origin::Profile { name } => write!(f, "profile {name}"),
            Origin::File { path, line } => write!(f, "{}:{line}", Printable::new(path)),
            Origin::Flag { flag } => f.write_str(flag),
        }
    }
}
