//! One end of a connection that is carried as frames: a socket here, a session to the other side.

use crate::{Frame, Kind, MAX_PAYLOAD, STDIN, WINDOW};
use std::io::{self, ErrorKind, Read, Write};

/// What is known of a carried connection. It holds at most [`WINDOW`] bytes for its socket, and
/// sends no more than the other side has credited.
#[derive(Debug)]
pub struct Carried {
    session: u32,
    /// Bytes for the socket.
    queue: Vec<u8>,
    /// Bytes that the other side still takes.
    credit: u32,
    /// Bytes that the socket took and the other side has not been told of.
    owed: u32,
    /// Whether the other side has said that no more comes.
    peer_ended: bool,
    /// Whether the socket was told so.
    shut: bool,
    /// Whether the socket takes nothing any more: what comes for it is dropped.
    deaf: bool,
    /// Whether the socket has no more bytes, which the other side was told.
    ended: bool,
}

impl Carried {
    /// A connection that has just begun.
    pub fn new(session: u32) -> Carried {
        Carried {
            session,
            queue: Vec::new(),
            credit: WINDOW,
            owed: 0,
            peer_ended: false,
            shut: false,
            deaf: false,
            ended: false,
        }
    }

    /// The number of its session.
    pub fn session(&self) -> u32 {
        self.session
    }

    /// Whether bytes of the socket can be sent on.
    pub fn wants_to_read(&self) -> bool {
        !self.ended && self.credit > 0
    }

    /// Whether bytes wait for the socket.
    pub fn wants_to_write(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Takes a frame of its session. `false` where the other side broke the protocol, or hung up.
    pub fn obey(&mut self, frame: &Frame) -> bool {
        match frame.kind {
            Kind::Data if frame.stream == STDIN && !self.peer_ended => {
                let fits = self.queue.len() + self.owed as usize + frame.payload.len();
                if fits > WINDOW as usize {
                    return false;
                }
                match self.deaf {
                    true => self.owed += frame.payload.len() as u32,
                    false => self.queue.extend_from_slice(&frame.payload),
                }
                true
            }
            Kind::End if frame.stream == STDIN => {
                self.peer_ended = true;
                true
            }
            Kind::Credit => {
                let more = frame.value().unwrap_or(0);
                self.credit = self.credit.saturating_add(more).min(WINDOW);
                true
            }
            _ => false,
        }
    }

    /// Carries what can be carried: to the socket, and from it where there is room for more frames.
    /// `true` where the socket is to be shut for writing now, which happens once.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn turn(
        &mut self,
        socket: &mut (impl Read + Write),
        room: bool,
        out: &mut Vec<u8>,
    ) -> io::Result<bool> {
        self.write(socket);
        if room {
            self.send_credit(out);
            self.read(socket, out)?;
        }
        let now = self.peer_ended && self.queue.is_empty() && !self.shut;
        self.shut |= now;
        Ok(now && !self.deaf)
    }

    /// Reads from the socket as far as there is credit.
    fn read(&mut self, socket: &mut impl Read, out: &mut Vec<u8>) -> io::Result<()> {
        if !self.wants_to_read() {
            return Ok(());
        }
        let mut buffer = [0; MAX_PAYLOAD];
        let room = buffer.len().min(self.credit as usize);
        match socket.read(buffer.get_mut(..room).unwrap_or_default()) {
            Ok(0) => {
                self.ended = true;
                Frame::end(self.session, STDIN).write_to(out);
                Ok(())
            }
            Ok(count) => {
                self.credit -= count as u32;
                let bytes = buffer.get(..count).unwrap_or_default();
                Frame::data(self.session, STDIN, bytes).write_to(out);
                Ok(())
            }
            Err(error) if is_pause(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Writes to the socket what it takes. One that takes no more may still have something to say.
    fn write(&mut self, socket: &mut impl Write) {
        while !self.queue.is_empty() {
            match socket.write(&self.queue) {
                Ok(count) => {
                    self.queue.drain(..count);
                    self.owed += count as u32;
                }
                Err(error) if is_pause(&error) => return,
                Err(_) => {
                    self.owed += self.queue.len() as u32;
                    self.queue.clear();
                    self.deaf = true;
                }
            }
        }
    }

    /// Tells the other side what the socket took.
    fn send_credit(&mut self, out: &mut Vec<u8>) {
        if self.owed > 0 && (self.queue.is_empty() || self.owed >= WINDOW / 4) {
            Frame::credit(self.session, STDIN, self.owed).write_to(out);
            self.owed = 0;
        }
    }

    /// Whether both directions are at their end.
    pub fn is_over(&self) -> bool {
        self.ended && (self.shut || self.deaf)
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::NotConnected
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Decoder;

    fn frames(bytes: &[u8]) -> Vec<Frame> {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        std::iter::from_fn(|| decoder.next_frame().unwrap()).collect()
    }

    /// A socket that takes this number of bytes, then no more, and has these to read.
    struct Narrow(usize, io::Cursor<Vec<u8>>);

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.0);
            self.0 -= count;
            match count {
                0 => Err(ErrorKind::WouldBlock.into()),
                count => Ok(count),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for Narrow {
        fn read(&mut self, place: &mut [u8]) -> io::Result<usize> {
            self.1.read(place)
        }
    }

    fn narrow(room: usize, content: usize) -> Narrow {
        Narrow(room, io::Cursor::new(vec![1; content]))
    }

    #[test]
    fn a_socket_is_read_as_far_as_there_is_credit_and_its_end_is_said_once() {
        let mut carried = Carried::new(7);
        let mut socket = narrow(0, WINDOW as usize + 10);
        let mut out = Vec::new();
        while carried.wants_to_read() {
            assert!(!carried.turn(&mut socket, true, &mut out).unwrap());
        }
        let sent: usize = frames(&out).iter().map(|frame| frame.payload.len()).sum();
        assert_eq!(sent, WINDOW as usize);
        assert!(carried.obey(&Frame::credit(7, STDIN, 100)));
        out.clear();
        while carried.wants_to_read() {
            carried.turn(&mut socket, true, &mut out).unwrap();
        }
        let rest = frames(&out);
        assert_eq!(rest.len(), 2);
        assert_eq!((rest[0].payload.len(), rest[1].kind), (10, Kind::End));
    }

    #[test]
    fn more_than_was_credited_breaks_the_connection_and_nothing_grows() {
        let mut carried = Carried::new(7);
        let full = Frame::data(7, STDIN, &[0; MAX_PAYLOAD]);
        let fits = WINDOW as usize / MAX_PAYLOAD;
        for _ in 0..fits {
            assert!(carried.obey(&full));
        }
        assert!(!carried.obey(&full));
        // What was written and not yet credited counts too.
        let mut out = Vec::new();
        carried.turn(&mut narrow(100, 1), false, &mut out).unwrap();
        assert!(!carried.obey(&Frame::data(7, STDIN, &[0; 1])));
        carried
            .turn(&mut narrow(usize::MAX, 1), true, &mut out)
            .unwrap();
        assert_eq!(frames(&out)[0].value(), Some(WINDOW));
        assert!(carried.obey(&full));
    }

    #[test]
    fn a_socket_is_shut_after_the_last_byte_and_only_once() {
        let mut carried = Carried::new(7);
        let mut out = Vec::new();
        assert!(carried.obey(&Frame::data(7, STDIN, b"last")));
        assert!(carried.obey(&Frame::end(7, STDIN)));
        assert!(!carried.turn(&mut narrow(0, 1), true, &mut out).unwrap());
        let mut socket = narrow(10, 0);
        assert!(carried.turn(&mut socket, false, &mut out).unwrap());
        assert!(!carried.is_over());
        assert!(!carried.turn(&mut socket, true, &mut out).unwrap());
        assert!(carried.is_over());
        // Bytes after the end.
        assert!(!carried.obey(&Frame::data(7, STDIN, b"more")));
        assert!(!carried.obey(&Frame::new(Kind::Hangup, 7)));
    }

    #[test]
    fn a_socket_that_takes_no_more_is_still_read_to_its_end() {
        struct Closed(io::Cursor<Vec<u8>>);
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        impl Read for Closed {
            fn read(&mut self, place: &mut [u8]) -> io::Result<usize> {
                self.0.read(place)
            }
        }
        let mut carried = Carried::new(7);
        let mut out = Vec::new();
        let mut socket = Closed(io::Cursor::new(b"answer".to_vec()));
        assert!(carried.obey(&Frame::data(7, STDIN, b"question")));
        while !carried.is_over() {
            carried.turn(&mut socket, true, &mut out).unwrap();
        }
        let sent = frames(&out);
        assert!(sent.iter().any(|frame| frame.payload == b"answer"));
        assert!(sent.iter().any(|frame| frame.value() == Some(8)));
    }
}
