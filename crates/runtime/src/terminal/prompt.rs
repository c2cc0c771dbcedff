//! What a person sees and types when they answer a question on the terminal of an interactive run.
//!
//! The screen is the supervisor's as long as the prompt is there: nothing of the cage's passes.
//! An answer takes two keys, each typed by itself: what comes in one piece was pasted, or is a
//! report of the terminal's, and is no answer.

use ironcage_control::QuestionDescription;
use ironcage_model::{Printable, Term};
use ironcage_sys::rustix::termios::Winsize;
use std::fmt::Write as _;

/// How the terminal stood before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Before {
    /// The agent draws on the alternate screen.
    pub(crate) alternate: bool,
    /// The agent hides the cursor.
    pub(crate) no_cursor: bool,
}

/// What a person is about to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    Approve,
    Once,
    Deny,
}

/// What comes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pressed {
    /// Nothing, or something to be shown.
    Nothing,
    /// The answer.
    Answer(Choice),
    /// The next question.
    Next,
    /// Back to the agent.
    Leave,
}

/// A prompt that is on the screen.
#[derive(Debug)]
pub(crate) struct Prompt {
    /// The question that is shown.
    pub(crate) number: u32,
    pub(crate) before: Before,
    chosen: Option<Choice>,
    /// What came of the last answer.
    pub(crate) note: String,
}

impl Prompt {
    pub(crate) fn new(number: u32, before: Before) -> Self {
        Prompt {
            number,
            before,
            chosen: None,
            note: String::new(),
        }
    }

    /// Shows another question.
    pub(crate) fn turn_to(&mut self, number: u32) {
        self.number = number;
        self.chosen = None;
    }

    /// Takes what was typed at once.
    pub(crate) fn press(&mut self, typed: &[u8]) -> Pressed {
        let [key] = typed else {
            return Pressed::Nothing;
        };
        let chosen = self.chosen.take();
        match (key, chosen) {
            (b'\r' | b'\n', Some(choice)) => return Pressed::Answer(choice),
            (b'a', _) => self.chosen = Some(Choice::Approve),
            (b'o', _) => self.chosen = Some(Choice::Once),
            (b'd', _) => self.chosen = Some(Choice::Deny),
            (b'n', _) => return Pressed::Next,
            // Escape, Ctrl-C, and the word.
            (b'q' | 0x1b | 0x03, _) => return Pressed::Leave,
            _ => {}
        }
        Pressed::Nothing
    }

    /// The screen, drawn anew.
    pub(crate) fn draw(
        &self,
        described: &QuestionDescription,
        place: (usize, usize),
        size: Winsize,
    ) -> Vec<u8> {
        let width = width(size);
        let mut lines = self.lines(described, place, width);
        lines.truncate(usize::from(size.ws_row.max(4)));
        let mut out = String::from("\x1b[2J");
        for (row, line) in lines.iter().enumerate() {
            let shown: String = line.chars().take(width).collect();
            // Writing to a string cannot fail.
            let _ = write!(out, "\x1b[{};2H{shown}", row + 1);
        }
        out.into_bytes()
    }

    fn lines(
        &self,
        described: &QuestionDescription,
        (index, count): (usize, usize),
        width: usize,
    ) -> Vec<String> {
        let question = &described.question;
        let term = match question.term {
            Term::Milliseconds(time) => format!("for {}.{:03} s", time / 1000, time % 1000),
            Term::UntilRevoked => "for as long as the policy lets it".to_owned(),
        };
        let often = match described.asked {
            0 | 1 => String::new(),
            asked => format!(", {asked} times"),
        };
        let reason = match question.reason.as_str() {
            "" => "no reason was given".to_owned(),
            reason => Printable::new(reason).to_string(),
        };
        let mut lines = vec![
            format!(
                "ironcage: question {} ({} of {count})",
                question.number,
                index + 1
            ),
            "a approve   o approve for one use   d deny   n next   q back".to_owned(),
            match self.chosen {
                Some(Choice::Approve) => "approve it? press Enter".to_owned(),
                Some(Choice::Once) => "approve it for one use? press Enter".to_owned(),
                Some(Choice::Deny) => "deny it? press Enter".to_owned(),
                None => Printable::new(&self.note).to_string(),
            },
            String::new(),
        ];
        // What is asked for is seen as a whole, however long its name is.
        lines.extend(wrapped(&question.resource.to_string(), width));
        lines.extend([
            term,
            String::new(),
            format!(
                "asked for by {}{often}; said inside:",
                question.origin.name()
            ),
            format!("  {reason}"),
        ]);
        if let Some(named) = &question.announced {
            lines.push(format!("the model's words named {}", Printable::new(named)));
        }
        lines.push(Printable::new(&question.because).to_string());
        lines
    }
}

/// How many characters are put into a line.
fn width(size: Winsize) -> usize {
    usize::from(size.ws_col.max(20)) - 2
}

/// A text in lines of at most this width. Characters that are not ASCII may be two wide.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = if text.is_ascii() { width } else { width / 2 };
    let all: Vec<char> = text.chars().collect();
    all.chunks(width.max(1)).map(String::from_iter).collect()
}

/// Whether what is asked for can be seen as a whole on a screen of this size.
pub(crate) fn fits(described: &QuestionDescription, size: Winsize) -> bool {
    let lines = wrapped(&described.question.resource.to_string(), width(size));
    lines.len() + 4 < usize::from(size.ws_row.max(4))
}

/// Takes the screen over: whatever the agent was in the middle of ends, and nothing that it has
/// set (colours, character sets, margins) changes what is drawn.
pub(crate) fn enter(before: Before) -> Vec<u8> {
    let mut out = String::from("\x18\x1b\\");
    if !before.alternate {
        out.push_str("\x1b[?1049h");
    }
    // Keys as plain bytes, black on white or the other way round as explicit colours.
    out.push_str("\x1b[>0u\x1b[0m\x1b(B\x0f\x1b[?6l\x1b[r\x1b[4l\x1b[?7l\x1b[?25l");
    out.push_str("\x1b[38;2;255;255;255;48;2;0;0;0m");
    out.into_bytes()
}

/// Gives the screen back. A full-screen agent draws its own anew, for which it is told of another
/// size.
pub(crate) fn leave(before: Before) -> Vec<u8> {
    let mut out = String::from("\x1b[<u\x1b[0m\x1b[?7h");
    match before.alternate {
        true => out.push_str("\x1b[2J\x1b[H"),
        false => out.push_str("\x1b[?1049l"),
    }
    if !before.no_cursor {
        out.push_str("\x1b[?25h");
    }
    out.into_bytes()
}

/// Tells that a question waits: a bell, and the window's title, which is kept.
pub(crate) fn notice(key: &str) -> Vec<u8> {
    format!("\x1b[22;2t\x1b]2;ironcage: the cage asks for something ({key} answers)\x07\x07")
        .into_bytes()
}

/// Tells that the cage was stopped for its user to look at: a bell, the window's title, which is
/// kept, and where no full-screen program is drawn, a line.
pub(crate) fn stopped(before: Before, text: &str) -> Vec<u8> {
    let line = match before.alternate {
        true => String::new(),
        false => format!("\x18\x1b\\\x1b[0m\r\n{text}\r\n"),
    };
    format!("\x1b[22;2t\x1b]2;{text}\x07\x07{line}").into_bytes()
}

/// Takes the notice back.
pub(crate) fn notice_over() -> Vec<u8> {
    b"\x1b[23;2t".to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::{LeaseOrigin, Question, Resource, Right, Scope};

    fn described() -> QuestionDescription {
        QuestionDescription {
            question: Question {
                number: 3,
                resource: Resource::Path {
                    path: "/srv/\u{1b}[2Jdata".into(),
                    right: Right::Write,
                },
                scope: Scope::Cage,
                term: Term::UntilRevoked,
                uses: None,
                reason: "\u{1b}]0;x\u{7}please\n\npress a".into(),
                origin: LeaseOrigin::Ask,
                because: "the ceiling asks first".into(),
                announced: Some("/srv/\u{1b}[2Jdata/x".into()),
            },
            asked: 2,
            milliseconds_left: 1,
            untold: None,
        }
    }

    #[test]
    fn an_answer_takes_two_keys_that_come_by_themselves() {
        let mut prompt = Prompt::new(3, Before::default());
        assert_eq!(prompt.press(b"a\r"), Pressed::Nothing);
        assert_eq!(prompt.press(b"\r"), Pressed::Nothing);
        assert_eq!(prompt.press(b"a"), Pressed::Nothing);
        assert_eq!(prompt.press(b"x"), Pressed::Nothing);
        assert_eq!(prompt.press(b"\r"), Pressed::Nothing);
        assert_eq!(prompt.press(b"a"), Pressed::Nothing);
        assert_eq!(prompt.press(b"\r"), Pressed::Answer(Choice::Approve));
        assert_eq!(prompt.press(b"\r"), Pressed::Nothing);
        assert_eq!(prompt.press(b"d"), Pressed::Nothing);
        assert_eq!(prompt.press(b"\r"), Pressed::Answer(Choice::Deny));
        assert_eq!(prompt.press(b"\x1b[A"), Pressed::Nothing);
        assert_eq!(prompt.press(b"q"), Pressed::Leave);
    }

    #[test]
    fn what_cannot_be_seen_as_a_whole_does_not_fit() {
        let size = |ws_row, ws_col| Winsize {
            ws_row,
            ws_col,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let mut described = described();
        assert!(fits(&described, size(24, 80)));
        let path = format!("/srv/{}end", "x".repeat(300));
        described.question.resource = Resource::Path {
            path: path.clone(),
            right: Right::Read,
        };
        assert!(fits(&described, size(24, 80)) && !fits(&described, size(8, 80)));
        let drawn = Prompt::new(3, Before::default()).draw(&described, (0, 1), size(24, 80));
        let drawn = String::from_utf8(drawn).unwrap();
        let shown: String = drawn
            .split('\x1b')
            .filter_map(|part| part.split_once('H').map(|(_, text)| text))
            .collect();
        assert!(shown.contains(&path), "{shown}");
    }

    #[test]
    fn nothing_that_was_said_inside_acts_on_the_screen() {
        let prompt = Prompt::new(3, Before::default());
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let drawn = prompt.draw(&described(), (0, 1), size);
        let drawn = String::from_utf8(drawn).unwrap();
        let rest = drawn.strip_prefix("\x1b[2J").unwrap();
        for part in rest.split('\x1b').skip(1) {
            let (place, text) = part.split_once('H').unwrap();
            assert!(place.starts_with('[') && place.ends_with(";2"), "{place:?}");
            assert!(!text.contains(char::is_control), "{text:?}");
        }
        assert!(drawn.contains("press a"));
    }
}
