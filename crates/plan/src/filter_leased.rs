//! Additional denials of the filter in a cage that can lease files.
//!
//! A lease on files is revoked when the kernel unmounts it, which fails while a process has one
//! of its files open or mapped. Pages in a pipe or a socket hold the file's content but not its
//! mount: they would show what the host writes after the revocation. Programs that get these
//! errors read and write instead, as the manual pages of these calls advise.

use ironcage_policy::syscalls::{Condition, SyscallAction, SyscallRule};

const EINVAL: u16 = linux_raw_sys::errno::EINVAL as u16;
const ENOSYS: u16 = linux_raw_sys::errno::ENOSYS as u16;
const ENOPROTOOPT: u16 = linux_raw_sys::errno::ENOPROTOOPT as u16;
const SOL_SOCKET: u32 = linux_raw_sys::net::SOL_SOCKET;
const SO_ZEROCOPY: u32 = linux_raw_sys::net::SO_ZEROCOPY;

const NO_ZERO_COPY: &[&[Condition]] = &[
    &[Condition::NotOneOf {
        arg: 1,
        values: &[SOL_SOCKET],
    }],
    &[Condition::NotOneOf {
        arg: 2,
        values: &[SO_ZEROCOPY],
    }],
];

/// A rule as it is where files may be leased, `leased` being true.
pub(crate) fn narrowed(leased: bool, rule: SyscallRule) -> SyscallRule {
    if !leased || !matches!(rule.action, SyscallAction::Allow) {
        return rule;
    }
    match rule.name {
        "splice" | "tee" | "vmsplice" | "sendfile" => SyscallRule {
            action: SyscallAction::Errno(EINVAL),
            why: "pages in a pipe or a socket would outlive a lease on their file",
            ..rule
        },
        "io_uring_setup" | "io_uring_enter" | "io_uring_register" => SyscallRule {
            action: SyscallAction::Errno(ENOSYS),
            why: "it can splice and send: pages in a pipe or a socket would outlive a lease on their file",
            ..rule
        },
        "setsockopt" => SyscallRule {
            action: SyscallAction::AllowIf {
                alternatives: NO_ZERO_COPY,
                else_errno: ENOPROTOOPT,
            },
            why: "all except SO_ZEROCOPY: queued pages would outlive a lease on their file",
            ..rule
        },
        _ => rule,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_policy::syscalls;

    fn rule(leased: bool, name: &str) -> SyscallRule {
        let list = syscalls::list("standard").unwrap();
        narrowed(leased, *list.rule(name).unwrap())
    }

    #[test]
    fn pages_stay_with_their_files_where_files_may_be_leased() {
        let any = [0; 6];
        for name in ["splice", "tee", "vmsplice", "sendfile"] {
            assert!(rule(false, name).action.allows(&any), "{name}");
            assert!(!rule(true, name).action.allows(&any), "{name}");
        }
        assert!(rule(true, "copy_file_range").action.allows(&any));
        // Also where a group would give what does the same by itself.
        let group = syscalls::group("io-uring").unwrap();
        for given in group.rules {
            assert!(
                narrowed(false, *given).action.allows(&any),
                "{}",
                given.name
            );
            assert!(
                !narrowed(true, *given).action.allows(&any),
                "{}",
                given.name
            );
        }
    }

    #[test]
    fn only_one_option_of_sockets_is_refused() {
        let set = |leased, level, option| {
            let arguments = [3, level, option, 0, 0, 0];
            rule(leased, "setsockopt").action.allows(&arguments)
        };
        assert!(!set(true, 1, 60));
        assert!(set(false, 1, 60));
        assert!(set(true, 1, 2) && set(true, 6, 60));
    }
}
