//! `ironcage child`: inside of a cage, opens another within what it has.

use super::ask::{answered, connect};
use crate::error::{CliError, CommandResult};
use ironcage_control::{Answered, ChildLine, InquiryLine, LONGEST_INQUIRY};
use ironcage_model::Printable;
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{IoSlice, PipeReader, PipeWriter, Write as _, pipe};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

/// Room for three descriptors.
const ANCILLARY: usize = 16 + 8 + 3 * 8;

const EXAMPLES: &str = "\
Examples:
  ironcage child -- make test
  ironcage child --profile strict -- python3 summarise.py
  ironcage child --policy reviewer.toml -- claude -p 'review the last commit'";

/// Inside of a cage, run a command in a child cage that has no more than this one
///
/// The user's policy says how many there may be ([ceiling] children). Without a policy the child
/// has what this cage has from its start; with one, what the policy names on top of its profile
/// (strict, if it extends none), and every part of it must lie in what this cage has: else nothing
/// is started, and the answer says what was too much. The child works on the same workspace, its
/// memory, processes and processor time are counted with this cage's, and it ends with it.
///
/// Exit status: the command's own, as with `ironcage run`; 125 where there is no child.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// A policy for the child, which may extend a profile by its name
    #[arg(long, value_name = "FILE", conflicts_with = "profile")]
    policy: Option<PathBuf>,
    /// A profile for the child instead
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let policy = match (args.policy, args.profile) {
        (Some(path), _) => Some(std::fs::read_to_string(&path).map_err(|error| {
            CliError::new(format!(
                "cannot read the policy {}: {error}",
                Printable::new(&path)
            ))
        })?),
        (None, Some(name)) => Some(format!("extends = {}\n", ironcage_policy::quoted(&name))),
        (None, None) => None,
    };
    let cwd = std::env::current_dir().map_err(CliError::new)?;
    let cwd = cwd.into_os_string().into_string();
    let cwd = cwd.map_err(|_| CliError::new("the current directory's name is not text"))?;
    let line = InquiryLine {
        child: Some(ChildLine {
            command: args.command,
            cwd,
            policy,
        }),
        ..InquiryLine::default()
    };
    let mut text = serde_json::to_vec(&line).map_err(CliError::new)?;
    if text.len() >= LONGEST_INQUIRY {
        return Err(CliError::new(format!(
            "command and policy have more than {LONGEST_INQUIRY} bytes together"
        ))
        .hint("put what is long into a file in the workspace, which the child sees"));
    }
    text.push(b'\n');
    let mut socket = connect()?;
    let outputs = send(&mut socket, &text)?;
    let answer = answered(socket)?;
    match answer {
        Answered::Ended { status, .. } => {
            for output in outputs {
                // A thread that failed has nothing more to pass on.
                let _ = output.join();
            }
            Ok(status)
        }
        Answered::Denied { reason } | Answered::Invalid { reason } => Err(CliError::new(format!(
            "no child was opened: {}",
            Printable::new(&reason)
        ))),
        _ => Err(CliError::new("the cage answered something else")),
    }
}

/// Sends the line with pipes for the child's streams, which are carried to our own.
fn send(socket: &mut UnixStream, text: &[u8]) -> Result<[JoinHandle<()>; 2], CliError> {
    let failed = |error: std::io::Error| CliError::new(format!("cannot ask for a child: {error}"));
    let (input, mut to_child): (PipeReader, PipeWriter) = pipe().map_err(failed)?;
    let (mut from_child, output) = pipe().map_err(failed)?;
    let (mut errors_from_child, errors) = pipe().map_err(failed)?;
    let descriptors = [input.as_fd(), output.as_fd(), errors.as_fd()];
    let mut space = [MaybeUninit::uninit(); ANCILLARY];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(CliError::new("no room for the child's streams"));
    }
    let sent = loop {
        match sendmsg(
            &*socket,
            &[IoSlice::new(text)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        ) {
            Err(Errno::INTR) => {}
            other => break other.map_err(|error| failed(error.into()))?,
        }
    };
    // The descriptors went with the first bytes.
    socket
        .write_all(text.get(sent..).unwrap_or_default())
        .map_err(failed)?;
    drop((input, output, errors));
    // Nobody waits for the end of our input.
    thread::spawn(move || std::io::copy(&mut std::io::stdin(), &mut to_child));
    Ok([
        thread::spawn(move || {
            let _ = std::io::copy(&mut from_child, &mut std::io::stdout());
            let _ = std::io::stdout().flush();
        }),
        thread::spawn(move || {
            let _ = std::io::copy(&mut errors_from_child, &mut std::io::stderr());
        }),
    ])
}
