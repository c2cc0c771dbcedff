//! The table of known programs, and how it interprets a command's arguments.

mod arguments;
mod code;
mod compiled;
mod open;
mod place;
mod repeated;
mod scripts;
mod sql;
mod table;

use crate::needs::{Destination, Unsure};
use crate::shell::Word;
use crate::shell::walk::{ShellInput, Walk};
use arguments::{OptionArgument, Parsed};
pub use place::destination;
use repeated::{found_in, wrapped};
pub use table::{InvalidTable, Table};
use table::{Role, Tool};

/// Directories whose programs are those of the table.
const SYSTEM: &[&str] = &[
    "/bin/",
    "/sbin/",
    "/usr/bin/",
    "/usr/sbin/",
    "/usr/local/bin/",
];

/// Interprets a command that is not a shell builtin.
pub(crate) fn run(walk: &mut Walk<'_, '_>, name: &str, arguments: &[Word]) {
    let table = walk.table;
    let short = SYSTEM.iter().find_map(|place| name.strip_prefix(place));
    if short.is_none() && name.contains('/') {
        walk.needs.program(name);
        let word = Word::Plain(name.to_owned());
        // What this command compiled was written by it, and its text is the source's.
        let compiled = walk.is_compiled(&word);
        if !compiled {
            walk.read(&word);
        }
        let followed = walk.run_file(&word, arguments);
        if !followed || compiled {
            walk.literal_arguments(arguments);
        }
        if !followed {
            let why = format!("`{name}` is a separate program");
            walk.unread(&[".".to_owned()], &why);
        }
        return;
    }
    let short_name = short.unwrap_or(name);
    let Some(tool) = table.tool(short_name) else {
        walk.needs.program(name);
        // A script in a directory of the system that this command wrote.
        if short.is_some() && walk.run_file(&Word::Plain(name.to_owned()), arguments) {
            walk.read(&Word::Plain(name.to_owned()));
            return;
        }
        walk.literal_arguments(arguments);
        if short.is_none() && walk.run_placed(name, arguments) {
            return;
        }
        let why = format!("`{name}` is not in the table of tools");
        walk.installed(arguments, &why);
        return;
    };
    let short = short_name;
    if !tool.builtin {
        walk.needs.program(name);
    }
    walk.note_found(short, arguments);
    if matches!(short, "cp" | "install" | "mv") {
        walk.note_copied(arguments);
    }
    if matches!(
        short,
        "gcc"
            | "g++"
            | "cc"
            | "c++"
            | "clang"
            | "clang++"
            | "rustc"
            | "go"
            | "javac"
            | "gfortran"
            | "ghc"
            | "nim"
            | "zig"
            | "ocamlfind"
            | "ocamlopt"
            | "cobc"
    ) {
        walk.note_compiled(short, arguments);
    }
    walk.apart(|walk| {
        if tool.language.as_deref() != Some("python") || !walk.python_module(arguments) {
            apply(walk, short, tool, arguments);
        }
    });
}

/// Reads arguments by a tool's line of the table.
fn apply(walk: &mut Walk<'_, '_>, name: &str, tool: &Tool, arguments: &[Word]) {
    if !tool.sub.is_empty() {
        sub_command(walk, name, tool, arguments);
        return;
    }
    let parsed = Parsed::read(tool, arguments);
    let mut case = tool.case(&parsed);
    let parsed = Parsed::read(&case, arguments);
    if let Some(port) = parsed.port() {
        case.port = port;
    }
    use_options(walk, name, &case, &parsed);
    use_operands(walk, name, &case, &parsed);
    let followed = case
        .follows
        .as_deref()
        .is_some_and(|what| walk.follow(what, name, &parsed));
    always(walk, &case, followed);
}

/// The tool's first operand says what it does.
fn sub_command(walk: &mut Walk<'_, '_>, name: &str, tool: &Tool, arguments: &[Word]) {
    let parsed = Parsed::first_only(tool, arguments);
    use_options(walk, name, tool, &parsed);
    let rest = arguments.get(parsed.used..).unwrap_or_default();
    let Some((word, rest)) = rest.split_first() else {
        // By itself it only tells how it is used, unless the table says otherwise.
        always(walk, tool, false);
        return;
    };
    let sub = word.text().and_then(|text| tool.sub.get(text));
    match sub {
        Some(sub) => {
            let sub = sub.below(tool);
            let name = format!("{name} {}", word.source());
            apply(walk, &name, &sub, rest);
        }
        None => {
            let why = format!("`{name} {}` is not in the table of tools", word.source());
            walk.literal_arguments(rest);
            walk.installed(rest, &why);
        }
    }
}

fn use_options(walk: &mut Walk<'_, '_>, name: &str, tool: &Tool, parsed: &Parsed) {
    let outside = |given: &&OptionArgument| given.is(&tool.from_outside);
    for given in parsed.options.iter().filter(outside) {
        if let (Some(role), Some(value)) = (given.role, &given.value) {
            use_word(walk, name, tool, role, value);
        }
    }
    // Then those that say where the tool works.
    for given in &parsed.options {
        if let (Some(Role::Directory), Some(value)) = (given.role, &given.value) {
            walk.scope.cwd = match value {
                Word::Plain(_) => walk.path(value, Unsure::Everything),
                _ => None,
            };
        }
    }
    for given in parsed.options.iter().filter(|given| !outside(given)) {
        match (given.role, &given.value) {
            (Some(Role::Code | Role::Program), Some(_)) if tool.language.is_some() => {
                code_option(walk, name, tool, parsed, given);
            }
            (Some(role), Some(value)) => use_word(walk, name, tool, role, value),
            (None, Some(value)) if value.source().contains('/') => {
                let why = format!(
                    "`{name}` has no option `{}` in the table of tools",
                    given.name
                );
                let whole = Word::Plain(format!("{}={}", given.name, value.source()));
                if matches!(value, Word::Plain(_)) {
                    walk.literal_arguments(&[whole]);
                }
                walk.unread(&[".".to_owned()], &why);
            }
            _ => {}
        }
        if let Some(why) = tool.executes.get(given.name.as_str()) {
            let why = format!("`{name} {}`: {why}", given.name);
            walk.needs.unsure(Unsure::Everything, why);
        } else if let Some(whole) = tool.abbreviated(given) {
            let why = format!("`{name} {}` may mean `{whole}`", given.name);
            walk.needs.unsure(Unsure::Everything, why);
        }
    }
    for (name_of_option, words) in &parsed.commands {
        // What was found stands there: something below the places that were named.
        let words = match name {
            "fd" | "fdfind" => repeated::for_each(words, &found_in(parsed.operands.get(1)), true),
            _ => repeated::for_each(words, &found_in(parsed.operands.first()), false),
        };
        if words.is_empty() {
            let why = format!("`{name} {name_of_option}` executes text that is not known");
            walk.needs.unsure(Unsure::Everything, why);
        }
        walk.call(&words);
    }
}

fn use_operands(walk: &mut Walk<'_, '_>, name: &str, tool: &Tool, parsed: &Parsed) {
    let roles = tool.roles(parsed.operands.len());
    for (index, word) in parsed.operands.iter().enumerate() {
        let role = roles.get(index).copied().flatten();
        match role {
            Some(Role::Command) => {
                let words = parsed.operands.get(index..).unwrap_or_default();
                wrapped(walk, name, tool, parsed, words);
                return;
            }
            Some(Role::Script) => {
                let rest = parsed.operands.get(index + 1..).unwrap_or_default();
                script(walk, name, word, rest);
                return;
            }
            Some(Role::Program) => {
                let rest = parsed.operands.get(index + 1..).unwrap_or_default();
                program(walk, name, tool, word, rest);
                return;
            }
            Some(Role::Awk) => {
                let rest = parsed.operands.get(index + 1..).unwrap_or_default();
                awk(walk, name, word, rest);
            }
            Some(role) => use_word(walk, name, tool, role, word),
            None => {
                let why = format!("`{name}` has more arguments than the table of tools describes");
                walk.literal_arguments(std::slice::from_ref(word));
                walk.unread(&[".".to_owned()], &why);
            }
        }
    }
    // Code that an option brought is all that is executed.
    let brought = parsed
        .options
        .iter()
        .any(|given| matches!(given.role, Some(Role::Code | Role::Script | Role::Sql)));
    let is_sql = tool.language.as_deref() == Some("sql");
    let from_input = matches!(parsed.operands.as_slice(), [])
        || parsed.operands.first().and_then(Word::text) == Some("-")
        || (is_sql && !roles.contains(&Some(Role::Sql)));
    if tool.executes_input && from_input && !brought {
        match walk.scope.input.clone() {
            ShellInput::Text(text) if tool.input_is_shell => walk.script(&text, None),
            ShellInput::Text(text) if tool.language.as_deref() == Some("sql") => {
                sql::read(walk, name, &text);
            }
            ShellInput::Stream if !tool.within.is_empty() => {
                let why = format!("`{name}` executes its input");
                walk.unread(&tool.within, &why);
            }
            // A prompt, which nobody answers.
            ShellInput::Inherited if tool.language.as_deref() == Some("sql") => {}
            ShellInput::Text(text) if walk.code(tool.language.as_deref(), &text, None, &[]) => {}
            _ => {
                let why = format!("`{name}` executes its input");
                walk.needs.unsure(Unsure::Everything, why);
            }
        }
    }
}

/// Code, or a file with code, that an option names.
fn code_option(
    walk: &mut Walk<'_, '_>,
    name: &str,
    tool: &Tool,
    parsed: &Parsed,
    given: &OptionArgument,
) {
    let Some(value) = &given.value else {
        return;
    };
    match (given.role, value) {
        (Some(Role::Program), _) => program(walk, name, tool, value, &parsed.operands),
        (_, Word::Plain(text))
            if walk.code(tool.language.as_deref(), text, None, &parsed.operands) => {}
        _ => use_word(walk, name, tool, Role::Code, value),
    }
}

/// A file that is executed.
fn program(walk: &mut Walk<'_, '_>, name: &str, tool: &Tool, word: &Word, arguments: &[Word]) {
    if word.text() == Some("-") {
        // The standard input.
        return;
    }
    let text = walk.file_of(word);
    let path = walk.path(word, Unsure::Reads);
    if let (Some(text), Some(path)) = (text, path)
        && walk.code(tool.language.as_deref(), &text, Some(&path), arguments)
    {
        walk.needs.read(path);
        return;
    }
    walk.literal_arguments(arguments);
    use_word(walk, name, tool, Role::Program, word);
}

/// A program of awk.
fn awk(walk: &mut Walk<'_, '_>, name: &str, word: &Word, arguments: &[Word]) {
    match word {
        Word::Plain(text) if scripts::awk_only_prints(text) => {}
        Word::Plain(text) if walk.code(Some("awk"), text, None, arguments) => {}
        _ => {
            let why = format!("`{name}` executes code that is not analysed");
            walk.needs.unsure(Unsure::Everything, why);
        }
    }
}

/// What a tool needs whatever its arguments are.
fn always(walk: &mut Walk<'_, '_>, tool: &Tool, followed: bool) {
    walk.jobs |= tool.stays;
    for path in &tool.reads {
        walk.place(path, Walk::read);
    }
    for path in &tool.writes {
        walk.place(path, Walk::write);
    }
    if let Some(bundle) = &tool.contacts {
        walk.needs.destination(Destination::Bundle(bundle.clone()));
    }
    if let Some(remote) = &tool.remote {
        walk.needs.destination(Destination::Remote(remote.clone()));
    }
    if let Some(why) = tool.unknown.as_ref().filter(|_| !followed) {
        if tool.builds && walk.table.sources.is_some() {
            walk.place(".", Walk::read);
            walk.place(".", Walk::write);
        }
        walk.unread(&tool.within, why);
    }
}

fn script(walk: &mut Walk<'_, '_>, name: &str, word: &Word, arguments: &[Word]) {
    match word {
        Word::Plain(text) => {
            // After the script comes its name, and then its arguments.
            let given = arguments.get(1..).unwrap_or_default().to_vec();
            walk.script(text, Some(given));
        }
        other => {
            let why = format!(
                "`{name}` executes text that is not known: {}",
                other.source()
            );
            walk.needs.unsure(Unsure::Everything, why);
        }
    }
}

/// One word in its role.
fn use_word(walk: &mut Walk<'_, '_>, name: &str, tool: &Tool, role: Role, word: &Word) {
    match role {
        Role::Text | Role::Directory | Role::Port => {}
        // A hyphen is the standard input or output.
        Role::Read | Role::Write | Role::Change if word.text() == Some("-") => {}
        Role::Read => walk.read(word),
        Role::Write => walk.write(word),
        Role::Remove => walk.remove(word, false),
        Role::Clear => {
            walk.read(word);
            walk.remove(word, true);
        }
        Role::Change => {
            walk.read(word);
            walk.write(word);
        }
        Role::Beside => {
            walk.read(word);
            walk.write(&beside(word));
        }
        Role::Sed if word.text().is_some_and(scripts::sed_only_edits) => {}
        Role::Awk if word.text().is_some_and(scripts::awk_only_prints) => {}
        Role::Code | Role::Sed | Role::Awk => {
            let why = format!("`{name}` executes code that is not analysed");
            walk.needs.unsure(Unsure::Everything, why);
        }
        Role::Program => walk.executes_unread(name, word),
        Role::Keys => walk.typed(word),
        Role::GitSetting => {
            if word.text().is_none_or(code::git_setting_executes) {
                let why = format!("`{name}` gets a setting that can make it execute programs");
                walk.needs.unsure(Unsure::Everything, why);
            }
        }
        Role::FileUrl => {
            let schemes = ["file://", "fileb://"];
            let known = word.known();
            if let Some(scheme) = schemes.iter().find(|scheme| known.starts_with(**scheme)) {
                walk.read(&word.without(scheme.len()));
            }
        }
        Role::FileList => file_list(walk, word),
        Role::Script => script(walk, name, word, &[]),
        Role::Command => walk.call(std::slice::from_ref(word)),
        Role::Url => walk.url(name, word),
        Role::Host => walk.host(name, word, tool.port),
        Role::Remote => walk.remote(name, word),
        Role::FarRead | Role::FarWrite => {
            if !walk.far(name, word, tool.port) {
                match role {
                    Role::FarWrite => walk.write(word),
                    _ => walk.read(word),
                }
            }
        }
        Role::Sql => match word {
            Word::Plain(text) => {
                let text = text.clone();
                sql::read(walk, name, &text);
            }
            _ => walk.unread(
                &tool.within,
                &format!("`{name}` executes text that is not known"),
            ),
        },
        Role::Database if word.known().contains("://") => walk.url(name, word),
        Role::Database => {
            walk.place("/run/postgresql", Walk::read);
            walk.place("/run/postgresql", Walk::write);
        }
        Role::Prefix => walk.write(&beside(word)),
        Role::Pass => {
            if word.known().starts_with("file:") {
                walk.read(&word.without(5));
            }
        }
        Role::AtFile => {
            if word.known().starts_with('@') {
                use_word(walk, name, tool, Role::Read, &word.without(1));
            }
        }
        Role::FormFile => {
            let known = word.known();
            if let Some(at) = known.find(['@', '<']).filter(|at| *at > 0) {
                let value = word.without(at + 1);
                let end = value.known().find(';').unwrap_or(value.known().len());
                let value = match &value {
                    Word::Plain(text) => {
                        Word::Plain(text.get(..end).unwrap_or_default().to_owned())
                    }
                    other => other.clone(),
                };
                walk.read(&value);
            }
        }
        Role::Package => walk.package(name, word, tool.contacts.as_deref()),
        Role::Unknown => {
            let why = format!(
                "`{name}` gets {} in a form that is not analysed",
                word.source()
            );
            walk.needs.unsure(Unsure::Everything, why);
        }
    }
}

/// A list of settings, some of which are paths.
fn file_list(walk: &mut Walk<'_, '_>, word: &Word) {
    if word.known().starts_with("file:") {
        walk.write(&word.without(5));
        return;
    }
    let Some(text) = word.text().map(str::to_owned) else {
        return;
    };
    for part in text.split(',').take(16) {
        if let Some(path) = part.strip_prefix("file=") {
            let word = Word::Plain(path.to_owned());
            walk.read(&word);
            walk.write(&word);
        }
    }
}

/// The directory of a path.
fn beside(word: &Word) -> Word {
    match word {
        Word::Plain(text) => {
            let end = text.trim_end_matches('/').rfind('/');
            let directory = end.map_or(".", |end| text.get(..=end).unwrap_or("."));
            Word::Plain(directory.to_owned())
        }
        other => other.clone(),
    }
}

impl OptionArgument {
    /// Whether it is this option.
    fn is(&self, names: &[String]) -> bool {
        names.contains(&self.name)
    }
}
