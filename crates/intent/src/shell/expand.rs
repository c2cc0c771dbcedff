//! Expansion of words: what the shell would make of them, as far as the text tells.

use super::LONGEST;
use super::walk::{MOST_STEPS, Walk, named};
use super::word::{Draft, Word, ansi_c, braces, quoted};
use tree_sitter::Node;

/// Words that one word becomes, at most.
const MOST_WORDS: usize = 64;

/// Bytes of words that count as much as visiting a node.
const BYTES_OF_A_STEP: usize = 256;

impl<'t> Walk<'_, 't> {
    /// The words that a node becomes. What is executed for it is visited.
    pub(super) fn expand(&mut self, node: Node<'t>) -> Vec<Word> {
        let words = self.expand_whole(node);
        self.within_budget(words, node)
    }

    /// The words, as long as all that were expanded are not too much: a short text can name a long
    /// value as often as it likes.
    fn within_budget(&mut self, words: Vec<Word>, node: Node<'t>) -> Vec<Word> {
        let bytes: usize = words.iter().map(|word| word.known().len()).sum();
        let steps = u32::try_from(bytes / BYTES_OF_A_STEP).unwrap_or(u32::MAX);
        self.scope.steps = self.scope.steps.saturating_add(steps);
        match self.scope.steps > MOST_STEPS {
            true => vec![Draft::open().finish(self.text(node))],
            false => words,
        }
    }

    fn expand_whole(&mut self, node: Node<'t>) -> Vec<Word> {
        let source = self.text(node).to_owned();
        let simple = matches!(node.kind(), "word" | "concatenation" | "brace_expression");
        let special = source.contains(['\'', '"', '$', '`', '\\']);
        if simple && source.contains('{') && !special {
            return self.alternatives(&source);
        }
        if node.kind() == "concatenation" && source.contains('{') && source.contains(',') {
            if let Some(words) = self.braces_with_variables(&source) {
                return words;
            }
            // Braces around quotes or variables.
            self.drafts(node, false);
            return vec![Draft::open().finish(&source)];
        }
        if node.kind() == "simple_expansion" || node.kind() == "expansion" {
            return self.split(node, &source);
        }
        let drafts = self.drafts(node, false);
        drafts
            .into_iter()
            .map(|draft| draft.finish(&source))
            .collect()
    }

    /// The words that an expansion inside quotes becomes: it is not split.
    pub(super) fn expand_quoted(&mut self, node: Node<'t>) -> Vec<Word> {
        let source = self.text(node).to_owned();
        let drafts = self.drafts(node, true);
        let words = drafts.into_iter().map(|draft| draft.finish(&source));
        let words = words.collect();
        self.within_budget(words, node)
    }

    /// Words of text with braces.
    fn alternatives(&mut self, source: &str) -> Vec<Word> {
        let mut done = Vec::new();
        let mut left = vec![source.to_owned()];
        while let Some(text) = left.pop() {
            if done.len() + left.len() > MOST_WORDS {
                return vec![Draft::open().finish(source)];
            }
            match braces(&text) {
                Some(mut words) => {
                    words.reverse();
                    left.extend(words);
                }
                // A range of numbers or letters has no slash.
                None if text.contains("..") && text.contains('{') => {
                    let at = text.find('{').unwrap_or_default();
                    done.push(Word::Pattern { text, fixed: at });
                }
                None => done.push(self.unquoted(&text).finish(source)),
            }
        }
        done
    }

    /// `$dir/{a,b}`: alternatives around variables whose values are known.
    fn braces_with_variables(&mut self, source: &str) -> Option<Vec<Word>> {
        let plain = self.with_variables(source)?;
        Some(self.alternatives(&plain))
    }

    /// Text in which variables whose values are known stand, and double quotes; nothing else that
    /// the shell would expand.
    pub(super) fn with_variables(&mut self, source: &str) -> Option<String> {
        let mut plain = String::new();
        let mut rest = source;
        while let Some(at) = rest.find('$') {
            plain.push_str(rest.get(..at)?);
            let after = rest.get(at + 1..)?;
            let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
            let (name, next) = match after.strip_prefix('{') {
                Some(inner) => inner.split_once('}')?,
                None => after.split_at(after.find(|char| !is_name(char)).unwrap_or(after.len())),
            };
            if name.is_empty() || !name.chars().all(is_name) {
                return None;
            }
            match self.variable(name).as_slice() {
                [draft] => match draft.clone().finish("") {
                    Word::Plain(value) if !value.contains(['{', '}', '$']) => {
                        plain.push_str(&value);
                    }
                    _ => return None,
                },
                _ => return None,
            }
            rest = next;
            if plain.len() > LONGEST {
                return None;
            }
        }
        plain.push_str(rest);
        let plain = plain.replace('"', "");
        let special = plain.contains(['\'', '`', '\\']);
        (!special).then_some(plain)
    }

    /// A variable without quotes is split at blanks.
    fn split(&mut self, node: Node<'t>, source: &str) -> Vec<Word> {
        let mut words = Vec::new();
        let set = self.scope.variables.is_set("IFS");
        let marks = set.then(|| self.scope.variables.get("IFS")).flatten();
        let marks: Option<String> = match marks.as_deref() {
            Some([Word::Plain(marks)]) => Some(marks.clone()),
            _ => None,
        };
        for draft in self.drafts(node, false) {
            match draft.finish(source) {
                Word::Plain(text) if set => match &marks {
                    Some(marks) => {
                        let parts = text.split(|char| marks.contains(char));
                        words.extend(parts.map(|part| Draft::unquoted(part).finish(source)));
                    }
                    None => words.push(Draft::open().finish(source)),
                },
                Word::Plain(text) if text.contains(char::is_whitespace) || text.is_empty() => {
                    let parts = text.split_whitespace();
                    words.extend(parts.map(|part| Draft::unquoted(part).finish(source)));
                }
                Word::Plain(text) => words.push(Draft::unquoted(&text).finish(source)),
                word => words.push(word),
            }
        }
        words
    }

    fn unquoted(&self, text: &str) -> Draft {
        let Some(rest) = text.strip_prefix('~') else {
            return Draft::unquoted(text);
        };
        if !(rest.is_empty() || rest.starts_with('/')) {
            // Somebody else's home.
            return Draft::open();
        }
        match &self.scope.home {
            Some(home) => Draft::plain(&home.to_string_lossy()).then(&Draft::unquoted(rest)),
            None => Draft::open(),
        }
    }

    /// What a node can stand for.
    fn drafts(&mut self, node: Node<'t>, in_quotes: bool) -> Vec<Draft> {
        let text = self.text(node).to_owned();
        match node.kind() {
            "word"
            | "number"
            | "extglob_pattern"
            | "variable_name"
            | "regex"
            | "file_descriptor"
            | "special_variable_name"
                if !in_quotes =>
            {
                vec![self.unquoted(&text)]
            }
            "raw_string" => {
                let inner = text.trim_start_matches('\'');
                vec![Draft::plain(inner.strip_suffix('\'').unwrap_or(inner))]
            }
            "ansi_c_string" => {
                let inner = text
                    .strip_prefix("$'")
                    .and_then(|text| text.strip_suffix('\''));
                vec![
                    inner
                        .and_then(ansi_c)
                        .map_or_else(Draft::open, |text| Draft::plain(&text)),
                ]
            }
            "string" | "translated_string" => self.string(node, &text),
            "concatenation" => self.sequence(named(node)),
            "simple_expansion" => {
                let name = text.strip_prefix('$').unwrap_or(&text).to_owned();
                self.variable(&name)
            }
            "expansion" => {
                let name = text
                    .strip_prefix("${")
                    .and_then(|text| text.strip_suffix('}'));
                let name = name.filter(|name| {
                    name.chars()
                        .all(|char| char.is_ascii_alphanumeric() || char == '_')
                });
                match name.map(str::to_owned) {
                    Some(name) => self.variable(&name),
                    None if text.starts_with("${#") => vec![Draft::number()],
                    None => self.parameter(node, &text),
                }
            }
            "command_substitution" => {
                let command: String = text
                    .trim_start_matches(['$', '(', '`'])
                    .trim_end_matches([')', '`'])
                    .trim()
                    .to_owned();
                self.inside(node);
                match (&self.scope.cwd, command.as_str()) {
                    (Some(cwd), "pwd") => vec![Draft::plain(&cwd.to_string_lossy())],
                    _ => vec![Draft::open()],
                }
            }
            "process_substitution" => {
                self.inside(node);
                vec![Draft::plain("/dev/fd/63")]
            }
            "arithmetic_expansion" => {
                self.forget(node);
                vec![Draft::number()]
            }
            _ => {
                self.inside(node);
                vec![Draft::open()]
            }
        }
    }

    /// `${v[@]}`, `${v:-word}`, `${v%suffix}` and the like.
    fn parameter(&mut self, node: Node<'t>, text: &str) -> Vec<Draft> {
        self.inside(node);
        let inner = text
            .strip_prefix("${")
            .and_then(|text| text.strip_suffix('}'));
        let Some(inner) = inner else {
            return vec![Draft::open()];
        };
        let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
        let end = inner.find(|char| !is_name(char)).unwrap_or(inner.len());
        let (name, mut rest) = inner.split_at(end);
        if name.is_empty() {
            // `${!name}` and keys of arrays.
            return vec![Draft::open()];
        }
        if rest.starts_with('[') {
            rest = rest
                .find(']')
                .map_or("", |at| rest.get(at + 1..).unwrap_or_default());
        }
        let held = self.variable(name);
        if rest.is_empty() {
            return held;
        }
        let plain = |text: &str| !text.contains(['$', '`', '"', '\'', '\\']);
        let default = [":-", "-", ":=", "="]
            .iter()
            .find_map(|mark| rest.strip_prefix(mark));
        if let Some(default) = default {
            let mut drafts: Vec<Draft> = Vec::new();
            let words: Vec<Node<'t>> = named(node).into_iter().skip(1).collect();
            let other = match plain(default) {
                true => vec![self.unquoted(default)],
                false => self.sequence(words),
            };
            let empty = |draft: &Draft| draft.clone().finish("").text() == Some("");
            let is_set =
                |draft: &Draft| !empty(draft) && matches!(draft.clone().finish(""), Word::Plain(_));
            if !held.is_empty() && held.iter().all(is_set) {
                return held;
            }
            drafts.extend(held.into_iter().filter(|draft| !empty(draft)));
            drafts.extend(other);
            drafts.truncate(MOST_WORDS);
            return drafts;
        }
        if rest.starts_with(":?") || rest.starts_with('?') {
            return held;
        }
        let change = |text: &str| changed(text, rest).filter(|_| plain(rest));
        let drafts = held.into_iter().map(|draft| match draft.finish("") {
            Word::Plain(text) => change(&text).map_or_else(Draft::open, |text| Draft::plain(&text)),
            _ => Draft::open(),
        });
        drafts.collect()
    }

    fn sequence(&mut self, parts: Vec<Node<'t>>) -> Vec<Draft> {
        let mut whole = vec![Draft::default()];
        for part in parts {
            let next = self.drafts(part, false);
            whole = together(&whole, &next);
        }
        whole
    }

    /// A string in double quotes: what is between its expansions stands for itself.
    fn string(&mut self, node: Node<'t>, text: &str) -> Vec<Draft> {
        let start = node.start_byte();
        let mut at = start + text.find('"').map_or(0, |quote| quote + 1);
        let end = node
            .end_byte()
            .saturating_sub(usize::from(text.ends_with('"')));
        let mut whole = vec![Draft::default()];
        for child in named(node) {
            if child.kind() == "string_content" {
                continue;
            }
            let between = self.source.get(at..child.start_byte()).unwrap_or_default();
            whole = together(&whole, &[Draft::plain(&quoted(between))]);
            let next = self.drafts(child, true);
            whole = together(&whole, &next);
            at = child.end_byte();
        }
        let rest = self.source.get(at..end.max(at)).unwrap_or_default();
        together(&whole, &[Draft::plain(&quoted(rest))])
    }

    fn variable(&mut self, name: &str) -> Vec<Draft> {
        let arguments = || self.scope.arguments.clone();
        let held = match name {
            "HOME" | "PWD" if self.scope.variables.get(name).is_none() => {
                let place = match name {
                    "HOME" => self.scope.home.as_ref(),
                    _ => self.scope.cwd.as_ref(),
                };
                place.map(|path| vec![Word::Plain(path.to_string_lossy().into_owned())])
            }
            "?" | "#" | "$" | "!" => return vec![Draft::number()],
            "@" | "*" => arguments(),
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) && digits != "0" => {
                let index = digits
                    .parse::<usize>()
                    .ok()
                    .and_then(|index| index.checked_sub(1));
                arguments().map(|words| {
                    let word = index.and_then(|index| words.get(index).cloned());
                    vec![word.unwrap_or(Word::Plain(String::new()))]
                })
            }
            name => self.scope.variables.get(name),
        };
        match held {
            Some(words) if words.len() <= MOST_WORDS => words.iter().map(Draft::of).collect(),
            _ => vec![Draft::open()],
        }
    }

    /// Visits what is executed somewhere below a node.
    fn inside(&mut self, node: Node<'t>) {
        match node.kind() {
            "command_substitution" | "process_substitution" => self.apart(|walk| {
                for child in named(node) {
                    if child.kind() == "file_redirect" {
                        walk.redirect_alone(child);
                    } else {
                        walk.visit(child);
                    }
                }
            }),
            _ => self.forget(node),
        }
    }

    /// `$(< file)`.
    fn redirect_alone(&mut self, node: Node<'t>) {
        for child in named(node) {
            for word in self.expand(child) {
                self.read(&word);
            }
        }
    }

    /// Tests and arithmetic: they may set variables, and what stands inside is executed.
    pub(super) fn forget(&mut self, node: Node<'t>) {
        for child in named(node) {
            match child.kind() {
                "command_substitution" | "process_substitution" => self.inside(child),
                "variable_name" | "word" => {
                    let name = self.text(child).to_owned();
                    let arithmetic = matches!(
                        node.kind(),
                        "postfix_expression"
                            | "unary_expression"
                            | "binary_expression"
                            | "variable_assignment"
                            | "compound_statement"
                    );
                    let is_test = self.text(node).starts_with('-');
                    if arithmetic && !is_test && self.scope.variables.get(&name).is_some() {
                        self.scope.variables.set(&name, None, false);
                    }
                }
                "command" | "list" | "pipeline" | "redirected_statement" | "subshell" => {
                    self.visit(child);
                }
                _ => self.descend(child),
            }
        }
    }
}

/// A value after `%suffix`, `#prefix`, `/old/new`, `^^` or `,,`. `None` for what is not done here.
fn changed(text: &str, operation: &str) -> Option<String> {
    let upto = |at: Option<usize>| at.and_then(|at| text.get(..at)).unwrap_or(text);
    let from = |at: Option<usize>| at.and_then(|at| text.get(at..)).unwrap_or(text);
    let fixed = |pattern: &str| !pattern.contains(['*', '?', '[']);
    let owned = |text: &str| Some(text.to_owned());
    if let Some(end) = operation.strip_prefix("%%").or(operation.strip_prefix('%')) {
        return match end.strip_suffix('*') {
            Some(mark) if fixed(mark) && operation.starts_with("%%") => {
                owned(upto(text.find(mark)))
            }
            Some(mark) if fixed(mark) => owned(upto(text.rfind(mark))),
            None if fixed(end) => owned(text.strip_suffix(end).unwrap_or(text)),
            _ => None,
        };
    }
    if let Some(start) = operation.strip_prefix("##").or(operation.strip_prefix('#')) {
        return match start.strip_prefix('*') {
            Some(mark) if fixed(mark) && operation.starts_with("##") => {
                owned(from(text.rfind(mark).map(|at| at + mark.len())))
            }
            Some(mark) if fixed(mark) => owned(from(text.find(mark).map(|at| at + mark.len()))),
            None if fixed(start) => owned(text.strip_prefix(start).unwrap_or(text)),
            _ => None,
        };
    }
    match operation {
        "^^" => Some(text.to_uppercase()),
        ",," => Some(text.to_lowercase()),
        _ => {
            let (all, rest) = match operation.strip_prefix("//") {
                Some(rest) => (true, rest),
                None => (false, operation.strip_prefix('/')?),
            };
            let (old, new) = rest.split_once('/').unwrap_or((rest, ""));
            let grows = text.len() / old.len().max(1) * new.len();
            let short = text.len() + grows <= LONGEST;
            (fixed(old) && short && !old.is_empty() && !old.starts_with(['#', '%'])).then(|| {
                match all {
                    true => text.replace(old, new),
                    false => text.replacen(old, new, 1),
                }
            })
        }
    }
}

/// Every beginning with every end.
fn together(beginnings: &[Draft], ends: &[Draft]) -> Vec<Draft> {
    if beginnings.len().saturating_mul(ends.len()) > MOST_WORDS {
        return vec![Draft::open()];
    }
    let mut whole = Vec::new();
    for beginning in beginnings {
        whole.extend(ends.iter().map(|end| beginning.then(end)));
    }
    whole
}
