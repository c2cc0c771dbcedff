//! Questions to the kernel that rustix has no function for. They change nothing.

use std::io;

const LANDLOCK_CREATE_RULESET_VERSION: libc::c_ulong = 1;
const SECCOMP_GET_ACTION_AVAIL: libc::c_ulong = libc::SECCOMP_GET_ACTION_AVAIL as libc::c_ulong;

/// An action of a seccomp filter whose presence can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeccompAction {
    /// Fail the call with an error number: as old as filters are useful to us.
    Errno,
    /// Hand the call to a listener.
    UserNotify,
}

/// The version of Landlock's interface; zero where the kernel has none or it is switched off.
pub fn landlock_abi() -> u32 {
    // SAFETY: with a null attribute, size zero and the version flag the call reads no memory of
    // ours and returns a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).unwrap_or(0)
}

/// Whether the kernel knows an action of seccomp filters.
pub fn seccomp_action_available(action: SeccompAction) -> bool {
    let number: u32 = match action {
        SeccompAction::Errno => libc::SECCOMP_RET_ERRNO,
        SeccompAction::UserNotify => libc::SECCOMP_RET_USER_NOTIF,
    };
    // SAFETY: the last argument points to a live u32, which the kernel only reads.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            SECCOMP_GET_ACTION_AVAIL,
            0 as libc::c_ulong,
            &raw const number,
        )
    };
    answer == 0
}

/// The page size in bytes.
pub fn page_size() -> u64 {
    // SAFETY: sysconf has no memory arguments.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

/// Clock ticks in a second, the unit of processor times in `/proc/PID/stat`.
pub fn clock_ticks() -> u64 {
    // SAFETY: sysconf has no memory arguments.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).unwrap_or(100)
}

/// The system's text for an error number.
pub fn errno_text(errno: i32) -> String {
    io::Error::from_raw_os_error(errno).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_that_runs_the_tests_has_errno_filters() {
        assert!(seccomp_action_available(SeccompAction::Errno));
    }

    #[test]
    fn the_page_size_is_a_power_of_two() {
        assert!(page_size().is_power_of_two());
    }
}
