//! Plans the actions with which root can fix what a host lacks. Pure: nothing is changed here.
//!
//! Three things: an AppArmor profile where AppArmor keeps programs without one from using user
//! namespaces, the delegation of cgroup controllers to users by systemd, and subordinate ids
//! for one user. Each only if it is missing.

mod facts;

pub use facts::gather;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where the AppArmor profile goes.
pub const PROFILE: &str = "/etc/apparmor.d/ironcage";
/// Where the delegation of controllers goes.
pub const DELEGATION: &str = "/etc/systemd/system/user@.service.d/50-ironcage.conf";
/// What was added to files of others, so that `--undo` takes away that and nothing else.
pub const JOURNAL: &str = "/var/lib/ironcage/setup";
/// Files of subordinate ids.
pub const SUBORDINATE: [&str; 2] = ["/etc/subuid", "/etc/subgid"];

/// Ids in one subordinate range, as distributions give them.
const RANGE: u64 = 65_536;
/// The first id that distributions give.
const FIRST: u64 = 100_000;
/// Above this the ranges of cages that root starts begin.
const LAST: u64 = 0x7000_0000;

const CONTROLLERS: &str = "\
# Written by `ironcage setup`; `ironcage setup --undo` removes it.
# Lets users limit the resources of their cages.
[Service]
Delegate=cpu cpuset io memory pids
";

/// What is known about a host before it is set up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetupFacts {
    pub binary: PathBuf,
    /// The first part of its path that somebody other than root can change.
    pub changeable: Option<PathBuf>,
    /// Whether AppArmor keeps programs without a profile from using user namespaces.
    pub apparmor_restricts: bool,
    /// Whether systemd runs this host, with version 2 of cgroups.
    pub systemd_and_cgroup2: bool,
    /// The user who is to have subordinate ids.
    pub user: Option<String>,
    /// The files that matter, where they are there.
    pub files: BTreeMap<PathBuf, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A file with exactly this content.
    Write {
        path: PathBuf,
        content: String,
        why: &'static str,
    },
    /// A file taken away.
    Remove { path: PathBuf },
    Run {
        /// It and its arguments.
        argv: Vec<String>,
    },
}

/// Why a host is not set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetupError {
    /// The program could be replaced by somebody else.
    Changeable {
        binary: PathBuf,
        /// The part of its path.
        part: PathBuf,
    },
    /// Its path has special characters of AppArmor profiles.
    UnusualPath(PathBuf),
    /// The user name is invalid.
    UnusualName(String),
    /// All ranges are given.
    NoIds(&'static str),
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetupError::Changeable { binary, part } => write!(
                f,
                "users other than root can change {} through {}, and would get its permissions; install it where only root can write, such as /usr/local/bin",
                binary.display(),
                part.display()
            ),
            SetupError::UnusualPath(path) => write!(
                f,
                "{} contains special characters of AppArmor profiles; install it under a plain path",
                path.display()
            ),
            SetupError::UnusualName(name) => {
                write!(f, "invalid user name `{}`", name.escape_debug())
            }
            SetupError::NoIds(file) => write!(f, "{file} has no free range of {RANGE} ids"),
        }
    }
}

impl std::error::Error for SetupError {}

/// The actions that a host needs, in order; empty if nothing is missing.
///
/// # Errors
/// If users other than root could replace the program, or a name cannot be written to a file.
pub fn plan(facts: &SetupFacts) -> Result<Vec<Action>, SetupError> {
    if let Some(part) = &facts.changeable {
        return Err(SetupError::Changeable {
            binary: facts.binary.clone(),
            part: part.clone(),
        });
    }
    let mut actions = Vec::new();
    if facts.apparmor_restricts {
        write_and_run(
            facts,
            &mut actions,
            (
                PROFILE,
                profile(&facts.binary)?,
                "AppArmor denies capabilities in the user namespaces of programs without a profile; this profile allows them for Ironcage only",
            ),
            &["apparmor_parser", "-r", PROFILE],
        );
    }
    if facts.systemd_and_cgroup2 {
        write_and_run(
            facts,
            &mut actions,
            (
                DELEGATION,
                CONTROLLERS.to_owned(),
                "systemd delegates only the memory and pids controllers to users by default; takes effect at the next login",
            ),
            &["systemctl", "daemon-reload"],
        );
    }
    if let Some(user) = &facts.user {
        subordinate(facts, user, &mut actions)?;
    }
    Ok(actions)
}

/// What takes all of it away again: files of ours, and lines that the journal names.
pub fn undo(facts: &SetupFacts) -> Vec<Action> {
    let mut actions = Vec::new();
    let run = |words: &[&str]| Action::Run {
        argv: words.iter().map(|word| (*word).to_owned()).collect(),
    };
    if facts.files.contains_key(Path::new(PROFILE)) {
        // Before the file goes: the parser reads from it what to unload.
        actions.push(run(&["apparmor_parser", "-R", PROFILE]));
        actions.push(Action::Remove {
            path: PROFILE.into(),
        });
    }
    if facts.files.contains_key(Path::new(DELEGATION)) {
        actions.push(Action::Remove {
            path: DELEGATION.into(),
        });
        actions.push(run(&["systemctl", "daemon-reload"]));
    }
    let Some(journal) = facts.files.get(Path::new(JOURNAL)) else {
        return actions;
    };
    for path in SUBORDINATE {
        let ours: Vec<&str> = added(journal, path).collect();
        let Some(text) = facts.files.get(Path::new(path)) else {
            continue;
        };
        let kept: String = text
            .split_inclusive('\n')
            .filter(|line| !ours.contains(&line.trim_end()))
            .collect();
        if kept != *text {
            actions.push(Action::Write {
                path: path.into(),
                content: kept,
                why: "removes the lines that `ironcage setup` added",
            });
        }
    }
    actions.push(Action::Remove {
        path: JOURNAL.into(),
    });
    actions
}

/// Lines that the journal says were added to a file.
fn added<'a>(journal: &'a str, path: &'a str) -> impl Iterator<Item = &'a str> {
    journal
        .lines()
        .filter_map(move |line| line.strip_prefix(path)?.strip_prefix(' '))
}

fn write_and_run(
    facts: &SetupFacts,
    actions: &mut Vec<Action>,
    (path, content, why): (&str, String, &'static str),
    argv: &[&str],
) {
    if facts.files.get(Path::new(path)) == Some(&content) {
        return;
    }
    actions.push(Action::Write {
        path: path.into(),
        content,
        why,
    });
    actions.push(Action::Run {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
    });
}

fn profile(binary: &Path) -> Result<String, SetupError> {
    let unusual = || SetupError::UnusualPath(binary.to_owned());
    let path = binary.to_str().ok_or_else(unusual)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._+-".contains(c);
    if !path.starts_with('/') || !path.chars().all(plain) {
        return Err(unusual());
    }
    Ok(format!(
        "# Written by `ironcage setup`; `ironcage setup --undo` removes it.\n\
         abi <abi/4.0>,\ninclude <tunables/global>\n\
         profile ironcage {path} flags=(unconfined) {{\n  userns,\n}}\n"
    ))
}

fn subordinate(
    facts: &SetupFacts,
    user: &str,
    actions: &mut Vec<Action>,
) -> Result<(), SetupError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if user.is_empty() || !user.chars().all(plain) || user.starts_with('-') {
        return Err(SetupError::UnusualName(user.to_owned()));
    }
    let before = facts
        .files
        .get(Path::new(JOURNAL))
        .cloned()
        .unwrap_or_default();
    let mut journal = before.clone();
    for path in SUBORDINATE {
        let text = facts
            .files
            .get(Path::new(path))
            .cloned()
            .unwrap_or_default();
        let has = text
            .lines()
            .any(|line| line.split(':').next() == Some(user));
        if has {
            continue;
        }
        let line = format!(
            "{user}:{}:{RANGE}",
            free(&text).ok_or(SetupError::NoIds(path))?
        );
        journal.push_str(&format!("{path} {line}\n"));
        let mut content = text;
        if !content.is_empty() && !content.ends_with('\n') {
            content.push('\n');
        }
        content.push_str(&format!("{line}\n"));
        actions.push(Action::Write {
            path: path.into(),
            content,
            why: "a range of ids that this user can map into user namespaces",
        });
    }
    if journal != before {
        actions.push(Action::Write {
            path: JOURNAL.into(),
            content: journal,
            why: "which lines were added, for --undo",
        });
    }
    Ok(())
}

/// The first id of a range that no line has.
fn free(text: &str) -> Option<u64> {
    let taken: Vec<(u64, u64)> = text
        .lines()
        .filter_map(|line| {
            let mut fields = line.trim().split(':').skip(1);
            let first: u64 = fields.next()?.parse().ok()?;
            let count: u64 = fields.next()?.parse().ok()?;
            Some((first, first.checked_add(count)?))
        })
        .collect();
    let mut candidates: Vec<u64> = taken.iter().map(|(_, end)| *end).collect();
    candidates.push(FIRST);
    candidates.sort_unstable();
    candidates.into_iter().find(|first| {
        let end = first.saturating_add(RANGE);
        *first >= FIRST
            && end <= LAST
            && taken
                .iter()
                .all(|(start, past)| end <= *start || *first >= *past)
    })
}

#[cfg(test)]
mod tests;
