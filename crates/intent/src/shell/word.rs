//! Words of a command: what they are when the shell has expanded them, as far as that is known.

use super::LONGEST;
use std::collections::BTreeMap;

/// A word after expansion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    /// All of it is known.
    Plain(String),
    /// A pattern, or a number in place of the rest: known up to `fixed` bytes. What stands there
    /// in the end has no slash that is not in the text.
    Pattern { text: String, fixed: usize },
    /// It begins like this and is not known further.
    Open { known: String, source: String },
}

impl Word {
    /// The text, where all of it is known. A pattern that meets no file stands for itself.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Word::Plain(text) | Word::Pattern { text, .. } => Some(text),
            Word::Open { .. } => None,
        }
    }

    /// The part that is known, from its beginning.
    pub(crate) fn known(&self) -> &str {
        match self {
            Word::Plain(text) | Word::Pattern { text, .. } => text,
            Word::Open { known, .. } => known,
        }
    }

    /// How it is told to a person.
    pub(crate) fn source(&self) -> &str {
        match self {
            Word::Plain(text) | Word::Pattern { text, .. } => text,
            Word::Open { source, .. } => source,
        }
    }

    /// The same word without the `count` bytes at its beginning, all of which are known.
    pub(crate) fn without(&self, count: usize) -> Word {
        let cut = |text: &str| text.get(count..).unwrap_or_default().to_owned();
        match self {
            Word::Plain(text) => Word::Plain(cut(text)),
            Word::Pattern { text, fixed } => Word::Pattern {
                text: cut(text),
                fixed: fixed.saturating_sub(count),
            },
            Word::Open { known, source } => Word::Open {
                known: cut(known),
                source: source.clone(),
            },
        }
    }
}

/// A word that is being put together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Draft {
    text: String,
    fixed: Option<usize>,
    open: bool,
}

impl Draft {
    pub(crate) fn plain(text: &str) -> Self {
        Draft {
            text: text.to_owned(),
            ..Draft::default()
        }
    }

    /// Unquoted text: the characters of patterns mean something.
    pub(crate) fn unquoted(text: &str) -> Self {
        let mut draft = Draft::default();
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            match char {
                '\\' => match chars.next() {
                    // A line that goes on.
                    Some('\n') | None => {}
                    Some(escaped) => draft.text.push(escaped),
                },
                '*' | '?' | '[' => {
                    draft.fixed.get_or_insert(draft.text.len());
                    draft.text.push(char);
                }
                _ => draft.text.push(char),
            }
        }
        draft
    }

    /// A value that was put together before.
    pub(crate) fn of(word: &Word) -> Self {
        match word {
            Word::Plain(text) => Draft::plain(text),
            Word::Pattern { text, fixed } => Draft {
                text: text.clone(),
                fixed: Some(*fixed),
                open: false,
            },
            Word::Open { known, .. } => Draft {
                text: known.clone(),
                fixed: None,
                open: true,
            },
        }
    }

    /// Something without a slash that is not known: a number.
    pub(crate) fn number() -> Self {
        Draft {
            text: "0".to_owned(),
            fixed: Some(0),
            open: false,
        }
    }

    /// Something that is not known.
    pub(crate) fn open() -> Self {
        Draft {
            open: true,
            ..Draft::default()
        }
    }

    /// This, followed by `next`.
    pub(crate) fn then(&self, next: &Draft) -> Draft {
        if self.open {
            return self.clone();
        }
        if self.text.len() + next.text.len() > LONGEST {
            // No path is as long, so that its beginning says nothing.
            return Draft::open();
        }
        Draft {
            text: format!("{}{}", self.text, next.text),
            fixed: self
                .fixed
                .or_else(|| next.fixed.map(|at| self.text.len().saturating_add(at))),
            open: next.open,
        }
    }

    pub(crate) fn finish(self, source: &str) -> Word {
        match (self.open, self.fixed) {
            (true, _) => Word::Open {
                known: self.text,
                source: source.to_owned(),
            },
            (false, Some(fixed)) => Word::Pattern {
                text: self.text,
                fixed,
            },
            (false, None) => Word::Plain(self.text),
        }
    }
}

/// What a variable can hold: one of these, or something that is not known.
pub(crate) type VariableValue = Option<Vec<Word>>;

/// The variables that the text has set. Those it has not come from elsewhere.
#[derive(Debug, Clone, Default)]
pub(crate) struct Variables {
    held: BTreeMap<String, VariableValue>,
    /// The bytes of all values.
    bytes: usize,
}

fn bytes_of(values: &VariableValue) -> usize {
    let words = values.iter().flatten();
    words.map(|word| word.known().len()).sum()
}

/// Values of one variable that are kept apart.
const MOST_VALUES: usize = 32;

impl Variables {
    pub(crate) fn get(&self, name: &str) -> VariableValue {
        self.held.get(name).cloned().flatten()
    }

    /// Whether the text has set it, whatever it holds.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.held.contains_key(name)
    }

    /// Sets it; where it only may have been set, it may also hold what it held.
    pub(crate) fn set(&mut self, name: &str, values: VariableValue, maybe: bool) {
        let values = match (values, maybe) {
            (Some(mut values), true) => self.get(name).map(|held| {
                for value in held {
                    if !values.contains(&value) {
                        values.push(value);
                    }
                }
                values
            }),
            (values, _) => values,
        };
        let values = values.filter(|values| values.len() <= MOST_VALUES);
        let others = self.bytes - self.held.get(name).map_or(0, bytes_of);
        let fits = others + bytes_of(&values) <= LONGEST;
        let values = values.filter(|_| fits);
        self.bytes = others + bytes_of(&values);
        self.held.insert(name.to_owned(), values);
    }
}

/// Alternatives in braces, as the shell makes words of them: `a{b,c}` is `ab` and `ac`. `None`
/// where there are none. Only for text without quotes and expansions.
pub(crate) fn braces(text: &str) -> Option<Vec<String>> {
    let open = text.find('{')?;
    let rest = text.get(open + 1..)?;
    let mut depth = 0_usize;
    let mut cuts = vec![0];
    let mut close = None;
    for (at, char) in rest.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth == 0 => {
                close = Some(at);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => cuts.push(at + 1),
            _ => {}
        }
    }
    let close = close?;
    let inner = rest.get(..close)?;
    if cuts.len() < 2 {
        return None;
    }
    cuts.push(close + 1);
    let (before, after) = (text.get(..open)?, rest.get(close + 1..)?);
    let mut words = Vec::new();
    for pair in cuts.windows(2) {
        let [from, to] = pair else { continue };
        let part = inner.get(*from..to.saturating_sub(1))?;
        words.push(format!("{before}{part}{after}"));
    }
    Some(words)
}

/// What stands between `$'` and `'`. `None` for escapes that are not read here.
pub(crate) fn ansi_c(text: &str) -> Option<String> {
    let mut plain = String::new();
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if char != '\\' {
            plain.push(char);
            continue;
        }
        plain.push(match chars.next()? {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'a' => '\u{7}',
            'b' => '\u{8}',
            'e' | 'E' => '\u{1b}',
            'f' => '\u{c}',
            'v' => '\u{b}',
            quoted @ ('\\' | '\'' | '"' | '?') => quoted,
            _ => return None,
        });
    }
    Some(plain)
}

/// Text of a here-document, without its expansions.
pub(crate) fn document(text: &str) -> String {
    let mut plain = String::new();
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match (char, chars.peek()) {
            ('\\', Some('$' | '`' | '\\')) => plain.extend(chars.next()),
            _ => plain.push(char),
        }
    }
    plain
}

/// What stands between double quotes, without its expansions.
pub(crate) fn quoted(text: &str) -> String {
    let mut plain = String::new();
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => match chars.next() {
                Some('\n') => {}
                Some(escaped @ ('"' | '\\' | '$' | '`')) => plain.push(escaped),
                Some(other) => {
                    plain.push('\\');
                    plain.push(other);
                }
                None => plain.push('\\'),
            },
            _ => plain.push(char),
        }
    }
    plain
}
