//! `ironcage ask`: inside of a cage, asks for something that it does not have.

use crate::error::{CliError, CommandResult};
use crate::json;
use ironcage_control::{ASK_SOCKET, Answered, InquiryLine, LONGEST_INQUIRY};
use ironcage_model::{Printable, Span};
use ironcage_policy::TimeLimit;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};

/// Exit status where it was denied.
const DENIED: u8 = 1;
/// Exit status where a person was asked and has not answered yet.
const PENDING: u8 = 2;

/// Inside of a cage, ask for something that it does not have
///
/// What the cage's policy gives at once is there when this ends; for the rest a person is asked.
/// Nothing beyond the policy's ceiling is given, whoever asks. The exit status is 0 where it was
/// granted or is there anyway, 1 where it was denied, 2 where a person has not answered yet: ask
/// again later, or with --wait.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["read", "write", "host"])))]
pub(crate) struct Args {
    /// A file or directory to read
    #[arg(short, long, value_name = "PATH")]
    read: Option<PathBuf>,
    /// A file or directory to read and write, or a file to make
    #[arg(short, long, value_name = "PATH")]
    write: Option<PathBuf>,
    /// A host to connect to: NAME (ports 80 and 443), NAME:PORT or an address
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// What for, in a sentence: the person who is asked reads it
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// For how long: 30s, 10m [default: as long as the policy lets it]
    #[arg(long = "for", value_name = "TIME")]
    time: Option<TimeLimit>,
    /// How many seconds to wait for a person's answer
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u64,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// A path as the cage names it, whole and without links where it is there.
fn absolute(path: &Path) -> Result<String, CliError> {
    let shown = Printable::new(path).to_string();
    let found = match path.canonicalize() {
        Ok(real) => real,
        Err(_) => {
            let whole = std::path::absolute(path)
                .map_err(|error| CliError::new(format!("{shown} is no path: {error}")))?;
            let mut plain = PathBuf::new();
            for part in whole.components() {
                match part {
                    Component::ParentDir => drop(plain.pop()),
                    Component::CurDir => {}
                    other => plain.push(other),
                }
            }
            plain
        }
    };
    let text = found.into_os_string().into_string();
    text.map_err(|_| {
        CliError::new(format!(
            "{shown} is not text; ask for the directory around it"
        ))
    })
}

pub(crate) fn run(args: Args) -> CommandResult {
    let path = |path: Option<&PathBuf>| path.map(|path| absolute(path)).transpose();
    let line = InquiryLine {
        read: path(args.read.as_ref())?,
        write: path(args.write.as_ref())?,
        host: args.host,
        reason: args.reason,
        seconds: args.time.and_then(|time| time.0).map(|time| time.as_secs()),
        wait: Some(args.wait).filter(|wait| *wait > 0),
        ..InquiryLine::default()
    };
    let answer = ask(&line)?;
    if args.json {
        let text = json::line(&answer).map_err(CliError::new)?;
        anstream::println!("{text}");
    }
    let (said, status) = match &answer {
        Answered::Granted {
            what, milliseconds, ..
        } => {
            let time = match milliseconds {
                Some(time) => format!("for {}", Span(*time)),
                None => "until it is taken back".to_owned(),
            };
            (format!("granted: {what} {time}"), 0)
        }
        Answered::Had { reason } => (format!("it is there already: {reason}"), 0),
        Answered::Denied { reason } => (format!("denied: {reason}"), DENIED),
        Answered::Pending { question, reason } => (
            format!(
                "pending: {reason}; the user was asked (question {question}) and has not answered yet: ask again later, or with --wait SECONDS"
            ),
            PENDING,
        ),
        Answered::Ended { .. }
        | Answered::Scope
        | Answered::InCage { .. }
        | Answered::Sent
        | Answered::Message { .. }
        | Answered::Empty => {
            return Err(CliError::new("the cage answered something else"));
        }
        Answered::Invalid { reason } => {
            return Err(CliError::new(format!(
                "the cage did not take the request: {}",
                Printable::new(reason)
            )));
        }
    };
    if !args.json {
        anstream::println!("{}", Printable::new(&said));
    }
    Ok(status)
}

pub(super) fn ask(line: &InquiryLine) -> Result<Answered, CliError> {
    let mut socket = connect()?;
    let mut text = serde_json::to_vec(line).map_err(CliError::new)?;
    text.push(b'\n');
    socket.write_all(&text).map_err(lost)?;
    answered(socket)
}

fn lost(error: std::io::Error) -> CliError {
    CliError::new(format!("the cage did not answer: {error}"))
}

/// Connects to the socket at which one asks.
pub(super) fn connect() -> Result<UnixStream, CliError> {
    UnixStream::connect(ASK_SOCKET).map_err(|error| {
        let missing = error.kind() == std::io::ErrorKind::NotFound;
        match (missing, std::env::var_os("IRONCAGE").is_some()) {
            (true, true) => CliError::new("nothing can be asked for in this cage: its policy has no ceiling, or this is a command in a scope")
                .hint("the user can start it with [ceiling.ask.files] or another part in its policy"),
            (true, false) => CliError::new("this is not inside of a cage")
                .hint("`ironcage grant` gives a running cage a permission, from outside"),
            (false, _) => CliError::new(format!("cannot ask at {ASK_SOCKET}: {error}")),
        }
    })
}

/// Takes the answer.
pub(super) fn answered(socket: UnixStream) -> Result<Answered, CliError> {
    let mut answer = String::new();
    let mut reader = BufReader::new(socket).take(2 * LONGEST_INQUIRY as u64);
    reader.read_line(&mut answer).map_err(lost)?;
    if answer.is_empty() {
        return Err(CliError::new(
            "the cage did not answer: it closed the connection",
        ));
    }
    serde_json::from_str(&answer)
        .map_err(|error| CliError::new(format!("the cage's answer makes no sense: {error}")))
}
