//! Answering on the terminal of an interactive run: when the prompt is there, and what is done with
//! what is typed at it.
//!
//! While it is, nothing of the cage's is read: its output waits in its terminal, and so, when that
//! is full, does the cage. What is typed goes to the prompt alone.

use crate::RunError;
use crate::leases::LeaseOutcome;
use crate::questions::Answerer;
use crate::relay::Relay;
use crate::supervise::Supervision;
use crate::terminal::prompt::{
    Choice, Pressed, Prompt, enter, fits, leave, notice, notice_over, stopped,
};
use crate::terminal::{copy_size, copy_smaller_size, size};
use ironcage_control::{ApproveRequest, QuestionDescription};
use ironcage_sys::rustix::io::read;
use ironcage_sys::rustix::stdio;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long a full-screen agent may take to notice another size.
const NOTICES: Duration = Duration::from_secs(5);
/// How long it has at least.
const A_MOMENT: Duration = Duration::from_millis(300);

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
}

impl Prompting {
    /// Whether the prompt is there.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// When something is to be done next.
    pub(crate) fn next(&self) -> Option<Instant> {
        let since = self.smaller.filter(|_| self.open.is_none())?;
        Some(since + if self.drew { A_MOMENT } else { NOTICES })
    }

    /// The agent has drawn something.
    pub(crate) fn drew(&mut self) {
        self.drew |= self.smaller.is_some() && self.open.is_none();
    }
}

impl Supervision<'_> {
    /// Does what is due: tells of questions, opens the prompt, closes one that is answered.
    pub(crate) fn look_at_prompt(&mut self, now: Instant) {
        let Some(chord) = self.input.as_mut().and_then(|input| input.call()) else {
            return;
        };
        let waiting = self.questions.describe(now);
        chord.arm(!waiting.is_empty());
        let called = chord.take();
        match &self.prompting.open {
            Some(prompt)
                if waiting
                    .iter()
                    .all(|one| one.question.number != prompt.number) =>
            {
                match waiting.first() {
                    Some(next) => self.turn_prompt(next.question.number, now),
                    None => self.close_prompt(now),
                }
            }
            Some(_) => {}
            None if called => self.open_prompt(&waiting, now),
            None => self.tell_of_questions(&waiting),
        }
        if self.prompting.next().is_some_and(|at| now >= at) {
            self.prompting.smaller = None;
            if let Some(own) = &self.terminal {
                copy_size(own.controller.as_fd());
            }
        }
    }

    fn inject(&mut self, bytes: &[u8]) {
        if let Some(shown) = self.outputs.first_mut() {
            shown.inject(bytes);
        }
    }

    fn tell_of_questions(&mut self, waiting: &[QuestionDescription]) {
        let Some(leases) = &self.plan.leases else {
            return;
        };
        let asked = self.questions.asked();
        if !waiting.is_empty() && asked > self.prompting.told {
            self.prompting.told = asked;
            if !std::mem::replace(&mut self.prompting.noticed, true) {
                self.inject(&notice(&leases.questions.key.to_string()));
            } else {
                self.inject(b"\x07");
            }
        }
        if waiting.is_empty() && std::mem::take(&mut self.prompting.noticed) {
            self.inject(&notice_over());
        }
    }

    /// Tells who sits before the cage that it was stopped, and how it goes on. Of a cage in the
    /// background `ironcage leases` and the record tell.
    pub(crate) fn tell_of_freeze(&mut self) {
        if self.output.is_logged() {
            return;
        }
        let id = &self.control.description.id;
        let text = format!(
            "ironcage: what the cage did differs from what its model said, so it was stopped: look with `ironcage leases -f {id}`, then `ironcage resume {id}` or `ironcage stop {id}`"
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

    /// It goes on.
    pub(crate) fn tell_of_thaw(&mut self) {
        if self.terminal.is_some() {
            self.inject(&notice_over());
        }
    }

    fn open_prompt(&mut self, waiting: &[QuestionDescription], now: Instant) {
        let (Some(first), Some(shown)) = (waiting.first(), self.outputs.first_mut()) else {
            return;
        };
        let before = shown.screen();
        shown.hold(true);
        shown.inject(&enter(before));
        self.prompting.open = Some(Prompt::new(first.question.number, before));
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
        let waiting = self.questions.describe(now);
        self.prompting.told = self.questions.asked();
        self.tell_of_questions(&waiting);
    }

    /// Shows the prompt as it is now, such as on a screen of another size.
    pub(crate) fn draw_prompt(&mut self, now: Instant) {
        let waiting = self.questions.describe(now);
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
        let waiting = self.questions.describe(now);
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
        match prompt.press(typed) {
            Pressed::Nothing => self.draw_prompt(now),
            Pressed::Leave => self.close_prompt(now),
            Pressed::Next => {
                let waiting = self.questions.describe(now);
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
                let request = ApproveRequest {
                    number,
                    term: None,
                    uses: (choice == Choice::Once).then_some(1),
                };
                self.approve(Answerer::Terminal, &request, now)?;
            }
        }
        self.limits.sign_of_life(now);
        Ok(())
    }

    /// What came of an answer that was given at the prompt.
    pub(crate) fn note_on_prompt(&mut self, outcome: &LeaseOutcome) {
        if let (Some(prompt), LeaseOutcome::Refused { reason }) =
            (&mut self.prompting.open, outcome)
        {
            prompt.note = format!("the last one was not opened: {reason}");
        }
    }
}
