//! Server-sent events: lines in pieces, put together to the data of each event.

/// A reader of events.
#[derive(Debug)]
pub(super) struct Events {
    line: Vec<u8>,
    data: Vec<u8>,
    /// Whether the event has data.
    begun: bool,
    /// Whether this event is too long to be kept.
    lost: bool,
    /// Whether the last byte was a carriage return: a newline after it is the same end.
    after_return: bool,
    longest: usize,
}

impl Events {
    pub(super) fn new(longest: usize) -> Self {
        Events {
            line: Vec::new(),
            data: Vec::new(),
            begun: false,
            lost: false,
            after_return: false,
            longest,
        }
    }

    /// Takes bytes; each event that they complete is given on, `None` where it was too long.
    pub(super) fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(Option<&[u8]>)) {
        let mut rest = bytes;
        while let Some(first) = rest.first() {
            let after_return = std::mem::replace(&mut self.after_return, false);
            if after_return && *first == b'\n' {
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
            let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let (line, after) = rest.split_at(end.unwrap_or(rest.len()));
            self.add(line);
            if end.is_some() {
                self.after_return = after.first() == Some(&b'\r');
                self.end_line(&mut each);
            }
            rest = after.get(1..).unwrap_or_default();
        }
    }

    fn add(&mut self, part: &[u8]) {
        let length = self.line.len().saturating_add(self.data.len());
        if self.lost {
            // Only whether the line is empty counts until the event is over.
            if self.line.is_empty() {
                self.line.extend(part.first());
            }
        } else if length.saturating_add(part.len()) > self.longest {
            self.lost = true;
            self.data = Vec::new();
            self.line = vec![b' '];
        } else {
            self.line.extend_from_slice(part);
        }
    }

    fn end_line(&mut self, each: &mut impl FnMut(Option<&[u8]>)) {
        if self.line.is_empty() {
            if self.lost {
                each(None);
            } else if self.begun {
                each(Some(&self.data));
            }
            self.data.clear();
            self.begun = false;
            self.lost = false;
            return;
        }
        if !self.lost
            && let Some(value) = self.line.strip_prefix(b"data:")
        {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            if self.begun {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value);
            self.begun = true;
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]], longest: usize) -> Vec<Option<String>> {
        let mut events = Events::new(longest);
        let mut seen = Vec::new();
        for piece in pieces {
            events.feed(piece, |data| {
                seen.push(data.map(|data| String::from_utf8_lossy(data).into_owned()));
            });
        }
        seen
    }

    #[test]
    fn events_come_in_any_pieces_and_with_any_ends_of_lines() {
        let stream = b"event: a\ndata: 1\n\ndata: 2\r\ndata: 3\r\n\r\n: comment\rdata:4\r\r";
        let wanted = [Some("1"), Some("2\n3"), Some("4")].map(|data| data.map(str::to_owned));
        assert_eq!(read(&[stream], 100), wanted);
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(read(&bytes, 100), wanted);
    }

    #[test]
    fn an_event_that_is_too_long_is_told_and_the_next_one_is_read() {
        let long = format!("data: {}\ndata: x\n\ndata: next\n\n", "a".repeat(1000));
        assert_eq!(
            read(&[long.as_bytes()], 50),
            [None, Some("next".to_owned())]
        );
    }
}
