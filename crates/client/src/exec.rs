//! Another command in a running cage, with the caller's streams.

use crate::leases::{listen, open_path};
use crate::{ClientError, Connection, system};
use ironcage_control::{
    Bytes, ExecRequest, ExecStreams, GrantRequest, Reply, Request, ScopeRequest, Size,
};
use ironcage_model::{Ending, LeaseOrigin, Resource};
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::stdio;
use ironcage_sys::signals;
use ironcage_terminal::relay::{self, Relay, Waits};
use ironcage_terminal::{self as terminal, RawMode};
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const SIGKILL: i32 = ironcage_sys::rustix::process::Signal::KILL.as_raw();
const SIGWINCH: i32 = ironcage_sys::rustix::process::Signal::WINCH.as_raw();
/// Hang-up, interrupt, quit, the two for users, termination.
const FORWARDED: [i32; 6] = [1, 2, 3, 10, 12, 15];

/// How a command is started in a running cage.
#[derive(Debug, Default)]
pub struct ExecOptions {
    /// Program and arguments.
    pub argv: Vec<OsString>,
    /// Variables on top of the cage's own.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory inside.
    pub cwd: Option<OsString>,
    /// Whether standard input is passed on.
    pub input: bool,
    /// Whether it gets a terminal of its own.
    pub terminal: bool,
    /// Whether it outlives the caller.
    pub detached: bool,
    /// Whether sequences that make the user's terminal act or answer are let through.
    pub raw_terminal: bool,
    /// Where it runs beside the cage: with what.
    pub scope: Option<ScopeOptions>,
    /// After how long it is killed, with its process group.
    pub time: Option<Duration>,
}

/// How a command ended.
#[derive(Debug)]
pub struct ExecEnd {
    pub ending: Ending,
    /// Whether it was killed because its time was up.
    pub timed_out: bool,
}

/// What a command has that runs in a scope of its own.
#[derive(Debug)]
pub struct ScopeOptions {
    /// Leases; those on paths with the path as the caller sees it. What it leads to now is what is
    /// asked for, whatever takes its place meanwhile.
    pub leases: Vec<(GrantRequest, Option<PathBuf>)>,
    pub origin: LeaseOrigin,
}

/// A scope as it is asked for, and the descriptors of its paths.
fn scope_request(options: ScopeOptions) -> Result<(ScopeRequest, Vec<OwnedFd>), ClientError> {
    let mut leases = Vec::new();
    let mut handles = Vec::new();
    for (mut request, path) in options.leases {
        if let Some(path) = path {
            handles.push(open_path(&path)?);
        }
        if let ironcage_control::LeaseTarget::Other(Resource::Port { publish }) =
            &mut request.wanted
        {
            let (found, listener) = listen(*publish)?;
            *publish = found;
            handles.push(listener);
        }
        leases.push(request);
    }
    let origin = options.origin;
    let request = ScopeRequest {
        leases,
        origin,
        ..ScopeRequest::default()
    };
    Ok((request, handles))
}

impl Connection {
    /// Starts a command in the cage and returns the outer ends of its streams: input if there is
    /// one, output, errors. The command ends with this connection.
    pub fn start_exec(
        &self,
        request: ExecRequest,
        patience: Duration,
    ) -> Result<Vec<OwnedFd>, ClientError> {
        self.send(&Request::Exec(request))?;
        match self.receive(Some(Instant::now() + patience))? {
            (Reply::Started { .. }, descriptors) => Ok(descriptors),
            (other, _) => Err(ClientError::Answer(format!("{other:?}"))),
        }
    }
}

/// Runs a command in a cage to its end. `None` when it was detached and runs.
pub fn exec(connection: &Connection, options: ExecOptions) -> Result<Option<ExecEnd>, ClientError> {
    let not_run = |ending| ExecEnd {
        ending,
        timed_out: false,
    };
    let bytes = |text: OsString| Bytes(text.into_vec());
    let size = terminal::size();
    let streams = match (options.detached, options.terminal) {
        (true, _) => ExecStreams::Detached,
        (false, true) => ExecStreams::Terminal(Size {
            rows: size.ws_row,
            columns: size.ws_col,
        }),
        (false, false) => ExecStreams::Pipes {
            input: options.input,
        },
    };
    // Caught before there is anything that they could be meant for.
    let mut caught = FORWARDED.to_vec();
    if options.terminal {
        caught.push(SIGWINCH);
    }
    let signals = signals::catch(&caught).map_err(system("catch signals"))?;
    let (scope, handles) = match options.scope {
        Some(scope) => {
            let (request, handles) = scope_request(scope)?;
            (Some(request), handles)
        }
        None => (None, Vec::new()),
    };
    let request = Request::Exec(ExecRequest {
        argv: options.argv.into_iter().map(bytes).collect(),
        env: options
            .env
            .into_iter()
            .map(|(name, value)| (bytes(name), bytes(value)))
            .collect(),
        cwd: options.cwd.map(bytes),
        streams,
        scope,
    });
    let beside: Vec<_> = handles.iter().map(AsFd::as_fd).collect();
    connection.send_with(&request, &beside)?;
    drop(handles);
    let descriptors = match connection.receive(None)? {
        (Reply::Started { .. }, descriptors) => descriptors,
        (Reply::ExecEnded(ending), _) => return Ok(Some(not_run(ending))),
        (other, _) => return Err(ClientError::Answer(format!("{other:?}"))),
    };
    if options.detached {
        return match connection.receive(None)? {
            (Reply::Executed, _) => Ok(None),
            (Reply::ExecEnded(ending), _) => Ok(Some(not_run(ending))),
            (other, _) => Err(ClientError::Answer(format!("{other:?}"))),
        };
    }
    let streams = Streams::join(
        descriptors,
        &options_of(&streams, options.input, options.raw_terminal),
    )?;
    Relaying {
        connection,
        signals,
        streams,
        deadline: options
            .time
            .and_then(|time| Instant::now().checked_add(time)),
        timed_out: false,
    }
    .run()
    .map(Some)
}

struct StreamOptions {
    terminal: bool,
    input: bool,
    raw: bool,
}

fn options_of(streams: &ExecStreams, input: bool, raw: bool) -> StreamOptions {
    StreamOptions {
        terminal: matches!(streams, ExecStreams::Terminal(_)),
        input,
        raw,
    }
}

/// The streams of a command in the cage, joined with the caller's.
struct Streams {
    input: Option<Relay<'static>>,
    outputs: Vec<Relay<'static>>,
    terminal: Option<(OwnedFd, RawMode)>,
}

impl Streams {
    fn join(descriptors: Vec<OwnedFd>, wanted: &StreamOptions) -> Result<Streams, ClientError> {
        let own = |fd| relay::own(fd).map_err(system("prepare the streams"));
        let missing = || ClientError::Answer("streams are missing".into());
        let callers_input = || relay::End::Callers(stdio::stdin());
        let mut descriptors = descriptors.into_iter();
        if wanted.terminal {
            let controller = descriptors.next().ok_or_else(missing)?;
            let another = || controller.try_clone().map_err(system("copy a descriptor"));
            let shown = Relay::new(own(another()?)?, relay::callers_sink(stdio::stdout()));
            let shown = if wanted.raw { shown } else { shown.filtered() };
            let input = match wanted.input {
                true => Some(Relay::new(callers_input(), own(another()?)?).typed()),
                false => None,
            };
            let mode = RawMode::enter();
            return Ok(Streams {
                input,
                outputs: vec![shown],
                terminal: Some((controller, mode)),
            });
        }
        let input = match wanted.input {
            true => {
                let end = descriptors.next().ok_or_else(missing)?;
                Some(Relay::new(callers_input(), own(end)?))
            }
            false => None,
        };
        let (stdout, stderr) = descriptors
            .next()
            .zip(descriptors.next())
            .ok_or_else(missing)?;
        Ok(Streams {
            input,
            outputs: Relay::shown_together(
                Relay::shown(own(stdout)?, stdio::stdout(), wanted.raw),
                Relay::shown(own(stderr)?, stdio::stderr(), wanted.raw),
            ),
            terminal: None,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Supervisor,
    Signals,
    Input,
    Output(usize),
    BrokenSink(usize),
}

struct Relaying<'a> {
    connection: &'a Connection,
    signals: OwnedFd,
    streams: Streams,
    /// When the command is killed; `None` once it was.
    deadline: Option<Instant>,
    timed_out: bool,
}

impl Relaying<'_> {
    fn run(mut self) -> Result<ExecEnd, ClientError> {
        let mut ending = None;
        loop {
            let now = Instant::now();
            if let Some(ending) = &ending
                && self
                    .streams
                    .outputs
                    .iter()
                    .all(|output| output.is_done() || output.has_run_dry(now))
            {
                let ending: &Ending = ending;
                let end = ExecEnd {
                    ending: ending.clone(),
                    timed_out: self.timed_out,
                };
                self.leave();
                return Ok(end);
            }
            if ending.is_none() && self.deadline.is_some_and(|deadline| now >= deadline) {
                self.deadline = None;
                self.timed_out = true;
                self.connection.send(&Request::Signal { signal: SIGKILL })?;
            }
            for source in self.wait(ending.is_some())? {
                match source {
                    Source::Supervisor => {
                        if let Some((Reply::ExecEnded(how), _)) = self.connection.take()? {
                            ending = Some(how);
                            // What others write from now on is no longer part of it.
                            for output in &mut self.streams.outputs {
                                output.take_only_what_is_there(Instant::now());
                            }
                        }
                    }
                    Source::Signals => self.pass_signals()?,
                    Source::Input => {
                        self.streams.input.as_mut().map(Relay::advance);
                    }
                    Source::Output(index) => {
                        self.streams.outputs.get_mut(index).map(Relay::advance);
                    }
                    Source::BrokenSink(index) => {
                        if let Some(output) = self.streams.outputs.get_mut(index) {
                            output.break_off();
                        }
                    }
                }
            }
        }
    }

    fn wait(&self, ended: bool) -> Result<Vec<Source>, ClientError> {
        let mut sources = Vec::with_capacity(8);
        let mut fds = Vec::with_capacity(8);
        let mut add = |source, fd, flags| {
            sources.push(source);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        };
        if !ended {
            add(Source::Supervisor, self.connection.as_fd(), PollFlags::IN);
            if let Some((_, fd, flags)) = self.streams.input.as_ref().and_then(Relay::interest) {
                add(Source::Input, fd, flags);
            }
        }
        add(Source::Signals, self.signals.as_fd(), PollFlags::IN);
        for (index, output) in self.streams.outputs.iter().enumerate() {
            let interest = output.interest();
            if let Some((_, fd, flags)) = interest {
                add(Source::Output(index), fd, flags);
            }
            if let (Some((Waits::Source, ..)), Some(sink)) = (interest, output.watched_sink()) {
                add(Source::BrokenSink(index), sink, PollFlags::empty());
            }
        }
        let dry = self
            .streams
            .outputs
            .iter()
            .filter_map(Relay::runs_dry)
            .min();
        let deadline = self.deadline.filter(|_| !ended);
        let timeout = [dry, deadline]
            .into_iter()
            .flatten()
            .min()
            .map(|at| Timespec::try_from(at.saturating_duration_since(Instant::now())))
            .transpose()
            .map_err(|error| system("wait")(std::io::Error::other(error)))?;
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(system("wait for the cage")(error)),
        }
        Ok(sources
            .into_iter()
            .zip(&fds)
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(source, _)| source)
            .collect())
    }

    fn pass_signals(&self) -> Result<(), ClientError> {
        while let Some(signal) =
            signals::next(self.signals.as_fd()).map_err(system("read a signal"))?
        {
            match (signal, &self.streams.terminal) {
                (SIGWINCH, Some((controller, _))) => terminal::copy_size(controller.as_fd()),
                _ => self.connection.send(&Request::Signal { signal })?,
            }
        }
        Ok(())
    }

    /// Gives output that others still hold to the supervisor, so that they can go on writing.
    fn leave(self) {
        let held: Vec<OwnedFd> = self
            .streams
            .outputs
            .into_iter()
            .filter_map(Relay::leave)
            .collect();
        if !held.is_empty() && self.streams.terminal.is_none() {
            let ends: Vec<_> = held.iter().map(AsFd::as_fd).collect();
            // If the supervisor is gone, so are they.
            let _ = self.connection.send_with(&Request::Leave, &ends);
        }
    }
}
