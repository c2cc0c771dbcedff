//! Promises of the parsers of this folder.

use super::config;
use super::index::{Index, ObjectFormat, Tracked, submodules_in_index};

pub(crate) fn index(bytes: &[u8]) {
    let _ = Tracked::parse(bytes);
    for path in submodules_in_index(bytes) {
        assert!(path.is_relative(), "{path:?}");
    }
    for format in [ObjectFormat::Sha1, ObjectFormat::Sha256] {
        let Ok(read) = Index::read(bytes, format) else {
            continue;
        };
        if let Ok(written) = read.write(format) {
            let again = Index::read(&written, format);
            assert!(again.as_ref() == Ok(&read), "written, it is another");
        }
    }
}

pub(crate) fn settings(real: &str, agents: &str) {
    let Some(change) = config::compare(real, agents, &|branch| branch == "main") else {
        return;
    };
    let written = config::addition(&change.taken);
    let again = config::parse(&written);
    assert_eq!(again.as_ref(), Some(&change.taken), "{written:?}");
}
