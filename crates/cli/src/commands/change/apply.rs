//! `ironcage change apply`, or `ironcage apply`.

use super::diff::text;
use crate::error::{CliError, CommandResult};
use crate::failure::FailureCode;
use crate::json;
use crate::pending_change::{ChangeArgs, PendingChange, change_error};
use crate::running_change::RunningChange;
use ironcage_catalog::Class;
use ironcage_workspace::{
    Applied, ApplyOptions, Change, Difference, Entry, OnConflict, Reading, ReportedPath,
    ReviewDigest, Roots, Selection, Status, Store, WorkspaceError, differences, review, unified,
};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;

/// Exit status when a file changed on both sides and was left as it is.
const EXIT_CONFLICT: u8 = 1;

/// Apply a pending change to the real files
///
/// Files that your own tools would execute or trust are withheld until you name them, as are
/// files that git ignores. If the real file changed too, both versions stay: --theirs takes the
/// agent's, --ours keeps yours. If an apply is interrupted, the next command on the change
/// completes it. A running cage that works on the change is paused meanwhile; its open files and
/// working directories stay valid.
///
/// Exit status: 1 if there were conflicts.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pending: ChangeArgs,
    /// Confirm each file
    #[arg(short, long)]
    interactive: bool,
    /// On conflict, take the agent's version
    #[arg(long, conflicts_with = "ours")]
    theirs: bool,
    /// On conflict, keep the real file and discard the agent's version
    #[arg(long)]
    ours: bool,
    /// Apply files as a running cage changes them, until it ends; withheld and flagged files and
    /// git directories stay pending
    #[arg(long, conflicts_with_all = ["interactive", "theirs", "ours"])]
    follow: bool,
    /// Apply only what `ironcage change diff --digest` showed with this digest, for the same paths
    #[arg(long, value_name = "DIGEST", conflicts_with_all = ["interactive", "follow"])]
    expect: Option<ReviewDigest>,
    /// Print JSON
    #[arg(long, conflicts_with_all = ["interactive", "follow"])]
    json: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let PendingChange {
        store,
        change,
        mut selection,
        cage,
    } = match args.follow {
        // A named path may appear later.
        true => args.pending.find_with_cage()?,
        false => args.pending.find_with_cage()?.with_all_named()?,
    };
    let live = cage.as_ref().map(|cage| RunningChange {
        store: &store,
        change: &change,
        cage,
    });
    if args.follow {
        return follow(live, &selection);
    }
    if args.ours && live.is_some() {
        return Err(CliError::new(
            "cannot apply with --ours: a running cage uses the agent's version, which --ours would discard",
        )
        .hint("stop the cage first, or leave the conflict for later"));
    }
    if args.interactive {
        match ask(&change, &selection)? {
            Some(chosen) => selection = chosen,
            None => {
                anstream::println!("nothing applied");
                return Ok(0);
            }
        }
    }
    let options = ApplyOptions {
        on_conflict: match (args.theirs, args.ours) {
            (true, _) => OnConflict::Theirs,
            (_, true) => OnConflict::Ours,
            _ => OnConflict::Keep,
        },
        ..ApplyOptions::default()
    };
    let reviewed = || match &args.expect {
        Some(digest) => check_reviewed(&change, &selection, digest),
        None => Ok(()),
    };
    let applied = match live {
        None => apply_locked(&store, (&change, &selection), &options, &reviewed)
            .map_err(|error| change_error(&error))?,
        Some(live) => live.apply_if(&selection, &options, &reviewed)?.applied,
    };
    match &cage {
        _ if args.json => {
            let document = in_json(&change, &applied);
            anstream::println!("{}", json::line(&document).map_err(CliError::new)?);
        }
        None => report(&change, &applied),
        Some(cage) => {
            anstream::println!("{applied}");
            anstream::println!("cage {} continues with change {}", cage.id(), change.id());
        }
    }
    Ok(if applied.conflicts.is_empty() {
        0
    } else {
        EXIT_CONFLICT
    })
}

/// Refuses a change that is not what a digest was made of.
fn check_reviewed(
    change: &Change,
    selection: &Selection,
    digest: &ReviewDigest,
) -> Result<(), WorkspaceError> {
    let now = review(&mut std::io::sink(), change, selection, digest.form())?;
    match now == *digest {
        true => Ok(()),
        false => Err(WorkspaceError::NotReviewed {
            id: change.id().clone(),
        }),
    }
}

/// Applies a change that no cage works on. No cage begins to while it is checked.
fn apply_locked(
    store: &Store,
    (change, selection): (&Change, &Selection),
    options: &ApplyOptions,
    reviewed: &dyn Fn() -> Result<(), WorkspaceError>,
) -> Result<Applied, WorkspaceError> {
    let lock = change.lock()?;
    reviewed()?;
    store.apply_locked(change, &lock, selection, options)
}

/// Applies files as they change, until the cage ends.
fn follow(live: Option<RunningChange<'_>>, selection: &Selection) -> CommandResult {
    let Some(live) = live else {
        return Err(
            CliError::new("cannot follow the change: no running cage works on it")
                .hint("leave out --follow to apply it as it is"),
        );
    };
    let options = ApplyOptions {
        hold_flagged: true,
        without_git: true,
        ..ApplyOptions::default()
    };
    let left = live.follow(selection, &options, |applied| {
        anstream::println!("{} applied", applied.done);
    })?;
    match left {
        Some(applied) => {
            anstream::println!("the cage has ended: {applied}");
            if !applied.finished {
                report_rest(live.change);
            }
        }
        None => anstream::println!("the cage has ended, and its change is applied in full"),
    }
    Ok(0)
}

fn in_json(change: &Change, applied: &Applied) -> serde_json::Value {
    let reported = |list: &mut dyn Iterator<Item = &ReportedPath>| -> Vec<_> {
        list.map(|one| json!({ "path": text(&one.path), "why": one.why }))
            .collect()
    };
    let conflicts: Vec<_> = applied.conflicts.iter().map(|path| text(path)).collect();
    json!({
        "id": change.id(),
        "applied": applied.done,
        "withheld": reported(&mut applied.held.iter()),
        "flagged": reported(&mut applied.flagged.iter()),
        "conflicts": conflicts,
        "finished": applied.finished,
        "summary": applied.to_string(),
    })
}

fn report(change: &Change, applied: &Applied) {
    anstream::println!("{applied}");
    if !applied.finished {
        report_rest(change);
    }
}

fn report_rest(change: &Change) {
    anstream::println!(
        "the rest stays pending as {}; `ironcage diff` to review, `ironcage apply PATH` to apply a withheld file",
        change.id()
    );
}

/// Shows each file and asks; returns the accepted ones.
fn ask(change: &Change, selection: &Selection) -> Result<Option<Selection>, CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::new(
            "nothing applied: cannot ask for confirmation, standard input is not a terminal",
        )
        .with_failure(FailureCode::ConfirmationNeeded)
        .hint("name the paths to apply"));
    }
    let failed =
        |error: std::io::Error| CliError::new(format!("cannot ask for confirmation: {error}"));
    let reading = change
        .read_entries(selection)
        .map_err(|error| change_error(&error))?;
    let roots = Roots::open(change).map_err(|error| change_error(&error))?;
    let style = unified::Style {
        colour: std::env::var_os("NO_COLOR").is_none(),
        raw: false,
    };
    let mut wanted: Vec<PathBuf> = Vec::new();
    let (mut all, mut quit) = (false, false);
    let withheld = |entry: &Entry| {
        let mut notes = entry.notes.iter();
        notes.any(|note| note.class == Class::Withheld)
    };
    // A dependency tree, such as node_modules, is one question.
    let mut trees: BTreeSet<PathBuf> = BTreeSet::new();
    for difference in differences(&roots, &reading, &withheld) {
        let shown = change.shown(difference.layer, &difference.path);
        let real = change.workspace().join(&shown);
        if let Some((root, count)) = dependency_tree(change, &reading, &difference) {
            if !trees.insert(root.clone()) {
                continue;
            }
            let what = format!("{} ({count} differences)", unified::quoted("", &root));
            match if all {
                FileChoice::Yes
            } else {
                answer(&what).map_err(failed)?
            } {
                FileChoice::Yes => {}
                FileChoice::All => all = true,
                FileChoice::Quit => {
                    quit = true;
                    break;
                }
                FileChoice::No => continue,
            }
            wanted.push(change.workspace().join(root));
            continue;
        }
        if !all {
            let mut out = std::io::stdout().lock();
            unified::write(&mut out, (change, &roots), &difference, style).map_err(failed)?;
            for entry in reading
                .entries
                .iter()
                .filter(|entry| (entry.layer, &entry.path) == (difference.layer, &difference.path))
            {
                for note in &entry.notes {
                    writeln!(out, "note: {}", note.why).map_err(failed)?;
                }
            }
            drop(out);
            match answer(&unified::quoted("", &shown)).map_err(failed)? {
                FileChoice::Yes => {}
                FileChoice::All => all = true,
                FileChoice::Quit => {
                    quit = true;
                    break;
                }
                FileChoice::No => continue,
            }
        }
        wanted.push(real);
        if let Some((from, _)) = &difference.moved {
            wanted.push(
                change
                    .workspace()
                    .join(change.shown(difference.layer, from)),
            );
        }
    }
    if !quit {
        wanted.extend(ask_for_git(change, &reading, all).map_err(failed)?);
    }
    if wanted.is_empty() {
        return Ok(None);
    }
    Selection::of(change, change.workspace(), &wanted)
        .map(Some)
        .map_err(|error| change_error(&error))
}

/// The dependency tree around a difference, and how many differences are in it.
fn dependency_tree(
    change: &Change,
    reading: &Reading,
    difference: &Difference,
) -> Option<(PathBuf, usize)> {
    let of = |entry: &Entry| Some((entry.layer, entry.dependencies.as_ref()?.root.clone()));
    let entry = reading
        .entries
        .iter()
        .find(|entry| (entry.layer, &entry.path) == (difference.layer, &difference.path))?;
    let tree = of(entry)?;
    let inside = |entry: &&Entry| {
        entry.status != Status::Touched && of(entry).is_some_and(|other| other == tree)
    };
    let count = reading.entries.iter().filter(inside).count();
    Some((change.shown(tree.0, &tree.1), count))
}

enum FileChoice {
    Yes,
    No,
    /// This one, and all after it.
    All,
    /// Not this one, nor any after it.
    Quit,
}

fn answer(what: &str) -> std::io::Result<FileChoice> {
    let mut out = std::io::stdout().lock();
    write!(out, "apply {what}? [y,n,a,q] ")?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(match answer.trim() {
        "y" | "Y" => FileChoice::Yes,
        "a" => FileChoice::All,
        "q" => FileChoice::Quit,
        // End of input.
        "" if answer.is_empty() => FileChoice::Quit,
        _ => FileChoice::No,
    })
}

/// Asks once for each git directory: commits and references are applied together.
fn ask_for_git(change: &Change, reading: &Reading, all: bool) -> std::io::Result<Vec<PathBuf>> {
    let mut counts: BTreeMap<PathBuf, usize> = BTreeMap::new();
    let applies = |entry: &&Entry| entry.status != Status::Touched && entry.notes.is_empty();
    for entry in reading.entries.iter().filter(applies) {
        if let Some(git) = &entry.git {
            *counts.entry(change.shown(entry.layer, git)).or_default() += 1;
        }
    }
    let mut wanted = Vec::new();
    let mut all = all;
    for (git, count) in counts {
        let what = format!(
            "commits and references in {} ({count} differences)",
            unified::quoted("", &git)
        );
        match if all { FileChoice::Yes } else { answer(&what)? } {
            FileChoice::Yes => {}
            FileChoice::All => all = true,
            FileChoice::No => continue,
            FileChoice::Quit => break,
        }
        wanted.push(change.workspace().join(git));
    }
    Ok(wanted)
}
