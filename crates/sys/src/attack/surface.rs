//! Kernel interfaces that a sandbox should keep out of reach: one call each.

use super::checked;
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

fn owned(answer: libc::c_long) -> Result<OwnedFd, Errno> {
    let fd = checked(answer)? as i32;
    // SAFETY: the kernel has just handed out this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// unshare(2) with raw flags (`CLONE_NEW*`).
///
/// Preconditions: the caller has one thread, or asks for namespaces that are a thread's own.
pub fn share_nothing(flags: i32) -> Result<(), Errno> {
    // SAFETY: the namespace flags change what the thread sees, not its memory; CLONE_FILES and
    // CLONE_FS only stop sharing with other threads.
    checked(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// setns(2) on a namespace descriptor.
pub fn enter_namespace(namespace: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: setns takes numbers only.
    checked(unsafe { libc::setns(namespace.as_raw_fd(), 0) }.into()).map(drop)
}

/// clone3(2) with CLONE_NEWUSER: its flags lie in memory, where a filter cannot read them.
pub fn clone3_user_namespace() -> Result<(), Errno> {
    let mut arguments = [0u64; 11];
    arguments[0] = libc::CLONE_NEWUSER as u64;
    arguments[4] = libc::SIGCHLD as u64;
    let size = std::mem::size_of_val(&arguments);
    // SAFETY: without CLONE_VM or a stack this acts as fork; the child only ends itself.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), size) };
    if pid == 0 {
        // SAFETY: _exit ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(0) }
    }
    let pid = checked(pid)? as i32;
    // SAFETY: a null status is allowed.
    checked(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }.into()).map(drop)
}

/// bpf(BPF_MAP_CREATE) of a small array.
pub fn bpf_map_create() -> Result<OwnedFd, Errno> {
    const BPF_MAP_CREATE: i32 = 0;
    const ARRAY: u32 = 2;
    let mut attributes = [0u32; 32];
    attributes[..4].copy_from_slice(&[ARRAY, 4, 8, 1]);
    let size = std::mem::size_of_val(&attributes);
    // SAFETY: the attributes are longer than what the command reads, the rest is zero.
    owned(unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, attributes.as_ptr(), size) })
}

/// perf_event_open(2) of a software counter on the caller itself.
pub fn perf_event_open_self() -> Result<OwnedFd, Errno> {
    const SOFTWARE: u32 = 1;
    const SIZE: u32 = 64;
    const EXCLUDE_KERNEL_AND_HYPERVISOR: u64 = (1 << 5) | (1 << 6);
    let mut attributes = [0u64; 16];
    attributes[0] = u64::from(SOFTWARE) | (u64::from(SIZE) << 32);
    attributes[5] = EXCLUDE_KERNEL_AND_HYPERVISOR;
    // SAFETY: the attributes are longer than their stated size, the rest is zero.
    owned(unsafe { libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, 0) })
}

/// userfaultfd(2), limited to faults from user mode as an unprivileged caller must.
pub fn userfault_descriptor() -> Result<OwnedFd, Errno> {
    const USER_MODE_ONLY: i32 = 1;
    // SAFETY: userfaultfd takes a number.
    owned(unsafe { libc::syscall(libc::SYS_userfaultfd, USER_MODE_ONLY | libc::O_CLOEXEC) })
}

/// keyctl(KEYCTL_GET_KEYRING_ID) of the session keyring, without making one.
pub fn keyctl_session_keyring() -> Result<i64, Errno> {
    const GET_KEYRING_ID: i32 = 0;
    const SESSION_KEYRING: i32 = -3;
    // SAFETY: this command takes numbers only.
    checked(unsafe { libc::syscall(libc::SYS_keyctl, GET_KEYRING_ID, SESSION_KEYRING, 0) })
}

/// personality(2) that switches off address randomisation and makes reading imply executing.
pub fn personality_set() -> Result<(), Errno> {
    let persona = libc::ADDR_NO_RANDOMIZE | libc::READ_IMPLIES_EXEC;
    // SAFETY: personality takes a number and acts on later mappings only.
    checked(unsafe { libc::personality(persona as libc::c_ulong) }.into()).map(drop)
}

/// modify_ldt(2), reading.
pub fn modify_ldt_read() -> Result<(), Errno> {
    #[cfg(target_arch = "x86_64")]
    {
        let mut table = [0u8; 64];
        // SAFETY: function 0 writes at most the stated number of bytes.
        let answer =
            unsafe { libc::syscall(libc::SYS_modify_ldt, 0, table.as_mut_ptr(), table.len()) };
        checked(answer).map(drop)
    }
    #[cfg(not(target_arch = "x86_64"))]
    Err(Errno::NOSYS)
}

/// syslog(2): the size of what can be read of the kernel's log by reading all of it.
pub fn kernel_log_size() -> Result<usize, Errno> {
    const READ_ALL: i32 = 3;
    let mut buffer = [0u8; 64];
    // SAFETY: READ_ALL writes at most the stated number of bytes.
    let answer =
        unsafe { libc::klogctl(READ_ALL, buffer.as_mut_ptr().cast(), buffer.len() as i32) };
    checked(answer.into()).map(|length| usize::try_from(length).unwrap_or(0))
}

/// Puts the caller in the real-time class.
pub fn realtime_schedule() -> Result<(), Errno> {
    // SAFETY: an all-zero sched_param is a valid value of that plain C struct.
    let mut parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    parameter.sched_priority = 1;
    // SAFETY: the parameter is valid for the call.
    checked(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) }.into())
        .map(drop)
}

/// Gives the caller the highest ordinary priority.
pub fn nice_raise() -> Result<(), Errno> {
    // SAFETY: setpriority takes numbers only.
    checked(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) }.into()).map(drop)
}

/// Runs a program from memory: memfd_create, copy, execveat. Returns only on failure.
pub fn run_from_memfd(program: &[u8], argument: &CStr) -> Errno {
    // SAFETY: the name is a C string.
    let made = owned(unsafe {
        libc::syscall(libc::SYS_memfd_create, c"probe".as_ptr(), libc::MFD_CLOEXEC)
    });
    let memory = match made {
        Ok(memory) => memory,
        Err(error) => return error,
    };
    let mut rest = program;
    while !rest.is_empty() {
        match rustix::io::write(&memory, rest) {
            Ok(written) => rest = &rest[written..],
            Err(error) => return error,
        }
    }
    let arguments = [c"probe".as_ptr(), argument.as_ptr(), std::ptr::null()];
    let environment = [std::ptr::null::<libc::c_char>()];
    // SAFETY: both vectors end with a null pointer and hold C strings that live for the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            memory.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    super::last_errno()
}

fn map(length: usize, flags: i32, file: i32) -> Result<*mut u8, Errno> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses the address, so that no existing memory is replaced.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, file, 0) };
    if memory == libc::MAP_FAILED {
        Err(super::last_errno())
    } else {
        Ok(memory.cast())
    }
}

/// Writes `content` at the start of a file through a shared mapping of it.
pub fn write_through_mapping(file: BorrowedFd<'_>, content: &[u8]) -> Result<(), Errno> {
    let length = rustix::fs::fstat(file)?.st_size;
    if length < 1 {
        return Err(Errno::INVAL);
    }
    let count = content.len().min(length as usize);
    let memory = map(count, libc::MAP_SHARED, file.as_raw_fd())?;
    // SAFETY: the mapping is `count` bytes long and the file is at least that long.
    unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), memory, count) };
    // SAFETY: the mapping was made above and is not used afterwards.
    checked(unsafe { libc::munmap(memory.cast(), count) }.into()).map(drop)
}

/// A shared, writable mapping of a file's first bytes; it stays until the process ends.
#[derive(Debug)]
pub struct SharedMapping {
    memory: *mut u8,
    length: usize,
}

impl SharedMapping {
    /// Maps a file that is not empty. The file can be closed afterwards.
    pub fn of(file: BorrowedFd<'_>) -> Result<SharedMapping, Errno> {
        let length = usize::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
        if length == 0 {
            return Err(Errno::INVAL);
        }
        let memory = map(length, libc::MAP_SHARED, file.as_raw_fd())?;
        Ok(SharedMapping { memory, length })
    }

    /// Writes at the start of the mapping; where the file is shorter by now, the process dies.
    pub fn write(&mut self, content: &[u8]) {
        let count = content.len().min(self.length);
        // SAFETY: the mapping is `length` bytes long, at least `count`, and is never unmapped.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), self.memory, count) };
    }
}

/// Takes `length` bytes of memory and touches every page, in the file if one is given (it is
/// grown to that length) and anonymous otherwise. Calls `step` after each megabyte; the memory
/// stays until the process ends.
pub fn touch_memory(
    file: Option<BorrowedFd<'_>>,
    length: usize,
    mut step: impl FnMut(usize),
) -> Result<(), Errno> {
    const PAGE: usize = 4096;
    const MEGABYTE: usize = 1 << 20;
    let memory = match file {
        Some(file) => {
            rustix::fs::ftruncate(file, length as u64)?;
            map(length, libc::MAP_SHARED, file.as_raw_fd())?
        }
        None => map(length, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?,
    };
    for offset in (0..length).step_by(PAGE) {
        // SAFETY: the offset lies in the mapping.
        let byte = unsafe { memory.add(offset) };
        // SAFETY: the byte lies in a writable mapping that nothing else refers to.
        unsafe { byte.write_volatile(1) };
        if (offset + PAGE).is_multiple_of(MEGABYTE) {
            step(offset + PAGE);
        }
    }
    Ok(())
}
