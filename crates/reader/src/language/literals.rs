//! Languages without a grammar here: Perl, Ruby, PHP, R. Their string literals are taken for
//! what they look like, and what else they do is unknown.

use ironcage_intent::{
    Code, CodeCommand, CodeNeeds, CommandText, Destination, Unsure, destination, tidy,
};
use std::borrow::Cow;

/// Longest text that is searched.
const LONGEST: usize = 256 * 1024;

/// Literals that are looked at.
const MOST_LITERALS: usize = 2000;

/// Names whose uses are looked for: each is a search of the whole text.
const MOST_NAMES: usize = 100;

/// A string literal, or an argument of the program, with what stands around it on its line.
struct Literal<'t> {
    text: Cow<'t, str>,
    line: usize,
    before: &'t str,
    after: &'t str,
    quote: char,
}

/// Names of the arguments of a program, and the number of its first one.
const ARGUMENTS: [(&str, usize); 6] = [
    ("argv[", 1),
    ("$ARGV[", 0),
    ("ARGV[", 0),
    ("os.Args[", 1),
    ("args[", 0),
    ("args().nth(", 1),
];

fn literals<'t>(code: &Code<'t>, lines: &[&'t str]) -> Vec<Literal<'t>> {
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
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
                text: Cow::Borrowed(line.get(open + 1..close).unwrap_or_default()),
                line: number,
                before: line.get(..open).unwrap_or_default(),
                after: line.get(close + 1..).unwrap_or_default(),
                quote,
            });
            at = close + 1;
            if found.len() >= MOST_LITERALS {
                return found;
            }
        }
        for (name, first) in ARGUMENTS {
            let at = line.match_indices(name).map(|(at, _)| at).take(8);
            found.extend(at.filter_map(|at| argument(code, (number, line), (name, at), first)));
        }
        if found.len() >= MOST_LITERALS {
            return found;
        }
    }
    found
}

/// `argv[2]`: the argument that was given there.
fn argument<'t>(
    code: &Code<'t>,
    (number, line): (usize, &'t str),
    (name, open): (&str, usize),
    first: usize,
) -> Option<Literal<'t>> {
    // `$ARGV[0]` and `argv[0]` are others than `ARGV[0]` and `sys.argv[0]`.
    let before = line.get(..open)?;
    if before.ends_with(|char: char| char.is_alphanumeric() || "$_.".contains(char)) {
        return None;
    }
    let rest = line.get(open + name.len()..)?;
    let end = rest.find([']', ')'])?;
    let at = rest
        .get(..end)?
        .trim()
        .parse::<usize>()
        .ok()?
        .checked_sub(first)?;
    let given = code.arguments.get(at).filter(|given| given.whole)?;
    let fits = |char: char| char.is_alphanumeric() || "/._-+@~".contains(char);
    let is_name = given.text.chars().all(fits)
        && given.text.chars().any(char::is_alphabetic)
        && given.text.contains(['/', '.']);
    (is_name && !given.text.starts_with('-')).then(|| Literal {
        text: Cow::Owned(given.text.clone()),
        line: number,
        before,
        after: rest.get(end + 1..).unwrap_or_default(),
        quote: ' ',
    })
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
    let mut names = 0;
    let lines: Vec<&str> = code.text.lines().collect();
    for literal in literals(code, &lines) {
        let before = literal.before.trim_end();
        let text: &str = &literal.text;
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
        let is_text = literal.quote != ' ';
        if is_text && (literal.quote == '`' || starts.iter().any(|name| called.ends_with(name))) {
            // In Go it is a text of many lines, or the tag of a field.
            if literal.quote == '`' && code.language == "compiled" {
                continue;
            }
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
        let alone = before.trim().is_empty() && literal.after.trim().is_empty();
        let imported = alone && !text.starts_with('/') && code.language == "compiled";
        if (is_text && !is_path(text)) || imported || is_route(before) {
            continue;
        }
        let plain = text.trim_start_matches(['<', '>', '+', ' ']);
        match is_written(&literal, &lines, &mut names) {
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

/// Whether a text is the address of a page that a server has.
fn is_route(before: &str) -> bool {
    let routes = [
        "HandleFunc(",
        "Handle(",
        ".route(",
        ".GET(",
        ".POST(",
        ".get(",
        ".post(",
        "@app.",
        "get ",
        "post ",
        "Redirect(",
    ];
    routes
        .iter()
        .any(|route| before.trim_end().ends_with(route.trim_end()))
}

/// What stands beside a path that is made, changed or removed.
const WRITES: [&str; 59] = [
    "\"w",
    "'w",
    "\"a\"",
    "'a'",
    "\"a+",
    "'a+",
    "\"r+",
    "'>",
    "\">",
    "ofstream",
    "::create(",
    ".create(",
    "create_new(",
    "o_wronly",
    "o_creat",
    "o_rdwr",
    "o_append",
    "o_trunc",
    "writefile",
    "write_file",
    "fs::write",
    "filewriter",
    "printwriter",
    "outputstream",
    "bufferedwriter",
    "newbufferedwriter",
    "files.write",
    "unlink",
    "remove",
    "mkdir",
    "create_dir",
    "createdirectories",
    "rename",
    "save",
    "delete",
    "rm_",
    "put_contents",
    "sink(",
    "png(",
    "pdf(",
    "jpeg(",
    "svg(",
    "write.",
    "write(",
    "write_",
    "saverds",
    "ggsave",
    "dump",
    "append(true",
    "write(true",
    "imwrite",
    "export",
    "open_out",
    "mkfifo",
    "symlink",
    "truncate",
    "freopen",
    "file.copy",
    "fwrite(",
];

/// Whether a path is written: by what stands beside it, or beside the name that it gets.
fn is_written(literal: &Literal<'_>, lines: &[&str], names: &mut usize) -> bool {
    if literal.text.starts_with('>') {
        return true;
    }
    let writes = |text: &str| {
        let text = text.to_ascii_lowercase();
        WRITES.iter().any(|mark| text.contains(mark))
    };
    // Only its own statement, up to the next path.
    let from = literal.before.rfind(';').map_or(0, |at| at + 1);
    let before = literal.before.get(from..).unwrap_or_default();
    // A path before it is the subject of its own call.
    let from = before.rfind("/").map_or(0, |slash| {
        before
            .get(slash..)
            .and_then(|rest| rest.find(['"', '\'']))
            .map_or(0, |end| slash + end + 1)
    });
    let before = before.get(from..).unwrap_or_default();
    let ends = literal.after.find(';').unwrap_or(literal.after.len());
    let after = literal.after.get(..ends).unwrap_or_default();
    let after = after.split("\"/").next().unwrap_or_default();
    if writes(before) || writes(after) {
        return true;
    }
    // A chain of calls over several lines.
    let above = literal.line.saturating_sub(4)..literal.line;
    if literal.before.trim_start().starts_with('.')
        && lines.get(above).unwrap_or_default().iter().any(|line| {
            let line = line.trim_start();
            (line.starts_with('.') || line.ends_with("new()")) && writes(line)
        })
    {
        return true;
    }
    let Some(name) = bound(literal.before).filter(|_| *names < MOST_NAMES) else {
        return false;
    };
    *names += 1;
    let uses = lines
        .iter()
        .enumerate()
        .filter(|(number, line)| *number != literal.line && contains_name(line, name));
    uses.take(8).any(|(_, line)| {
        let at = line.find(name).unwrap_or_default();
        let from = line.get(..at).and_then(|before| before.rfind(';'));
        let rest = line.get(from.map_or(0, |at| at + 1)..).unwrap_or_default();
        writes(rest)
    })
}

/// The name that a value on this line gets: `#define NAME`, `const char *name =`, `name := `.
fn bound(before: &str) -> Option<&str> {
    let is_name = |char: char| char.is_alphanumeric() || char == '_' || char == '$';
    let text = before.trim_end();
    let text = match text.strip_prefix("#define ") {
        Some(name) => name.trim(),
        None => {
            let text = text.strip_suffix("<-").or_else(|| text.strip_suffix('='))?;
            let text = text.trim_end_matches([':', '|', '?', ' ']);
            // A type after the name.
            let text = text.split(": ").next().unwrap_or(text);
            text.trim_end_matches("[]")
        }
    };
    let at = text
        .rfind(|char: char| !is_name(char))
        .map_or(0, |at| at + 1);
    text.get(at..).filter(|name| name.len() > 1)
}

fn contains_name(line: &str, name: &str) -> bool {
    let is_name = |char: char| char.is_alphanumeric() || char == '_';
    line.match_indices(name).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        let after = line
            .get(at + name.len()..)
            .and_then(|text| text.chars().next());
        !before.is_some_and(is_name) && !after.is_some_and(is_name)
    })
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
