//! `ironcage policy tighten`: permissions that a run had and never used, as a policy patch.

use crate::commands::learn::read_record;
use crate::completion::recorded_cages;
use crate::error::{CliError, CommandResult};
use crate::output::print;
use crate::{audit_log, paths};
use ironcage_files::{Links, read_text};
use ironcage_host::SystemFiles;
use ironcage_learn::{Excess, tighten};
use ironcage_model::Printable;
use similar::TextDiff;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// An accepted policy is never larger.
const LARGEST_POLICY: u64 = 256 * 1024;

/// Propose removing permissions that a recorded run never used
///
/// Covers hosts, files, system call groups, secrets and leases without a use, and limits far above
/// the peak. Permissions from a policy file are shown as a patch for `patch -p0`, the others as
/// text. Nothing is written.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Cage ID, unique ID prefix, name, or `last` [default: last]
    #[arg(add = recorded_cages())]
    run: Option<String>,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let id = audit_log::find(&audit_log::directory()?, args.run.as_deref())?;
    let record = read_record(&id)?;
    let home = paths::home(&SystemFiles::default())?;
    let (excess, notes) = tighten(&record, &home);
    let mut files: BTreeMap<PathBuf, Vec<(usize, &Excess)>> = BTreeMap::new();
    let mut words = Vec::new();
    for one in &excess {
        match in_file(&one.grant.origin) {
            Some((path, line)) => files.entry(path).or_default().push((line, one)),
            None => words.push(one),
        }
    }
    let mut changes = Vec::new();
    for (path, edits) in &files {
        let text = read_text(path, LARGEST_POLICY, Links::Follow)
            .map_err(|error| CliError::from_error(&error))?;
        let (new, left) = edited(&text, edits, path, &home);
        words.extend(left);
        if new != text {
            changes.push((path, text, new));
        }
    }
    print(|out| {
        writeln!(out, "cage {id}: {} unused entries", excess.len())?;
        for one in &excess {
            let grant = &one.grant;
            write!(
                out,
                "  {} {}: {}",
                Printable::new(&grant.key),
                Printable::new(&grant.value),
                Printable::new(&one.why)
            )?;
            match &one.instead {
                Some(instead) => writeln!(out, "; sufficient: {}", Printable::new(instead))?,
                None => writeln!(out)?,
            }
        }
        for one in &words {
            let origin = Printable::new(&one.grant.origin).to_string();
            let value = Printable::new(&one.grant.value);
            if origin.starts_with("--") {
                writeln!(out, "  to do: drop {origin} {value}, or narrow it")?;
            } else if origin.starts_with("profile") || origin == "built in" {
                let key = Printable::new(&one.grant.key);
                let can = match &one.instead {
                    Some(_) => "set the smaller value in a policy file",
                    None => "extend a smaller profile in a policy file",
                };
                writeln!(out, "  to do: {key} {value} comes from {origin}: {can}")?;
            }
        }
        for (path, old, new) in &changes {
            let name = Printable::new(path).to_string();
            writeln!(out)?;
            let diff = TextDiff::from_lines(old.as_str(), new.as_str());
            let diff = diff.unified_diff().header(&name, &name).to_string();
            // Escape control characters in the user's file.
            for line in diff.lines() {
                writeln!(out, "{}", Printable::new(line))?;
            }
        }
        for note in &notes {
            writeln!(out, "note: {}", Printable::new(note))?;
        }
        writeln!(out, "note: this covers one run; another run may need more")
    })?;
    Ok(0)
}

/// The file and line of an origin, if the file exists.
fn in_file(origin: &str) -> Option<(PathBuf, usize)> {
    let (path, line) = origin.rsplit_once(':')?;
    let line = line.parse().ok()?;
    Path::new(path).is_file().then(|| (path.into(), line))
}

/// The text with entries removed or made smaller, and the entries that could not be edited.
fn edited<'a>(
    text: &str,
    edits: &[(usize, &'a Excess)],
    file: &Path,
    home: &Path,
) -> (String, Vec<&'a Excess>) {
    let mut lines: Vec<Option<String>> = text.lines().map(|line| Some(line.to_owned())).collect();
    let mut left = Vec::new();
    for (number, excess) in edits {
        let slot = number.checked_sub(1).and_then(|at| lines.get_mut(at));
        let Some(Some(line)) = slot.as_deref() else {
            left.push(*excess);
            continue;
        };
        let changed = match single(line, excess) {
            Some(new) => Some(Some(new)),
            None => without(line, excess, file, home),
        };
        match (changed, slot) {
            (Some(new), Some(slot)) => *slot = new,
            _ => left.push(*excess),
        }
    }
    let mut new: String = lines
        .into_iter()
        .flatten()
        .flat_map(|line| [line, "\n".into()])
        .collect();
    if !text.ends_with('\n') && new.ends_with('\n') {
        new.pop();
    }
    (new, left)
}

/// The line `key = value` with the smaller value.
fn single(line: &str, excess: &Excess) -> Option<String> {
    let instead = excess.instead.as_deref()?;
    let name = excess.grant.key.rsplit('.').next()?;
    let (key, old) = line.split_once('=')?;
    if key.trim() != name || !["mode", "memory", "pids"].contains(&name) {
        return None;
    }
    let is_text = old.trim_start().starts_with('"');
    let value = match is_text {
        true => ironcage_policy::quoted(instead),
        false => instead.to_owned(),
    };
    Some(format!("{}= {value}", key))
}

/// The line without one of its strings; `Some(None)` if nothing is left of it.
fn without(line: &str, excess: &Excess, file: &Path, home: &Path) -> Option<Option<String>> {
    let mut from = 0;
    while let Some(open) = line.get(from..)?.find('"').map(|at| at + from) {
        let close = line.get(open + 1..)?.find('"')? + open + 1;
        let text = line.get(open + 1..close)?;
        if means(text, excess, file, home) {
            let rest = line.get(close + 1..)?;
            let rest = rest.strip_prefix(',').map_or(rest, str::trim_start);
            let new = format!("{}{rest}", line.get(..open)?);
            let empty = new
                .split('#')
                .next()
                .is_some_and(|new| new.trim().is_empty());
            return Some((!empty).then_some(new));
        }
        from = close + 1;
    }
    None
}

/// Whether a string of a policy file is the granted value.
fn means(text: &str, excess: &Excess, file: &Path, home: &Path) -> bool {
    let value = excess.grant.value.as_str();
    match excess.grant.key.as_str() {
        "files.read" | "files.write" | "files.write-direct" | "network.sockets" => {
            let path = match text.strip_prefix("~/") {
                Some(rest) => home.join(rest),
                None if text == "~" => home.to_owned(),
                None => file.parent().unwrap_or(Path::new("/")).join(text),
            };
            let plain: PathBuf = path.components().collect();
            plain == Path::new(value)
        }
        "network.allow" => {
            ironcage_policy::allowed(text).is_ok_and(|rule| rule.to_string() == value)
        }
        "network.http" => {
            ironcage_policy::requests(text).is_ok_and(|rule| rule.to_string() == value)
        }
        _ => text == value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::Grant;

    fn excess(key: &str, value: &str, instead: Option<&str>) -> Excess {
        Excess {
            grant: Grant {
                key: key.into(),
                value: value.into(),
                origin: "/w/p.toml:1".into(),
            },
            why: "unused".into(),
            instead: instead.map(str::to_owned),
        }
    }

    fn edit(line: &str, excess: &Excess) -> (String, usize) {
        let (file, home) = (Path::new("/w/p.toml"), Path::new("/home/u"));
        let (text, left) = edited(&format!("{line}\n"), &[(1, excess)], file, home);
        (text, left.len())
    }

    #[test]
    fn an_entry_goes_and_its_neighbours_stay() {
        let read = excess("files.read", "/home/u/data", None);
        let (text, left) = edit("read = [\"/a\", \"~/data\", \"/b\"]", &read);
        assert_eq!((text.as_str(), left), ("read = [\"/a\", \"/b\"]\n", 0));
        assert_eq!(edit("  \"~/data\",", &read).0, "");
        assert_eq!(edit("  \"~/data\", # why", &read).0, "");
        let allow = excess("network.allow", "a.test", None);
        assert_eq!(edit("allow = [\"A.test\"]", &allow).0, "allow = []\n");
    }

    #[test]
    fn a_value_becomes_smaller_and_what_is_not_plain_stays() {
        let memory = excess("limits.memory", "4G", Some("512M"));
        assert_eq!(edit("memory = \"4G\"", &memory).0, "memory = \"512M\"\n");
        let pids = excess("limits.pids", "4096", Some("64"));
        assert_eq!(edit("pids = 4096", &pids).0, "pids = 64\n");
        let other = excess("files.read", "/elsewhere", None);
        let (text, left) = edit("read = [\"/a\"]", &other);
        assert_eq!((text.as_str(), left), ("read = [\"/a\"]\n", 1));
    }
}
