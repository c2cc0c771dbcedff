use super::*;

fn allows(list: &str, name: &str, arguments: [u64; 6]) -> bool {
    super::list(list)
        .unwrap()
        .rule(name)
        .is_some_and(|rule| rule.action.allows(&arguments))
}

#[test]
fn names_and_numbers_agree_with_the_kernel() {
    assert_eq!(number("read"), Some(0));
    assert_eq!(number("execve"), Some(59));
    assert_eq!(number("clone3"), Some(435));
    assert_eq!(number("file_setattr"), Some(469));
    assert_eq!(name(257), Some("openat"));
    assert_eq!(number("no_such_call"), None);
    assert_eq!(name(400), None);
    for number in 0..=469 {
        if let Some(name) = super::name(number) {
            assert_eq!(super::number(name), Some(number));
        }
    }
}

#[test]
fn rules_are_ordered_by_number_without_repetition() {
    for list in lists().iter().chain(groups()) {
        assert!(
            list.rules.is_sorted_by(|a, b| a.number < b.number),
            "{}",
            list.name
        );
    }
}

#[test]
fn minimal_is_no_wider_than_standard_and_about_sixty() {
    let (minimal, standard) = (list("minimal").unwrap(), list("standard").unwrap());
    for rule in minimal.rules {
        let wider = standard.rule(rule.name).unwrap().action;
        // Equal rules, or a plain allowance above a narrower one, or a named narrower pair.
        let fits = wider == rule.action
            || wider == SyscallAction::Allow
            || ["clone", "prlimit64"].contains(&rule.name);
        assert!(fits, "{}", rule.name);
    }
    assert!(
        (50..=75).contains(&minimal.rules.len()),
        "{}",
        minimal.rules.len()
    );
    for name in [
        "fork", "vfork", "execve", "execveat", "socket", "connect", "ioctl",
    ] {
        assert!(minimal.rule(name).is_none(), "{name}");
        assert!(standard.rule(name).is_some(), "{name}");
    }
}

#[test]
fn clone_makes_threads_and_processes_but_no_namespaces() {
    const SIGCHLD: u64 = linux_raw_sys::general::SIGCHLD as u64;
    const THREAD: u64 = 0x003d_0f00;
    for flag in [
        0x1000_0000,
        0x0002_0000,
        0x2000_0000,
        0x4000_0000,
        0x0800_0000,
        0x0400_0000,
        0x0200_0000,
    ] {
        assert!(!allows(
            "standard",
            "clone",
            [flag | SIGCHLD, 0, 0, 0, 0, 0]
        ));
        assert!(!allows("minimal", "clone", [flag | THREAD, 0, 0, 0, 0, 0]));
        assert!(!allows("standard", "unshare", [flag, 0, 0, 0, 0, 0]));
    }
    assert!(allows("standard", "clone", [SIGCHLD, 0, 0, 0, 0, 0]));
    assert!(allows("standard", "clone", [THREAD, 0, 0, 0, 0, 0]));
    assert!(allows("minimal", "clone", [THREAD, 0, 0, 0, 0, 0]));
    assert!(!allows("minimal", "clone", [SIGCHLD, 0, 0, 0, 0, 0]));
    assert!(!allows("standard", "unshare", [0x80, 0, 0, 0, 0, 0]));
    assert!(allows("standard", "unshare", [0x400, 0, 0, 0, 0, 0]));
}

#[test]
fn sockets_are_local_internet_or_route_netlink() {
    let socket =
        |family, kind, protocol| allows("standard", "socket", [family, kind, protocol, 0, 0, 0]);
    assert!(socket(1, 1, 0) && socket(2, 1, 6) && socket(10, 2, 17) && socket(16, 3, 0));
    // AF_VSOCK, AF_ALG, AF_PACKET, netfilter netlink, SCTP, DCCP.
    assert!(!socket(40, 1, 0) && !socket(38, 5, 0) && !socket(17, 3, 0));
    assert!(!socket(16, 3, 12) && !socket(2, 1, 132) && !socket(2, 6, 33));
}

#[test]
fn requests_are_compared_in_the_half_that_the_kernel_reads() {
    let ioctl = |request| allows("standard", "ioctl", [0, request, 0, 0, 0, 0]);
    assert!(!ioctl(0x5412) && !ioctl(0x1_0000_5412) && !ioctl(0x541c));
    assert!(ioctl(0x5413) && ioctl(0x5401));
}

#[test]
fn the_core_limit_cannot_be_set_but_others_can() {
    const POINTER: u64 = 0x7fff_0000_0000;
    let prlimit = |resource, new| allows("standard", "prlimit64", [0, resource, new, 0, 0, 0]);
    assert!(prlimit(4, 0) && prlimit(7, POINTER));
    assert!(!prlimit(4, POINTER) && !prlimit(0x1_0000_0004, POINTER));
    assert!(!allows("standard", "setrlimit", [4, POINTER, 0, 0, 0, 0]));
    assert!(allows("standard", "setrlimit", [7, POINTER, 0, 0, 0, 0]));
}

#[test]
fn device_nodes_cannot_be_made_but_fifos_can() {
    let mknod = |mode| allows("standard", "mknod", [0, mode, 0, 0, 0, 0]);
    let mknodat = |mode| allows("standard", "mknodat", [0, 0, mode, 0, 0, 0]);
    for mode in [0o020_666, 0o060_666] {
        assert!(!mknod(mode) && !mknodat(mode));
    }
    for mode in [0o666, 0o010_666, 0o100_644, 0o140_755] {
        assert!(mknod(mode) && mknodat(mode));
    }
}

#[test]
fn set_id_bits_cannot_be_given_but_other_permissions_can() {
    let all = |mode| {
        let second = [0, mode, 0, 0, 0, 0];
        let third = [0, 0, mode, 0, 0, 0];
        [
            allows("standard", "chmod", second),
            allows("standard", "fchmod", second),
            allows("standard", "fchmodat", third),
            allows("standard", "fchmodat2", third),
            allows("standard", "mknod", second),
            allows("standard", "mknodat", third),
        ]
    };
    for mode in [0o4755, 0o2755, 0o6777, 0o104_755] {
        assert_eq!(all(mode), [false; 6], "{mode:o}");
    }
    for mode in [0, 0o644, 0o755, 0o1777] {
        assert_eq!(all(mode), [true; 6], "{mode:o}");
    }
}

#[test]
fn leases_cannot_be_taken_but_locks_can() {
    for list in ["standard", "minimal"] {
        let fcntl = |command| allows(list, "fcntl", [3, command, 0, 0, 0, 0]);
        assert!(!fcntl(1024) && !fcntl(0x1_0000_0400), "{list}");
        assert!(fcntl(1) && fcntl(6) && fcntl(37) && fcntl(1030), "{list}");
    }
}

#[test]
fn huge_pages_of_the_hosts_pool_are_denied_and_ordinary_memory_is_not() {
    for list in ["standard", "minimal"] {
        let mmap = |flags| allows(list, "mmap", [0, 4096, 3, flags, u64::MAX, 0]);
        assert!(mmap(0x22) && mmap(0x0002_0022) && mmap(0x1), "{list}");
        // With a size of its own in the upper bits, too.
        assert!(
            !mmap(0x0004_0022) && !mmap(0x0004_0022 | 21 << 26),
            "{list}"
        );
    }
    let memfd = |flags| allows("standard", "memfd_create", [0, flags, 0, 0, 0, 0]);
    assert!(memfd(1) && memfd(3) && memfd(8) && !memfd(4) && !memfd(5));
    let shmget = |flags| allows("standard", "shmget", [0, 4096, flags, 0, 0, 0]);
    assert!(shmget(0o1600) && !shmget(0o5600));
}

/// The kernel remembers its verdict on a call whose arguments nobody looks at. `mmap` is the
/// exception: it takes microseconds, of which the rule is no measurable part.
#[test]
fn frequent_calls_have_no_argument_rules() {
    for name in [
        "read",
        "write",
        "open",
        "openat",
        "newfstatat",
        "statx",
        "futex",
        "close",
    ] {
        let rule = list("standard").unwrap().rule(name).unwrap();
        assert_eq!(rule.action, SyscallAction::Allow, "{name}");
    }
}

#[test]
fn dangerous_calls_are_in_no_list() {
    for name in [
        "ptrace",
        "bpf",
        "perf_event_open",
        "userfaultfd",
        "keyctl",
        "add_key",
        "request_key",
        "mount",
        "umount2",
        "fsopen",
        "fsmount",
        "move_mount",
        "open_tree",
        "mount_setattr",
        "setns",
        "pivot_root",
        "chroot",
        "swapon",
        "reboot",
        "kexec_load",
        "kexec_file_load",
        "init_module",
        "finit_module",
        "delete_module",
        "iopl",
        "ioperm",
        "modify_ldt",
        "quotactl",
        "acct",
        "settimeofday",
        "clock_settime",
        "adjtimex",
        "clock_adjtime",
        "open_by_handle_at",
        "name_to_handle_at",
        "lookup_dcookie",
        "fanotify_init",
        "process_vm_readv",
        "process_vm_writev",
        "pidfd_getfd",
        "kcmp",
        "syslog",
        "vhangup",
        "_sysctl",
        "ustat",
        "sethostname",
    ] {
        assert!(number(name).is_some(), "{name}");
        for list in lists() {
            assert!(list.rule(name).is_none(), "{name} in {}", list.name);
        }
    }
}

#[test]
fn a_group_outranks_the_refusal_in_the_list() {
    let standard = list("standard").unwrap();
    let find = |rules: &[&SyscallRule]| {
        rules
            .iter()
            .find(|rule| rule.name == "io_uring_setup")
            .unwrap()
            .action
    };
    assert_eq!(find(&compose(standard, &[])), SyscallAction::Errno(38));
    let with = compose(
        standard,
        &[group("io-uring").unwrap(), group("debug").unwrap()],
    );
    assert_eq!(find(&with), SyscallAction::Allow);
    assert!(with.is_sorted_by(|a, b| a.number < b.number));
    assert!(with.iter().any(|rule| rule.name == "ptrace"));
}
