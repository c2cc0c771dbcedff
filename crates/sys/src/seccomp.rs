//! Seccomp: installing a filter and answering its notifications.

use crate::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// One instruction of classic BPF.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Jump if true.
    pub jt: u8,
    /// Jump if false.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// Installs a filter on the calling process whose refusals are reported to the returned
/// listener. The caller has no_new_privs set.
pub fn install_with_listener(program: &[Instruction]) -> io::Result<OwnedFd> {
    const NEW_LISTENER: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let fd = install(program, NEW_LISTENER)?;
    // SAFETY: with that flag the call returns a fresh descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A program from the bytes that the kernel has it as, eight for each instruction.
pub fn decode(bytes: &[u8]) -> Vec<Instruction> {
    let (instructions, _) = bytes.as_chunks::<8>();
    instructions
        .iter()
        .map(|&[c0, c1, jt, jf, k0, k1, k2, k3]| Instruction {
            code: u16::from_le_bytes([c0, c1]),
            jt,
            jf,
            k: u32::from_le_bytes([k0, k1, k2, k3]),
        })
        .collect()
}

/// Installs a filter without a listener.
pub fn install_plain(program: &[Instruction]) -> io::Result<()> {
    install(program, 0).map(drop)
}

fn install(program: &[Instruction], flags: libc::c_ulong) -> io::Result<i32> {
    #[repr(C)]
    struct FilterProgram {
        length: libc::c_ushort,
        instructions: *const Instruction,
    }
    const SET_MODE_FILTER: libc::c_ulong = libc::SECCOMP_SET_MODE_FILTER as libc::c_ulong;
    let length =
        u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let program = FilterProgram {
        length,
        instructions: program.as_ptr(),
    };
    // SAFETY: program and instructions live across the call; the kernel copies and checks them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            SET_MODE_FILTER,
            flags,
            std::ptr::from_ref(&program),
        )
    };
    Ok(check(result)? as i32)
}

/// A refused system call that waits for an answer.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Notification {
    /// Cookie of this notification.
    pub id: u64,
    /// The caller, in the reader's pid namespace.
    pub pid: u32,
    flags: u32,
    /// System call number.
    pub number: i32,
    /// Architecture.
    pub architecture: u32,
    /// Where.
    pub instruction_pointer: u64,
    /// Arguments: numbers only; memory behind them may change at any time.
    pub arguments: [u64; 6],
}

#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// How a notification is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotificationReply {
    /// The call fails with this error number.
    Errno(i32),
    /// The kernel carries the call out. Only where the number alone decides.
    Continue,
}

const NOTIF_RECV: libc::Ioctl = 0xc050_2100_u32 as libc::Ioctl;
const NOTIF_ID_VALID: libc::Ioctl = 0x4008_2102_u32 as libc::Ioctl;
const NOTIF_SEND: libc::Ioctl = 0xc018_2101_u32 as libc::Ioctl;

/// Takes the next notification, if its caller is still there.
///
/// Preconditions: the listener polled readable, else this waits.
pub fn receive(listener: BorrowedFd<'_>) -> io::Result<Option<Notification>> {
    let mut notification = Notification::default();
    // SAFETY: the structure has the size that the request number encodes and lives across
    // the call.
    let result = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            NOTIF_RECV,
            std::ptr::from_mut(&mut notification),
        )
    };
    match check(i64::from(result)) {
        Ok(_) => Ok(Some(notification)),
        // The caller was killed between poll and here.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the caller of a notification still waits: until then its process id is its own.
pub fn still_waits(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the kernel reads eight bytes from the address, which live across the call.
    let result = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            NOTIF_ID_VALID,
            std::ptr::from_ref(&id),
        )
    };
    result == 0
}

/// Answers a notification. A caller that is gone by now is no error.
pub fn answer(listener: BorrowedFd<'_>, id: u64, answer: NotificationReply) -> io::Result<()> {
    const CONTINUE: u32 = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    let mut response = Response {
        id,
        value: 0,
        error: 0,
        flags: 0,
    };
    match answer {
        NotificationReply::Errno(number) => response.error = -number,
        NotificationReply::Continue => response.flags = CONTINUE,
    }
    // SAFETY: the structure has the size that the request number encodes and lives across
    // the call.
    let result = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            NOTIF_SEND,
            std::ptr::from_mut(&mut response),
        )
    };
    match check(i64::from(result)) {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
        _ => Ok(()),
    }
}
