//! Landlock by its own calls. A library would look at every path that a rule is for, and close it;
//! a cage is started with a dozen calls less.

use crate::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What a ruleset decides about, in the kernel's bits. A kernel that does not know one of them
/// refuses all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Handled {
    /// Rights on files.
    pub files: u64,
    /// Rights on ports.
    pub ports: u64,
    /// What is kept within the domain.
    pub scoped: u64,
}

/// Makes a ruleset.
pub fn create(handled: Handled) -> io::Result<OwnedFd> {
    // SAFETY: the structure is the kernel's, lives across the call, and its size is given; a kernel
    // with a shorter one takes it where the rest is zero.
    let fd = check(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::from_ref(&handled),
            size_of::<Handled>(),
            0_u32,
        )
    })?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Allows rights on a file, or on a directory and all below it.
pub fn allow(ruleset: BorrowedFd<'_>, place: BorrowedFd<'_>, rights: u64) -> io::Result<()> {
    #[repr(C, packed)]
    struct PathBeneath {
        allowed: u64,
        parent: i32,
    }
    const PATH_BENEATH: u32 = 1;
    let rule = PathBeneath {
        allowed: rights,
        parent: place.as_raw_fd(),
    };
    // SAFETY: the structure is the kernel's and lives across the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            PATH_BENEATH,
            std::ptr::from_ref(&rule),
            0_u32,
        )
    })
    .map(drop)
}

/// Puts the calling process under a ruleset, for good. It has no_new_privs set.
pub fn restrict_self(ruleset: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) })
        .map(drop)
}
