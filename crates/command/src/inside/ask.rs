//! `ironcage ask`.

use crate::error::{CliError, CommandResult};
use crate::failure::FailureCode;
use crate::json;
use ironcage_control::{Answered, CageRequestLine, LONGEST_CAGE_REQUEST};
use ironcage_model::{ASK_SOCKET, LeaseOutcome, LeaseSummary, Printable, Span};
use ironcage_policy::TimeLimit;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};

const DENIED: u8 = 1;
/// The user was asked and has not answered yet.
const PENDING: u8 = 2;

/// Request a permission from inside a cage
///
/// If the cage's policy grants the permission automatically, it is there when this command exits;
/// else the user is asked. Nothing is granted beyond the policy's ceiling.
///
/// Exit status: 0 if it was granted or is not needed, 1 if it was denied, 2 if the user has not
/// answered yet: request it again later, or use --wait.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["read", "write", "host"])))]
pub struct Args {
    /// Request reading a file or directory
    #[arg(short, long, value_name = "PATH")]
    read: Option<PathBuf>,
    /// Request reading and writing a file or directory, or creating a file
    #[arg(short, long, value_name = "PATH")]
    write: Option<PathBuf>,
    /// Request connections to a host: NAME (ports 80 and 443), NAME:PORT or an address
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Reason in one sentence, for the user
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Duration, for example 30s or 10m [default: as long as the policy allows]
    #[arg(long = "for", value_name = "TIME")]
    time: Option<TimeLimit>,
    /// Seconds to wait for the user's answer
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u64,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// The absolute path, with links resolved if it exists.
fn absolute(path: &Path) -> Result<String, CliError> {
    let shown = Printable::new(path).to_string();
    let found = match path.canonicalize() {
        Ok(real) => real,
        Err(_) => {
            let whole = std::path::absolute(path)
                .map_err(|error| CliError::new(format!("cannot resolve {shown}: {error}")))?;
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
            "cannot request {shown}: the path is not valid UTF-8; request its directory"
        ))
    })
}

pub fn run(args: Args) -> CommandResult {
    let path = |path: Option<&PathBuf>| path.map(|path| absolute(path)).transpose();
    let line = CageRequestLine {
        read: path(args.read.as_ref())?,
        write: path(args.write.as_ref())?,
        host: args.host,
        reason: args.reason,
        seconds: args.time.and_then(|time| time.0).map(|time| time.as_secs()),
        wait: Some(args.wait).filter(|wait| *wait > 0),
        ..CageRequestLine::default()
    };
    let answer = ask(&line)?;
    if args.json {
        let line = json::line(&answer).map_err(CliError::new)?;
        anstream::println!("{line}");
    }
    let (text, status) = match &answer {
        Answered::Outcome(LeaseOutcome::Granted(LeaseSummary {
            what, milliseconds, ..
        })) => {
            let time = match milliseconds {
                Some(time) => format!("for {}", Span(*time)),
                None => "until revoked".to_owned(),
            };
            (format!("granted: {what} {time}"), 0)
        }
        Answered::Outcome(LeaseOutcome::InBase { reason }) => (format!("not needed: {reason}"), 0),
        Answered::Outcome(LeaseOutcome::Denied { reason }) => {
            (format!("denied: {}", reason.with_code()), DENIED)
        }
        Answered::Outcome(LeaseOutcome::Pending { question, reason }) => (
            format!(
                "pending: {reason}; the user was asked (request {question}) and has not answered yet: request it again later, or with --wait SECONDS"
            ),
            PENDING,
        ),
        Answered::Ended { .. }
        | Answered::Scope
        | Answered::InCage { .. }
        | Answered::Sent
        | Answered::Message { .. }
        | Answered::Empty => {
            return Err(unexpected());
        }
        Answered::Invalid { reason } => {
            return Err(CliError::new(format!(
                "cannot send the request: the cage refused it: {}",
                reason.with_code()
            )));
        }
    };
    if !args.json {
        anstream::println!("{}", Printable::new(&text));
    }
    Ok(status)
}

pub(super) fn ask(line: &CageRequestLine) -> Result<Answered, CliError> {
    let mut socket = connect()?;
    let mut text = serde_json::to_vec(line).map_err(CliError::new)?;
    text.push(b'\n');
    socket.write_all(&text).map_err(lost)?;
    answered(socket)
}

fn lost(error: std::io::Error) -> CliError {
    CliError::new(format!("cannot get an answer from the cage: {error}"))
}

pub(super) fn connect() -> Result<UnixStream, CliError> {
    UnixStream::connect(ASK_SOCKET).map_err(|error| {
        let missing = error.kind() == std::io::ErrorKind::NotFound;
        match (missing, std::env::var_os("IRONCAGE").is_some()) {
            (true, true) => CliError::new("cannot send requests from this cage: its policy has no ceiling, or this command runs in a scope")
                .hint("the user can add [ceiling.ask.files] or another ceiling to its policy"),
            (true, false) => CliError::new("cannot send the request: this is not inside a cage")
                .with_failure(FailureCode::NotInCage)
                .hint("on the host, `ironcage grant` grants a running cage a permission"),
            (false, _) => CliError::new(format!("cannot connect to {ASK_SOCKET}: {error}")),
        }
    })
}

pub(super) fn answered(socket: UnixStream) -> Result<Answered, CliError> {
    let mut answer = String::new();
    let mut reader = BufReader::new(socket).take(2 * LONGEST_CAGE_REQUEST as u64);
    reader.read_line(&mut answer).map_err(lost)?;
    if answer.is_empty() {
        return Err(CliError::new(
            "cannot get an answer from the cage: it closed the connection",
        ));
    }
    serde_json::from_str(&answer)
        .map_err(|error| CliError::new(format!("cannot parse the answer of the cage: {error}")))
}

pub(super) fn unexpected() -> CliError {
    CliError::new("cannot use the answer of the cage: it has another kind than the request")
}
