//! Paths and arguments as JSON text. Bytes that are not UTF-8 are escaped, never dropped.

use ironcage_model::Printable;
use serde::Serializer;
use std::ffi::OsStr;
use std::path::PathBuf;

fn text(value: &OsStr) -> String {
    match value.to_str() {
        Some(text) => text.to_owned(),
        None => Printable::new(value).to_string(),
    }
}

pub(crate) fn os<S: Serializer>(value: &OsStr, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&text(value))
}

pub(crate) fn path<S: Serializer>(
    value: &std::path::Path,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    os(value.as_os_str(), serializer)
}

pub(crate) fn os_list<S: Serializer>(
    values: &[std::ffi::OsString],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(|value| text(value)))
}

pub(crate) fn path_list<S: Serializer>(
    values: &[PathBuf],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(|value| text(value.as_os_str())))
}
