//! Text that does not look like what it is: invisible and bidirectional characters, letters of
//! other scripts in names, and what a terminal would obey.

use serde::{Deserialize, Serialize};
use unicode_normalization::UnicodeNormalization;

/// Something in a text that a person who reads it would not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// Characters without a width: zero-width spaces, tags, variation selectors.
    Invisible,
    /// Characters that change the direction of the text around them.
    Bidirectional,
    /// Control characters, escape sequences among them.
    Control,
}

impl Finding {
    /// What it is, for people.
    pub const fn text(self) -> &'static str {
        match self {
            Finding::Invisible => "invisible characters",
            Finding::Bidirectional => "characters that reverse the direction of text",
            Finding::Control => "control characters",
        }
    }
}

fn finding(c: char) -> Option<Finding> {
    match c {
        '\n' | '\t' | '\r' => None,
        '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' => Some(Finding::Control),
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            Some(Finding::Bidirectional)
        }
        '\u{ad}'
        | '\u{34f}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{17b4}'
        | '\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200d}'
        | '\u{2028}'
        | '\u{2029}'
        | '\u{2060}'..='\u{2065}'
        | '\u{206a}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}' => Some(Finding::Invisible),
        _ => None,
    }
}

/// What is hidden in a text, each kind once.
pub fn findings(text: &str) -> Vec<Finding> {
    let mut found: Vec<Finding> = text.chars().filter_map(finding).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Whether a name has only letters, digits, and `_`, `-`, `.`, `/` of ASCII, as the MCP
/// specification asks of tools. Two such names that look alike are the same.
pub fn is_plain_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
    (1..=128).contains(&name.len()) && name.bytes().all(plain)
}

/// The text without what a terminal would obey and without what cannot be seen.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' | '\u{9b}' | '\u{9d}' | '\u{90}' => skip_sequence(c, &mut chars),
            // Emoji are joined by these; without them only their look changes.
            c if finding(c).is_some() => {}
            c => out.push(c),
        }
    }
    out
}

/// The text as part of one line.
pub fn one_line(text: &str) -> String {
    printable(text).replace(['\n', '\r', '\t'], " ")
}

/// Skips an escape sequence whole: its letters would be left as text otherwise.
fn skip_sequence(start: char, chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    let kind = match start {
        '\u{1b}' => match chars.peek().copied() {
            Some(next @ ('[' | ']' | 'P' | 'X' | '^' | '_')) => {
                chars.next();
                next
            }
            Some(' '..='~') => {
                chars.next();
                return;
            }
            _ => return,
        },
        '\u{9b}' => '[',
        _ => ']',
    };
    if kind == '[' {
        while let Some(c) = chars.peek().copied() {
            match c {
                ' '..='?' => {
                    chars.next();
                }
                '@'..='~' => {
                    chars.next();
                    return;
                }
                _ => return,
            }
        }
        return;
    }
    // A string: up to BEL or ST. One that has no end is not one: only its start is left out.
    let ahead: String = chars.clone().take(4096).collect();
    let end = ["\u{7}", "\u{1b}\\", "\u{9c}"]
        .iter()
        .filter_map(|end| ahead.find(end).map(|at| at + end.len()))
        .min();
    if let Some(end) = end {
        let count = ahead.get(..end).map_or(0, |text| text.chars().count());
        for _ in 0..count {
            chars.next();
        }
    }
}

/// What a name looks like: two names that a person could take for one another have the same.
pub fn skeleton(name: &str) -> String {
    let folded = name.nfkc().flat_map(char::to_lowercase);
    let like = folded.filter(|c| finding(*c).is_none()).map(|c| match c {
        '-' | '.' | '/' | ' ' | '\u{2010}'..='\u{2015}' => '_',
        '0' | '\u{3bf}' | '\u{43e}' => 'o',
        '1' | 'i' | '|' | '\u{131}' | '\u{456}' => 'l',
        '\u{430}' | '\u{3b1}' => 'a',
        '\u{435}' => 'e',
        '\u{440}' => 'p',
        '\u{441}' => 'c',
        '\u{443}' => 'y',
        '\u{445}' => 'x',
        '\u{455}' => 's',
        '\u{501}' => 'd',
        other => other,
    });
    like.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_text_is_found_and_ordinary_text_is_not() {
        assert_eq!(findings("a\u{200b}b"), [Finding::Invisible]);
        assert_eq!(findings("a\u{e0041}"), [Finding::Invisible]);
        assert_eq!(findings("a\u{202e}b"), [Finding::Bidirectional]);
        assert_eq!(findings("a\u{1b}[2J"), [Finding::Control]);
        assert!(findings("Reads a file.\n\tüber 北京").is_empty());
    }

    #[test]
    fn what_a_terminal_obeys_is_left_out_whole() {
        assert_eq!(printable("a\u{1b}[31mred\u{1b}[0m b"), "ared b");
        assert_eq!(printable("a\u{1b}]52;c;aGk=\u{7}b"), "ab");
        assert_eq!(printable("a\u{1b}]0;t\u{1b}\\b\u{9b}2Jc"), "abc");
        assert_eq!(one_line("a\r\nb\u{1b}[2Jc"), "a  bc");
        assert_eq!(printable("a\u{202e}b\u{200b}c\r\nd"), "abc\r\nd");
    }

    #[test]
    fn names_that_look_alike_have_one_skeleton() {
        for (a, b) in [
            ("read_file", "re\u{430}d_file"),
            ("read_file", "read-file"),
            ("list", "1ist"),
            ("read", "rea\u{200b}d"),
        ] {
            assert_eq!(skeleton(a), skeleton(b), "{a} {b}");
        }
        assert_ne!(skeleton("read_file"), skeleton("write_file"));
        assert!(is_plain_name("read_file") && !is_plain_name("re\u{430}d") && !is_plain_name(""));
    }
}
