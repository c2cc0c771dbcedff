//! Paths as JSON text, without loss: bytes that are not UTF-8 and backslashes are escaped.

use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

/// A path as text that [`parse`] turns back into the same bytes.
pub(crate) fn show(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\\\"));
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// The path that a text stands for.
pub(crate) fn parse(text: &str) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'\\' {
            bytes.push(first);
            continue;
        }
        match rest {
            [b'\\', after @ ..] => {
                bytes.push(b'\\');
                rest = after;
            }
            [b'x', high, low, after @ ..] => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = after;
            }
            _ => return None,
        }
    }
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&show(path))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| D::Error::custom(format!("invalid encoded path `{text}`")))
}

/// Lists of paths, in the same way.
pub(crate) mod list {
    use super::{parse, show};
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer, de::Error as _};
    use std::path::PathBuf;

    pub(crate) fn serialize<S: Serializer>(
        paths: &[PathBuf],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let shown: Vec<String> = paths.iter().map(|path| show(path)).collect();
        shown.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<PathBuf>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        let parsed = texts.iter().map(|text| {
            parse(text).ok_or_else(|| D::Error::custom(format!("invalid encoded path `{text}`")))
        });
        parsed.collect()
    }
}

/// A path without `.` and `..`. The names stay as they are: no link is resolved, because the
/// path need not exist in the real tree.
pub(crate) fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn any_bytes_come_back_as_they_were() {
        for bytes in [&b"/a/b"[..], b"a\\x41\\", b"\xff\n\x1b\xc3\xa9\xc3", b""] {
            let path = Path::new(OsStr::from_bytes(bytes));
            assert_eq!(parse(&show(path)).as_deref(), Some(path), "{bytes:?}");
        }
        assert_eq!(parse("\\q"), None);
        assert_eq!(parse("\\x4"), None);
    }
}
