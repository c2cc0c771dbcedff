//! A client: one command in the guest, seen from the cage.

use crate::{MONITOR, VmError, address, doing, monitor};
use ironcage_guest::{
    Decoder, Frame, GuestOrder, Kind, MAX_PAYLOAD, STDERR, STDIN, STDOUT, TerminalSize, WINDOW,
};
use ironcage_sys::process::{own_pid, signal_one};
use ironcage_sys::rustix::event::{PollFd, PollFlags, poll};
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::io::{Errno, read, write};
use ironcage_sys::rustix::process::Signal;
use ironcage_sys::rustix::stdio;
use ironcage_sys::rustix::termios::{
    OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr,
};
use ironcage_sys::signals;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;

/// Signals that are the command's.
const FORWARDED: [Signal; 9] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::TERM,
    Signal::CONT,
    Signal::TSTP,
];

struct Output {
    descriptor: Option<OwnedFd>,
    queue: Vec<u8>,
    /// Bytes that its reader took and the guest has not been told of.
    owed: u32,
    ends: bool,
    stream: u8,
}

struct Client {
    monitor: UnixStream,
    decoder: Decoder,
    to_monitor: Vec<u8>,
    stdin: Option<OwnedFd>,
    credit: u32,
    outputs: [Output; 2],
    signals: OwnedFd,
    status: Option<i32>,
    broken: Option<String>,
    failed: Option<i32>,
}

/// Runs one command: `client DIRECTORY PROGRAM ARGUMENTS...`, with its environment as this process's.
pub(crate) fn run(words: &[OsString]) -> Result<ExitCode, VmError> {
    let [cwd, program, argv @ ..] = words else {
        return Err(doing("read the command")(io::Error::from(
            io::ErrorKind::InvalidInput,
        )));
    };
    let terminal = isatty(stdio::stdin()) && isatty(stdio::stdout());
    let size = terminal
        .then(|| tcgetwinsize(stdio::stdin()).ok())
        .flatten();
    let order = GuestOrder {
        program: program.as_bytes().to_vec(),
        argv: argv.iter().map(|word| word.as_bytes().to_vec()).collect(),
        env: std::env::vars_os()
            .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
            .collect(),
        cwd: cwd.as_bytes().to_vec(),
        terminal: size.map(|size| TerminalSize {
            rows: size.ws_row,
            columns: size.ws_col,
        }),
    };
    let mut caught: Vec<i32> = FORWARDED.iter().map(|signal| signal.as_raw()).collect();
    caught.push(Signal::WINCH.as_raw());
    let signals = signals::catch(&caught).map_err(doing("catch signals"))?;
    let monitor = connect()?;
    monitor
        .set_nonblocking(true)
        .map_err(doing("set up the control channel"))?;
    let mut client = Client {
        monitor,
        decoder: Decoder::default(),
        to_monitor: Vec::new(),
        stdin: None,
        credit: WINDOW,
        outputs: [output(STDOUT)?, output(STDERR)?],
        signals,
        status: None,
        broken: None,
        failed: None,
    };
    let input = stdio::stdin().try_clone_to_owned();
    client.stdin = Some(input.map_err(doing("take standard input"))?);
    let raw = size.map(|_| RawTerminal::begin()).transpose()?;
    release_streams()?;
    for part in Frame::parts(Kind::OrderPart, 0, &order.encode()) {
        part.write_to(&mut client.to_monitor);
    }
    Frame::new(Kind::Start, 0).write_to(&mut client.to_monitor);
    // Its own standard error is with the copies by now: they are told.
    let mut goes_on = true;
    while goes_on {
        goes_on = client.turn().unwrap_or_else(|error| {
            let why = format!("the virtual machine has ended: {error}");
            client.broken.get_or_insert(why);
            false
        });
    }
    drop(raw);
    Ok(client.end(program))
}

/// Connects to the monitor. The first one starts it.
fn connect() -> Result<UnixStream, VmError> {
    let address = address(MONITOR)?;
    // The kernel gives a name once: of many that begin together, one starts the machine.
    if let Ok(listener) = UnixListener::bind_addr(&address) {
        monitor::spawn(listener).map_err(doing("start the virtual machine"))?;
    }
    UnixStream::connect_addr(&address).map_err(doing("reach the virtual machine"))
}

fn output(stream: u8) -> Result<Output, VmError> {
    let own = match stream {
        STDOUT => stdio::stdout(),
        _ => stdio::stderr(),
    };
    let own = own.try_clone_to_owned().map_err(doing("take a stream"))?;
    Ok(Output {
        descriptor: Some(own),
        queue: Vec::new(),
        owed: 0,
        ends: false,
        stream,
    })
}

/// Leaves the standard streams to the copies, so that a closed one is closed for its reader.
fn release_streams() -> Result<(), VmError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let nothing = open("/dev/null", flags, Mode::empty()).map_err(doing("open /dev/null"))?;
    stdio::dup2_stdin(&nothing).map_err(doing("release standard input"))?;
    stdio::dup2_stdout(&nothing).map_err(doing("release standard output"))?;
    stdio::dup2_stderr(&nothing).map_err(doing("release standard error"))?;
    Ok(())
}

/// The terminal passes every key on, as long as this lives: the guest has a terminal of its own.
struct RawTerminal {
    terminal: OwnedFd,
    before: Termios,
}

impl RawTerminal {
    fn begin() -> Result<RawTerminal, VmError> {
        let own = stdio::stdin().try_clone_to_owned();
        let terminal = own.map_err(doing("take the terminal"))?;
        let before = tcgetattr(&terminal).map_err(doing("read the terminal's settings"))?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&terminal, OptionalActions::Now, &raw).map_err(doing("set the terminal up"))?;
        Ok(RawTerminal { terminal, before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // It goes with the cage.
        let _ = tcsetattr(&self.terminal, OptionalActions::Drain, &self.before);
    }
}

impl Client {
    /// One round. `false` when the command is over and everything is written.
    fn turn(&mut self) -> io::Result<bool> {
        let mut want = PollFlags::IN;
        if !self.to_monitor.is_empty() {
            want |= PollFlags::OUT;
        }
        let mut fds = vec![
            PollFd::new(&self.monitor, want),
            PollFd::new(&self.signals, PollFlags::IN),
        ];
        let reads = self.credit > 0 && self.to_monitor.len() < WINDOW as usize;
        let input = self.stdin.as_ref().filter(|_| reads);
        let has_input = input.is_some();
        fds.extend(input.map(|stdin| PollFd::new(stdin, PollFlags::IN)));
        for output in &self.outputs {
            let waits = output
                .descriptor
                .as_ref()
                .filter(|_| !output.queue.is_empty());
            fds.extend(waits.map(|fd| PollFd::new(fd, PollFlags::OUT)));
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let input = fds.get(2).filter(|_| has_input);
        let input = input.is_some_and(|fd| !fd.revents().is_empty());
        let writable: Vec<bool> = fds
            .iter()
            .skip(2 + usize::from(has_input))
            .map(|fd| !fd.revents().is_empty())
            .collect();
        drop(fds);
        self.forward_signals();
        if input {
            self.read_input();
        }
        let mut writable = writable.into_iter();
        for output in &mut self.outputs {
            if output.descriptor.is_some() && !output.queue.is_empty() {
                let ready = writable.next().unwrap_or(false);
                if ready {
                    output.write();
                }
            }
        }
        self.read_monitor()?;
        self.credit_guest();
        self.write_monitor()?;
        // What did not fit before may fit now, and the next round sends it.
        self.credit_guest();
        let over = self.status.is_some() || self.broken.is_some() || self.failed.is_some();
        let written = self.outputs.iter().all(|output| output.queue.is_empty());
        Ok(!(over && written))
    }

    fn forward_signals(&mut self) {
        while let Ok(Some(signal)) = signals::next(self.signals.as_fd()) {
            if signal == Signal::WINCH.as_raw() {
                let terminal = self.stdin.as_ref().or(self.outputs[0].descriptor.as_ref());
                if let Some(Ok(size)) = terminal.map(tcgetwinsize) {
                    let frame = Frame::resize(0, size.ws_row, size.ws_col);
                    frame.write_to(&mut self.to_monitor);
                }
            } else {
                Frame::number(Kind::Signal, 0, signal as u32).write_to(&mut self.to_monitor);
            }
        }
    }

    fn read_input(&mut self) {
        let Some(stdin) = &self.stdin else {
            return;
        };
        let mut buffer = [0; MAX_PAYLOAD];
        let room = buffer.len().min(self.credit as usize);
        match read(stdin, buffer.get_mut(..room).unwrap_or_default()) {
            Ok(0) => {}
            Ok(count) => {
                self.credit -= count as u32;
                Frame::data(0, STDIN, &buffer[..count]).write_to(&mut self.to_monitor);
                return;
            }
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => {}
        }
        self.stdin = None;
        Frame::end(0, STDIN).write_to(&mut self.to_monitor);
    }

    fn read_monitor(&mut self) -> io::Result<()> {
        let mut buffer = [0; 64 << 10];
        match read(&self.monitor, &mut buffer) {
            Ok(0) if self.status.is_none() && self.failed.is_none() => {
                let why = "the virtual machine has ended";
                self.broken.get_or_insert_with(|| why.into());
                return Ok(());
            }
            Ok(count) => self.decoder.push(buffer.get(..count).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        loop {
            let next = self.decoder.next_frame().map_err(io::Error::other)?;
            let Some(frame) = next else {
                return Ok(());
            };
            self.obey(&frame);
        }
    }

    fn obey(&mut self, frame: &Frame) {
        match frame.kind {
            Kind::Data | Kind::End => {
                let mut outputs = self.outputs.iter_mut();
                let output = outputs.find(|output| output.stream == frame.stream);
                let Some(output) = output else {
                    return;
                };
                if self.broken.is_some() {
                    return;
                }
                if !output.take(&frame.payload) {
                    let why = "the guest broke the protocol: more than was credited";
                    self.broken = Some(why.into());
                    return;
                }
                output.ends |= frame.kind == Kind::End;
                output.write();
            }
            Kind::Credit => {
                let more = frame.value().unwrap_or(0);
                self.credit = self.credit.saturating_add(more).min(WINDOW);
            }
            Kind::Stopped => {
                // As the command: who waits for this process sees it stopped.
                let own = i32::try_from(own_pid()).unwrap_or(0);
                let _ = signal_one(own, Signal::STOP.as_raw());
            }
            Kind::Exited => self.status = frame.value().map(|status| status as i32),
            Kind::Failed => self.failed = frame.value().map(|errno| errno as i32),
            Kind::Broken => {
                let text = String::from_utf8_lossy(&frame.payload).into_owned();
                self.broken = Some(text);
            }
            _ => {}
        }
    }

    /// Tells the guest what was taken, where there is room: a guest that reads nothing makes nothing
    /// grow here.
    fn credit_guest(&mut self) {
        for output in &mut self.outputs {
            output.credit(&mut self.to_monitor);
        }
    }

    fn write_monitor(&mut self) -> io::Result<()> {
        while !self.to_monitor.is_empty() {
            match write(&self.monitor, &self.to_monitor) {
                Ok(written) => drop(self.to_monitor.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // What it said last is still to be read.
                Err(Errno::PIPE) => self.to_monitor.clear(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Ends as the command did.
    fn end(&self, program: &OsStr) -> ExitCode {
        let say = |text: &str| {
            if let Some(Some(error)) = self.outputs.get(1).map(|output| &output.descriptor) {
                let line = format!("ironcage: {text}\n");
                let _ = write(error, line.as_bytes());
            }
        };
        if let Some(errno) = self.failed {
            let error = io::Error::from_raw_os_error(errno);
            say(&format!(
                "cannot start {} in the guest: {error}",
                program.display()
            ));
            return ExitCode::from(126);
        }
        let Some(status) = self.status else {
            let why = self.broken.as_deref().unwrap_or("no answer");
            say(&format!(
                "cannot run {} in the guest: {why}",
                program.display()
            ));
            return ExitCode::from(125);
        };
        match (libc::WIFEXITED(status), libc::WIFSIGNALED(status)) {
            (true, _) => ExitCode::from(libc::WEXITSTATUS(status) as u8),
            (_, true) => signals::end_by(libc::WTERMSIG(status)),
            _ => ExitCode::from(125),
        }
    }
}

impl Output {
    /// Takes what the guest sent. `false`, and nothing is taken, where that is more than it may.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let fits = self.queue.len() + bytes.len() <= 2 * WINDOW as usize;
        if fits {
            self.queue.extend_from_slice(bytes);
        }
        fits
    }

    fn credit(&mut self, to_monitor: &mut Vec<u8>) {
        if self.owed > 0 && to_monitor.len() < WINDOW as usize {
            Frame::credit(0, self.stream, self.owed).write_to(to_monitor);
            self.owed = 0;
        }
    }

    /// Writes what its reader takes, and owes that.
    fn write(&mut self) {
        let mut written = 0;
        if let Some(descriptor) = &self.descriptor {
            // Looked at first: a stream that another process has too is not made non-blocking.
            while !self.queue.is_empty() && is_writable(descriptor) {
                let part = self
                    .queue
                    .get(..self.queue.len().min(4096))
                    .unwrap_or_default();
                match write(descriptor, part) {
                    Ok(count) => {
                        self.queue.drain(..count);
                        written += count as u32;
                    }
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(_) => {
                        self.descriptor = None;
                        break;
                    }
                }
            }
        }
        if self.descriptor.is_none() {
            // Nobody reads it. The guest's command is not told: it learns it at its own end.
            written += self.queue.len() as u32;
            self.queue.clear();
        }
        self.owed = self.owed.saturating_add(written);
        if self.ends && self.queue.is_empty() {
            self.descriptor = None;
        }
    }
}

fn is_writable(descriptor: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(descriptor, PollFlags::OUT)];
    let now = ironcage_sys::rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_makes_a_client_buffer_no_more_than_a_bound() {
        let mut output = Output {
            descriptor: None,
            queue: Vec::new(),
            owed: 0,
            ends: false,
            stream: STDOUT,
        };
        let part = [0; MAX_PAYLOAD];
        let mut taken = 0;
        while output.take(&part) {
            taken += part.len();
        }
        assert_eq!(taken, 2 * WINDOW as usize);
        assert_eq!(output.queue.len(), taken);
        // Nobody reads the stream: everything is owed, and said once.
        output.write();
        let mut to_monitor = Vec::new();
        output.credit(&mut to_monitor);
        let one = to_monitor.len();
        assert!(one > 0 && output.queue.is_empty());
        // A guest that writes single bytes and reads nothing.
        for _ in 0..2 * WINDOW {
            assert!(output.take(b"x"));
            output.write();
            output.credit(&mut to_monitor);
        }
        assert!(to_monitor.len() < WINDOW as usize + one);
        assert!(output.owed > 0);
        to_monitor.clear();
        output.credit(&mut to_monitor);
        assert_eq!((to_monitor.len(), output.owed), (one, 0));
    }
}
