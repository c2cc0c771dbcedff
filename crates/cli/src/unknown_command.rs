//! Errors for a mistyped command, with the command that was probably meant.

use crate::cli;
use crate::error::CliError;
use clap::error::ErrorKind;
use ironcage_model::Printable;
use std::ffi::OsString;
use std::path::Path;

/// Their parts are suites and benchmarks, which nobody means by a bare name.
const LAB: [&str; 2] = ["probe", "bench"];

/// More suggestions than this help nobody.
const MOST_SUGGESTIONS: usize = 3;

/// Commands of Docker that have another name here.
const DOCKER: [(&str, &str); 9] = [
    ("container", "ps"),
    ("create", "run -d"),
    ("images", "image list"),
    ("info", "doctor"),
    ("kill", "stop --time 0"),
    ("rmi", "image rm"),
    ("save", "image export"),
    ("start", "run -d"),
    ("top", "stats"),
];

/// The error for a word that is not a command, if that is what clap refused.
pub(crate) fn explain(error: &clap::Error, words: &[OsString]) -> Option<CliError> {
    let conflict = error.kind() == ErrorKind::ArgumentConflict;
    if error.kind() != ErrorKind::InvalidSubcommand && !conflict {
        return None;
    }
    let root = cli::command_here();
    let mut words = words
        .iter()
        .filter_map(|word| word.to_str())
        .filter(|word| !word.starts_with('-'));
    let (mut group, mut path) = (&root, String::from("ironcage"));
    let unknown = loop {
        let word = words.next()?;
        // `help NAME` describes a command: the word behind it is what was mistyped.
        if word == "help" && group.has_subcommands() {
            continue;
        }
        match group.find_subcommand(word) {
            Some(sub) => {
                path = format!("{path} {word}");
                group = sub;
            }
            None => break word,
        }
    };
    // Of commands that also take an argument, such as `net`, clap only knows the conflict.
    if conflict && !group.is_args_conflicts_with_subcommands_set() {
        return None;
    }
    let mut message = CliError::new(format!(
        "unknown command `{path} {}`",
        Printable::new(unknown)
    ));
    let meant = suggestions(&root, group, &path, unknown);
    if !meant.is_empty() {
        message = message.hint(format!("did you mean {}?", meant.join(" or ")));
    } else if group.get_name() == root.get_name() && is_program(unknown) {
        let shown = Printable::new(unknown);
        message = message.hint(format!("`ironcage run -- {shown}` runs it in a cage"));
    }
    Some(message.hint(format!("`{path} --help` lists the commands")))
}

/// Whether a word names a program of this host.
fn is_program(word: &str) -> bool {
    if word.contains('/') {
        return Path::new(word).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(word).is_file())
}

/// Commands of exactly this name in other groups, or else the most similar one in this group.
fn suggestions(
    root: &clap::Command,
    group: &clap::Command,
    path: &str,
    unknown: &str,
) -> Vec<String> {
    let groups = root
        .get_subcommands()
        .filter(|group| !group.is_hide_set() && !LAB.contains(&group.get_name()));
    let same: Vec<String> = groups
        .filter(|group| group.find_subcommand(unknown).is_some())
        .map(|group| format!("`ironcage {} {unknown}`", group.get_name()))
        .collect();
    if !same.is_empty() && same.len() <= MOST_SUGGESTIONS {
        return same;
    }
    let docker = DOCKER.iter().find(|(name, _)| *name == unknown);
    if let Some((_, ours)) = docker.filter(|_| group.get_name() == root.get_name()) {
        return vec![format!("`ironcage {ours}`")];
    }
    let names = group
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set())
        .map(clap::Command::get_name);
    let help = (group.get_name() == root.get_name()).then_some("help");
    let similar = names
        .chain(help)
        .map(|name| (distance(unknown, name), name))
        .filter(|(distance, name)| *distance <= name.len().max(unknown.len()) / 3)
        .min();
    similar
        .map(|(_, name)| format!("`{path} {name}`"))
        .into_iter()
        .collect()
}

/// The number of insertions, deletions, replacements and swaps of neighbours between two words.
pub(crate) fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in to.iter().enumerate() {
            let replaced = last[j] + usize::from(a != b);
            let mut least = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == to[j - 1] && from[i - 1] == *b {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let all = std::iter::once(OsString::from("ironcage")).chain(words.iter().cloned());
        let error = cli::command().try_get_matches_from(all).unwrap_err();
        explain(&error, &words).map(|error| error.to_string())
    }

    #[test]
    fn a_mistyped_command_is_answered_with_the_similar_one() {
        for (line, meant) in [
            ("dif", "did you mean `ironcage diff`?"),
            ("aply --theirs", "did you mean `ironcage apply`?"),
            ("change dicsard", "did you mean `ironcage change discard`?"),
            ("leases", "did you mean `ironcage lease`?"),
            ("help rnu", "did you mean `ironcage run`?"),
            ("hlep run", "did you mean `ironcage help`?"),
            ("kill web", "did you mean `ironcage stop --time 0`?"),
            ("top", "did you mean `ironcage stats`?"),
            ("help net alow", "did you mean `ironcage net allow`?"),
            (
                "net alow web example.com",
                "did you mean `ironcage net allow`?",
            ),
        ] {
            let text = explained(line).expect("an explanation");
            assert!(text.contains(meant), "{line}: {text}");
        }
    }

    #[test]
    fn commands_of_docker_are_unknown_here_and_their_answers_are_not() {
        let root = cli::command();
        for (theirs, ours) in DOCKER {
            assert!(root.find_subcommand(theirs).is_none(), "{theirs}");
            let mut group = &root;
            for word in ours.split(' ').take_while(|word| !word.starts_with('-')) {
                group = group
                    .find_subcommand(word)
                    .unwrap_or_else(|| panic!("{ours}"));
            }
            let text = explained(&format!("{theirs} x")).expect("an explanation");
            assert!(
                text.contains(&format!("`ironcage {ours}`")),
                "{theirs}: {text}"
            );
        }
    }

    #[test]
    fn a_program_is_answered_with_the_command_that_runs_it() {
        for program in ["/bin/sh", "true"] {
            let text = explained(program).expect("an explanation");
            assert!(
                text.contains(&format!("`ironcage run -- {program}`")),
                "{text}"
            );
        }
        for other in ["no-such-program-anywhere", "change true"] {
            let text = explained(other).expect("an explanation");
            assert!(!text.contains("ironcage run --"), "{text}");
        }
    }

    #[test]
    fn distances_count_edits_and_swaps() {
        for (from, to, edits) in [
            ("", "ab", 2),
            ("diff", "diff", 0),
            ("dif", "diff", 1),
            ("lgos", "logs", 1),
        ] {
            assert_eq!(distance(from, to), edits, "{from} {to}");
        }
    }

    #[test]
    fn a_command_of_a_group_is_found_by_its_name_alone() {
        let text = explained("snapshot before").expect("an explanation");
        assert!(
            text.contains("did you mean `ironcage change snapshot`?"),
            "{text}"
        );
        let text = explained("publish web 1:2").expect("an explanation");
        assert!(
            text.contains("did you mean `ironcage net publish`?"),
            "{text}"
        );
    }

    #[test]
    fn other_errors_are_left_to_clap() {
        for line in ["run --no-such-flag -- true", "logs", "audit show --bad"] {
            assert_eq!(explained(line), None, "{line}");
        }
        // Too far from every command.
        let text = explained("qqqq").expect("an explanation");
        assert!(!text.contains("did you mean"), "{text}");
    }
}
