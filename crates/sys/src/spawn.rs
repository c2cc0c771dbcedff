//! From PID 1 to a program, by a child that shares PID 1's memory until it executes it.
//!
//! Everything that runs in the child before execve stands in this file. It calls only
//! async-signal-safe functions: no allocation, no locks, no Rust standard library beyond
//! plain arithmetic. Memory is prepared before, and nothing of it is changed but one flag.

use crate::clone::{clone_sharing_memory, exit_now};
use crate::signals::{block_stop, reset_for_exec};
use rustix::process::Pid;
use std::ffi::{CStr, CString, c_char};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// A program with its arguments and environment, ready for execve.
#[derive(Debug)]
pub struct Image {
    /// The program's file.
    pub path: CString,
    /// Its arguments, its own name first.
    pub argv: Vec<CString>,
    /// Its environment, each `NAME=value`.
    pub envp: Vec<CString>,
    /// Its working directory; the caller's where none is given.
    pub cwd: Option<CString>,
}

/// Where the program sits among process groups, sessions and terminals.
#[derive(Debug, Clone, Copy)]
pub enum Seat<'a> {
    /// A process group of its own.
    Group,
    /// A process group of its own, in the foreground of this terminal. The caller leads its
    /// session.
    Foreground(BorrowedFd<'a>),
    /// A session of its own, with this terminal as its controlling one if there is any.
    Session(Option<BorrowedFd<'a>>),
}

/// Bytes before the error number in the message of a failure.
pub const FAILURE: usize = 5;

/// Where the child's standard streams lead, and how it reports.
#[derive(Debug)]
pub struct Streams<'a> {
    /// Standard input.
    pub stdin: BorrowedFd<'a>,
    /// Standard output.
    pub stdout: BorrowedFd<'a>,
    /// Standard error.
    pub stderr: BorrowedFd<'a>,
    /// Its place among sessions and terminals.
    pub seat: Seat<'a>,
    /// Gets `failure` and the error number (four bytes) when execve fails, in one write.
    pub report: BorrowedFd<'a>,
    /// First bytes of that message.
    pub failure: [u8; FAILURE],
    /// Whether descriptors that are not close-on-exec are closed all the same.
    pub closing: bool,
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain(std::iter::once(std::ptr::null()))
        .collect()
}

/// A process that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spawned {
    /// Its id.
    pub pid: Pid,
    /// Whether it executes the program. Where not, it has reported why, and ended.
    pub executed: bool,
}

/// What the child needs, in memory that it shares with the caller.
struct SpawnArguments<'a> {
    image: &'a Image,
    argv: &'a [*const c_char],
    envp: &'a [*const c_char],
    streams: &'a Streams<'a>,
    failed: &'a AtomicBool,
}

/// Starts the program. Returns when it is executed, or could not be.
///
/// Preconditions: every restriction that the program is to have is already in force on the caller.
pub fn spawn(image: &Image, streams: &Streams<'_>) -> io::Result<Spawned> {
    let failed = AtomicBool::new(true);
    let mut prepared = SpawnArguments {
        image,
        argv: &pointers(&image.argv),
        envp: &pointers(&image.envp),
        streams,
        failed: &failed,
    };
    // SAFETY: the child gets what `begin` expects, which lives until this function returns, and
    // does only what is async-signal-safe.
    let pid = unsafe { clone_sharing_memory(begin, std::ptr::from_mut(&mut prepared).cast()) }?;
    Ok(Spawned {
        pid,
        executed: !failed.load(Ordering::Relaxed),
    })
}

/// Executes a program in the place of the caller. Returns only why that failed.
///
/// Preconditions: the caller has one thread.
pub fn become_image(image: &Image) -> io::Error {
    let (argv, envp) = (pointers(&image.argv), pointers(&image.envp));
    reset_for_exec();
    // SAFETY: a C string and two null-terminated lists of such, which live across the call.
    unsafe { libc::execve(image.path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}

/// Where the child begins.
extern "C" fn begin(prepared: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `spawn` passes this, and waits until this process has left its memory.
    let prepared = unsafe { &*prepared.cast::<SpawnArguments<'_>>() };
    become_program(prepared)
}

fn become_program(prepared: &SpawnArguments<'_>) -> ! {
    let SpawnArguments {
        image,
        argv,
        envp,
        streams,
        failed,
    } = *prepared;
    let path: &CStr = &image.path;
    if take_seat(streams.seat) < 0 {
        fail(streams.report.as_raw_fd(), streams.failure);
    }
    if let Some(cwd) = &image.cwd {
        // SAFETY: a C string, prepared before.
        if unsafe { libc::chdir(cwd.as_ptr()) } < 0 {
            fail(streams.report.as_raw_fd(), streams.failure);
        }
    }
    let report = above_streams(streams.report.as_raw_fd());
    let sources = [
        above_streams(streams.stdin.as_raw_fd()),
        above_streams(streams.stdout.as_raw_fd()),
        above_streams(streams.stderr.as_raw_fd()),
    ];
    for (target, source) in sources.into_iter().enumerate() {
        // SAFETY: plain numbers.
        if unsafe { libc::dup2(source, target as RawFd) } < 0 {
            fail(report, streams.failure);
        }
    }
    // Everything else goes at execve: descriptors here are close-on-exec, and this makes
    // sure of those that were not.
    if streams.closing
        // SAFETY: plain numbers.
        && unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) } < 0
    {
        fail(report, streams.failure);
    }
    reset_for_exec();
    // Nobody reads this before execve has succeeded or this process has ended.
    failed.store(false, Ordering::Relaxed);
    // SAFETY: a C string and two null-terminated lists of such, prepared before.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    failed.store(true, Ordering::Relaxed);
    fail(report, streams.failure)
}

/// Goes to its place. Negative when that failed, as system calls say it. Async-signal-safe.
fn take_seat(seat: Seat<'_>) -> i32 {
    match seat {
        // A group of its own: signals for the program reach its children.
        // SAFETY: plain numbers.
        Seat::Group => unsafe { libc::setpgid(0, 0) },
        Seat::Foreground(terminal) => {
            // SAFETY: plain numbers.
            unsafe { libc::setpgid(0, 0) };
            // From the background this raises SIGTTOU, which is not to stop us.
            block_stop();
            // SAFETY: asks for a number.
            let group = unsafe { libc::getpgrp() };
            // SAFETY: plain numbers.
            unsafe { libc::tcsetpgrp(terminal.as_raw_fd(), group) }
        }
        Seat::Session(terminal) => {
            // SAFETY: no arguments.
            if unsafe { libc::setsid() } < 0 {
                return -1;
            }
            match terminal {
                // SAFETY: plain numbers.
                Some(terminal) => unsafe {
                    libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY as libc::Ioctl, 0)
                },
                None => 0,
            }
        }
    }
}

/// The descriptor, or a copy of it above the standard streams, so that dup2 onto 0, 1 and 2 cannot
/// overwrite one that is still needed.
fn above_streams(fd: RawFd) -> RawFd {
    if fd > libc::STDERR_FILENO {
        return fd;
    }
    // SAFETY: plain numbers.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 { fd } else { copy }
}

fn fail(report: RawFd, failure: [u8; FAILURE]) -> ! {
    report_failure(report, failure, last_error())
}

fn last_error() -> i32 {
    // SAFETY: returns an address, reads nothing.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the address of this thread's error number is always valid.
    unsafe { *place }
}

fn report_failure(report: RawFd, failure: [u8; FAILURE], number: i32) -> ! {
    let mut message = [0; FAILURE + 4];
    message[..FAILURE].copy_from_slice(&failure);
    message[FAILURE..].copy_from_slice(&number.to_le_bytes());
    // SAFETY: nine bytes that live across the call.
    unsafe { libc::write(report, message.as_ptr().cast(), message.len()) };
    exit_now(127)
}
