//! The loop: frames from the cage, ends of children, streams of commands.

use crate::boot::{self, BootError};
use crate::relay::Relays;
use crate::session::Session;
use ironcage_guest::{
    Decoder, Frame, GuestOrder, GuestSetup, Kind, MAX_ORDER, MAX_SESSIONS, STDIN,
};
use ironcage_sys::process::signal_group;
use ironcage_sys::rustix::event::{PollFd, PollFlags, poll};
use ironcage_sys::rustix::io::{Errno, read, write};
use ironcage_sys::rustix::process::{WaitOptions, wait};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

const SIGCHLD: i32 = ironcage_sys::rustix::process::Signal::CHILD.as_raw();
const SIGKILL: i32 = ironcage_sys::rustix::process::Signal::KILL.as_raw();
const SIGCONT: i32 = ironcage_sys::rustix::process::Signal::CONT.as_raw();
/// Bytes on their way out above which commands are not read.
const FULL: usize = 256 << 10;
/// Longest setup.
const MAX_SETUP: usize = 1 << 20;
/// How long the other end of the port may take to appear.
const PATIENCE: Duration = Duration::from_secs(60);

struct Server {
    port: OwnedFd,
    children: OwnedFd,
    decoder: Decoder,
    out: Vec<u8>,
    parts: Vec<u8>,
    setup: Option<GuestSetup>,
    orders: BTreeMap<u32, Vec<u8>>,
    sessions: BTreeMap<u32, Session>,
    relays: Relays,
    born: Instant,
}

/// Serves until the other end of the port is gone.
pub(crate) fn run() -> Result<(), BootError> {
    let port = boot::begin()?;
    let Ok(children) = ironcage_sys::signals::catch(&[SIGCHLD]) else {
        return Ok(());
    };
    let mut server = Server {
        port,
        children,
        decoder: Decoder::default(),
        out: Vec::new(),
        parts: Vec::new(),
        setup: None,
        orders: BTreeMap::new(),
        sessions: BTreeMap::new(),
        relays: Relays::default(),
        born: Instant::now(),
    };
    // It gets the time when it can take it.
    server.say(&Frame::new(Kind::Ready, 0));
    while server.turn() {}
    Ok(())
}

impl Server {
    /// One round. `false` when there is nobody to serve any more.
    fn turn(&mut self) -> bool {
        let mut want = PollFlags::IN;
        if !self.out.is_empty() {
            want |= PollFlags::OUT;
        }
        let mut fds = vec![
            PollFd::new(&self.port, want),
            PollFd::new(&self.children, PollFlags::IN),
        ];
        for session in self.sessions.values() {
            if let Some(input) = session.input.as_ref().filter(|_| session.wants_to_write()) {
                fds.push(PollFd::new(input, PollFlags::OUT));
            }
            if self.out.len() < FULL {
                let ready = session.outputs.iter().filter(|output| output.credit > 0);
                fds.extend(ready.map(|output| PollFd::new(&output.fd, PollFlags::IN)));
            }
        }
        self.relays.poll(&mut fds, self.out.len() < FULL);
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return false,
        }
        let gone = fds
            .first()
            .is_some_and(|port| port.revents().contains(PollFlags::HUP));
        drop(fds);
        if gone {
            // The host says only after the port was opened that it is there.
            if self.setup.is_some() || self.born.elapsed() > PATIENCE {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = ironcage_sys::signals::next(self.children.as_fd());
        self.reap();
        if !self.read_port() {
            return false;
        }
        for (number, session) in &mut self.sessions {
            session.write_input(*number, &mut self.out);
            if self.out.len() < FULL {
                session.read_outputs(*number, &mut self.out);
            }
        }
        let room = self.out.len() < FULL;
        self.relays.turn(room, &mut self.out);
        let out = &mut self.out;
        self.sessions.retain(|number, session| {
            let Some(status) = session.is_over() else {
                return true;
            };
            Frame::number(Kind::Exited, *number, status as u32).write_to(out);
            false
        });
        self.write_port()
    }

    fn read_port(&mut self) -> bool {
        let mut buffer = [0; 32 << 10];
        loop {
            match read(&self.port, &mut buffer) {
                Ok(0) | Err(Errno::AGAIN) => return true,
                Ok(count) => {
                    self.decoder.push(buffer.get(..count).unwrap_or_default());
                    loop {
                        match self.decoder.next_frame() {
                            Ok(Some(frame)) => self.obey(&frame),
                            Ok(None) => break,
                            Err(_) => return false,
                        }
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    fn write_port(&mut self) -> bool {
        while !self.out.is_empty() {
            match write(&self.port, &self.out) {
                Ok(written) => drop(self.out.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return false,
            }
        }
        true
    }

    fn say(&mut self, frame: &Frame) {
        frame.write_to(&mut self.out);
    }

    fn obey(&mut self, frame: &Frame) {
        if self.relays.obey(frame, &mut self.out) {
            return;
        }
        let number = frame.session;
        match frame.kind {
            Kind::SetupPart if self.parts.len() < MAX_SETUP => {
                self.parts.extend_from_slice(&frame.payload);
            }
            Kind::Ready => self.set_up(),
            Kind::OrderPart => {
                let order = self.orders.entry(number).or_default();
                if order.len() < MAX_ORDER {
                    order.extend_from_slice(&frame.payload);
                }
            }
            Kind::Start => self.start(number),
            Kind::Data if frame.stream == STDIN => {
                let fed = self.sessions.get_mut(&number);
                if fed.is_some_and(|session| !session.feed(&frame.payload)) {
                    self.hang_up(number);
                }
            }
            Kind::End if frame.stream == STDIN => {
                if let Some(session) = self.sessions.get_mut(&number) {
                    session.end_input();
                }
            }
            Kind::Credit => {
                let session = self.sessions.get_mut(&number);
                if let (Some(session), Some(bytes)) = (session, frame.value()) {
                    session.credit(frame.stream, bytes);
                }
            }
            Kind::Signal => {
                let session = self.sessions.get(&number);
                if let (Some(session), Some(signal)) = (session, frame.value()) {
                    // What is gone by now needs no signal.
                    let _ = signal_group(session.pid, signal as i32);
                }
            }
            Kind::Resize => {
                let session = self.sessions.get(&number);
                if let (Some(session), Some((rows, columns))) = (session, frame.size()) {
                    session.resize(rows, columns);
                }
            }
            Kind::Hangup => self.hang_up(number),
            _ => {}
        }
    }

    fn set_up(&mut self) {
        if self.setup.is_some() {
            return;
        }
        let parts = std::mem::take(&mut self.parts);
        let parsed = GuestSetup::decode(&parts).map_err(|error| error.to_string());
        let done = parsed.and_then(|setup| {
            let finished = boot::finish(&setup);
            let listening = finished.and_then(|()| Relays::listen(&setup.relays));
            // The sockets are where the guest finds them by now.
            let listening = listening.and_then(|listening| match setup.root {
                true => boot::enter_root().map(|()| listening),
                false => Ok(listening),
            });
            let listening = listening.map_err(|error| error.to_string())?;
            Ok((setup, listening))
        });
        match done {
            Ok((setup, listening)) => {
                self.relays = listening;
                self.setup = Some(setup);
                self.say(&Frame::new(Kind::Ready, 0));
            }
            Err(text) => {
                let text: Vec<u8> = text.into_bytes().into_iter().take(1000).collect();
                let frame = Frame {
                    payload: text,
                    ..Frame::new(Kind::Broken, 0)
                };
                self.say(&frame);
            }
        }
    }

    fn start(&mut self, number: u32) {
        let order = self.orders.remove(&number).unwrap_or_default();
        let full = self.sessions.len() >= MAX_SESSIONS || self.sessions.contains_key(&number);
        let started = match &self.setup {
            Some(setup) if !full => match GuestOrder::decode(&order) {
                Ok(order) => Session::start(setup, order),
                Err(_) => Err(Errno::INVAL),
            },
            _ => Err(Errno::AGAIN),
        };
        match started {
            Ok(session) => {
                self.sessions.insert(number, session);
                self.say(&Frame::new(Kind::Start, number));
            }
            Err(error) => {
                let errno = error.raw_os_error() as u32;
                self.say(&Frame::number(Kind::Failed, number, errno));
            }
        }
    }

    /// Ends a session for which nobody waits.
    fn hang_up(&mut self, number: u32) {
        self.orders.remove(&number);
        if let Some(session) = self.sessions.remove(&number) {
            for signal in [SIGKILL, SIGCONT] {
                let _ = signal_group(session.pid, signal);
            }
        }
    }

    /// Collects every child that has ended or stopped.
    fn reap(&mut self) {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        while let Ok(Some((pid, status))) = wait(options) {
            let pid = pid.as_raw_nonzero().get();
            let mut sessions = self.sessions.iter_mut();
            let Some((number, session)) = sessions.find(|(_, session)| session.pid == pid) else {
                continue;
            };
            let number = *number;
            if status.stopped() {
                self.say(&Frame::new(Kind::Stopped, number));
            } else {
                session.ended(status.as_raw());
            }
        }
    }
}
