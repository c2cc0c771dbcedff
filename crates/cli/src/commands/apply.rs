//! `ironcage apply`: brings a pending change over to the real files.

use crate::error::{CliError, CommandResult};
use crate::live::Live;
use crate::pending::{Pending, PendingArgs, shown};
use ironcage_policy::Class;
use ironcage_workspace::{
    Applied, ApplyOptions, Change, Entry, OnConflict, Reading, Roots, Selection, Status,
    differences, unified,
};
use std::collections::BTreeMap;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;

/// Exit status when something changed on both sides and was left as it is.
const EXIT_CONFLICT: u8 = 1;

/// Bring a pending change over to the real files.
///
/// What the host would execute or trust stays aside until it is named, as does what git
/// ignores. Where the real file changed too, both versions stay; --theirs takes the agent's,
/// --ours keeps yours. An apply that is killed is completed by the next command on the change.
/// Where a running cage works on the change, it stands still meanwhile; its open files and
/// working directories stay as they are. Exit status 1 tells of conflicts.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pending: PendingArgs,
    /// Ask for each file
    #[arg(short, long)]
    interactive: bool,
    /// Where both changed, take the agent's version
    #[arg(long, conflicts_with = "ours")]
    theirs: bool,
    /// Where both changed, keep the real file and let the agent's go
    #[arg(long)]
    ours: bool,
    /// While a cage works on the change: apply files as they change, until it ends. What is
    /// withheld or flagged stays aside, as do git directories
    #[arg(long, conflicts_with_all = ["interactive", "theirs", "ours"])]
    follow: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let Pending {
        store,
        change,
        mut selection,
        cage,
    } = match args.follow {
        // What is named may come later.
        true => args.pending.find_with_cage()?,
        false => args.pending.find_with_cage()?.with_all_named()?,
    };
    let live = cage.as_ref().map(|cage| Live {
        store: &store,
        change: &change,
        cage,
    });
    if args.follow {
        return follow(live, &selection);
    }
    if args.ours && live.is_some() {
        return Err(CliError::new(
            "nothing was applied: a running cage uses the agent's version that --ours would let go",
        )
        .hint("end the cage first, or leave the conflict for later"));
    }
    if args.interactive {
        match ask(&change, &selection)? {
            Some(chosen) => selection = chosen,
            None => {
                anstream::println!("nothing was applied");
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
    let applied = match live {
        None => store
            .apply(&change, &selection, &options)
            .map_err(|error| shown(&error))?,
        Some(live) => live.apply(&selection, &options)?.applied,
    };
    match &cage {
        None => tell(&change, &applied),
        Some(cage) => {
            anstream::println!("{applied}");
            anstream::println!("the cage {} goes on with {}", cage.id(), change.id());
        }
    }
    Ok(if applied.conflicts.is_empty() {
        0
    } else {
        EXIT_CONFLICT
    })
}

/// Applies files as they change, until the cage ends.
fn follow(live: Option<Live<'_>>, selection: &Selection) -> CommandResult {
    let Some(live) = live else {
        return Err(CliError::new("no running cage works on the change")
            .hint("without --follow it is applied as it is"));
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
                say_what_is_left(live.change);
            }
        }
        None => anstream::println!("the cage has ended, and nothing is left of its change"),
    }
    Ok(0)
}

/// Says what became of a change.
pub(crate) fn tell(change: &Change, applied: &Applied) {
    anstream::println!("{applied}");
    if !applied.finished {
        say_what_is_left(change);
    }
}

fn say_what_is_left(change: &Change) {
    anstream::println!(
        "the rest stays aside as {}: `ironcage diff` shows it, a path applies what it names",
        change.id()
    );
}

/// Shows every file and asks; the ones that were wanted.
fn ask(change: &Change, selection: &Selection) -> Result<Option<Selection>, CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(
            CliError::new("nothing was applied: standard input is no terminal to ask on")
                .hint("name the paths to apply"),
        );
    }
    let failed = |error: std::io::Error| CliError::new(format!("cannot ask: {error}"));
    let reading = change
        .read_entries(selection)
        .map_err(|error| shown(&error))?;
    let roots = Roots::open(change).map_err(|error| shown(&error))?;
    let style = unified::Style {
        colour: std::env::var_os("NO_COLOR").is_none(),
        raw: false,
    };
    let mut wanted: Vec<PathBuf> = Vec::new();
    let (mut all, mut enough) = (false, false);
    let withheld = |entry: &Entry| {
        let mut notes = entry.notes.iter();
        notes.any(|note| note.class == Class::Withheld)
    };
    for difference in differences(&roots, &reading, &withheld) {
        let shown = change.shown(difference.layer, &difference.path);
        let real = change.workspace().join(&shown);
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
                Answer::Yes => {}
                Answer::All => all = true,
                Answer::Enough => {
                    enough = true;
                    break;
                }
                Answer::No => continue,
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
    if !enough {
        wanted.extend(ask_for_git(change, &reading, all).map_err(failed)?);
    }
    if wanted.is_empty() {
        return Ok(None);
    }
    Selection::of(change, change.workspace(), &wanted)
        .map(Some)
        .map_err(|error| shown(&error))
}

enum Answer {
    Yes,
    No,
    /// This one, and all that come after it.
    All,
    /// None of those that come after it either.
    Enough,
}

fn answer(what: &str) -> std::io::Result<Answer> {
    let mut out = std::io::stdout().lock();
    write!(out, "apply {what}? [y,n,a,q] ")?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(match answer.trim() {
        "y" | "Y" => Answer::Yes,
        "a" => Answer::All,
        "q" => Answer::Enough,
        // The end of input is no answer, and so no.
        "" if answer.is_empty() => Answer::Enough,
        _ => Answer::No,
    })
}

/// Asks for each git directory as a whole: commits and references come over together.
fn ask_for_git(change: &Change, reading: &Reading, all: bool) -> std::io::Result<Vec<PathBuf>> {
    let mut counts: BTreeMap<PathBuf, usize> = BTreeMap::new();
    let brought = |entry: &&Entry| entry.status != Status::Touched && entry.notes.is_empty();
    for entry in reading.entries.iter().filter(brought) {
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
        match if all { Answer::Yes } else { answer(&what)? } {
            Answer::Yes => {}
            Answer::All => all = true,
            Answer::No => continue,
            Answer::Enough => break,
        }
        wanted.push(change.workspace().join(git));
    }
    Ok(wanted)
}
