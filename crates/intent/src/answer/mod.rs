//! Finds the tool calls in a model's response while it passes, before the agent acts on them.
//!
//! Three APIs are supported, as a stream of events or as one document: Anthropic's messages,
//! OpenAI's chat completions, and OpenAI's responses. Bytes arrive in parts of any size. The
//! buffers are bounded, and calls that do not fit are reported as not read.

mod encoded;
mod events;
mod open;
mod results;

use crate::call::{Call, LONGEST};
use crate::json;
use encoded::Decoder;
pub use encoded::Encoding;
use events::Events;
use open::Open;
pub use results::Results;
use serde_json::Value;

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `text/event-stream`.
    Events,
    /// `application/json`.
    Document,
}

#[derive(Debug, Clone, PartialEq)]
pub enum AnswerPart {
    /// A tool is called.
    Call(Call),
    /// Words for the reader: text and visible reasoning. They grant nothing.
    Words(String),
    /// A part of the words is over: what comes next does not continue its last one.
    Pause,
    /// A part could not be read, and why: what it says is unknown.
    NotRead(String),
}

/// Largest document that is read, in bytes.
const LARGEST: usize = 8 * 1024 * 1024;

/// A reader of one answer.
#[derive(Debug)]
pub struct AnswerReader {
    decoder: Decoder,
    input: Input,
    open: Open,
}

#[derive(Debug)]
enum Input {
    Events(Events),
    Document(Vec<u8>),
    /// Too large: the rest is passed over.
    Lost,
}

impl AnswerReader {
    /// For an answer of which nothing has come yet.
    pub fn new(format: Format, encoding: Encoding) -> Self {
        let input = match format {
            Format::Events => Input::Events(Events::new(LONGEST)),
            Format::Document => Input::Document(Vec::new()),
        };
        AnswerReader {
            decoder: Decoder::new(encoding),
            input,
            open: Open::default(),
        }
    }

    /// Takes the next bytes. Returns what they completed.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<AnswerPart> {
        let mut said = Vec::new();
        if matches!(self.input, Input::Lost) {
            return said;
        }
        let (input, open) = (&mut self.input, &mut self.open);
        let taken = self
            .decoder
            .feed(bytes, |plain| input.take(plain, open, &mut said));
        if let Err(error) = taken {
            self.input = Input::Lost;
            said.push(AnswerPart::NotRead(error.to_string()));
        }
        said
    }

    /// The answer is over. Returns what that completed.
    pub fn end(mut self) -> Vec<AnswerPart> {
        let mut said = Vec::new();
        match self.input {
            Input::Events(_) => self.open.end(&mut said),
            Input::Document(document) if document.is_empty() => {}
            Input::Document(document) => match json::read(&document) {
                Ok(value) => whole(&value, &mut said),
                Err(error) => said.push(AnswerPart::NotRead(error.to_string())),
            },
            Input::Lost => {}
        }
        said
    }
}

impl Input {
    fn take(&mut self, bytes: &[u8], open: &mut Open, said: &mut Vec<AnswerPart>) {
        match self {
            Input::Events(events) => events.feed(bytes, |data| match data {
                Some(data) => open.event(data, said),
                None => said.push(AnswerPart::NotRead("an event is too long".to_owned())),
            }),
            Input::Document(document) => {
                if document.len().saturating_add(bytes.len()) > LARGEST {
                    *self = Input::Lost;
                    said.push(AnswerPart::NotRead("the response is too long".to_owned()));
                } else {
                    document.extend_from_slice(bytes);
                }
            }
            Input::Lost => {}
        }
    }
}

/// The calls and words of a whole answer.
fn whole(value: &Value, said: &mut Vec<AnswerPart>) {
    let lists = [value.get("content"), value.get("output")];
    for item in lists
        .into_iter()
        .flatten()
        .filter_map(Value::as_array)
        .flatten()
    {
        block(item, said);
    }
    let choices = value.get("choices").and_then(Value::as_array);
    for choice in choices.into_iter().flatten() {
        let Some(message) = choice.get("message") else {
            continue;
        };
        words(message.get("reasoning_content"), said);
        pause(said);
        words(message.get("content"), said);
        pause(said);
        let calls = message.get("tool_calls").and_then(Value::as_array);
        for call in calls.into_iter().flatten() {
            found(call, said);
        }
    }
}

/// One block of an answer's content.
pub(super) fn block(item: &Value, said: &mut Vec<AnswerPart>) {
    found(item, said);
    words(item.get("text"), said);
    words(item.get("thinking"), said);
    for parts in [item.get("content"), item.get("summary")] {
        for part in parts.and_then(Value::as_array).into_iter().flatten() {
            words(part.get("text"), said);
            pause(said);
        }
    }
    pause(said);
}

fn found(item: &Value, said: &mut Vec<AnswerPart>) {
    match Call::of(item) {
        Ok(Some(call)) => said.push(AnswerPart::Call(call)),
        Ok(None) => {}
        Err(error) => said.push(AnswerPart::NotRead(error.to_string())),
    }
}

/// Notes that a part of the words is over, once.
pub(super) fn pause(said: &mut Vec<AnswerPart>) {
    if matches!(said.last(), Some(AnswerPart::Words(_))) {
        said.push(AnswerPart::Pause);
    }
}

/// Words of one event that are kept.
const MOST_WORDS: usize = 4096;

pub(super) fn words(value: Option<&Value>, said: &mut Vec<AnswerPart>) {
    if let Some(text) = value
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
    {
        let mut end = text.len().min(MOST_WORDS);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        said.push(AnswerPart::Words(
            text.get(..end).unwrap_or_default().to_owned(),
        ));
    }
}
