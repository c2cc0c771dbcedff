//! Joins the command's streams with the caller's, or with the log of a background cage.

use crate::RunError;
use crate::log::OutputLog;
use crate::output::{Output, OutputReady};
use crate::supervise::failed;
use ironcage_backend::Streams;
use ironcage_sys::rustix::event::PollFlags;
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::stdio;
use ironcage_terminal::chord::Chord;
use ironcage_terminal::prompt::Before;
use ironcage_terminal::relay::{self, Relay, Waits};
use ironcage_terminal::{RawMode, copy_size, copy_smaller_size, reads_lines};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

/// Rounds of passing output on before a stop: more than a terminal holds.
const DRAIN: u32 = 64;

/// The cage's terminal, and the user's while that is in raw mode.
struct Terminal {
    controller: OwnedFd,
    mode: RawMode,
}

/// The streams of a command, joined with the caller's or with a log.
pub(crate) struct JoinedStreams {
    /// From the caller; nobody waits for its end.
    input: Option<Relay<'static>>,
    /// From the command: of a terminal one, else its standard output and error.
    outputs: Vec<Relay<'static>>,
    terminal: Option<Terminal>,
    /// The log of a background cage, and the clients attached to it.
    pub(crate) output: Output,
}

/// A stream of the command that is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamReady {
    Output(usize),
    /// Whoever read that stream is gone.
    OutputSink(usize),
    Captured(OutputReady),
}

impl JoinedStreams {
    /// The streams of a scope: its command has those of its client.
    pub(crate) fn none() -> Self {
        JoinedStreams {
            input: None,
            outputs: Vec::new(),
            terminal: None,
            output: Output::default(),
        }
    }

    pub(crate) fn has_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Whether output goes to a log, as in the background.
    pub(crate) fn is_logged(&self) -> bool {
        self.output.is_logged()
    }

    /// Whether the program at the cage's terminal reads lines and draws no screen of its own.
    pub(crate) fn reads_lines(&self) -> bool {
        let drawn = self.outputs.first();
        let drawn = drawn.is_none_or(|shown| shown.screen().alternate);
        let own = self.terminal.as_ref();
        !drawn && own.is_some_and(|own| reads_lines(own.controller.as_fd()))
    }

    /// Whether everything that the command wrote has been passed on.
    pub(crate) fn is_done(&self, now: Instant) -> bool {
        let mut outputs = self.outputs.iter();
        outputs.all(|output| output.is_done() || output.has_run_dry(now)) && self.output.is_done()
    }

    /// Ends the streams that have nothing left, and cuts off clients that do not read. Of a dead
    /// cage only what is there already is taken.
    pub(crate) fn settle(&mut self, just_died: bool, now: Instant) {
        self.output.cut_off(now);
        for output in &mut self.outputs {
            if just_died {
                output.take_only_what_is_there(now);
            }
            if output.is_done() || output.has_run_dry(now) {
                output.break_off();
            }
        }
    }

    pub(crate) fn input_interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let interest = self.input.as_ref().and_then(Relay::interest);
        interest.map(|(_, fd, flags)| (fd, flags))
    }

    pub(crate) fn interests(&self) -> Vec<(StreamReady, BorrowedFd<'_>, PollFlags)> {
        let mut all = Vec::new();
        for (index, stream) in self.outputs.iter().enumerate() {
            let interest = stream.interest();
            if let Some((_, fd, flags)) = interest {
                all.push((StreamReady::Output(index), fd, flags));
            }
            if let (Some((Waits::Source, ..)), Some(sink)) = (interest, stream.watched_sink()) {
                all.push((StreamReady::OutputSink(index), sink, PollFlags::empty()));
            }
        }
        let captured = self.output.interests().into_iter();
        all.extend(captured.map(|(spot, fd, flags)| (StreamReady::Captured(spot), fd, flags)));
        all
    }

    /// When something is due that no descriptor announces.
    pub(crate) fn next(&self) -> Option<Instant> {
        let dry = self.outputs.iter().filter_map(Relay::runs_dry);
        dry.chain(self.output.next()).min()
    }

    pub(crate) fn advance_input(&mut self) -> bool {
        self.input.as_mut().is_some_and(Relay::advance)
    }

    /// Acts on a stream that is ready. Whether anything moved.
    pub(crate) fn advance(&mut self, ready: StreamReady, now: Instant) -> bool {
        match ready {
            StreamReady::Output(index) => self.outputs.get_mut(index).is_some_and(Relay::advance),
            StreamReady::OutputSink(index) => {
                if let Some(stream) = self.outputs.get_mut(index) {
                    stream.break_off();
                }
                false
            }
            StreamReady::Captured(spot) => self.output.advance(spot, now),
        }
    }

    /// What the agent has on the user's terminal.
    pub(crate) fn screen(&self) -> Before {
        self.outputs.first().map(Relay::screen).unwrap_or_default()
    }

    /// Whether the user pressed the key of the prompt; `None` where there is no such key. It is a
    /// key of the agent's own while no permission request waits.
    pub(crate) fn prompt_called(&mut self, waits: bool) -> Option<bool> {
        let chord = self.input.as_mut()?.call()?;
        chord.arm(waits);
        Some(chord.take())
    }

    /// Shows something on the user's terminal.
    pub(crate) fn show(&mut self, bytes: &[u8]) {
        let passed = self.outputs.first_mut();
        if passed.is_some_and(|shown| shown.inject(bytes)) || self.terminal.is_none() {
            return;
        }
        // The cage's terminal has come to its end, and the user's still shows the status line.
        // A terminal that takes nothing any more has nobody before it.
        let _ = io::stdout()
            .write_all(bytes)
            .and_then(|()| io::stdout().flush());
    }

    /// Writes a line to the caller's standard error, where the command has no terminal.
    pub(crate) fn write_error(&mut self, text: &str) {
        if let Some(errors) = self.outputs.get_mut(1) {
            errors.inject(format!("{text}\n").as_bytes());
        }
    }

    /// Lets nothing of the command's pass to the user's terminal.
    pub(crate) fn hold(&mut self, held: bool) {
        if let Some(shown) = self.outputs.first_mut() {
            shown.hold(held);
        }
    }

    /// Gives the cage's terminal the size of the user's, or one row less.
    pub(crate) fn fit(&self, smaller: bool) {
        if let Some(own) = &self.terminal {
            match smaller {
                true => copy_smaller_size(own.controller.as_fd()),
                false => copy_size(own.controller.as_fd()),
            }
        }
    }

    /// Stops this process with the command, where the command has a terminal, until the user's
    /// shell continues it. Returns whether it did.
    pub(crate) fn suspend(&mut self, ending: impl Fn() -> bool) -> bool {
        let Some(own) = &self.terminal else {
            return false;
        };
        // Output from before the stop, as far as the user's terminal takes it at once.
        for _ in 0..DRAIN {
            if !self.outputs.iter_mut().any(Relay::advance) {
                break;
            }
        }
        own.mode.suspend(ending);
        copy_size(own.controller.as_fd());
        true
    }
}

fn prepared<T>(result: Result<T, Errno>) -> Result<T, RunError> {
    result.map_err(|error| failed("prepare the streams")(error.into()))
}

/// Joins the cage's streams with the caller's; on a terminal, with the key that calls the
/// supervisor, if there is one.
pub(crate) fn join(
    streams: Streams,
    raw_terminal: bool,
    call: Option<Chord>,
) -> Result<JoinedStreams, RunError> {
    let own = |fd| prepared(relay::own(fd));
    let callers_input = relay::End::Callers(stdio::stdin());
    match streams {
        Streams::Pipes {
            stdin,
            stdout,
            stderr,
        } => Ok(JoinedStreams {
            input: Some(Relay::new(callers_input, own(stdin)?)),
            outputs: Relay::shown_together(
                Relay::shown(own(stdout)?, stdio::stdout(), raw_terminal),
                Relay::shown(own(stderr)?, stdio::stderr(), raw_terminal),
            ),
            terminal: None,
            output: Output::default(),
        }),
        Streams::Terminal(controller) => {
            let another = || controller.try_clone().map_err(failed("copy a descriptor"));
            let (input, output) = (another()?, another()?);
            let shown = Relay::new(own(output)?, relay::callers_sink(stdio::stdout()));
            let shown = match (raw_terminal, &call) {
                (false, _) => shown.filtered(),
                (true, Some(_)) => shown.watched(),
                (true, None) => shown,
            };
            let typed = Relay::new(callers_input, own(input)?).typed();
            let typed = match call {
                Some(chord) => typed.with_call(chord),
                None => typed,
            };
            let mode = RawMode::enter();
            Ok(JoinedStreams {
                input: Some(typed),
                outputs: vec![shown],
                terminal: Some(Terminal { controller, mode }),
                output: Output::default(),
            })
        }
    }
}

/// Joins the cage's streams with a log. The input stays open only where somebody may attach to
/// write there.
pub(crate) fn join_log(
    streams: Streams,
    log: OutputLog,
    keep_input: bool,
) -> Result<JoinedStreams, RunError> {
    let (input, ends) = match streams {
        Streams::Pipes {
            stdin,
            stdout,
            stderr,
        } => (keep_input.then_some(stdin), vec![stdout, stderr]),
        Streams::Terminal(controller) => {
            let input = controller
                .try_clone()
                .map_err(failed("copy a descriptor"))?;
            (Some(input), vec![controller])
        }
    };
    let mut output = Output::to_log(log, input);
    let mut outputs = Vec::new();
    for end in ends {
        let sink = prepared(output.own())?;
        outputs.push(Relay::new(
            prepared(relay::own(end))?,
            prepared(relay::own(sink))?,
        ));
    }
    Ok(JoinedStreams {
        input: None,
        outputs,
        terminal: None,
        output,
    })
}
