//! Facts and attributes of the calling process.

use crate::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Whether this process has one thread only, asked of the kernel by a call that does nothing
/// else: "stop sharing what threads share" is refused where there are any. Cheaper than a look
/// at `/proc`, but filters of cages refuse it.
pub(crate) fn has_one_thread() -> bool {
    // SAFETY: with this flag the call changes nothing in a process of one thread, and is
    // refused in another.
    check(unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_THREAD) }).is_ok()
}

/// The effective user id with which this process was started. The kernel passes it to every
/// program: no call. For processes that never change it, as the supervisor.
pub fn started_as() -> u32 {
    // SAFETY: reads the auxiliary vector, which stands for the whole life of a process.
    (unsafe { libc::getauxval(libc::AT_EUID) }) as u32
}

/// This process's number, asked for once.
static OWN_PID: AtomicU32 = AtomicU32::new(0);

/// This process's number, as `std::process::id` has it, without a call where it is known.
pub fn own_pid() -> u32 {
    match OWN_PID.load(Ordering::Relaxed) {
        0 => {
            let pid = std::process::id();
            OWN_PID.store(pid, Ordering::Relaxed);
            pid
        }
        known => known,
    }
}

/// In the child of a fork: it has another.
pub(crate) fn forget_pid() {
    OWN_PID.store(0, Ordering::Relaxed);
}

/// The effective group id with which this process was started, as [`started_as`].
pub fn started_with_group() -> u32 {
    // SAFETY: reads the auxiliary vector, which stands for the whole life of a process.
    (unsafe { libc::getauxval(libc::AT_EGID) }) as u32
}

/// Closes every descriptor from three upwards but those named.
pub fn close_all_but(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    close_all_from(3, keep)
}

/// Closes every descriptor from a number upwards, at least three, but those named.
pub fn close_all_from(first: RawFd, keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<RawFd> = keep.iter().map(AsRawFd::as_raw_fd).collect();
    kept.extend(crate::steps::descriptor());
    kept.sort_unstable();
    let mut next: RawFd = first.max(3);
    for fd in kept.into_iter().filter(|fd| *fd >= first.max(3)) {
        if fd > next {
            close_range(next as u32, (fd - 1) as u32)?;
        }
        next = fd + 1;
    }
    close_range(next as u32, u32::MAX)?;
    crate::spent::forget();
    Ok(())
}

/// Lets a program that is executed have the descriptor of this number. An error where it is not open.
pub fn pass_on(number: RawFd) -> io::Result<()> {
    // SAFETY: changes a flag of a descriptor; no memory is involved.
    check(i64::from(unsafe { libc::fcntl(number, libc::F_SETFD, 0) })).map(drop)
}

/// A copy of a descriptor that this program was started with. Programs that are executed get neither.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: changes a flag of a descriptor; no memory is involved.
    check(i64::from(unsafe {
        libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC)
    }))?;
    // SAFETY: makes a new descriptor; no memory is involved.
    let copy = check(i64::from(unsafe {
        libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3)
    }))?;
    let copy = RawFd::try_from(copy).map_err(io::Error::other)?;
    // SAFETY: the descriptor is new, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Sends a signal by its number, the real-time ones included, to the process of a descriptor.
pub fn signal_process(process: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: without information of ours the kernel reads no memory.
    check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0_u32,
        )
    })
    .map(drop)
}

/// Closes descriptors, neighbours in one call.
pub fn close_together(descriptors: Vec<OwnedFd>) -> io::Result<()> {
    close_runs(descriptors, |before, after| after == before + 1)
}

/// Closes descriptors in few calls, in a process that has no others from three upwards but those
/// that are kept: numbers between two of them are closed along where none of these is there.
pub fn close_together_but(descriptors: Vec<OwnedFd>, keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<RawFd> = keep.iter().map(AsRawFd::as_raw_fd).collect();
    kept.extend(crate::steps::descriptor());
    close_runs(descriptors, |before, after| {
        !kept.iter().any(|kept| (before..after).contains(kept))
    })
}

/// Closes descriptors, those in one call that `belong` together: of two neighbours in their order.
fn close_runs(descriptors: Vec<OwnedFd>, belong: impl Fn(RawFd, RawFd) -> bool) -> io::Result<()> {
    let mut numbers: Vec<RawFd> = descriptors.into_iter().map(OwnedFd::into_raw_fd).collect();
    numbers.sort_unstable();
    for run in numbers.chunk_by(|before, after| belong(*before, *after)) {
        if let (Some(first), Some(last)) = (run.first(), run.last()) {
            close_range(*first as u32, *last as u32)?;
        }
    }
    Ok(())
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: closing descriptors touches no memory; owners of closed ones get EBADF, which
    // the callers of `close_all_but` accept: they are about to leave their old life behind.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// The ids with which a thread makes and opens files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIds {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Sets this thread's file ids; returns those that it had. The kernel does not say whether it did:
/// the ids that the next call returns are those that were in force.
pub fn set_file_ids(ids: FileIds) -> io::Result<FileIds> {
    // SAFETY: the call takes a number and touches no memory.
    let gid = check(unsafe { libc::syscall(libc::SYS_setfsgid, ids.gid) })?;
    // SAFETY: the call takes a number and touches no memory.
    let uid = check(unsafe { libc::syscall(libc::SYS_setfsuid, ids.uid) })?;
    Ok(FileIds {
        uid: uid as u32,
        gid: gid as u32,
    })
}

unsafe extern "C" {
    static mut environ: *mut *mut libc::c_char;
}

/// The environment that the kernel put on this process's stack, kept for
/// [`wipe_arguments_and_environment`].
static ENVIRONMENT: AtomicPtr<*mut libc::c_char> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn remember_environment() {
    // SAFETY: reading the pointer that the C library keeps; there is no other thread yet.
    let list = unsafe { environ };
    ENVIRONMENT.store(list, Ordering::Relaxed);
}

// SAFETY: the C library calls each entry of this section once before main, when its list of the
// environment is still the kernel's; the function only stores a pointer. Some libraries pass
// arguments, which a C function may ignore.
#[unsafe(link_section = ".init_array")]
#[used]
static REMEMBER: extern "C" fn() = remember_environment;

/// The argument list that the kernel put on this process's stack: it lies right before the
/// environment, and its length before it. Null where that does not hold.
fn arguments() -> *mut *mut libc::c_char {
    let environment = ENVIRONMENT.load(Ordering::Relaxed);
    let count = std::env::args_os().len();
    if environment.is_null() {
        return environment;
    }
    // SAFETY: the kernel puts the number of arguments, the arguments, a null, the environment
    // and a null in one array, of which this is a part.
    let first = unsafe { environment.sub(count + 1) };
    // SAFETY: the element before the arguments, in the same array.
    let length = unsafe { first.sub(1) };
    // SAFETY: within the array.
    let length = unsafe { *length };
    if length.addr() == count {
        first
    } else {
        std::ptr::null_mut()
    }
}

/// Overwrites the environment and the arguments that the kernel put on this process's stack:
/// a forked child then carries no secret of its parent's there, and its `/proc/PID/cmdline`
/// tells nothing of the policy.
///
/// Preconditions: the caller has one thread and does not use `std::env` afterwards.
pub fn wipe_arguments_and_environment() {
    wipe_strings(arguments());
    // SAFETY: reading the pointer that the C library keeps; no other thread changes it.
    let environment = unsafe { environ };
    wipe_strings(environment);
    if !environment.is_null() {
        // SAFETY: clears the list's first pointer: the environment is now empty.
        unsafe { *environment = std::ptr::null_mut() };
    }
}

/// Overwrites the strings of a list that ends with a null pointer.
fn wipe_strings(list: *mut *mut libc::c_char) {
    if list.is_null() {
        return;
    }
    let mut index = 0;
    loop {
        // SAFETY: the list ends with a null pointer, and `index` has not passed it.
        let place = unsafe { list.add(index) };
        // SAFETY: within the list.
        let entry = unsafe { *place };
        if entry.is_null() {
            return;
        }
        // SAFETY: each entry is a C string in writable memory of this process.
        let length = unsafe { libc::strlen(entry) };
        // SAFETY: exactly the bytes of that string; its terminator stays.
        unsafe { std::ptr::write_bytes(entry, 0, length) };
        index += 1;
    }
}

/// Takes every capability but those of `keep` out of the bounding set. Needs CAP_SETPCAP.
pub fn drop_bounding_set(keep: u64) -> io::Result<()> {
    for number in (0..64_u32).filter(|number| keep & (1 << number) == 0) {
        // SAFETY: prctl with plain numbers.
        let dropped =
            unsafe { libc::syscall(libc::SYS_prctl, libc::PR_CAPBSET_DROP, number, 0, 0, 0) };
        match check(dropped) {
            // The first one that this kernel does not know: there are no others behind it.
            Err(error)
                if number > LEAST_LAST_CAPABILITY && error.raw_os_error() == Some(libc::EINVAL) =>
            {
                break;
            }
            other => other.map(drop)?,
        }
    }
    Ok(())
}

/// Kernels since 5.9 know 40 capabilities and the zeroth; newer ones may know more.
const LEAST_LAST_CAPABILITY: u32 = 40;

/// Gives up every capability that this process holds. Needs none; the bounding set stays.
pub fn give_up_capabilities() -> io::Result<()> {
    use rustix::thread as t;
    t::clear_ambient_capability_set()?;
    let none = t::CapabilitySet::empty();
    t::set_capabilities(
        None,
        t::CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )?;
    Ok(())
}

/// The capability sets of a process, as a container's configuration has them: a bit for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CapabilityMasks {
    /// What a program may ever gain.
    pub bounding: u64,
    /// What is in force.
    pub effective: u64,
    /// What may be put in force.
    pub permitted: u64,
    /// What a program with file capabilities inherits.
    pub inheritable: u64,
    /// What every program inherits.
    pub ambient: u64,
}

/// Sets all capability sets but the bounding one, which [`drop_bounding_set`] sets. User id 0 can
/// regain what the bounding set has by execve, as programs in containers expect.
pub fn set_capability_sets(masks: CapabilityMasks) -> io::Result<()> {
    use rustix::thread as t;
    t::clear_ambient_capability_set()?;
    t::set_capabilities(
        None,
        t::CapabilitySets {
            effective: t::CapabilitySet::from_bits_retain(masks.effective),
            permitted: t::CapabilitySet::from_bits_retain(masks.permitted),
            inheritable: t::CapabilitySet::from_bits_retain(masks.inheritable),
        },
    )?;
    for number in (0..64_u32).filter(|number| masks.ambient & (1 << number) != 0) {
        let one = t::CapabilitySet::from_bits_retain(1 << number);
        t::configure_capability_in_ambient_set(one, true)?;
    }
    Ok(())
}

/// Joins a new session keyring: keys of the caller's session stay outside.
pub fn new_session_keyring(name: &std::ffi::CStr) -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_ulong = 1;
    // SAFETY: the name is a C string that lives across the call.
    check(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, name.as_ptr()) }).map(drop)
}

/// Sets the bounding set, permitted, effective, inheritable and ambient capabilities to
/// `keep` (a bit for each capability), and forbids user id 0 from regaining any by execve.
pub fn set_capabilities(keep: u64) -> io::Result<()> {
    use rustix::thread as t;
    drop_bounding_set(keep)?;
    let bits = t::CapabilitiesSecureBits::NO_ROOT
        | t::CapabilitiesSecureBits::NO_ROOT_LOCKED
        | t::CapabilitiesSecureBits::NO_SETUID_FIXUP
        | t::CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | t::CapabilitiesSecureBits::KEEP_CAPS_LOCKED;
    t::set_capabilities_secure_bits(bits)?;
    t::clear_ambient_capability_set()?;
    let sets = t::CapabilitySet::from_bits_retain(keep);
    t::set_capabilities(
        None,
        t::CapabilitySets {
            effective: sets,
            permitted: sets,
            inheritable: sets,
        },
    )?;
    for number in (0..64_u32).filter(|number| keep & (1 << number) != 0) {
        // SAFETY: prctl with plain numbers.
        check(unsafe {
            libc::syscall(
                libc::SYS_prctl,
                libc::PR_CAP_AMBIENT,
                libc::PR_CAP_AMBIENT_RAISE,
                number,
                0,
                0,
            )
        })?;
    }
    Ok(())
}

/// Sets the bounding set, permitted and effective capabilities to `keep`. User id 0 has them again
/// after execve, and other ids lose them: an init system depends on that.
pub fn set_root_capabilities(keep: u64) -> io::Result<()> {
    use rustix::thread as t;
    drop_bounding_set(keep)?;
    t::clear_ambient_capability_set()?;
    let sets = t::CapabilitySet::from_bits_retain(keep);
    t::set_capabilities(
        None,
        t::CapabilitySets {
            effective: sets,
            permitted: sets,
            inheritable: t::CapabilitySet::empty(),
        },
    )?;
    Ok(())
}

/// Sends a signal to every process of the calling process's pid namespace but itself.
pub fn signal_all(signal: i32) -> io::Result<()> {
    // SAFETY: kill touches no memory.
    check(i64::from(unsafe { libc::kill(-1, signal) })).map(drop)
}

/// Sends a signal to a process group.
pub fn signal_group(group: i32, signal: i32) -> io::Result<()> {
    if group <= 1 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: kill touches no memory.
    check(i64::from(unsafe { libc::kill(-group, signal) })).map(drop)
}

/// Sends a signal to one process.
pub fn signal_one(pid: i32, signal: i32) -> io::Result<()> {
    if pid <= 1 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: kill touches no memory.
    check(i64::from(unsafe { libc::kill(pid, signal) })).map(drop)
}

/// Ends the calling process by SIGKILL, as an outside killer would: for fault injection.
pub fn kill_self() -> ! {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(own, libc::SIGKILL) };
    // A pid namespace's first process ignores its own SIGKILL: leave by the other door.
    crate::clone::exit_now(137)
}

/// Reads memory of another process into a buffer, as much as there is.
pub fn read_memory(pid: u32, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: buffer.len(),
    };
    // SAFETY: the kernel writes at most the buffer's length into it, and checks the other address
    // against the other process alone.
    let read = unsafe {
        libc::process_vm_readv(
            pid as libc::pid_t,
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        )
    };
    Ok(usize::try_from(check(read as i64)?).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_and_what_is_not_mapped_is_an_error() {
        let (text, mut read) = (*b"text", [0; 4]);
        let (own, at) = (std::process::id(), text.as_ptr() as u64);
        assert_eq!(read_memory(own, at, &mut read).unwrap(), 4);
        assert_eq!(read, text);
        assert!(read_memory(own, 8, &mut read).is_err());
    }

    use std::fs::File;

    #[test]
    fn descriptors_are_closed_together_and_no_other_is() {
        let open = || File::open("/dev/null").unwrap();
        let files: Vec<File> = (0..5).map(|_| open()).collect();
        let mut files = files.into_iter();
        let (first, kept) = (files.next().unwrap(), files.next().unwrap());
        let closed: Vec<OwnedFd> = std::iter::once(first)
            .chain(files)
            .map(Into::into)
            .collect();
        let numbers: Vec<RawFd> = closed.iter().map(AsRawFd::as_raw_fd).collect();
        close_together(closed).unwrap();
        for number in numbers {
            let path = format!("/proc/self/fd/{number}");
            let there = std::fs::read_link(path).is_ok_and(|to| to.ends_with("null"));
            // Another thread of the tests may have taken the number for something else.
            assert!(!there);
        }
        assert!(kept.metadata().is_ok());
    }
}
