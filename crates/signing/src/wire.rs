//! The encoding of SSH: numbers, strings and what follows.

/// Reads from the front of some bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    pub(crate) fn number(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        self.take(usize::try_from(length).ok()?)
    }

    pub(crate) fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.string()?).ok()
    }

    /// Nothing may follow.
    pub(crate) fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Appends a string.
pub(crate) fn put_string(to: &mut Vec<u8>, string: &[u8]) {
    // What is longer was never read: every message is bounded.
    let length = u32::try_from(string.len()).unwrap_or(u32::MAX);
    to.extend_from_slice(&length.to_be_bytes());
    to.extend_from_slice(string);
}

/// A message with its length before it.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(message.len() + 4);
    put_string(&mut frame, message);
    frame
}
