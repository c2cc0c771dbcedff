//! Calls that have begun in a stream of events and are not complete.

use super::{AnswerPart, block, words};
use crate::call::{Call, LONGEST, arguments};
use crate::json;
use serde_json::Value;
use std::collections::BTreeMap;

/// Calls that may be open at once.
const MOST_OPEN: usize = 64;

/// A call of which the arguments are still coming.
#[derive(Debug)]
struct Begun {
    id: Option<String>,
    name: String,
    arguments: String,
    /// Whether some of them did not fit.
    cut: bool,
}

/// The calls that are open, by where they stand in the answer.
#[derive(Debug, Default)]
pub(super) struct Open {
    calls: BTreeMap<(u64, u64), Begun>,
}

impl Open {
    /// Takes the data of one event.
    pub(super) fn event(&mut self, data: &[u8], said: &mut Vec<AnswerPart>) {
        if data == b"[DONE]" {
            self.end(said);
            return;
        }
        let value = match json::read(data) {
            Ok(value) => value,
            Err(error) => {
                said.push(AnswerPart::NotRead(error.to_string()));
                return;
            }
        };
        match value.get("type").and_then(Value::as_str) {
            Some("content_block_start") => self.begin_block(&value, said),
            Some("content_block_delta") => self.continue_block(&value, said),
            Some("content_block_stop") => {
                said.push(AnswerPart::Pause);
                self.complete((0, index(&value)), said);
            }
            Some("message_stop") => self.end(said),
            // Of OpenAI's responses only what is complete counts.
            Some("response.output_item.done") => {
                if let Some(item) = value.get("item") {
                    block(item, said);
                }
            }
            Some(_) => {}
            None => self.choices(&value, said),
        }
    }

    /// No more events will come.
    pub(super) fn end(&mut self, said: &mut Vec<AnswerPart>) {
        let places: Vec<_> = self.calls.keys().copied().collect();
        for place in places {
            self.complete(place, said);
        }
    }

    fn begin_block(&mut self, value: &Value, said: &mut Vec<AnswerPart>) {
        let Some(content) = value.get("content_block") else {
            return;
        };
        words(content.get("text"), said);
        if content.get("type").and_then(Value::as_str) != Some("tool_use") {
            return;
        }
        let text = |key: &str| content.get(key).and_then(Value::as_str).map(str::to_owned);
        let begun = Begun {
            id: text("id"),
            name: text("name").unwrap_or_default(),
            arguments: String::new(),
            cut: false,
        };
        self.begin((0, index(value)), begun, said);
    }

    fn begin(&mut self, place: (u64, u64), begun: Begun, said: &mut Vec<AnswerPart>) {
        if self.calls.len() >= MOST_OPEN && !self.calls.contains_key(&place) {
            said.push(AnswerPart::NotRead(
                "too many calls are open at once".to_owned(),
            ));
            return;
        }
        if self.calls.insert(place, begun).is_some() {
            // Which of the two the agent takes is not known.
            said.push(AnswerPart::NotRead(
                "a call starts before the previous one ends".to_owned(),
            ));
        }
    }

    fn continue_block(&mut self, value: &Value, said: &mut Vec<AnswerPart>) {
        let Some(delta) = value.get("delta") else {
            return;
        };
        words(delta.get("text"), said);
        words(delta.get("thinking"), said);
        if let Some(part) = delta.get("partial_json").and_then(Value::as_str) {
            self.add((0, index(value)), part);
        }
    }

    fn add(&mut self, place: (u64, u64), part: &str) {
        // All that is open together is bounded, not each of it.
        let kept: usize = self.calls.values().map(|call| call.arguments.len()).sum();
        if let Some(begun) = self.calls.get_mut(&place) {
            if kept.saturating_add(part.len()) > LONGEST {
                begun.cut = true;
                begun.arguments = String::new();
            } else if !begun.cut {
                begun.arguments.push_str(part);
            }
        }
    }

    fn complete(&mut self, place: (u64, u64), said: &mut Vec<AnswerPart>) {
        let Some(begun) = self.calls.remove(&place) else {
            return;
        };
        if begun.cut {
            said.push(AnswerPart::NotRead(format!(
                "the call to `{}` is too long",
                begun.name
            )));
            return;
        }
        match arguments(Some(&Value::String(begun.arguments))) {
            Ok(input) => said.push(AnswerPart::Call(Call {
                id: begun.id,
                name: begun.name,
                input,
            })),
            Err(error) => said.push(AnswerPart::NotRead(error.to_string())),
        }
    }

    /// OpenAI's chat completions: calls come in pieces, by choice and index.
    fn choices(&mut self, value: &Value, said: &mut Vec<AnswerPart>) {
        let choices = value.get("choices").and_then(Value::as_array);
        for choice in choices.into_iter().flatten() {
            let number = index(choice);
            if let Some(delta) = choice.get("delta") {
                words(delta.get("reasoning_content"), said);
                words(delta.get("content"), said);
                let calls = delta.get("tool_calls").and_then(Value::as_array);
                for call in calls.into_iter().flatten() {
                    self.piece(number, call, said);
                }
            }
            if choice
                .get("finish_reason")
                .is_some_and(|reason| !reason.is_null())
            {
                let places: Vec<_> = self
                    .calls
                    .keys()
                    .filter(|at| at.0 == number)
                    .copied()
                    .collect();
                for place in places {
                    self.complete(place, said);
                }
            }
        }
    }

    fn piece(&mut self, choice: u64, call: &Value, said: &mut Vec<AnswerPart>) {
        let place = (choice, index(call));
        let function = call.get("function");
        let text = |key: &str| function?.get(key)?.as_str();
        if let Some(name) = text("name").filter(|name| !name.is_empty()) {
            let begun = Begun {
                id: call.get("id").and_then(Value::as_str).map(str::to_owned),
                name: name.to_owned(),
                arguments: String::new(),
                cut: false,
            };
            self.begin(place, begun, said);
        }
        if let Some(part) = text("arguments") {
            self.add(place, part);
        }
    }
}

fn index(value: &Value) -> u64 {
    value
        .get("index")
        .and_then(Value::as_u64)
        .unwrap_or_default()
}
