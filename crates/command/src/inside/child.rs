//! `ironcage child`.

use super::ask::{answered, connect, unexpected};
use crate::error::{CliError, CommandResult};
use ironcage_control::{Answered, CageRequestLine, ChildLine, LONGEST_CAGE_REQUEST};
use ironcage_files::{Links, read_text};
use ironcage_model::LeaseOutcome;
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{IoSlice, PipeReader, PipeWriter, Write as _, pipe};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

/// Space for three descriptors.
const ANCILLARY: usize = 16 + 8 + 3 * 8;

const EXAMPLES: &str = "\
Examples:
  ironcage child -- make test
  ironcage child --profile strict -- python3 summarise.py
  ironcage child --policy reviewer.toml -- claude -p 'review the last commit'";

/// Run a command in a child cage, with at most this cage's permissions
///
/// The user's policy limits the number of children (`children` under [ceiling]). Without a policy
/// the child has the permissions that this cage started with. With one it has those of the policy
/// and its profile [default: strict], and all of them must be within this cage's: otherwise nothing
/// starts, and the error names what exceeds them. The child works on the same workspace, shares
/// this cage's limits on memory, processes and CPU time, and ends with this cage.
///
/// Exit status: that of the command, as with `ironcage run`; 125 if no child could start.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Policy file for the child, which can extend a profile by name
    #[arg(long, value_name = "FILE", conflicts_with = "profile")]
    policy: Option<PathBuf>,
    /// Profile for the child
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub fn run(args: Args) -> CommandResult {
    let policy = match (args.policy, args.profile) {
        (Some(path), _) => Some(
            read_text(&path, LONGEST_CAGE_REQUEST as u64, Links::Follow)
                .map_err(|error| CliError::from_error(&error))?,
        ),
        (None, Some(name)) => Some(format!("extends = {}\n", ironcage_policy::quoted(&name))),
        (None, None) => None,
    };
    let cwd = std::env::current_dir().map_err(CliError::new)?;
    let cwd = cwd.into_os_string().into_string();
    let cwd = cwd.map_err(|_| {
        CliError::new("cannot start a child: the current directory is not valid UTF-8")
    })?;
    let line = CageRequestLine {
        child: Some(ChildLine {
            command: args.command,
            cwd,
            policy,
        }),
        ..CageRequestLine::default()
    };
    let mut text = serde_json::to_vec(&line).map_err(CliError::new)?;
    if text.len() >= LONGEST_CAGE_REQUEST {
        return Err(CliError::new(format!(
            "cannot start a child: command and policy exceed {LONGEST_CAGE_REQUEST} bytes"
        ))
        .hint("put long text into a file in the workspace, which the child sees"));
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
        Answered::Outcome(LeaseOutcome::Denied { reason }) | Answered::Invalid { reason } => Err(
            CliError::new(format!("cannot start a child: {}", reason.with_code())),
        ),
        _ => Err(unexpected()),
    }
}

/// Sends the line with pipes for the child's streams, and relays them to our own.
fn send(socket: &mut UnixStream, text: &[u8]) -> Result<[JoinHandle<()>; 2], CliError> {
    let failed = |error: std::io::Error| CliError::new(format!("cannot start a child: {error}"));
    let (input, mut to_child): (PipeReader, PipeWriter) = pipe().map_err(failed)?;
    let (mut from_child, output) = pipe().map_err(failed)?;
    let (mut errors_from_child, errors) = pipe().map_err(failed)?;
    let descriptors = [input.as_fd(), output.as_fd(), errors.as_fd()];
    let mut space = [MaybeUninit::uninit(); ANCILLARY];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(CliError::new(
            "cannot start a child: no room for its streams",
        ));
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
    // The kernel sent the descriptors with the first bytes.
    socket
        .write_all(text.get(sent..).unwrap_or_default())
        .map_err(failed)?;
    drop((input, output, errors));
    // Not joined: our input may never end.
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
