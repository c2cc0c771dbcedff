//! Joins the command's streams with the caller's, or with the log of a background cage.

use crate::RunError;
use crate::log::OutputLog;
use crate::output::Output;
use crate::supervise::failed;
use ironcage_backend::Streams;
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::stdio;
use ironcage_terminal::RawMode;
use ironcage_terminal::chord::Chord;
use ironcage_terminal::relay::{self, Relay};
use std::os::fd::OwnedFd;

/// The cage's terminal, and the user's while that is in raw mode.
pub(crate) struct Terminal {
    pub(crate) controller: OwnedFd,
    pub(crate) mode: RawMode,
}

/// The streams of a command, on their way.
pub(crate) struct JoinedStreams {
    /// From the caller; nobody waits for its end.
    pub(crate) input: Option<Relay<'static>>,
    /// From the command.
    pub(crate) outputs: Vec<Relay<'static>>,
    /// The user's terminal, where the command has one.
    pub(crate) terminal: Option<Terminal>,
    /// What the supervisor takes itself.
    pub(crate) output: Output,
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
            outputs: vec![
                Relay::new(own(stdout)?, relay::callers_sink(stdio::stdout())),
                Relay::new(own(stderr)?, relay::callers_sink(stdio::stderr())),
            ],
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
