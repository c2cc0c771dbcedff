//! A command of a shell in the cage: what is to be executed, as the shell says it, with its own
//! streams.
//!
//! The shell speaks to the scope's supervisor and to nobody else: what it says is the agent's, and
//! its descriptors are the cage's. They go to the command as they are; nothing is read from them,
//! written to them or asked of them here.

use ironcage_control::{Channel, ExecRequest, ExecStreams, Packet, Request};
use ironcage_model::SupervisorReason;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long it may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most words and variables together: more than a program is ever given.
const MOST: usize = 65_536;

/// What is to be executed, and with which streams.
#[derive(Debug)]
pub(super) struct ShellCommand {
    pub(super) request: ExecRequest,
    pub(super) streams: [OwnedFd; 3],
}

fn invalid(error: &str) -> SupervisorReason {
    SupervisorReason::RequestInvalid {
        error: error.to_owned(),
    }
}

/// Hears what the shell wants.
pub(super) fn hear(client: &Channel) -> Result<ShellCommand, SupervisorReason> {
    let until = Instant::now() + PATIENCE;
    loop {
        match client.receive::<Request>(false) {
            Ok(Some(Packet::Message(Request::Exec(request), descriptors))) => {
                return understand(request, descriptors);
            }
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return Err(invalid("the shell did not say what to execute")),
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(invalid("the shell did not say in time what to execute"));
        }
        let timeout = Timespec::try_from(left).unwrap_or_default();
        let mut fds = [PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(invalid(&format!("cannot receive from the shell: {error}"))),
        }
    }
}

fn understand(
    request: ExecRequest,
    descriptors: Vec<OwnedFd>,
) -> Result<ShellCommand, SupervisorReason> {
    if request.streams != ExecStreams::Given || request.scope.is_some() {
        return Err(invalid(
            "a shell runs its command with its own streams, and asks for nothing else",
        ));
    }
    let program = request.argv.first();
    if program.is_none_or(|program| !program.0.starts_with(b"/")) {
        return Err(invalid("a shell names its program by an absolute path"));
    }
    if request.argv.len() + request.env.len() > MOST {
        return Err(invalid("there are too many arguments or variables"));
    }
    let streams = descriptors
        .try_into()
        .map_err(|_| SupervisorReason::WrongDescriptors {
            expected: "three streams".into(),
        })?;
    Ok(ShellCommand { request, streams })
}
