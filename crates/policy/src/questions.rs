//! Settings for permission requests.

use crate::narrow::Dropped;
use crate::{PolicyError, Sourced, TimeLimit};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A key with Ctrl.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ControlKey(u8);

/// A text that names no such key.
#[derive(Debug, thiserror::Error)]
#[error("invalid key `{}`; expected ctrl- and a free key", .0.escape_debug())]
pub struct InvalidKey(String);

impl ControlKey {
    /// The byte that a terminal sends for it.
    pub const fn byte(self) -> u8 {
        self.0
    }
}

impl FromStr for ControlKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let invalid = || InvalidKey(text.to_owned());
        let lower = text.to_ascii_lowercase();
        let key = lower.strip_prefix("ctrl-").ok_or_else(invalid)?;
        match key.as_bytes() {
            // Not: what ends lines, or erases, stops and ends programs.
            [b'c' | b'd' | b'h' | b'i' | b'j' | b'm' | b'z'] => Err(invalid()),
            [letter @ (b'a'..=b'z' | b'\\' | b']' | b'^' | b'_')] => Ok(ControlKey(letter & 0x1f)),
            _ => Err(invalid()),
        }
    }
}

impl fmt::Display for ControlKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ctrl-{}", char::from(self.0 | 0x40).to_ascii_lowercase())
    }
}

/// What one source says of questions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct QuestionsFragment {
    pub(crate) expire: Option<Sourced<TimeLimit>>,
    pub(crate) remember: Option<Sourced<TimeLimit>>,
    pub(crate) key: Option<Sourced<ControlKey>>,
    pub(crate) notify: Option<Sourced<Vec<String>>>,
    pub(crate) webhook: Option<Sourced<String>>,
}

/// How people are asked, fully merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Questions {
    /// How long an answer is waited for; `None` is as long as the cage runs.
    pub expire: Sourced<Option<Duration>>,
    /// How long the same is not asked again after it was denied.
    pub remember: Sourced<Option<Duration>>,
    /// The key that calls the prompt.
    pub key: Sourced<ControlKey>,
    /// A command that is run for each question.
    pub notify: Option<Sourced<Vec<String>>>,
    /// An address to which each question is sent.
    pub webhook: Option<Sourced<String>>,
}

fn duration(limit: Sourced<TimeLimit>) -> Sourced<Option<Duration>> {
    Sourced::new(limit.value.0, limit.origin)
}

impl Questions {
    pub(crate) fn from_defaults(fragment: QuestionsFragment) -> Result<Self, PolicyError> {
        let incomplete = PolicyError::Incomplete;
        Ok(Questions {
            expire: fragment
                .expire
                .map(duration)
                .ok_or(incomplete("questions.expire"))?,
            remember: fragment
                .remember
                .map(duration)
                .ok_or(incomplete("questions.remember"))?,
            key: fragment.key.ok_or(incomplete("questions.key"))?,
            notify: fragment.notify,
            webhook: fragment.webhook,
        })
    }

    /// Puts a fragment on top.
    pub(crate) fn apply(&mut self, fragment: QuestionsFragment) {
        if let Some(expire) = fragment.expire {
            self.expire = duration(expire);
        }
        if let Some(remember) = fragment.remember {
            self.remember = duration(remember);
        }
        if let Some(key) = fragment.key {
            self.key = key;
        }
        self.notify = fragment.notify.or(self.notify.take());
        self.webhook = fragment.webhook.or(self.webhook.take());
    }
}

/// An untrusted file says nothing of how people are asked: it would choose what is run, or whom
/// their questions reach.
pub(crate) fn narrow(fragment: &mut QuestionsFragment, dropped: &mut Dropped) {
    let never = |_: &TimeLimit| false;
    dropped.keep_if(
        "questions.expire",
        &mut fragment.expire,
        never,
        ToString::to_string,
    );
    dropped.keep_if(
        "questions.remember",
        &mut fragment.remember,
        never,
        ToString::to_string,
    );
    dropped.keep_if(
        "questions.key",
        &mut fragment.key,
        |_| false,
        ToString::to_string,
    );
    dropped.keep_if(
        "questions.notify",
        &mut fragment.notify,
        |_| false,
        |words| words.join(" "),
    );
    dropped.keep_if(
        "questions.webhook",
        &mut fragment.webhook,
        |_| false,
        String::clone,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_written_the_same_way_and_those_of_every_day_are_refused() {
        for (text, byte) in [
            ("ctrl-^", 0x1e),
            ("ctrl-]", 0x1d),
            ("Ctrl-G", 0x07),
            ("ctrl-\\", 0x1c),
        ] {
            let key: ControlKey = text.parse().unwrap();
            assert_eq!(key.byte(), byte);
            assert_eq!(key.to_string(), text.to_lowercase());
        }
        for text in [
            "ctrl-c", "ctrl-m", "ctrl-[", "^", "ctrl-", "ctrl-ab", "alt-a",
        ] {
            assert!(text.parse::<ControlKey>().is_err(), "{text}");
        }
    }
}
