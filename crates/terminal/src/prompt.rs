//! The prompt at which a person answers a permission request, on the terminal of an interactive
//! run.
//!
//! The screen is the supervisor's as long as the prompt is there: nothing of the cage's passes.
//! One key is an answer. It has to come by itself, after a pause: what was typed before the prompt
//! could be read, a key that is held down, a paste and a report of the terminal are not answers
//! ([ADR 38](../../../docs/adr/0038-one-key-answers-after-a-pause.md)).

use ironcage_control::PermissionRequestDescription;
use ironcage_model::{Printable, Resource, Scope, Span, Term};
use ironcage_sys::rustix::termios::Winsize;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// How long a question that came up by itself has to be seen before it can be approved: keys for
/// the one before it may be under way.
const READING: Duration = Duration::from_secs(1);

/// How long nothing may have been typed before a key is an answer. Keys that are held down repeat
/// faster than this, and so do the parts of a paste or of a report that arrives in pieces.
const PAUSE: Duration = Duration::from_millis(400);

/// How the terminal stood before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Before {
    /// The agent draws on the alternate screen.
    pub alternate: bool,
    /// The agent hides the cursor.
    pub no_cursor: bool,
}

/// What a person says.
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
    /// The question that is shown: the number that its requests share.
    pub number: u32,
    /// How the terminal was before it was drawn.
    pub before: Before,
    /// When something was last typed, or what is shown began to be.
    quiet_since: Instant,
    /// Until when nothing is approved, because nobody called this question up.
    unread: Option<Instant>,
    /// What came of the last answer.
    pub note: String,
}

impl Prompt {
    /// A prompt for a question.
    pub fn new(number: u32, before: Before, now: Instant) -> Self {
        Prompt {
            number,
            before,
            quiet_since: now,
            unread: None,
            note: String::new(),
        }
    }

    /// Shows another question.
    pub fn turn_to(&mut self, number: u32, now: Instant) {
        self.number = number;
        self.quiet_since = now;
        self.unread = None;
    }

    /// Shows another question because the one that was shown is over.
    pub fn replace_by(&mut self, number: u32, now: Instant) {
        self.turn_to(number, now);
        self.unread = now.checked_add(READING);
    }

    /// Takes what was typed at once.
    pub fn press(&mut self, typed: &[u8], now: Instant) -> Pressed {
        let paused = now.saturating_duration_since(self.quiet_since) >= PAUSE;
        self.quiet_since = now;
        let [key] = typed else {
            return Pressed::Nothing;
        };
        let choice = match key {
            b'o' => Choice::Once,
            b'a' => Choice::Approve,
            b'w' => Choice::Always,
            b'd' => Choice::Deny,
            b'n' => return Pressed::Next,
            // Escape, Ctrl-C, and the word.
            b'q' | 0x1b | 0x03 => return Pressed::Leave,
            _ => return Pressed::Nothing,
        };
        let unread = self.unread.is_some_and(|until| now < until);
        if !paused {
            self.note = "that key came too early to be an answer: press it again".into();
        } else if unread && choice != Choice::Deny {
            self.note = "another question took its place: read it first".into();
        } else {
            return Pressed::Answer(choice);
        }
        Pressed::Nothing
    }

    /// The screen, drawn again. The requests are those of the question, of which there is at least
    /// one.
    pub fn draw(
        &self,
        requests: &[PermissionRequestDescription],
        place: (usize, usize),
        size: Winsize,
    ) -> Vec<u8> {
        let width = width(size);
        let mut lines = self.lines(requests, place, width);
        lines.truncate(usize::from(size.ws_row.max(4)));
        let mut out = String::from("\x1b[2J");
        for (row, line) in lines.iter().enumerate() {
            let shown: String = line.chars().take(width).collect();
            // A line of double width (`ESC # 6`) would lose its second half. Writing to a string
            // cannot fail.
            let row = row + 1;
            let _ = write!(out, "\x1b[{row};1H\x1b#5\x1b[{row};2H{shown}");
        }
        out.into_bytes()
    }

    fn lines(
        &self,
        requests: &[PermissionRequestDescription],
        (index, count): (usize, usize),
        width: usize,
    ) -> Vec<String> {
        let Some(described) = requests.first() else {
            return Vec::new();
        };
        let question = &described.question;
        let for_command = matches!(question.scope, Scope::Exec { .. });
        let time = match question.term {
            Term::Milliseconds(time) => Span(time).to_string(),
            Term::UntilRevoked => "this run".to_owned(),
        };
        let once = match for_command {
            true => "o once (this command)",
            false => "o once",
        };
        let longer = match is_key(requests) {
            true => String::new(),
            false => format!("   a {time}   w always"),
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
                question.answered_as(),
                index + 1
            ),
            format!("allow: {once}{longer}   |   d deny   n next   q back"),
            Printable::new(&self.note).to_string(),
            String::new(),
        ];
        // What is asked for is seen as a whole, however long its name is.
        lines.extend(resources(requests, width));
        lines.push(match question.term {
            _ if is_key(requests) => "for one use".to_owned(),
            Term::Milliseconds(time) => format!("for {}", Span(time)),
            Term::UntilRevoked if for_command => {
                "while the command runs; `a`: for each command of this run".to_owned()
            }
            Term::UntilRevoked => "for this run, unless the policy ends it earlier".to_owned(),
        });
        lines.push(String::new());
        if let Some(command) = &question.command {
            lines.push("the command, as the agent wrote it:".to_owned());
            let text = Printable::new(command).to_string();
            let rows = wrapped(&text, width.saturating_sub(2).max(1));
            lines.extend(rows.into_iter().map(|row| format!("  {row}")));
        }
        lines.push(format!(
            "asked for by {}{often}; said inside:",
            question.origin.name()
        ));
        lines.push(format!("  {reason}"));
        let announced = requests
            .iter()
            .filter_map(|one| one.question.announced.as_ref());
        for named in announced {
            lines.push(format!("the model's words named {}", Printable::new(named)));
        }
        lines.push(Printable::new(&question.because).to_string());
        lines
    }
}

/// What is asked for, each as a whole.
fn resources(requests: &[PermissionRequestDescription], width: usize) -> Vec<String> {
    let named = |one: &PermissionRequestDescription| one.question.resource.to_string();
    match requests {
        [one] => wrapped(&named(one), width),
        several => several
            .iter()
            .enumerate()
            .flat_map(|(at, one)| wrapped(&format!("{}. {}", at + 1, named(one)), width))
            .collect(),
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

/// Whether a question is about a key, which is approved for one use at a time.
pub fn is_key(requests: &[PermissionRequestDescription]) -> bool {
    let mut resources = requests.iter().map(|request| &request.question.resource);
    resources.any(|resource| matches!(resource, Resource::Key { .. }))
}

/// Whether what is asked for can be seen as a whole on a screen of this size.
pub fn fits(requests: &[PermissionRequestDescription], size: Winsize) -> bool {
    let lines = resources(requests, width(size));
    lines.len() + 4 < usize::from(size.ws_row.max(4))
}

/// Takes the screen over: whatever the agent was in the middle of ends, and nothing that it has
/// set (colours, character sets, margins, a screen that is held back) changes what is drawn.
pub fn enter(before: Before) -> Vec<u8> {
    // A VT52, which obeys nothing of this, and the status line first: with `--raw-terminal` the agent
    // can ask for both. What is held back until the agent says so (2026) is shown, and margins at
    // the sides (69), which would cut off the end of a path, are gone.
    // Text that the agent protected from being erased (`ESC V`) is erased like any other (`"q`).
    let mut out = String::from("\x18\x1b<\x1b\\\x1b[0$}\x1b[?2026l\x1b[?69l\x1b[0\"q");
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
    use ironcage_model::{LeaseOrigin, PermissionRequest, Resource, Right};

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
                command: Some("cat \u{1b}[2J\u{202e}x\n\nironcage: question 9".into()),
                group: Some(3),
            },
            asked: 2,
            milliseconds_left: 1,
            untold: None,
        }
    }

    #[test]
    fn an_answer_is_one_key_that_comes_by_itself_after_a_pause() {
        let shown = Instant::now();
        let after = |pauses: u32| shown + PAUSE * pauses;
        for (key, choice) in [
            (b"o", Choice::Once),
            (b"a", Choice::Approve),
            (b"w", Choice::Always),
            (b"d", Choice::Deny),
        ] {
            let mut prompt = Prompt::new(3, Before::default(), shown);
            assert_eq!(prompt.press(key, after(1)), Pressed::Answer(choice));
        }
        let mut prompt = Prompt::new(3, Before::default(), shown);
        // Typed before it could be read; and held down, or one byte of many.
        let soon = shown + PAUSE / 2;
        assert_eq!(prompt.press(b"a", soon), Pressed::Nothing);
        assert!(prompt.note.contains("too early"));
        assert_eq!(prompt.press(b"a", after(1)), Pressed::Nothing);
        // Pasted, or a report of the terminal; and what comes right behind it.
        for piece in [&b"a\r"[..], b"\x1b[A", b"aaaa", b"\x1b[M aa"] {
            assert_eq!(prompt.press(piece, after(3)), Pressed::Nothing);
            assert_eq!(prompt.press(b"a", after(3) + PAUSE / 2), Pressed::Nothing);
        }
        assert_eq!(prompt.press(b"\r", after(5)), Pressed::Nothing);
        assert_eq!(
            prompt.press(b"a", after(6)),
            Pressed::Answer(Choice::Approve)
        );
        assert_eq!(prompt.press(b"q", after(6)), Pressed::Leave);
    }

    #[test]
    fn a_question_that_nobody_called_up_is_not_approved_by_keys_that_were_under_way() {
        let now = Instant::now();
        let mut prompt = Prompt::new(3, Before::default(), now);
        prompt.replace_by(4, now);
        let within = now + READING - Duration::from_millis(1);
        for key in [b"a", b"o", b"w"] {
            prompt.quiet_since = now;
            assert_eq!(prompt.press(key, within), Pressed::Nothing);
        }
        assert!(prompt.note.contains("read it first"));
        // No is said after the pause, and yes when it was there for a while.
        prompt.quiet_since = now;
        assert_eq!(prompt.press(b"d", within), Pressed::Answer(Choice::Deny));
        let later = now + READING + PAUSE;
        assert_eq!(prompt.press(b"a", later), Pressed::Answer(Choice::Approve));
    }

    #[test]
    fn every_need_of_a_command_and_the_command_are_shown() {
        let mut second = described();
        second.question.number = 4;
        second.question.resource = Resource::Path {
            path: "/opt/other".into(),
            right: Right::Read,
        };
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let prompt = Prompt::new(3, Before::default(), Instant::now());
        let both = [described(), second];
        let drawn = String::from_utf8(prompt.draw(&both, (0, 1), size)).unwrap();
        for shown in [
            "1. ",
            "2. ",
            "/opt/other",
            "the command, as the agent wrote it",
        ] {
            assert!(drawn.contains(shown), "{shown}: {drawn}");
        }
        assert!(!drawn.contains('\u{202e}'), "{drawn:?}");
        let many = vec![described(); 21];
        assert!(fits(&both, size) && !fits(&many, size));
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
                "\x1b[0\"q",
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
        assert!(fits(&[described.clone()], size(24, 80)));
        let path = format!("/srv/{}end", "x".repeat(300));
        described.question.resource = Resource::Path {
            path: path.clone(),
            right: Right::Read,
        };
        let described = [described];
        assert!(fits(&described, size(24, 80)) && !fits(&described, size(8, 80)));
        let prompt = Prompt::new(3, Before::default(), Instant::now());
        let drawn = prompt.draw(&described, (0, 1), size(24, 80));
        let drawn = String::from_utf8(drawn).unwrap();
        let shown: String = drawn
            .split('\x1b')
            .filter_map(|part| part.split_once('H').map(|(_, text)| text))
            .collect();
        assert!(shown.contains(&path), "{shown}");
    }

    #[test]
    fn nothing_that_was_said_inside_acts_on_the_screen() {
        let prompt = Prompt::new(3, Before::default(), Instant::now());
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let drawn = prompt.draw(&[described()], (0, 1), size);
        let drawn = String::from_utf8(drawn).unwrap();
        let rest = drawn.strip_prefix("\x1b[2J").unwrap();
        let parts = rest.split('\x1b').skip(1);
        for part in parts.filter(|part| *part != "#5") {
            let (place, text) = part.split_once('H').unwrap();
            let is_place = place.ends_with(";2") || place.ends_with(";1") && text.is_empty();
            assert!(place.starts_with('[') && is_place, "{place:?}");
            assert!(!text.contains(char::is_control), "{text:?}");
        }
        assert!(drawn.contains("press a"));
    }
}
