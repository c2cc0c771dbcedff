//! Options and operands, told apart as most programs do it.

use super::table::{Role, Tool};
use crate::shell::Word;

/// An option that was given.
#[derive(Debug, Clone)]
pub(crate) struct OptionArgument {
    /// With its hyphens.
    pub(crate) name: String,
    pub(crate) value: Option<Word>,
    /// What its value is, where the table says.
    pub(crate) role: Option<Role>,
}

/// The arguments of a command.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub(crate) options: Vec<OptionArgument>,
    pub(crate) operands: Vec<Word>,
    /// Commands inside: the option, and the words after it.
    pub(crate) commands: Vec<(String, Vec<Word>)>,
    /// How many words were read.
    pub(crate) used: usize,
}

impl Parsed {
    pub(crate) fn read(tool: &Tool, words: &[Word]) -> Self {
        Self::until(tool, words, tool.wraps())
    }

    /// Those before the first operand.
    pub(crate) fn first_only(tool: &Tool, words: &[Word]) -> Self {
        let mut parsed = Self::until(tool, words, true);
        parsed.used = parsed.used.saturating_sub(parsed.operands.len());
        parsed.operands.clear();
        parsed
    }

    /// The port that the last option for one names: any where its value is not known.
    pub(crate) fn port(&self) -> Option<Option<u16>> {
        let mut options = self.options.iter().rev();
        let given = options.find(|given| given.role == Some(Role::Port))?;
        let value = given.value.as_ref().and_then(Word::text);
        Some(value.and_then(|text| text.parse().ok()))
    }

    fn until(tool: &Tool, words: &[Word], stops: bool) -> Self {
        let mut parsed = Parsed {
            used: words.len(),
            ..Parsed::default()
        };
        let mut words = words.iter().peekable();
        let mut first = true;
        while let Some(word) = words.next() {
            let text = word.known();
            let is_first = std::mem::replace(&mut first, false);
            if text == "--" {
                parsed.operands.extend(words.cloned());
                break;
            }
            if is_first && tool.bare_cluster && !text.starts_with('-') && !text.contains('/') {
                parsed.cluster(tool, word, 0, &mut words);
                continue;
            }
            if !text.starts_with('-') || text == "-" {
                if parsed.assigned(tool, word) {
                    continue;
                }
                parsed.operands.push(word.clone());
                if stops {
                    parsed.operands.extend(words.cloned());
                    break;
                }
                continue;
            }
            if tool.commands.iter().any(|name| name == text) {
                let mut inside = Vec::new();
                for word in words.by_ref() {
                    if matches!(word.text(), Some(";" | "+")) {
                        break;
                    }
                    inside.push(word.clone());
                }
                parsed.commands.push((text.to_owned(), inside));
                continue;
            }
            if text.starts_with("--") || tool.one_hyphen {
                parsed.long(tool, word, &mut words);
            } else {
                parsed.cluster(tool, word, 1, &mut words);
            }
        }
        parsed
    }

    fn assigned(&mut self, tool: &Tool, word: &Word) -> bool {
        let Some((name, _)) = word.known().split_once('=') else {
            return false;
        };
        let Some(role) = tool.assignments.get(name).copied() else {
            return false;
        };
        self.options.push(OptionArgument {
            name: name.to_owned(),
            value: Some(word.without(name.len() + 1)),
            role: Some(role),
        });
        true
    }

    fn long<'w>(
        &mut self,
        tool: &Tool,
        word: &Word,
        words: &mut std::iter::Peekable<impl Iterator<Item = &'w Word>>,
    ) {
        let text = word.known();
        let (name, value) = match text.split_once('=') {
            Some((name, _)) => (name, Some(word.without(name.len() + 1))),
            None => (text, None),
        };
        let role = tool.options.get(name).copied();
        let value = match (value, role) {
            (None, Some(_)) => words.next().cloned(),
            (value, _) => value,
        };
        self.options.push(OptionArgument {
            name: name.to_owned(),
            value,
            role,
        });
    }

    /// Letters after one hyphen, the last of which may have a value.
    fn cluster<'w>(
        &mut self,
        tool: &Tool,
        word: &Word,
        skip: usize,
        words: &mut std::iter::Peekable<impl Iterator<Item = &'w Word>>,
    ) {
        let text = word.known();
        for (at, letter) in text.char_indices().skip(skip) {
            let name = format!("-{letter}");
            let role = tool.options.get(&name).copied();
            let end = at + letter.len_utf8();
            let rest_is_there = end < text.len() || matches!(word, Word::Open { .. });
            let value = match role {
                None => None,
                Some(_) if rest_is_there && skip > 0 => Some(word.without(end)),
                Some(_) => words.next().cloned(),
            };
            let ends = role.is_some() && rest_is_there && skip > 0;
            self.options.push(OptionArgument { name, value, role });
            if ends {
                break;
            }
        }
    }
}
