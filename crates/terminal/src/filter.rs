//! Takes out of a terminal stream what makes a terminal act or answer with contents that the
//! agent chose.
//!
//! A terminal is a program that the agent talks to. Some of what it understands reaches out of
//! the window: the clipboard (OSC 52), files and programs (kitty graphics by file name, iTerm's
//! 1337, desktop notifications), and reports that come back as if the user had typed them
//! (window title, answerback, settings). These are dropped. Colours, cursor, screens, titles,
//! mouse, links and questions with a fixed answer pass.
//!
//! It works on bytes as they come, keeps at most [`LONGEST`] of an unfinished sequence, and
//! never delays anything else. The 8-bit forms of control characters are dropped: they are not
//! valid UTF-8, and some terminals act on them.

use crate::prompt::Before;

/// The longest sequence that is kept together; a longer one is dropped to its end.
const LONGEST: usize = 4096;

const ESCAPE: u8 = 0x1b;
const BELL: u8 = 0x07;
const ENQUIRY: u8 = 0x05;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Ordinary text.
    Ground,
    /// In the middle of a UTF-8 character: so many bytes to come.
    Character(u8),
    /// After ESC.
    Escape,
    /// In a control sequence (`ESC [`).
    Control,
    /// In a string (`ESC ]`, `ESC P` and the like) that ends with ST, or BEL for OSC.
    Text,
    /// In such a string, after ESC.
    TextEscape,
}

/// A filter with what it remembers between two reads.
#[derive(Debug)]
pub struct Filter {
    state: State,
    pending: Vec<u8>,
    overlong: bool,
    screen: Before,
}

impl Default for Filter {
    fn default() -> Self {
        Filter {
            state: State::Ground,
            pending: Vec::new(),
            overlong: false,
            screen: Before::default(),
        }
    }
}

impl Filter {
    /// How the screen stands after what has passed.
    pub fn screen(&self) -> Before {
        self.screen
    }

    /// Passes bytes through; what may pass is appended to `out`.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        for &byte in bytes {
            self.step(byte, out);
        }
    }

    fn step(&mut self, byte: u8, out: &mut Vec<u8>) {
        match self.state {
            State::Ground => self.ground(byte, out),
            State::Character(left) => self.character(left, byte, out),
            State::Escape => self.escape(byte, out),
            State::Control => self.control(byte, out),
            State::Text => match byte {
                ESCAPE => self.keep_in(State::TextEscape, byte),
                BELL => {
                    self.keep(byte);
                    self.finish_text(out);
                }
                // Cancel and substitute end a string without effect.
                0x18 | 0x1a => self.forget(),
                _ => self.keep(byte),
            },
            State::TextEscape => match byte {
                b'\\' => {
                    self.keep(byte);
                    self.finish_text(out);
                }
                // Anything else after ESC ends the string and begins a new sequence.
                _ => {
                    self.forget();
                    self.keep_in(State::Escape, ESCAPE);
                    self.escape(byte, out);
                }
            },
        }
    }

    fn ground(&mut self, byte: u8, out: &mut Vec<u8>) {
        match byte {
            ESCAPE => self.keep_in(State::Escape, byte),
            ENQUIRY => {}
            0x00..=0x7f => out.push(byte),
            0xc2..=0xdf => self.keep_in(State::Character(1), byte),
            0xe0..=0xef => self.keep_in(State::Character(2), byte),
            0xf0..=0xf4 => self.keep_in(State::Character(3), byte),
            // Not UTF-8; 0x80 to 0x9f are control characters to some terminals.
            _ => out.extend("\u{fffd}".as_bytes()),
        }
    }

    fn character(&mut self, left: u8, byte: u8, out: &mut Vec<u8>) {
        if !(0x80..=0xbf).contains(&byte) {
            self.forget();
            out.extend("\u{fffd}".as_bytes());
            self.ground(byte, out);
            return;
        }
        self.keep(byte);
        if left > 1 {
            self.state = State::Character(left - 1);
            return;
        }
        // U+0080 to U+009F are the 8-bit control characters in disguise.
        let disguised = matches!(self.pending.as_slice(), [0xc2, 0x80..=0x9f]);
        if !disguised {
            out.append(&mut self.pending);
        }
        self.forget();
    }

    fn escape(&mut self, byte: u8, out: &mut Vec<u8>) {
        match byte {
            b'[' => self.keep_in(State::Control, byte),
            b']' | b'P' | b'_' | b'^' | b'X' => self.keep_in(State::Text, byte),
            ESCAPE => {}
            // Intermediate bytes; one final byte follows.
            0x20..=0x2f => self.keep(byte),
            0x30..=0x7e => {
                self.keep(byte);
                // `ESC %` chooses another coding, in which the 8-bit controls would be back.
                if self.overlong || self.pending.contains(&b'%') {
                    self.forget();
                } else {
                    if self.pending == b"\x1bc" {
                        // Everything as it was at the beginning.
                        self.screen = Before::default();
                    }
                    self.pass(out);
                }
            }
            _ => {
                self.forget();
                self.ground(byte, out);
            }
        }
    }

    fn control(&mut self, byte: u8, out: &mut Vec<u8>) {
        match byte {
            0x20..=0x3f => self.keep(byte),
            0x40..=0x7e => {
                self.keep(byte);
                if !self.overlong && control_passes(&self.pending) {
                    self.note_modes();
                    self.pass(out);
                } else {
                    self.forget();
                }
            }
            ESCAPE => {
                self.forget();
                self.keep_in(State::Escape, ESCAPE);
            }
            // Other control characters act at once, in the middle of a sequence.
            BELL | 0x08..=0x0d => out.push(byte),
            _ => self.forget(),
        }
    }

    /// Remembers what a control sequence changes of the screen.
    fn note_modes(&mut self) {
        let (Some(modes), Some(last)) = (self.pending.strip_prefix(b"\x1b[?"), self.pending.last())
        else {
            return;
        };
        let on = match last {
            b'h' => true,
            b'l' => false,
            _ => return,
        };
        let modes = modes
            .get(..modes.len().saturating_sub(1))
            .unwrap_or_default();
        for mode in modes.split(|byte| *byte == b';') {
            match number(mode) {
                Some(47 | 1047 | 1049) => self.screen.alternate = on,
                Some(25) => self.screen.no_cursor = !on,
                _ => {}
            }
        }
    }

    fn finish_text(&mut self, out: &mut Vec<u8>) {
        if !self.overlong && text_passes(&self.pending) {
            self.pass(out);
        } else {
            self.forget();
        }
    }

    fn keep_in(&mut self, state: State, byte: u8) {
        self.state = state;
        self.keep(byte);
    }

    fn keep(&mut self, byte: u8) {
        if self.pending.len() < LONGEST {
            self.pending.push(byte);
        } else {
            self.overlong = true;
        }
    }

    fn pass(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.pending);
        self.forget();
    }

    fn forget(&mut self) {
        self.pending.clear();
        self.overlong = false;
        self.state = State::Ground;
    }
}

/// A parameter as terminals read it, with zeros before it or not.
fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The private mode whose absence makes a terminal a VT52, to which this is all noise.
const VT52: u32 = 2;

/// Whether a private mode is among the parameters.
fn sets_mode(parameters: &[u8], mode: u32) -> bool {
    let Some(modes) = parameters.strip_prefix(b"?") else {
        return false;
    };
    let mut modes = modes.split(|byte| *byte == b';');
    modes.any(|text| number(text) == Some(mode))
}

/// Whether a control sequence (`ESC [ ... final`) passes.
fn control_passes(sequence: &[u8]) -> bool {
    let Some((&last, rest)) = sequence.split_last() else {
        return false;
    };
    let parameters = rest.get(2..).unwrap_or_default();
    match last {
        // Window operations: the title can be kept and given back, and sizes be asked for.
        // Not: reports of the title, which come back as typed text; moving and resizing.
        b't' => {
            let first = parameters.split(|byte| *byte == b';').next();
            matches!(first, Some(b"14" | b"16" | b"18" | b"22" | b"23"))
        }
        // Media copy: prints, to a printer or a program.
        b'i' => false,
        // A checksum of cells: by it the agent reads what stands on the user's screen.
        b'y' => !parameters.contains(&b'*'),
        // The status line in the place of the screen, and an older terminal in that of this one:
        // no program needs them, and what is drawn afterwards is not seen where it should be.
        b'}' | b'~' => !parameters.contains(&b'$'),
        b'p' => !parameters.contains(&b'"'),
        b'l' => !sets_mode(parameters, VT52),
        _ => true,
    }
}

/// Whether a string (`ESC ] ... ST` and the like) passes.
fn text_passes(sequence: &[u8]) -> bool {
    let end = if sequence.ends_with(b"\x1b\\") { 2 } else { 1 };
    let body = sequence
        .get(2..sequence.len().saturating_sub(end))
        .unwrap_or_default();
    // A control character in a string ends it for some terminals, and what follows begins
    // anew: 8-bit ones too, plain or coded as UTF-8.
    let plain = std::str::from_utf8(body).is_ok_and(|text| !text.contains(char::is_control));
    if !plain {
        return false;
    }
    match sequence.get(1) {
        Some(b']') => command_passes(body),
        // Pictures (sixel). Not: questions about settings and terminal names, whose answer
        // holds what was asked, and wrapping of other sequences (tmux).
        Some(b'P') => {
            let parameters = body
                .iter()
                .take_while(|byte| byte.is_ascii_digit() || **byte == b';')
                .count();
            body.get(parameters) == Some(&b'q')
        }
        _ => false,
    }
}

/// Whether an operating system command (OSC) passes.
fn command_passes(body: &[u8]) -> bool {
    let mut parts = body.splitn(2, |byte| *byte == b';');
    let number = parts.next().unwrap_or_default();
    let rest = parts.next().unwrap_or_default();
    match number {
        // Titles; colours, but not questions about them; links; marks of shell prompts; and
        // a progress bar.
        b"0" | b"1" | b"2" | b"8" | b"133" => true,
        b"4" | b"10" | b"11" | b"12" | b"104" | b"110" | b"111" | b"112" => !rest.contains(&b'?'),
        b"9" => rest.starts_with(b"4;"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Filter::default().feed(bytes, &mut out);
        out
    }

    #[test]
    fn ordinary_programs_pass_unchanged() {
        for text in [
            "plain text\r\n\ttab",
            "\x1b[31mred\x1b[0m",
            "\x1b[?1049h\x1b[2J\x1b[H\x1b[?2004h",
            "\x1b]0;title\x07\x1b]2;title\x1b\\",
            "\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\",
            "\x1b[6n\x1b[c\x1b[>c",
            "\x1b(B\x1b7\x1b8\x1b=\x1b>",
            "naïve 漢字 \u{1f600}",
            "\x1bP0;0;0q#0;2;0;0;0~-\x1b\\",
            "\x1b]11;#000000\x07",
            "\x1b[3~\x1b[!p\x1b[?2004l\x1b[?69h\x1b[1;20s\x1b[0 q\x1b[2l",
        ] {
            assert_eq!(through(text.as_bytes()), text.as_bytes(), "{text:?}");
        }
    }

    #[test]
    fn what_acts_or_answers_is_dropped_and_the_text_around_it_stays() {
        for hostile in [
            &b"\x1b]52;c;ZWNobw==\x07"[..],
            b"\x1b]52;c;?\x1b\\",
            b"\x1b[21t",
            b"\x1b[20;1t",
            b"\x1b[8;1;1t",
            b"\x1bP$qm\x1b\\",
            b"\x1bP+q544e\x1b\\",
            b"\x1bPtmux;\x1b\x1b]52;c;QQ==\x07\x1b\\",
            b"\x1b_Gf=100,t=f;L2V0Yy9wYXNzd2Q=\x1b\\",
            b"\x1b]1337;File=:QQ==\x07",
            b"\x1b]9;message\x07",
            b"\x1b]777;notify;a;b\x07",
            b"\x1b]11;?\x07",
            b"\x05",
            b"\x1b[5i",
            b"\x1b^pm\x1b\\",
        ] {
            let mut text = b"before".to_vec();
            text.extend(hostile);
            text.extend(b"after");
            let out = through(&text);
            let out = String::from_utf8_lossy(&out);
            assert!(
                out.starts_with("before") && out.ends_with("after"),
                "{out:?}"
            );
            assert!(!out.contains('\x05'), "{out:?}");
            let left = out.trim_start_matches("before").trim_end_matches("after");
            assert!(!left.contains("52;") && !left.contains("1337"), "{out:?}");
        }
    }

    #[test]
    fn what_reads_the_screen_or_takes_the_place_of_it_is_dropped() {
        for hostile in [
            "\x1b[1;1;1;1;9;9*y",
            "\x1b[2$~\x1b[1$}",
            "\x1b[61\"p",
            "\x1b[?2l",
            "\x1b[?25;02l",
        ] {
            assert_eq!(through(hostile.as_bytes()), b"", "{hostile:?}");
        }
    }

    #[test]
    fn it_is_known_which_screen_is_drawn_on_and_whether_the_cursor_is_seen() {
        for (text, alternate, no_cursor) in [
            ("plain", false, false),
            ("\x1b[?1049h", true, false),
            ("\x1b[?47h\x1b[?25l", true, true),
            ("\x1b[?1;1047;25h", true, false),
            // As terminals read it: a prompt that thought otherwise would give the wrong screen back.
            ("\x1b[?01049h\x1b[?025l", true, true),
            ("\x1b[?1049h\x1b[?25l\x1b[?1049l", false, true),
            ("\x1b[?1049h\x1b[?25l\x1bc", false, false),
            ("\x1b[1049h\x1b[?1049$p", false, false),
        ] {
            let mut filter = Filter::default();
            filter.feed(text.as_bytes(), &mut Vec::new());
            let before = Before {
                alternate,
                no_cursor,
            };
            assert_eq!(filter.screen(), before, "{text:?}");
        }
    }

    #[test]
    fn eight_bit_controls_are_not_a_way_around() {
        assert!(!through(b"\x9d52;c;QQ==\x07").contains(&0x9d));
        assert!(!through("\u{9d}52;c;QQ==\x07".as_bytes()).contains(&0x9d));
        assert_eq!(through("é".as_bytes()), "é".as_bytes());
        // Nor inside of a string that would pass, nor by another coding.
        assert_eq!(through(b"\x1b]0;a\x9c\x9d52;c;QQ==\x07"), b"");
        assert_eq!(through("\x1b]0;a\u{9c}\u{9d}52;c;QQ==\x07".as_bytes()), b"");
        assert_eq!(through(b"\x1b%@text"), b"text");
        let title = "\x1b]0;naïve\x07".as_bytes();
        assert_eq!(through(title), title);
    }

    #[test]
    fn cutting_a_stream_anywhere_changes_nothing() {
        let text = "a\x1b[1mb\x1b]52;c;QQ==\x07漢\x1b]0;t\x07\x1b[21tz".as_bytes();
        let whole = through(text);
        for cut in 0..text.len() {
            let mut filter = Filter::default();
            let mut out = Vec::new();
            filter.feed(&text[..cut], &mut out);
            filter.feed(&text[cut..], &mut out);
            assert_eq!(out, whole, "{cut}");
        }
    }

    #[test]
    fn an_endless_string_is_bounded_and_ends_where_it_ends() {
        let mut filter = Filter::default();
        let mut out = Vec::new();
        filter.feed(b"\x1b]0;", &mut out);
        filter.feed(&vec![b'x'; 1 << 20], &mut out);
        assert!(filter.pending.len() <= LONGEST);
        filter.feed(b"\x07after", &mut out);
        assert_eq!(out, b"after");
    }
}
