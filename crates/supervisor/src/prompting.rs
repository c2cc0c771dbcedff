//! The prompt on the terminal of an interactive run: when it opens, and what typed keys do.
//!
//! While the prompt is open, the supervisor reads nothing of the cage's: output waits in the cage's
//! terminal, and when that is full, so does the cage. Typed keys go to the prompt alone.
//!
//! A part of the supervisor: it owns the prompt and the status line, and returns effects.

use crate::RunError;
use crate::effects::Effect;
use crate::permission_requests::Answerer;
use crate::supervise::Supervision;
use ironcage_control::{ApproveRequest, PermissionRequestDescription};
use ironcage_model::{CageId, Reason, RequestOutcome, Scope};
use ironcage_sys::rustix::io::read;
use ironcage_sys::rustix::stdio;
use ironcage_sys::rustix::termios::Winsize;
use ironcage_terminal::prompt::{
    Before, Choice, Pressed, Prompt, enter, fits, is_key, leave, notice, notice_over, stopped,
};
use ironcage_terminal::{size, status_line};
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
    /// The last permission request that the user was notified of.
    told: u32,
    /// Whether the notice is in the window's title.
    noticed: bool,
    /// Since when the agent has had a smaller size, which makes it draw again.
    smaller: Option<Instant>,
    /// Whether it has drawn since.
    drew: bool,
    status: Option<StatusLine>,
    /// What becomes a rule once the approval of the request with this number has an effect.
    permanent: Option<(u32, Vec<PermissionRequestDescription>)>,
}

/// The last row of the terminal while a permission request is pending.
#[derive(Debug)]
struct StatusLine {
    text: String,
    /// When to draw it again, because the agent has drawn since.
    again: Option<Instant>,
}

pub(crate) enum PromptEvent<'a> {
    Tick {
        /// The user pressed the key of the prompt.
        called: bool,
    },
    Resized,
    Typed(&'a [u8]),
    /// The command stops or ends: the screen goes back to the agent, without a status line.
    Close,
    /// The supervisor froze the cage, and tells its user.
    Frozen(&'a str),
    Thawed,
}

pub(crate) struct PromptFacts<'a> {
    pub(crate) waiting: &'a [PermissionRequestDescription],
    /// Permission requests so far.
    pub(crate) asked: u32,
    /// The key that opens the prompt.
    pub(crate) key: Option<String>,
    /// Whether the command has a terminal.
    pub(crate) terminal: bool,
    /// What the agent has on the screen.
    pub(crate) screen: Before,
    pub(crate) size: Winsize,
    pub(crate) now: Instant,
}

impl PromptFacts<'_> {
    /// The questions that wait: each by the number that its requests share.
    fn questions(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = Vec::new();
        for one in self.waiting {
            let number = one.question.answered_as();
            if !numbers.contains(&number) {
                numbers.push(number);
            }
        }
        numbers
    }
}

/// The requests of one question.
fn of_question(
    waiting: &[PermissionRequestDescription],
    number: u32,
) -> Vec<PermissionRequestDescription> {
    let requests = waiting.iter();
    let requests = requests.filter(|one| one.question.answered_as() == number);
    requests.cloned().collect()
}

impl Prompting {
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        if self.open.is_some() {
            return None;
        }
        let status = self.status.as_ref().and_then(|status| status.again);
        [self.size_due(), status].into_iter().flatten().min()
    }

    fn size_due(&self) -> Option<Instant> {
        let wait = if self.drew { A_MOMENT } else { NOTICES };
        self.smaller.map(|since| since + wait)
    }

    /// The agent has drawn something.
    pub(crate) fn drew(&mut self, now: Instant) {
        self.drew |= self.smaller.is_some() && self.open.is_none();
        if let Some(status) = &mut self.status {
            status.again.get_or_insert(now + REDRAWN);
        }
    }

    pub(crate) fn handle(
        &mut self,
        event: PromptEvent<'_>,
        facts: &PromptFacts<'_>,
    ) -> Vec<Effect> {
        match event {
            PromptEvent::Tick { called } => self.tick(called, facts),
            PromptEvent::Resized => {
                let mut effects = self.fit(facts);
                effects.extend(self.draw(facts));
                effects
            }
            PromptEvent::Typed(typed) => self.typed(typed, facts),
            PromptEvent::Close => {
                let mut effects = self.close(facts);
                effects.extend(self.hide_status(facts));
                effects
            }
            PromptEvent::Frozen(text) => {
                let mut before = facts.screen;
                before.alternate |= self.open.is_some();
                vec![Effect::ShowOnTerminal(stopped(before, text))]
            }
            PromptEvent::Thawed => vec![Effect::ShowOnTerminal(notice_over())],
        }
    }

    fn tick(&mut self, called: bool, facts: &PromptFacts<'_>) -> Vec<Effect> {
        let mut effects = match &mut self.open {
            Some(prompt) if !facts.questions().contains(&prompt.number) => {
                match facts.questions().first() {
                    Some(next) => {
                        prompt.replace_by(*next, facts.now);
                        self.draw(facts)
                    }
                    None => self.close(facts),
                }
            }
            Some(_) => Vec::new(),
            None if called => self.open(facts),
            None => self.notify(facts),
        };
        if self.next().is_none_or(|at| facts.now < at) {
            return effects;
        }
        if self.size_due().is_some_and(|at| facts.now >= at) {
            self.smaller = None;
            effects.extend(self.fit(facts));
        } else {
            effects.extend(self.draw_status(facts));
        }
        effects
    }

    /// Gives the cage's terminal the size of the user's, without the row of the status line.
    fn fit(&mut self, facts: &PromptFacts<'_>) -> Vec<Effect> {
        let smaller = self.status.is_some();
        let mut effects = vec![Effect::FitTerminal { smaller }];
        effects.extend(self.draw_status(facts));
        effects
    }

    fn draw_status(&mut self, facts: &PromptFacts<'_>) -> Option<Effect> {
        if self.open.is_some() {
            return None;
        }
        let status = self.status.as_mut()?;
        status.again = None;
        let drawn = status_line::draw(facts.size, &status.text);
        Some(Effect::ShowOnTerminal(drawn))
    }

    fn show_status(&mut self, text: String, facts: &PromptFacts<'_>) -> Vec<Effect> {
        if !facts.terminal {
            return Vec::new();
        }
        let first = status_line::show(facts.screen, facts.size, &text);
        let shown = self.status.replace(StatusLine { text, again: None });
        if shown.is_some() {
            return self.draw_status(facts).into_iter().collect();
        }
        let mut effects = vec![Effect::ShowOnTerminal(first)];
        effects.extend(self.fit(facts));
        effects
    }

    fn hide_status(&mut self, facts: &PromptFacts<'_>) -> Vec<Effect> {
        if self.status.take().is_none() {
            return Vec::new();
        }
        let mut effects = vec![Effect::ShowOnTerminal(status_line::hide(facts.size))];
        effects.extend(self.fit(facts));
        effects
    }

    /// Shows that a permission request is pending, or that none is any more.
    fn notify(&mut self, facts: &PromptFacts<'_>) -> Vec<Effect> {
        let Some(key) = &facts.key else {
            return Vec::new();
        };
        // The key first: a narrow terminal cuts the end off.
        let text = facts.waiting.first().map(|first| {
            let what = &first.question.resource;
            let number = first.question.answered_as();
            let what = match of_question(facts.waiting, number).len() {
                0 | 1 => what.to_string(),
                needs => format!("{needs} things for one command: {what}, ..."),
            };
            match facts.questions().len() {
                1 => format!("ironcage: press {key} to answer: the cage asks for {what}"),
                more => format!(
                    "ironcage: press {key} to answer {more} questions: the cage asks for {what}"
                ),
            }
        });
        let shown = self.status.as_ref().map(|status| &status.text);
        let mut effects = match text {
            same if same.as_ref() == shown => Vec::new(),
            Some(text) => self.show_status(text, facts),
            None => self.hide_status(facts),
        };
        if !facts.waiting.is_empty() && facts.asked > self.told {
            self.told = facts.asked;
            let shown = match std::mem::replace(&mut self.noticed, true) {
                false => notice(key),
                true => b"\x07".to_vec(),
            };
            effects.push(Effect::ShowOnTerminal(shown));
        }
        if facts.waiting.is_empty() && std::mem::take(&mut self.noticed) {
            effects.push(Effect::ShowOnTerminal(notice_over()));
        }
        effects
    }

    fn open(&mut self, facts: &PromptFacts<'_>) -> Vec<Effect> {
        let Some(first) = facts.waiting.first() else {
            return Vec::new();
        };
        let before = facts.screen;
        let mut effects = vec![
            Effect::HoldOutput(true),
            Effect::ShowOnTerminal(enter(before)),
        ];
        let number = first.question.answered_as();
        self.open = Some(Prompt::new(number, before, facts.now));
        // The prompt has the whole screen, and resets the margins.
        self.status = None;
        if before.alternate && facts.terminal {
            // A full-screen agent draws again when its size changes. It changes now, and back when
            // the prompt closes: by then the agent has noticed.
            effects.push(Effect::FitTerminal { smaller: true });
            self.smaller = Some(facts.now);
            self.drew = false;
        }
        effects.extend(self.draw(facts));
        effects
    }

    /// Gives the screen back to the agent.
    fn close(&mut self, facts: &PromptFacts<'_>) -> Vec<Effect> {
        let Some(prompt) = self.open.take() else {
            return Vec::new();
        };
        self.told = facts.asked;
        let mut effects = vec![
            Effect::ShowOnTerminal(leave(prompt.before)),
            Effect::HoldOutput(false),
            // The restored screen still has the status line of before.
            Effect::ShowOnTerminal(status_line::hide(facts.size)),
        ];
        effects.extend(self.notify(facts));
        if self.smaller.is_none() {
            effects.extend(self.fit(facts));
        }
        effects
    }

    fn draw(&self, facts: &PromptFacts<'_>) -> Vec<Effect> {
        let Some(prompt) = &self.open else {
            return Vec::new();
        };
        let questions = facts.questions();
        let Some(index) = questions.iter().position(|one| *one == prompt.number) else {
            return Vec::new();
        };
        let requests = of_question(facts.waiting, prompt.number);
        let drawn = prompt.draw(&requests, (index, questions.len()), facts.size);
        vec![Effect::ShowOnTerminal(drawn)]
    }

    fn typed(&mut self, typed: &[u8], facts: &PromptFacts<'_>) -> Vec<Effect> {
        let Some(prompt) = &mut self.open else {
            return Vec::new();
        };
        if typed.is_empty() {
            // The terminal is gone, or had nothing to read.
            return self.close(facts);
        }
        let number = prompt.number;
        match prompt.press(typed, facts.now) {
            Pressed::Nothing => {}
            Pressed::Leave => return self.close(facts),
            Pressed::Next => {
                let questions = facts.questions();
                let next = questions.iter().find(|other| **other > number);
                if let Some(next) = next.or(questions.first()) {
                    prompt.turn_to(*next, facts.now);
                }
            }
            // What the user cannot read as a whole, they do not approve.
            Pressed::Answer(choice)
                if choice != Choice::Deny
                    && !fits(&of_question(facts.waiting, number), facts.size) =>
            {
                let reason = "it is too long for this screen";
                prompt.note = format!("{reason}: answer with ironcage approve");
            }
            Pressed::Answer(Choice::Approve | Choice::Always)
                if is_key(&of_question(facts.waiting, number)) =>
            {
                prompt.note = "a key is approved for one use at a time: press o".into();
            }
            Pressed::Answer(choice) => return vec![Effect::AnswerAtPrompt { number, choice }],
        }
        self.draw(facts)
    }

    /// A line for each question that nobody was told of yet, where there is no terminal to answer
    /// it on.
    fn waiting_lines(
        &mut self,
        cage: &CageId,
        waiting: &[PermissionRequestDescription],
    ) -> Vec<String> {
        let mut lines = Vec::new();
        for one in waiting {
            let number = one.question.answered_as();
            if number <= self.told {
                continue;
            }
            self.told = number;
            let resource = &one.question.resource;
            lines.push(format!(
                "ironcage: waiting for your answer: the cage asks for {resource}; \
                 `ironcage approve {cage}/{number}` or `ironcage deny {cage}/{number}`"
            ));
        }
        lines
    }

    /// An approved request could not be opened.
    pub(crate) fn note_denial(&mut self, reason: &Reason) {
        if let Some(prompt) = &mut self.open {
            prompt.note = format!("the last one was not opened: {reason}");
        }
    }

    /// The requests that become rules, now that an answer has had this outcome.
    fn take_permanent(
        &mut self,
        number: u32,
        outcome: &RequestOutcome,
    ) -> Vec<PermissionRequestDescription> {
        let answered = self.permanent.take_if(|(answered, _)| *answered == number);
        match (outcome, answered) {
            (RequestOutcome::Granted(_), Some((_, requests))) => requests,
            _ => Vec::new(),
        }
    }

    /// An approval could not be written to the policy.
    fn note_not_permanent(&mut self, error: &str) -> Option<Effect> {
        match &mut self.open {
            Some(prompt) => {
                prompt.note = error.to_owned();
                None
            }
            // It was the last one: there is no prompt to show it on.
            None => Some(Effect::ShowOnTerminal(
                format!("\r\nironcage: {error}\r\n").into_bytes(),
            )),
        }
    }
}

impl Supervision<'_> {
    pub(crate) fn prompt_event(
        &mut self,
        event: PromptEvent<'_>,
        now: Instant,
    ) -> Result<(), RunError> {
        let terms = self.plan.request_terms();
        let facts = PromptFacts {
            waiting: &self.permission_requests.describe(now),
            asked: self.permission_requests.asked(),
            key: terms.map(|terms| terms.key.to_string()),
            terminal: self.streams.has_terminal(),
            screen: self.streams.screen(),
            size: size(),
            now,
        };
        let effects = self.prompting.handle(event, &facts);
        self.apply(effects, now)
    }

    /// Does what is due, where the terminal has a key for the prompt.
    pub(crate) fn look_at_prompt(&mut self, now: Instant) -> Result<(), RunError> {
        let waits = self.permission_requests.any_waits();
        match self.streams.prompt_called(waits) {
            Some(called) => self.prompt_event(PromptEvent::Tick { called }, now),
            None => {
                if waits {
                    self.tell_waiting(now);
                }
                Ok(())
            }
        }
    }

    /// Tells the person who runs a command without a terminal that it waits for them, and how to
    /// answer elsewhere.
    fn tell_waiting(&mut self, now: Instant) {
        let quiet = self.callbacks.denial_line.is_none();
        if quiet || self.streams.is_logged() || self.streams.has_terminal() {
            return;
        }
        let waiting = self.permission_requests.describe(now);
        for line in self.prompting.waiting_lines(self.control.id(), &waiting) {
            self.streams.write_error(&line);
        }
    }

    pub(crate) fn hear_prompt(&mut self, now: Instant) -> Result<(), RunError> {
        let mut typed = [0; 256];
        let count = read(stdio::stdin(), &mut typed).unwrap_or(0);
        let typed = typed.get(..count).unwrap_or_default();
        self.prompt_event(PromptEvent::Typed(typed), now)?;
        self.sign_of_life(now);
        Ok(())
    }

    pub(crate) fn answer_at_prompt(
        &mut self,
        number: u32,
        choice: Choice,
        now: Instant,
    ) -> Result<(), RunError> {
        let requests = of_question(&self.permission_requests.describe(now), number);
        let Some(first) = requests.first().map(|one| &one.question) else {
            return Ok(());
        };
        if choice == Choice::Deny {
            return self.deny(Answerer::Terminal, first.number, "", now);
        }
        let for_command = matches!(first.scope, Scope::Exec { .. });
        let request = ApproveRequest {
            number: first.number,
            // For a command, the answer holds for later ones too: unless it was for once.
            term: (for_command && choice != Choice::Once).then_some(first.term),
            uses: (choice == Choice::Once).then_some(1),
        };
        if choice == Choice::Always {
            self.prompting.permanent = Some((first.number, requests));
        }
        self.approve(Answerer::Terminal, &request, now)
    }

    /// Takes what came of an answer at the prompt. A rule is written to the user's policy only if
    /// the approval had an effect.
    pub(crate) fn answered_at_prompt(
        &mut self,
        number: u32,
        outcome: &RequestOutcome,
        now: Instant,
    ) -> Result<(), RunError> {
        if let RequestOutcome::Denied { reason } = outcome {
            self.prompting.note_denial(reason);
        }
        for described in self.prompting.take_permanent(number, outcome) {
            if let Some(permanent) = self.callbacks.permanent
                && let Err(error) = permanent(self.control.id(), &described)
            {
                let effect = self.prompting.note_not_permanent(&error.to_string());
                self.apply(effect.into_iter().collect(), now)?;
            }
        }
        Ok(())
    }

    /// Tells the user of a foreground cage that it was frozen, and how to continue. For one in the
    /// background, `ironcage lease list` and the audit log tell.
    pub(crate) fn tell_of_freeze(&mut self, now: Instant) -> Result<(), RunError> {
        if self.streams.is_logged() {
            return Ok(());
        }
        let id = self.control.id();
        let text = format!(
            "ironcage: what the cage did differs from what its model said, so it was stopped: look with `ironcage lease list -f {id}`, then `ironcage resume {id}` or `ironcage stop {id}`"
        );
        if self.streams.has_terminal() {
            return self.prompt_event(PromptEvent::Frozen(&text), now);
        }
        self.streams.write_error(&text);
        Ok(())
    }

    pub(crate) fn tell_of_thaw(&mut self, now: Instant) -> Result<(), RunError> {
        match self.streams.has_terminal() {
            true => self.prompt_event(PromptEvent::Thawed, now),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "prompting_tests.rs"]
mod tests;
