//! The table of library calls: which of their arguments are paths, addresses or commands.

use serde::Deserialize;
use std::collections::BTreeMap;

const SHIPPED: &str = include_str!("../../../policies/code-calls.toml");

/// What an argument of a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    Text,
    /// A path that is read.
    Read,
    /// A path that is made, changed or removed.
    Write,
    Change,
    /// A path that is removed with all that is in it.
    Remove,
    /// A directory or a pattern whose files are found.
    List,
    /// A path, by the mode in the argument after it.
    Open,
    /// It becomes the working directory.
    Enter,
    Url,
    Host,
    /// A pair of a host and a port.
    Address,
    /// A script of the shell.
    Command,
    /// A program with its arguments, as a list.
    Words,
    /// A program, whose arguments are the list after it.
    Program,
    Rest,
    /// A file of the same language that is executed.
    CodeFile,
    /// The object itself is the path.
    SelfRead,
    SelfWrite,
    SelfChange,
    SelfList,
}

/// One argument: its role, and its keyword.
#[derive(Debug, Clone)]
pub(crate) struct Argument {
    pub(crate) role: Role,
    pub(crate) name: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    python: LanguageText,
    javascript: LanguageText,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LanguageText {
    calls: BTreeMap<String, Vec<String>>,
    methods: BTreeMap<String, Vec<String>>,
}

/// What is known of the calls of one language.
#[derive(Debug, Default)]
pub(crate) struct Known {
    calls: BTreeMap<String, Vec<Argument>>,
    methods: BTreeMap<String, Vec<Argument>>,
}

/// The whole table.
#[derive(Debug)]
pub(crate) struct LibraryCalls {
    pub(crate) python: Known,
    pub(crate) javascript: Known,
}

/// Why the table of library calls is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidCallTable {
    /// It cannot be parsed.
    #[error("cannot parse the table of library calls: {0}")]
    Text(#[from] toml::de::Error),
    /// An argument has a role that does not exist.
    #[error("cannot read the table of library calls: `{call}` has the unknown role `{role}`")]
    Role { call: String, role: String },
}

impl LibraryCalls {
    pub(crate) fn shipped() -> Result<Self, InvalidCallTable> {
        let text: Text = toml::from_str(SHIPPED)?;
        Ok(LibraryCalls {
            python: Known::of(text.python)?,
            javascript: Known::of(text.javascript)?,
        })
    }
}

impl Known {
    fn of(text: LanguageText) -> Result<Self, InvalidCallTable> {
        Ok(Known {
            calls: arguments(text.calls)?,
            methods: arguments(text.methods)?,
        })
    }

    pub(crate) fn call(&self, name: &str) -> Option<&[Argument]> {
        self.calls.get(name).map(Vec::as_slice)
    }

    pub(crate) fn method(&self, name: &str) -> Option<&[Argument]> {
        self.methods.get(name).map(Vec::as_slice)
    }
}

fn arguments(
    text: BTreeMap<String, Vec<String>>,
) -> Result<BTreeMap<String, Vec<Argument>>, InvalidCallTable> {
    let mut known = BTreeMap::new();
    for (call, roles) in text {
        let mut arguments = Vec::new();
        for written in roles {
            let (role, name) = match written.split_once(':') {
                Some((role, name)) => (role, Some(name.to_owned())),
                None => (written.as_str(), None),
            };
            let value = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(role);
            let role = Role::deserialize(value).map_err(|_| InvalidCallTable::Role {
                call: call.clone(),
                role: role.to_owned(),
            })?;
            arguments.push(Argument { role, name });
        }
        known.insert(call, arguments);
    }
    Ok(known)
}
