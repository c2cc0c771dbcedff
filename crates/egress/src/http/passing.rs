//! A body on its way: what looks at it before it goes on, and who is told what went.

use crate::reader::Watch;
use crate::secret::{Redactor, Scanner};
use std::borrow::Cow;
use std::io;
use std::time::Duration;
use tokio::time::Instant;

/// How long an end of an answer is held back while nothing follows it, at least and at most.
pub(super) const HELD_FOR: Duration = Duration::from_millis(50);
pub(super) const LONGEST_HELD_FOR: Duration = Duration::from_secs(1);

/// What looks at a body.
pub(crate) enum Look {
    Nothing,
    /// Stops it at a placeholder.
    Stops(Scanner),
    /// Covers values.
    Redacts(Redactor),
}

/// What a body passes.
pub(crate) struct Passing {
    look: Look,
    held_for: Duration,
    /// Reads what went on, and holds nothing.
    watch: Option<Watch>,
}

impl Passing {
    pub(crate) fn new(look: Look, watch: Option<Watch>, held_for: Duration) -> Self {
        Passing {
            look,
            held_for,
            watch,
        }
    }

    /// What of a part goes on now.
    pub(crate) fn part<'a>(&mut self, part: &'a [u8]) -> io::Result<Cow<'a, [u8]>> {
        match &mut self.look {
            Look::Nothing => Ok(Cow::Borrowed(part)),
            Look::Stops(scanner) => scanner.pass(part).map(Cow::Owned).map_err(io::Error::other),
            Look::Redacts(redactor) => Ok(redactor.pass(part)),
        }
    }

    /// Whether an end of an answer is held back.
    pub(crate) fn holds(&self) -> bool {
        matches!(&self.look, Look::Redacts(redactor) if redactor.holds())
    }

    /// When the end that is held back goes on, if nothing comes before. To be asked when the wait
    /// for more begins: while the client is slow to take what it gets nothing is read, so that
    /// time says nothing about the server.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.holds().then(|| Instant::now() + self.held_for)
    }

    /// What goes on at the end, or because it is due.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        match &mut self.look {
            Look::Nothing => Vec::new(),
            Look::Stops(scanner) => scanner.finish(),
            Look::Redacts(redactor) => redactor.release(),
        }
    }

    pub(crate) fn went(&mut self, bytes: &[u8]) {
        if let Some(watch) = &mut self.watch {
            watch.went(bytes);
        }
    }
}
