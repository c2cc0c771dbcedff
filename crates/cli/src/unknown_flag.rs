//! Errors for a flag that a command does not have, with the flag that was probably meant.

use crate::cli;
use crate::error::CliError;
use crate::unknown_command::distance;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use ironcage_model::Printable;
use std::ffi::OsString;

/// The error for an unknown flag, if that is what clap refused.
pub(crate) fn explain(error: &clap::Error, words: &[OsString]) -> Option<CliError> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let ContextValue::String(found) = error.get(ContextKind::InvalidArg)? else {
        return None;
    };
    let flag = found
        .split('=')
        .next()
        .filter(|flag| flag.starts_with('-'))?;
    let root = cli::command_here();
    let (mut command, mut path) = (&root, String::from("ironcage"));
    for word in words.iter().map_while(|word| word.to_str()) {
        let Some(sub) = command.find_subcommand(word) else {
            break;
        };
        path = format!("{path} {word}");
        command = sub;
    }
    let mut message = CliError::new(format!(
        "unknown flag `{}` of `{path}`",
        Printable::new(flag)
    ));
    if let Some(meant) = similar(command, flag) {
        message = message.hint(format!("did you mean `--{meant}`?"));
    }
    Some(message.hint(format!("`{path} --help` lists the flags")))
}

/// The long flag of a command that is most like one with two hyphens.
fn similar<'c>(command: &'c clap::Command, flag: &str) -> Option<&'c str> {
    let name = flag.strip_prefix("--")?;
    let flags = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let flags = flags.filter_map(clap::Arg::get_long);
    flags
        .map(|long| (distance(name, long), long))
        .filter(|(distance, long)| *distance <= long.len().max(name.len()) / 3)
        .min()
        .map(|(_, long)| long)
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
    fn a_mistyped_flag_is_answered_with_the_similar_one_of_the_command() {
        for (line, of, meant) in [
            ("run --alow-host x true", "run", Some("--allow-host")),
            ("run -q --pofile=shell true", "run", Some("--profile")),
            (
                "lease grant web --hots a.example",
                "lease grant",
                Some("--host"),
            ),
            ("run --no-such-flag-at-all true", "run", None),
            ("run -Z true", "run", None),
        ] {
            let text = explained(line).expect("an explanation");
            assert!(
                text.contains(&format!("of `ironcage {of}`")),
                "{line}: {text}"
            );
            let hint = meant.map(|meant| format!("did you mean `{meant}`?"));
            assert_eq!(
                text.contains("did you mean"),
                hint.is_some(),
                "{line}: {text}"
            );
            assert!(
                hint.is_none_or(|hint| text.contains(&hint)),
                "{line}: {text}"
            );
        }
    }

    #[test]
    fn other_errors_are_left_to_clap() {
        for line in ["logs", "run --memory", "deny a b c"] {
            assert_eq!(explained(line), None, "{line}");
        }
    }
}
