//! The backends, and what each does not do.

use ironcage_tests::Who;
use std::path::Path;

/// A backend, and the layers that have to be given up for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IsolationLevel {
    Namespace,
    Oci,
    Runc,
    Runsc,
    RecentRunsc,
    Chroot,
    Landlock,
    Microvm,
}

/// gVisor of Debian's backports, where `scripts/test` unpacks it.
const RUNSC: &str = "/var/cache/ironcage-test/runsc/usr/bin/runsc";
/// A gVisor that applies filters to commands, where `scripts/test --full` builds it.
const RECENT_RUNSC: &str = "/var/cache/ironcage-test/runsc-recent/runsc";

impl IsolationLevel {
    pub(crate) fn name(self) -> &'static str {
        match self {
            IsolationLevel::Namespace => "namespace",
            IsolationLevel::Oci
            | IsolationLevel::Runc
            | IsolationLevel::Runsc
            | IsolationLevel::RecentRunsc => "oci",
            IsolationLevel::Chroot => "chroot",
            IsolationLevel::Landlock => "landlock",
            IsolationLevel::Microvm => "microvm",
        }
    }

    /// What of this the machine does not have, if there is something.
    pub(crate) fn missing(self) -> Option<&'static str> {
        let path = match self {
            IsolationLevel::Runsc => RUNSC,
            IsolationLevel::RecentRunsc => RECENT_RUNSC,
            _ => return None,
        };
        (!Path::new(path).exists()).then_some(path)
    }

    pub(crate) fn flags(self, who: Who) -> Vec<&'static str> {
        let mut flags = vec!["--isolation", self.name()];
        match self {
            IsolationLevel::Namespace | IsolationLevel::Oci | IsolationLevel::Microvm => {}
            IsolationLevel::Runc => {
                flags.extend(["--oci-runtime", "runc"]);
                if who == Who::User {
                    flags.push("--root-inside");
                }
            }
            IsolationLevel::Runsc => {
                flags.extend(["--oci-runtime", RUNSC, "--root-inside"]);
                flags.extend(["--allow-degraded", "seccomp"]);
            }
            IsolationLevel::RecentRunsc => {
                flags.extend(["--oci-runtime", RECENT_RUNSC, "--root-inside"]);
            }
            IsolationLevel::Chroot => flags.extend(["--allow-degraded", "pid-ns,uts-ns"]),
            IsolationLevel::Landlock => {
                flags.extend(["--allow-degraded", "user-ns,mount-ns,pid-ns,uts-ns"]);
            }
        }
        flags
    }
}

/// What a backend does not do, and why. Each holds for root and for the user.
pub(crate) const EXCEPTIONS: &[(IsolationLevel, &str, &str)] = &[
    (
        IsolationLevel::Chroot,
        "a_process_list_of_its_own",
        "no pid namespace, and the host's list is not shown",
    ),
    (
        IsolationLevel::Landlock,
        "a_process_list_of_its_own",
        "no pid namespace, and the host's list cannot be opened",
    ),
    (
        IsolationLevel::Chroot,
        "the_host_name_is_the_cages",
        "no UTS namespace",
    ),
    (
        IsolationLevel::Landlock,
        "the_host_name_is_the_cages",
        "no UTS namespace",
    ),
    (
        IsolationLevel::Chroot,
        "servers_and_clients_inside_reach_each_other",
        "no network namespace, so sockets are refused",
    ),
    (
        IsolationLevel::Landlock,
        "servers_and_clients_inside_reach_each_other",
        "no network namespace, so sockets are refused",
    ),
    (
        IsolationLevel::Landlock,
        "what_is_written_is_kept_aside_unless_the_real_files_are_asked_for",
        "no mounts, so no copy-on-write view: the start says so and does nothing",
    ),
    (
        IsolationLevel::Landlock,
        "a_protected_file_cannot_be_written",
        "Landlock has no rule that takes away below one that gives",
    ),
    (
        IsolationLevel::Landlock,
        "a_hidden_file_cannot_be_read",
        "Landlock has no rule that takes away below one that gives",
    ),
    (
        IsolationLevel::Landlock,
        "what_is_not_granted_cannot_be_told_from_what_is_not_there",
        "the view is the host's",
    ),
    (
        IsolationLevel::Oci,
        "a_terminal_of_its_own",
        "a runtime can lose the last words of a program on a terminal, so there is none",
    ),
    (
        IsolationLevel::Oci,
        "an_exec_has_a_terminal",
        "a runtime can lose the last words of a program on a terminal, so there is none",
    ),
    (
        IsolationLevel::Microvm,
        "the_limit_that_was_reached_is_told",
        "a machine does not start with the 256 MiB of this case; tests/tests/microvm_bounds.rs has its limits",
    ),
    (
        IsolationLevel::Landlock,
        "an_exec_has_a_terminal",
        "opening a terminal would open the user's own",
    ),
    (
        IsolationLevel::Runc,
        "a_terminal_of_its_own",
        "a runtime can lose the last words of a program on a terminal, so there is none",
    ),
    (
        IsolationLevel::Runc,
        "an_exec_has_a_terminal",
        "a runtime can lose the last words of a program on a terminal, so there is none",
    ),
    (
        IsolationLevel::Runsc,
        "a_terminal_of_its_own",
        "a runtime can lose the last words of a program on a terminal, so there is none",
    ),
    (
        IsolationLevel::Runsc,
        "an_exec_has_a_terminal",
        "a runtime can lose the last words of a program on a terminal, so there is none",
    ),
    (
        IsolationLevel::RecentRunsc,
        "a_terminal_of_its_own",
        "a runtime can lose the last words of a program on a terminal, so there is none",
    ),
    (
        IsolationLevel::RecentRunsc,
        "an_exec_has_a_terminal",
        "a runtime can lose the last words of a program on a terminal, so there is none",
    ),
    (
        IsolationLevel::Runsc,
        "nothing_is_gained_by_programs_with_set_id_bits",
        "20240729 applies the filter to the first process alone: a user namespace of gVisor's kernel",
    ),
];
