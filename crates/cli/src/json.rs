//! JSON as it is printed: all that is not plain ASCII is escaped, since much of it is words of a
//! cage's, or of whoever wrote a workspace, and a terminal may be what reads it.

use serde::Serialize;
use std::fmt::Write as _;
use std::io;

fn escaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        // A control character in a string is escaped by now: a line's end is the layout's.
        if c == '\n' || (c.is_ascii() && !c.is_ascii_control()) {
            plain.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(plain, "\\u{unit:04x}");
        }
    }
    plain
}

/// On many lines, as a person reads it.
pub(crate) fn pretty(value: &impl Serialize) -> io::Result<String> {
    Ok(escaped(&serde_json::to_string_pretty(value)?))
}

/// On one line, as a program reads it.
pub(crate) fn line(value: &impl Serialize) -> io::Result<String> {
    Ok(escaped(&serde_json::to_string(value)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left_and_nothing_is_lost() {
        let words =
            "\u{1b}]0;x\u{7}\u{9b}31m \u{9d}52;c;\u{9c} \u{202e}\u{200b} na\u{ef}ve \u{1f600}\n\"";
        for text in [line(&[words]).unwrap(), pretty(&[words]).unwrap()] {
            let plain = |c: char| c == '\n' || (' '..='~').contains(&c);
            assert!(text.chars().all(plain), "{text:?}");
            let back: Vec<String> = serde_json::from_str(&text).unwrap();
            assert_eq!(back, [words]);
        }
    }
}
