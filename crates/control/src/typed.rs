//! Types of channel messages: a small subset of JSON Schema.
//!
//! An unknown keyword in a schema is an error: ignoring it would allow messages that the author of
//! the schema meant to exclude.

use serde_json::{Map, Value};

/// How deep a schema may be.
const DEEPEST: usize = 16;
/// Keywords that say nothing about a message.
const NOTES: [&str; 5] = ["$schema", "$id", "$comment", "title", "description"];

/// A schema, read and understood.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    types: Vec<Type>,
    values: Option<Vec<Value>>,
    properties: Vec<(String, Schema)>,
    required: Vec<String>,
    /// What properties that are not named have to be; `None` is that there may be none.
    others: Option<Box<Others>>,
    items: Option<Box<Schema>>,
    items_within: (u64, u64),
    length_within: (u64, u64),
    least: Option<f64>,
    most: Option<f64>,
}

#[derive(Debug, Clone, PartialEq)]
enum Others {
    Any,
    Like(Schema),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

impl Type {
    fn named(name: &str) -> Option<Type> {
        Some(match name {
            "null" => Type::Null,
            "boolean" => Type::Boolean,
            "integer" => Type::Integer,
            "number" => Type::Number,
            "string" => Type::String,
            "array" => Type::Array,
            "object" => Type::Object,
            _ => return None,
        })
    }

    fn is(self, value: &Value) -> bool {
        match self {
            Type::Null => value.is_null(),
            Type::Boolean => value.is_boolean(),
            Type::Integer => {
                value.is_i64()
                    || value.is_u64()
                    || value.as_f64().is_some_and(|number| number.fract() == 0.0)
            }
            Type::Number => value.is_number(),
            Type::String => value.is_string(),
            Type::Array => value.is_array(),
            Type::Object => value.is_object(),
        }
    }
}

/// Why a text is not a valid schema.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// It is not valid JSON.
    #[error("not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A part of it is not supported.
    #[error("at {at}: {what}")]
    Unknown {
        /// Where.
        at: String,
        /// What, and what to do.
        what: String,
    },
}

/// Why a message is not of a channel's type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at {at}: {what}")]
pub struct Mismatch {
    /// Where in the message.
    pub at: String,
    /// What is wrong.
    pub what: String,
}

fn unknown(at: &str, what: impl Into<String>) -> SchemaError {
    SchemaError::Unknown {
        at: at.to_owned(),
        what: what.into(),
    }
}

impl Schema {
    /// Reads a schema.
    ///
    /// # Errors
    /// If it has an unsupported keyword or value.
    pub fn read(text: &str) -> Result<Schema, SchemaError> {
        Schema::of(&serde_json::from_str(text)?, "the top", 0)
    }

    fn of(value: &Value, at: &str, depth: usize) -> Result<Schema, SchemaError> {
        if depth > DEEPEST {
            return Err(unknown(at, format!("nested deeper than {DEEPEST} levels")));
        }
        let Value::Object(map) = value else {
            return Err(unknown(at, "a schema must be an object"));
        };
        let known = [
            "type",
            "enum",
            "const",
            "properties",
            "required",
            "additionalProperties",
            "items",
            "minItems",
            "maxItems",
            "minLength",
            "maxLength",
            "minimum",
            "maximum",
        ];
        let strange = map
            .keys()
            .find(|key| !known.contains(&key.as_str()) && !NOTES.contains(&key.as_str()));
        if let Some(key) = strange {
            return Err(unknown(
                at,
                format!(
                    "unknown keyword `{}`; expected one of {}",
                    key.escape_debug(),
                    known.join(", ")
                ),
            ));
        }
        let below = |name: &str, value: &Value| {
            let at = format!("{at}/{}", name.escape_debug());
            Schema::of(value, &at, depth + 1)
        };
        let mut properties = Vec::new();
        if let Some(named) = map.get("properties") {
            let Value::Object(named) = named else {
                return Err(unknown(at, "`properties` must be an object of schemas"));
            };
            for (name, value) in named {
                properties.push((name.clone(), below(name, value)?));
            }
        }
        let others = match map.get("additionalProperties") {
            None | Some(Value::Bool(true)) => Some(Box::new(Others::Any)),
            Some(Value::Bool(false)) => None,
            Some(value) => {
                let like = below("additionalProperties", value)?;
                Some(Box::new(Others::Like(like)))
            }
        };
        let values = match (map.get("enum"), map.get("const")) {
            (None, None) => None,
            (None, Some(value)) => Some(vec![value.clone()]),
            (Some(Value::Array(values)), None) => Some(values.clone()),
            _ => return Err(unknown(at, "expected either `enum`, a list, or `const`")),
        };
        let items = map.get("items").map(|value| below("items", value));
        Ok(Schema {
            types: types(map, at)?,
            values,
            properties,
            required: names(map, at)?,
            others,
            items: items.transpose()?.map(Box::new),
            items_within: (count(map, "minItems", at)?.unwrap_or(0), {
                count(map, "maxItems", at)?.unwrap_or(u64::MAX)
            }),
            length_within: (count(map, "minLength", at)?.unwrap_or(0), {
                count(map, "maxLength", at)?.unwrap_or(u64::MAX)
            }),
            least: number(map, "minimum", at)?,
            most: number(map, "maximum", at)?,
        })
    }

    /// Whether a message is of this type.
    ///
    /// # Errors
    /// If it is not; says where and why.
    pub fn check(&self, value: &Value) -> Result<(), Mismatch> {
        self.check_at(value, "the top")
    }

    fn check_at(&self, value: &Value, at: &str) -> Result<(), Mismatch> {
        let wrong = |what: String| Mismatch {
            at: at.chars().take(200).collect(),
            what,
        };
        if !self.types.is_empty() && !self.types.iter().any(|own| own.is(value)) {
            return Err(wrong("wrong type".into()));
        }
        if self.values.as_ref().is_some_and(|all| !all.contains(value)) {
            return Err(wrong("not one of the allowed values".into()));
        }
        let within = |count: usize, (least, most): (u64, u64)| {
            let count = count as u64;
            least <= count && count <= most
        };
        match value {
            Value::String(text) if !within(text.chars().count(), self.length_within) => {
                return Err(wrong("too short or too long".into()));
            }
            Value::Number(number) => {
                let number = number.as_f64().unwrap_or(f64::NAN);
                let low = self.least.is_some_and(|least| number < least);
                let high = self.most.is_some_and(|most| number > most);
                if low || high || number.is_nan() {
                    return Err(wrong("too small or too large".into()));
                }
            }
            Value::Array(items) => {
                if !within(items.len(), self.items_within) {
                    return Err(wrong("too few or too many items".into()));
                }
                if let Some(like) = &self.items {
                    for (index, item) in items.iter().enumerate() {
                        like.check_at(item, &format!("{at}/{index}"))?;
                    }
                }
            }
            Value::Object(map) => {
                if let Some(missing) = self.required.iter().find(|name| !map.contains_key(*name)) {
                    return Err(wrong(format!("`{missing}` is missing")));
                }
                for (name, value) in map {
                    let below = || format!("{at}/{name}");
                    let named = self.properties.iter().find(|(known, _)| known == name);
                    match (named, self.others.as_deref()) {
                        (Some((_, like)), _) | (None, Some(Others::Like(like))) => {
                            like.check_at(value, &below())?;
                        }
                        (None, Some(Others::Any)) => {}
                        (None, None) => {
                            let name: String = name.chars().take(80).collect();
                            return Err(wrong(format!("`{name}` is not allowed")));
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn types(map: &Map<String, Value>, at: &str) -> Result<Vec<Type>, SchemaError> {
    let of = |value: &Value| {
        let named = value.as_str().and_then(Type::named);
        named.ok_or_else(|| {
            let all = "null, boolean, integer, number, string, array or object";
            unknown(
                at,
                format!("invalid `type`; expected {all}, or a list of them"),
            )
        })
    };
    match map.get("type") {
        None => Ok(Vec::new()),
        Some(Value::Array(all)) => all.iter().map(of).collect(),
        Some(one) => Ok(vec![of(one)?]),
    }
}

fn names(map: &Map<String, Value>, at: &str) -> Result<Vec<String>, SchemaError> {
    let wrong = || unknown(at, "`required` must be a list of names");
    match map.get("required") {
        None => Ok(Vec::new()),
        Some(Value::Array(all)) => {
            let names = all.iter().map(|name| name.as_str().map(str::to_owned));
            names.collect::<Option<_>>().ok_or_else(wrong)
        }
        Some(_) => Err(wrong()),
    }
}

fn count(map: &Map<String, Value>, key: &str, at: &str) -> Result<Option<u64>, SchemaError> {
    let wrong = || unknown(at, format!("`{key}` must be a whole number of at least 0"));
    let value = map.get(key).map(|value| value.as_u64().ok_or_else(wrong));
    value.transpose()
}

fn number(map: &Map<String, Value>, key: &str, at: &str) -> Result<Option<f64>, SchemaError> {
    let wrong = || unknown(at, format!("`{key}` must be a number"));
    let value = map.get(key).map(|value| value.as_f64().ok_or_else(wrong));
    value.transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: &str = r#"{
        "title": "a task", "type": "object", "required": ["do"], "additionalProperties": false,
        "properties": {
            "do": {"type": "string", "minLength": 1, "maxLength": 5},
            "times": {"type": "integer", "minimum": 1, "maximum": 3},
            "how": {"enum": ["fast", null]},
            "with": {"type": "array", "maxItems": 2, "items": {"type": ["string", "boolean"]}}
        }
    }"#;

    #[test]
    fn a_message_is_of_the_type_or_told_where_it_is_not() {
        let schema = Schema::read(TASK).unwrap();
        for (text, at) in [
            (r#"{"do": "x"}"#, None),
            (
                r#"{"do": "x", "times": 3.0, "how": null, "with": ["a", true]}"#,
                None,
            ),
            (r#"{}"#, Some("the top")),
            (r#"[]"#, Some("the top")),
            (r#"{"do": ""}"#, Some("the top/do")),
            (r#"{"do": "longer"}"#, Some("the top/do")),
            (r#"{"do": "x", "times": 4}"#, Some("the top/times")),
            (r#"{"do": "x", "times": 1.5}"#, Some("the top/times")),
            (r#"{"do": "x", "how": "slow"}"#, Some("the top/how")),
            (r#"{"do": "x", "with": ["a", 1]}"#, Some("the top/with/1")),
            (
                r#"{"do": "x", "with": ["a", "b", "c"]}"#,
                Some("the top/with"),
            ),
            (r#"{"do": "x", "more": 1}"#, Some("the top")),
        ] {
            let told = schema.check(&serde_json::from_str(text).unwrap());
            let told = told.err().map(|mismatch| mismatch.at);
            assert_eq!(told.as_deref(), at, "{text}");
        }
    }

    #[test]
    fn what_a_schema_says_and_is_not_known_is_refused() {
        for text in [
            r#"{"pattern": "^a"}"#,
            r#"{"properties": {"a": {"oneOf": []}}}"#,
            r#"{"type": "text"}"#,
            r#"{"required": "a"}"#,
            r#"{"minItems": -1}"#,
            r#"true"#,
            r#"{"#,
        ] {
            assert!(Schema::read(text).is_err(), "{text}");
        }
        let deep = format!("{}{}{}", "{\"items\":".repeat(40), "{}", "}".repeat(40));
        assert!(Schema::read(&deep).is_err());
        assert!(Schema::read("{}").unwrap().check(&Value::Null).is_ok());
    }
}
