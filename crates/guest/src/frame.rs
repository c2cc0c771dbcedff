//! Frames: a header of fixed length, then a bounded payload.

/// Bytes of a frame before its payload.
pub const FRAME_HEADER: usize = 12;
/// Longest payload.
pub const MAX_PAYLOAD: usize = 16 << 10;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// To the guest: a part of its setup, in order. Session 0.
    SetupPart = 1,
    /// To the guest: the setup is complete. From the guest: it is done. Session 0.
    Ready = 2,
    /// From the guest: why it cannot go on, as text. Session 0.
    Broken = 3,
    /// To the guest: a part of the order of a session.
    OrderPart = 4,
    /// To the guest: the order is complete. From the guest: its process runs.
    Start = 5,
    /// From the guest: it could not be started; four bytes of an error number.
    Failed = 6,
    /// Bytes of a stream.
    Data = 7,
    /// No more bytes of a stream.
    End = 8,
    /// The reader of a stream takes as many more bytes; four bytes.
    Credit = 9,
    /// To the guest: a signal for the process group of the command; four bytes.
    Signal = 10,
    /// To the guest: the size of the terminal; rows and columns, two bytes each.
    Resize = 11,
    /// To the guest: nobody waits for the session any more. Either way: a connection is over.
    Hangup = 12,
    /// From the guest: the command was stopped.
    Stopped = 13,
    /// From the guest: it is over; four bytes of a status as waitpid encodes it.
    Exited = 14,
    /// From the guest: a connection to a relay of its setup, by the relay's index. To the guest: one
    /// to a port of its loopback. Four bytes. Each side numbers the sessions that it begins.
    Connect = 15,
}

const KINDS: [Kind; 15] = [
    Kind::SetupPart,
    Kind::Ready,
    Kind::Broken,
    Kind::OrderPart,
    Kind::Start,
    Kind::Failed,
    Kind::Data,
    Kind::End,
    Kind::Credit,
    Kind::Signal,
    Kind::Resize,
    Kind::Hangup,
    Kind::Stopped,
    Kind::Exited,
    Kind::Connect,
];

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        KINDS.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Whether payloads of this length can be of this kind.
    fn fits(self, length: usize) -> bool {
        match self {
            Kind::SetupPart | Kind::OrderPart | Kind::Data => (1..=MAX_PAYLOAD).contains(&length),
            Kind::Broken => length <= 1024,
            Kind::Failed
            | Kind::Credit
            | Kind::Signal
            | Kind::Resize
            | Kind::Exited
            | Kind::Connect => length == 4,
            Kind::Ready | Kind::Start | Kind::End | Kind::Hangup | Kind::Stopped => length == 0,
        }
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    pub session: u32,
    pub stream: u8,
    pub payload: Vec<u8>,
}

impl Frame {
    /// A frame without a payload.
    pub fn new(kind: Kind, session: u32) -> Frame {
        Frame {
            kind,
            session,
            stream: 0,
            payload: Vec::new(),
        }
    }

    /// A frame with a number.
    pub fn number(kind: Kind, session: u32, number: u32) -> Frame {
        Frame {
            payload: number.to_le_bytes().to_vec(),
            ..Frame::new(kind, session)
        }
    }

    /// Bytes of a stream.
    pub fn data(session: u32, stream: u8, bytes: &[u8]) -> Frame {
        Frame {
            stream,
            payload: bytes.to_vec(),
            ..Frame::new(Kind::Data, session)
        }
    }

    /// The end of a stream.
    pub fn end(session: u32, stream: u8) -> Frame {
        Frame {
            stream,
            ..Frame::new(Kind::End, session)
        }
    }

    /// Credit for more bytes of a stream.
    pub fn credit(session: u32, stream: u8, bytes: u32) -> Frame {
        Frame {
            stream,
            ..Frame::number(Kind::Credit, session, bytes)
        }
    }

    /// The size of a terminal.
    pub fn resize(session: u32, rows: u16, columns: u16) -> Frame {
        let [a, b] = rows.to_le_bytes();
        let [c, d] = columns.to_le_bytes();
        Frame {
            payload: vec![a, b, c, d],
            ..Frame::new(Kind::Resize, session)
        }
    }

    /// The four bytes of a payload as a number.
    pub fn value(&self) -> Option<u32> {
        let bytes = self.payload.as_slice().try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    }

    /// Rows and columns.
    pub fn size(&self) -> Option<(u16, u16)> {
        let value = self.value()?;
        Some((value as u16, (value >> 16) as u16))
    }

    /// Appends the frame as it travels.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.extend([self.kind as u8, self.stream, 0, 0]);
        out.extend(self.session.to_le_bytes());
        out.extend((self.payload.len() as u32).to_le_bytes());
        out.extend(&self.payload);
    }

    /// Frames that carry bytes longer than one payload.
    pub fn parts(kind: Kind, session: u32, bytes: &[u8]) -> impl Iterator<Item = Frame> + '_ {
        bytes.chunks(MAX_PAYLOAD).map(move |part| Frame {
            payload: part.to_vec(),
            ..Frame::new(kind, session)
        })
    }
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("unknown kind of frame {0}")]
    Kind(u8),
    #[error("a frame of kind {kind} with {length} bytes")]
    Length { kind: u8, length: usize },
    #[error("unknown stream {0}")]
    Stream(u8),
}

/// Cuts bytes into frames. It holds less than one frame and what was pushed last.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
}

impl Decoder {
    /// Takes bytes in as they came.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame.
    ///
    /// # Errors
    /// Bytes that are not a frame: nothing after them can be trusted.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let rest = self.buffer.get(self.start..).unwrap_or_default();
        let Some((header, rest)) = rest.split_at_checked(FRAME_HEADER) else {
            return Ok(None);
        };
        let &[code, stream, _, _, s0, s1, s2, s3, l0, l1, l2, l3] = header else {
            return Ok(None);
        };
        let kind = Kind::of(code).ok_or(FrameError::Kind(code))?;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if !kind.fits(length) {
            return Err(FrameError::Length { kind: code, length });
        }
        if stream > crate::STDERR {
            return Err(FrameError::Stream(stream));
        }
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let frame = Frame {
            kind,
            session: u32::from_le_bytes([s0, s1, s2, s3]),
            stream,
            payload: payload.to_vec(),
        };
        self.start += FRAME_HEADER + length;
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_arrive_as_they_were_sent_however_they_are_cut(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 1..8),
            cut in 1_usize..40,
        ) {
            let sent: Vec<Frame> = payloads.iter().map(|bytes| Frame::data(7, 1, bytes)).collect();
            let mut bytes = Vec::new();
            for frame in &sent {
                frame.write_to(&mut bytes);
            }
            let (mut decoder, mut got) = (Decoder::default(), Vec::new());
            for part in bytes.chunks(cut) {
                decoder.push(part);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    got.push(frame);
                }
            }
            prop_assert_eq!(got, sent);
        }

        #[test]
        fn garbage_never_makes_the_decoder_hold_more_than_a_frame(
            bytes in prop::collection::vec(any::<u8>(), 0..4096),
        ) {
            let mut decoder = Decoder::default();
            for part in bytes.chunks(64) {
                decoder.push(part);
                while let Ok(Some(_)) = decoder.next_frame() {}
                if decoder.next_frame().is_err() {
                    return Ok(());
                }
                prop_assert!(decoder.buffer.len() <= FRAME_HEADER + MAX_PAYLOAD + 64);
            }
        }
    }

    #[test]
    fn a_length_that_its_kind_cannot_have_is_refused_before_it_is_buffered() {
        let mut decoder = Decoder::default();
        let mut bytes = Vec::new();
        Frame::data(1, 1, b"x").write_to(&mut bytes);
        bytes[8..12].copy_from_slice(&(MAX_PAYLOAD as u32 + 1).to_le_bytes());
        decoder.push(&bytes);
        assert!(matches!(
            decoder.next_frame(),
            Err(FrameError::Length { .. })
        ));
    }
}
