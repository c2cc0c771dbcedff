//! Questions to the kernel that rustix has no function for. They change nothing.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

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
///
/// Asked once: a process and those that are forked from it have one kernel.
pub fn landlock_abi() -> u32 {
    static ABI: OnceLock<u32> = OnceLock::new();
    *ABI.get_or_init(ask_landlock_abi)
}

/// The time since the epoch that the kernel stamps files with. By the C library, which asks the
/// kernel's own page: rustix would look for that page first, with a call.
pub fn coarse_time() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure is valid, and written to during the call alone. It cannot fail: every
    // kernel has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, std::ptr::from_mut(&mut now)) };
    let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), nanoseconds)
}

fn ask_landlock_abi() -> u32 {
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
