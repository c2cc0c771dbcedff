//! A part of JSON Schema that can only narrow: every keyword is checked, an unknown one is an error
//! of the policy, and nothing is fetched.

use regex::Regex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// Deepest schema.
const DEEPEST: usize = 16;
/// Largest program of a regular expression, in bytes.
const LARGEST_REGEX: usize = 1 << 20;

/// A schema whose keywords are all known.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema(Value);

impl Eq for Schema {}

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSchema {
    /// A keyword that is not checked must not look as if it were.
    #[error(
        "the keyword `{0}` is not supported; expected type, enum, const, minimum, maximum, exclusiveMinimum, exclusiveMaximum, minLength, maxLength, pattern, items, minItems, maxItems, properties, required or additionalProperties"
    )]
    Keyword(String),
    #[error("the value of `{0}` has the wrong type")]
    Value(String),
    #[error("the schema is nested more than {DEEPEST} times")]
    Deep,
}

const TYPES: [&str; 7] = [
    "string", "number", "integer", "boolean", "object", "array", "null",
];

impl Schema {
    pub fn new(value: Value) -> Result<Self, InvalidSchema> {
        check(&value, 0)?;
        Ok(Schema(value))
    }

    /// Whether a value is one of those that the schema describes.
    pub fn admits(&self, value: &Value) -> bool {
        admits(&self.0, value)
    }
}

impl Serialize for Schema {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Schema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Schema::new(Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// A regular expression that the whole text must match.
pub(crate) fn whole(pattern: &str) -> Result<Regex, regex::Error> {
    regex::RegexBuilder::new(&format!("^(?:{pattern})$"))
        .size_limit(LARGEST_REGEX)
        .build()
}

fn check(schema: &Value, depth: usize) -> Result<(), InvalidSchema> {
    let wrong = |key: &str| InvalidSchema::Value(key.to_owned());
    if depth > DEEPEST {
        return Err(InvalidSchema::Deep);
    }
    let Some(map) = schema.as_object() else {
        return Err(wrong("schema"));
    };
    for (key, value) in map {
        let right = match key.as_str() {
            "title" | "description" => value.is_string(),
            "type" => match value {
                Value::String(name) => TYPES.contains(&name.as_str()),
                Value::Array(names) => names
                    .iter()
                    .all(|name| name.as_str().is_some_and(|name| TYPES.contains(&name))),
                _ => false,
            },
            "enum" => value.is_array(),
            "const" => true,
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => value.is_number(),
            "minLength" | "maxLength" | "minItems" | "maxItems" => value.is_u64(),
            "pattern" => value.as_str().is_some_and(|text| whole(text).is_ok()),
            "additionalProperties" => value.is_boolean(),
            "required" => value
                .as_array()
                .is_some_and(|names| names.iter().all(Value::is_string)),
            "items" => {
                check(value, depth + 1)?;
                true
            }
            "properties" => {
                let Some(properties) = value.as_object() else {
                    return Err(wrong(key));
                };
                for property in properties.values() {
                    check(property, depth + 1)?;
                }
                true
            }
            _ => return Err(InvalidSchema::Keyword(key.clone())),
        };
        if !right {
            return Err(wrong(key));
        }
    }
    Ok(())
}

fn is_type(name: &str, value: &Value) -> bool {
    match name {
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => {
            value.is_i64()
                || value.is_u64()
                || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "null" => value.is_null(),
        _ => false,
    }
}

fn admits(schema: &Value, value: &Value) -> bool {
    let Some(map) = schema.as_object() else {
        return false;
    };
    map.iter()
        .all(|(key, wanted)| keyword(map, key, wanted, value))
}

fn keyword(schema: &Map<String, Value>, key: &str, wanted: &Value, value: &Value) -> bool {
    let number = |test: fn(f64, f64) -> bool| match (value.as_f64(), wanted.as_f64()) {
        (Some(value), Some(bound)) => test(value, bound),
        // Other types are not numbers that could be out of range.
        _ => true,
    };
    let length = |test: fn(u64, u64) -> bool, own: Option<usize>| match (own, wanted.as_u64()) {
        (Some(own), Some(bound)) => test(own as u64, bound),
        _ => true,
    };
    let characters = value.as_str().map(|text| text.chars().count());
    let items = value.as_array().map(Vec::len);
    match key {
        "type" => match wanted {
            Value::String(name) => is_type(name, value),
            Value::Array(names) => names
                .iter()
                .filter_map(Value::as_str)
                .any(|name| is_type(name, value)),
            _ => false,
        },
        "enum" => wanted.as_array().is_some_and(|all| all.contains(value)),
        "const" => wanted == value,
        "minimum" => number(|value, bound| value >= bound),
        "maximum" => number(|value, bound| value <= bound),
        "exclusiveMinimum" => number(|value, bound| value > bound),
        "exclusiveMaximum" => number(|value, bound| value < bound),
        "minLength" => length(|own, bound| own >= bound, characters),
        "maxLength" => length(|own, bound| own <= bound, characters),
        "minItems" => length(|own, bound| own >= bound, items),
        "maxItems" => length(|own, bound| own <= bound, items),
        "pattern" => match (value.as_str(), wanted.as_str().map(whole)) {
            (Some(text), Some(Ok(regex))) => regex.is_match(text),
            (None, _) => true,
            _ => false,
        },
        "items" => value
            .as_array()
            .is_none_or(|items| items.iter().all(|item| admits(wanted, item))),
        "properties" => match (value.as_object(), wanted.as_object()) {
            (Some(own), Some(properties)) => properties
                .iter()
                .all(|(name, property)| own.get(name).is_none_or(|value| admits(property, value))),
            (None, _) => true,
            _ => false,
        },
        "required" => match (value.as_object(), wanted.as_array()) {
            (Some(own), Some(names)) => names
                .iter()
                .filter_map(Value::as_str)
                .all(|name| own.contains_key(name)),
            (None, _) => true,
            _ => false,
        },
        "additionalProperties" => match value.as_object() {
            Some(own) if wanted == &Value::Bool(false) => {
                let known = schema.get("properties").and_then(Value::as_object);
                own.keys()
                    .all(|name| known.is_some_and(|known| known.contains_key(name)))
            }
            _ => true,
        },
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_schema_admits_what_it_describes_and_nothing_else() {
        let schema = Schema::new(json!({
            "type": "object",
            "properties": {"to": {"type": "array", "items": {"type": "string", "pattern": "[a-z]+@example\\.com"}, "maxItems": 2},
                           "n": {"type": "integer", "minimum": 1, "exclusiveMaximum": 5}},
            "required": ["to"],
            "additionalProperties": false
        }))
        .unwrap();
        for value in [json!({"to": []}), json!({"to": ["a@example.com"], "n": 4})] {
            assert!(schema.admits(&value), "{value}");
        }
        for value in [
            json!({}),
            json!([]),
            json!({"to": ["a@example.com.evil.org"]}),
            json!({"to": ["a@example.com", "b@example.com", "c@example.com"]}),
            json!({"to": [], "n": 5}),
            json!({"to": [], "n": 1.5}),
            json!({"to": [], "bcc": []}),
        ] {
            assert!(!schema.admits(&value), "{value}");
        }
    }

    #[test]
    fn a_keyword_that_would_not_be_checked_is_an_error() {
        for schema in [
            json!({"$ref": "http://example.com/x"}),
            json!({"not": {}}),
            json!({"format": "uri"}),
            json!({"properties": {"a": {"if": {}}}}),
        ] {
            assert!(
                matches!(Schema::new(schema.clone()), Err(InvalidSchema::Keyword(_))),
                "{schema}"
            );
        }
        assert!(Schema::new(json!({"pattern": "("})).is_err());
        assert!(Schema::new(json!({"type": "text"})).is_err());
    }
}
