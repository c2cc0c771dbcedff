//! How answers are encoded where a secret may come back in them: requests do not ask for an
//! encoding that could not be read, and an answer that has one all the same does not go on.

use crate::http::{Fields, Refused};
use ironcage_model::NetworkReason;

/// A field's name as servers see it that hand fields on as variables: they do not tell `_` and
/// other signs from `-`.
fn as_variable(name: &str) -> String {
    let sign = |c: char| match c.is_ascii_alphanumeric() {
        true => c.to_ascii_lowercase(),
        false => '-',
    };
    name.chars().map(sign).collect()
}

/// Whether a request chooses by this field how the answer is encoded.
fn chooses_encoding(name: &str) -> bool {
    // Accept-Encoding, Accept-Charset, grpc-accept-encoding, connect-accept-encoding, ...
    name.contains("accept") && (name.ends_with("encoding") || name.ends_with("charset"))
        // Hashes of an answer say something of what is covered in it.
        || name.starts_with("want-")
        || name.ends_with("available-dictionary")
        || matches!(
            name,
            // Differences to an earlier answer, and dictionaries made of one.
            "a-im" | "dictionary-id"
                // Transparent negotiation.
                | "accept-features" | "negotiate"
                | "sec-websocket-extensions"
        )
}

/// Whether a request asks by this field for a part of an answer: each would hold a part of a
/// value.
fn chooses_part(name: &str) -> bool {
    // Range, If-Range, Request-Range, x-ms-range, ...; an upload says by Content-Range which part
    // it is.
    name.ends_with("range") && name != "content-range"
}

/// Has the answer come as it is, and whole; with `parts` it may come in parts.
pub(super) fn normalise(fields: &mut Fields, parts: bool) {
    fields.retain_mut(|(name, value)| {
        let name = as_variable(name);
        match name.as_str() {
            "accept" => *value = without_charset(value),
            "te" => return value.eq_ignore_ascii_case(b"trailers"),
            _ => {}
        }
        !(chooses_encoding(&name) || chooses_part(&name) && !parts)
    });
    fields.push(("accept-encoding".to_owned(), b"identity".to_vec()));
}

/// An `Accept` field in which no type names a character set.
fn without_charset(value: &[u8]) -> Vec<u8> {
    let is_charset = |parameter: &&[u8]| {
        let name = parameter.split(|byte| *byte == b'=').next();
        name.unwrap_or_default()
            .trim_ascii()
            .eq_ignore_ascii_case(b"charset")
    };
    if !value
        .to_ascii_lowercase()
        .windows(7)
        .any(|w| w == b"charset")
    {
        return value.to_vec();
    }
    let types: Vec<Vec<u8>> = value
        .split(|byte| *byte == b',')
        .map(|one| {
            let kept = one.split(|byte| *byte == b';').filter(|p| !is_charset(p));
            kept.collect::<Vec<_>>().join(&b';')
        })
        .collect();
    types.join(&b',')
}

/// Character sets in which ASCII is written as in ASCII, or with zero bytes between.
fn is_readable(charset: &str) -> bool {
    const KNOWN: [&str; 11] = [
        "ascii", "us-ascii", "utf8", "utf-8", "utf-16", "utf-16le", "utf-16be", "utf-32",
        "utf-32le", "utf-32be", "binary",
    ];
    const FAMILIES: [&str; 9] = [
        "iso-8859-",
        "iso8859-",
        "windows-125",
        "cp125",
        "koi8-",
        "euc-",
        "gb",
        "big5",
        "tis-620",
    ];
    let charset = charset
        .trim()
        .trim_matches(['"', '\''])
        .to_ascii_lowercase();
    let shift_jis = matches!(
        charset.as_str(),
        "shift_jis" | "shift-jis" | "sjis" | "windows-31j"
    );
    KNOWN.contains(&charset.as_str())
        || FAMILIES.iter().any(|known| charset.starts_with(known))
        || shift_jis
        || matches!(
            charset.as_str(),
            "latin1" | "latin-1" | "windows-874" | "macintosh" | ""
        )
}

/// What a `Content-Type` says of the character set.
fn charsets(value: &[u8]) -> impl Iterator<Item = String> {
    let text = String::from_utf8_lossy(value).into_owned();
    let parameters: Vec<String> = text.split([';', ',']).map(str::to_owned).collect();
    parameters.into_iter().filter_map(|parameter| {
        let (name, said) = parameter.split_once('=')?;
        let name = name.trim().trim_end_matches('*');
        name.eq_ignore_ascii_case("charset")
            .then(|| said.to_owned())
    })
}

/// Checks that a secret in an answer could be found.
///
/// # Errors
/// Where the answer has an encoding that was not asked for.
pub(super) fn check(fields: &Fields) -> Result<(), Refused> {
    let refused = |what: String| {
        Err(Refused::new(
            502,
            NetworkReason::AnswerNotRedactable { what },
        ))
    };
    for (name, value) in fields {
        let said = || String::from_utf8_lossy(value).into_owned();
        let is = |plain: &[&str]| {
            plain
                .iter()
                .any(|one| value.eq_ignore_ascii_case(one.as_bytes()))
        };
        let plain = match name.as_str() {
            "content-encoding" | "grpc-encoding" | "connect-content-encoding" => is(&["identity"]),
            // Base64 comes in lines there, which would cut a value.
            "content-transfer-encoding" => is(&["binary", "7bit", "8bit"]),
            "sec-websocket-extensions" | "im" => value.is_empty(),
            "content-type" => {
                if let Some(charset) = charsets(value).find(|charset| !is_readable(charset)) {
                    return refused(format!("its character set is {charset}"));
                }
                true
            }
            _ => true,
        };
        if !plain {
            return refused(format!("it has {name}: {}", said()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(fields: &[(&str, &str)], parts: bool) -> Vec<(String, String)> {
        let field = |(name, value): &(&str, &str)| ((*name).into(), value.as_bytes().to_vec());
        let mut fields: Fields = fields.iter().map(field).collect();
        normalise(&mut fields, parts);
        let text = |value: Vec<u8>| String::from_utf8(value).unwrap();
        let shown = fields.into_iter();
        shown.map(|(name, value)| (name, text(value))).collect()
    }

    #[test]
    fn no_field_of_a_request_chooses_how_the_answer_is_encoded() {
        for name in [
            "accept-encoding",
            "accept_encoding",
            "x-accept-encoding",
            "grpc-accept-encoding",
            "connect-accept-encoding",
            "accept-charset",
            "accept_charset",
            "sec-websocket-extensions",
            "want-digest",
            "want-repr-digest",
            "want-content-digest",
            "a-im",
            "available-dictionary",
            "negotiate",
            "range",
            "if-range",
            "request-range",
            "x-ms-range",
            "x-goog-range",
            "sec-available-dictionary",
        ] {
            let left = normal(&[(name, "gzip"), ("x-other", "1")], false);
            let names: Vec<&str> = left.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ["x-other", "accept-encoding"], "{name}");
            assert_eq!(left[1].1, "identity");
        }
        let kept = [("content-range", "bytes 0-1/2"), ("accept-language", "en")];
        assert_eq!(normal(&kept, false).len(), 3);
        assert_eq!(normal(&[("range", "bytes=0-1")], true).len(), 2);
        let accept = |value: &str| normal(&[("accept", value)], false)[0].1.clone();
        assert_eq!(accept("text/html, */*;q=0.1"), "text/html, */*;q=0.1");
        assert_eq!(
            accept("text/html;Charset=utf-16;q=1,a/b; charset = \"utf-7\""),
            "text/html;q=1,a/b"
        );
        assert_eq!(normal(&[("te", "trailers")], false).len(), 2);
        assert_eq!(normal(&[("te", "gzip")], false).len(), 1);
    }

    #[test]
    fn an_answer_in_another_encoding_is_refused_and_a_plain_one_is_not() {
        let says = |name: &str, value: &str| {
            let fields: Fields = vec![(name.into(), value.as_bytes().to_vec())];
            check(&fields).is_ok()
        };
        for (name, value) in [
            ("content-encoding", "gzip"),
            ("content-encoding", "identity, br"),
            ("grpc-encoding", "gzip"),
            ("connect-content-encoding", "zstd"),
            ("content-transfer-encoding", "quoted-printable"),
            ("content-transfer-encoding", "base64"),
            ("sec-websocket-extensions", "permessage-deflate"),
            ("im", "vcdiff"),
            ("content-type", "text/plain; charset=utf-7"),
            ("content-type", "text/plain;CHARSET=\"IBM037\""),
            (
                "content-type",
                "text/plain; charset=utf-8; charset=hz-gb-2312",
            ),
            ("content-type", "text/html; charset*=utf-7"),
            (
                "content-type",
                "application/json, text/plain; charset=iso-2022-jp",
            ),
        ] {
            assert!(!says(name, value), "{name}: {value}");
        }
        for (name, value) in [
            ("content-encoding", "Identity"),
            ("grpc-encoding", "identity"),
            ("content-type", "application/json"),
            ("content-type", "text/html; charset=UTF-8"),
            ("content-type", "text/html; charset=utf-16le"),
            ("content-type", "text/html; charset=ISO-8859-1"),
            ("content-type", "multipart/form-data; boundary=x"),
            ("x-other", "gzip"),
        ] {
            assert!(says(name, value), "{name}: {value}");
        }
    }
}
