//! PID 1 once the cage is built: executes what the supervisor orders, reaps what is orphaned,
//! passes signals on, and reports.
//!
//! Whatever it forks inherits every layer, because PID 1 is under all of them itself. Where
//! another program makes the cage, what is executed is that program ([`Images`]).

use crate::order::Order;
use crate::stop_guard::{self, StopGuard};
use crate::terminal;
use crate::wire::{self, ExecOrder, ToInit};
use ironcage_layers::ablation::{off, without};
use ironcage_model::{Layer, Switch};
use ironcage_sys::clone::exit_now;
use ironcage_sys::process::{signal_all, signal_group};
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::fs::{Access, FileType, access, stat};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use ironcage_sys::rustix::process::{Pid, WaitOptions, WaitStatus, wait};
use ironcage_sys::spawn::{Image, Seat, Spawned, Streams, spawn};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

const SIGCONT: i32 = ironcage_sys::rustix::process::Signal::CONT.as_raw();
/// Signals that ask a command to end. An init system takes some of them for something else.
const ENDING: [i32; 4] = [
    ironcage_sys::rustix::process::Signal::HUP.as_raw(),
    ironcage_sys::rustix::process::Signal::INT.as_raw(),
    ironcage_sys::rustix::process::Signal::QUIT.as_raw(),
    ironcage_sys::rustix::process::Signal::TERM.as_raw(),
];
const SIGSTOP: i32 = ironcage_sys::rustix::process::Signal::STOP.as_raw();
const STILL_ROUND: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: stop_guard::ROUND.subsec_nanos() as i64,
};

/// The number of the cage's own command; execs count from one.
pub(crate) const COMMAND: u32 = 0;

/// From an order to what is executed for it.
pub trait Images: std::fmt::Debug {
    /// The image of an order, or the answer that its execution would have got.
    fn image(&mut self, number: u32, order: Order, terminal: bool) -> Result<Image, Errno>;

    /// What was executed by this number has ended.
    fn ended(&mut self, number: u32) {
        let _ = number;
    }

    /// Begins a connection to a port of the loopback where the commands are. Whether it comes about
    /// shows at the socket.
    fn dial(&self, port: u16, six: bool) -> Result<OwnedFd, Errno> {
        dial(port, six)
    }
}

/// What is ordered is executed as it is, in the cage of which this process is a part.
#[derive(Debug)]
pub(crate) struct Direct;

impl Images for Direct {
    fn image(&mut self, _: u32, order: Order, _: bool) -> Result<Image, Errno> {
        let path = find_program(&order.candidates)?;
        Ok(order.image(path))
    }
}

/// Something that was executed.
#[derive(Debug)]
struct Child {
    number: u32,
    pid: Pid,
}

/// PID 1 at work.
#[derive(Debug)]
pub(crate) struct Spawner<'a> {
    pub(crate) control: BorrowedFd<'a>,
    /// Where ends of children are told.
    pub(crate) signals: OwnedFd,
    /// The command's end of the terminal, where it has one.
    pub(crate) terminal: Option<OwnedFd>,
    /// Whether the cage outlives its command.
    pub(crate) sticky: bool,
    /// Whether a subreaper stands above: without a pid namespace "all" would be the host's.
    pub(crate) guarded: bool,
    /// Whether everything is stopped for a moment, which nobody is to hear of.
    held: bool,
    /// The signal by which the command shuts down, where it is an init system.
    stop_signal: Option<i32>,
    /// Where everything is to stand still.
    still: Option<StopGuard>,
    images: Box<dyn Images>,
    children: Vec<Child>,
}

/// The streams of a program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProgramStreams<'a> {
    pub(crate) stdin: BorrowedFd<'a>,
    pub(crate) stdout: BorrowedFd<'a>,
    pub(crate) stderr: BorrowedFd<'a>,
    pub(crate) seat: Seat<'a>,
}

impl<'a> Spawner<'a> {
    /// PID 1 before anything is executed.
    pub(crate) fn new(
        control: BorrowedFd<'a>,
        signals: OwnedFd,
        terminal: Option<OwnedFd>,
        sticky: bool,
        guarded: bool,
        images: Box<dyn Images>,
    ) -> Self {
        Spawner {
            control,
            signals,
            terminal,
            sticky,
            guarded,
            held: false,
            stop_signal: None,
            still: None,
            images,
            children: Vec::new(),
        }
    }

    /// The command is an init system: what would end a command is this signal to it.
    pub(crate) fn shut_down_by(&mut self, signal: i32) {
        self.stop_signal = Some(signal);
    }

    /// Takes over a child that executes an ordered program already.
    pub(crate) fn adopt(&mut self, number: u32, pid: Pid) {
        self.children.push(Child { number, pid });
        let _ = wire::say_executed(self.control, number);
    }

    /// What is executed for an order.
    pub(crate) fn image(
        &mut self,
        number: u32,
        order: Order,
        terminal: bool,
    ) -> Result<Image, Errno> {
        self.images.image(number, order, terminal)
    }

    /// Executes a program. An error means that nothing was forked.
    pub(crate) fn execute(
        &mut self,
        number: u32,
        image: &Image,
        given: ProgramStreams<'_>,
    ) -> Result<(), Errno> {
        let streams = Streams {
            stdin: given.stdin,
            stdout: given.stdout,
            stderr: given.stderr,
            seat: given.seat,
            report: self.control,
            failure: wire::not_executed(number),
            closing: !without(Layer::Descriptors),
        };
        let error = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        let Spawned { pid, executed } = spawn(image, &streams).map_err(error)?;
        self.children.push(Child { number, pid });
        if executed {
            // If the supervisor is gone, so are we in a moment.
            let _ = wire::say_executed(self.control, number);
        }
        Ok(())
    }

    /// Serves until the command is over or the supervisor is gone: when PID 1 exits, the kernel
    /// kills everything else in the cage.
    pub(crate) fn serve(mut self) -> ! {
        loop {
            let mut fds = [
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::from_borrowed_fd(self.control, PollFlags::IN),
            ];
            match poll(&mut fds, self.still.is_some().then_some(&STILL_ROUND)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => exit_now(125),
            }
            let [child, supervisor] = fds.each_ref().map(|fd| !fd.revents().is_empty());
            self.keep_still();
            if child {
                // Signals of one kind are one signal: a second one that came since is left, and
                // wakes this loop again.
                let _ = ironcage_sys::signals::next(self.signals.as_fd());
                self.reap();
            }
            if supervisor {
                self.obey();
            }
        }
    }

    fn obey(&mut self) {
        match wire::hear_supervisor(self.control) {
            Ok(ToInit::Signal { number, signal }) => self.signal(number, signal),
            Ok(ToInit::SignalAll(signal)) => self.signal_all(signal),
            Ok(ToInit::Freeze) => self.stop_all(),
            Ok(ToInit::Hold) => {
                self.held = true;
                self.stop_all();
            }
            Ok(ToInit::Release) => {
                self.continue_all();
                self.held = false;
            }
            Ok(ToInit::Resume) => {
                if let (Some(terminal), Some(command)) = (&self.terminal, self.pid(COMMAND)) {
                    terminal::bring_forward(terminal, command);
                }
                self.continue_all();
            }
            Ok(ToInit::Exec(order)) => {
                let number = order.number;
                if let Err(errno) = self.exec(order) {
                    let _ = wire::say_not_executed(self.control, number, errno.raw_os_error());
                    // As if a child had ended that way.
                    let _ = wire::say_exited(self.control, number, 127 << 8);
                }
            }
            Ok(ToInit::Dial { ticket, port, six }) => {
                let socket = self.images.dial(port, six).ok();
                let socket = socket.as_ref().map(AsFd::as_fd);
                let _ = wire::say_dialled(self.control, ticket, socket);
            }
            Ok(ToInit::Go | ToInit::Permit) => {}
            Ok(ToInit::Closed) | Err(_) if off(Switch::Tether) => wait_for_children(),
            Ok(ToInit::Closed) | Err(_) => exit_now(125),
        }
    }

    /// Every process of the pid namespace. Below a subreaper the supervisor does it.
    fn signal_all(&self, signal: i32) {
        if !self.guarded {
            let _ = signal_all(signal);
        }
    }

    /// Stops everything, and sees to it that it stays so.
    fn stop_all(&mut self) {
        self.signal_all(SIGSTOP);
        // The /proc of a booted cage has the numbers of another PID namespace.
        if !self.guarded && self.stop_signal.is_none() {
            self.still = Some(StopGuard::new(Instant::now()));
        }
    }

    fn continue_all(&mut self) {
        self.still = None;
        self.signal_all(SIGCONT);
    }

    fn keep_still(&mut self) {
        if let Some(still) = &mut self.still {
            still.look(Instant::now(), |pid, signal| {
                // What is gone by now needs no signal.
                let _ = ironcage_sys::process::signal_one(pid, signal);
            });
        }
    }

    fn pid(&self, number: u32) -> Option<Pid> {
        let child = self.children.iter().find(|child| child.number == number);
        child.map(|child| child.pid)
    }

    fn signal(&self, number: u32, signal: i32) {
        let signal = match self.stop_signal {
            Some(shut_down) if number == COMMAND && ENDING.contains(&signal) => shut_down,
            _ => signal,
        };
        // What is gone by now needs no signal.
        let Some(pid) = self.pid(number).map(|pid| pid.as_raw_nonzero().get()) else {
            return;
        };
        if signal_group(pid, signal).is_err() {
            // Forked, but not yet in its own session.
            let _ = ironcage_sys::process::signal_one(pid, signal);
        }
    }

    fn exec(&mut self, order: ExecOrder) -> Result<(), Errno> {
        // More descriptors than this process may have did not arrive.
        let program = Order::open(&order.program.ok_or(Errno::MFILE)?)?;
        let terminal = order.terminal.is_some();
        let image = self.images.image(order.number, program, terminal)?;
        match (order.terminal, order.streams) {
            (Some(size), _) => {
                let pair = terminal::open(size).map_err(|(_, errno)| errno)?;
                let io = wire::say_terminal(self.control, order.number, pair.controller.as_fd());
                io.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
                let end = pair.command.as_fd();
                let given = ProgramStreams {
                    stdin: end,
                    stdout: end,
                    stderr: end,
                    seat: Seat::Session(Some(end)),
                };
                self.execute(order.number, &image, given)
            }
            (None, Some([stdin, stdout, stderr])) => {
                let given = ProgramStreams {
                    stdin: stdin.as_fd(),
                    stdout: stdout.as_fd(),
                    stderr: stderr.as_fd(),
                    seat: Seat::Session(None),
                };
                self.execute(order.number, &image, given)
            }
            (None, None) => Err(Errno::MFILE),
        }
    }

    /// Collects every child that has ended or stopped, and reports those that were ordered.
    pub(crate) fn reap(&mut self) {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        while let Ok(Some((pid, status))) = wait(options) {
            if let Some(index) = self.children.iter().position(|child| child.pid == pid) {
                self.report(index, status);
            }
        }
    }

    fn report(&mut self, index: usize, status: WaitStatus) {
        let Some(number) = self.children.get(index).map(|child| child.number) else {
            return;
        };
        if status.stopped() {
            if number != COMMAND || self.held {
                return;
            }
            if self.terminal.is_some() {
                // The supervisor stops too, and then nobody watches limits or answers
                // refused calls: so everything stops, not only the command.
                self.stop_all();
            }
            let _ = wire::say_stopped(self.control);
            return;
        }
        self.images.ended(number);
        self.children.swap_remove(index);
        let _ = wire::say_exited(self.control, number, status.as_raw());
        if number == COMMAND && !self.sticky {
            exit_now(0);
        }
    }
}

/// What a test build does that is not to end with its supervisor.
fn wait_for_children() -> ! {
    while wait(WaitOptions::empty()).is_ok() {}
    exit_now(125)
}

/// The first candidate that can be executed, as a search in PATH finds it. Found out before
/// the fork, so that a filter which allows one execve is called once.
pub(crate) fn find_program(candidates: &[CString]) -> Result<CString, Errno> {
    // Of one alone the kernel says itself why it cannot be executed.
    if let [only] = candidates {
        return Ok(only.clone());
    }
    let mut answer = Errno::NOENT;
    for candidate in candidates {
        match stat(candidate.as_c_str()) {
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(error) => answer = error,
            Ok(stat) => {
                let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
                match access(candidate.as_c_str(), Access::EXEC_OK) {
                    Ok(()) if regular => return Ok(candidate.clone()),
                    // It is there, but is a directory or may not be executed.
                    Ok(()) => answer = Errno::ACCESS,
                    Err(error) => answer = error,
                }
            }
        }
    }
    Err(answer)
}

/// Begins a connection to the cage's own loopback, where this process is and the proxy is not.
/// Whether it comes about shows at the socket.
fn dial(port: u16, six: bool) -> Result<OwnedFd, Errno> {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
    let (family, address): (_, IpAddr) = match six {
        true => (AddressFamily::INET6, Ipv6Addr::LOCALHOST.into()),
        false => (AddressFamily::INET, Ipv4Addr::LOCALHOST.into()),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &SocketAddr::new(address, port)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}
