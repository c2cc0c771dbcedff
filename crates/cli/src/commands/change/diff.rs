//! `ironcage change diff`, or `ironcage diff`.

use crate::error::{CliError, CommandResult};
use crate::json;
use crate::pending_change::{ChangeArgs, PendingChange, change_error};
use ironcage_model::Printable;
use ironcage_workspace::{
    Change, Difference, ReviewForm, Roots, Selection, differences, digest_of, unified,
};
use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _, Write};
use std::process::{Child, Command, Stdio};

/// Show a pending change as a diff
///
/// Files that git ignores get one line each; name one to see it in full. The end lists files that
/// your own tools would execute or trust, each with the reason, and branches, tags and HEAD that
/// are new, moved or deleted.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pending: ChangeArgs,
    #[command(flatten)]
    format: DiffFormat,
}

#[derive(Debug, Default, clap::Args)]
struct DiffFormat {
    /// Show only names and line counts
    #[arg(long, conflicts_with_all = ["name_only", "json"])]
    stat: bool,
    /// Show only names
    #[arg(long, conflicts_with = "json")]
    name_only: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the bytes as they are, for `git apply`: control characters are not escaped
    #[arg(long, conflicts_with_all = ["stat", "name_only", "json"])]
    raw: bool,
    /// Also print a digest of what is shown, for `ironcage change apply --expect`
    #[arg(long, conflicts_with_all = ["stat", "name_only"])]
    digest: bool,
}

/// Exit status of a shell that finds no such program.
const NOT_FOUND: i32 = 127;

pub(crate) fn run(args: Args) -> CommandResult {
    let PendingChange {
        change, selection, ..
    } = args.pending.find()?.with_all_named()?;
    print(&change, &selection, args.format)
}

pub(crate) fn show(change: &Change, selection: &Selection) -> CommandResult {
    print(change, selection, DiffFormat::default())
}

fn print(change: &Change, selection: &Selection, args: DiffFormat) -> CommandResult {
    let reading = change
        .read_entries(selection)
        .map_err(|error| change_error(&error))?;
    let roots = Roots::open(change).map_err(|error| change_error(&error))?;
    let found = differences(&roots, &reading, &|entry| entry.named);
    let layers: BTreeSet<usize> = found.iter().map(|difference| difference.layer).collect();
    if args.raw && layers.len() > 1 {
        return Err(CliError::new(
            "cannot print a raw diff: the change spans several directories, and `git apply` works in one",
        )
        .hint("name a path in one of them"));
    }
    let all = (change, &roots, &reading);
    if args.digest && !args.json {
        let form = match args.raw {
            true => ReviewForm::Raw,
            false => ReviewForm::Text,
        };
        let mut out = io::stdout().lock();
        let digest = digest_of(&mut out, all, form).map_err(|error| change_error(&error))?;
        return match writeln!(out, "digest: {digest}") {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(CliError::new(format!("cannot print the digest: {error}")))
            }
            _ => Ok(0),
        };
    }
    let summary = change.summary_of(&roots, &reading);
    if args.json {
        let mut document = in_json(change, &roots, &found, &summary);
        if args.digest {
            let digest = digest_of(&mut io::sink(), all, ReviewForm::Files);
            let digest = digest.map_err(|error| change_error(&error))?;
            document["digest"] = digest.to_string().into();
        }
        anstream::println!("{}", json::line(&document).map_err(CliError::new)?);
        return Ok(0);
    }
    let terminal = io::stdout().is_terminal();
    let style = unified::Style {
        colour: terminal && std::env::var_os("NO_COLOR").is_none(),
        raw: args.raw,
    };
    let print = |out: &mut dyn Write| -> io::Result<()> {
        let mut out = io::BufWriter::new(out);
        for difference in &found {
            let path = unified::quoted("", &change.shown(difference.layer, &difference.path));
            if args.name_only {
                writeln!(out, "{path}")?;
            } else if args.stat {
                writeln!(out, "{}", stat(&roots, difference, &path))?;
            } else {
                unified::write(&mut out, (change, &roots), difference, style)?;
            }
        }
        if !args.name_only && !args.raw {
            writeln!(out, "{summary:#}")?;
        }
        out.flush()
    };
    let printed = match terminal.then(pager).flatten() {
        Some(mut pager) => {
            let printed = pager
                .stdin
                .take()
                .map_or(Ok(()), |mut pipe| print(&mut pipe));
            match pager.wait() {
                // The shell found no such pager, so nothing was shown.
                Ok(status) if status.code() == Some(NOT_FOUND) => print(&mut io::stdout().lock()),
                // Any other status is the pager's own business.
                _ => printed,
            }
        }
        None => print(&mut io::stdout().lock()),
    };
    match printed {
        // The reader closed the pipe.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::new(format!("cannot print the diff: {error}")))
        }
        _ => Ok(0),
    }
}

fn pager() -> Option<Child> {
    let named = std::env::var_os("PAGER").filter(|pager| !pager.is_empty());
    let mut command = Command::new("/bin/sh");
    match named {
        Some(pager) => command.arg("-c").arg(pager),
        None => command.args(["-c", "exec less"]),
    };
    // Keep colours, do not clear the screen, and exit at once if it all fits.
    if std::env::var_os("LESS").is_none() {
        command.env("LESS", "FRX");
    }
    command.stdin(Stdio::piped()).spawn().ok()
}

fn stat(roots: &Roots, difference: &Difference, path: &str) -> String {
    let letter = unified::letter(difference);
    let from = match &difference.moved {
        Some((from, _)) => format!("{} -> ", unified::quoted("", from)),
        None => String::new(),
    };
    match difference.lines(roots) {
        Some((added, removed)) => format!("{letter} {from}{path} | +{added} -{removed}"),
        None => format!("{letter} {from}{path}"),
    }
}

fn in_json(
    change: &ironcage_workspace::Change,
    roots: &Roots,
    found: &[Difference],
    summary: &ironcage_workspace::Summary,
) -> serde_json::Value {
    let files: Vec<_> = found
        .iter()
        .map(|difference| {
            let (content, lines) = difference.content(roots);
            serde_json::json!({
                "path": text(&change.shown(difference.layer, &difference.path)),
                "from": difference.moved.as_ref().map(|(from, _)| text(from)),
                "status": difference.status,
                "content": content,
                "lines_added": lines.map(|(added, _)| added),
                "lines_removed": lines.map(|(_, removed)| removed),
                "mode_before": difference.before.as_ref().map(|node| node.mode),
                "mode_after": difference.after.as_ref().map(|node| node.mode),
                "bytes": difference.after.as_ref().map(|node| node.size),
            })
        })
        .collect();
    let told = |list: &[ironcage_workspace::ReportedPath]| -> Vec<_> {
        list.iter()
            .map(|told| serde_json::json!({ "path": text(&told.path), "why": told.why }))
            .collect()
    };
    let ignored: Vec<_> = summary
        .ignored
        .iter()
        .map(|tree| {
            serde_json::json!({
                "path": text(&change.shown(tree.layer, &tree.path)),
                "files": tree.files,
                "bytes": tree.bytes,
            })
        })
        .collect();
    let references: Vec<_> = summary
        .references
        .iter()
        .map(|reference| {
            serde_json::json!({
                "name": reference.name,
                "change": reference.how.name(),
                "before": reference.before,
                "after": reference.after,
                "repository": reference.repository.as_deref().map(text),
            })
        })
        .collect();
    serde_json::json!({
        "id": change.id(),
        "workspace": text(change.workspace()),
        "files": files,
        "git": summary.git,
        "references": references,
        "withheld": told(&summary.withheld),
        "flagged": told(&summary.flagged),
        "obstacles": told(&summary.obstacles),
        "conflicts": summary.conflicts.iter().map(|path| text(path)).collect::<Vec<_>>(),
        "ignored": ignored,
    })
}

/// A path as JSON text, escaped where it is not UTF-8.
pub(super) fn text(path: &std::path::Path) -> String {
    match path.to_str() {
        Some(text) => text.to_owned(),
        None => Printable::new(path).to_string(),
    }
}
