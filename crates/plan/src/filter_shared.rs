//! Additional denials of the filter in a cage that shares processes, network and IPC with the
//! host: the lists of system calls assume a cage with its own namespaces.

use ironcage_policy::syscalls::{Condition, SyscallAction, SyscallRule};

const EPERM: u16 = linux_raw_sys::errno::EPERM as u16;
const EINVAL: u16 = linux_raw_sys::errno::EINVAL as u16;
const ENOSYS: u16 = linux_raw_sys::errno::ENOSYS as u16;
const EAFNOSUPPORT: u16 = linux_raw_sys::errno::EAFNOSUPPORT as u16;

/// The low half of an argument, which is all that the kernel reads of a number.
const LOW: u64 = 0xffff_ffff;
/// The bits of a socket's type that are not flags.
const TYPE: u64 = 0xf;

const fn zero(arg: u8) -> Condition {
    Condition::MaskedEq {
        arg,
        mask: LOW,
        value: 0,
    }
}

const fn is(arg: u8, mask: u64, value: u64) -> Condition {
    Condition::MaskedEq { arg, mask, value }
}

/// Pairs of AF_UNIX of the types stream and seqpacket: connected for good. A datagram socket
/// can send to any name, also when it came as one of a pair.
const CONNECTED_PAIRS: &[&[Condition]] = &[
    &[is(0, LOW, 1), is(1, TYPE, 1)],
    &[is(0, LOW, 1), is(1, TYPE, 5)],
];
/// RLIMIT_CORE stays fixed, as in the list.
const OWN_LIMITS: &[&[Condition]] = &[
    &[zero(0), is(2, u64::MAX, 0)],
    &[
        zero(0),
        Condition::NotOneOf {
            arg: 1,
            values: &[4],
        },
    ],
];
const OWN_PROCESS: &[&[Condition]] = &[&[zero(0)]];
const OWN_PRIORITY: &[&[Condition]] = &[&[zero(0), zero(1)]];
const OWN_IO_PRIORITY: &[&[Condition]] = &[&[is(0, LOW, 1), zero(1)]];

/// A rule as it is where the host is shared, `shared` being true.
pub(crate) fn narrowed(shared: bool, rule: SyscallRule) -> SyscallRule {
    let allowed = !matches!(rule.action, SyscallAction::Errno(_));
    match (shared && allowed).then(|| narrower(rule.name)).flatten() {
        Some((action, why)) => SyscallRule {
            action,
            why,
            ..rule
        },
        None => rule,
    }
}

fn narrower(name: &str) -> Option<(SyscallAction, &'static str)> {
    let only = |alternatives, else_errno| SyscallAction::AllowIf {
        alternatives,
        else_errno,
    };
    const OTHERS: &str = "only on the caller itself: without a PID namespace it would reach every process of the user";
    Some(match name {
        "socket" => (
            SyscallAction::Errno(EAFNOSUPPORT),
            "without a network namespace a socket reaches the host's network, services and local sockets",
        ),
        "socketpair" => (
            only(CONNECTED_PAIRS, EAFNOSUPPORT),
            "pairs that stay connected to each other; a datagram socket could send to the host's local sockets",
        ),
        "shmget" | "shmat" | "shmdt" | "shmctl" | "semget" | "semop" | "semtimedop" | "semctl"
        | "msgget" | "msgsnd" | "msgrcv" | "msgctl" | "mq_open" | "mq_unlink" | "mq_timedsend"
        | "mq_timedreceive" | "mq_notify" | "mq_getsetattr" => (
            SyscallAction::Errno(ENOSYS),
            "without an IPC namespace these are host segments and queues",
        ),
        "prlimit64" => (only(OWN_LIMITS, EINVAL), OTHERS),
        "sched_setaffinity" | "sched_setparam" | "sched_setscheduler" | "sched_setattr" => {
            (only(OWN_PROCESS, EPERM), OTHERS)
        }
        "setpriority" => (only(OWN_PRIORITY, EPERM), OTHERS),
        "ioprio_set" => (only(OWN_IO_PRIORITY, EPERM), OTHERS),
        "migrate_pages" | "move_pages" | "process_madvise" => (only(OWN_PROCESS, EPERM), OTHERS),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_policy::syscalls;

    fn rule(shared: bool, name: &str) -> SyscallRule {
        let list = syscalls::list("standard").unwrap();
        narrowed(shared, *list.rule(name).unwrap())
    }

    #[test]
    fn sockets_are_refused_only_where_the_network_is_the_hosts() {
        let unix_stream = [1, 1, 0, 0, 0, 0];
        assert!(rule(false, "socket").action.allows(&unix_stream));
        assert!(!rule(true, "socket").action.allows(&unix_stream));
        // With SOCK_CLOEXEC.
        let pair = |kind: u64| [1, kind | 0x80000, 0, 0, 0, 0];
        assert!(rule(true, "socketpair").action.allows(&pair(1)));
        assert!(rule(true, "socketpair").action.allows(&pair(5)));
        assert!(!rule(true, "socketpair").action.allows(&pair(2)));
        assert!(rule(false, "socketpair").action.allows(&pair(2)));
    }

    #[test]
    fn limits_and_priorities_of_others_cannot_be_set() {
        let own = [0, 7, 1, 1, 0, 0];
        let others = [4711, 7, 1, 1, 0, 0];
        assert!(rule(true, "prlimit64").action.allows(&own));
        assert!(!rule(true, "prlimit64").action.allows(&others));
        assert!(rule(false, "prlimit64").action.allows(&others));
        let core = [0, 4, 1, 0, 0, 0];
        assert!(!rule(true, "prlimit64").action.allows(&core));
        assert!(!rule(true, "sched_setaffinity").action.allows(&others));
        assert!(rule(true, "sched_setaffinity").action.allows(&own));
        assert!(!rule(true, "setpriority").action.allows(&[2, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn what_a_list_refuses_stays_refused() {
        assert_eq!(rule(true, "clone3"), rule(false, "clone3"));
    }
}
