//! Converts settings of other sandboxes into a policy file and a report.
//!
//! The permissions of the other sandbox are the upper bound: where the two do not match, the policy
//! allows less, and the report says what and why. The import reads the host's tree to resolve paths
//! and patterns. It runs nothing and writes nothing.

mod codex;
mod deny;
mod judge;
mod parent_proxy;
mod paths;
mod search;
mod settings;
mod text;
mod vscode;

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
    /// The cage enforces it.
    Kept,
    /// The cage allows less.
    Narrower,
    /// A cage has no equivalent.
    NoEqual,
    /// The two sandboxes differ here, whatever the settings say.
    Differs,
    /// This version does not know the setting.
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
            Kind::NoEqual => "no equivalent",
            Kind::Differs => "different in every cage",
            Kind::Unknown => "unknown, and left out",
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
        path: PathBuf,
        source: std::io::Error,
    },
    /// The file is not one that can hold settings.
    #[error("{}: {reason}", Printable::new(path))]
    NotSettings { path: PathBuf, reason: String },
    #[error("the settings are not valid JSON")]
    Json(#[source] serde_json::Error),
    #[error("the settings are not valid TOML")]
    Toml(#[source] toml::de::Error),
    /// A setting is of another kind than srt takes, so that what it should allow is unknown; srt itself refuses it.
    #[error(
        "{}: expected {wanted}; srt rejects this value too",
        Printable::new(key)
    )]
    Shape { key: String, wanted: &'static str },
    /// A path leads to a name that a policy file cannot hold.
    #[error("cannot write {} into a policy file: not UTF-8", Printable::new(path))]
    NotText { path: PathBuf },
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
            reason: "cannot be read".into(),
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
    drafted(&rules, place, findings)
}

/// Makes a policy of Codex's `config.toml`.
///
/// # Errors
/// Where the text is not TOML, or where what it forbids cannot be told.
pub fn codex(text: &str, place: &Place) -> Result<Imported, ImportError> {
    let mut findings = Vec::new();
    let rules = codex::read(text, place, &mut findings)?;
    drafted(&rules, place, findings)
}

/// Makes a policy of VS Code's `settings.json`.
///
/// # Errors
/// Where the text is not JSON, or where what it forbids cannot be told.
pub fn vscode(text: &str, place: &Place) -> Result<Imported, ImportError> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(ImportError::Json)?;
    let mut findings = Vec::new();
    let rules = vscode::read(&value, place, &mut findings)?;
    drafted(&rules, place, findings)
}

fn drafted(
    rules: &settings::Rules,
    place: &Place,
    mut findings: Vec<Finding>,
) -> Result<Imported, ImportError> {
    let draft = judge::judge(rules, place, &mut findings);
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
        "srt allows reading everything except denyRead; a cage sees only the system, the workspace and the paths in the \
         policy. Add missing paths to files.read",
    );
    tell(
        "network",
        "a cage has its own loopback, on which programs can listen; names that resolve to private addresses are denied \
         unless network.allow has the address",
    );
    tell(
        "environment",
        "srt passes all variables; a cage gets only those in env.pass and the defaults",
    );
    tell(
        "home and temporary files",
        "a cage has its own HOME and /tmp, empty at the start and deleted at the end",
    );
    tell(
        "Unix sockets",
        "srt denies creating them; programs in a cage can, and can connect to sockets in their view",
    );
    if draft.held {
        tell(
            "trust",
            "in a policy file in a workspace, files.read has no effect until you run `ironcage trust`: its read-only paths in \
             the workspace stay writable until then",
        );
    }
    if draft.mode == crate::WorkspaceMode::Direct {
        tell(
            "files that the host would execute or trust",
            "srt also denies creating missing ones (.vscode, .mcp.json, ...); a cage protects those that exist in the \
             workspace's root when it starts, including all of .git, and those that this import found deeper. With \
             --unprotect .git an agent can commit",
        );
    }
}

#[cfg(test)]
mod tests;
