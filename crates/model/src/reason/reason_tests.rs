#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;
use std::collections::BTreeSet;

#[test]
fn codes_are_unique_and_kebab_case_with_meaning_and_remedy() {
    let mut seen = BTreeSet::new();
    for entry in reason_tables().into_iter().flat_map(|(_, table)| table) {
        let ReasonEntry {
            code,
            meaning,
            remedy,
        } = entry;
        assert!(seen.insert(code), "{code} is there twice");
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(code.chars().all(plain) && code.contains('-'), "{code}");
        for text in [meaning, remedy] {
            assert!(
                text.trim().len() > 8 && text.ends_with('.'),
                "{code}: {text}"
            );
        }
        assert_eq!(find_reason(code), Some(entry));
    }
    assert!(find_reason("no-such-code").is_none());
}

/// Reads what is in a table by its code alone, with data for every field.
#[test]
fn the_text_shows_the_data_escaped_and_cut() {
    let mut reason = Reason::from(NetworkReason::OtherHost {
        host: "a\u{1b}[2Jb".repeat(100),
        name: "b.com".into(),
    });
    reason.cut(10);
    let text = reason.to_string();
    assert_eq!(
        text,
        "the request is for a\\u{1b}[2Jba\\u{1b}[2, the connection for b.com"
    );
    assert_eq!(reason.code(), Some("http-other-host"));
}

#[test]
fn a_start_code_is_found_by_its_text() {
    assert_eq!(
        StartCode::find("start-no-user-namespace"),
        Some(StartCode::NoUserNamespace)
    );
    assert_eq!(StartCode::find("lease-no-ceiling"), None);
}
