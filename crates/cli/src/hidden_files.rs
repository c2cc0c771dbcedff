//! Files that a command names, that the host has, and that its cage does not: programs see only
//! "No such file or directory".
//!
//! The kernel reports no access to an absent file. So the command is read as a shell would read it,
//! outside the cage, and only for the user: an agent must not learn what the host has. The same
//! holds for sockets of the programs that it executes.

use crate::hidden_sockets;
use ironcage_intent::{Context, Needs, Shell, Table};
use ironcage_model::Printable;
use ironcage_plan::{HiddenBy, PathStatus, Plan, guard, locate};
use std::path::{Path, PathBuf};

/// More are not named.
const MOST: usize = 3;

/// A file of the host that a cage does not have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HiddenFile {
    pub(crate) path: PathBuf,
    /// Whether something stands in its place that cannot be read.
    covered: bool,
    kind: HiddenKind,
    /// The flags that show it, and why that takes more than one.
    pub(crate) remedy: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HiddenKind {
    File,
    Socket,
}

impl HiddenFile {
    /// `file` or `socket`.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.kind {
            HiddenKind::File => "file",
            HiddenKind::Socket => "socket",
        }
    }

    /// One line for the user.
    pub(crate) fn line(&self) -> String {
        let is = match self.covered {
            true => "is hidden in this cage",
            false => "is on the host, but not in this cage",
        };
        let (shown, remedy) = (Printable::new(&self.path), &self.remedy);
        match self.kind {
            HiddenKind::File => format!("{shown} {is}; to read it: {remedy}"),
            HiddenKind::Socket => format!("the socket {shown} {is}; to use it: {remedy}"),
        }
    }
}

/// The files that a command names for reading, and that a cage with this plan hides.
pub(crate) fn named_by(plan: &Plan, home: &Path, command: &[String]) -> Vec<HiddenFile> {
    let Some(needs) = needs(command, &plan.command.cwd, home) else {
        return Vec::new();
    };
    // What the command makes itself is not missed.
    let made = |path: &Path| needs.writes.iter().any(|made| path.starts_with(made));
    let named = needs.reads.iter().filter(|path| !made(path));
    let mut found: Vec<HiddenFile> = named.filter_map(|path| hidden(plan, home, path)).collect();
    let programs = needs.programs.iter().map(String::as_str);
    let sockets = hidden_sockets::of_programs(plan, programs, |name| std::env::var_os(name));
    for (path, remedy) in sockets {
        if found.iter().all(|known| known.path != path) {
            found.push(HiddenFile {
                path,
                covered: false,
                kind: HiddenKind::Socket,
                remedy,
            });
        }
    }
    found.truncate(MOST);
    found
}

/// The needs of a command that begins in `cwd`.
pub(crate) fn needs(command: &[String], cwd: &Path, home: &Path) -> Option<Needs> {
    let table = Table::shipped().ok()?;
    let context = Context {
        cwd: cwd.to_owned(),
        home: Some(home.to_owned()),
    };
    let words: Vec<String> = command.iter().map(|word| in_quotes(word)).collect();
    Some(Shell::new(&table).read(&words.join(" "), &context))
}

fn hidden(plan: &Plan, home: &Path, path: &Path) -> Option<HiddenFile> {
    let located = locate(plan, path);
    let covered = match located.standing {
        PathStatus::Absent | PathStatus::Leads => false,
        // Scratch storage in the place of the host's; the home and /tmp themselves are there.
        PathStatus::Ephemeral if path != home && path != Path::new("/tmp") => false,
        PathStatus::Hidden => true,
        _ => return None,
    };
    let of_kernel = ["/proc", "/sys", "/dev"];
    if of_kernel.iter().any(|tree| path.starts_with(tree)) || path.symlink_metadata().is_err() {
        return None;
    }
    let kind = match hidden_sockets::is_socket(path) {
        true => HiddenKind::Socket,
        false => HiddenKind::File,
    };
    let remedy = match located.hidden_by {
        Some(HiddenBy::Ironcage) => return None,
        // The policy hides it by name, below everything that it shows.
        Some(HiddenBy::Policy) => {
            let origin = located.origin.unwrap_or_default();
            format!(
                "remove the entry that hides it ({})",
                Printable::new(&origin)
            )
        }
        Some(HiddenBy::Credentials | HiddenBy::SystemSecret | HiddenBy::Sensitive) | None => {
            match kind {
                HiddenKind::File => flags(home, path),
                HiddenKind::Socket => hidden_sockets::flags(path),
            }
        }
    };
    Some(HiddenFile {
        path: path.to_owned(),
        covered,
        kind,
        remedy,
    })
}

fn flags(home: &Path, path: &Path) -> String {
    let shown = Printable::new(path);
    match guard(home, path, false) {
        Some(why) => format!("-r {shown} --i-know ({why})"),
        None => format!("-r {shown}"),
    }
}

fn in_quotes(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Whether the ceiling gives any of these files to a command that requests them.
pub(crate) fn in_ceiling(plan: &Plan, files: &[HiddenFile]) -> bool {
    let parts = || plan.leases.iter().flat_map(|leases| &leases.paths);
    files.iter().any(|file| {
        let covers = |gives: bool| {
            let mut parts = parts().filter(|part| part.what.mark.gives() == gives);
            parts.any(|part| file.path.starts_with(&part.what.path))
        };
        covers(true) && !covers(false)
    })
}
