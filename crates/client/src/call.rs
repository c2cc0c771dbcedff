//! A tool call that is carried out in a scope, with its output caught.

use crate::{ClientError, Connection, system};
use ironcage_control::{DeniedLease, ExecRequest, ExecStreams, Reply, Request, ScopeRequest};
use ironcage_model::{Ending, LeaseOrigin, Resource};
use ironcage_sys::rustix::event::{PollFd, PollFlags, poll};
use ironcage_sys::rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use ironcage_sys::rustix::io::{Errno, read};
use std::os::fd::{AsFd, OwnedFd};

/// Most of each stream that is kept; the rest is read and dropped.
pub const MOST_OUTPUT: usize = 256 * 1024;

/// What came of a tool call.
#[derive(Debug)]
pub enum Called {
    /// It was carried out.
    Done {
        ending: Ending,
        stdout: Vec<u8>,
        /// What it said of errors.
        stderr: Vec<u8>,
        /// Whether it said more than is kept.
        cut: bool,
    },
    /// It was not given what it needs, and so was not carried out.
    NotGiven(Vec<DeniedLease>),
    /// It was refused for another reason.
    Refused(ironcage_model::Reason),
}

/// Has a tool call carried out, in a scope with what it needs. `text` is the call as the model
/// wrote it. A person's answer is waited for so many seconds; `asked` is told of each question.
///
/// # Errors
/// Where the cage cannot be spoken to.
pub fn call(
    connection: &Connection,
    text: &str,
    wait: u64,
    mut asked: impl FnMut(u32, &Resource),
) -> Result<Called, ClientError> {
    connection.send(&Request::Exec(ExecRequest {
        argv: Vec::new(),
        env: Vec::new(),
        cwd: None,
        streams: ExecStreams::Pipes { input: false },
        scope: Some(ScopeRequest {
            leases: Vec::new(),
            origin: LeaseOrigin::ToolCall,
            call: Some(text.to_owned()),
            shell: None,
            wait,
        }),
    }))?;
    let first = loop {
        match connection.receive(None) {
            Ok((Reply::Asked { question, resource }, _)) => asked(question, &resource),
            other => break other,
        }
    };
    let descriptors = match first {
        Ok((Reply::Started { .. }, descriptors)) => descriptors,
        Ok((Reply::ExecEnded(ending), _)) => {
            return Ok(done(ending, [Vec::new(), Vec::new()], false));
        }
        Ok((other, _)) => return Err(ClientError::Answer(format!("{other:?}"))),
        Err(ClientError::NotGiven { refused }) => return Ok(Called::NotGiven(refused)),
        Err(ClientError::Refused { reason }) => return Ok(Called::Refused(reason)),
        Err(error) => return Err(error),
    };
    let ends: Result<[OwnedFd; 2], _> = descriptors.try_into();
    let Ok(ends) = ends else {
        return Err(ClientError::Answer("streams are missing".into()));
    };
    let (caught, cut) = catch(ends)?;
    match connection.receive(None)? {
        (Reply::ExecEnded(ending), _) => Ok(done(ending, caught, cut)),
        (other, _) => Err(ClientError::Answer(format!("{other:?}"))),
    }
}

fn done(ending: Ending, [stdout, stderr]: [Vec<u8>; 2], cut: bool) -> Called {
    Called::Done {
        ending,
        stdout,
        stderr,
        cut,
    }
}

/// Reads both outputs to their ends. A scope ends with its command, and so do they.
fn catch(outputs: [OwnedFd; 2]) -> Result<([Vec<u8>; 2], bool), ClientError> {
    for end in &outputs {
        let flags = fcntl_getfl(end).map_err(system("prepare the streams"))?;
        let set = fcntl_setfl(end, flags | OFlags::NONBLOCK);
        set.map_err(system("prepare the streams"))?;
    }
    let mut outputs = outputs.map(Some);
    let mut caught = [Vec::new(), Vec::new()];
    let mut cut = false;
    let mut buffer = vec![0; 64 * 1024];
    while outputs.iter().any(Option::is_some) {
        let open = outputs.iter().flatten();
        let mut fds: Vec<PollFd<'_>> = open.map(|end| PollFd::new(end, PollFlags::IN)).collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(system("wait for the command")(error)),
        }
        drop(fds);
        for (end, kept) in outputs.iter_mut().zip(&mut caught) {
            let Some(source) = end.as_ref().map(AsFd::as_fd) else {
                continue;
            };
            match read(source, &mut buffer) {
                Ok(0) => *end = None,
                Ok(count) => {
                    let room = MOST_OUTPUT.saturating_sub(kept.len()).min(count);
                    kept.extend_from_slice(buffer.get(..room).unwrap_or_default());
                    cut |= room < count;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(system("read the output")(error)),
            }
        }
    }
    Ok((caught, cut))
}
