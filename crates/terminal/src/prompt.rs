//! The prompt at which a person answers a permission request, on the terminal of an interactive
//! run.
//!
//! The screen is the supervisor's as long as the prompt is there: nothing of the cage's passes. An
//! answer takes two keys, each typed by itself: what comes in one piece was pasted, or is a report
//! of the terminal's, and is not an answer.

use ironcage_control::PermissionRequestDescription;
use ironcage_model::{Printable, Span, Term};
use ironcage_sys::rustix::termios::Winsize;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// How long a question that came up by itself has to be seen before it can be approved: keys for
/// the one before it may be under way.
const READING: Duration = Duration::from_secs(1);

/// How the terminal stood before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Before {
    /// The agent draws on the alternate screen.
    pub alternate: bool,
    /// The agent hides the cursor.
    pub no_cursor: bool,
}

/// What a person is about to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Yes.
    Approve,
    /// Yes, for one use.
    Once,
    /// Yes, and in every later run too.
    Always,
    Deny,
}

/// What comes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressed {
    /// Nothing, or something to be shown.
    Nothing,
    Answer(Choice),
    Next,
    /// Back to the agent.
    Leave,
}

/// A prompt that is on the screen.
#[derive(Debug)]
pub struct Prompt {
    /// The question that is shown.
    pub number: u32,
    /// How the terminal was before it was drawn.
    pub before: Before,
    chosen: Option<Choice>,
    /// Until when nothing is approved, because nobody called this question up.
    unread: Option<Instant>,
    /// What came of the last answer.
    pub note: String,
}

impl Prompt {
    /// A prompt for a permission request.
    pub fn new(number: u32, before: Before) -> Self {
        Prompt {
            number,
            before,
            chosen: None,
            unread: None,
            note: String::new(),
        }
    }

    /// Shows another question.
    pub fn turn_to(&mut self, number: u32) {
        self.number = number;
        self.chosen = None;
        self.unread = None;
    }

    /// Shows another question because the one that was shown is over.
    pub fn replace_by(&mut self, number: u32, now: Instant) {
        self.turn_to(number);
        self.unread = now.checked_add(READING);
    }

    /// Takes what was typed at once.
    pub fn press(&mut self, typed: &[u8], now: Instant) -> Pressed {
        let [key] = typed else {
            return Pressed::Nothing;
        };
        let chosen = self.chosen.take();
        let unread = self.unread.is_some_and(|until| now < until);
        match (key, chosen) {
            (b'a' | b'o' | b'w', _) if unread => {
                self.note = "another question took its place: read it first".into();
            }
            (b'\r' | b'\n', Some(choice)) => return Pressed::Answer(choice),
            (b'a', _) => self.chosen = Some(Choice::Approve),
            (b'o', _) => self.chosen = Some(Choice::Once),
            (b'w', _) => self.chosen = Some(Choice::Always),
            (b'd', _) => self.chosen = Some(Choice::Deny),
            (b'n', _) => return Pressed::Next,
            // Escape, Ctrl-C, and the word.
            (b'q' | 0x1b | 0x03, _) => return Pressed::Leave,
            _ => {}
        }
        Pressed::Nothing
    }

    /// The screen, drawn anew.
    pub fn draw(
        &self,
        described: &PermissionRequestDescription,
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
        described: &PermissionRequestDescription,
        (index, count): (usize, usize),
        width: usize,
    ) -> Vec<String> {
        let question = &described.question;
        let term = match question.term {
            Term::Milliseconds(time) => format!("for {}", Span(time)),
            Term::UntilRevoked => "for this run, unless the policy ends it earlier".to_owned(),
        };
        let approve = match question.term {
            Term::Milliseconds(time) => format!("a {}", Span(time)),
            Term::UntilRevoked => "a this run".to_owned(),
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
            format!("allow: o once   {approve}   w always   |   d deny   n next   q back"),
            match self.chosen {
                Some(Choice::Approve) => "approve it? press Enter".to_owned(),
                Some(Choice::Once) => "approve it for one use? press Enter".to_owned(),
                Some(Choice::Always) => {
                    "approve it, and write it to your policy? press Enter".to_owned()
                }
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
pub fn fits(described: &PermissionRequestDescription, size: Winsize) -> bool {
    let lines = wrapped(&described.question.resource.to_string(), width(size));
    lines.len() + 4 < usize::from(size.ws_row.max(4))
}

/// Takes the screen over: whatever the agent was in the middle of ends, and nothing that it has
/// set (colours, character sets, margins, a screen that is held back) changes what is drawn.
pub fn enter(before: Before) -> Vec<u8> {
    // A VT52, which obeys nothing of this, and the status line first: with `--raw-terminal` the agent
    // can ask for both. What is held back until the agent says so (2026) is shown, and margins at
    // the sides (69), which would cut off the end of a path, are gone.
    let mut out = String::from("\x18\x1b<\x1b\\\x1b[0$}\x1b[?2026l\x1b[?69l");
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
pub fn leave(before: Before) -> Vec<u8> {
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
pub fn notice(key: &str) -> Vec<u8> {
    format!("\x1b[22;2t\x1b]2;ironcage: the cage asks for something ({key} answers)\x07\x07")
        .into_bytes()
}

/// Tells that the cage was stopped for its user to look at: a bell, the window's title, which is
/// kept, and where no full-screen program is drawn, a line.
pub fn stopped(before: Before, text: &str) -> Vec<u8> {
    let line = match before.alternate {
        true => String::new(),
        false => String::from_utf8_lossy(&between_lines(text)).into_owned(),
    };
    format!("\x1b[22;2t\x1b]2;{text}\x07\x07{line}").into_bytes()
}

/// Lines of our own between what the command writes to the terminal.
pub fn between_lines(text: &str) -> Vec<u8> {
    format!("\x18\x1b\\\x1b[0m\r\n{text}\r\n").into_bytes()
}

/// Takes the notice back.
pub fn notice_over() -> Vec<u8> {
    b"\x1b[23;2t".to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::{LeaseOrigin, PermissionRequest, Resource, Right, Scope};

    fn described() -> PermissionRequestDescription {
        PermissionRequestDescription {
            question: PermissionRequest {
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
                code: None,
                announced: Some("/srv/\u{1b}[2Jdata/x".into()),
            },
            asked: 2,
            milliseconds_left: 1,
            untold: None,
        }
    }

    #[test]
    fn an_answer_takes_two_keys_that_come_by_themselves() {
        let now = Instant::now();
        let mut prompt = Prompt::new(3, Before::default());
        assert_eq!(prompt.press(b"a\r", now), Pressed::Nothing);
        assert_eq!(prompt.press(b"\r", now), Pressed::Nothing);
        assert_eq!(prompt.press(b"a", now), Pressed::Nothing);
        assert_eq!(prompt.press(b"x", now), Pressed::Nothing);
        assert_eq!(prompt.press(b"\r", now), Pressed::Nothing);
        assert_eq!(prompt.press(b"a", now), Pressed::Nothing);
        assert_eq!(prompt.press(b"\r", now), Pressed::Answer(Choice::Approve));
        assert_eq!(prompt.press(b"\r", now), Pressed::Nothing);
        assert_eq!(prompt.press(b"d", now), Pressed::Nothing);
        assert_eq!(prompt.press(b"\r", now), Pressed::Answer(Choice::Deny));
        assert_eq!(prompt.press(b"\x1b[A", now), Pressed::Nothing);
        assert_eq!(prompt.press(b"q", now), Pressed::Leave);
    }

    #[test]
    fn a_question_that_nobody_called_up_is_not_approved_by_keys_that_were_under_way() {
        let now = Instant::now();
        let mut prompt = Prompt::new(3, Before::default());
        assert_eq!(prompt.press(b"a", now), Pressed::Nothing);
        prompt.replace_by(4, now);
        for key in [b"\r", b"a", b"\r", b"o", b"\r"] {
            assert_eq!(prompt.press(key, now), Pressed::Nothing);
        }
        assert!(prompt.note.contains("read it first"));
        // No is said at once, and yes when it was there for a while.
        assert_eq!(prompt.press(b"d", now), Pressed::Nothing);
        assert_eq!(prompt.press(b"\r", now), Pressed::Answer(Choice::Deny));
        let later = now + READING;
        assert_eq!(prompt.press(b"a", later), Pressed::Nothing);
        assert_eq!(prompt.press(b"\r", later), Pressed::Answer(Choice::Approve));
    }

    #[test]
    fn nothing_that_the_agent_set_cuts_off_what_is_drawn() {
        for before in [false, true] {
            let before = Before {
                alternate: before,
                no_cursor: false,
            };
            let entered = String::from_utf8(enter(before)).unwrap();
            for reset in [
                "\x18\x1b<",
                "\x1b[0$}",
                "\x1b[?69l",
                "\x1b[?2026l",
                "\x1b[?6l",
                "\x1b[r",
                "\x1b(B\x0f",
            ] {
                assert!(entered.contains(reset), "{reset:?}");
            }
        }
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
