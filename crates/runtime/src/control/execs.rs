//! Execs: other commands in a running cage, each with a number.

use crate::RunError;
use crate::ending::of_status;
use crate::recorder::in_short;
use crate::supervise::{SIGCONT, SIGHUP, SIGKILL, Supervision, failed};
use ironcage_backend::{StreamKind, Streams};
use ironcage_control::{Bytes, ExecDescription, ExecRequest, ExecStreams, Reply};
use ironcage_model::{Ending, EventKind};
use ironcage_sys::rustix::termios::Winsize;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

/// Execs at once.
pub(crate) const MAX_EXECS: usize = 64;
/// How long an exec whose client is gone may take to end.
const HANGUP: Duration = Duration::from_secs(2);

/// A command that was started in the running cage.
#[derive(Debug)]
pub(crate) struct Exec {
    number: u32,
    command: Vec<String>,
    client: Option<u64>,
    detached: bool,
    born: Instant,
    not_executed: Option<i32>,
    /// When it is killed, once its client is gone.
    killed_at: Option<Instant>,
}

impl Exec {
    pub(super) fn describe(&self) -> ExecDescription {
        ExecDescription {
            number: self.number,
            command: self.command.clone(),
        }
    }
}

fn text(bytes: Bytes) -> OsString {
    OsString::from_vec(bytes.0)
}

impl Supervision<'_> {
    /// Starts another command. Whatever stands against it is told to the client.
    pub(crate) fn exec(
        &mut self,
        key: u64,
        request: ExecRequest,
        given: Option<[OwnedFd; 3]>,
        now: Instant,
    ) -> Result<(), RunError> {
        let against = if self.control.execs.len() >= MAX_EXECS {
            Some("64 other commands were started in this cage and still run; try again later")
        } else if self.control.stopping.is_some() {
            Some("the cage is being stopped")
        } else if self.plan.seccomp.one_exec && self.scope.is_none() {
            Some(
                "the cage's list of system calls lets one program be executed, and that has been; start it with --syscalls standard",
            )
        } else if self
            .control
            .client(key)
            .is_none_or(|client| client.exec.is_some())
        {
            Some("this connection has started a command already")
        } else if request.streams == ExecStreams::Given && given.is_none() {
            Some("descriptors of the host's do not go into a cage")
        } else {
            None
        };
        if let Some(reason) = against {
            self.control.refuse(key, reason);
            return Ok(());
        }
        let command: Vec<String> = request
            .argv
            .iter()
            .map(|word| String::from_utf8_lossy(&word.0).into_owned())
            .collect();
        let command = match request.streams {
            // A shell's in the cage: its words are an agent's.
            ExecStreams::Given => in_short(command),
            _ => command,
        };
        let planned = self.plan.another(
            request.argv.into_iter().map(text).collect(),
            request
                .env
                .into_iter()
                .map(|(name, value)| (text(name), text(value)))
                .collect(),
            request.cwd.map(|cwd| text(cwd).into()),
        );
        let planned = match planned {
            Ok(planned) => planned,
            Err(error) => {
                self.control.refuse(key, error.to_string());
                return Ok(());
            }
        };
        let kind = match request.streams {
            ExecStreams::Terminal(size) => StreamKind::Terminal {
                size: Winsize {
                    ws_row: size.rows,
                    ws_col: size.columns,
                    ws_xpixel: 0,
                    ws_ypixel: 0,
                },
            },
            ExecStreams::Pipes { .. } | ExecStreams::Detached | ExecStreams::Given => {
                StreamKind::Pipes
            }
        };
        let number = self.control.next_exec;
        let started = match given {
            Some(streams) => self
                .cage
                .exec_with(number, &planned, streams)
                .map(|()| None),
            None => self.cage.exec(number, &planned, kind),
        };
        let streams = match started {
            Ok(streams) => streams,
            Err(error) => {
                let reason = format!("the cage cannot start it: {error}");
                self.control.refuse(key, reason);
                return Ok(());
            }
        };
        self.control.next_exec = number.checked_add(1).unwrap_or(1);
        let detached = request.streams == ExecStreams::Detached;
        if let Some(client) = self.control.client(key) {
            client.exec = Some(number);
        }
        match request.streams {
            ExecStreams::Given => self.control.reply(key, &Reply::Started { number }, &[]),
            wanted => self.hand_over(key, number, streams, wanted)?,
        }
        self.recorder.write(EventKind::Exec {
            number,
            command: command.clone(),
            detached,
            scope: self.scope.is_some(),
        })?;
        self.control.execs.push(Exec {
            number,
            command,
            client: Some(key),
            detached,
            born: now,
            not_executed: None,
            killed_at: None,
        });
        self.limits.sign_of_life(now);
        Ok(())
    }

    /// Gives the outer ends of the streams to who relays them. A terminal comes later.
    fn hand_over(
        &mut self,
        key: u64,
        number: u32,
        streams: Option<Streams>,
        wanted: ExecStreams,
    ) -> Result<(), RunError> {
        let Some(Streams::Pipes {
            stdin,
            stdout,
            stderr,
        }) = streams
        else {
            return Ok(());
        };
        let started = Reply::Started { number };
        match wanted {
            ExecStreams::Detached => {
                for output in [stdout, stderr] {
                    let adopted = self.output.adopt(output);
                    adopted.map_err(|error| failed("keep the output of an exec")(error.into()))?;
                }
                self.control.reply(key, &started, &[]);
            }
            ExecStreams::Pipes { input } => {
                let mut ends = vec![stdout.as_fd(), stderr.as_fd()];
                if input {
                    ends.insert(0, stdin.as_fd());
                }
                self.control.reply(key, &started, &ends);
            }
            ExecStreams::Terminal(_) | ExecStreams::Given => {}
        }
        Ok(())
    }

    /// PID 1 has made the terminal of an exec.
    pub(crate) fn exec_terminal(&mut self, number: u32, controller: &OwnedFd) {
        let exec = self.control.execs.iter().find(|e| e.number == number);
        if let Some(key) = exec.and_then(|exec| exec.client) {
            let started = Reply::Started { number };
            self.control.reply(key, &started, &[controller.as_fd()]);
        }
    }

    /// The program of an exec could not be executed; its end is told too.
    pub(crate) fn exec_not_executed(&mut self, number: u32, errno: i32) {
        let mut execs = self.control.execs.iter_mut();
        if let Some(exec) = execs.find(|exec| exec.number == number) {
            exec.not_executed = Some(errno);
        }
    }

    /// The program of an exec runs.
    pub(crate) fn exec_executed(&mut self, number: u32) {
        let exec = self.control.execs.iter().find(|e| e.number == number);
        if let Some(exec) = exec
            && exec.detached
            && exec.not_executed.is_none()
            && let Some(key) = exec.client
        {
            self.control.reply(key, &Reply::Executed, &[]);
        }
    }

    /// An exec is over.
    pub(crate) fn exec_exited(
        &mut self,
        number: u32,
        status: i32,
        now: Instant,
    ) -> Result<(), RunError> {
        let Some(index) = self.control.execs.iter().position(|e| e.number == number) else {
            return Ok(());
        };
        let exec = self.control.execs.swap_remove(index);
        let ending = match exec.not_executed {
            Some(errno) => Ending::NotExecuted { errno },
            None => of_status(status),
        };
        self.limits.sign_of_life(now);
        if let Some(side) = &mut self.scope {
            // Told when everything else in the scope has ended, and its leases are proved to be.
            side.ended = Some(ending);
            self.control.execs.push(exec);
            return Ok(());
        }
        self.finish_exec(exec, ending)
    }

    fn finish_exec(&mut self, exec: Exec, ending: Ending) -> Result<(), RunError> {
        // The record first: who is told may act on it.
        self.recorder.write(EventKind::ExecExit {
            number: exec.number,
            ending: ending.clone(),
            milliseconds: exec.born.elapsed().as_millis() as u64,
        })?;
        if let Some(key) = exec.client {
            self.control.reply(key, &Reply::ExecEnded(ending), &[]);
        }
        Ok(())
    }

    /// The cage is gone, and with it every exec.
    pub(crate) fn finish_execs(&mut self, ending: &Ending) -> Result<(), RunError> {
        for exec in std::mem::take(&mut self.control.execs) {
            self.finish_exec(exec, ending.clone())?;
        }
        Ok(())
    }

    /// A client is gone: so is its exec, unless it was detached.
    pub(super) fn hang_up(&mut self, number: u32, now: Instant) {
        let mut execs = self.control.execs.iter_mut();
        let Some(exec) = execs.find(|exec| exec.number == number) else {
            return;
        };
        exec.client = None;
        if !exec.detached {
            exec.killed_at = Some(now + HANGUP);
            // What is gone by now needs no signal; what stopped must go on to hear it.
            let _ = self.cage.signal_exec(number, SIGHUP);
            let _ = self.cage.signal_exec(number, SIGCONT);
        }
    }

    /// When an exec without a client is to be killed.
    pub(crate) fn next_hangup(&self) -> Option<Instant> {
        self.control.execs.iter().filter_map(|e| e.killed_at).min()
    }

    /// Kills execs whose clients are gone and whose time is up.
    pub(crate) fn kill_hung_up(&mut self, now: Instant) {
        for exec in &mut self.control.execs {
            if exec.killed_at.is_some_and(|at| now >= at) {
                exec.killed_at = None;
                let _ = self.cage.signal_exec(exec.number, SIGKILL);
            }
        }
    }
}
