//! Trying things out in a child that is thrown away, for `ironcage doctor`.
//!
//! A trial is a list of plain steps, made before the fork; the child carries them out in order
//! and reports the first that fails. The child calls only async-signal-safe functions and
//! allocates nothing, so the caller may have threads. All that a trial makes, namespaces and
//! mounts, is the child's and goes with it.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// One step of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// New namespaces, by the kernel's CLONE_NEW* bits.
    Unshare(u32),
    /// Goes on in a child, which is the first process of a pid namespace made before.
    Fork,
    /// Writes to a file that exists.
    Write {
        /// The file.
        path: CString,
        /// What.
        bytes: Vec<u8>,
    },
    /// Makes a directory.
    MakeDirectory(CString),
    /// Mounts.
    Mount {
        /// The device or source.
        source: CString,
        /// Where.
        target: CString,
        /// The kind of file system; empty for changes of an existing mount.
        kind: CString,
        /// MS_* bits.
        flags: u64,
        /// Options of the file system.
        options: CString,
    },
    /// Makes a directory the root and takes the old one away.
    PivotRoot(CString),
    /// Sets the host name.
    SetHostName(CString),
    /// Opens a socket in the present network namespace and brings `lo` up.
    LoopbackUp,
    /// Sends netlink messages to a part of the kernel in the present network namespace; each that
    /// wants an answer has to be answered without an error.
    Netlink {
        /// The part.
        protocol: i32,
        /// All messages, one after the other.
        messages: Vec<u8>,
    },
    /// Makes a detached copy of a mount whose ids are mapped, as root does for every bind.
    IdMappedMount(CString),
    /// Sets no_new_privs.
    NoNewPrivileges,
    /// Enters a Landlock domain that handles writing of files.
    Landlock,
    /// Installs a filter that allows everything; with a listener if asked for.
    Seccomp {
        /// Whether with user notification.
        listener: bool,
    },
}

/// The step that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Its place in the list.
    pub step: usize,
    /// The error number.
    pub errno: i32,
}

/// Carries out the steps in a child. `None` when all of them worked.
pub fn attempt(steps: &[Step]) -> io::Result<Option<Failure>> {
    let (reader, writer) = pipe()?;
    // SAFETY: fork shares no memory with the child, which runs `child` only: that allocates
    // nothing, takes no lock and never returns.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        child(steps, writer.as_raw_fd());
    }
    drop(writer);
    let mut report = [0u8; 8];
    let mut length = 0;
    let mut reader = File::from(reader);
    // Ends when the child and its children are gone.
    let outcome = loop {
        match reader.read(&mut report[length..]) {
            Ok(0) => break Ok(()),
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Err(error),
        }
    };
    reap(pid);
    outcome?;
    match decode(&report[..length]) {
        Some((SUCCESS, _)) => Ok(None),
        Some((step, errno)) => Ok(Some(Failure {
            step: usize::try_from(step).unwrap_or(usize::MAX),
            errno,
        })),
        // Killed before it could say anything, for instance by a filter around this process.
        None => Err(io::Error::other(
            "the child of the trial died without a word",
        )),
    }
}

const SUCCESS: u32 = u32::MAX;

fn decode(report: &[u8]) -> Option<(u32, i32)> {
    let (step, errno) = report.split_first_chunk::<4>()?;
    let errno: [u8; 4] = errno.try_into().ok()?;
    Some((u32::from_ne_bytes(*step), i32::from_ne_bytes(errno)))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: the array has room for the two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fresh from the kernel and owned by nobody else.
    let reader = unsafe { OwnedFd::from_raw_fd(ends[0]) };
    // SAFETY: as above.
    let writer = unsafe { OwnedFd::from_raw_fd(ends[1]) };
    Ok((reader, writer))
}

fn reap(pid: libc::pid_t) {
    loop {
        // SAFETY: a null status is allowed; waits for our own child.
        let waited = unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        if waited >= 0 || last_errno() != libc::EINTR {
            return;
        }
    }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Runs in the child. Allocates nothing.
fn child(steps: &[Step], report: RawFd) -> ! {
    for (number, step) in steps.iter().enumerate() {
        if matches!(step, Step::Fork) {
            // SAFETY: the child has one thread and goes on in this same function.
            let pid = unsafe { libc::fork() };
            if pid < 0 {
                finish(report, number as u32, last_errno());
            }
            if pid > 0 {
                reap(pid);
                // The inner one has reported.
                // SAFETY: never returns.
                unsafe { libc::_exit(0) };
            }
            continue;
        }
        if let Err(errno) = take(step) {
            finish(report, number as u32, errno);
        }
    }
    finish(report, SUCCESS, 0)
}

fn finish(report: RawFd, step: u32, errno: i32) -> ! {
    let mut bytes = [0u8; 8];
    bytes[..4].copy_from_slice(&step.to_ne_bytes());
    bytes[4..].copy_from_slice(&errno.to_ne_bytes());
    // SAFETY: eight bytes of a live array, to a pipe.
    unsafe { libc::write(report, bytes.as_ptr().cast(), bytes.len()) };
    // SAFETY: never returns.
    unsafe { libc::_exit(0) }
}

/// Takes one step, or says with which error number it failed.
fn take(step: &Step) -> Result<(), i32> {
    let result = match step {
        Step::Unshare(namespaces) => {
            // SAFETY: no memory is involved.
            unsafe { libc::syscall(libc::SYS_unshare, *namespaces) }
        }
        Step::Fork => 0,
        Step::Write { path, bytes } => write_file(path, bytes),
        Step::MakeDirectory(path) => {
            // SAFETY: a C string that lives across the call.
            unsafe { libc::syscall(libc::SYS_mkdirat, libc::AT_FDCWD, path.as_ptr(), 0o755) }
        }
        Step::Mount {
            source,
            target,
            kind,
            flags,
            options,
        } => {
            // SAFETY: four C strings that live across the call.
            unsafe {
                libc::syscall(
                    libc::SYS_mount,
                    source.as_ptr(),
                    target.as_ptr(),
                    kind.as_ptr(),
                    *flags,
                    options.as_ptr(),
                )
            }
        }
        Step::PivotRoot(directory) => pivot_root(directory),
        Step::SetHostName(name) => {
            // SAFETY: the bytes of a C string without its end.
            unsafe { libc::syscall(libc::SYS_sethostname, name.as_ptr(), name.as_bytes().len()) }
        }
        Step::LoopbackUp => {
            return crate::net::loopback_up().map_err(|error| error.raw_os_error().unwrap_or(0));
        }
        Step::Netlink { protocol, messages } => return converse(*protocol, messages),
        Step::IdMappedMount(path) => return id_mapped_mount(path),
        Step::NoNewPrivileges => {
            // SAFETY: no memory is involved.
            i64::from(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
        }
        Step::Landlock => landlock(),
        Step::Seccomp { listener } => seccomp(*listener),
    };
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(())
    }
}

fn write_file(path: &CStr, bytes: &[u8]) -> libc::c_long {
    // SAFETY: a C string that lives across the call.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return -1;
    }
    // SAFETY: bytes that live across the call; the descriptor goes with the process.
    unsafe { libc::write(file, bytes.as_ptr().cast(), bytes.len()) as libc::c_long }
}

/// Length of a netlink message's header, and what stands in it at which place.
const HEADER: usize = 16;
const KIND: usize = 4;
const FLAGS: usize = 6;
const WANTS_ANSWER: u16 = 4;
const ANSWER: u16 = 2;

/// The messages of a packet, by their headers and what follows. Garbage ends it.
fn each_message(mut packet: &[u8], mut take: impl FnMut(u16, u16, &[u8])) {
    while let Some(length) = packet.first_chunk::<4>() {
        let length = u32::from_ne_bytes(*length) as usize;
        let half = |at: usize| Some(u16::from_ne_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
        let (Some(kind), Some(flags), Some(body)) =
            (half(KIND), half(FLAGS), packet.get(HEADER..length))
        else {
            return;
        };
        take(kind, flags, body);
        packet = packet.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

/// Sends netlink messages and waits for as many answers as they want.
fn converse(protocol: i32, messages: &[u8]) -> Result<(), i32> {
    let mut awaited = 0_usize;
    each_message(messages, |_, flags, _| {
        awaited += usize::from(flags & WANTS_ANSWER != 0);
    });
    // SAFETY: no memory is involved.
    let socket = unsafe {
        libc::socket(
            libc::AF_NETLINK,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            protocol,
        )
    };
    if socket < 0 {
        return Err(last_errno());
    }
    // SAFETY: bytes that live across the call; the descriptor goes with the process.
    if unsafe { libc::send(socket, messages.as_ptr().cast(), messages.len(), 0) } < 0 {
        return Err(last_errno());
    }
    let mut buffer = [0_u8; 8192];
    while awaited > 0 {
        // SAFETY: the buffer lives across the call and is as long as is said.
        let length = unsafe { libc::recv(socket, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        let Ok(length) = usize::try_from(length) else {
            return Err(last_errno());
        };
        let mut failed = None;
        each_message(buffer.get(..length).unwrap_or_default(), |kind, _, body| {
            let code = body
                .first_chunk::<4>()
                .map(|code| i32::from_ne_bytes(*code));
            if let (ANSWER, Some(code)) = (kind, code) {
                awaited = awaited.saturating_sub(1);
                failed = failed.or((code != 0).then(|| code.wrapping_neg()));
            }
        });
        if let Some(errno) = failed {
            return Err(errno);
        }
    }
    Ok(())
}

fn pivot_root(directory: &CString) -> libc::c_long {
    // SAFETY: a C string that lives across the call.
    if unsafe { libc::chdir(directory.as_ptr()) } < 0 {
        return -1;
    }
    // SAFETY: two C strings.
    if unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) } < 0 {
        return -1;
    }
    // SAFETY: a C string.
    i64::from(unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) })
}

/// A copy of the mount at `path`, with the ids of a user namespace that a child holds open.
fn id_mapped_mount(path: &CString) -> Result<(), i32> {
    const MAP: &[u8] = b"0 100000 65536";
    const NEW_USER: u32 = libc::CLONE_NEWUSER as u32;
    let mut ready: [RawFd; 2] = [-1; 2];
    // SAFETY: the array has room for the two descriptors.
    if unsafe { libc::pipe2(ready.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(last_errno());
    }
    // SAFETY: this process has one thread; the child below only makes system calls.
    let holder = unsafe { libc::fork() };
    if holder < 0 {
        return Err(last_errno());
    }
    if holder == 0 {
        // SAFETY: no memory is involved.
        let made = unsafe { libc::syscall(libc::SYS_unshare, NEW_USER) };
        let word = [u8::from(made == 0)];
        // SAFETY: one byte of a live array.
        unsafe { libc::write(ready[1], word.as_ptr().cast(), 1) };
        loop {
            // SAFETY: no memory is involved; the parent kills this process.
            unsafe { libc::pause() };
        }
    }
    let mut word = [0u8];
    // SAFETY: one byte of a live array.
    let heard = unsafe { libc::read(ready[0], word.as_mut_ptr().cast(), 1) };
    let result = if heard == 1 && word[0] == 1 {
        map_and_copy(holder, MAP, path)
    } else {
        Err(libc::EPERM)
    };
    // SAFETY: our own child, not yet waited for.
    unsafe { libc::kill(holder, libc::SIGKILL) };
    reap(holder);
    result
}

fn map_and_copy(holder: libc::pid_t, map: &[u8], path: &CString) -> Result<(), i32> {
    let mut buffer = [0u8; 64];
    for file in ["uid_map", "gid_map"] {
        if write_file(proc_path(&mut buffer, holder, file)?, map) < 0 {
            return Err(last_errno());
        }
    }
    let namespace = proc_path(&mut buffer, holder, "ns/user")?;
    // SAFETY: a C string that lives across the call.
    let user = unsafe { libc::open(namespace.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if user < 0 {
        return Err(last_errno());
    }
    const OPEN_TREE_CLONE: libc::c_uint = linux_raw_sys::general::OPEN_TREE_CLONE;
    // SAFETY: a C string that lives across the call.
    let copy = unsafe {
        libc::syscall(
            libc::SYS_open_tree,
            libc::AT_FDCWD,
            path.as_ptr(),
            OPEN_TREE_CLONE,
        )
    };
    if copy < 0 {
        return Err(last_errno());
    }
    // `struct mount_attr`: set, clear, propagation, user namespace.
    const MOUNT_ATTR_IDMAP: u64 = linux_raw_sys::general::MOUNT_ATTR_IDMAP as u64;
    let attributes: [u64; 4] = [MOUNT_ATTR_IDMAP, 0, 0, user as u64];
    // SAFETY: an empty C string and 32 bytes that live across the call.
    let changed = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            copy,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    };
    if changed < 0 {
        Err(last_errno())
    } else {
        Ok(())
    }
}

/// `/proc/PID/FILE` in a buffer of the caller's: no allocation after a fork.
fn proc_path<'a>(buffer: &'a mut [u8; 64], pid: libc::pid_t, file: &str) -> Result<&'a CStr, i32> {
    *buffer = [0; 64];
    // The last byte stays zero.
    let mut room: &mut [u8] = &mut buffer[..63];
    write!(room, "/proc/{pid}/{file}").map_err(|_| libc::ENAMETOOLONG)?;
    CStr::from_bytes_until_nul(buffer).map_err(|_| libc::ENAMETOOLONG)
}

fn landlock() -> libc::c_long {
    const WRITE_FILE: u64 = 1 << 1;
    let handled: u64 = WRITE_FILE;
    // SAFETY: the attribute is one u64 that lives across the call, and its size is given.
    let ruleset = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const handled,
            size_of::<u64>(),
            0,
        )
    };
    if ruleset < 0 {
        return -1;
    }
    // SAFETY: no memory is involved.
    unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) }
}

fn seccomp(listener: bool) -> libc::c_long {
    const SET_MODE_FILTER: libc::c_ulong = libc::SECCOMP_SET_MODE_FILTER as libc::c_ulong;
    const NEW_LISTENER: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let mut allow = [libc::sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    }];
    let program = libc::sock_fprog {
        len: 1,
        filter: allow.as_mut_ptr(),
    };
    let flags = if listener { NEW_LISTENER } else { 0 };
    // SAFETY: the program and its one instruction live across the call; the kernel copies them.
    unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_work_are_no_failure() {
        let steps = [Step::NoNewPrivileges, Step::Seccomp { listener: false }];
        assert_eq!(attempt(&steps).unwrap(), None);
    }

    #[test]
    fn the_first_step_that_fails_is_named_with_its_error() {
        let steps = [
            Step::NoNewPrivileges,
            Step::Fork,
            Step::MakeDirectory(c"/proc/ironcage-trial".into()),
            Step::NoNewPrivileges,
        ];
        let failure = attempt(&steps).unwrap().unwrap();
        assert_eq!(failure.step, 2);
        assert!([libc::ENOENT, libc::EPERM, libc::EACCES].contains(&failure.errno));
    }

    #[test]
    fn this_process_is_not_changed_by_a_trial() {
        let before = host_name();
        let steps = [
            Step::Unshare(NEW_UTS | NEW_USER),
            Step::SetHostName(c"ironcage-trial".into()),
        ];
        attempt(&steps).unwrap();
        assert_eq!(host_name(), before);
    }

    const NEW_UTS: u32 = libc::CLONE_NEWUTS as u32;
    const NEW_USER: u32 = libc::CLONE_NEWUSER as u32;

    fn host_name() -> String {
        std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap()
    }
}
