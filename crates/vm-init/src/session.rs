//! One session: a command and its streams.

use crate::LAUNCH;
use ironcage_guest::{Frame, GuestOrder, GuestSetup, MAX_PAYLOAD, STDERR, STDIN, STDOUT, WINDOW};
use ironcage_sys::rustix::fs::{Mode, OFlags, fcntl_setfl, open};
use ironcage_sys::rustix::io::{Errno, read, write};
use ironcage_sys::rustix::pipe::{PipeFlags, pipe_with};
use ironcage_sys::rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use ironcage_sys::rustix::termios::{Winsize, tcsetwinsize};
use ironcage_sys::spawn::{Image, Seat, Streams, spawn};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The init's own program, wherever its root is.
const OWN: &CStr = c"/proc/self/exe";

/// A stream from the command.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) fd: OwnedFd,
    pub(crate) stream: u8,
    /// Bytes that its reader still takes.
    pub(crate) credit: u32,
    /// Whether there was nothing to read when it was last tried.
    dry: bool,
}

/// A command in the guest.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) pid: i32,
    pub(crate) input: Option<OwnedFd>,
    terminal: bool,
    queue: Vec<u8>,
    input_ends: bool,
    /// Bytes that were written and are not yet credited.
    uncredited: u32,
    pub(crate) outputs: Vec<Output>,
    status: Option<i32>,
}

fn nonblocking(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    set_nonblocking(&fd)?;
    Ok(fd)
}

pub(crate) fn set_nonblocking(fd: &OwnedFd) -> Result<(), Errno> {
    fcntl_setfl(fd, OFlags::NONBLOCK)
}

fn words(list: Vec<Vec<u8>>) -> Result<Vec<CString>, Errno> {
    let word = |bytes| CString::new(bytes).map_err(|_| Errno::INVAL);
    list.into_iter().map(word).collect()
}

impl Session {
    /// Starts the command of an order.
    pub(crate) fn start(setup: &GuestSetup, order: GuestOrder) -> Result<Session, Errno> {
        let (uid, gid) = setup.ids();
        let numbers = [
            u64::from(uid),
            u64::from(gid),
            setup.files,
            setup.processes,
            u64::from(setup.root),
        ];
        let mut argv: Vec<Vec<u8>> = vec![b"ironcage-vm-init".to_vec(), LAUNCH.into()];
        argv.extend(numbers.map(|number| number.to_string().into_bytes()));
        argv.extend([order.cwd, order.program]);
        argv.extend(order.argv);
        let image = Image {
            path: OWN.into(),
            argv: words(argv)?,
            envp: words(order.env)?,
            cwd: None,
        };
        match order.terminal {
            Some(size) => {
                let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
                let controller = openpt(flags)?;
                unlockpt(&controller)?;
                let end = ioctl_tiocgptpeer(&controller, flags)?;
                tcsetwinsize(&controller, winsize(size.rows, size.columns))?;
                // It is the agent's.
                let (uid, gid) = (
                    ironcage_sys::rustix::fs::Uid::from_raw(uid),
                    ironcage_sys::rustix::fs::Gid::from_raw(gid),
                );
                ironcage_sys::rustix::fs::fchown(&end, Some(uid), Some(gid))?;
                let fd = end.as_fd();
                let pid = execute(&image, [fd, fd, fd], Seat::Session(Some(fd)))?;
                let controller = nonblocking(controller)?;
                let copy = controller.try_clone().map_err(errno)?;
                Ok(Session::new(pid, true, copy, vec![(controller, STDOUT)]))
            }
            None => {
                let (stdin, input) = pipe_with(PipeFlags::CLOEXEC)?;
                let (output, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
                let (error, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
                let ends = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
                // Programs open their streams by name, which takes the owner.
                for end in ends {
                    let (uid, gid) = (
                        ironcage_sys::rustix::fs::Uid::from_raw(uid),
                        ironcage_sys::rustix::fs::Gid::from_raw(gid),
                    );
                    ironcage_sys::rustix::fs::fchown(end, Some(uid), Some(gid))?;
                }
                let pid = execute(&image, ends, Seat::Session(None))?;
                let outputs = vec![
                    (nonblocking(output)?, STDOUT),
                    (nonblocking(error)?, STDERR),
                ];
                Ok(Session::new(pid, false, nonblocking(input)?, outputs))
            }
        }
    }

    fn new(pid: i32, terminal: bool, input: OwnedFd, outputs: Vec<(OwnedFd, u8)>) -> Session {
        let outputs = outputs.into_iter().map(|(fd, stream)| Output {
            fd,
            stream,
            credit: WINDOW,
            dry: false,
        });
        Session {
            pid,
            input: Some(input),
            terminal,
            queue: Vec::new(),
            input_ends: false,
            uncredited: 0,
            outputs: outputs.collect(),
            status: None,
        }
    }

    /// Whether there are bytes that the command has not taken.
    pub(crate) fn wants_to_write(&self) -> bool {
        self.input.is_some() && !self.queue.is_empty()
    }

    /// Takes bytes for the command. `false` where there are more than it was credited.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> bool {
        if self.queue.len() + bytes.len() > WINDOW as usize {
            return false;
        }
        self.queue.extend_from_slice(bytes);
        true
    }

    pub(crate) fn end_input(&mut self) {
        self.input_ends = true;
    }

    /// Writes to the command what it takes, and credits that.
    pub(crate) fn write_input(&mut self, number: u32, out: &mut Vec<u8>) {
        if let Some(input) = &self.input {
            while !self.queue.is_empty() {
                match write(input, &self.queue) {
                    Ok(written) => {
                        self.queue.drain(..written);
                        self.uncredited += written as u32;
                    }
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(_) => {
                        // Nobody reads: what comes is taken and dropped, as the kernel would.
                        self.uncredited += self.queue.len() as u32;
                        self.queue.clear();
                        self.input = None;
                        break;
                    }
                }
            }
        } else {
            self.uncredited += self.queue.len() as u32;
            self.queue.clear();
        }
        if self.uncredited > 0 && (self.queue.is_empty() || self.uncredited >= WINDOW / 4) {
            Frame::credit(number, STDIN, self.uncredited).write_to(out);
            self.uncredited = 0;
        }
        // A terminal has no end of input: the user's keys say it.
        if self.input_ends && self.queue.is_empty() && !self.terminal {
            self.input = None;
        }
    }

    /// Reads from the command as far as there is credit.
    pub(crate) fn read_outputs(&mut self, number: u32, out: &mut Vec<u8>) {
        let mut buffer = [0; MAX_PAYLOAD];
        self.outputs.retain_mut(|output| {
            output.dry = false;
            let room = buffer.len().min(output.credit as usize);
            if room == 0 {
                return true;
            }
            let place = buffer.get_mut(..room).unwrap_or_default();
            match read(&output.fd, place) {
                Ok(0) => {}
                Ok(count) => {
                    output.credit -= count as u32;
                    Frame::data(number, output.stream, &buffer[..count]).write_to(out);
                    return true;
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    output.dry = true;
                    return true;
                }
                // A terminal says so when its other end is closed.
                Err(_) => {}
            }
            Frame::end(number, output.stream).write_to(out);
            false
        });
    }

    /// The command has ended. What it wrote before that may still be on its way.
    pub(crate) fn ended(&mut self, status: i32) {
        self.status = Some(status);
        for output in &mut self.outputs {
            output.dry = false;
        }
    }

    /// Whether the command is over and everything that it wrote has been read.
    pub(crate) fn is_over(&self) -> Option<i32> {
        self.status
            .filter(|_| self.outputs.iter().all(|output| output.dry))
    }

    pub(crate) fn credit(&mut self, stream: u8, bytes: u32) {
        for output in &mut self.outputs {
            if output.stream == stream {
                output.credit = output.credit.saturating_add(bytes).min(WINDOW);
            }
        }
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        if let (true, Some(controller)) = (self.terminal, &self.input) {
            // What cannot be resized stays as it is.
            let _ = tcsetwinsize(controller, winsize(rows, columns));
        }
    }
}

fn winsize(rows: u16, columns: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn execute(image: &Image, ends: [BorrowedFd<'_>; 3], seat: Seat<'_>) -> Result<i32, Errno> {
    let [stdin, stdout, stderr] = ends;
    let report = open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    let streams = Streams {
        stdin,
        stdout,
        stderr,
        seat,
        report: report.as_fd(),
        failure: [0; 5],
        closing: true,
    };
    let spawned = spawn(image, &streams).map_err(errno)?;
    match spawned.executed {
        true => Ok(spawned.pid.as_raw_nonzero().get()),
        false => Err(Errno::NOENT),
    }
}
