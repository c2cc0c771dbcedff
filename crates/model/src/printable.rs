//! Text from a cage, made safe for a terminal.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::os::unix::ffi::OsStrExt;

/// Shows bytes that an agent may have chosen: control characters, bidirectional overrides
/// and bytes that are not UTF-8 appear escaped, so that they cannot act on a terminal.
#[derive(Debug, Clone, Copy)]
pub struct Printable<'a>(&'a [u8]);

impl<'a> Printable<'a> {
    /// Wraps anything that is bytes inside.
    pub fn new<T: AsRef<OsStr> + ?Sized>(text: &'a T) -> Self {
        Printable(text.as_ref().as_bytes())
    }

    /// Wraps plain bytes.
    pub fn bytes(bytes: &'a [u8]) -> Self {
        Printable(bytes)
    }
}

fn is_harmless(c: char) -> bool {
    // Bidirectional controls and zero-width characters change how a line reads.
    // Not seen, or seen elsewhere: joiners, marks of direction, fillers, selectors, tags.
    let deceives = matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    );
    !c.is_control() && !deceives
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if is_harmless(c) {
                    f.write_char(c)?;
                } else {
                    write!(f, "{}", c.escape_unicode())?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_and_foreign_bytes_come_out_as_text() {
        let shown = Printable::bytes(b"a\x1b]52;c;\x07\xffz").to_string();
        assert_eq!(shown, "a\\u{1b}]52;c;\\u{7}\\xffz");
        for unseen in [
            '\u{ad}',
            '\u{61c}',
            '\u{200d}',
            '\u{202e}',
            '\u{3164}',
            '\u{e0041}',
        ] {
            let name = format!("a{unseen}b");
            let shown = Printable::new(&name).to_string();
            assert!(
                shown.starts_with("a\\u{") && shown.ends_with("}b"),
                "{shown}"
            );
        }
        assert_eq!(Printable::new("größe 数").to_string(), "größe 数");
    }

    #[test]
    fn ordinary_text_passes_unchanged() {
        assert_eq!(Printable::new("naïve/путь").to_string(), "naïve/путь");
    }
}
