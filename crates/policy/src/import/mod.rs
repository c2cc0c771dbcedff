//! Settings of other sandboxes, turned into a policy file and a report.
//!
//! Whatever another sandbox allowed is the upper bound: where the two do not fit, the policy gives less, and the report
//! says what and why. It reads the host's tree, since settings name paths and patterns that a policy must name as they
//! are. It runs nothing and writes nothing.

mod deny;
mod judge;
mod paths;
mod search;
mod settings;
mod text;

use ironcage_model::Printable;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where imported settings are to hold.
#[derive(Debug, Clone)]
pub struct Place {
    /// The workspace, absolute and without symbolic links. It stands for the directory that srt was started in.
    pub workspace: PathBuf,
    /// The directory of the settings file, without symbolic links.
    pub settings_dir: PathBuf,
    /// The directory that the policy file will lie in.
    pub policy_dir: PathBuf,
    /// The user's home directory.
    pub home: PathBuf,
    /// Ironcage's own directories, which are in no cage.
    pub own: Vec<PathBuf>,
    /// Takes patterns and missing paths as they are met now: what matches later is not kept out.
    pub as_of_now: bool,
}

/// A policy made from settings, and what became of each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The text of the policy file.
    pub policy: String,
    /// What became of each setting.
    pub findings: Vec<Finding>,
}

/// What became of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It holds in the cage.
    Kept,
    /// The cage gives less than it did.
    Narrower,
    /// A cage has nothing like it.
    NoEqual,
    /// The two sandboxes differ here, whatever the settings say.
    Differs,
    /// It is no setting that this version knows.
    Unknown,
}

impl Kind {
    /// Every kind, in the order of a report.
    pub const ALL: [Kind; 5] = [
        Kind::Kept,
        Kind::Narrower,
        Kind::NoEqual,
        Kind::Differs,
        Kind::Unknown,
    ];

    /// The heading in a report.
    pub const fn heading(self) -> &'static str {
        match self {
            Kind::Kept => "kept",
            Kind::Narrower => "narrower than before",
            Kind::NoEqual => "without an equal",
            Kind::Differs => "different in every cage",
            Kind::Unknown => "not known, and left out",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What became of it.
    pub kind: Kind,
    /// The setting, such as `filesystem.allowWrite`, or what it is about.
    pub subject: String,
    /// Its value, or one entry of it.
    pub value: Option<String>,
    /// What that means in a cage.
    pub note: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Printable::new(&self.subject))?;
        if let Some(value) = &self.value {
            write!(f, " {}", Printable::new(value))?;
        }
        write!(f, ": {}", Printable::new(&self.note))
    }
}

/// Why settings cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read.
    #[error("cannot read {}", Printable::new(path))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is not one that can hold settings.
    #[error("{}: {reason}", Printable::new(path))]
    NotSettings {
        /// The file.
        path: PathBuf,
        /// What it is.
        reason: &'static str,
    },
    /// It is not JSON.
    #[error("the settings are not valid JSON")]
    Json(#[source] serde_json::Error),
    /// A setting is of another kind than srt takes, so that what it should allow is unknown; srt itself refuses it.
    #[error(
        "{}: not {wanted}; srt does not start with it either",
        Printable::new(key)
    )]
    Shape {
        /// The setting.
        key: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// A path leads to a name that a policy file cannot hold.
    #[error(
        "{} is not UTF-8 text and cannot stand in a policy file",
        Printable::new(path)
    )]
    NotText {
        /// The path.
        path: PathBuf,
    },
}

/// Reads a settings file: a regular one, of sane size.
///
/// # Errors
/// Where it cannot be read or is not text.
pub fn read(path: &Path) -> Result<String, ImportError> {
    let path = path.to_owned();
    match crate::chain::read(&path) {
        Ok(document) => Ok(document.text.to_string()),
        Err(crate::PolicyError::Read { source, .. }) => Err(ImportError::Read { path, source }),
        Err(crate::PolicyError::NotAPolicy { reason, .. }) => {
            Err(ImportError::NotSettings { path, reason })
        }
        Err(_) => Err(ImportError::NotSettings {
            path,
            reason: "it cannot be read",
        }),
    }
}

/// Makes a policy of the settings of Anthropic's sandbox-runtime (`srt`), or of Claude Code's, which hold the same
/// below `sandbox`.
///
/// # Errors
/// Where the text is not JSON, or where what it forbids cannot be told.
pub fn srt(text: &str, place: &Place) -> Result<Imported, ImportError> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(ImportError::Json)?;
    let mut findings = Vec::new();
    let rules = settings::read(&value, place, &mut findings)?;
    let draft = judge::judge(&rules, place, &mut findings);
    let policy = text::render(&draft, place)?;
    differences(&draft, &mut findings);
    findings.sort_by_key(|finding| finding.kind);
    Ok(Imported { policy, findings })
}

/// What differs between the two sandboxes, whatever the settings are.
fn differences(draft: &judge::Draft, findings: &mut Vec<Finding>) {
    let mut tell = |subject: &str, note: &str| {
        findings.push(Finding {
            kind: Kind::Differs,
            subject: subject.to_owned(),
            value: None,
            note: note.to_owned(),
        });
    };
    tell(
        "reading",
        "srt lets everything be read but denyRead; in a cage only the system, the workspace and what the policy names is \
         there. Add what is missing to files.read",
    );
    tell(
        "network",
        "a cage has its own loopback, on which programs can listen; names that lead to private addresses are refused unless \
         network.allow names the address",
    );
    tell(
        "environment",
        "srt passes all variables; a cage only those that env.pass and the defaults name",
    );
    tell(
        "home and temporary files",
        "HOME and /tmp are the cage's own, empty at the start and gone at the end",
    );
    tell(
        "Unix sockets",
        "srt refuses to make them; in a cage programs can, and reach those whose files are in its view",
    );
    if draft.held {
        tell(
            "trust",
            "of a file that lies in a workspace files.read counts only once it is trusted: until `ironcage trust` what \
             it makes read-only in the workspace is writable",
        );
    }
    if draft.mode == crate::WorkspaceMode::Direct {
        tell(
            "files that the host would execute or trust",
            "srt also refuses to create those that are not there (.vscode, .mcp.json, ...); a cage protects those that \
             exist in the workspace's root when it starts, all of .git with them, and those that this import found \
             deeper. --unprotect .git lets an agent commit",
        );
    }
}

#[cfg(test)]
mod tests;
