//! Languages without a grammar here: Perl, Ruby, PHP, R. Their string literals are taken for
//! what they look like, and what else they do is unknown.

use ironcage_intent::{
    Code, CodeCommand, CodeNeeds, CommandText, Destination, Unsure, destination, tidy,
};

/// Longest text that is searched.
const LONGEST: usize = 256 * 1024;

/// Literals that are looked at.
const MOST_LITERALS: usize = 2000;

/// A string literal with what stands around it on its line.
struct Literal<'t> {
    text: &'t str,
    before: &'t str,
    after: &'t str,
    quote: char,
}

fn literals(text: &str) -> Vec<Literal<'_>> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut at = 0;
        while let Some(open) = line.get(at..).and_then(|rest| rest.find(['"', '\'', '`'])) {
            let open = at + open;
            let quote = line
                .get(open..)
                .and_then(|rest| rest.chars().next())
                .unwrap_or('"');
            let Some(close) = closing(line, open + 1, quote) else {
                break;
            };
            found.push(Literal {
                text: line.get(open + 1..close).unwrap_or_default(),
                before: line.get(..open).unwrap_or_default(),
                after: line.get(close + 1..).unwrap_or_default(),
                quote,
            });
            at = close + 1;
            if found.len() >= MOST_LITERALS {
                return found;
            }
        }
    }
    found
}

/// Where a literal ends.
fn closing(line: &str, from: usize, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, char) in line.get(from..)?.char_indices() {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            char if char == quote => return Some(from + at),
            _ => {}
        }
    }
    None
}

fn script(text: &str) -> CodeCommand {
    CodeCommand {
        text: CommandText::Script(text.replace("\\\"", "\"").replace("\\n", "\n")),
        cwd: None,
    }
}

/// A program in a language whose calls are not known.
pub(crate) fn any(code: &Code<'_>) -> CodeNeeds {
    let mut found = CodeNeeds::default();
    let (true, Some(cwd)) = (code.text.len() <= LONGEST, code.cwd) else {
        found.needs.unsure(
            Unsure::Everything,
            "the code is too long, or where it runs is not known",
        );
        return found;
    };
    let mut executes = false;
    for literal in literals(code.text) {
        let before = literal.before.trim_end();
        let text = literal.text;
        let starts = [
            "system",
            "exec",
            "shell_exec",
            "passthru",
            "popen",
            "qx",
            "spawn",
            "`",
        ];
        let called = before.trim_end_matches(['(', ' ']);
        if literal.quote == '`' || starts.iter().any(|name| called.ends_with(name)) {
            executes = true;
            found.commands.push(script(text));
            continue;
        }
        if text.contains("://") {
            if let Some(to @ Destination::Host { .. }) = destination(text, true) {
                found.needs.destination(to);
            }
            continue;
        }
        if !is_path(text) {
            continue;
        }
        let plain = text.trim_start_matches(['<', '>', '+', ' ']);
        let line = format!("{before} {}", literal.after).to_ascii_lowercase();
        let writes = text.starts_with('>')
            || before.contains("'>")
            || before.contains("\">")
            || [
                "write",
                "unlink",
                "mkdir",
                "rename",
                "save",
                "delete",
                "rm_",
                "put_contents",
                "\"w",
                "'w",
                "\"a\"",
                "'a'",
            ]
            .iter()
            .any(|mark| line.contains(mark));
        match writes {
            true => found.needs.write(tidy(cwd, plain)),
            false => found.needs.read(tidy(cwd, plain)),
        }
    }
    let calls = ["system", "exec(", "qx", "popen", "eval", "spawn", "`"];
    if !executes && calls.iter().any(|call| code.text.contains(call)) {
        let why = format!("{} code may execute something else", code.language);
        found.needs.unsure(Unsure::Everything, why);
    }
    let why = format!("{} code is only searched for literals", code.language);
    found.needs.unsure(Unsure::Reads, why.clone());
    found.needs.unsure(Unsure::Writes, why);
    found
}

/// Whether a literal looks like a path.
fn is_path(text: &str) -> bool {
    let text = text.trim_start_matches(['<', '>', '+', ' ']);
    let fits = |char: char| char.is_alphanumeric() || "/._-+@~".contains(char);
    if text.len() < 3 || text.len() > 256 || !text.chars().all(fits) {
        return false;
    }
    let ending = text
        .rsplit('/')
        .next()
        .and_then(|name| name.rsplit_once('.'));
    let ending = ending.is_some_and(|(stem, end)| {
        !stem.is_empty()
            && (2..=5).contains(&end.len())
            && end.chars().all(|char| char.is_ascii_alphanumeric())
            && end.chars().any(|char| char.is_ascii_alphabetic())
    });
    ending || (text.starts_with('/') && text.matches('/').count() > 1)
}
