//! Explains what a path is in a cage: `ironcage why --path` and `ironcage plan --path`.
//!
//! The kernel denies file access without telling anybody. So the explanation comes from the plan:
//! what a run with these flags would see.

use crate::cage_flags::PlannedCage;
use crate::error::{CliError, CommandResult};
use crate::output::{print, wrap};
use crate::paths;
use ironcage_host::SystemFiles;
use ironcage_model::Printable;
use ironcage_plan::{HiddenBy, Located, PathStatus, guard, locate};
use std::path::{Path, PathBuf};

struct PathExplanation {
    is: String,
    because: String,
    allow: String,
}

pub(crate) fn explain(prepared: &PlannedCage, path: &Path) -> CommandResult {
    let home = paths::home(&SystemFiles::default())?;
    let path = absolute(path, &home)?;
    let located = locate(&prepared.plan, &path);
    let text = explanation(&located, &prepared.plan.workspace, &home);
    print(|out| {
        writeln!(out, "{}", Printable::new(&path))?;
        wrap(out, "  in the cage:  ", &text.is)?;
        wrap(out, "  because:      ", &text.because)?;
        wrap(out, "  to change it: ", &text.allow)
    })?;
    Ok(0)
}

/// The path with links resolved, as far as it exists on the host: mounts are at real paths.
fn absolute(path: &Path, home: &Path) -> Result<PathBuf, CliError> {
    let written = match path.strip_prefix("~") {
        Ok(rest) => home.join(rest),
        Err(_) => path.to_owned(),
    };
    let whole = std::path::absolute(&written).map_err(|error| {
        CliError::new(format!("cannot resolve {}: {error}", Printable::new(path)))
    })?;
    Ok(paths::resolved(&whole, &SystemFiles::default()))
}

fn explanation(located: &Located, workspace: &Path, home: &Path) -> PathExplanation {
    let path = &located.path;
    let shown = Printable::new(path).to_string();
    let origin = located.origin.as_deref().map(Printable::new);
    let origin = origin.map_or_else(String::new, |origin| origin.to_string());
    let because = match &located.by {
        Some(by) => format!("{} ({origin})", Printable::new(by)),
        None => origin,
    };
    let give = |flag: &str, write: bool| match guard(home, path, write) {
        Some(why) => format!("`{flag} {shown}` together with `--i-know`, because {why}."),
        None => format!("`{flag} {shown}`."),
    };
    let (is, allow) = match &located.standing {
        PathStatus::Absent | PathStatus::Leads => return absent(located, &give),
        PathStatus::Made => (
            "created for the cage, read-only.".to_owned(),
            format!("Use the host's version: {}", give("-r", false)),
        ),
        PathStatus::Ephemeral => {
            let is = if located.by.is_some() {
                "absent at the start. It is in the cage's private scratch storage: writable, and deleted when the cage \
                 ends."
            } else {
                "empty at the start. It is the cage's private scratch storage, not the host's: writable, and deleted \
                 when the cage ends."
            };
            let host = format!("Use the host's version: {}", give("-r", false));
            let below_home = path.starts_with(home) && path != home;
            let allow = if below_home && guard(home, path, false).is_none() {
                match kept(path, home) {
                    Some(directory) => {
                        let directory = Printable::new(directory);
                        format!("Keep it for the next run: `--state {directory}`. {host}")
                    }
                    None => host,
                }
            } else {
                host
            };
            (is.to_owned(), allow)
        }
        PathStatus::ReadOnly(source) => (
            format!(
                "read-only: the host's {}, subject to its file permissions.",
                Printable::new(source)
            ),
            if path.starts_with(workspace) {
                "Make it writable: `--workspace-mode direct`, or a copy-on-write mode.".to_owned()
            } else {
                format!("Make it writable: {}", give("-w", true))
            },
        ),
        PathStatus::Writable(source) => (
            format!(
                "writable: the host's {}, changed at once.",
                Printable::new(source)
            ),
            format!(
                "Hide it: `--hide {shown}`. Make the workspace read-only: `--workspace-mode read-only`."
            ),
        ),
        PathStatus::Locked(source) => (
            format!(
                "read-only: the host's {}. With a lease, writes go to a pending change until you apply it.",
                Printable::new(source)
            ),
            format!(
                "Lease it: `ironcage grant ID --write {shown}`. Make it writable without a lease: `--workspace-mode cow`."
            ),
        ),
        PathStatus::CopyOnWrite(source) => (
            format!(
                "writable: the host's {}. Writes go to a pending change until you apply it.",
                Printable::new(source)
            ),
            format!("Hide it: `--hide {shown}`."),
        ),
        PathStatus::Protected => (
            "read-only, because your own tools would execute or trust it.".to_owned(),
            match path.strip_prefix(workspace) {
                Ok(inside) => format!("`--unprotect {}`.", Printable::new(inside)),
                Err(_) => format!("`-w {shown}`."),
            },
        ),
        PathStatus::Hidden => (
            "hidden: it exists, but its contents cannot be read.".to_owned(),
            match located.hidden_by {
                Some(HiddenBy::Credentials | HiddenBy::SystemSecret) => {
                    format!("Show it anyway: {}", give("-r", false))
                }
                Some(HiddenBy::Ironcage) => "Nothing: no cage can see it.".to_owned(),
                Some(HiddenBy::Sensitive) => {
                    format!("`-r {shown}`, or a lease: `ironcage grant ID --read {shown}`.")
                }
                Some(HiddenBy::Policy) | None => "Remove the entry that hides it.".to_owned(),
            },
        ),
        PathStatus::Device => (
            "a harmless device.".to_owned(),
            "Nothing: no cage can see other host devices.".to_owned(),
        ),
        PathStatus::Kernel => (
            "the kernel's view of the cage itself, not of the host.".to_owned(),
            "Nothing: no cage can see the host's.".to_owned(),
        ),
    };
    PathExplanation { is, because, allow }
}

/// The directory that `--state` keeps a path with: itself, or the one around a file. The home itself is
/// too much.
fn kept<'a>(path: &'a Path, home: &Path) -> Option<&'a Path> {
    match path.symlink_metadata() {
        Ok(found) if !found.is_dir() => path.parent().filter(|parent| *parent != home),
        _ => Some(path),
    }
}

fn absent(located: &Located, give: &dyn Fn(&str, bool) -> String) -> PathExplanation {
    let path = &located.path;
    let is = match located.standing {
        PathStatus::Leads => "an empty directory on the way to a visible path.",
        _ => "absent: programs get \"No such file or directory\".",
    };
    let allow = if ["/proc", "/sys", "/dev"]
        .iter()
        .any(|tree| path.starts_with(tree))
        || path == Path::new("/")
    {
        "Nothing: no policy can show it.".to_owned()
    } else if path.symlink_metadata().is_err() {
        "It does not exist on the host either: create it, then name it with `-r` or `-w`."
            .to_owned()
    } else {
        format!(
            "Read it: {} Write it: {}",
            give("-r", false),
            give("-w", true)
        )
    };
    PathExplanation {
        is: is.to_owned(),
        because:
            "a cage sees the system's programs, its workspace and the paths that the policy names"
                .to_owned(),
        allow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_home_is_a_directory() {
        let root = Path::new("/");
        for (path, home, expected) in [
            ("/usr/bin", root, Some("/usr/bin")),
            ("/etc/passwd", root, Some("/etc")),
            ("/etc/passwd", Path::new("/etc"), None),
            ("/etc/absent/file", root, Some("/etc/absent/file")),
        ] {
            assert_eq!(
                kept(Path::new(path), home),
                expected.map(Path::new),
                "{path}"
            );
        }
    }
}
