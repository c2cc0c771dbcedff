//! Execs: other commands in a running cage, each with a number. [`part`] owns what is known of them;
//! here the loop starts them and hands their streams over.

mod part;

pub(crate) use part::{ExecEvent, Execs};

use crate::RunError;
use crate::audit_writer::in_short;
use crate::supervise::{Supervision, failed};
use ironcage_backend::{StreamKind, Streams};
use ironcage_control::{Bytes, ExecRequest, ExecStreams, Reply};
use ironcage_model::{Ending, SupervisorReason};
use ironcage_sys::rustix::termios::Winsize;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::time::Instant;

pub(crate) const MAX_EXECS: usize = 64;
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
        let against = if self.execs.count() >= MAX_EXECS {
            let limit = MAX_EXECS as u64;
            Some(SupervisorReason::TooManyCommands { limit })
        } else if self.control.stop_deadline().is_some() {
            Some(SupervisorReason::Stopping)
        } else if self.plan.seccomp.one_exec && self.scope.is_none() {
            Some(SupervisorReason::OneProgramOnly)
        } else if self.control.has_exec(key) {
            Some(SupervisorReason::ConnectionInUse)
        } else if request.streams == ExecStreams::Given && given.is_none() {
            Some(SupervisorReason::HostDescriptors)
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
                let error = error.to_string();
                self.control
                    .refuse(key, SupervisorReason::ExecFailed { error });
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
        let number = self.execs.next_number();
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
                let error = error.to_string();
                self.control
                    .refuse(key, SupervisorReason::ExecFailed { error });
                return Ok(());
            }
        };
        let detached = request.streams == ExecStreams::Detached;
        self.control.set_exec(key, number);
        match request.streams {
            ExecStreams::Given => self.control.reply(key, &Reply::Started { number }, &[]),
            wanted => self.hand_over(key, number, streams, wanted)?,
        }
        let started = ExecEvent::Started {
            number,
            command,
            client: key,
            detached,
        };
        self.sign_of_life(now);
        self.exec_event(started, now)
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
                    let adopted = self.streams.output.adopt(output);
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
        if let Some(key) = self.execs.client_of(number) {
            let started = Reply::Started { number };
            self.control.reply(key, &started, &[controller.as_fd()]);
        }
    }

    /// Gives an event to the execs.
    pub(crate) fn exec_event(&mut self, event: ExecEvent, now: Instant) -> Result<(), RunError> {
        let effects = self.execs.handle(event, now);
        self.apply(effects, now)
    }

    pub(crate) fn exec_exited(
        &mut self,
        number: u32,
        status: i32,
        now: Instant,
    ) -> Result<(), RunError> {
        self.sign_of_life(now);
        self.exec_event(ExecEvent::Exited { number, status }, now)
    }

    /// The cage is gone, and with it every exec.
    pub(crate) fn finish_execs(&mut self, ending: &Ending) -> Result<(), RunError> {
        self.exec_event(ExecEvent::CageEnded(ending.clone()), Instant::now())
    }
}
