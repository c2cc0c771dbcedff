//! The calls whose results a request brings, found while the request passes.
//!
//! A request repeats the whole conversation, so it is long: it is scanned as it comes, in pieces of
//! any size, and nothing of it is kept but short texts at a few keys. A result that
//! is read wrongly can only end something early.

use super::encoded::{Decoder, Encoding};

/// Deepest object that is looked at; what is deeper is counted.
const DEEPEST: usize = 64;

/// Longest text that is kept.
const LONGEST: usize = 200;

/// A reader of one request.
#[derive(Debug)]
pub struct Results {
    decoder: Option<Decoder>,
    scan: Scan,
}

impl Results {
    /// For a request of which nothing has come yet.
    pub fn new(encoding: Encoding) -> Self {
        Results {
            decoder: Some(Decoder::new(encoding)),
            scan: Scan::default(),
        }
    }

    /// Takes the next bytes. Returns the ids of calls whose results they completed.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        let scan = &mut self.scan;
        let fed = match &mut self.decoder {
            Some(decoder) => decoder.feed(bytes, |plain| scan.take(plain)),
            None => Ok(()),
        };
        if fed.is_err() {
            // The rest says nothing.
            self.decoder = None;
        }
        std::mem::take(&mut self.scan.found)
    }
}

/// What surrounds the next byte.
#[derive(Debug, Default)]
struct Level {
    object: bool,
    /// Whether a key comes next.
    before_key: bool,
    key: Key,
    kind: Option<String>,
    id: Option<String>,
    /// An id at a key that only results have.
    result: Option<String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Key {
    #[default]
    Other,
    Type,
    ToolUse,
    ToolCall,
    Call,
}

#[derive(Debug, Default)]
struct Scan {
    levels: Vec<Level>,
    /// Levels below the deepest that is looked at.
    deeper: usize,
    /// The text that is being read, while it is short and plain.
    text: Option<String>,
    in_text: bool,
    escaped: bool,
    found: Vec<String>,
}

impl Scan {
    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match self.in_text {
                true => self.text_byte(*byte),
                false => self.mark(*byte),
            }
        }
    }

    fn text_byte(&mut self, byte: u8) {
        if self.escaped {
            self.escaped = false;
            return;
        }
        match byte {
            b'"' => {
                self.in_text = false;
                let text = self.text.take();
                self.end_of_text(text);
            }
            b'\\' => {
                self.escaped = true;
                // No id and no key that is looked for has one.
                self.text = None;
            }
            _ => {
                let fits = |text: &&mut String| text.len() < LONGEST && byte.is_ascii();
                match self.text.as_mut().filter(fits) {
                    Some(text) => text.push(char::from(byte)),
                    None => self.text = None,
                }
            }
        }
    }

    fn mark(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.in_text = true;
                self.text = (self.deeper == 0).then(String::new);
            }
            b'{' | b'[' if self.levels.len() >= DEEPEST => {
                self.deeper = self.deeper.saturating_add(1);
            }
            b'{' | b'[' => {
                let object = byte == b'{';
                self.levels.push(Level {
                    object,
                    before_key: object,
                    ..Level::default()
                });
            }
            b'}' | b']' if self.deeper > 0 => self.deeper -= 1,
            b'}' | b']' => {
                if let Some(level) = self.levels.pop() {
                    self.end_of(level);
                }
            }
            b',' if self.deeper == 0 => {
                if let Some(level) = self.levels.last_mut() {
                    level.before_key = level.object;
                    level.key = Key::Other;
                }
            }
            _ => {}
        }
    }

    fn end_of_text(&mut self, text: Option<String>) {
        let Some(level) = self.levels.last_mut().filter(|_| self.deeper == 0) else {
            return;
        };
        if level.before_key {
            level.before_key = false;
            level.key = match text.as_deref() {
                Some("type") => Key::Type,
                Some("tool_use_id") => Key::ToolUse,
                Some("tool_call_id") => Key::ToolCall,
                Some("call_id") => Key::Call,
                _ => Key::Other,
            };
            return;
        }
        match level.key {
            Key::Other => {}
            Key::Type => level.kind = text,
            Key::ToolUse | Key::Call => level.id = text,
            Key::ToolCall => level.result = text,
        }
    }

    fn end_of(&mut self, level: Level) {
        let kind = level.kind.as_deref().unwrap_or_default();
        let by_kind = kind == "tool_result" || kind.ends_with("_call_output");
        let id = level.result.or(level.id.filter(|_| by_kind));
        // The call and its result stand side by side: no request has thousands that matter.
        if let Some(id) = id.filter(|_| self.found.len() < 4096) {
            self.found.push(id);
        }
    }
}
