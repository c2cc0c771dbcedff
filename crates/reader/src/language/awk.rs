//! awk: a reader of its own, because no grammar of awk is published for the parser that the other
//! languages use. It splits a program into tokens and looks at the few places where awk leaves its
//! input: `print > file`, `print | command`, `getline < file`, `command | getline`, `system()`.

use ironcage_intent::{Code, CodeCommand, CodeNeeds, CommandText, Unsure, tidy};
use std::collections::BTreeMap;

const LONGEST: usize = 256 * 1024;
const MOST_TOKENS: usize = 100_000;

#[derive(Debug, Clone, PartialEq)]
enum Token<'t> {
    Text(String),
    /// A name, a number, a field.
    Name(&'t str),
    Regex,
    Mark(&'t str),
    /// A line break or `;`.
    End,
}

/// A text whose beginning is known.
#[derive(Debug, Clone, Default)]
struct Value {
    known: String,
    whole: bool,
}

pub(crate) fn read(code: &Code<'_>) -> CodeNeeds {
    let mut found = CodeNeeds::default();
    let tokens = (code.text.len() <= LONGEST).then(|| tokens(code.text));
    let Some(tokens) = tokens.flatten() else {
        let why = "the awk program is too long";
        found.needs.unsure(Unsure::Everything, why);
        return found;
    };
    let mut awk = Awk {
        constants: constants(&tokens, code),
        code,
        found,
    };
    awk.statements(&tokens);
    awk.found
}

/// Splits a program; `None` if it has too many tokens.
fn tokens(text: &str) -> Option<Vec<Token<'_>>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    // A slash begins an expression where no value stands before it.
    let mut after_value = false;
    while let Some(char) = rest.chars().next() {
        if tokens.len() > MOST_TOKENS {
            return None;
        }
        let length = match char {
            '\n' | ';' => {
                tokens.push(Token::End);
                after_value = false;
                1
            }
            '\\' if rest.starts_with("\\\n") => 2,
            char if char.is_whitespace() => char.len_utf8(),
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '"' => {
                let (text, length) = literal(rest);
                tokens.push(Token::Text(text));
                after_value = true;
                length
            }
            '/' if !after_value => {
                tokens.push(Token::Regex);
                after_value = true;
                expression(rest)
            }
            char if char.is_alphanumeric() || char == '_' || char == '$' => {
                let is_name = |char: char| char.is_alphanumeric() || "_$.".contains(char);
                let end = rest.find(|char| !is_name(char)).unwrap_or(rest.len());
                let name = rest.get(..end).unwrap_or_default();
                after_value = !matches!(name, "print" | "printf" | "return" | "in" | "getline");
                tokens.push(Token::Name(name));
                end
            }
            _ => {
                let two = rest.get(..2).unwrap_or_default();
                let double = matches!(two, ">>" | "||" | "|&" | "&&" | "==" | "<=" | ">=" | "!=");
                let length = if double { 2 } else { char.len_utf8() };
                let mark = rest.get(..length).unwrap_or_default();
                after_value = matches!(mark, ")" | "]");
                tokens.push(Token::Mark(mark));
                length
            }
        };
        rest = rest.get(length.max(1)..)?;
    }
    Some(tokens)
}

/// A literal with its quotes: its text and its length.
fn literal(text: &str) -> (String, usize) {
    let mut plain = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return (plain, at + 1),
            '\n' => return (plain, at),
            '\\' => match chars.next().map(|(_, char)| char) {
                Some('n') => plain.push('\n'),
                Some('t') => plain.push('\t'),
                Some(other) => plain.push(other),
                None => {}
            },
            char => plain.push(char),
        }
    }
    (plain, text.len())
}

/// The length of a regular expression with its slashes.
fn expression(text: &str) -> usize {
    let mut escaped = false;
    let mut in_class = false;
    for (at, char) in text.char_indices().skip(1) {
        match char {
            '\n' => return at,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            '/' if !in_class => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Variables that are set once, to a text that is known, and arguments `name=value`.
fn constants(tokens: &[Token<'_>], code: &Code<'_>) -> BTreeMap<String, String> {
    let mut held: BTreeMap<String, Option<String>> = BTreeMap::new();
    for argument in code.arguments.iter().filter(|argument| argument.whole) {
        if let Some((name, value)) = argument.text.split_once('=')
            && name
                .chars()
                .all(|char| char.is_alphanumeric() || char == '_')
        {
            held.insert(name.to_owned(), Some(value.to_owned()));
        }
    }
    for (at, token) in tokens.iter().enumerate() {
        let Token::Name(name) = token else { continue };
        let after = |index: usize| tokens.get(at + index);
        if after(1) != Some(&Token::Mark("=")) {
            continue;
        }
        let value = match (after(2), after(3)) {
            (Some(Token::Text(text)), None | Some(Token::End | Token::Mark("}"))) => {
                Some(text.clone())
            }
            _ => None,
        };
        held.entry((*name).to_owned())
            .and_modify(|known| *known = None)
            .or_insert(value);
    }
    let known = held
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    known.collect()
}

struct Awk<'a> {
    constants: BTreeMap<String, String>,
    code: &'a Code<'a>,
    found: CodeNeeds,
}

impl Awk<'_> {
    fn statements(&mut self, tokens: &[Token<'_>]) {
        let mut at = 0;
        // Brackets that are open, of the statement that prints.
        let mut printing: Option<u32> = None;
        let mut depth = 0_u32;
        while let Some(token) = tokens.get(at) {
            let rest = tokens.get(at + 1..).unwrap_or_default();
            match token {
                Token::Name("print" | "printf") => printing = Some(depth),
                Token::End | Token::Mark("{" | "}") => printing = None,
                Token::Mark("(") => depth += 1,
                Token::Mark(")") => depth = depth.saturating_sub(1),
                Token::Mark(">" | ">>") if printing == Some(depth) => self.file(rest, true),
                Token::Mark("|" | "|&") => {
                    if rest.first() == Some(&Token::Name("getline")) {
                        let before = tokens.get(..at).unwrap_or_default();
                        self.command(&operand_before(before));
                    } else if printing.is_some() {
                        self.command(rest);
                    }
                }
                Token::Name("getline") => {
                    let from = rest
                        .iter()
                        .take(2)
                        .position(|token| *token == Token::Mark("<"));
                    let piped = at > 0 && matches!(tokens.get(at - 1), Some(Token::Mark("|")));
                    if let Some(from) = from.filter(|_| !piped) {
                        self.file(rest.get(from + 1..).unwrap_or_default(), false);
                    }
                }
                Token::Name("system") if rest.first() == Some(&Token::Mark("(")) => {
                    self.command(rest);
                }
                Token::Mark("@") => {
                    let why = "awk loads another program";
                    self.found.needs.unsure(Unsure::Everything, why);
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// A text that is put together from literals and constants, up to what is not known.
    fn value(&self, tokens: &[Token<'_>]) -> Value {
        let mut value = Value {
            known: String::new(),
            whole: true,
        };
        let mut depth = 0_u32;
        for token in tokens {
            match token {
                Token::Text(text) => value.known.push_str(text),
                Token::Name(name) if self.constants.contains_key(*name) => {
                    value
                        .known
                        .push_str(self.constants.get(*name).map_or("", String::as_str));
                }
                Token::Mark("(") => depth += 1,
                Token::Mark(")") if depth > 1 => depth -= 1,
                Token::Mark(")" | "}") | Token::End => return value,
                _ => {
                    value.whole = false;
                    return value;
                }
            }
        }
        value
    }

    fn file(&mut self, tokens: &[Token<'_>], writes: bool) {
        let value = self.value(tokens);
        let (what, verb) = match writes {
            true => (Unsure::Writes, "writes"),
            false => (Unsure::Reads, "reads"),
        };
        // Of a name whose end is not known, the directory.
        let path = match value.whole {
            true => Some(value.known.as_str()),
            false => value
                .known
                .rfind('/')
                .filter(|at| *at > 0)
                .and_then(|at| value.known.get(..at)),
        };
        match (path.filter(|path| !path.is_empty()), self.code.cwd) {
            (Some("-"), _) => {}
            (Some(path), Some(cwd)) => match writes {
                true => self.found.needs.write(tidy(cwd, path)),
                false => self.found.needs.read(tidy(cwd, path)),
            },
            _ => {
                let why = format!("awk {verb} a file whose name is computed");
                self.found.needs.unsure(what, why);
            }
        }
    }

    fn command(&mut self, tokens: &[Token<'_>]) {
        let value = self.value(tokens);
        // A command whose arguments are not known is read as far as it goes.
        let text = match (value.whole, value.known.trim().contains(' ')) {
            (true, _) => Some(value.known),
            (false, true) => Some(format!("{}${{IRONCAGE_UNKNOWN}}", value.known)),
            (false, false) => None,
        };
        match text.filter(|text| !text.trim().is_empty()) {
            Some(text) => self.found.commands.push(CodeCommand {
                text: CommandText::Script(text),
                cwd: None,
            }),
            None => self.found.needs.unsure(
                Unsure::Everything,
                "awk executes a command that is not known",
            ),
        }
    }
}

/// The operand that ends here: what stands since the statement, or its bracket, began.
fn operand_before<'t>(tokens: &[Token<'t>]) -> Vec<Token<'t>> {
    let ends = |token: &&Token<'_>| {
        matches!(
            token,
            Token::End | Token::Mark("{" | "}" | "(" | "&&" | "||" | "=" | ",")
        )
    };
    let count = tokens.iter().rev().take_while(|token| !ends(token)).count();
    tokens
        .get(tokens.len() - count..)
        .unwrap_or_default()
        .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_intent::Argument;
    use std::path::Path;

    fn of(text: &str) -> CodeNeeds {
        read(&Code {
            language: "awk",
            text,
            path: None,
            cwd: Some(Path::new("/w")),
            home: None,
            arguments: &[Argument {
                text: "given=/in".to_owned(),
                whole: true,
            }],
            file: &|_| None,
            written: &[],
        })
    }

    #[test]
    fn files_and_commands_are_found_where_awk_leaves_its_input() {
        let found = of(
            "BEGIN { dir = \"/out/\"; while ((getline line < \"look.csv\") > 0) n++ }\n\
             $3 > 5 && /a\\/b>c/ { print $1, ($2 > 1) > (dir \"big.txt\") }\n\
             { printf \"%s\\n\", $1 | \"sort > sorted\" }\n\
             END { \"date +%F\" | getline day; print day >> \"log\"; system(\"rm -f old\"); getline x < given }",
        );
        let reads: Vec<_> = found
            .needs
            .reads
            .iter()
            .map(|p| p.display().to_string())
            .collect();
        let writes: Vec<_> = found
            .needs
            .writes
            .iter()
            .map(|p| p.display().to_string())
            .collect();
        assert_eq!(reads, ["/in", "/w/look.csv"]);
        assert_eq!(writes, ["/out/big.txt", "/w/log"]);
        let scripts: Vec<_> = found
            .commands
            .iter()
            .map(|command| match &command.text {
                CommandText::Script(text) => text.as_str(),
                CommandText::Words(_) => "",
            })
            .collect();
        assert_eq!(scripts, ["sort > sorted", "date +%F", "rm -f old"]);
        assert!(found.needs.unknown.is_empty(), "{:?}", found.needs.unknown);
    }

    #[test]
    fn a_comparison_is_not_a_file_and_a_computed_name_is_not_known() {
        assert!(of("$1 > 3 { print }").needs.unknown.is_empty());
        assert!(of("$1 > 3 { print }").needs.writes.is_empty());
        let computed = of("{ print > $1 \".txt\" }");
        assert_eq!(computed.needs.unknown.len(), 1);
        let below = of("{ print > \"/out/\" $1 }");
        assert!(below.needs.writes.contains(Path::new("/out")));
        assert!(
            of("{ system($0) }")
                .needs
                .unknown
                .iter()
                .any(|unknown| unknown.what == Unsure::Everything)
        );
    }
}
