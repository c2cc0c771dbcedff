//! Answers to Docker's flags: the flag of Ironcage that does the same.

use crate::error::CliError;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use ironcage_model::Printable;
use std::ffi::OsString;

/// Commands that take a command to run.
const COMMANDS: [&str; 5] = ["run", "shell", "exec", "plan", "learn"];

/// Flags of `docker run` and `docker exec`, and what to use instead. `-v` has its own answer.
const ANSWERS: &[(&[&str], &str)] = &[
    (
        &["--mount"],
        "`-r PATH` makes a host path readable, `-w PATH:direct` writable; it keeps its path",
    ),
    (
        &["-w", "--workdir"],
        "`--cwd DIR` sets the working directory",
    ),
    (
        &["-u", "--user"],
        "`exec` runs as the user of the cage, which `ironcage run --user` sets",
    ),
    (
        &["--cap-add", "--privileged"],
        "`--cap NAME` grants a capability in the cage's namespaces",
    ),
    (
        &["--cap-drop"],
        "omit it: a cage has no capabilities unless --cap grants one",
    ),
    (
        &["--env-file"],
        "`-e NAME=VALUE` for each variable, or `[env]` in ironcage.toml",
    ),
    (&["-m"], "`--memory SIZE` limits memory"),
    (
        &["--pids-limit"],
        "`--pids NUMBER` limits processes and threads",
    ),
    (
        &["--net"],
        "`--network off|listed|live|open`, or `--allow-host HOST`",
    ),
    (
        &["--add-host"],
        "`--resolve NAME=ADDRESS` resolves a name without DNS",
    ),
    (
        &["-P", "--publish-all"],
        "`-p OUTER:INNER` publishes one port",
    ),
    (
        &["--read-only"],
        "`--workspace-mode read-only`; the system is always read-only",
    ),
    (
        &["--security-opt"],
        "`--syscall-group GROUP` allows more system calls; `ironcage plan` lists them",
    ),
    (
        &["--init"],
        "omit it: PID 1 of a cage forwards signals and reaps processes",
    ),
    (
        &["--tmpfs"],
        "omit it: /tmp and the home directory of a cage are scratch storage",
    ),
];

/// The answer to a flag or value that Docker knows and Ironcage does not, if clap refused one.
pub(crate) fn explain(error: &clap::Error, words: &[OsString]) -> Option<CliError> {
    let command = words.first()?.to_str()?;
    if !COMMANDS.contains(&command) {
        return None;
    }
    let ContextValue::String(found) = error.get(ContextKind::InvalidArg)? else {
        return None;
    };
    match error.kind() {
        ErrorKind::UnknownArgument => unknown_flag(found, command, words),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation if found.starts_with("--network ") => {
            let ContextValue::String(value) = error.get(ContextKind::InvalidValue)? else {
                return None;
            };
            network_mode(value)
        }
        _ => None,
    }
}

fn unknown_flag(found: &str, command: &str, words: &[OsString]) -> Option<CliError> {
    let flag = found.split('=').next().unwrap_or(found);
    let refused = || CliError::new(format!("unknown flag `{flag}` of `ironcage {command}`"));
    if matches!(flag, "-v" | "--volume") {
        return Some(volume(refused(), volume_value(flag, words)?));
    }
    let (_, answer) = ANSWERS.iter().find(|(flags, _)| flags.contains(&flag))?;
    Some(refused().hint(answer))
}

/// The value of the first `-v` or `--volume`, in any of its three spellings.
fn volume_value<'w>(flag: &str, words: &'w [OsString]) -> Option<&'w str> {
    let mut words = words.iter().filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        let Some(rest) = word.strip_prefix(flag) else {
            continue;
        };
        return match rest {
            "" => words.next(),
            rest => Some(rest.strip_prefix('=').unwrap_or(rest)),
        };
    }
    None
}

fn volume(refused: CliError, value: &str) -> CliError {
    let mut parts = value.split(':');
    let source = parts.next().unwrap_or(value);
    let target = parts.next().unwrap_or(source);
    let read_only = parts.any(|option| option.split(',').any(|word| word == "ro"));
    let shown = Printable::new(source);
    let refused = if read_only {
        refused.hint(format!("`-r {shown}` makes it readable"))
    } else {
        refused
            .hint(format!(
                "`-w {shown}` makes it writable, copy-on-write; `ironcage apply` keeps the changes"
            ))
            .hint(format!("`-w {shown}:direct` writes to the real files"))
    };
    // `-v "$PWD:/app"`, which the most begin with.
    let here = std::env::current_dir().and_then(|here| here.canonicalize());
    let named = std::path::Path::new(source).canonicalize();
    let refused = match (here, named) {
        (Ok(here), Ok(named)) if here == named => refused.hint(
            "omit it for the current directory: the workspace is in the cage, copy-on-write, at its own path",
        ),
        _ => refused,
    };
    if target == source {
        return refused;
    }
    refused.hint(format!(
        "host files keep their path in a cage: use {shown}, not {}",
        Printable::new(target)
    ))
}

fn network_mode(value: &str) -> Option<CliError> {
    let hint = match value {
        "none" => "`--network off` is the same",
        "host" => {
            "`--network open` reaches every host; `--allow-host-port PORT` reaches a port of this one"
        }
        "bridge" => "`--network open` reaches every host, `--allow-host HOST` one",
        _ => return None,
    };
    Some(CliError::new(format!("unknown network mode `{value}`")).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser as _;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn answer(line: &str) -> Option<String> {
        let words = words(line);
        let all = std::iter::once(OsString::from("ironcage")).chain(words.clone());
        let error = Cli::try_parse_from(all).expect_err("clap refuses it");
        explain(&error, &words).map(|error| error.to_string())
    }

    #[test]
    fn a_volume_is_answered_with_the_flag_for_its_path() {
        for line in [
            "run -v /srv/data:/data:ro -- ls",
            "run -it -v/srv/data:/data:ro ls",
            "run --volume=/srv/data:/data:ro ls",
            "run --volume /srv/data:/data:ro ls",
        ] {
            let text = answer(line).expect(line);
            assert!(text.contains("`-r /srv/data`"), "{line}: {text}");
            assert!(text.contains("use /srv/data, not /data"), "{line}: {text}");
        }
        let text = answer("run -v /srv:/srv -- ls").unwrap();
        assert!(
            text.contains("`-w /srv:direct`") && !text.contains("not /srv"),
            "{text}"
        );
    }

    #[test]
    fn every_flag_in_the_table_is_unknown_somewhere_and_is_answered() {
        for (flags, hint) in ANSWERS {
            for flag in *flags {
                // `run` has these; `exec` has not.
                let line = match *flag {
                    "-w" | "--workdir" | "-u" | "--user" => format!("exec web {flag} /src ls"),
                    flag => format!("run {flag} ls"),
                };
                let text = answer(&line).expect(&line);
                assert!(text.contains(hint), "{line}: {text}");
            }
        }
    }

    #[test]
    fn network_modes_of_docker_are_answered_and_ours_are_not() {
        assert!(
            answer("run --network none -- ls")
                .unwrap()
                .contains("--network off")
        );
        assert!(
            answer("run --network host -- ls")
                .unwrap()
                .contains("--allow-host-port")
        );
        assert!(answer("run --network nonsense -- ls").is_none());
        assert!(answer("run --nonsense -- ls").is_none());
    }
}
