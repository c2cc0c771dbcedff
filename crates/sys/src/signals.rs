//! Signals as descriptors.

use crate::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the whole set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised just above.
    let mut set = unsafe { set.assume_init() };
    for signal in signals {
        // SAFETY: a valid set; a number that is no signal is refused without effect.
        unsafe { libc::sigaddset(std::ptr::from_mut(&mut set), *signal) };
    }
    set
}

/// Blocks signals.
pub fn block(signals: &[i32]) -> io::Result<()> {
    let set = set_of(signals);
    // SAFETY: a valid set; the old mask is not asked for.
    check(i64::from(unsafe {
        libc::sigprocmask(
            libc::SIG_BLOCK,
            std::ptr::from_ref(&set),
            std::ptr::null_mut(),
        )
    }))
    .map(drop)
}

/// Blocks signals and makes a descriptor from which they can be read.
pub fn catch(signals: &[i32]) -> io::Result<OwnedFd> {
    catch_and_block(signals, &[])
}

/// As [`catch`], and blocks others, which cannot be read there.
pub fn catch_and_block(signals: &[i32], others: &[i32]) -> io::Result<OwnedFd> {
    block(&[signals, others].concat())?;
    let set = set_of(signals);
    // SAFETY: a valid set; -1 asks for a new descriptor.
    let fd = check(i64::from(unsafe {
        libc::signalfd(
            -1,
            std::ptr::from_ref(&set),
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        )
    }))?;
    // SAFETY: fresh, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Reads one signal's number, or `None` when none is waiting.
pub fn next(caught: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
    match rustix::io::read(caught, &mut info) {
        Ok(read) if read == info.len() => {
            let number = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
            Ok(i32::try_from(number).ok())
        }
        Ok(_) => Ok(None),
        Err(rustix::io::Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads one signal's number with the value that was sent with it ([`queue`]), or `None` when none is
/// waiting.
pub fn next_value(caught: BorrowedFd<'_>) -> io::Result<Option<(i32, i32)>> {
    const VALUE: usize = std::mem::offset_of!(libc::signalfd_siginfo, ssi_int);
    let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
    let number = |info: &[u8], at: usize| {
        let bytes = info.get(at..at + 4).and_then(|four| four.try_into().ok());
        bytes.map(i32::from_ne_bytes)
    };
    match rustix::io::read(caught, &mut info) {
        Ok(read) if read == info.len() => Ok(number(&info, 0).zip(number(&info, VALUE))),
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sends a signal with a value to a process: by a descriptor of it, or of its directory in the process
/// file system. One of the real-time signals arrives as often as it is sent.
pub fn queue(process: BorrowedFd<'_>, signal: i32, value: i32) -> io::Result<()> {
    /// The kernel's `siginfo_t` of a signal with a value.
    #[repr(C)]
    struct Information {
        signal: i32,
        error: i32,
        code: i32,
        padding: i32,
        pid: i32,
        uid: u32,
        value: i64,
        rest: [u8; 96],
    }
    let information = Information {
        signal,
        error: 0,
        code: libc::SI_QUEUE,
        padding: 0,
        pid: 0,
        uid: 0,
        value: i64::from(value),
        rest: [0; 96],
    };
    // SAFETY: the structure is as large as the kernel's `siginfo_t` (128 bytes) and lives across the
    // call.
    check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            signal,
            std::ptr::from_ref(&information),
            0_u32,
        )
    })
    .map(drop)
}

/// The real-time signal with which the file server of a microVM is told of mounts.
pub fn mounts_signal() -> i32 {
    libc::SIGRTMIN() + 2
}

/// Keeps the terminal's stop signal out until [`reset_for_exec`]. Async-signal-safe.
pub(crate) fn block_stop() {
    let set = set_of(&[libc::SIGTTOU]);
    // SAFETY: a valid set; the old mask is not asked for.
    unsafe {
        libc::sigprocmask(
            libc::SIG_BLOCK,
            std::ptr::from_ref(&set),
            std::ptr::null_mut(),
        )
    };
}

/// Gives SIGPIPE back its default effect. Rust's start-up code ignores it, and an ignored
/// signal stays ignored across execve.
fn default_pipe() {
    // SAFETY: restores a default; no handler is installed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Undoes for a program about to be executed what this process changed: no signal blocked,
/// SIGPIPE as usual. Async-signal-safe.
pub(crate) fn reset_for_exec() {
    default_pipe();
    let set = set_of(&[]);
    // SAFETY: a valid set; the old mask is not asked for.
    unsafe {
        libc::sigprocmask(
            libc::SIG_SETMASK,
            std::ptr::from_ref(&set),
            std::ptr::null_mut(),
        )
    };
}

/// Ends this process as a signal ends one that does nothing about it: who waits for it sees that
/// signal. Returns where the signal ends nobody.
pub fn end_by(signal: i32) -> std::process::ExitCode {
    reset_for_exec();
    if let Ok(own) = i32::try_from(std::process::id()) {
        // What cannot be sent does not end us.
        let _ = crate::process::signal_one(own, signal);
    }
    std::process::ExitCode::from(u8::try_from(128 + (signal & 127)).unwrap_or(255))
}

/// A descriptor's owner wants to know this: is anything to be read?
pub fn pending(fd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid entry.
    unsafe { libc::poll(std::ptr::from_mut(&mut poll), 1, 0) == 1 }
}
