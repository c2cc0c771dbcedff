//! Answering on the terminal of an interactive run: when the prompt is there, and what is done with
//! what is typed at it.
//!
//! While it is, nothing of the cage's is read: its output waits in its terminal, and so, when that
//! is full, does the cage. What is typed goes to the prompt alone.

use crate::RunError;
use crate::leases::RequestOutcome;
use crate::permission_requests::Answerer;
use crate::supervise::Supervision;
use ironcage_control::{ApproveRequest, PermissionRequestDescription};
use ironcage_sys::rustix::io::read;
use ironcage_sys::rustix::stdio;
use ironcage_terminal::prompt::{
    Choice, Pressed, Prompt, enter, fits, leave, notice, notice_over, stopped,
};
use ironcage_terminal::relay::Relay;
use ironcage_terminal::{copy_size, copy_smaller_size, size, status_line};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long a full-screen agent may take to notice another size.
const NOTICES: Duration = Duration::from_secs(5);
/// How long it has at least.
const A_MOMENT: Duration = Duration::from_millis(300);
/// How long after the agent drew the status line is drawn again.
const REDRAWN: Duration = Duration::from_millis(100);

/// The prompt of one run, and what is left of the last.
#[derive(Debug, Default)]
pub(crate) struct Prompting {
    open: Option<Prompt>,
    /// Up to which question it was told that one waits.
    told: u32,
    /// Whether the notice stands in the window's title.
    noticed: bool,
    /// Since when the agent was told of a smaller size, to have it draw anew.
    smaller: Option<Instant>,
    /// Whether it has drawn since.
    drew: bool,
    /// The status line that is shown.
    status: Option<StatusLine>,
}

/// The line in the last row that tells of a permission request.
#[derive(Debug)]
struct StatusLine {
    text: String,
    /// When it is drawn again, because the agent has drawn since.
    again: Option<Instant>,
}

impl Prompting {
    /// Whether the prompt is there.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// When something is to be done next.
    pub(crate) fn next(&self) -> Option<Instant> {
        if self.open.is_some() {
            return None;
        }
        let since = self.smaller;
        let size = since.map(|since| since + if self.drew { A_MOMENT } else { NOTICES });
        let status = self.status.as_ref().and_then(|status| status.again);
        [size, status].into_iter().flatten().min()
    }

    /// The agent has drawn something.
    pub(crate) fn drew(&mut self) {
        self.drew |= self.smaller.is_some() && self.open.is_none();
        if let Some(status) = &mut self.status {
            status.again.get_or_insert_with(|| Instant::now() + REDRAWN);
        }
    }
}

impl Supervision<'_> {
    /// Does what is due: tells of questions, opens the prompt, closes one that is answered.
    pub(crate) fn look_at_prompt(&mut self, now: Instant) {
        let Some(chord) = self.input.as_mut().and_then(|input| input.call()) else {
            return;
        };
        let waiting = self.permission_requests.describe(now);
        chord.arm(!waiting.is_empty());
        let called = chord.take();
        match &self.prompting.open {
            Some(prompt)
                if waiting
                    .iter()
                    .all(|one| one.question.number != prompt.number) =>
            {
                match waiting.first() {
                    Some(next) => {
                        let number = next.question.number;
                        if let Some(prompt) = &mut self.prompting.open {
                            prompt.replace_by(number, now);
                        }
                        self.draw_prompt(now);
                    }
                    None => self.close_prompt(now),
                }
            }
            Some(_) => {}
            None if called => self.open_prompt(&waiting, now),
            None => self.tell_of_questions(&waiting),
        }
        if self.prompting.next().is_none_or(|at| now < at) {
            return;
        }
        let since = self.prompting.smaller;
        let enough = if self.prompting.drew {
            A_MOMENT
        } else {
            NOTICES
        };
        if since.is_some_and(|since| now >= since + enough) {
            self.prompting.smaller = None;
            self.fit_terminal();
        } else {
            self.draw_status();
        }
    }

    /// Gives the cage's terminal the size of the user's, without the row of the status line.
    pub(crate) fn fit_terminal(&mut self) {
        if let Some(own) = &self.terminal {
            match self.prompting.status {
                Some(_) => copy_smaller_size(own.controller.as_fd()),
                None => copy_size(own.controller.as_fd()),
            }
        }
        self.draw_status();
    }

    fn draw_status(&mut self) {
        if self.prompting.is_open() {
            return;
        }
        let Some(status) = &mut self.prompting.status else {
            return;
        };
        status.again = None;
        let drawn = status_line::draw(size(), &status.text);
        self.inject(&drawn);
    }

    fn show_status(&mut self, text: String) {
        if self.terminal.is_none() {
            return;
        }
        let before = self.outputs.first().map(Relay::screen).unwrap_or_default();
        let shown = self.prompting.status.is_some();
        self.prompting.status = Some(StatusLine {
            text: text.clone(),
            again: None,
        });
        if shown {
            self.draw_status();
        } else {
            self.inject(&status_line::show(before, size(), &text));
            self.fit_terminal();
        }
    }

    /// Takes the status line away: no request waits, or the screen is somebody else's.
    pub(crate) fn hide_status(&mut self) {
        if self.prompting.status.take().is_some() {
            self.inject(&status_line::hide(size()));
            self.fit_terminal();
        }
    }

    fn inject(&mut self, bytes: &[u8]) {
        let passed = self.outputs.first_mut();
        if passed.is_some_and(|shown| shown.inject(bytes)) || self.terminal.is_none() {
            return;
        }
        // The cage's terminal has come to its end, and the user's still shows the status line.
        // A terminal that takes nothing any more has nobody before it.
        let _ = io::stdout()
            .write_all(bytes)
            .and_then(|()| io::stdout().flush());
    }

    fn tell_of_questions(&mut self, waiting: &[PermissionRequestDescription]) {
        let Some(leases) = &self.plan.leases else {
            return;
        };
        let asked = self.permission_requests.asked();
        let key = leases.questions.key.to_string();
        // The key first: a narrow terminal cuts the end off.
        let text = waiting.first().map(|first| {
            let what = &first.question.resource;
            match waiting.len() {
                1 => format!("ironcage: press {key} to answer: the cage asks for {what}"),
                more => format!(
                    "ironcage: press {key} to answer: the cage asks for {what} and {} more",
                    more - 1
                ),
            }
        });
        let shown = self.prompting.status.as_ref().map(|status| &status.text);
        if text.as_ref() != shown {
            match text {
                Some(text) => self.show_status(text),
                None => self.hide_status(),
            }
        }
        if !waiting.is_empty() && asked > self.prompting.told {
            self.prompting.told = asked;
            if !std::mem::replace(&mut self.prompting.noticed, true) {
                self.inject(&notice(&key));
            } else {
                self.inject(b"\x07");
            }
        }
        if waiting.is_empty() && std::mem::take(&mut self.prompting.noticed) {
            self.inject(&notice_over());
        }
    }

    /// Tells who sits before the cage that it was stopped, and how it goes on. Of a cage in the
    /// background `ironcage lease list` and the record tell.
    pub(crate) fn tell_of_freeze(&mut self) {
        if self.output.is_logged() {
            return;
        }
        let id = self.control.id();
        let text = format!(
            "ironcage: what the cage did differs from what its model said, so it was stopped: look with `ironcage lease list -f {id}`, then `ironcage resume {id}` or `ironcage stop {id}`"
        );
        match self.terminal.is_some() {
            true => {
                let shown = self.outputs.first().map(Relay::screen);
                let mut before = shown.unwrap_or_default();
                before.alternate |= self.prompting.open.is_some();
                self.inject(&stopped(before, &text));
            }
            false => {
                if let Some(errors) = self.outputs.get_mut(1) {
                    errors.inject(format!("{text}\n").as_bytes());
                }
            }
        }
    }

    pub(crate) fn tell_of_thaw(&mut self) {
        if self.terminal.is_some() {
            self.inject(&notice_over());
        }
    }

    fn open_prompt(&mut self, waiting: &[PermissionRequestDescription], now: Instant) {
        let (Some(first), Some(shown)) = (waiting.first(), self.outputs.first_mut()) else {
            return;
        };
        let before = shown.screen();
        shown.hold(true);
        shown.inject(&enter(before));
        self.prompting.open = Some(Prompt::new(first.question.number, before));
        // The prompt has the whole screen, and resets the margins.
        self.prompting.status = None;
        if let (true, Some(own)) = (before.alternate, &self.terminal) {
            // A full-screen agent draws anew when its size changes. It changes now, and back when
            // the prompt is gone: by then it has seen it.
            copy_smaller_size(own.controller.as_fd());
            self.prompting.smaller = Some(now);
            self.prompting.drew = false;
        }
        self.draw_prompt(now);
    }

    /// Gives the screen back to the agent.
    pub(crate) fn close_prompt(&mut self, now: Instant) {
        let Some(prompt) = self.prompting.open.take() else {
            return;
        };
        self.inject(&leave(prompt.before));
        if let Some(shown) = self.outputs.first_mut() {
            shown.hold(false);
        }
        let waiting = self.permission_requests.describe(now);
        self.prompting.told = self.permission_requests.asked();
        // The screen as it was kept has the line.
        self.inject(&status_line::hide(size()));
        self.tell_of_questions(&waiting);
        if self.prompting.smaller.is_none() {
            self.fit_terminal();
        }
    }

    /// Shows the prompt as it is now, such as on a screen of another size.
    pub(crate) fn draw_prompt(&mut self, now: Instant) {
        let waiting = self.permission_requests.describe(now);
        let Some(prompt) = &self.prompting.open else {
            return;
        };
        let place = waiting
            .iter()
            .position(|one| one.question.number == prompt.number);
        let Some((index, described)) = place.and_then(|at| Some((at, waiting.get(at)?))) else {
            return;
        };
        let drawn = prompt.draw(described, (index, waiting.len()), size());
        self.inject(&drawn);
    }

    /// Whether a question can be read as a whole: what is not seen is not approved.
    fn prompt_fits(&self, number: u32, now: Instant) -> bool {
        let waiting = self.permission_requests.describe(now);
        let mut found = waiting.iter().filter(|one| one.question.number == number);
        found.next().is_some_and(|one| fits(one, size()))
    }

    fn turn_prompt(&mut self, number: u32, now: Instant) {
        if let Some(prompt) = &mut self.prompting.open {
            prompt.turn_to(number);
        }
        self.draw_prompt(now);
    }

    /// Takes what was typed at the prompt.
    pub(crate) fn hear_prompt(&mut self, now: Instant) -> Result<(), RunError> {
        let mut typed = [0; 256];
        let count = read(stdio::stdin(), &mut typed).unwrap_or(0);
        let typed = typed.get(..count).unwrap_or_default();
        let Some(prompt) = &mut self.prompting.open else {
            return Ok(());
        };
        if typed.is_empty() {
            // The terminal is gone, or has nothing to say after all.
            self.close_prompt(now);
            return Ok(());
        }
        let number = prompt.number;
        match prompt.press(typed, now) {
            Pressed::Nothing => self.draw_prompt(now),
            Pressed::Leave => self.close_prompt(now),
            Pressed::Next => {
                let waiting = self.permission_requests.describe(now);
                let mut numbers = waiting.iter().map(|one| one.question.number);
                let next = numbers.clone().find(|other| *other > number);
                if let Some(next) = next.or(numbers.next()) {
                    self.turn_prompt(next, now);
                }
            }
            Pressed::Answer(Choice::Deny) => self.deny(Answerer::Terminal, number, "", now)?,
            Pressed::Answer(_) if !self.prompt_fits(number, now) => {
                if let Some(prompt) = &mut self.prompting.open {
                    let reason = "it is too long for this screen";
                    prompt.note = format!("{reason}: answer with ironcage approve");
                }
                self.draw_prompt(now);
            }
            Pressed::Answer(choice) => {
                let waiting = self.permission_requests.describe(now);
                let asked = waiting
                    .into_iter()
                    .find(|one| one.question.number == number);
                let request = ApproveRequest {
                    number,
                    term: None,
                    uses: (choice == Choice::Once).then_some(1),
                };
                self.approve(Answerer::Terminal, &request, now)?;
                if let Some(asked) = asked.filter(|_| choice == Choice::Always) {
                    self.make_permanent(&asked);
                }
            }
        }
        self.sign_of_life(now);
        Ok(())
    }

    /// Writes what was approved to the user's policy.
    fn make_permanent(&mut self, asked: &PermissionRequestDescription) {
        let Some(permanent) = self.permanent else {
            return;
        };
        if let Err(error) = permanent(self.control.id(), asked) {
            match &mut self.prompting.open {
                Some(prompt) => prompt.note = error.to_string(),
                // It was the last one: there is no prompt to say it on.
                None => self.inject(format!("\r\nironcage: {error}\r\n").as_bytes()),
            }
        }
    }

    /// What came of an answer that was given at the prompt.
    pub(crate) fn note_on_prompt(&mut self, outcome: &RequestOutcome) {
        if let (Some(prompt), RequestOutcome::Denied { reason }) =
            (&mut self.prompting.open, outcome)
        {
            prompt.note = format!("the last one was not opened: {reason}");
        }
    }
}
