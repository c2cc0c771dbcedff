//! Database shells: files that the commands of `sqlite3` and `psql` name. Statements stay in the
//! database, but for those that name files.

use crate::needs::Unsure;
use crate::shell::Word;
use crate::shell::walk::Walk;

/// Lines and statements that are looked at.
const MOST: usize = 4000;

/// Reads what a database shell is told to execute.
pub(super) fn read(walk: &mut Walk<'_, '_>, name: &str, text: &str) {
    let mut statements = String::new();
    for line in text.lines().take(MOST) {
        let command = line.trim_start();
        match command.chars().next() {
            Some('.') => dot(walk, name, command),
            Some('\\') => backslash(walk, name, command),
            Some('-') if command.starts_with("--") => {}
            _ => {
                statements.push_str(line);
                statements.push('\n');
            }
        }
    }
    if text.lines().nth(MOST).is_some() {
        walk.needs.unsure(
            Unsure::Everything,
            format!("the script of `{name}` is too long"),
        );
    }
    for statement in statements.split(';').take(MOST) {
        sql(walk, name, statement);
    }
}

fn plain(text: &str) -> Word {
    Word::Plain(text.trim_matches(['\'', '"']).to_owned())
}

/// Words of a command of the shell; quotes keep blanks.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    for char in line.chars() {
        match (char, quote) {
            (char, Some(open)) if char == open => quote = None,
            (char, Some(_)) => word.push(char),
            ('\'' | '"', None) => quote = Some(char),
            (char, None) if char.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            (char, None) => word.push(char),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// A command of `sqlite3`.
fn dot(walk: &mut Walk<'_, '_>, name: &str, line: &str) {
    let words = words(line);
    let Some((command, rest)) = words.split_first() else {
        return;
    };
    let operands: Vec<&String> = rest.iter().filter(|word| !word.starts_with('-')).collect();
    let first = operands.first().map(|word| word.as_str());
    let last = operands.last().map(|word| word.as_str());
    match command.as_str() {
        ".output" | ".once" | ".log" | ".excel" => {
            if let Some(command) = first.and_then(|first| first.strip_prefix('|')) {
                let rest = operands.get(1..).unwrap_or_default().iter();
                let words: Vec<&str> = rest.map(|word| word.as_str()).collect();
                walk.script(&format!("{command} {}", words.join(" ")), None);
            } else if let Some(path) =
                first.filter(|path| !matches!(*path, "stdout" | "off" | "on" | "stderr"))
            {
                walk.write(&plain(path));
            }
        }
        ".import" => match first {
            Some(command) if command.starts_with('|') => {
                walk.script(command.trim_start_matches('|'), None);
            }
            Some(path) => walk.read(&plain(path)),
            None => {}
        },
        ".read" => {
            if let Some(path) = first {
                script_file(walk, name, path);
            }
        }
        ".backup" | ".save" | ".clone" | ".archive" | ".ar" => {
            last.map(plain)
                .into_iter()
                .for_each(|word| walk.write(&word));
        }
        ".open" => {
            if let Some(path) = last {
                walk.read(&plain(path));
                walk.write(&plain(path));
            }
        }
        ".restore" => last
            .map(plain)
            .into_iter()
            .for_each(|word| walk.read(&word)),
        ".cd" => match first {
            Some(path) => walk.scope.cwd = walk.path(&plain(path), Unsure::Everything),
            None => walk.scope.cwd = None,
        },
        ".shell" | ".system" => {
            let script = line.split_once(char::is_whitespace).map(|(_, rest)| rest);
            walk.script(script.unwrap_or_default(), None);
        }
        ".load" => walk.needs.unsure(
            Unsure::Everything,
            format!("`{name}` loads a library with `.load`"),
        ),
        _ => {}
    }
}

/// A file with more statements and commands.
fn script_file(walk: &mut Walk<'_, '_>, name: &str, path: &str) {
    let word = plain(path);
    walk.read(&word);
    let text = walk.file_of(&word).filter(|_| walk.deeper());
    match text {
        Some(text) => {
            read(walk, name, &text);
            walk.nested -= 1;
        }
        None => walk.unread(&[".".to_owned()], &format!("`{name}` executes {path}")),
    }
}

/// A command of `psql`.
fn backslash(walk: &mut Walk<'_, '_>, name: &str, line: &str) {
    let words = words(line);
    let Some((command, rest)) = words.split_first() else {
        return;
    };
    let first = rest.first().map(String::as_str);
    match (command.as_str(), first) {
        ("\\o" | "\\out" | "\\g" | "\\w", Some(path)) => match path.strip_prefix('|') {
            Some(command) => {
                let rest = rest.get(1..).unwrap_or_default();
                walk.script(&format!("{command} {}", rest.join(" ")), None);
            }
            None => walk.write(&plain(path)),
        },
        ("\\i" | "\\ir" | "\\include", Some(path)) => script_file(walk, name, path),
        ("\\copy", _) => copy(walk, name, line),
        ("\\cd", Some(path)) => walk.scope.cwd = walk.path(&plain(path), Unsure::Everything),
        ("\\!", _) => walk.script(line.trim_start_matches("\\!"), None),
        ("\\c" | "\\connect", Some(_)) if rest.len() > 2 => walk.needs.unsure(
            Unsure::Destinations,
            format!("`{name}` connects to another server"),
        ),
        _ => {}
    }
}

/// `COPY x TO 'file'`, `COPY x FROM PROGRAM '…'`.
fn copy(walk: &mut Walk<'_, '_>, name: &str, statement: &str) {
    let words = words(statement);
    let at = words
        .iter()
        .rposition(|word| matches!(word.to_ascii_lowercase().as_str(), "to" | "from"));
    let Some(at) = at else {
        return;
    };
    let writes = words
        .get(at)
        .is_some_and(|word| word.eq_ignore_ascii_case("to"));
    let Some(path) = words.get(at + 1) else {
        return;
    };
    match path.to_ascii_lowercase().as_str() {
        "stdin" | "stdout" | "pstdin" | "pstdout" => {}
        "program" => walk.needs.unsure(
            Unsure::Everything,
            format!("`{name}` executes a program with COPY"),
        ),
        _ if writes => walk.write(&plain(path)),
        _ => walk.read(&plain(path)),
    }
}

/// A statement that names files, or loads a library.
fn sql(walk: &mut Walk<'_, '_>, name: &str, statement: &str) {
    let lower = statement.to_ascii_lowercase();
    let start = lower.trim_start();
    if start.starts_with("copy ") {
        copy(walk, name, statement);
    }
    // What names a file, and whether it is read and written.
    for (function, reads, writes) in [
        ("readfile(", true, false),
        ("writefile(", false, true),
        ("attach ", true, true),
        ("vacuum into", false, true),
        ("into outfile", false, true),
        ("load_file(", true, false),
    ] {
        for (at, _) in lower.match_indices(function).take(64) {
            let rest = statement.get(at + function.len()..).unwrap_or_default();
            let literal = rest.find('\'').and_then(|open| {
                let rest = rest.get(open + 1..)?;
                rest.split('\'').next()
            });
            match literal {
                Some(path) if path.starts_with(':') => {}
                Some(path) => {
                    let path = Word::Plain(path.to_owned());
                    if reads {
                        walk.read(&path);
                    }
                    if writes {
                        walk.write(&path);
                    }
                }
                None => walk.unread(
                    &[".".to_owned()],
                    &format!("`{name}` names a file that is not known"),
                ),
            }
        }
    }
    if lower.contains("load_extension(") {
        let why = format!("`{name}` loads a library");
        walk.needs.unsure(Unsure::Everything, why);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Context, Shell, Table, Unsure};

    fn needs(command: &str) -> (Vec<String>, Vec<String>, bool) {
        let table = Table::shipped().expect("the table");
        let context = Context {
            cwd: "/w".into(),
            home: None,
        };
        let needs = Shell::new(&table).read(command, &context);
        let told = |paths: &std::collections::BTreeSet<std::path::PathBuf>| {
            let paths = paths.iter().map(|path| path.display().to_string());
            paths.collect::<Vec<_>>()
        };
        let everything = |unknown: &crate::Unknown| unknown.what == Unsure::Everything;
        (
            told(&needs.reads),
            told(&needs.writes),
            needs.unknown.iter().any(everything),
        )
    }

    #[test]
    fn statements_stay_in_the_database_and_commands_name_files() {
        let (reads, writes, open) = needs(
            "sqlite3 a.db <<'E'\n.import in.csv t\n.output out.csv\nselect 1;\nattach 'b.db' as b;\n.output stdout\nE",
        );
        assert_eq!(reads, ["/w/a.db", "/w/b.db", "/w/in.csv"]);
        assert_eq!(writes, ["/w/a.db", "/w/b.db", "/w/out.csv"]);
        assert!(!open);
        let (_, writes, open) = needs("psql -h h -c \"\\copy t to 'x.csv' csv\"");
        assert_eq!(writes, ["/w/x.csv"]);
        assert!(!open);
    }

    #[test]
    fn a_database_shell_that_executes_something_is_followed_or_open() {
        let (_, writes, open) = needs("sqlite3 a.db '.shell touch made'");
        assert_eq!(writes, ["/w/a.db", "/w/made"]);
        assert!(!open);
        assert!(needs("sqlite3 a.db '.load ./evil'").2);
        assert!(needs("sqlite3 a.db \"select load_extension('x')\"").2);
        assert!(needs("psql -h h -c \"copy t from program 'id'\"").2);
        // What it reads from elsewhere is not known.
        assert!(needs("curl http://h/x | sqlite3 a.db").2);
    }
}
