//! Attempts on other processes, and the canary process that notices them.

use super::checked;
use rustix::io::Errno;
use rustix::process::Pid;
use std::time::Duration;

/// Reads another process's memory at `address`.
pub fn read_memory(pid: Pid, address: u64, length: usize) -> Result<Vec<u8>, Errno> {
    let mut content = vec![0u8; length];
    let local = libc::iovec {
        iov_base: content.as_mut_ptr().cast(),
        iov_len: length,
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: length,
    };
    // SAFETY: the kernel writes at most `length` bytes into `content`.
    let read = unsafe {
        libc::process_vm_readv(
            pid.as_raw_nonzero().get(),
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        )
    };
    content.truncate(usize::try_from(checked(read as libc::c_long)?).unwrap_or(0));
    Ok(content)
}

fn seize(pid: Pid, options: libc::c_int) -> Result<(), Errno> {
    let null = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: PTRACE_SEIZE reads no memory; it takes a process id and option bits.
    let answer = unsafe {
        libc::ptrace(
            libc::PTRACE_SEIZE,
            pid.as_raw_nonzero().get(),
            null,
            options as libc::c_long,
        )
    };
    checked(answer).map(drop)
}

/// Attaches to a process without stopping it.
pub fn ptrace_seize(pid: Pid) -> Result<(), Errno> {
    seize(pid, 0)
}

/// Attaches with the option that switches the tracee's seccomp filters off.
pub fn ptrace_seize_suspending_seccomp(pid: Pid) -> Result<(), Errno> {
    const PTRACE_O_SUSPEND_SECCOMP: libc::c_int = libc::PTRACE_O_SUSPEND_SECCOMP;
    seize(pid, PTRACE_O_SUSPEND_SECCOMP)
}

/// Lets a process go.
pub fn ptrace_detach(pid: Pid) -> Result<(), Errno> {
    let null = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: PTRACE_DETACH reads no memory.
    let answer =
        unsafe { libc::ptrace(libc::PTRACE_DETACH, pid.as_raw_nonzero().get(), null, null) };
    checked(answer).map(drop)
}

/// Traces a child and changes its getppid into `unshare(CLONE_NEWUSER)` at syscall entry: where
/// the filter ran before the tracer, the changed call would pass unseen. Gives what the child got.
#[cfg(target_arch = "x86_64")]
pub fn ptrace_change_syscall() -> Result<i64, Errno> {
    let child = super::fork_start(|| {
        let null = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: PTRACE_TRACEME reads no memory.
        if unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null, null) } == -1 {
            return 100;
        }
        // SAFETY: raise sends a signal to this thread; the tracer resumes it.
        unsafe { libc::raise(libc::SIGSTOP) };
        // SAFETY: the tracer turns this into unshare(CLONE_NEWUSER), which takes one number.
        let answer = unsafe { libc::syscall(libc::SYS_getppid, libc::CLONE_NEWUSER) };
        i32::from(answer != 0)
    })?;
    let pid = child.as_raw_nonzero().get();
    let wait = || {
        let mut status = 0;
        // SAFETY: status is a valid, writable int.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        checked(waited.into()).map(|_| status)
    };
    let step = |request| {
        let null = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the requests used here read no memory.
        checked(unsafe { libc::ptrace(request, pid, null, null) }).map(drop)
    };
    let status = wait()?;
    if !libc::WIFSTOPPED(status) {
        return Err(Errno::PERM);
    }
    loop {
        step(libc::PTRACE_SYSCALL)?;
        let status = wait()?;
        if libc::WIFEXITED(status) {
            return Ok(i64::from(libc::WEXITSTATUS(status)));
        }
        if libc::WIFSIGNALED(status) {
            return Err(Errno::PERM);
        }
        // SAFETY: an all-zero user_regs_struct is a valid value of that plain C struct.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let null = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: PTRACE_GETREGS writes one user_regs_struct.
        let got = unsafe { libc::ptrace(libc::PTRACE_GETREGS, pid, null, &raw mut registers) };
        checked(got)?;
        if registers.orig_rax == libc::SYS_getppid as u64 {
            registers.orig_rax = libc::SYS_unshare as u64;
            // SAFETY: PTRACE_SETREGS reads one user_regs_struct.
            let set = unsafe { libc::ptrace(libc::PTRACE_SETREGS, pid, null, &raw mut registers) };
            checked(set)?;
        }
    }
}

/// As on x86-64; other machines have other registers.
#[cfg(not(target_arch = "x86_64"))]
pub fn ptrace_change_syscall() -> Result<i64, Errno> {
    Err(Errno::NOSYS)
}

/// kill(-1): every process that the caller may signal, itself excepted.
pub fn kill_everyone(signal: i32) -> Result<(), Errno> {
    // SAFETY: kill takes numbers only.
    checked(unsafe { libc::kill(-1, signal) }.into()).map(drop)
}

/// Asks for SIGKILL when the parent thread ends.
pub fn die_with_parent() -> Result<(), Errno> {
    hear_of_parent(libc::SIGKILL)
}

/// Asks for a signal when the parent thread ends.
pub fn hear_of_parent(signal: i32) -> Result<(), Errno> {
    // SAFETY: PR_SET_PDEATHSIG takes a number.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) }.into()).map(drop)
}

/// Raises the core size limit to its hard maximum.
pub fn core_limit_raise() -> Result<u64, Errno> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: limit is a valid, writable rlimit.
    checked(unsafe { libc::getrlimit(libc::RLIMIT_CORE, &raw mut limit) }.into())?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: limit is a valid rlimit.
    checked(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) }.into())?;
    Ok(limit.rlim_max)
}

/// Ends the process in the way that writes a core file.
pub fn crash() -> ! {
    std::process::abort()
}

/// Keeps `content` in memory until the process ends.
pub fn leak_memory(content: Vec<u8>) -> &'static [u8] {
    content.leak()
}

/// Where `content` lies in this process.
pub fn memory_address(content: &[u8]) -> u64 {
    content.as_ptr() as u64
}

/// A signal that [`wait_signal`] collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalSeen(pub i32);

fn set_of(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: an all-zero sigset_t is a valid value; sigemptyset follows.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: set is valid and writable.
    unsafe { libc::sigemptyset(&raw mut set) };
    for signal in signals {
        // SAFETY: set is valid and writable; a bad number is answered with an error.
        unsafe { libc::sigaddset(&raw mut set, *signal) };
    }
    set
}

/// Blocks signals in the calling thread, so that they wait to be collected.
pub fn block_signals(signals: &[i32]) {
    let set = set_of(signals);
    // SAFETY: set is valid; the old mask is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Lets signals through again in the calling thread.
pub fn unblock_signals(signals: &[i32]) {
    let set = set_of(signals);
    // SAFETY: set is valid; the old mask is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Collects one of the blocked signals, waiting at most `timeout`.
pub fn wait_signal(signals: &[i32], timeout: Duration) -> Option<SignalSeen> {
    let set = set_of(signals);
    let time = libc::timespec {
        tv_sec: timeout.as_secs() as _,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: set and time are valid; no information about the sender is asked for.
    let signal =
        unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const time) };
    (signal > 0).then_some(SignalSeen(signal))
}

/// A copy of a descriptor that was inherited under a known number.
pub fn duplicate(number: i32) -> Result<std::os::fd::OwnedFd, Errno> {
    use std::os::fd::FromRawFd;
    // SAFETY: fcntl takes numbers here; a number that is not open is answered with EBADF.
    let copy = checked(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 100) }.into())?;
    // SAFETY: the kernel has just handed out this descriptor to us alone.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(copy as i32) })
}
