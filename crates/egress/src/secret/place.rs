//! Places of a request in which placeholders stand: fields, Basic credentials, parameters of
//! the query and of forms. Pure.

use super::scan::find;
use ironcage_model::base64::{decode_either, encode};

/// One text by another, everywhere.
pub(crate) fn replace(within: &[u8], placeholder: &str, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(within.len());
    let mut rest = within;
    while let Some(at) = find(rest, placeholder.as_bytes()) {
        out.extend(rest.get(..at).unwrap_or_default());
        out.extend(value);
        rest = rest.get(at + placeholder.len()..).unwrap_or_default();
    }
    out.extend(rest);
    out
}

/// What Basic credentials say, where a field holds some.
pub(crate) fn basic(value: &[u8]) -> Option<Vec<u8>> {
    let rest = value
        .get(..6)?
        .eq_ignore_ascii_case(b"basic ")
        .then(|| value.get(6..))??;
    decode_either(rest.trim_ascii())
}

/// Basic credentials as a field holds them.
pub(crate) fn write_basic(credentials: &[u8]) -> Vec<u8> {
    let mut out = b"Basic ".to_vec();
    out.extend(encode(credentials).into_bytes());
    out
}

/// A value in the forms in which it may come back: as it is, in hexadecimal digits, and as a part
/// of base64, which depends on what stands before it. Letters that what follows has a say in are
/// left out.
pub(crate) fn forms(value: &[u8]) -> Vec<Vec<u8>> {
    let hex = |upper: bool| {
        let digits = value.iter().map(|byte| match upper {
            true => format!("{byte:02X}"),
            false => format!("{byte:02x}"),
        });
        digits.collect::<String>().into_bytes()
    };
    let mut forms = vec![value.to_vec(), hex(false), hex(true)];
    for before in 0..3_usize {
        let mut with = vec![0; before];
        with.extend(value);
        let whole = with.len() / 3 * 4;
        let first = (before * 8).div_ceil(6);
        let text = encode(&with).into_bytes();
        if let Some(sure) = text.get(first..whole).filter(|sure| sure.len() >= 8) {
            let url = |byte: &u8| match byte {
                b'+' => b'-',
                b'/' => b'_',
                other => *other,
            };
            forms.push(sure.to_vec());
            forms.push(sure.iter().map(url).collect());
        }
    }
    forms.sort();
    forms.dedup();
    forms
}

/// Text without its escapes; what is no escape stays as it is.
pub(crate) fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                out.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

/// Text with everything escaped that is no letter, digit or one of `-._~`.
pub(crate) fn escaped(text: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            out.push(char::from(*byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Puts a value where parameters of a query or a form hold the placeholder and `named` says
/// so.
pub(crate) fn parameters(
    text: &str,
    placeholder: &str,
    value: &[u8],
    named: impl Fn(&[u8]) -> bool,
) -> String {
    let part = |part: &str| {
        let Some((name, said)) = part.split_once('=') else {
            return part.to_owned();
        };
        let plain = unescaped(said.replace('+', " ").as_bytes());
        if !named(&unescaped(name.as_bytes())) || find(&plain, placeholder.as_bytes()).is_none() {
            return part.to_owned();
        }
        format!("{name}={}", escaped(&replace(&plain, placeholder, value)))
    };
    text.split('&').map(part).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn credentials_are_read_and_written() {
        let said = basic(b"basic eDpQTEFDRQ==").unwrap();
        assert_eq!(said, b"x:PLACE");
        let with = replace(&said, "PLACE", b"value");
        assert_eq!(write_basic(&with), b"Basic eDp2YWx1ZQ==");
        assert!(basic(b"Bearer eDpQ").is_none());
        assert!(basic(b"Basic !").is_none());
    }

    #[test]
    fn a_value_is_known_in_every_place_of_base64() {
        for before in ["", "a", "ab", "me:", "user:"] {
            let text = encode(format!("{before}value-of-a-secret:x").as_bytes());
            let forms = forms(b"value-of-a-secret");
            let known = |form: &Vec<u8>| find(text.as_bytes(), form).is_some();
            assert!(forms.iter().any(known), "{before}");
        }
    }

    #[test]
    fn parameters_are_those_named() {
        let key = |name: &[u8]| name == b"key";
        assert_eq!(
            parameters("a=PLACE&key=PL%41CE&k%65y=PLACE", "PLACE", b"v/1", key),
            "a=PLACE&key=v%2F1&k%65y=v%2F1"
        );
    }

    proptest! {
        #[test]
        fn escapes_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            prop_assert_eq!(unescaped(escaped(&bytes).as_bytes()), bytes);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode_either(&bytes);
            let _ = basic(&bytes);
            let _ = parameters(&String::from_utf8_lossy(&bytes), "P", b"v", |_| true);
        }
    }
}
