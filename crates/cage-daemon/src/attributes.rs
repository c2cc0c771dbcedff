//! Metadata of files, as user attributes with a prefix: the ones that envd has.

use ironcage_sys::rustix::fs::{
    XattrFlags, flistxattr, fremovexattr, fsetxattr, getxattr, listxattr, listxattr_query,
};
use ironcage_sys::rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

pub(crate) const PREFIX: &str = "user.e2b.";
/// Bytes of the names of all attributes of a file, and of one value: what the kernel has at most.
const NAMES: usize = 64 * 1024;
const VALUE: usize = 64 * 1024;

/// The metadata of a file; none where its file system keeps none.
pub(crate) fn read(path: &Path) -> BTreeMap<String, String> {
    let mut names = Vec::new();
    // Most files have no attribute, which a look without a buffer tells.
    match listxattr_query(path) {
        Ok(length) if (1..=NAMES).contains(&length) => names.resize(length, 0),
        _ => return BTreeMap::new(),
    }
    let Ok(length) = listxattr(path, &mut names) else {
        return BTreeMap::new();
    };
    names.truncate(length);
    let mut value = vec![0; VALUE];
    let mut found = BTreeMap::new();
    for name in ours(&names) {
        let Some(key) = name.strip_prefix(PREFIX) else {
            continue;
        };
        if let Ok(length) = getxattr(path, name, &mut value) {
            let value = value.get(..length).unwrap_or_default();
            found.insert(key.to_owned(), String::from_utf8_lossy(value).into_owned());
        }
    }
    found
}

fn ours(names: &[u8]) -> impl Iterator<Item = &str> {
    let names = names.split(|byte| *byte == 0);
    let names = names.filter_map(|name| std::str::from_utf8(name).ok());
    names.filter(|name| name.starts_with(PREFIX))
}

/// Gives a file just this metadata.
pub(crate) fn replace(file: &File, metadata: &BTreeMap<String, String>) -> Result<(), Errno> {
    let mut names = vec![0; NAMES];
    match flistxattr(file, &mut names) {
        Ok(length) => {
            for name in ours(names.get(..length).unwrap_or_default()) {
                fremovexattr(file, name)?;
            }
        }
        // Without attributes nothing is to be removed; setting one says so.
        Err(Errno::NOTSUP) => {}
        Err(error) => return Err(error),
    }
    for (key, value) in metadata {
        let name = format!("{PREFIX}{key}");
        fsetxattr(file, name.as_str(), value.as_bytes(), XattrFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_replaced_as_a_whole_and_other_attributes_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = File::create(&path).unwrap();
        let of = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(key, value)| (key.to_string(), value.to_string()));
            pairs.collect::<BTreeMap<_, _>>()
        };
        fsetxattr(&file, "user.other", b"x", XattrFlags::empty()).unwrap();
        assert_eq!(read(&path), of(&[]));
        replace(&file, &of(&[("a", "1"), ("b", "2")])).unwrap();
        assert_eq!(read(&path), of(&[("a", "1"), ("b", "2")]));
        replace(&file, &of(&[("b", "3")])).unwrap();
        assert_eq!(read(&path), of(&[("b", "3")]));
        let mut value = [0; 8];
        assert_eq!(getxattr(&path, "user.other", &mut value), Ok(1));
    }
}
