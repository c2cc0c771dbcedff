//! Effects of calls: paths, addresses and commands become needs.

use super::call::CallArguments;
use super::{MOST_COMMANDS, Program};
use crate::calls::Role;
use crate::value::{HOLE, Piece, Value};
use ironcage_intent::{Argument, CodeCommand, CommandText, Destination, Unsure, destination, tidy};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A variable that nothing sets, in place of what is not known in a script.
pub(crate) const UNKNOWN_VARIABLE: &str = "${IRONCAGE_UNKNOWN}";

/// Directories whose paths are taken for paths wherever they stand.
const PLACES: [&str; 14] = [
    "/app/", "/data/", "/etc/", "/home/", "/tmp/", "/var/", "/srv/", "/opt/", "/root/", "/usr/",
    "/mnt/", "/work", "./", "../",
];

/// Calls whose texts are not paths, though they may look like some.
const NOT_PATHS: [&str; 24] = [
    "route",
    "get",
    "post",
    "put",
    "delete",
    "patch",
    "use",
    "add_url_rule",
    "render_template",
    "redirect",
    "url_for",
    "startswith",
    "endswith",
    "add_argument",
    "append",
    "info",
    "debug",
    "warning",
    "error",
    "log",
    "assertEqual",
    "insert",
    "mount",
    "include_router",
];

impl Program<'_> {
    /// The path that a text is; for one that is known in part, the directory in which it lies.
    fn place(&self, piece: &Piece) -> Option<PathBuf> {
        let known = piece.known();
        let text = match piece.is_whole() {
            true => known,
            false => match known.rfind('/') {
                Some(0) => return None,
                Some(slash) => known.get(..slash)?,
                // A name in the working directory.
                None if !known.is_empty() => ".",
                None => return None,
            },
        };
        // A pattern is looked for in its directory.
        let text = match text.find(['*', '?']).filter(|_| !text.contains("://")) {
            Some(at) => text
                .get(..at)?
                .rfind('/')
                .map_or(".", |slash| text.get(..slash).unwrap_or(".")),
            None => text,
        };
        if text.is_empty() || text.contains(['\n', '\0']) {
            return None;
        }
        match (text.starts_with('/'), &self.cwd) {
            (true, _) => Some(tidy(Path::new("/"), text)),
            (false, Some(cwd)) => Some(tidy(cwd, text)),
            (false, None) => None,
        }
    }

    /// Applies a role to each value. For a listing, returns what is found there.
    pub(super) fn role(&mut self, role: Role, value: &Value, name: &str) -> Value {
        let mut listed = Vec::new();
        for value in value.each() {
            match (&value, role) {
                (Value::List(parts), Role::Address) => self.address(parts, name),
                (Value::List(parts), _) => {
                    for part in parts.iter() {
                        listed.push(self.role(role, part, name));
                    }
                }
                (Value::File(_) | Value::Nothing, _) => {}
                (_, Role::Url) => self.url(&value, name),
                (_, Role::Host) => self.host(&value, name),
                (_, Role::Address) => self.unsure(
                    Unsure::Destinations,
                    format!("the host that `{name}` connects to is not known"),
                ),
                (_, Role::Enter) => self.enter(&value),
                _ => match value.piece().cloned() {
                    Some(piece) => listed.push(self.path(role, &piece, name)),
                    None => self.not_known(role, name),
                },
            }
        }
        match role {
            Role::List => Value::List(Rc::new(
                listed
                    .into_iter()
                    .flat_map(|found| match found {
                        Value::List(parts) => parts.to_vec(),
                        value => vec![value],
                    })
                    .collect(),
            )),
            _ => Value::Unknown,
        }
    }

    fn not_known(&mut self, role: Role, name: &str) {
        let what = match role {
            Role::Read | Role::List => Unsure::Reads,
            _ => Unsure::Writes,
        };
        self.unsure(what, format!("a path of `{name}` is not known"));
    }

    fn path(&mut self, role: Role, piece: &Piece, name: &str) -> Value {
        if piece.known().contains("://") {
            // Many libraries read from addresses as well.
            self.url(&Value::Text(piece.clone()), name);
            return Value::Unknown;
        }
        let Some(path) = self.place(piece) else {
            if !(piece.is_whole() && piece.text.is_empty()) {
                self.not_known(role, name);
            }
            return self.found_in(piece, name);
        };
        match role {
            Role::Write => self.found.needs.write(path),
            Role::Change => {
                self.found.needs.read(path.clone());
                self.found.needs.write(path);
            }
            Role::Remove => {
                self.found.needs.write(path.clone());
                self.found.needs.remove(path);
            }
            _ => self.found.needs.read(path),
        }
        match role {
            Role::List => self.found_in(piece, name),
            _ => Value::Unknown,
        }
    }

    /// What a listing of a directory finds.
    fn found_in(&self, piece: &Piece, name: &str) -> Value {
        let below = piece.below(&Piece::begins(""));
        let last = name.rsplit('.').next().unwrap_or(name);
        match last {
            "listdir" | "readdir" | "readdirSync" => Value::Text(Piece::begins("")),
            "walk" => {
                let names = Value::List(Rc::new(vec![Value::Text(Piece::begins(""))]));
                let place = Value::Text(piece.then(&Piece::begins("")));
                Value::List(Rc::new(vec![Value::List(Rc::new(vec![
                    place,
                    names.clone(),
                    names,
                ]))]))
            }
            "scandir" => Value::Unknown,
            // A pattern: what is before its first star is known.
            "glob" | "iglob" | "sync" | "globSync" if piece.text.contains('*') => {
                let known = piece.text.split('*').next().unwrap_or_default();
                Value::Text(Piece::begins(known))
            }
            "iterdir" | "rglob" | "glob" => Value::Path(below),
            _ => Value::Text(below),
        }
    }

    /// A file that is opened in a mode.
    pub(super) fn open(&mut self, path: &Value, mode: Option<&Value>, name: &str) -> Value {
        let mode = match mode {
            None => Some("r"),
            Some(mode) => mode.known(),
        };
        // Archives name their compression after a colon.
        let mode = mode.map(|mode| mode.split([':', '|']).next().unwrap_or(mode));
        let role = match mode {
            Some(mode) if mode.contains('+') => Role::Change,
            Some(mode) if mode.contains(['w', 'a', 'x']) => Role::Write,
            Some(_) => Role::Read,
            None => Role::Change,
        };
        // A descriptor, or an open file.
        let is_path = |value: &Value| !matches!(value, Value::File(_) | Value::Nothing);
        for value in path.each().iter().filter(|value| is_path(value)) {
            self.role(role, value, name);
        }
        let piece = path.each().first().and_then(|value| value.piece().cloned());
        Value::File(piece.unwrap_or(Piece::begins("")))
    }

    fn url(&mut self, value: &Value, name: &str) {
        let piece = match value {
            Value::Text(piece) => piece.clone(),
            // A request object was seen when it was made.
            Value::Library(_) | Value::Object(..) => return,
            _ => Piece::begins(""),
        };
        match destination(piece.known(), piece.is_whole()) {
            Some(to) => self.found.needs.destination(to),
            None if piece.text.starts_with('/') && piece.is_whole() => {}
            None if piece.known().starts_with("sqlite:///") => {
                let path = piece.text.trim_start_matches("sqlite:///").to_owned();
                self.role(Role::Change, &Value::text(path), name);
            }
            None => self.unsure(
                Unsure::Destinations,
                format!("the host that `{name}` connects to is not known"),
            ),
        }
    }

    fn host(&mut self, value: &Value, name: &str) {
        match value.known().filter(|host| !host.is_empty()) {
            Some(host) if host.contains("://") => self.url(value, name),
            Some(host) => {
                let (host, port) = match host.rsplit_once(':') {
                    Some((host, port)) => (host, port.parse().ok()),
                    None => (host, None),
                };
                let name = host.to_ascii_lowercase();
                self.found
                    .needs
                    .destination(Destination::Host { name, port });
            }
            None => self.unsure(
                Unsure::Destinations,
                format!("the host that `{name}` connects to is not known"),
            ),
        }
    }

    fn address(&mut self, parts: &[Value], name: &str) {
        let host = parts.first().and_then(Value::known);
        let port = parts
            .get(1)
            .and_then(Value::known)
            .and_then(|port| port.parse().ok());
        match host.filter(|host| !host.is_empty()) {
            Some(host) => {
                let name = host.to_ascii_lowercase();
                self.found
                    .needs
                    .destination(Destination::Host { name, port });
            }
            None => self.unsure(
                Unsure::Destinations,
                format!("the host that `{name}` connects to is not known"),
            ),
        }
    }

    fn enter(&mut self, value: &Value) {
        let place = match value.piece() {
            Some(piece) if piece.is_whole() => self.place(piece),
            _ => None,
        };
        self.cwd = place;
    }

    /// A directory that a command runs in; an error if it is not known.
    fn directory(&mut self, cwd: Option<&Value>) -> Result<Option<PathBuf>, ()> {
        match cwd {
            None | Some(Value::Nothing) => Ok(self.cwd.clone()),
            Some(value) => {
                let place = value
                    .piece()
                    .filter(|piece| piece.is_whole())
                    .and_then(|piece| self.place(piece));
                place.map(Some).ok_or(())
            }
        }
    }

    fn push(&mut self, text: CommandText, cwd: Option<&Value>) {
        let Ok(cwd) = self.directory(cwd) else {
            self.unsure(
                Unsure::Writes,
                "the working directory of a command is not known",
            );
            return;
        };
        let command = CodeCommand { text, cwd };
        if self.found.commands.len() >= MOST_COMMANDS {
            self.unsure(
                Unsure::Everything,
                "it starts more commands than are followed",
            );
        } else if !self.found.commands.contains(&command) {
            self.found.commands.push(command);
        }
    }

    /// A script of the shell.
    pub(super) fn start_command(&mut self, value: &Value, cwd: Option<&Value>) {
        for value in value.each() {
            match value.piece() {
                Some(piece) if !piece.known().trim().is_empty() => {
                    let text = piece.text.replace(HOLE, UNKNOWN_VARIABLE);
                    self.push(CommandText::Script(text), cwd);
                }
                Some(piece) if piece.is_whole() => {}
                _ if matches!(value, Value::Nothing) => {}
                _ => self.unsure(Unsure::Everything, "it starts a command that is not known"),
            }
        }
    }

    /// A program with its arguments, as a list, as one text, or as a text and a list.
    pub(super) fn start_program(
        &mut self,
        value: &Value,
        rest: Option<&Value>,
        cwd: Option<&Value>,
        shell: bool,
    ) {
        for value in value.each() {
            match &value {
                Value::List(words) => {
                    let words = words.iter().map(word).collect();
                    self.push(CommandText::Words(words), cwd);
                }
                Value::Text(piece) | Value::Path(piece) => match rest {
                    Some(Value::List(rest)) if !shell => {
                        let words = std::iter::once(word(&value)).chain(rest.iter().map(word));
                        self.push(CommandText::Words(words.collect()), cwd);
                    }
                    _ if shell || piece.text.contains(' ') => self.start_command(&value, cwd),
                    _ => self.push(CommandText::Words(vec![word(&value)]), cwd),
                },
                Value::Nothing => {}
                _ => self.unsure(Unsure::Everything, "it starts a program that is not known"),
            }
        }
    }

    /// A call that is not known: what plainly looks like a path or an address is taken for one.
    pub(super) fn guess(&mut self, name: &str, given: &CallArguments) {
        let writer = name.contains(".write.") || name.contains(".writer.");
        let name = name.rsplit('.').next().unwrap_or(name);
        if NOT_PATHS.contains(&name) {
            return;
        }
        let lower = name.to_ascii_lowercase();
        let writes = [
            "save", "write", "dump", "export", "output", "create", "mkdir", "remove", "delete",
        ];
        let writes = writer || writes.iter().any(|part| lower.contains(part));
        let values: Vec<Value> = given
            .arguments
            .iter()
            .chain(given.named.iter().map(|(_, value)| value))
            .cloned()
            .collect();
        let listed = values
            .iter()
            .flat_map(Value::each)
            .flat_map(|value| match &value {
                Value::List(list) => list.iter().take(64).cloned().collect(),
                _ => vec![value],
            });
        for value in listed.collect::<Vec<_>>() {
            let Some(piece) = value.piece().cloned() else {
                continue;
            };
            let known = piece.known();
            if known.contains(char::is_whitespace) || known.len() > 256 {
                continue;
            }
            if known.starts_with("http://") || known.starts_with("https://") {
                if let Some(to) = destination(known, piece.is_whole()) {
                    self.found.needs.destination(to);
                }
                continue;
            }
            let is_place = PLACES.iter().any(|place| known.starts_with(place))
                || (piece.is_whole() && is_file(known));
            let is_object = matches!(value, Value::Path(_)) && known.contains('/');
            if is_place || is_object {
                let role = if writes { Role::Write } else { Role::Read };
                self.path(role, &piece, name);
            }
        }
    }
}

/// Whether a text plainly is the name of a file: with a directory and an ending, or with the ending
/// of a file with data.
fn is_file(text: &str) -> bool {
    const DATA: [&str; 34] = [
        "csv",
        "tsv",
        "json",
        "jsonl",
        "ndjson",
        "parquet",
        "pkl",
        "pickle",
        "npy",
        "npz",
        "pt",
        "pth",
        "onnx",
        "safetensors",
        "h5",
        "hdf5",
        "txt",
        "log",
        "xml",
        "yaml",
        "yml",
        "toml",
        "ini",
        "db",
        "sqlite",
        "png",
        "jpg",
        "jpeg",
        "svg",
        "pdf",
        "wav",
        "mp4",
        "gz",
        "zip",
    ];
    let fits = |char: char| char.is_alphanumeric() || "/._-+@".contains(char);
    let name = text.rsplit('/').next().unwrap_or(text);
    let Some((stem, ending)) = name.rsplit_once('.') else {
        return false;
    };
    let plain = !stem.is_empty() && text.chars().all(fits);
    let short = (1..=5).contains(&ending.len())
        && ending
            .chars()
            .all(|char| char.is_ascii_lowercase() || char.is_ascii_digit())
        && ending.chars().any(|char| char.is_ascii_lowercase());
    plain && (DATA.contains(&ending) || (short && text.contains('/')))
}

fn word(value: &Value) -> Argument {
    match value {
        Value::Text(piece) | Value::Path(piece) => Argument {
            text: piece.known().to_owned(),
            whole: piece.is_whole(),
        },
        Value::Choice(values) => values.iter().find(|value| value.piece().is_some()).map_or(
            Argument {
                text: String::new(),
                whole: false,
            },
            word,
        ),
        _ => Argument {
            text: String::new(),
            whole: false,
        },
    }
}
