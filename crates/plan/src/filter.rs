//! From lists of system calls to the filter of a plan.

use crate::microvm::Acceleration;
use crate::seccomp::{Action, Comparison, DefaultAction, Filter, FilterRule, Instruction, compile};
use crate::{PlanError, bounds, filter_leased, filter_shared, observed};
use ironcage_host::HostCaps;
use ironcage_model::Isolation;
use ironcage_policy::syscalls::{self, Condition, SyscallAction, SyscallList, SyscallRule};
use ironcage_policy::{Policy, SideChannels};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Numbers below this have a name here; the rest answer ENOSYS.
pub(crate) const KNOWN: u32 = 470;

const SET_PROCESSORS: &str = "sched_setaffinity";

/// What besides the policy makes the filter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FilterOptions {
    /// Whether files may be leased to the running cage.
    pub(crate) leased: bool,
    /// Whether what the command uses is observed.
    pub(crate) observed: bool,
    /// Whether the command is an init system. It has a filter of its own, and tries much that is
    /// refused: nothing is reported.
    pub(crate) booted: bool,
}

pub(crate) fn make(
    policy: &Policy,
    host: &HostCaps,
    wanted: FilterOptions,
) -> Result<Filter, PlanError> {
    let FilterOptions {
        leased,
        observed,
        booted,
    } = wanted;
    if observed && !host.seccomp_notify {
        return Err(PlanError::CannotObserve);
    }
    let unknown = |name: &str, origin: &dyn std::fmt::Display| PlanError::UnknownSyscalls {
        name: name.to_owned(),
        origin: origin.to_string(),
    };
    let list = syscalls::list(&policy.syscalls.value)
        .ok_or_else(|| unknown(&policy.syscalls.value, &policy.syscalls.origin))?;
    let groups = policy
        .syscall_groups
        .iter()
        .map(|group| {
            syscalls::group(&group.value).ok_or_else(|| unknown(&group.value, &group.origin))
        })
        .collect::<Result<Vec<_>, _>>()?;
    // Where a set of processors stands in for the cpu controller, leaving it would be leaving
    // the limit.
    let limits = bounds::make(&policy.limits, host);
    let processors_fixed = bounds::processors(&limits, host, &mut Vec::new()).is_some()
        || policy.side_channels.value != SideChannels::Off;
    let shared = matches!(
        policy.isolation.value,
        Isolation::Chroot | Isolation::Landlock
    );
    let refusal = if host.seccomp_notify && !booted {
        DefaultAction::Notify
    } else {
        DefaultAction::Errno
    };
    let one_exec = list.rule("execve").is_none();
    if one_exec && refusal == DefaultAction::Errno {
        // The first execve passes by the supervisor's answer, and nobody asks it.
        return Err(PlanError::NoFirstExec { list: list.name });
    }
    let mut filter = Filter {
        list: list.name,
        groups: groups.iter().map(|group| group.name).collect(),
        processors_fixed,
        shared,
        leased,
        observed: Vec::new(),
        connects: refusal == DefaultAction::Notify
            && !observed
            && matches!(
                policy.isolation.value,
                Isolation::Namespace | Isolation::Wasm
            ),
        program: Vec::new(),
        refusal,
        one_exec,
    };
    if observed {
        filter.observed = observable(&filter, list, &groups);
    }
    filter.program = program(&filter, list, &groups);
    Ok(filter)
}

/// What can be reported and then carried out: calls that are let through by their number alone,
/// that say what is used, or come from a group.
fn observable(
    filter: &Filter,
    list: &'static SyscallList,
    groups: &[&'static SyscallList],
) -> Vec<u32> {
    let in_group = |name: &str| groups.iter().any(|group| group.rule(name).is_some());
    rules(filter, list, groups)
        .filter(|rule| matches!(rule.action, SyscallAction::Allow))
        .filter(|rule| observed::call(rule.number).is_some() || in_group(rule.name))
        .map(|rule| rule.number)
        .collect()
}

/// The rules as they are in this filter.
fn rules<'a>(
    filter: &'a Filter,
    list: &'static SyscallList,
    groups: &[&'static SyscallList],
) -> impl Iterator<Item = SyscallRule> + use<'a> {
    syscalls::compose(list, groups)
        .into_iter()
        .filter(|rule| !(filter.processors_fixed && rule.name == SET_PROCESSORS))
        .map(|rule| filter_shared::narrowed(filter.shared, *rule))
        .map(|rule| filter_leased::narrowed(filter.leased, rule))
}

fn program(
    filter: &Filter,
    list: &'static SyscallList,
    groups: &[&'static SyscallList],
) -> Vec<Instruction> {
    let actions: BTreeMap<u32, Action> = rules(filter, list, groups)
        .map(|rule| match filter.observed.contains(&rule.number) {
            true => (rule.number, Action::Notify),
            false if filter.connects && is_connect(&rule) => (rule.number, reported_connect()),
            false => (rule.number, action(&rule.action)),
        })
        .collect();
    compile(&actions, filter.refusal, KNOWN)
}

fn is_connect(rule: &SyscallRule) -> bool {
    rule.name == "connect" && matches!(rule.action, SyscallAction::Allow)
}

/// Reports what has the length of an Internet address; other lengths are Unix sockets for the most
/// part. A caller that passes another length is not reported, and gets no further for it.
fn reported_connect() -> Action {
    let internet = [
        size_of::<linux_raw_sys::net::sockaddr_in>() as u32,
        size_of::<linux_raw_sys::net::sockaddr_in6>() as u32,
    ];
    let other = Comparison::NoneOf {
        argument: 2,
        values: internet.to_vec(),
    };
    Action::AllowIf {
        alternatives: vec![vec![other]],
        otherwise: linux_raw_sys::errno::EPERM as u16,
    }
}

/// The filter with one group more; `None` where there is no such group.
pub(crate) fn with_group(filter: &Filter, name: &str) -> Option<Filter> {
    let list = syscalls::list(filter.list)?;
    let added = syscalls::group(name)?;
    let mut wider = filter.clone();
    if !wider.groups.contains(&added.name) {
        wider.groups.push(added.name);
    }
    let groups = wider.groups.iter().map(|name| syscalls::group(name));
    let groups = groups.collect::<Option<Vec<_>>>()?;
    if !wider.observed.is_empty() {
        wider.observed = observable(&wider, list, &groups);
    }
    wider.program = program(&wider, list, &groups);
    Some(wider)
}

/// The program of the egress proxy's filter.
pub fn proxy() -> Vec<Instruction> {
    own(syscalls::proxy())
}

/// The program of the filter of the reader of models' answers.
pub(crate) fn reader() -> Vec<Instruction> {
    own(syscalls::reader())
}

/// The program of the key filter's own filter.
pub fn keys() -> Vec<Instruction> {
    own(syscalls::keys())
}

/// The program of QEMU's filter in the cage of a microVM, as the kernel has it.
pub fn vmm(acceleration: Acceleration) -> Vec<u8> {
    let lists = match acceleration {
        Acceleration::Kvm => syscalls::vmm_kvm(),
        Acceleration::Tcg(_) => syscalls::vmm(),
    };
    own(lists).iter().flat_map(|step| step.bytes()).collect()
}

/// The program of the file server's filter in the cage of a microVM, as the kernel has it.
pub(crate) fn vm_files() -> Vec<u8> {
    own(syscalls::vm_files())
        .iter()
        .flat_map(|step| step.bytes())
        .collect()
}

/// The program for a container of another engine: a list with groups on top of it, by their names.
/// `Err` is the name that is unknown. Denials are not reported: there is no supervisor.
pub fn container<'n>(list: &'n str, groups: &'n [String]) -> Result<Vec<Instruction>, &'n str> {
    let list = syscalls::list(list).ok_or(list)?;
    let groups = groups
        .iter()
        .map(|name| syscalls::group(name).ok_or(name.as_str()))
        .collect::<Result<Vec<_>, _>>()?;
    let rules = syscalls::compose(list, &groups);
    let actions = rules
        .into_iter()
        .map(|rule| (rule.number, action(&rule.action)))
        .collect();
    Ok(compile(&actions, DefaultAction::Errno, KNOWN))
}

/// The program of a process of Ironcage's own.
fn own(lists: &'static [SyscallList]) -> Vec<Instruction> {
    let rules = lists.iter().flat_map(|list| list.rules);
    let actions = rules
        .map(|rule| (rule.number, action(&rule.action)))
        .collect();
    compile(&actions, DefaultAction::Errno, KNOWN)
}

/// The list and the groups of a filter, by their names.
fn parts(filter: &Filter) -> Option<(&'static SyscallList, Vec<&'static SyscallList>)> {
    let groups = filter.groups.iter();
    let groups = groups.filter_map(|name| syscalls::group(name)).collect();
    Some((syscalls::list(filter.list)?, groups))
}

/// What a filter lets through, by name; what is not there is refused.
pub(crate) fn actions(filter: &Filter) -> Vec<(&'static str, SyscallAction)> {
    let Some((list, groups)) = parts(filter) else {
        return Vec::new();
    };
    rules(filter, list, &groups)
        .map(|rule| (rule.name, rule.action))
        .collect()
}

/// The rules of a filter in words.
pub(crate) fn describe(filter: &Filter) -> Vec<FilterRule> {
    let Some((list, groups)) = parts(filter) else {
        return Vec::new();
    };
    rules(filter, list, &groups)
        .map(|rule| FilterRule {
            syscall: rule.name,
            number: rule.number,
            verdict: verdict(&rule.action),
            why: rule.why,
            origin: origin(rule.name, list, &groups),
        })
        .collect()
}

fn origin(name: &str, list: &SyscallList, groups: &[&SyscallList]) -> String {
    match groups.iter().rev().find(|group| group.rule(name).is_some()) {
        Some(group) => format!("group {}", group.name),
        None => format!("list {}", list.name),
    }
}

fn action(action: &SyscallAction) -> Action {
    match action {
        SyscallAction::Allow => Action::Allow,
        SyscallAction::Errno(errno) => Action::Errno(*errno),
        SyscallAction::AllowIf {
            alternatives,
            else_errno,
        } => Action::AllowIf {
            alternatives: alternatives
                .iter()
                .map(|conditions| conditions.iter().map(comparison).collect())
                .collect(),
            otherwise: *else_errno,
        },
    }
}

fn comparison(condition: &Condition) -> Comparison {
    match *condition {
        Condition::MaskedEq { arg, mask, value } => Comparison::MaskedEqual {
            argument: arg,
            mask,
            value,
        },
        Condition::OneOf { arg, values } => Comparison::OneOf {
            argument: arg,
            values: values.to_vec(),
        },
        Condition::NotOneOf { arg, values } => Comparison::NoneOf {
            argument: arg,
            values: values.to_vec(),
        },
    }
}

/// The verdict in words.
fn verdict(action: &SyscallAction) -> String {
    match action {
        SyscallAction::Allow => "allow".into(),
        SyscallAction::Errno(errno) => format!("error {errno}"),
        SyscallAction::AllowIf {
            alternatives,
            else_errno,
        } => {
            let mut text = String::from("allow if ");
            for (index, conditions) in alternatives.iter().enumerate() {
                if index > 0 {
                    text.push_str(" or ");
                }
                for (index, condition) in conditions.iter().enumerate() {
                    if index > 0 {
                        text.push_str(" and ");
                    }
                    // Writing to a string cannot fail.
                    let _ = match condition {
                        Condition::MaskedEq { arg, mask, value } if *mask == u64::MAX => {
                            write!(text, "arg{arg} = {value:#x}")
                        }
                        Condition::MaskedEq { arg, mask, value } => {
                            write!(text, "arg{arg} & {mask:#x} = {value:#x}")
                        }
                        Condition::OneOf { arg, values } => {
                            write!(text, "arg{arg} in {values:x?}")
                        }
                        Condition::NotOneOf { arg, values } => {
                            write!(text, "arg{arg} not in {values:x?}")
                        }
                    };
                }
            }
            let _ = write!(text, ", else error {else_errno}");
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86_64: u32 = 0xc000_003e;
    const ALLOW: u32 = 0x7fff_0000;
    const THREAD: u64 = 0x10000;

    fn answer(lists: &'static [SyscallList], name: &str, args: [u64; 3]) -> u32 {
        let number = syscalls::number(name).unwrap();
        let [a, b, c] = args;
        crate::seccomp::run(&own(lists), number, X86_64, [a, b, c, 0, 0, 0])
    }

    #[test]
    fn the_processes_of_a_microvm_have_what_they_need_and_nothing_to_start_or_reach_others() {
        for (lists, allowed, denied) in [
            (
                syscalls::vm_files(),
                &["openat", "statx", "unlinkat", "pwritev", "accept4", "futex"][..],
                &[
                    "socket",
                    "connect",
                    "bind",
                    "listen",
                    "execve",
                    "execveat",
                    "kill",
                    "ptrace",
                    "process_vm_writev",
                    "mount",
                    "setns",
                    "unshare",
                    "bpf",
                    "fork",
                ][..],
            ),
            (
                syscalls::vmm(),
                &["openat", "execve", "memfd_create", "connect", "futex"][..],
                &[
                    "kill",
                    "ptrace",
                    "process_vm_writev",
                    "mount",
                    "setns",
                    "unshare",
                    "bpf",
                    "mkdirat",
                    "unlinkat",
                    "renameat2",
                    "symlinkat",
                    "fchmodat",
                    "getdents64",
                    "listen",
                    "accept4",
                    "vfork",
                ][..],
            ),
        ] {
            for name in allowed {
                assert_eq!(answer(lists, name, [1, 0, 0]), ALLOW, "{name}");
            }
            for name in denied {
                assert_ne!(answer(lists, name, [1, 0, 0]), ALLOW, "{name}");
            }
            assert_eq!(answer(lists, "clone", [THREAD | 0x100, 0, 0]), ALLOW);
            assert_ne!(answer(lists, "clone", [17, 0, 0]), ALLOW, "a process");
        }
        // Translated code is executable; the file server has none.
        assert_eq!(answer(syscalls::vmm(), "mmap", [0, 0, 7]), ALLOW);
        assert_eq!(answer(syscalls::vm_files(), "mmap", [0, 0, 3]), ALLOW);
        assert_ne!(answer(syscalls::vm_files(), "mmap", [0, 0, 7]), ALLOW);
        // KVM's own requests and no others, where it is used and nowhere else.
        const KVM_RUN: u64 = 0xae80;
        const TIOCSTI: u64 = 0x5412;
        assert_eq!(answer(syscalls::vmm_kvm(), "ioctl", [3, KVM_RUN, 0]), ALLOW);
        assert_ne!(answer(syscalls::vmm(), "ioctl", [3, KVM_RUN, 0]), ALLOW);
        for lists in [syscalls::vmm(), syscalls::vmm_kvm()] {
            assert_eq!(answer(lists, "ioctl", [3, 0x541b, 0]), ALLOW, "FIONREAD");
            assert_ne!(answer(lists, "ioctl", [3, TIOCSTI, 0]), ALLOW);
            assert_ne!(answer(lists, "kill", [1, 9, 0]), ALLOW);
        }
        assert_eq!(answer(syscalls::vmm(), "socket", [2, 1, 0]), ALLOW);
        assert_ne!(
            answer(syscalls::vmm(), "socket", [16, 1, 0]),
            ALLOW,
            "netlink"
        );
    }
}
