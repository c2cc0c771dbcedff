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

/// A time that may be shorter than a second: `90s`, `1.5s`, `250ms` or `10m`.
pub(crate) fn span(text: &str) -> Result<Duration, InvalidValue> {
    let expected = "a time such as 90s, 1.5s, 250ms or 10m";
    let invalid = || InvalidValue::new("time", text, expected);
    let trimmed = text.trim();
    let end = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let number: f64 = number.parse().map_err(|_| invalid())?;
    let factor = match unit.trim_start() {
        "ms" => 0.001,
        // A bare number is seconds, as with timeout(1).
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(invalid()),
    };
    let time = Duration::try_from_secs_f64(number * factor).map_err(|_| invalid())?;
    match time.is_zero() {
        true => Err(invalid()),
        false => Ok(time),
    }
}

pub(crate) fn count<T: FromStr>(text: &str) -> Result<T, InvalidValue> {
    let expected = "a whole number, for example 100";
    text.parse()
        .map_err(|_| InvalidValue::new("number", text, expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_may_be_shorter_than_a_second_and_never_zero() {
        for (text, milliseconds) in [
            ("250ms", 250),
            ("1.5s", 1500),
            ("2", 2000),
            ("10m", 600_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(
                span(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for text in [
            "",
            "0",
            "0ms",
            "-1s",
            "s",
            "1x",
            "1.2.3s",
            "1e9d",
            "none",
            "99999999999999999999d",
        ] {
            assert!(span(text).is_err(), "{text}");
        }
    }
}
