//! A body on its way: what looks at it before it goes on, and who is told what went.

use crate::reader::Watch;
use crate::secret::Scanner;
use std::borrow::Cow;
use std::io;

/// What a body passes.
pub(crate) struct Passing {
    /// Looks for secrets, and may hold bytes back.
    scanner: Option<Scanner>,
    /// Reads what went on, and holds nothing.
    watch: Option<Watch>,
}

impl Passing {
    pub(crate) fn new(scanner: Option<Scanner>, watch: Option<Watch>) -> Self {
        Passing { scanner, watch }
    }

    /// What of a part goes on now.
    pub(crate) fn part<'a>(&mut self, part: &'a [u8]) -> io::Result<Cow<'a, [u8]>> {
        match &mut self.scanner {
            Some(scanner) => scanner.pass(part).map(Cow::Owned).map_err(io::Error::other),
            None => Ok(Cow::Borrowed(part)),
        }
    }

    /// What goes on at the end.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let scanner = self.scanner.as_mut();
        scanner.map(Scanner::finish).unwrap_or_default()
    }

    /// These bytes went on.
    pub(crate) fn went(&mut self, bytes: &[u8]) {
        if let Some(watch) = &mut self.watch {
            watch.went(bytes);
        }
    }
}
