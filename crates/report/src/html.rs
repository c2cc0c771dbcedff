//! Text in HTML: everything that comes from a log passes through here.

use ironcage_model::Printable;
use std::fmt::{self, Write as _};

/// Text that an agent may have chosen, for element content and quoted attributes. Control
/// characters and bidirectional marks come out escaped too, as on a terminal.
pub(crate) struct Text<'a>(pub(crate) &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in Printable::new(self.0).to_string().chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_and_control_characters_come_out_as_text() {
        let hostile = "</td><script>alert('x')</script>\" onload=\"\u{1b}\u{202e}&amp;";
        let shown = Text(hostile).to_string();
        assert_eq!(
            shown,
            "&lt;/td&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot; onload=&quot;\\u{1b}\\u{202e}&amp;amp;"
        );
        assert_eq!(Text("plain /w/a.txt").to_string(), "plain /w/a.txt");
    }
}
