//! Finding logs: by id, by the beginning of an id, by name, or the newest.
//!
//! The directory is read again each time and there is no index: a log's first line says
//! when it began and what it is called.

use crate::containers::is_kept;
use crate::error::Error;
use crate::place::{heads_dir, log_path};
use crate::reader::{LogEntry, Reader, open_to_read};
use crate::verify::is_running;
use ironcage_model::{CageId, Ending, EventKind};
use std::ffi::OsStr;
use std::io::{self, BufReader};
use std::path::Path;

/// How much of a container's ID its engine shows.
const SHORT_CONTAINER_ID: usize = 12;

/// What a log says at its beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heading {
    pub id: CageId,
    /// When it began, in microseconds since the epoch; `None` if the first line cannot be read.
    pub time: Option<u64>,
    /// Its name, if it was given one.
    pub name: Option<String>,
    /// Its workspace, as the log names it.
    pub workspace: Option<String>,
}

/// A log in short.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// When it began, in microseconds since the epoch.
    pub time: Option<u64>,
    /// Its name, if it was given one.
    pub name: Option<String>,
    /// The command; empty if there is no start record.
    pub command: Vec<String>,
    /// The profile that was in force.
    pub profile: Option<String>,
    /// How it ended; `None` without an exit record.
    pub ending: Option<Ending>,
    /// How long it lived.
    pub milliseconds: Option<u64>,
    /// How many system calls were refused.
    pub denied: u64,
    /// How many limits were reached.
    pub limits: u64,
    /// Whether the cage is still being recorded.
    pub running: bool,
    /// How many lines cannot be read.
    pub damaged: u64,
}

/// The logs in a directory, newest first. A log whose beginning cannot be read comes last.
pub fn list(dir: &Path) -> Result<Vec<Heading>, Error> {
    let mut headings = Vec::new();
    for id in ids_in(dir, ".jsonl")? {
        headings.push(heading(dir, id)?);
    }
    headings.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| b.id.cmp(&a.id)));
    Ok(headings)
}

/// Every cage of which there is a log or a head, in the order of ids.
pub fn recorded(dir: &Path) -> Result<Vec<CageId>, Error> {
    let mut ids = ids_in(dir, ".jsonl")?;
    ids.extend(ids_in(&heads_dir(dir), "")?);
    ids.sort();
    ids.dedup();
    Ok(ids)
}

/// The cage that a user means by `text`: an id, `last` for the newest, a name (the newest
/// of that name), or the beginning of just one id.
pub fn find(dir: &Path, text: &str) -> Result<CageId, Error> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let headings = list(dir)?;
    let Some(newest) = headings.first() else {
        return Err(Error::Empty {
            dir: dir.to_owned(),
        });
    };
    if text == "last" {
        return Ok(newest.id.clone());
    }
    if let Some(named) = headings.iter().find(|h| h.name.as_deref() == Some(text)) {
        return Ok(named.id.clone());
    }
    // Engines show the beginning of a container's ID, which is its name here.
    let short = |name: &str| text.len() >= SHORT_CONTAINER_ID && name.starts_with(text);
    let mut shortened = headings
        .iter()
        .filter(|heading| heading.name.as_deref().is_some_and(short));
    if let (Some(only), None) = (shortened.next(), shortened.next()) {
        return Ok(only.id.clone());
    }
    let mut matches: Vec<CageId> = headings
        .into_iter()
        .map(|heading| heading.id)
        .filter(|id| !text.is_empty() && id.as_str().starts_with(text))
        .collect();
    let text = text.to_owned();
    match (matches.pop(), matches.is_empty()) {
        (Some(id), true) => Ok(id),
        (None, _) => Err(Error::NotFound { text }),
        (Some(id), false) => {
            matches.push(id);
            Err(Error::Ambiguous { text, matches })
        }
    }
}

/// Reads a whole log and sums it up.
pub fn summary(dir: &Path, id: &CageId) -> Result<Summary, Error> {
    let path = log_path(dir, id);
    let Some(file) = open_to_read(&path)? else {
        return Err(Error::NoSuchCage { id: id.clone() });
    };
    let mut sum = Summary {
        running: is_running(&file) || is_kept(dir, id)?,
        ..Summary::default()
    };
    for item in Reader::new(BufReader::new(file), &path) {
        match item {
            Ok(record) => add(&mut sum, record),
            Err(Error::Damaged { .. }) => sum.damaged += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(sum)
}

fn add(sum: &mut Summary, record: LogEntry) {
    sum.time.get_or_insert(record.event.time);
    match record.event.kind {
        EventKind::Start {
            name,
            command,
            profile,
            ..
        } => {
            sum.name = name;
            sum.command = command;
            sum.profile = Some(profile);
        }
        EventKind::Denied(denial) => sum.denied = sum.denied.saturating_add(denial.count),
        EventKind::Limit(_) => sum.limits += 1,
        EventKind::Exit {
            ending,
            milliseconds,
            ..
        } => {
            sum.ending = Some(ending);
            sum.milliseconds = Some(milliseconds);
        }
        // A summary counts these alone; `show` has the rest.
        _ => {}
    }
}

fn heading(dir: &Path, id: CageId) -> Result<Heading, Error> {
    let first = match Reader::open(&log_path(dir, &id)) {
        Ok(mut reader) => reader.next(),
        // A log that is no file is still a log that a user should see in the list.
        Err(Error::NotAFile { .. }) => None,
        Err(error) => return Err(error),
    };
    let mut heading = Heading {
        id,
        time: None,
        name: None,
        workspace: None,
    };
    match first {
        Some(Ok(record)) => {
            heading.time = Some(record.event.time);
            if let EventKind::Start {
                name, workspace, ..
            } = record.event.kind
            {
                heading.name = name;
                heading.workspace = Some(workspace);
            }
        }
        Some(Err(Error::Damaged { .. })) | None => {}
        Some(Err(error)) => return Err(error),
    }
    Ok(heading)
}

fn ids_in(dir: &Path, suffix: &str) -> Result<Vec<CageId>, Error> {
    let failed = |source| Error::Read {
        path: dir.to_owned(),
        source,
    };
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut ids = Vec::new();
    for entry in entries {
        ids.extend(id_of(&entry.map_err(failed)?.file_name(), suffix));
    }
    Ok(ids)
}

/// The id in a file's name; a file of any other name is not ours.
fn id_of(name: &OsStr, suffix: &str) -> Option<CageId> {
    name.to_str()?.strip_suffix(suffix)?.parse().ok()
}
