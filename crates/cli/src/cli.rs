//! The command line: every command, its heading in `ironcage --help`, and its aliases.

use crate::{commands, completion, version};
use clap::builder::styling::Style;
use clap::{CommandFactory, Parser, Subcommand};
use ironcage_command::error::CommandResult;
use ironcage_command::{image, inside, lab, mcp, serve, template};
use std::fmt::Write as _;

/// Run AI agents, and every tool call they make, in a cage
#[derive(Debug, Parser)]
#[command(name = "ironcage", version = version::VERSION, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(commands::run::Args),
    Shell(commands::shell::Args),
    Exec(commands::exec::Args),
    Ps(commands::ps::Args),
    Logs(commands::logs::Args),
    Attach(commands::attach::Args),
    Stop(commands::stop::Args),
    Wait(commands::wait::Args),
    Resume(commands::resume::Args),
    Rm(commands::rm::Args),
    Diff(commands::change::diff::Args),
    Apply(commands::change::apply::Args),
    Discard(commands::change::discard::Args),
    Change(commands::change::Args),
    State(commands::state::Args),
    Mcp(mcp::Args),
    Image(image::Args),
    Template(template::Args),
    Serve(serve::Args),
    Grant(commands::lease::grant::Args),
    Revoke(commands::lease::revoke::Args),
    Lease(commands::lease::Args),
    Approve(commands::request::approve::Args),
    Deny(commands::request::deny::Args),
    Request(commands::request::Args),
    Channel(commands::channel::Args),
    Plan(commands::plan::Args),
    Learn(commands::learn::Args),
    Policy(commands::policy::Args),
    Profile(commands::profile::Args),
    Trust(commands::trust::Args),
    Why(commands::why::Args),
    Report(commands::report::Args),
    Audit(commands::audit::Args),
    Net(commands::net::Args),
    Inspect(commands::inspect::Args),
    Stats(commands::stats::Args),
    Intent(commands::intent::Args),
    Doctor(commands::doctor::Args),
    Setup(commands::setup::Args),
    Probe(lab::probe::Args),
    Bench(lab::bench::Args),
    Completions(commands::completions::Args),
    Man(commands::man::Args),
    Version(commands::version::Args),
    #[command(name = "inside")]
    Inside(InsideCli),
    #[command(flatten)]
    Agent(inside::Command),
    #[command(name = "__forecast", hide = true)]
    Forecast(commands::forecast::Args),
    #[command(name = "__pool", hide = true)]
    Pool(Box<commands::pool::Args>),
}

/// Commands for agents, for use inside a cage
///
/// A cage whose policy has a ceiling finds them at /.ironcage/bin/ironcage. On the host they only
/// explain themselves.
#[derive(Debug, Parser)]
#[command(name = "ironcage", max_term_width = 100)]
pub(crate) struct InsideCli {
    #[command(subcommand)]
    pub(crate) command: inside::Command,
}

/// The headings of the help, with their commands.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Run", &["run", "shell", "exec", "mcp"]),
    (
        "Background",
        &["ps", "logs", "attach", "stop", "wait", "resume", "rm"],
    ),
    ("Changes", &["diff", "apply", "discard", "change", "state"]),
    (
        "Permissions",
        &[
            "grant", "revoke", "lease", "approve", "deny", "request", "channel",
        ],
    ),
    ("Policy", &["plan", "learn", "policy", "profile", "trust"]),
    (
        "Inspect",
        &[
            "why", "report", "audit", "net", "inspect", "stats", "intent",
        ],
    ),
    (
        "Host",
        &[
            "doctor",
            "setup",
            "image",
            "template",
            "serve",
            "probe",
            "bench",
            "completions",
            "man",
            "version",
        ],
    ),
];

/// Commands for agents: hidden on the host.
const INSIDE: [&str; 4] = ["ask", "child", "send", "receive"];

/// Short names, and the commands that they stand for.
pub(crate) const ALIASES: [(&str, &str); 7] = [
    ("diff", "change diff"),
    ("apply", "change apply"),
    ("discard", "change discard"),
    ("grant", "lease grant"),
    ("revoke", "lease revoke"),
    ("approve", "request approve"),
    ("deny", "request deny"),
];

/// Arguments that name an image or a template of the store.
const STORED: [(&str, &str, &str); 5] = [
    ("image", "show", "image"),
    ("image", "rm", "images"),
    ("image", "export", "image"),
    ("template", "show", "name"),
    ("template", "rm", "names"),
];

/// The whole command line as it is described on the host.
pub(crate) fn command() -> clap::Command {
    describe(false)
}

/// The whole command line as it is described here. The agent's commands are shown only in a cage:
/// one can see the host's own `ironcage`, too.
pub(crate) fn command_here() -> clap::Command {
    describe(std::env::var_os("IRONCAGE").is_some())
}

fn describe(inside: bool) -> clap::Command {
    let mut command = Cli::command();
    for name in INSIDE {
        command = command.mut_subcommand(name, |sub| sub.hide(!inside));
    }
    command = command.mut_subcommand("inside", |sub| sub.hide(true));
    // The program that has these looks at no store for them.
    for (group, action, argument) in STORED {
        command = command.mut_subcommand(group, |group_command| {
            group_command.mut_subcommand(action, |sub| {
                sub.mut_arg(argument, |arg| {
                    arg.add(match group {
                        "image" => completion::images(),
                        _ => completion::templates(),
                    })
                })
            })
        });
    }
    let template = help_template(&command, inside);
    command.help_template(template)
}

/// clap has no headings for subcommands, so the list is part of the template.
fn help_template(command: &clap::Command, inside: bool) -> String {
    let (header, literal) = (
        *command.get_styles().get_header(),
        *command.get_styles().get_literal(),
    );
    let names = command.get_subcommands().map(clap::Command::get_name);
    let width = names.map(str::len).max().unwrap_or(0);
    let mut text = String::from("{about-with-newline}\n{usage-heading} {usage}\n\n");
    let own = inside.then_some(("Inside this cage", &INSIDE[..]));
    for (heading, names) in own.into_iter().chain(GROUPS) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", styled(header, &format!("{heading}:")));
        for name in names {
            let about = command
                .find_subcommand(name)
                .and_then(|sub| sub.get_about());
            let about = about.map(ToString::to_string).unwrap_or_default();
            let space = width - name.len();
            let _ = writeln!(text, "  {}{:space$}  {about}", styled(literal, name), "");
        }
        text.push('\n');
    }
    let _ = write!(text, "{}\n{{options}}\n\n", styled(header, "Options:"));
    text.push_str("`ironcage help COMMAND` describes a command. ");
    text.push_str("Agents have their own inside a cage: `ironcage inside --help`.");
    text
}

fn styled(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

impl Command {
    pub(crate) fn run(self) -> CommandResult {
        match self {
            Command::Run(args) => commands::run::run(args),
            Command::Shell(args) => commands::shell::run(args),
            Command::Exec(args) => commands::exec::run(args),
            Command::Ps(args) => commands::ps::run(args),
            Command::Logs(args) => commands::logs::run(args),
            Command::Attach(args) => commands::attach::run(args),
            Command::Stop(args) => commands::stop::run(args),
            Command::Wait(args) => commands::wait::run(args),
            Command::Resume(args) => commands::resume::run(args),
            Command::Rm(args) => commands::rm::run(args),
            Command::Diff(args) => commands::change::diff::run(args),
            Command::Apply(args) => commands::change::apply::run(args),
            Command::Discard(args) => commands::change::discard::run(args),
            Command::Change(args) => commands::change::run(args),
            Command::State(args) => commands::state::run(args),
            Command::Grant(args) => commands::lease::grant::run(args),
            Command::Revoke(args) => commands::lease::revoke::run(args),
            Command::Lease(args) => commands::lease::run(args),
            Command::Approve(args) => commands::request::approve::run(args),
            Command::Deny(args) => commands::request::deny::run(args),
            Command::Request(args) => commands::request::run(args),
            Command::Channel(args) => commands::channel::run(args),
            Command::Plan(args) => commands::plan::run(args),
            Command::Learn(args) => commands::learn::run(args),
            Command::Policy(args) => commands::policy::run(args),
            Command::Profile(args) => commands::profile::run(args),
            Command::Trust(args) => commands::trust::run(args),
            Command::Why(args) => commands::why::run(args),
            Command::Report(args) => commands::report::run(args),
            Command::Audit(args) => commands::audit::run(args),
            Command::Net(args) => commands::net::run(args),
            Command::Inspect(args) => commands::inspect::run(args),
            Command::Stats(args) => commands::stats::run(args),
            Command::Intent(args) => commands::intent::run(args),
            Command::Doctor(args) => commands::doctor::run(args),
            Command::Setup(args) => commands::setup::run(args),
            Command::Mcp(args) => commands::mcp::run(&args),
            Command::Image(_) | Command::Template(_) => commands::image::run(),
            Command::Serve(_) => commands::serve::run(),
            Command::Probe(_) | Command::Bench(_) => commands::lab::run(),
            Command::Completions(args) => commands::completions::run(args),
            Command::Man(args) => commands::man::run(args),
            Command::Version(commands::version::Args {}) => commands::version::run(),
            Command::Inside(cli) => cli.command.run(),
            Command::Agent(command) => command.run(),
            Command::Forecast(args) => commands::forecast::run(args),
            Command::Pool(args) => commands::pool::run(*args),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_visible_command_has_one_heading() {
        let command = command();
        let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let visible: BTreeSet<&str> = visible.map(clap::Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        assert_eq!(grouped.len(), visible.len());
        assert_eq!(grouped.into_iter().collect::<BTreeSet<_>>(), visible);
    }

    #[test]
    fn agents_commands_are_shown_inside_a_cage_only() {
        let help = |inside| describe(inside).render_help().to_string();
        for name in INSIDE {
            let line = format!("\n  {name} ");
            assert!(
                help(true).contains(&line) && !help(false).contains(&line),
                "{name}"
            );
        }
    }

    #[test]
    fn an_alias_is_the_command_that_it_stands_for() {
        let command = command();
        for (alias, path) in ALIASES {
            let long = path.split(' ').fold(&command, |above, name| {
                above.find_subcommand(name).expect("a command")
            });
            let short = command.find_subcommand(alias).expect("an alias");
            let help = |command: &clap::Command| {
                let mut command = command.clone().bin_name("x");
                command.render_long_help().to_string()
            };
            assert_eq!(help(short), help(long), "{alias}");
        }
    }

    /// The rules of the style guide for help: imperative, no full stop, at most 72 characters.
    #[test]
    fn first_lines_of_help_are_short_and_have_no_full_stop() {
        fn walk(command: &clap::Command, path: &str, wrong: &mut Vec<String>) {
            let path = format!("{path} {}", command.get_name());
            let about = command.get_about().map(ToString::to_string);
            let about = about.unwrap_or_default();
            if about.is_empty() || about.ends_with('.') || about.chars().count() > 72 {
                wrong.push(format!("{path}: {about}"));
            }
            for sub in command.get_subcommands() {
                walk(sub, &path, wrong);
            }
        }
        let mut wrong = Vec::new();
        walk(&command(), "", &mut wrong);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// The words after `ironcage` in a text, as far as they can name a command.
    fn named_commands(text: &str) -> Vec<Vec<&str>> {
        let quoted = text.split("`ironcage ").skip(1);
        let words = quoted.map(|rest| {
            let end = rest.find('`').unwrap_or(rest.len());
            let words = rest[..end].split(' ');
            let name = |word: &&str| {
                word.chars()
                    .all(|letter| letter.is_ascii_lowercase() || letter == '-')
            };
            words.take(2).take_while(name).collect()
        });
        words
            .filter(|words: &Vec<&str>| {
                let first = words.first();
                first.is_some_and(|word| !word.is_empty() && !word.starts_with('-'))
            })
            .collect()
    }

    fn exists(words: &[&str]) -> bool {
        let command = Cli::command();
        let Some(first) = words.first() else {
            return true;
        };
        if *first == "help" {
            return true;
        }
        let Some(found) = command.find_subcommand(first) else {
            return false;
        };
        // A second word is an argument where the command has no subcommands.
        words.get(1).is_none_or(|second| {
            !found.has_subcommands()
                || second.starts_with('-')
                || found.find_subcommand(second).is_some()
        })
    }

    fn texts(directory: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => texts(&path, found),
                Some("md" | "rs") => found.push(path),
                _ => {}
            }
        }
    }

    #[test]
    fn every_command_that_a_page_a_reason_or_a_hint_names_exists() {
        assert!(exists(&["lease", "list"]) && exists(&["run"]) && exists(&["ask"]));
        assert!(!exists(&["call"]) && !exists(&["lease", "lsit"]));
        let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut files = vec![top.join("README.md"), top.join("ARCHITECTURE.md")];
        for directory in ["docs", "crates", "backends"] {
            texts(&top.join(directory), &mut files);
        }
        let mut wrong = Vec::new();
        let mut seen = 0;
        for file in files {
            // This list of examples, and the corpus of what others wrote.
            if file.ends_with("cli/src/cli.rs") || file.ends_with("unknown_command.rs") {
                continue;
            }
            let text = std::fs::read_to_string(&file).unwrap();
            // Tests name cages that their examples have.
            let end = text.find("\n#[cfg(test)]").unwrap_or(text.len());
            for words in named_commands(&text[..end]) {
                seen += 1;
                if !exists(&words) {
                    wrong.push(format!("{}: ironcage {}", file.display(), words.join(" ")));
                }
            }
        }
        assert!(seen > 300, "only {seen} commands were read");
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
