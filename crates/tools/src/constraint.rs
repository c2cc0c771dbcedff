//! Constraints on arguments.

use crate::schema::{Schema, whole};
use crate::sql::{self, SqlClass};
use crate::{host, path};
use ironcage_model::{HostRule, Resource, Right};
use regex::Regex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What happens to a call whose argument is not what it must be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Otherwise {
    /// A person is asked.
    Ask,
    /// It is denied.
    #[default]
    Deny,
}

/// What a call needs of the thing that an argument names, for as long as the call lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallLease {
    /// The path is read.
    Read,
    /// The path is read and written.
    Write,
    /// The host is connected to.
    Connect,
}

impl CallLease {
    /// Every one.
    pub const ALL: [CallLease; 3] = [CallLease::Read, CallLease::Write, CallLease::Connect];

    /// As it is written in policies.
    pub const fn name(self) -> &'static str {
        match self {
            CallLease::Read => "read",
            CallLease::Write => "write",
            CallLease::Connect => "connect",
        }
    }

    /// The resource that a value names. `None` where it names none in one way only.
    fn resource(self, text: &str, cwd: Option<&Path>) -> Option<Resource> {
        let right = match self {
            CallLease::Read => Right::Read,
            CallLease::Write => Right::Write,
            CallLease::Connect => {
                let rule = host::rule(text)?;
                return Some(Resource::Host { rule });
            }
        };
        let path = path::plain(text, cwd)?.into_os_string().into_string();
        let path = path.ok()?;
        Some(Resource::Path { path, right })
    }
}

/// A regular expression that the whole text must match.
#[derive(Debug, Clone)]
pub struct Matcher {
    text: String,
    regex: Regex,
}

impl Matcher {
    pub fn new(text: &str) -> Result<Self, InvalidConstraint> {
        let regex = whole(text).map_err(|error| InvalidConstraint::Regex(Box::new(error)))?;
        Ok(Matcher {
            text: text.to_owned(),
            regex,
        })
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl PartialEq for Matcher {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Matcher {}

impl Serialize for Matcher {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Matcher {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Matcher::new(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// Why a constraint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidConstraint {
    #[error("invalid regular expression: {0}")]
    Regex(#[source] Box<regex::Error>),
    #[error("the first number is greater than the second")]
    Range,
}

/// What an argument must be. Every part that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Constraint {
    /// Whether a call without the argument is refused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
    /// Paths at or below one of these directories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_below: Option<Vec<PathBuf>>,
    /// URLs and host names of these hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_in: Option<Vec<HostRule>>,
    /// One of these values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_of: Option<Vec<Value>>,
    /// A number from the first to the second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<Numbers>,
    /// At most this many characters, or elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest: Option<u64>,
    /// Text that the regular expression matches as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matches: Option<Matcher>,
    /// SQL statements of these classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sql: Option<Vec<SqlClass>>,
    /// A value that this schema describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Schema>,
    /// What the server's cage gets of it for the duration of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<CallLease>,
    /// What happens otherwise.
    #[serde(skip_serializing_if = "is_deny")]
    pub otherwise: Otherwise,
}

fn is_deny(otherwise: &Otherwise) -> bool {
    *otherwise == Otherwise::Deny
}

/// The least and the greatest number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Numbers(f64, f64);

/// Neither is NaN.
impl Eq for Numbers {}

impl Numbers {
    pub fn new(least: f64, most: f64) -> Result<Self, InvalidConstraint> {
        match least <= most {
            true => Ok(Numbers(least, most)),
            false => Err(InvalidConstraint::Range),
        }
    }

    /// An integer beyond 2^53 is in no range: some programs read it as another number.
    fn contains(self, value: &Value) -> bool {
        const EXACT: u64 = 1 << 53;
        let exact = match (value.as_i64(), value.as_u64()) {
            (Some(number), _) => number.unsigned_abs() <= EXACT,
            (None, Some(_)) => false,
            (None, None) => true,
        };
        let within = |number: f64| self.0 <= number && number <= self.1;
        exact && value.as_f64().is_some_and(within)
    }
}

impl Constraint {
    /// The first part that a value does not meet, by its key in the policy.
    pub(crate) fn unmet(&self, value: &Value, cwd: Option<&Path>) -> Option<&'static str> {
        let text = |test: &dyn Fn(&str) -> bool| each_text(value, test);
        if let Some(roots) = &self.path_below
            && !text(&|text| path::is_below(text, roots, cwd))
        {
            return Some("path-below");
        }
        if let Some(hosts) = &self.host_in
            && !text(&|text| host::is_in(text, hosts))
        {
            return Some("host-in");
        }
        if let Some(values) = &self.one_of
            && !each(value, &|value| values.contains(value))
        {
            return Some("one-of");
        }
        if let Some(range) = self.range
            && !each(value, &|value| range.contains(value))
        {
            return Some("range");
        }
        if let Some(longest) = self.longest {
            let length = match value {
                Value::String(text) => text.chars().count(),
                Value::Array(items) => items.len(),
                Value::Object(fields) => fields.len(),
                _ => value.to_string().len(),
            };
            if length as u64 > longest {
                return Some("longest");
            }
        }
        if let Some(matcher) = &self.matches
            && !text(&|text| matcher.regex.is_match(text))
        {
            return Some("matches");
        }
        if let Some(allowed) = &self.sql {
            let within = |text: &str| {
                let found = sql::classes(text);
                found.is_some_and(|found| found.iter().all(|class| allowed.contains(class)))
            };
            // A list of statements is not what a database tool takes.
            if !value.as_str().is_some_and(within) {
                return Some("sql");
            }
        }
        if let Some(schema) = &self.schema
            && !schema.admits(value)
        {
            return Some("schema");
        }
        // What would be leased has to be clear before anything is.
        if let Some(lease) = self.lease
            && !text(&|text| lease.resource(text, cwd).is_some())
        {
            return Some("lease");
        }
        None
    }

    /// What a call with this value needs.
    pub(crate) fn needs(&self, value: &Value, cwd: Option<&Path>) -> Vec<Resource> {
        let Some(lease) = self.lease else {
            return Vec::new();
        };
        let texts: Vec<&str> = match value {
            Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
            other => other.as_str().into_iter().collect(),
        };
        let resources = texts.into_iter().map(|text| lease.resource(text, cwd));
        resources.flatten().collect()
    }
}

/// Whether the value, or each element of a list, passes. An empty list has nothing to refuse.
fn each(value: &Value, test: &dyn Fn(&Value) -> bool) -> bool {
    match value {
        Value::Array(items) => items.iter().all(test),
        other => test(other),
    }
}

fn each_text(value: &Value, test: &dyn Fn(&str) -> bool) -> bool {
    each(value, &|value| value.as_str().is_some_and(test))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn unmet(rule: Value, value: Value) -> Option<&'static str> {
        let rule: Constraint = serde_json::from_value(rule).unwrap();
        rule.unmet(&value, Some(Path::new("/w")))
    }

    #[test]
    fn a_number_in_a_range_is_one_that_every_program_reads_alike() {
        let in_range = |value: Value| unmet(json!({"range": [0, 9007199254740992.0_f64]}), value);
        for value in [
            json!(0),
            json!(1.5),
            json!(9007199254740992_u64),
            json!([1, 2]),
        ] {
            assert_eq!(in_range(value.clone()), None, "{value}");
        }
        for value in [
            json!(-1),
            json!(9007199254740993_u64),
            json!(u64::MAX),
            json!(1e300),
            json!("1"),
            json!("0x1"),
            json!(null),
            json!(true),
            json!([1, "2"]),
            json!([[1]]),
            json!({"value": 1}),
        ] {
            assert_eq!(in_range(value.clone()), Some("range"), "{value}");
        }
    }

    #[test]
    fn text_is_compared_as_it_stands_and_never_out_of_another_shape() {
        let rules = [
            (json!({"one-of": ["a", 1]}), "one-of"),
            (json!({"matches": "a|1"}), "matches"),
            (json!({"path-below": ["/w/a", "/w/1"]}), "path-below"),
        ];
        for (rule, part) in rules {
            for value in [json!("a"), json!(["a", "a"])] {
                assert_eq!(unmet(rule.clone(), value.clone()), None, "{rule} {value}");
            }
            for value in [
                json!("\"a\""),
                json!("{\"value\":\"a\"}"),
                json!("b"),
                json!("A"),
                json!("\u{ff41}"),
                json!("a\n"),
                json!("a\u{0}"),
                json!("1.0"),
                json!(2),
                json!(null),
                json!({"a": "a"}),
                json!([["a"]]),
                json!(["a", {"a": "a"}]),
            ] {
                assert_eq!(
                    unmet(rule.clone(), value.clone()),
                    Some(part),
                    "{rule} {value}"
                );
            }
        }
    }
}
