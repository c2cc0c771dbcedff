//! Joins the command's streams with the caller's.

use crate::RunError;
use crate::relay::{self, Relay};
use crate::supervise::failed;
use crate::terminal::RawMode;
use ironcage_backend::Streams;
use ironcage_sys::rustix::stdio;
use std::os::fd::OwnedFd;

/// The cage's terminal, and the user's while that is in raw mode.
pub(crate) struct Terminal {
    pub(crate) controller: OwnedFd,
    pub(crate) mode: RawMode,
}
/// Joins the cage's streams with the caller's.
pub(crate) fn join(
    streams: Streams,
    raw_terminal: bool,
) -> Result<(Vec<Relay<'static>>, Option<Terminal>), RunError> {
    let own = |fd| relay::own(fd).map_err(|e| failed("prepare the streams")(e.into()));
    let callers_input = relay::End::Callers(stdio::stdin());
    match streams {
        Streams::Pipes {
            stdin,
            stdout,
            stderr,
        } => Ok((
            vec![
                Relay::new(callers_input, own(stdin)?),
                Relay::new(own(stdout)?, relay::callers_sink(stdio::stdout())),
                Relay::new(own(stderr)?, relay::callers_sink(stdio::stderr())),
            ],
            None,
        )),
        Streams::Terminal(controller) => {
            let another = || controller.try_clone().map_err(failed("copy a descriptor"));
            let (input, output) = (another()?, another()?);
            let shown = Relay::new(own(output)?, relay::callers_sink(stdio::stdout()));
            let relays = vec![
                Relay::new(callers_input, own(input)?),
                if raw_terminal {
                    shown
                } else {
                    shown.filtered()
                },
            ];
            let mode = RawMode::enter();
            Ok((relays, Some(Terminal { controller, mode })))
        }
    }
}
