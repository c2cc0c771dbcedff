//! Values of flags: names that completions offer, and numbers with errors that a person reads.

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};
use ironcage_model::Layer;
use ironcage_policy::TimeLimit;
use std::ffi::OsStr;
use std::str::FromStr;
use std::time::Duration;

/// A text for which completions offer names. Others are taken too: what a name means is judged
/// where all of the policy is known, with an error that says more.
#[derive(Debug, Clone)]
pub(crate) struct Offered(fn() -> Vec<&'static str>);

impl Offered {
    /// The profiles that ship.
    pub(crate) fn profiles() -> Self {
        Offered(|| {
            ironcage_policy::profiles()
                .map(|profile| profile.name)
                .collect()
        })
    }

    /// Shells that can ask how a line goes on.
    pub(crate) fn shells() -> Self {
        Offered(|| clap_complete::env::Shells::builtins().names().collect())
    }

    /// Lists of system calls.
    pub(crate) fn syscall_lists() -> Self {
        Offered(|| {
            let lists = ironcage_policy::syscalls::lists();
            lists.iter().map(|list| list.name).collect()
        })
    }

    /// Groups of system calls.
    pub(crate) fn syscall_groups() -> Self {
        Offered(|| {
            let groups = ironcage_policy::syscalls::groups();
            groups.iter().map(|group| group.name).collect()
        })
    }

    /// Capabilities that a cage can have.
    pub(crate) fn capabilities() -> Self {
        Offered(|| {
            let known = ironcage_policy::capabilities::ENTRIES.iter();
            known
                .filter(|one| one.allowed)
                .map(|one| one.name)
                .collect()
        })
    }
}

impl TypedValueParser for Offered {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0().into_iter().map(PossibleValue::new)))
    }
}

/// A layer, by its name.
#[derive(Debug, Clone)]
pub(crate) struct LayerName;

impl TypedValueParser for LayerName {
    type Value = Layer;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Layer, Error> {
        let parser = StringValueParser::new().try_map(|name| name.parse());
        parser.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(
            Layer::ALL
                .into_iter()
                .map(|layer| PossibleValue::new(layer.name())),
        ))
    }
}

/// An age, with its unit: what is removed by it must not depend on what a bare number means.
pub(crate) fn age(text: &str) -> Result<Duration, String> {
    let wanted = || {
        format!(
            "`{}` is no age with a unit, such as 12h or 30d",
            text.escape_debug()
        )
    };
    if text.trim().ends_with(|last: char| last.is_ascii_digit()) {
        return Err(wanted());
    }
    let limit: TimeLimit = text.parse().map_err(|_| wanted())?;
    limit.0.ok_or_else(wanted)
}

/// A count: a whole number, not negative.
pub(crate) fn count<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| {
        format!(
            "`{}` is not a whole number such as 100",
            text.escape_debug()
        )
    })
}
