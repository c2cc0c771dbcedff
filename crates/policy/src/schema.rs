//! The JSON schema of `PolicyFile`, generated; the copy in docs/reference is checked
//! against it by a test.

use crate::{capabilities, syscalls};
use ironcage_model::{Holders, Isolation, Layer, ShellMode, WordsMode};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;
use std::borrow::Cow;

/// The JSON schema of policy files, as text that ends with a newline.
///
/// # Errors
/// Only if the schema could not be written as JSON.
pub fn json_schema() -> Result<String, serde_json::Error> {
    let schema = schemars::schema_for!(crate::PolicyFile);
    let mut value = serde_json::to_value(&schema)?;
    drop_null(&mut value);
    let mut text = serde_json::to_string_pretty(&value)?;
    text.push('\n');
    Ok(text)
}

/// Takes out that a value may be null: TOML has no null, a key is there or not.
fn drop_null(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if map.get("default").is_some_and(Value::is_null) {
                map.remove("default");
            }
            if let Some(Value::Array(types)) = map.get_mut("type") {
                types.retain(|name| name != "null");
                if let [one] = types.as_slice() {
                    let one = one.clone();
                    map.insert("type".to_owned(), one);
                }
            }
            if let Some(Value::Array(choices)) = map.get_mut("anyOf") {
                choices.retain(|choice| choice.get("type") != Some(&Value::from("null")));
                if let [Value::Object(one)] = choices.as_slice() {
                    let one = one.clone();
                    map.remove("anyOf");
                    map.extend(one);
                }
            }
            map.values_mut().for_each(drop_null);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_null),
        _ => {}
    }
}

/// Declares a type that exists only to give a value its schema.
macro_rules! described {
    ($name:ident, $schema:expr) => {
        pub(crate) enum $name {}

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

described!(
    Size,
    json_schema!({"type": "string", "pattern": "^([1-9][0-9]?%|100%|[0-9]+ ?([kKmMgGtT]([iI]?[bB])?)?)$", "examples": ["2G", "50%"]})
);
described!(
    Processors,
    json_schema!({"anyOf": [{"type": "number", "minimum": 0.01, "maximum": 8192}, {"type": "string", "pattern": "^([1-9][0-9]?%|100%|[0-9]+(\\.[0-9]+)?)$"}], "examples": [1.5, "50%"]})
);
described!(
    Time,
    json_schema!({"type": "string", "pattern": "^(none|[1-9][0-9]* ?(s|m|min|h|d)?)$", "examples": ["30m", "none"]})
);
described!(
    HoldersName,
    json_schema!({"type": "string", "enum": [Holders::Kill.name(), Holders::Keep.name()]})
);
described!(
    ShellModeName,
    json_schema!({"type": "string", "enum": ShellMode::ALL.map(ShellMode::name)})
);
described!(
    WordsModeName,
    json_schema!({"type": "string", "enum": WordsMode::ALL.map(WordsMode::name)})
);
described!(
    IsolationName,
    json_schema!({"type": "string", "enum": Isolation::ALL.map(Isolation::name)})
);
described!(
    LayerName,
    json_schema!({"type": "string", "enum": Layer::ALL.map(Layer::name)})
);
described!(
    CapabilityName,
    json_schema!({"type": "string", "enum": capabilities::ENTRIES.iter().filter(|c| c.allowed).map(|c| c.name).collect::<Vec<_>>()})
);
described!(
    ListName,
    json_schema!({"type": "string", "enum": syscalls::lists().iter().map(|list| list.name).collect::<Vec<_>>()})
);
described!(
    CacheName,
    json_schema!({"type": "string", "enum": crate::caches::names()})
);
described!(
    BundleName,
    json_schema!({"type": "string", "enum": crate::bundles::names()})
);
described!(
    FirstUseName,
    json_schema!({"type": "string", "enum": ["ask", "pin"]})
);
described!(
    OtherwiseName,
    json_schema!({"type": "string", "enum": ["ask", "deny"]})
);
described!(
    SqlClassName,
    json_schema!({"type": "string", "enum": ironcage_tools::SqlClass::ALL.map(ironcage_tools::SqlClass::name)})
);
described!(
    CallLeaseName,
    json_schema!({"type": "string", "enum": ironcage_tools::CallLease::ALL.map(ironcage_tools::CallLease::name)})
);
described!(
    GroupName,
    json_schema!({"type": "string", "enum": syscalls::groups().iter().map(|group| group.name).collect::<Vec<_>>()})
);
