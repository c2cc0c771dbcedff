//! The table of tools as it is written.

use super::arguments::{OptionArgument, Parsed};
use crate::sources::Sources;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// The table that ships.
const SHIPPED: &str = include_str!("../../../../policies/tools.toml");

/// What is known of programs and of variables.
///
/// The line of a tool is read when it is asked for: a command names a few of some two hundred, and
/// before each command of an agent's shell stands a program that wants to know of just these.
#[derive(Debug)]
pub struct Table {
    pub(crate) environment: Environment,
    tools: BTreeMap<&'static str, Line>,
    pub(crate) sources: Option<Box<dyn Sources>>,
}

/// A tool's part of the text, and what it says.
#[derive(Debug, Default)]
struct Line {
    parts: Vec<&'static str>,
    read: OnceLock<Option<Tool>>,
}

impl Line {
    /// `None` where the text says nothing that a table says: then the tool is not known.
    fn tool(&self, name: &str) -> Option<&Tool> {
        let read = || {
            let text: Text = toml::from_str(&self.parts.concat()).ok()?;
            text.tool?.remove(name)
        };
        self.read.get_or_init(read).as_ref()
    }
}

/// The text, or a part of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    environment: Option<Environment>,
    tool: Option<BTreeMap<String, Tool>>,
}

/// Of which tool a line of the text begins a part.
fn header(line: &'static str) -> Option<&'static str> {
    let name = line.trim_start_matches('[').strip_prefix("tool.")?;
    let (name, ends) = match name.strip_prefix('"') {
        Some(name) => (name, &['"'][..]),
        None => (name, &['.', ']'][..]),
    };
    line.starts_with('[').then(|| name.split(ends).next())?
}

/// Why a table of tools is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidTable {
    /// It cannot be parsed.
    #[error("cannot parse the table of tools: {0}")]
    Text(#[from] toml::de::Error),
    /// The section on environment variables is missing.
    #[error("the table of tools has no section [environment]")]
    NoEnvironment,
}

/// Variables before a command, or that a script sets for those after it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Environment {
    /// They change no file and no connection. A star at the end stands for anything.
    harmless: Vec<String>,
    /// They make programs execute something, or other programs be found.
    executes: Vec<String>,
    /// They change what programs of a kind do that get them.
    settings: Vec<String>,
}

impl Environment {
    pub(crate) fn is_harmless(&self, name: &str) -> bool {
        let within = |list: &[String]| list.iter().any(|entry| fits(entry, name));
        within(&self.harmless) || !(within(&self.executes) || within(&self.settings))
    }

    pub(crate) fn executes(&self, name: &str) -> bool {
        self.executes.iter().any(|entry| fits(entry, name))
    }
}

fn fits(entry: &str, name: &str) -> bool {
    match entry.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => entry == name,
    }
}

/// What a word is to a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    Text,
    /// A path that is read.
    Read,
    /// A path that is written, made or removed.
    Write,
    Change,
    /// A path that is removed with all that is in it.
    Remove,
    /// A directory that is read, and in which much is removed.
    Clear,
    /// Where the tool works.
    Directory,
    /// A URL, or a host without its scheme.
    Url,
    Host,
    /// The port of that host.
    Port,
    /// A remote of the repository, or its URL.
    Remote,
    /// A path that is read, or `host:path`.
    FarRead,
    /// A path that is written, or `host:path`.
    FarWrite,
    /// `@path` is read, anything else is text.
    AtFile,
    /// `name=@path` is read, anything else is text.
    FormFile,
    /// A package by its name, its path or its URL.
    Package,
    /// This and all words after it are a command.
    Command,
    /// Statements and commands of a database shell.
    Sql,
    /// `file:path` is read, anything else is text.
    Pass,
    /// A database of this machine by its name, or its URL.
    Database,
    /// The beginning of names of files that are made.
    Prefix,
    /// A path beside which files are written.
    Beside,
    /// A script of the shell.
    Script,
    /// Keys for a terminal: the name of a key, or what is typed.
    Keys,
    /// A setting of git: `key=value`.
    GitSetting,
    /// `file://path` is read, anything else is text.
    FileUrl,
    /// `file=path,...` is changed and `file:path` is written, anything else is text.
    FileList,
    /// A script of sed.
    Sed,
    /// A script of awk.
    Awk,
    /// Code in another language.
    Code,
    /// A file that is executed.
    Program,
    /// Something that decides more than can be read here.
    Unknown,
}

/// One line of the table.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tool {
    /// It has the same line as another.
    like: Option<String>,
    /// The shell executes it itself.
    pub(crate) builtin: bool,
    /// Roles of its operands in their order; the one with a star takes any number.
    operands: Vec<String>,
    /// Options that take a value, and its role.
    pub(crate) options: BTreeMap<String, Role>,
    /// `name=value` among the operands.
    pub(crate) assignments: BTreeMap<String, Role>,
    /// Options that are followed by a command up to `;` or `+`.
    pub(crate) commands: Vec<String>,
    /// Options that make it execute something, and what.
    pub(crate) executes: BTreeMap<String, String>,
    /// Always read, or written. `~` is the home.
    pub(crate) reads: Vec<String>,
    pub(crate) writes: Vec<String>,
    /// The bundle of what it is set up to contact.
    pub(crate) contacts: Option<String>,
    /// The remote that it contacts; `@upstream` is the one that the branch follows.
    pub(crate) remote: Option<String>,
    /// The port that it connects to.
    pub(crate) port: Option<u16>,
    /// Why what it does cannot be known.
    pub(crate) unknown: Option<String>,
    /// Directories below which that stays, by convention: `.` is where it works, `~` the home.
    pub(crate) within: Vec<String>,
    /// It changes what is where it works, also where its files cannot be read.
    pub(crate) builds: bool,
    /// What it starts goes on when it has ended.
    pub(crate) stays: bool,
    /// Its options end at the first operand.
    pub(crate) stops: bool,
    /// Its options have one hyphen and many letters.
    pub(crate) one_hyphen: bool,
    /// Its first operand may be options without their hyphen.
    pub(crate) bare_cluster: bool,
    /// Words from its input are added to its command, or stand for the value of one of these.
    pub(crate) appends: Vec<String>,
    /// Its words are joined to a script of the shell.
    pub(crate) joins: bool,
    /// `NAME=value` before its command sets variables.
    pub(crate) assigns: bool,
    /// Options whose paths do not start from the directory that another option names.
    pub(crate) from_outside: Vec<String>,
    /// Without operands it executes what it reads.
    pub(crate) executes_input: bool,
    /// And that is a script of the shell.
    pub(crate) input_is_shell: bool,
    /// The language of the code that it executes.
    pub(crate) language: Option<String>,
    /// The kind of file that says what it executes: where that can be read, no more is unknown.
    pub(crate) follows: Option<String>,
    /// Lines that hold instead in a case.
    cases: Vec<Case>,
    /// What it does by its first operand.
    pub(crate) sub: BTreeMap<String, Tool>,
}

/// A case, and what is different in it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Case {
    /// One option of each list is given.
    with: Vec<Vec<String>>,
    /// None of these is.
    without: Vec<String>,
    /// So many operands are given.
    count: Option<usize>,
    operands: Option<Vec<String>>,
    options: BTreeMap<String, Role>,
    reads: Option<Vec<String>>,
    writes: Option<Vec<String>>,
    contacts: Option<String>,
    remote: Option<String>,
    unknown: Option<String>,
    /// Nothing of it is unknown.
    known: bool,
    /// It contacts nothing.
    local: bool,
    /// Whether what it starts goes on.
    stays: Option<bool>,
}

impl Table {
    /// Whether programs that get a variable of this name execute something, or find other programs.
    pub fn is_executed_variable(&self, name: &str) -> bool {
        self.environment.executes(name)
    }

    /// The table that ships.
    pub fn shipped() -> Result<Self, InvalidTable> {
        let mut tools: BTreeMap<&str, Line> = BTreeMap::new();
        let mut environment = None;
        let mut begun: Option<(&str, usize)> = None;
        let mut take = |begun: Option<(&'static str, usize)>, end: usize| match begun {
            Some((name, start)) => {
                let part = SHIPPED.get(start..end).unwrap_or_default();
                tools.entry(name).or_default().parts.push(part);
            }
            None => environment = SHIPPED.get(..end),
        };
        let mut at = 0;
        for line in SHIPPED.split_inclusive('\n') {
            if let Some(name) = header(line) {
                take(begun, at);
                begun = Some((name, at));
            }
            at += line.len();
        }
        take(begun, at);
        let text: Text = toml::from_str(environment.unwrap_or_default())?;
        let environment = text.environment.ok_or(InvalidTable::NoEnvironment)?;
        Ok(Table {
            environment,
            tools,
            sources: None,
        })
    }

    /// The same table, for a reader that follows files and code.
    #[must_use]
    pub fn following(self, sources: Box<dyn Sources>) -> Self {
        Table {
            sources: Some(sources),
            ..self
        }
    }

    fn line(&self, name: &str) -> Option<&Tool> {
        self.tools.get(name)?.tool(name)
    }

    pub(crate) fn tool(&self, name: &str) -> Option<&Tool> {
        let tool = self.line(name).or_else(|| {
            // `python3.11`, `gcc-12`: the same program in one of its versions.
            let plain = name.trim_end_matches(|char: char| char.is_ascii_digit() || char == '.');
            let plain = plain.strip_suffix('-').unwrap_or(plain);
            self.line(plain).filter(|_| !plain.is_empty())
        })?;
        match &tool.like {
            Some(other) => self.line(other),
            None => Some(tool),
        }
    }

    /// Names of all tools.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().copied()
    }
}

impl Tool {
    /// The line that holds for these arguments.
    pub(crate) fn case(&self, parsed: &Parsed) -> Tool {
        let given = |names: &Vec<String>| parsed.options.iter().any(|option| option.is(names));
        let holds = self.cases.iter().find(|case| {
            case.with.iter().all(&given)
                && !given(&case.without)
                && case
                    .count
                    .is_none_or(|count| count == parsed.operands.len())
        });
        let mut tool = self.clone();
        let Some(case) = holds.cloned() else {
            return tool;
        };
        tool.options.extend(case.options);
        tool.operands = case.operands.unwrap_or(tool.operands);
        tool.reads = case.reads.unwrap_or(tool.reads);
        tool.writes = case.writes.unwrap_or(tool.writes);
        tool.contacts = case.contacts.or(tool.contacts);
        tool.remote = case.remote.or(tool.remote);
        tool.stays = case.stays.unwrap_or(tool.stays);
        tool.unknown = case.unknown.or(tool.unknown.filter(|_| !case.known));
        if case.local {
            tool.contacts = None;
            tool.remote = None;
        }
        tool
    }

    /// A sub-command has the options of its tool as well.
    pub(crate) fn below(&self, tool: &Tool) -> Tool {
        let mut below = self.clone();
        for (name, role) in &tool.options {
            below.options.entry(name.clone()).or_insert(*role);
        }
        below.one_hyphen |= tool.one_hyphen;
        below
    }

    /// The option of the table for which a shorter one can stand, as most programs have it.
    pub(crate) fn abbreviated(&self, given: &OptionArgument) -> Option<&str> {
        if given.role.is_some() || !given.name.starts_with("--") {
            return None;
        }
        let lists = self
            .cases
            .iter()
            .flat_map(|case| case.with.iter().flatten());
        let mut flags = lists.chain(self.cases.iter().flat_map(|case| &case.without));
        if flags.any(|flag| *flag == given.name) {
            return None;
        }
        let names = self.options.keys().chain(self.executes.keys());
        let mut names = names.chain(&self.commands).map(String::as_str);
        names.find(|name| name.len() > given.name.len() && name.starts_with(&given.name))
    }

    /// Whether its last operands are a command.
    pub(crate) fn wraps(&self) -> bool {
        self.stops || self.operands.iter().any(|role| role == "command")
    }

    /// The roles of so many operands.
    pub(crate) fn roles(&self, count: usize) -> Vec<Option<Role>> {
        let star = self.operands.iter().position(|role| role.ends_with('*'));
        let mut roles = Vec::with_capacity(count);
        let after = star.map_or(0, |star| self.operands.len() - star - 1);
        for index in 0..count {
            let from_end = count - index;
            let entry = match star {
                Some(star) if index >= star && from_end > after => self.operands.get(star),
                Some(star) if index >= star => self
                    .operands
                    .get(self.operands.len().saturating_sub(from_end)),
                _ => self.operands.get(index),
            };
            roles.push(entry.and_then(|entry| role(entry.trim_end_matches('*'))));
        }
        roles
    }
}

fn role(name: &str) -> Option<Role> {
    let value = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(name);
    Role::deserialize(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, tool: &Tool, table: &Table) {
        for entry in &tool.operands {
            assert!(
                role(entry.trim_end_matches('*')).is_some(),
                "{name}: {entry}"
            );
        }
        for case in &tool.cases {
            for entry in case.operands.iter().flatten() {
                assert!(
                    role(entry.trim_end_matches('*')).is_some(),
                    "{name}: {entry}"
                );
            }
        }
        if let Some(other) = &tool.like {
            let other = table.line(other).expect("the other line is there");
            assert!(
                other.like.is_none(),
                "{name} is like one that is like another"
            );
        }
        for (sub, tool) in &tool.sub {
            check(&format!("{name} {sub}"), tool, table);
        }
    }

    #[test]
    fn every_line_of_the_table_that_ships_has_known_roles() {
        let table = Table::shipped().expect("the table");
        assert!(table.tools.len() > 100);
        for name in table.names() {
            check(name, table.line(name).expect("a line"), &table);
        }
    }

    #[test]
    fn each_line_read_for_itself_says_what_it_says_in_the_whole_text() {
        let table = Table::shipped().expect("the table");
        let text: Text = toml::from_str(SHIPPED).expect("the text");
        let whole = text.tool.expect("tools");
        let names: Vec<&str> = whole.keys().map(String::as_str).collect();
        assert_eq!(table.names().collect::<Vec<_>>(), names);
        for (name, tool) in &whole {
            assert_eq!(table.line(name), Some(tool), "{name}");
        }
        let variables = |found: &Environment| {
            (
                found.harmless.clone(),
                found.executes.clone(),
                found.settings.clone(),
            )
        };
        let environment = text.environment.expect("variables");
        assert_eq!(variables(&table.environment), variables(&environment));
    }

    #[test]
    fn a_star_takes_what_the_others_leave() {
        let tool = Tool {
            operands: vec!["read*".to_owned(), "write".to_owned()],
            ..Tool::default()
        };
        let roles = tool.roles(3);
        assert_eq!(
            roles,
            [Some(Role::Read), Some(Role::Read), Some(Role::Write)]
        );
        assert_eq!(tool.roles(1), [Some(Role::Write)]);
    }
}
