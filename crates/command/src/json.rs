//! JSON for terminals: everything but printable ASCII is escaped, because cages and workspaces
//! control much of the text.

use serde::Serialize;
use std::fmt::Write as _;
use std::io;

fn escaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        // serde escapes control characters in strings: a line end is part of the layout.
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

/// On several lines, for people.
pub fn pretty(value: &impl Serialize) -> io::Result<String> {
    Ok(escaped(&serde_json::to_string_pretty(value)?))
}

/// On one line, for programs.
pub fn line(value: &impl Serialize) -> io::Result<String> {
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
