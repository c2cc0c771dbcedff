//! A line of the supervisor's in the last row of the user's terminal, while a permission request
//! waits. The window's title alone is not seen: most agents set it themselves.
//!
//! The cage's terminal is a row shorter meanwhile, and the real one scrolls above the line.

use crate::prompt::Before;
use ironcage_model::Printable;
use ironcage_sys::rustix::termios::Winsize;

/// A terminal with fewer rows has no line.
const FEWEST_ROWS: u16 = 5;

/// Makes room for the line and draws it.
pub fn show(before: Before, size: Winsize, text: &str) -> Vec<u8> {
    if size.ws_row < FEWEST_ROWS {
        return Vec::new();
    }
    // Where nothing is drawn full-screen, the cursor may be in the last row: one line down, which
    // scrolls there and only there, and one up.
    let room = match before.alternate {
        true => "",
        false => "\x1bD\x1b[1A",
    };
    let mut out = room.as_bytes().to_vec();
    out.extend(draw(size, text));
    out
}

/// Draws the line again, after the agent may have drawn over it.
pub fn draw(size: Winsize, text: &str) -> Vec<u8> {
    if size.ws_row < FEWEST_ROWS {
        return Vec::new();
    }
    let width = usize::from(size.ws_col.max(20)) - 1;
    let text = format!(" {}", Printable::new(text));
    let shown: String = text.chars().take(width).collect();
    let (rows, above) = (size.ws_row, size.ws_row - 1);
    // Margins move the cursor, which is put back. An agent that has just cleared them gets them
    // again with the next drawing.
    format!("\x1b7\x1b[?6l\x1b[1;{above}r\x1b[{rows};1H\x1b[0;7m{shown:<width$}\x1b[0m\x1b8")
        .into_bytes()
}

/// Takes the line away, and gives the row back.
pub fn hide(size: Winsize) -> Vec<u8> {
    if size.ws_row < FEWEST_ROWS {
        return Vec::new();
    }
    let rows = size.ws_row;
    format!("\x1b7\x1b[?6l\x1b[r\x1b[{rows};1H\x1b[0m\x1b[2K\x1b8").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(ws_row: u16, ws_col: u16) -> Winsize {
        Winsize {
            ws_row,
            ws_col,
            ws_xpixel: 0,
            ws_ypixel: 0,
        }
    }

    #[test]
    fn the_line_is_as_wide_as_the_terminal_and_has_no_sequences_of_the_agents() {
        let drawn = String::from_utf8(draw(size(30, 40), "a\x1b[2Jb")).unwrap();
        assert!(!drawn.contains("a\x1b[2J"), "{drawn:?}");
        let text = drawn.split("\x1b[0;7m").nth(1).unwrap();
        let text = text.split('\x1b').next().unwrap();
        assert_eq!(text.chars().count(), 39, "{text:?}");
    }

    #[test]
    fn a_terminal_of_a_few_rows_is_left_alone() {
        assert!(draw(size(4, 80), "x").is_empty() && hide(size(4, 80)).is_empty());
        assert!(show(Before::default(), size(4, 80), "x").is_empty());
    }
}
