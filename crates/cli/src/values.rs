//! Parsers for argument values: names with completions, ages and counts.

use crate::error::InvalidValue;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};
use ironcage_model::Layer;
use ironcage_policy::TimeLimit;
use std::ffi::OsStr;
use std::str::FromStr;
use std::time::Duration;

/// A string for which completions suggest names. Others are accepted too: the policy resolves
/// names, with better errors.
#[derive(Debug, Clone)]
pub(crate) struct SuggestedName(fn() -> Vec<&'static str>);

impl SuggestedName {
    pub(crate) fn profiles() -> Self {
        SuggestedName(|| {
            ironcage_policy::profiles()
                .map(|profile| profile.name)
                .collect()
        })
    }

    pub(crate) fn bundles() -> Self {
        SuggestedName(ironcage_catalog::bundles::names)
    }

    pub(crate) fn logins() -> Self {
        SuggestedName(|| {
            let logins = ironcage_catalog::logins::ENTRIES.iter();
            logins.map(|login| login.name).collect()
        })
    }

    pub(crate) fn reason_codes() -> Self {
        SuggestedName(|| {
            let tables = ironcage_model::reason_tables().into_iter();
            tables
                .flat_map(|(_, table)| table)
                .map(|entry| entry.code)
                .collect()
        })
    }

    pub(crate) fn shells() -> Self {
        SuggestedName(|| clap_complete::env::Shells::builtins().names().collect())
    }

    pub(crate) fn syscall_lists() -> Self {
        SuggestedName(|| {
            let lists = ironcage_policy::syscalls::lists();
            lists.iter().map(|list| list.name).collect()
        })
    }

    pub(crate) fn syscall_groups() -> Self {
        SuggestedName(|| {
            let groups = ironcage_policy::syscalls::groups();
            groups.iter().map(|group| group.name).collect()
        })
    }

    pub(crate) fn capabilities() -> Self {
        SuggestedName(|| {
            let known = ironcage_policy::capabilities::ENTRIES.iter();
            known
                .filter(|one| one.allowed)
                .map(|one| one.name)
                .collect()
        })
    }
}

impl TypedValueParser for SuggestedName {
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

/// A typed value for which completions suggest names.
#[derive(Debug)]
pub(crate) struct NamedValue<T> {
    names: &'static [&'static str],
    of: std::marker::PhantomData<fn() -> T>,
}

// Derived, it would ask for a `T` that is `Clone`.
impl<T> Clone for NamedValue<T> {
    fn clone(&self) -> Self {
        NamedValue::of(self.names)
    }
}

impl<T> NamedValue<T> {
    pub(crate) fn of(names: &'static [&'static str]) -> Self {
        NamedValue {
            names,
            of: std::marker::PhantomData,
        }
    }
}

impl<T> TypedValueParser for NamedValue<T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        let parser = StringValueParser::new().try_map(|name| name.parse::<T>());
        parser.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(PossibleValue::new)))
    }
}

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

/// An age with a unit. A bare number is refused: the flag decides what is removed.
pub(crate) fn age(text: &str) -> Result<Duration, InvalidValue> {
    let expected = "a number with a unit, for example 12h or 30d";
    let invalid = || InvalidValue::new("age", text, expected);
    if text.trim().ends_with(|last: char| last.is_ascii_digit()) {
        return Err(invalid());
    }
    let limit: TimeLimit = text.parse().map_err(|_| invalid())?;
    limit.0.ok_or_else(invalid)
}

pub(crate) fn count<T: FromStr>(text: &str) -> Result<T, InvalidValue> {
    let expected = "a whole number, for example 100";
    text.parse()
        .map_err(|_| InvalidValue::new("number", text, expected))
}
