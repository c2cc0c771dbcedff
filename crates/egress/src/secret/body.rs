//! Values in bodies: where a field that the policy names holds a placeholder, and in no other
//! place of such a body. Pure.
//!
//! Server and proxy have to read the same: a body counts as JSON or as a form only where its
//! head says so in one plain way, and it is made so that it is nothing when read as the other.

use super::place::{parameters, replace, unescaped};
use super::scan::find;
use crate::http::Fields;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyKind {
    Json,
    Form,
}

impl BodyKind {
    /// What the fields of a head say; `None` where they say it of nothing that is known, twice,
    /// or with words that could make it mean something else.
    pub(super) fn of(fields: &Fields) -> Option<Self> {
        if fields.iter().any(|(name, _)| name == "content-encoding") {
            return None;
        }
        let mut said = fields.iter().filter(|(name, _)| name == "content-type");
        let (Some((_, value)), None) = (said.next(), said.next()) else {
            return None;
        };
        let text = std::str::from_utf8(value).ok()?.to_ascii_lowercase();
        let (media, more) = match text.split_once(';') {
            Some((media, more)) => (media.trim(), Some(more.trim())),
            None => (text.trim(), None),
        };
        // In another set of characters other bytes are quotes.
        let plain = [None, Some("charset=utf-8"), Some("charset=\"utf-8\"")];
        if !plain.contains(&more) {
            return None;
        }
        let token = |text: &str| {
            let mut bytes = text.bytes();
            bytes.all(|byte| byte.is_ascii_alphanumeric() || b".-+_".contains(&byte))
        };
        match media.strip_prefix("application/")? {
            "json" => Some(BodyKind::Json),
            "x-www-form-urlencoded" => Some(BodyKind::Form),
            other if other.ends_with("+json") && token(other) => Some(BodyKind::Json),
            _ => None,
        }
    }
}

/// What became of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// The placeholder is not in it.
    Nothing,
    /// With the value where it may be.
    With(Vec<u8>),
    /// The placeholder stands where the value may not.
    Misplaced,
}

/// Puts a value where fields hold the placeholder that `paths` name, with dots for fields in
/// fields.
pub(super) fn put(
    kind: BodyKind,
    body: &[u8],
    placeholder: &str,
    value: &[u8],
    paths: &[&str],
) -> Put {
    match kind {
        BodyKind::Json => json(body, placeholder, value, paths),
        BodyKind::Form => form(body, placeholder, value, paths),
    }
}

fn form(body: &[u8], placeholder: &str, value: &[u8], paths: &[&str]) -> Put {
    let holds = |text: &[u8]| find(&unescaped(text), placeholder.as_bytes()).is_some();
    if !holds(body) {
        return Put::Nothing;
    }
    // A server that does not look at the type would take such a form for JSON.
    let first = body.trim_ascii_start().first();
    let Some(text) = std::str::from_utf8(body)
        .ok()
        .filter(|_| !first.is_some_and(|byte| b"{[\"".contains(byte)))
    else {
        return Put::Misplaced;
    };
    let named = |name: &[u8]| paths.iter().any(|path| path.as_bytes() == name);
    let with = parameters(text, placeholder, value, named).into_bytes();
    if holds(&with) {
        return Put::Misplaced;
    }
    Put::With(with)
}

/// One object or array that is open.
struct JsonLevel {
    object: bool,
    /// Whether the next text is a name.
    at_name: bool,
    /// The name of the value that is being read.
    name: Option<String>,
}

fn json(body: &[u8], placeholder: &str, value: &[u8], paths: &[&str]) -> Put {
    let misplaced = || match find(body, placeholder.as_bytes()) {
        Some(_) => Put::Misplaced,
        None => Put::Nothing,
    };
    // From here on every quote begins or ends a text, and every bracket is closed.
    if serde_json::from_slice::<serde::de::IgnoredAny>(body).is_err() {
        return misplaced();
    }
    let Ok(value) = std::str::from_utf8(value) else {
        return misplaced();
    };
    let mut out = Vec::with_capacity(body.len() + value.len());
    let mut open: Vec<JsonLevel> = Vec::new();
    let mut placed = false;
    let mut rest = body;
    while let Some((byte, after)) = rest.split_first() {
        if *byte == b'"' {
            let Some((raw, said)) = text(rest) else {
                return misplaced();
            };
            let holds = said.contains(placeholder);
            let names = open.last().is_some_and(|frame| frame.at_name);
            if !holds {
                write_text(&mut out, raw);
            } else if !names && is_named(&open, paths) {
                let with = replace(said.as_bytes(), placeholder, value.as_bytes());
                let with = String::from_utf8_lossy(&with);
                let Ok(quoted) = serde_json::to_vec(&with) else {
                    return Put::Misplaced;
                };
                write_text(&mut out, &quoted);
                placed = true;
            } else {
                return Put::Misplaced;
            }
            if let Some(frame) = open.last_mut().filter(|_| names) {
                frame.name = Some(said);
            }
            rest = rest.get(raw.len()..).unwrap_or_default();
            continue;
        }
        match byte {
            b'{' | b'[' => open.push(JsonLevel {
                object: *byte == b'{',
                at_name: *byte == b'{',
                name: None,
            }),
            b'}' | b']' => drop(open.pop()),
            b',' | b':' => {
                if let Some(frame) = open.last_mut() {
                    frame.at_name = *byte == b',' && frame.object;
                }
            }
            _ => {}
        }
        out.push(*byte);
        rest = after;
    }
    match placed {
        true => Put::With(out),
        false => Put::Nothing,
    }
}

/// Whether the value that is being read is at one of the paths. A name with a dot in it is none
/// of theirs; the items of an array are where the array is.
fn is_named(open: &[JsonLevel], paths: &[&str]) -> bool {
    let names = || open.iter().filter_map(|frame| frame.name.as_deref());
    paths.iter().any(|path| path.split('.').eq(names()))
}

/// The text in quotes with which this begins, as it stands there and as it is meant.
fn text(from: &[u8]) -> Option<(&[u8], String)> {
    let mut escaped = false;
    let end = from.iter().skip(1).position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    })?;
    let raw = from.get(..end + 2)?;
    Some((raw, serde_json::from_slice(raw).ok()?))
}

/// Writes a text in quotes. To a server that takes the body for a form, an ampersand would begin
/// another field.
fn write_text(out: &mut Vec<u8>, raw: &[u8]) {
    for byte in raw {
        match byte {
            b'&' => out.extend(b"\\u0026"),
            other => out.push(*other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kind(fields: &[(&str, &str)]) -> Option<BodyKind> {
        let field = |(name, value): &(&str, &str)| ((*name).into(), value.as_bytes().to_vec());
        BodyKind::of(&fields.iter().map(field).collect())
    }

    fn with(body: &str) -> String {
        match put(
            BodyKind::Json,
            body.as_bytes(),
            "PLACE",
            b"v\"1",
            &["token", "auth.token"],
        ) {
            Put::With(with) => String::from_utf8(with).unwrap(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_body_is_what_its_head_plainly_says() {
        let says = |value: &str| kind(&[("content-type", value)]);
        assert_eq!(says("Application/JSON"), Some(BodyKind::Json));
        assert_eq!(
            says("application/json; charset=UTF-8"),
            Some(BodyKind::Json)
        );
        assert_eq!(says("application/vnd.api+json"), Some(BodyKind::Json));
        assert_eq!(
            says("application/x-www-form-urlencoded"),
            Some(BodyKind::Form)
        );
        for odd in [
            "",
            "text/plain",
            "application/x-www-form-urlencoded; x=json",
            "application/json; charset=utf-7",
            "application/json, text/plain",
            "application/x json+json",
            "text/json",
        ] {
            assert_eq!(says(odd), None, "{odd}");
        }
        let json = ("content-type", "application/json");
        assert_eq!(kind(&[json, json]), None);
        assert_eq!(kind(&[json, ("content-encoding", "gzip")]), None);
        assert_eq!(kind(&[]), None);
    }

    #[test]
    fn a_value_is_put_where_a_field_is_named_and_a_placeholder_elsewhere_is_refused() {
        assert_eq!(
            with(r#"{ "auth": {"token":"a PL\u0041CE"}, "n": 1.00, "t": ["&\""] }"#),
            r#"{ "auth": {"token":"a v\"1"}, "n": 1.00, "t": ["\u0026\""] }"#
        );
        assert_eq!(with(r#"[{"token":"PLACE"}]"#), r#"[{"token":"v\"1"}]"#);
        for elsewhere in [
            // Ran against the proxy: the count was right, and both got the value.
            r#"{"token":"\u0050LACE","issue":"PLACE"}"#,
            r#"{"token":"PLACE","issue":"\u0050LACE"}"#,
            r#"{"auth.token":"PLACE"}"#,
            r#"{"auth":{"token":{"x":"PLACE"}}}"#,
            r#"{"auth":{"token":"x"},"PLACE":1}"#,
            r#"{"token":{"PLACE":1}}"#,
            r#"{"x":{"token":"PLACE"}}"#,
            r#"{"token":"x"},"token":"PLACE""#,
            r#""PLACE""#,
            r#"{"token":"PLACE""#,
        ] {
            assert_eq!(with(elsewhere), "Misplaced", "{elsewhere}");
        }
        assert_eq!(with(r#"{"token":"x","y":["z"]}"#), "Nothing");
        assert_eq!(with("not"), "Nothing");
    }

    #[test]
    fn forms_get_it_in_parameters_that_are_named() {
        let form =
            |body: &str| match put(BodyKind::Form, body.as_bytes(), "PLACE", b"v/1", &["token"]) {
                Put::With(with) => String::from_utf8(with).unwrap(),
                other => format!("{other:?}"),
            };
        assert_eq!(form("a=1&token=PL%41CE"), "a=1&token=v%2F1");
        assert_eq!(form("a=1"), "Nothing");
        for elsewhere in [
            "token=PLACE&x=PLACE",
            "token=PLACE&x=PL%41CE",
            "PLACE=1",
            r#"{"a":"&comment=","token":"PLACE","b":"&x="}"#,
            r#" {"comment":"&token=PLACE&"}"#,
        ] {
            assert_eq!(form(elsewhere), "Misplaced", "{elsewhere}");
        }
    }

    proptest! {
        #[test]
        fn what_becomes_of_json_is_the_same_json_with_the_value(
            name in "(token|x|auth.token|PLACE)",
            said in "[a-z&\\\\\"{}\\[\\],: ]{0,8}(PLACE)?",
            more in "[a-z&\\\\\"{}\\[\\],: ]{0,8}(PLACE)?",
        ) {
            let body = serde_json::json!({ &*name: said, "more": [more, 1] });
            let text = body.to_string();
            match put(BodyKind::Json, text.as_bytes(), "PLACE", b"VALUE", &["token"]) {
                Put::With(with) => {
                    let again: serde_json::Value = serde_json::from_slice(&with).unwrap();
                    let wanted = serde_json::json!({ "token": said.replace("PLACE", "VALUE"), "more": [more, 1] });
                    prop_assert_eq!(again, wanted);
                }
                Put::Nothing => prop_assert!(!text.contains("PLACE")),
                Put::Misplaced => prop_assert!(text.contains("PLACE")),
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = put(BodyKind::Json, &bytes, "P", b"v", &["a"]);
            let _ = put(BodyKind::Form, &bytes, "P", b"v", &["a"]);
        }
    }
}
