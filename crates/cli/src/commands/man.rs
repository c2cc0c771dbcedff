//! `ironcage man`: manual pages and the command reference, generated from the commands.

use crate::cli::{self, ALIASES};
use crate::error::{CliError, CommandResult};
use crate::output::print;
use clap::Command;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Print or write the manual pages
///
/// Without --dir, prints the page of ironcage itself: `ironcage man | man -l -`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write one page for each command to DIR
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print the command reference as Markdown
    #[arg(long, conflicts_with = "dir")]
    markdown: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    // A fixed width: checked-in output must not depend on a terminal.
    let command = cli::command().term_width(100);
    let text = match (args.markdown, args.dir) {
        (true, _) => markdown(command).into_bytes(),
        (false, Some(dir)) => return write_pages(command, &dir),
        (false, None) => page(command, "ironcage")?,
    };
    print(|out| out.write_all(&text))?;
    Ok(0)
}

/// The end of the page of `ironcage` itself.
const ENDING: &str = r#".SH FILES
.TP
\fIironcage.toml\fR
Policy of a workspace, in its top directory or above. Before \fBironcage trust\fR it can only narrow permissions.
.TP
\fI$XDG_CONFIG_HOME/ironcage/config.toml\fR
Your own policy, which every workspace extends.
.TP
\fI$XDG_STATE_HOME/ironcage\fR
Audit logs, pending changes, the list of trusted policies, and state that is kept between runs.
.TP
\fI$XDG_CACHE_HOME/ironcage\fR
Tool caches, by workspace and profile.
.SH EXIT STATUS
That of the command for \fBironcage run\fR, see ironcage\-run(1). 125 for Ironcage's own errors, everywhere.
"#;

fn page(mut command: Command, name: &str) -> Result<Vec<u8>, CliError> {
    let failed = |error: &dyn std::fmt::Display| {
        CliError::new(format!("cannot generate the manual page {name}: {error}"))
    };
    let usage = command
        .clone()
        .bin_name(typed(&name.replace('-', " ")))
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

/// clap_mangen's synopsis lists every flag and no command. This one is the usage of `--help`; the
/// flags have a section of their own.
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
        let text = match alias(&name.replace('-', " ")) {
            Some(long) => format!(".so man1/{}.1\n", long.replace(' ', "-")).into_bytes(),
            None => page(command, &name)?,
        };
        std::fs::write(&path, text).map_err(|error| failed(&path, error))?;
    }
    Ok(0)
}

/// The name that an agent types inside a cage, without `inside`.
fn typed(name: &str) -> String {
    name.replacen("ironcage inside", "ironcage", 1)
}

/// The full name of the command that an alias stands for.
fn alias(name: &str) -> Option<String> {
    let found = ALIASES
        .iter()
        .find(|(short, _)| name == format!("ironcage {short}"));
    found.map(|(_, long)| format!("ironcage {long}"))
}

/// Every command that is not hidden, and `inside`, with its full name, depth first.
fn all(command: Command) -> Vec<(String, Command)> {
    fn walk(name: String, command: Command, found: &mut Vec<(String, Command)>) {
        let below: Vec<Command> = command
            .get_subcommands()
            .filter(|sub| sub.get_name() != "help")
            .filter(|sub| !sub.is_hide_set() || sub.get_name() == "inside")
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
        "# Commands\n\nGenerated by `ironcage man --markdown`; a test keeps it up to date.\n",
    );
    for (name, mut command) in all(command) {
        if let Some(long) = alias(&name) {
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "\n## {name}\n\nAlias of [`{long}`](#{}).\n",
                long.replace(' ', "-")
            );
            continue;
        }
        command = command.bin_name(typed(&name));
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
        for (name, command) in all(cli::command()) {
            let dashed = name.replace(' ', "-");
            let page = String::from_utf8(page(command, &dashed).unwrap()).unwrap();
            let synopsis = page.split_once(".SH SYNOPSIS\n").unwrap().1;
            assert!(
                synopsis.starts_with(&typed(&name).replace('-', "\\-")),
                "{name}: {synopsis}"
            );
        }
        let run = all(cli::command()).into_iter();
        let (_, run) = run
            .into_iter()
            .find(|(name, _)| name == "ironcage run")
            .unwrap();
        let page = String::from_utf8(page(run, "ironcage-run").unwrap()).unwrap();
        assert!(page.contains("ironcage run [OPTIONS]"), "{page}");
        assert!(page.contains("\\-\\-workspace\\-mode"));
    }
}
