//! One parser under libFuzzer, chosen by the variable IRONCAGE_FUZZ; `scripts/fuzz` runs them.
#![no_main]

use ironcage_control::{CageMessage, Reply, Request, Schema, frame};
use ironcage_intent::{
    AnswerReader, Call, Calls, Context, Encoding, Format, Results, Shell, Table,
};
use std::path::Path;
use std::sync::OnceLock;

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 26] = [
    ("dns-question", ironcage_egress::fuzz::dns_question),
    ("dns-answer", ironcage_egress::fuzz::dns_answer),
    ("tls-hello", ironcage_egress::fuzz::tls_hello),
    ("http-head", ironcage_egress::fuzz::http_head),
    ("names-and-rules", names_and_rules),
    ("control-frame", control_frame),
    ("cage-request", cage_request),
    ("model-answer", model_answer),
    ("shell-command", shell_command),
    ("tool-call", tool_call),
    ("reader", reader),
    ("awk", awk),
    ("expect", expect),
    ("compiled", compiled),
    ("makefile", makefile),
    ("database-shell", database_shell),
    ("policy", policy),
    ("git-index", ironcage_workspace::fuzz::git_index),
    ("git-settings", ironcage_workspace::fuzz::git_settings),
    ("gitignore", ironcage_workspace::fuzz::gitignore),
    ("terminal", terminal),
    ("channel-type", channel_type),
    ("image-documents", ironcage_images::fuzz::documents),
    ("image-layer", image_layer),
    ("agent-request", ironcage_signing::fuzz::agent_request),
    ("agent-answer", ironcage_signing::fuzz::agent_answer),
];

/// Names, rules over hosts, requests and secrets: what is read once is read the same again.
fn names_and_rules(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(name) = ironcage_policy::host_name(text) {
        let again = ironcage_policy::host_name(&name.to_string());
        assert_eq!(again.as_ref().ok(), Some(&name), "{text:?}");
    }
    if let Ok(rule) = ironcage_policy::allowed(text) {
        let written = rule.to_string();
        let again = ironcage_policy::allowed(&written);
        assert_eq!(again.as_ref().ok(), Some(&rule), "{text:?} {written:?}");
    }
    let _ = ironcage_policy::denied(text);
    let _ = ironcage_policy::requests(text);
    let _ = ironcage_policy::secret(text);
}

fn control_frame(bytes: &[u8]) {
    if let Ok((_, body)) = frame::split(bytes) {
        let _ = frame::parse::<Request>(body);
        let _ = frame::parse::<Reply>(body);
    }
}

/// A line of somebody in the cage who asks for something.
fn cage_request(bytes: &[u8]) {
    match CageMessage::read(bytes) {
        Ok(CageMessage::Asks(cage_request)) => {
            drop(cage_request.what.resource().map(|what| what.to_string()))
        }
        Ok(CageMessage::Runs(shell)) => assert!(shell.reads.iter().all(|path| path.is_absolute())),
        Err(error) => assert!(!error.to_string().contains(char::is_control)),
    }
}

/// An answer of a model, in pieces of a size that the input chooses.
fn model_answer(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let formats = [Format::Events, Format::Document];
    let encodings = [
        Encoding::Identity,
        Encoding::Gzip,
        Encoding::Deflate,
        Encoding::Brotli,
    ];
    let format = formats[usize::from(first & 1)];
    let encoding = encodings[usize::from((first >> 1) & 3)];
    let mut answer = AnswerReader::new(format, encoding);
    let mut results = Results::new(encoding);
    for piece in rest.chunks(usize::from(first >> 3) + 1) {
        let _ = answer.feed(piece);
        let _ = results.feed(piece);
    }
    let _ = answer.end();
}

fn tables() -> &'static (Table, Calls) {
    static TABLES: OnceLock<(Table, Calls)> = OnceLock::new();
    TABLES.get_or_init(|| {
        let table = Table::shipped().expect("the shipped table of tools");
        (table, Calls::shipped().expect("the shipped table of calls"))
    })
}

fn context() -> Context {
    Context {
        cwd: "/srv/project".into(),
        home: Some("/home/agent".into()),
    }
}

/// A command of the agent's shell. Paths that a need names are absolute: nobody resolves them again.
fn shell_command(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let needs = Shell::new(&tables().0).read(text, &context());
    for path in needs.reads.iter().chain(&needs.writes) {
        assert!(path.is_absolute(), "{text:?} needs {path:?}");
    }
}

/// Code that a command executes: the first byte chooses the language. It is read to its end within
/// its bounds, and paths that a need names are absolute.
fn reader(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let file = ["x.py", "x.js", "Makefile", "x.pl", "x.sh"][usize::from(first % 5)];
    let run = [
        "python3 x.py a b",
        "node x.js a",
        "make",
        "perl x.pl",
        "bash x.sh",
    ][usize::from(first % 5)];
    read_file(rest, file, run);
}

fn awk(bytes: &[u8]) {
    read_file(bytes, "x.awk", "awk -v out=/o/ -f x.awk in.txt");
}

fn expect(bytes: &[u8]) {
    read_file(bytes, "x.exp", "expect -f x.exp host.example");
}

fn compiled(bytes: &[u8]) {
    read_file(bytes, "x.c", "gcc -o x x.c && ./x in.txt --output out.txt");
}

fn makefile(bytes: &[u8]) {
    read_file(bytes, "Makefile", "make all V=1");
}

/// Statements and commands of the shells of databases.
fn database_shell(bytes: &[u8]) {
    read_file(bytes, "x.sql", "sqlite3 x.db < x.sql; psql -h h < x.sql");
}

/// Reads a command that writes a file and executes it.
fn read_file(bytes: &[u8], file: &str, run: &str) {
    static TABLE: OnceLock<Table> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let reader = ironcage_reader::Reader::without_files().expect("the table of library calls");
        let table = Table::shipped().expect("the shipped table of tools");
        table.following(Box::new(reader))
    });
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let command = format!("cat > {file} <<'IRONCAGE_END'\n{text}\nIRONCAGE_END\n{run}\n");
    let needs = Shell::new(table).read(&command, &context());
    for path in needs.reads.iter().chain(&needs.writes) {
        assert!(path.is_absolute(), "{text:?} needs {path:?}");
    }
}

/// A tool call of a model, as JSON.
fn tool_call(bytes: &[u8]) {
    if let Ok((call, _)) = Call::read_with_shape(bytes) {
        let (table, calls) = tables();
        let _ = calls.needs(&call, table, &context());
        let _ = calls.action(&call, &context());
    }
}

fn policy(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Err(error) = ironcage_policy::parse(Path::new("ironcage.toml"), text) {
        let _ = error.to_string();
    }
}

/// What a cage writes to the user's terminal: what has passed passes again, and loses nothing more.
fn terminal(bytes: &[u8]) {
    use ironcage_terminal::filter::Filter;
    let pass = |bytes: &[u8]| {
        let mut passed = Vec::new();
        Filter::default().feed(bytes, &mut passed);
        passed
    };
    let once = pass(bytes);
    assert_eq!(pass(&once), once, "{bytes:?}");
}

/// The type of a channel and a message, between them a zero byte.
fn channel_type(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let (schema, message) = text.split_once('\0').unwrap_or((text, "null"));
    if let (Ok(schema), Ok(message)) = (Schema::read(schema), serde_json::from_str(message)) {
        let _ = schema.check(&message);
    }
}

/// A layer of an image, compressed or not.
fn image_layer(bytes: &[u8]) {
    let place = tempfile::tempdir().expect("a temporary directory");
    ironcage_images::fuzz::layer(bytes, place.path());
}

fn chosen() -> Target {
    static CHOSEN: OnceLock<Target> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let wanted = std::env::var("IRONCAGE_FUZZ").unwrap_or_default();
        let found = TARGETS.iter().find(|(name, _)| *name == wanted);
        let Some((_, target)) = found else {
            let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            eprintln!("IRONCAGE_FUZZ is to be one of {}", names.join(", "));
            std::process::exit(2);
        };
        *target
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| chosen()(data));
