//! What a path is in a cage, in words: `ironcage why --path` and `ironcage plan --path`.
//!
//! Refused file access leaves no record: the kernel answers it. So the question is answered
//! from the plan: what a run with these flags would see.

use super::audit::print;
use super::why::wrap;
use crate::cage_flags::Prepared;
use crate::error::{CliError, CommandResult};
use crate::places;
use ironcage_model::Printable;
use ironcage_plan::{Located, Standing, guard, locate};
use std::path::{Path, PathBuf};

/// Three lines about a path.
struct Answer {
    is: String,
    because: String,
    allow: String,
}

/// Tells what a path is in the cage of a plan.
pub(super) fn tell(prepared: &Prepared, path: &Path) -> CommandResult {
    let home = places::home()?;
    let path = absolute(path, &home)?;
    let located = locate(&prepared.plan, &path);
    let answer = answer(&located, &prepared.plan.workspace, &home);
    print(|out| {
        writeln!(out, "{}", Printable::new(&path))?;
        wrap(out, "  in the cage:          ", &answer.is)?;
        wrap(out, "  because:              ", &answer.because)?;
        wrap(out, "  what would change it: ", &answer.allow)
    })?;
    Ok(0)
}

/// The path without links, as far as it exists on the host: mounts are at real paths.
fn absolute(path: &Path, home: &Path) -> Result<PathBuf, CliError> {
    let written = match path.strip_prefix("~") {
        Ok(rest) => home.join(rest),
        Err(_) => path.to_owned(),
    };
    let whole = std::path::absolute(&written)
        .map_err(|error| CliError::new(format!("{}: {error}", Printable::new(path))))?;
    Ok(places::resolved(&whole))
}

fn answer(located: &Located, workspace: &Path, home: &Path) -> Answer {
    let path = &located.path;
    let shown = Printable::new(path).to_string();
    let origin = located.origin.as_deref().map(Printable::new);
    let origin = origin.map_or_else(String::new, |origin| origin.to_string());
    let because = match &located.by {
        Some(by) => format!("{} ({origin})", Printable::new(by)),
        None => origin,
    };
    let give = |flag: &str, write: bool| match guard(home, path, write) {
        Some(why) => format!("`{flag} {shown}` together with `--i-know`, as {why}."),
        None => format!("`{flag} {shown}`."),
    };
    let (is, allow) = match &located.standing {
        Standing::Absent | Standing::Leads => return absent(located, &give),
        Standing::Made => (
            "made for the cage; to read.".to_owned(),
            format!("To have the host's instead: {}", give("-r", false)),
        ),
        Standing::Ephemeral => {
            let is = if located.by.is_some() {
                "not there at the start, and not the host's: it lies in storage of the cage's own, where programs can \
                 write, and which goes with the cage."
            } else {
                "empty at the start, to read and write: storage of the cage's own, which goes with it. It is not the \
                 host's."
            };
            let host = format!("To have the host's: {}", give("-r", false));
            let below_home = path.starts_with(home) && path != home;
            let allow = if below_home && guard(home, path, false).is_none() {
                format!("To keep it for the next run: `--state {shown}`. {host}")
            } else {
                host
            };
            (is.to_owned(), allow)
        }
        Standing::ReadOnly(source) => (
            format!(
                "to read: the host's {}, as far as its own permissions allow.",
                Printable::new(source)
            ),
            if path.starts_with(workspace) {
                "To write: `--workspace-mode direct`, or a mode that keeps changes aside."
                    .to_owned()
            } else {
                format!("To write: {}", give("-w", true))
            },
        ),
        Standing::Writable(source) => (
            format!(
                "to read and write: the host's own {}, changed at once.",
                Printable::new(source)
            ),
            format!(
                "To take it away: `--hide {shown}`. To keep the workspace as it is: `--workspace-mode read-only`."
            ),
        ),
        Standing::Locked(source) => (
            format!(
                "to read: the host's {}; with a lease what is written is kept aside until you apply it.",
                Printable::new(source)
            ),
            format!(
                "To write for a while: `ironcage grant ID --write {shown}`. To write without a lease: `--workspace-mode cow`."
            ),
        ),
        Standing::CopyOnWrite(source) => (
            format!(
                "to read and write: the host's {}; what is written is kept aside until you apply it.",
                Printable::new(source)
            ),
            format!("To take it away: `--hide {shown}`."),
        ),
        Standing::Protected => (
            "to read; writing is refused, because your own tools would execute or trust it."
                .to_owned(),
            match path.strip_prefix(workspace) {
                Ok(inside) => format!("`--unprotect {}`.", Printable::new(inside)),
                Err(_) => format!("`-w {shown}` names it itself."),
            },
        ),
        Standing::Hidden => (
            "there, and cannot be looked into.".to_owned(),
            match located
                .origin
                .as_deref()
                .and_then(|origin| origin.split_once(':'))
            {
                Some(("credentials" | "secret of the system", _)) => {
                    format!("To have it all the same: {}", give("-r", false))
                }
                _ if because.starts_with("Ironcage's own") => "Nothing: no cage has it.".to_owned(),
                _ => "To have it: leave out what hides it.".to_owned(),
            },
        ),
        Standing::Device => (
            "a harmless device.".to_owned(),
            "Nothing: other devices of the host are in no cage.".to_owned(),
        ),
        Standing::Kernel => (
            "the kernel's word about the cage itself, not about the host.".to_owned(),
            "Nothing: the host's is in no cage.".to_owned(),
        ),
    };
    Answer { is, because, allow }
}

fn absent(located: &Located, give: &dyn Fn(&str, bool) -> String) -> Answer {
    let path = &located.path;
    let is = match located.standing {
        Standing::Leads => "an empty directory that leads to what is there.",
        _ => "not there: programs find no such file.",
    };
    let allow = if ["/proc", "/sys", "/dev"]
        .iter()
        .any(|tree| path.starts_with(tree))
        || path == Path::new("/")
    {
        "Nothing: no policy can give it.".to_owned()
    } else if path.symlink_metadata().is_err() {
        "It is not on the host either, as far as you can see: make it first, then name it with `-r` or `-w`.".to_owned()
    } else {
        format!(
            "To read: {} To write: {}",
            give("-r", false),
            give("-w", true)
        )
    };
    Answer {
        is: is.to_owned(),
        because:
            "a cage has the system's programs, its workspace and what is named; nothing names this"
                .to_owned(),
        allow,
    }
}
