//! The lists and groups of system calls, as typed data.
//!
//! The data lies in `policies/syscalls/`, one reason per entry; the build script checks it
//! and makes the statics here. `plan` makes the filter program.

mod model;
mod table;

pub use model::{Condition, SyscallAction, SyscallList, SyscallRule};
pub use table::{name, number};

include!(concat!(env!("OUT_DIR"), "/syscalls.rs"));

/// The list with this name: `standard` or `minimal`.
pub fn list(name: &str) -> Option<&'static SyscallList> {
    LISTS.iter().find(|list| list.name == name)
}

/// The group with this name, such as `debug`.
pub fn group(name: &str) -> Option<&'static SyscallList> {
    let mut groups = GROUPS.iter().chain(SYSTEMS);
    groups.find(|group| group.name == name)
}

/// The list of the egress proxy, which no cage gets.
pub fn proxy() -> &'static [SyscallList] {
    PROXY
}

/// The list of the reader of models' answers, which no cage gets.
pub fn reader() -> &'static [SyscallList] {
    READER
}

/// The list of the key filter, which no cage gets.
pub fn keys() -> &'static [SyscallList] {
    KEYS
}

/// The list of QEMU in the cage of a microVM, on top of the cage's own.
pub fn vmm() -> &'static [SyscallList] {
    VMM
}

/// The same where KVM carries out the guest's instructions: the later rule for a call holds.
pub fn vmm_kvm() -> &'static [SyscallList] {
    VMM_KVM
}

/// The list of the file server in the cage of a microVM, on top of the cage's own.
pub fn vm_files() -> &'static [SyscallList] {
    VM_FILES
}

pub fn lists() -> &'static [SyscallList] {
    LISTS
}

/// The groups that a policy can name. Those that a system needs which a cage can write are not
/// among them.
pub fn groups() -> &'static [SyscallList] {
    GROUPS
}

/// The rules of a list with groups on top, ordered by number, one for each number. Where
/// the list and a group both have a rule, the group's holds: it was asked for by name.
pub fn compose(
    list: &'static SyscallList,
    groups: &[&'static SyscallList],
) -> Vec<&'static SyscallRule> {
    let mut rules: Vec<&'static SyscallRule> = list.rules.iter().collect();
    for group in groups {
        for rule in group.rules {
            match rules.binary_search_by_key(&rule.number, |known| known.number) {
                Ok(index) => rules[index] = rule,
                Err(index) => rules.insert(index, rule),
            }
        }
    }
    rules
}

#[cfg(test)]
mod tests;
