//! Making processes: clone3 as a fork into new namespaces.

use crate::check;
use rustix::process::Pid;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Namespaces to make, as the kernel numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespaces(u64);

impl Namespaces {
    /// User namespace.
    pub const USER: Namespaces = Namespaces(0x1000_0000);
    /// Mount namespace.
    pub const MOUNT: Namespaces = Namespaces(0x0002_0000);
    /// Process-id namespace.
    pub const PID: Namespaces = Namespaces(0x2000_0000);
    /// Network namespace.
    pub const NET: Namespaces = Namespaces(0x4000_0000);
    /// IPC namespace.
    pub const IPC: Namespaces = Namespaces(0x0800_0000);
    /// UTS namespace.
    pub const UTS: Namespaces = Namespaces(0x0400_0000);
    /// Cgroup namespace.
    pub const CGROUP: Namespaces = Namespaces(0x0200_0000);
    /// Time namespace.
    pub const TIME: Namespaces = Namespaces(0x80);
    /// None at all.
    pub const NONE: Namespaces = Namespaces(0);

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Namespaces) -> Namespaces {
        Namespaces(self.0 | other.0)
    }
}

/// Which side of a fork this is.
#[derive(Debug)]
pub enum Forked {
    /// The one that called.
    Parent {
        /// The child's id, in the caller's pid namespace.
        pid: Pid,
        /// A descriptor of the child: waits and signals cannot hit another process.
        pidfd: OwnedFd,
    },
    /// The new one.
    Child,
}

/// The kernel's `struct clone_args`.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Forks into new namespaces, and into a version 2 cgroup if one is given.
///
/// Preconditions: the caller has one thread. The child is a copy of it, locks of other
/// threads would stay locked for ever; so a caller with more threads is refused.
pub fn fork(namespaces: Namespaces, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    if !crate::process::has_one_thread() {
        return Err(io::Error::other("fork from a process with several threads"));
    }
    let forked = fork_at_once(namespaces, cgroup)?;
    if matches!(forked, Forked::Child) {
        crate::spent::forget();
    }
    Ok(forked)
}

/// Makes a child that ends at once, in new namespaces: they live until it is waited for. It takes no
/// lock and allocates nothing, and so may be the child of a process with several threads.
pub fn fork_and_end(namespaces: Namespaces) -> io::Result<(Pid, OwnedFd)> {
    match fork_at_once(namespaces, None)? {
        Forked::Child => exit_now(0),
        Forked::Parent { pid, pidfd } => Ok((pid, pidfd)),
    }
}

fn fork_at_once(namespaces: Namespaces, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    const CLONE_PIDFD: u64 = libc::CLONE_PIDFD as u64;
    // libc has it for glibc only.
    const CLONE_INTO_CGROUP: u64 = linux_raw_sys::general::CLONE_INTO_CGROUP;
    let mut pidfd: libc::c_int = -1;
    let mut args = CloneArgs {
        flags: namespaces.0 | CLONE_PIDFD,
        pidfd: std::ptr::from_mut(&mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: the arguments live across the call; without CLONE_VM the child has its own
    // copy of all memory, so it cannot disturb ours, and the callers see to it that no lock of
    // another thread is needed in it.
    let result = check(unsafe {
        libc::syscall(
            libc::SYS_clone3,
            std::ptr::from_mut(&mut args),
            size_of::<CloneArgs>(),
        )
    })?;
    match Pid::from_raw(result as i32) {
        None => {
            crate::process::forget_pid();
            Ok(Forked::Child)
        }
        Some(pid) => Ok(Forked::Parent {
            pid,
            // SAFETY: the kernel stored a fresh descriptor there, which nobody else owns.
            pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
        }),
    }
}

/// Makes a process that shares the caller's memory until it executes a program or ends; the caller
/// stands still until then. So nothing is copied for a process that is about to be another program.
///
/// By the old call, which a cage's filter allows (clone3 keeps its flags in memory, where a filter
/// cannot see them).
///
/// # Safety
/// `child` gets `argument`, and may do only what the child of a `vfork` in a program with threads
/// may do: no allocation, no locks. It never returns.
pub(crate) unsafe fn clone_sharing_memory(
    child: extern "C" fn(*mut libc::c_void) -> libc::c_int,
    argument: *mut libc::c_void,
) -> io::Result<Pid> {
    const WORDS: usize = 64 * 1024 / size_of::<u128>();
    let mut stack = vec![0_u128; WORDS];
    let top = stack.as_mut_ptr_range().end;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is the child's alone, aligned, and outlives it, because the caller goes on
    // only when the child has left this memory; what the child does, the caller vouches for.
    let pid = check(i64::from(unsafe {
        libc::clone(child, top.cast(), flags, argument)
    }))?;
    drop(stack);
    Pid::from_raw(pid as i32).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Moves the calling thread, which must be the only one, into new namespaces.
pub fn unshare(namespaces: Namespaces) -> io::Result<()> {
    // SAFETY: changes kernel state of this thread only; no memory is involved.
    check(unsafe { libc::syscall(libc::SYS_unshare, namespaces.0) }).map(drop)
}

/// Ends the process at once: no destructors, no buffers flushed, nothing of the parent's
/// that a forked child holds copies of is run twice.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: never returns and touches no memory.
    unsafe { libc::_exit(code) }
}
