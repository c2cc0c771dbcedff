//! `ironcage man`: the manual pages and the command reference, from the commands themselves.

use crate::error::{CliError, CommandResult};
use clap::{Command, CommandFactory};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Write the manual pages
///
/// Without a directory, prints the page of ironcage itself: `ironcage man | man -l -`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write one page for each command into this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print the whole reference as Markdown instead
    #[arg(long, conflicts_with = "dir")]
    markdown: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    // A fixed width: what is checked in must not depend on a terminal.
    let command = crate::Cli::command().term_width(100);
    if args.markdown {
        return print(markdown(command).as_bytes());
    }
    match args.dir {
        Some(dir) => write_pages(command, &dir),
        None => print(&page(command, "ironcage")?),
    }
}

/// Prints bytes; a reader that has seen enough is no error.
pub(super) fn print(bytes: &[u8]) -> CommandResult {
    match std::io::stdout().write_all(bytes) {
        Ok(()) => Ok(0),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(0),
        Err(error) => Err(CliError::new(format!(
            "cannot write to standard output: {error}"
        ))),
    }
}

/// What the page of `ironcage` itself says at its end.
const ENDING: &str = r#".SH FILES
.TP
\fIironcage.toml\fR
The policy of a workspace, in its top directory or above. It only narrows until \fBironcage trust\fR.
.TP
\fI$XDG_CONFIG_HOME/ironcage/config.toml\fR
Your own policy, below every workspace's.
.TP
\fI$XDG_STATE_HOME/ironcage\fR
The record of every cage, what is trusted, and what is kept between runs.
.TP
\fI$XDG_CACHE_HOME/ironcage\fR
Caches of tools, by workspace and profile.
.SH EXIT STATUS
Of \fBironcage run\fR: the command's own, as ironcage\-run(1) says. 125 for Ironcage's own errors, everywhere.
"#;

fn page(mut command: Command, name: &str) -> Result<Vec<u8>, CliError> {
    let failed = |error: &dyn std::fmt::Display| {
        CliError::new(format!("cannot make the manual page {name}: {error}"))
    };
    let usage = command
        .clone()
        .bin_name(name.replace('-', " "))
        .render_usage();
    let usage = usage.to_string();
    command = command.display_name(name.to_owned());
    let mut out = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut out)
        .map_err(|error| failed(&error))?;
    let page = String::from_utf8(out).map_err(|error| failed(&error))?;
    Ok(with_synopsis(&page, &usage, name).into_bytes())
}

/// The generated synopsis names every flag and no command: ours is the usage that `--help`
/// prints, and the flags have a section of their own.
fn with_synopsis(page: &str, usage: &str, name: &str) -> String {
    const HEADING: &str = ".SH SYNOPSIS\n";
    const NEXT: &str = "\n.SH DESCRIPTION";
    let mut text = match (page.split_once(HEADING), page.find(NEXT)) {
        (Some((before, _)), Some(next)) => {
            let usage = usage.strip_prefix("Usage:").unwrap_or(usage);
            let lines: Vec<String> = usage
                .lines()
                .map(|line| line.trim().replace('\\', "\\\\").replace('-', "\\-"))
                .collect();
            let after = &page[next..];
            format!("{before}{HEADING}{}{after}", lines.join("\n.br\n"))
        }
        _ => page.to_owned(),
    };
    if name == "ironcage" {
        text.push_str(ENDING);
    } else {
        text.push_str(".SH SEE ALSO\nironcage(1)\n");
    }
    text
}

fn write_pages(command: Command, dir: &Path) -> CommandResult {
    let failed = |path: &Path, error: std::io::Error| {
        CliError::new(format!("cannot write {}: {error}", path.display()))
    };
    std::fs::create_dir_all(dir).map_err(|error| failed(dir, error))?;
    for (name, command) in all(command) {
        let name = name.replace(' ', "-");
        let path = dir.join(format!("{name}.1"));
        std::fs::write(&path, page(command, &name)?).map_err(|error| failed(&path, error))?;
    }
    Ok(0)
}

/// Every command that is not hidden, with its full name, depth first.
fn all(command: Command) -> Vec<(String, Command)> {
    fn walk(name: String, command: Command, found: &mut Vec<(String, Command)>) {
        let below: Vec<Command> = command
            .get_subcommands()
            .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
            .cloned()
            .collect();
        found.push((name.clone(), command));
        for sub in below {
            walk(
                format!("{name} {}", sub.get_name()),
                sub.term_width(100),
                found,
            );
        }
    }
    let mut found = Vec::new();
    walk("ironcage".into(), command, &mut found);
    found
}

fn markdown(command: Command) -> String {
    let mut text = String::from(
        "# Commands\n\nGenerated by `ironcage man --markdown`; a test holds it in step.\n",
    );
    for (name, mut command) in all(command) {
        command = command.bin_name(name.clone());
        let help = command.render_long_help().to_string();
        let trimmed: Vec<&str> = help.lines().map(str::trim_end).collect();
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n## {name}\n\n```text\n{}\n```\n",
            trimmed.join("\n").trim_end()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_how_its_command_is_called_and_keeps_its_flags() {
        for (name, command) in all(crate::Cli::command()) {
            let dashed = name.replace(' ', "-");
            let page = String::from_utf8(page(command, &dashed).unwrap()).unwrap();
            let synopsis = page.split_once(".SH SYNOPSIS\n").unwrap().1;
            assert!(
                synopsis.starts_with(&name.replace('-', "\\-")),
                "{name}: {synopsis}"
            );
        }
        let run = all(crate::Cli::command()).into_iter();
        let (_, run) = run
            .into_iter()
            .find(|(name, _)| name == "ironcage run")
            .unwrap();
        let page = String::from_utf8(page(run, "ironcage-run").unwrap()).unwrap();
        assert!(page.contains("ironcage run [OPTIONS]"), "{page}");
        assert!(page.contains("\\-\\-workspace\\-mode"));
    }
}
