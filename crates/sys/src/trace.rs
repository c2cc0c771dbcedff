//! Counts the system calls of a program and of all that it starts, by ptrace.

use crate::check;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};

/// The calls of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calls {
    /// Those before each write to the descriptor of the marks, which is not counted itself.
    pub before_marks: Vec<u64>,
    /// Those after the last one.
    pub after: u64,
}

impl Calls {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.before_marks.iter().sum::<u64>() + self.after
    }
}

/// A program that has ended, with the calls of each of its processes by its number.
#[derive(Debug)]
pub struct Traced {
    /// Its own number.
    pub pid: i32,
    /// How it ended.
    pub status: ExitStatus,
    /// By process.
    pub calls: BTreeMap<i32, Calls>,
}

/// Runs a program to its end and counts. Writes to `marks` divide the count.
///
/// `fcntl(F_GETFD)` is left out: debug builds of the standard library ask so before each close.
pub fn count_calls(command: &mut Command, marks: RawFd) -> io::Result<Traced> {
    // SAFETY: the closure makes one system call, which is async-signal-safe.
    unsafe { command.pre_exec(trace_me) };
    let child = command.spawn()?;
    let root = i32::try_from(child.id()).map_err(io::Error::other)?;
    // It has stopped at its execve.
    wait(root)?;
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SETOPTIONS, root, options as usize)?;
    request(libc::PTRACE_SYSCALL, root, 0)?;
    let mut calls = BTreeMap::from([(root, Calls::default())]);
    let mut status = ExitStatus::from_raw(0);
    while let Some((pid, word)) = next()? {
        if libc::WIFEXITED(word) || libc::WIFSIGNALED(word) {
            if pid == root {
                status = ExitStatus::from_raw(word);
            }
            continue;
        }
        let is_new = !calls.contains_key(&pid);
        let of_process = calls.entry(pid).or_default();
        let signal = libc::WSTOPSIG(word);
        let passed_on = match signal {
            SYSCALL_STOP => {
                count(pid, marks, of_process)?;
                0
            }
            // An event, or the stop with which a new process begins.
            libc::SIGTRAP => 0,
            libc::SIGSTOP if is_new => 0,
            signal => signal as usize,
        };
        match request(libc::PTRACE_SYSCALL, pid, passed_on) {
            // Killed meanwhile; its end is told next.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            other => other?,
        }
    }
    Ok(Traced {
        pid: root,
        status,
        calls,
    })
}

/// A stop at a system call, told from a signal by `PTRACE_O_TRACESYSGOOD`.
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

fn trace_me() -> io::Result<()> {
    // SAFETY: the request takes no other argument.
    check(unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) }).map(drop)
}

fn request(request: libc::c_uint, pid: i32, data: usize) -> io::Result<()> {
    // SAFETY: these requests take a number and touch no memory of ours.
    check(unsafe { libc::ptrace(request, pid, 0_usize, data) }).map(drop)
}

/// Waits for one child.
fn wait(pid: i32) -> io::Result<i32> {
    let mut word = 0;
    // SAFETY: the place for the answer lives across the call.
    check(i64::from(unsafe {
        libc::waitpid(pid, std::ptr::from_mut(&mut word), libc::__WALL)
    }))?;
    Ok(word)
}

/// The next process of this thread's that has stopped or ended; `None` when there is none left.
fn next() -> io::Result<Option<(i32, i32)>> {
    let mut word = 0;
    let flags = libc::__WALL | libc::__WNOTHREAD;
    loop {
        // SAFETY: the place for the answer lives across the call.
        let pid = unsafe { libc::waitpid(-1, std::ptr::from_mut(&mut word), flags) };
        match check(i64::from(pid)) {
            Ok(_) => return Ok(Some((pid, word))),
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

fn count(pid: i32, marks: RawFd, calls: &mut Calls) -> io::Result<()> {
    // SAFETY: the kernel's structure of plain numbers; all zero is one of its values.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives across the call, and its size is given.
    let asked = check(unsafe {
        libc::ptrace(
            libc::PTRACE_GET_SYSCALL_INFO,
            pid,
            size_of::<libc::ptrace_syscall_info>(),
            std::ptr::from_mut(&mut info),
        )
    });
    match asked {
        // Killed meanwhile.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
        other => other.map(drop)?,
    }
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return Ok(());
    }
    // SAFETY: the kernel says that this is the entry of a call.
    let entry = unsafe { info.u.entry };
    let number = i64::try_from(entry.nr).map_err(io::Error::other)?;
    let (first, second) = (entry.args[0], entry.args[1]);
    match number {
        libc::SYS_write if first == marks as u64 => {
            let before = std::mem::take(&mut calls.after);
            calls.before_marks.push(before);
        }
        libc::SYS_fcntl if second == libc::F_GETFD as u64 => {}
        _ => calls.after += 1,
    }
    Ok(())
}
