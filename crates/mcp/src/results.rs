//! Answers of servers: bounded, and without what a terminal would obey or a person would not see.

use ironcage_model::ToolReason;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Largest result where the policy does not say.
pub(crate) const LARGEST: u64 = 1 << 20;

/// A refusal that a model can read, with its code.
pub(crate) fn refusal(reason: &ToolReason) -> CallToolResult {
    let code = reason.code();
    let entry = ironcage_model::find_reason(code);
    let remedy = entry.map_or("", |entry| entry.remedy);
    let text = format!("Denied by Ironcage ({code}): {reason}. {remedy}");
    let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
    result.structured_content =
        Some(json!({"code": code, "reason": reason.to_string(), "what_to_do": remedy}));
    result
}

/// Why an answer is not passed on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unclean {
    /// With its size in bytes.
    #[error("it is too large: {0} bytes")]
    TooLarge(u64),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// The answer with its text cleaned, and its size in bytes. One beyond the limit is not looked at.
pub(crate) fn clean<T: Serialize + DeserializeOwned>(
    answer: T,
    limit: u64,
) -> Result<(T, u64), Unclean> {
    let text = serde_json::to_string(&answer)?;
    let size = text.len() as u64;
    if size > limit {
        return Err(Unclean::TooLarge(size));
    }
    if !is_suspect(&text) {
        return Ok((answer, size));
    }
    let mut value: Value = serde_json::from_str(&text)?;
    walk(&mut value);
    Ok((serde_json::from_value(value)?, size))
}

/// Whether JSON may have something to clean: an escaped control character, or text beyond ASCII.
/// JSON writes two control characters shorter, and DEL as it is.
fn is_suspect(text: &str) -> bool {
    let escaped = ["\\u00", "\\b", "\\f", "\u{7f}"];
    !text.is_ascii() || escaped.iter().any(|mark| text.contains(mark))
}

fn walk(value: &mut Value) {
    match value {
        Value::String(text) if !ironcage_tools::findings(text).is_empty() => {
            *text = ironcage_tools::printable(text);
        }
        Value::Array(items) => items.iter_mut().for_each(walk),
        Value::Object(fields) => {
            fields.values_mut().for_each(walk);
            let hidden = |key: &String| !ironcage_tools::findings(key).is_empty();
            if fields.keys().any(hidden) {
                let all = std::mem::take(fields);
                for (key, value) in all {
                    // Of two keys that only differed in what is hidden, the first stays.
                    fields
                        .entry(ironcage_tools::printable(&key))
                        .or_insert(value);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_and_nobody_sees_is_left_out() {
        let text = "a\u{1b}]52;c;eA==\u{7}b\u{1b}[31mc\u{e0041}\u{202e}d";
        let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
        result.structured_content = Some(json!({"x": [text]}));
        let (result, size) = clean(result, LARGEST).unwrap();
        let told = serde_json::to_value(&result).unwrap();
        assert_eq!(told["content"][0]["text"], "abcd");
        assert_eq!(told["structuredContent"]["x"][0], "abcd");
        assert!(size > 100);
        let plain = CallToolResult::success(vec![ContentBlock::text("grün\n\t☃")]);
        assert_eq!(clean(plain.clone(), LARGEST).unwrap().0, plain);
    }
    #[test]
    fn every_control_character_and_every_key_is_looked_at_and_what_is_too_large_is_not() {
        let value = json!({"a\u{8}": "\u{c}b\u{7f}c", "d": "e"});
        let (cleaned, _) = clean(value.clone(), LARGEST).unwrap();
        assert_eq!(cleaned, json!({"a": "bc", "d": "e"}));
        assert!(matches!(clean(value, 5), Err(Unclean::TooLarge(_))));
    }
}
