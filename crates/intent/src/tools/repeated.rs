//! Commands that a tool executes: once, as `env` does, or for each thing that it finds or reads, as
//! `find -exec`, `fd -x`, `xargs` and `parallel` do.

use super::arguments::Parsed;
use super::table::Tool;
use crate::needs::Unsure;
use crate::shell::Word;
use crate::shell::walk::{ShellInput, Walk};

/// Inputs for which a command is read one by one.
const MOST_INPUTS: usize = 64;
/// What stands for one input in `find`, `fd` and `parallel`.
const MARKS: [&str; 5] = ["{}", "{.}", "{/}", "{//}", "{/.}"];
/// Before inputs that `parallel` gets as arguments, and before files of them.
const INPUTS: &str = ":::";
const INPUT_FILES: &str = "::::";

/// Something below a place, found there.
pub(super) fn found_in(place: Option<&Word>) -> Word {
    let place = match place {
        Some(Word::Plain(place)) => place.as_str(),
        Some(other) => return other.clone(),
        None => ".",
    };
    Word::Pattern {
        text: format!("{place}/{{}}"),
        fixed: place.len() + 1,
    }
}

/// The words of a command for one input. Where no word has a mark, the input comes last if the tool
/// `appends` it.
pub(super) fn for_each(words: &[Word], given: &Word, appends: bool) -> Vec<Word> {
    let marked = |word: &&Word| MARKS.iter().any(|mark| word.known().contains(mark));
    let has_mark = words.iter().any(|word| marked(&word));
    let fill = |word: &Word| {
        let marks = MARKS.into_iter();
        marks.fold(word.clone(), |word, mark| filled(&word, mark, given))
    };
    let mut filled: Vec<Word> = words.iter().map(fill).collect();
    if appends && !has_mark {
        filled.push(given.clone());
    }
    filled
}

/// A word in which an input stands in the place of a mark.
fn filled(word: &Word, mark: &str, given: &Word) -> Word {
    let Some(text) = word.text() else {
        return word.clone();
    };
    let Some((before, after)) = text.split_once(mark) else {
        return word.clone();
    };
    if before.is_empty() && after.is_empty() {
        return given.clone();
    }
    match given {
        Word::Plain(given) => Word::Plain(text.replace(mark, given)),
        Word::Open { source, known } => Word::Open {
            known: match before.is_empty() {
                true => known.clone(),
                false => before.to_owned(),
            },
            source: source.clone(),
        },
        // A script in which it stands: there it is a pattern of the shell.
        Word::Pattern { text: given, fixed } if text.contains(char::is_whitespace) => {
            let pattern = format!("{}*", given.get(..*fixed).unwrap_or_default());
            let quoted = text.replace(&format!("\"{mark}\""), mark);
            let quoted = quoted.replace(&format!("'{mark}'"), mark);
            Word::Plain(quoted.replace(mark, &pattern))
        }
        Word::Pattern { text: given, fixed } if before.is_empty() => Word::Pattern {
            text: text.replace(mark, given),
            fixed: *fixed,
        },
        Word::Pattern { .. } => Word::Pattern {
            text: text.replace(mark, "*"),
            fixed: before.len(),
        },
    }
}

/// A command that a tool executes, with what the tool adds to it.
pub(super) fn wrapped(
    walk: &mut Walk<'_, '_>,
    name: &str,
    tool: &Tool,
    parsed: &Parsed,
    words: &[Word],
) {
    let mut words = words.to_vec();
    while let Some(variable) = words.first().filter(|_| tool.assigns) {
        let Some((variable, _)) = variable.known().split_once('=') else {
            break;
        };
        if !walk.table.environment.is_harmless(variable) {
            let why = format!("`{variable}` may change what the program does");
            walk.needs.unsure(Unsure::Everything, why);
        }
        words.remove(0);
    }
    if tool.appends.is_empty() {
        execute(walk, tool, &words);
        return;
    }
    let is_inputs = |word: &Word| word.text().is_some_and(|text| text.starts_with(INPUTS));
    if let Some(at) = words.iter().position(is_inputs).filter(|_| tool.joins) {
        let (command, inputs) = words.split_at(at);
        with_arguments(walk, name, tool, (command, inputs));
        return;
    }
    let replaced = parsed
        .options
        .iter()
        .find(|option| option.is(&tool.appends));
    let mark = replaced.and_then(|option| option.value.as_ref());
    let mark = mark.and_then(Word::text).filter(|mark| !mark.is_empty());
    let mark = mark.or(tool.joins.then_some("{}"));
    for given in inputs(walk, name, parsed, mark.is_some()) {
        let mut command = words.clone();
        match mark {
            Some(mark) if words.iter().any(|word| word.known().contains(mark)) => {
                command = words
                    .iter()
                    .map(|word| filled(word, mark, &given[0]))
                    .collect();
            }
            _ => command.extend(given),
        }
        execute(walk, tool, &command);
    }
}

fn execute(walk: &mut Walk<'_, '_>, tool: &Tool, words: &[Word]) {
    let known: Option<Vec<&str>> = words
        .iter()
        .map(|word| match word {
            Word::Plain(text) => Some(text.as_str()),
            Word::Pattern { .. } | Word::Open { .. } => None,
        })
        .collect();
    match known.filter(|_| tool.joins) {
        Some(words) => walk.script(&words.join(" "), None),
        None => walk.call(words),
    }
}

/// `parallel COMMAND ::: INPUT...`: the command for each input, which is a command without one.
fn with_arguments(
    walk: &mut Walk<'_, '_>,
    name: &str,
    tool: &Tool,
    (command, inputs): (&[Word], &[Word]),
) {
    let open = Word::Open {
        known: String::new(),
        source: format!("an input of `{name}`"),
    };
    let (mut given, mut from_files) = (Vec::new(), false);
    for word in inputs {
        match word.text() {
            Some(text) if text.starts_with(INPUTS) => from_files = text.starts_with(INPUT_FILES),
            _ if from_files => {
                walk.read(word);
                given = vec![open.clone(); MOST_INPUTS + 1];
            }
            _ => given.push(word.clone()),
        }
    }
    if given.len() > MOST_INPUTS {
        given = vec![open];
    }
    for input in given {
        match (command, &input) {
            ([], Word::Plain(script)) => walk.script(script, None),
            ([], other) => {
                let source = other.source();
                let why = format!("`{name}` executes text that is not known: {source}");
                walk.needs.unsure(Unsure::Everything, why);
            }
            _ => execute(walk, tool, &for_each(command, &input, true)),
        }
    }
}

/// What a tool adds to its command, for each time that it executes it: the words of an input that is
/// in the text, one line or one word at a time where the options say so; else what a search found.
fn inputs(walk: &Walk<'_, '_>, name: &str, parsed: &Parsed, by_line: bool) -> Vec<Vec<Word>> {
    let given = |names: &[&str]| {
        let mut options = parsed.options.iter();
        options.any(|option| names.contains(&option.name.as_str()))
    };
    let elsewhere = given(&["-a", "--arg-file", "-0", "--null", "-d", "--delimiter"]);
    if let ShellInput::Text(text) = &walk.scope.input
        && !elsewhere
        && !text.contains(['\'', '"', '\\'])
    {
        let parts: Vec<&str> = match by_line {
            true => text
                .lines()
                .map(str::trim)
                .filter(|line| !line.is_empty())
                .collect(),
            false => text.split_whitespace().collect(),
        };
        let words = parts.iter().map(|part| Word::Plain((*part).to_owned()));
        if !parts.is_empty() && parts.len() <= MOST_INPUTS {
            return match by_line || given(&["-n", "-L", "--max-args", "--max-lines"]) {
                true => words.map(|word| vec![word]).collect(),
                false => vec![words.collect()],
            };
        }
    }
    let found = walk.found.clone().unwrap_or_else(|| Word::Open {
        known: String::new(),
        source: format!("the input of `{name}`"),
    });
    vec![vec![found]]
}
