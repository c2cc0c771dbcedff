//! The plan's list of system calls as a runtime takes it.
//!
//! Runtimes compile filters with libseccomp, which compares all 64 bits of an argument or, masked,
//! some of them, knows no list of values, and no masked inequality. A plan's conditions are about
//! the low 32 bits where the kernel reads no more. So each condition becomes masked equalities:
//! one for each value of a list, and for "none of these" the binary prefixes that no value has.

use ironcage_catalog::syscalls::{Condition, SyscallAction};
use ironcage_plan::seccomp::Filter;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const EPERM: u16 = ironcage_sys::rustix::io::Errno::PERM.raw_os_error() as u16;
const ENOSYS: u16 = ironcage_sys::rustix::io::Errno::NOSYS.raw_os_error() as u16;
const LOW: u64 = 0xffff_ffff;

/// Bits of an argument that count, and what they must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Masked {
    mask: u64,
    value: u64,
}

/// One conjunction: at most one comparison for each argument, as libseccomp wants it.
type Conjunction = BTreeMap<u8, Masked>;

/// The `seccomp` object of a configuration.
pub(crate) fn seccomp(filter: &Filter) -> Value {
    let mut rules = Vec::new();
    let mut free = Vec::new();
    let mut errors: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for (name, action) in filter.actions() {
        match action {
            SyscallAction::Allow => free.push(name),
            // What is refused by default needs no rule, and may have none.
            SyscallAction::Errno(EPERM) => {}
            SyscallAction::Errno(errno) => errors.entry(errno).or_default().push(name),
            SyscallAction::AllowIf { alternatives, .. } => {
                let all = alternatives.iter().flat_map(|conditions| split(conditions));
                rules.extend(all.map(|conjunction| {
                    json!({"names": [name], "action": "SCMP_ACT_ALLOW", "args": arguments(&conjunction)})
                }));
            }
        }
    }
    rules.push(json!({"names": free, "action": "SCMP_ACT_ALLOW"}));
    rules.extend(errors.into_iter().map(
        |(errno, names)| json!({"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno}),
    ));
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": rules,
    })
}

/// The `seccomp` object for gVisor, whose kernel applies it to the system calls that it answers.
///
/// It tries rules in their order, has no room for what `split` makes of a long list, and answers
/// EPERM whatever a rule says. Programs take ENOSYS alone for a reason to use an older call, so
/// what the list answers that way is allowed: gVisor's kernel has it, and the host's never sees it.
pub(crate) fn seccomp_of_gvisor(filter: &Filter) -> Value {
    let mut rules = Vec::new();
    let mut free = Vec::new();
    for (name, action) in filter.actions() {
        match action {
            SyscallAction::Allow | SyscallAction::Errno(ENOSYS) => free.push(name),
            SyscallAction::Errno(_) => {}
            SyscallAction::AllowIf { alternatives, .. } => {
                rules.extend(in_order(alternatives).into_iter().map(|(allow, conjunction)| {
                    let action = if allow { "SCMP_ACT_ALLOW" } else { "SCMP_ACT_ERRNO" };
                    json!({"names": [name], "action": action, "args": arguments(&conjunction)})
                }));
            }
        }
    }
    rules.push(json!({"names": free, "action": "SCMP_ACT_ALLOW"}));
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": rules,
    })
}

/// Comparisons of which the first that holds decides; when none does, the call is denied.
fn in_order(alternatives: &[&[Condition]]) -> Vec<(bool, Conjunction)> {
    let mut rules = Vec::new();
    // What denies comes last: nothing after it can allow.
    let mut last = None;
    for conditions in alternatives {
        match conditions {
            [Condition::NotOneOf { arg, values }] if last.is_none() => last = Some((*arg, *values)),
            conditions => rules.extend(split(conditions).into_iter().map(|one| (true, one))),
        }
    }
    if let Some((arg, values)) = last {
        for value in values {
            let one = Masked {
                mask: LOW,
                value: u64::from(*value),
            };
            rules.push((false, Conjunction::from([(arg, one)])));
        }
        rules.push((true, Conjunction::new()));
    }
    rules
}

fn arguments(conjunction: &Conjunction) -> Vec<Value> {
    let comparison = |(index, masked): (&u8, &Masked)| match masked.mask {
        u64::MAX => json!({"index": index, "op": "SCMP_CMP_EQ", "value": masked.value}),
        mask => json!({
            "index": index,
            "op": "SCMP_CMP_MASKED_EQ",
            "value": mask,
            "valueTwo": masked.value,
        }),
    };
    conjunction.iter().map(comparison).collect()
}

/// Conditions that all have to hold, as conjunctions of which one has to.
fn split(conditions: &[Condition]) -> Vec<Conjunction> {
    let mut all = vec![Conjunction::new()];
    for condition in conditions {
        let (argument, choices) = choices(condition);
        all = all
            .iter()
            .flat_map(|so_far| {
                choices
                    .iter()
                    .filter_map(|choice| with(so_far, argument, *choice))
            })
            .collect();
    }
    all
}

/// One comparison more; `None` where both cannot hold.
fn with(so_far: &Conjunction, argument: u8, added: Masked) -> Option<Conjunction> {
    let mut both = so_far.clone();
    let joined = match so_far.get(&argument) {
        None => added,
        Some(known) => {
            let common = known.mask & added.mask;
            if known.value & common != added.value & common {
                return None;
            }
            Masked {
                mask: known.mask | added.mask,
                value: known.value | added.value,
            }
        }
    };
    both.insert(argument, joined);
    Some(both)
}

/// A condition as masked equalities of which one has to hold.
fn choices(condition: &Condition) -> (u8, Vec<Masked>) {
    match *condition {
        Condition::MaskedEq { arg, mask, value } => (arg, vec![Masked { mask, value }]),
        Condition::OneOf { arg, values } => {
            let each = values.iter().map(|value| Masked {
                mask: LOW,
                value: u64::from(*value),
            });
            (arg, each.collect())
        }
        Condition::NotOneOf { arg, values } => {
            let mut free = Vec::new();
            prefixes(values, 0, 0, &mut free);
            (arg, free)
        }
    }
}

/// The shortest prefixes of 32 bits that none of the values has.
fn prefixes(values: &[u32], value: u32, length: u32, free: &mut Vec<Masked>) {
    let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
    let taken = values.iter().any(|taken| taken & mask == value);
    if !taken {
        free.push(Masked {
            mask: u64::from(mask),
            value: u64::from(value),
        });
    } else if length < 32 {
        prefixes(values, value, length + 1, free);
        prefixes(values, value | 1 << (31 - length), length + 1, free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_catalog::syscalls;

    fn holds(conjunctions: &[Conjunction], arguments: &[u64; 6]) -> bool {
        conjunctions.iter().any(|conjunction| {
            conjunction
                .iter()
                .all(|(index, masked)| arguments[usize::from(*index)] & masked.mask == masked.value)
        })
    }

    /// Values at which a condition changes its mind, and around them; with something in the half
    /// that the kernel does not read.
    fn interesting(conditions: &[Condition]) -> Vec<u64> {
        let mut all = vec![0, 1, u64::MAX, LOW, 1 << 32];
        for condition in conditions {
            let values: Vec<u64> = match *condition {
                Condition::MaskedEq { value, mask, .. } => vec![value, !mask, value | !mask],
                Condition::OneOf { values, .. } | Condition::NotOneOf { values, .. } => {
                    values.iter().map(|value| u64::from(*value)).collect()
                }
            };
            for value in values {
                all.extend([
                    value,
                    value.wrapping_add(1),
                    value.wrapping_sub(1),
                    value ^ 1 << 31,
                    value | 7 << 40,
                ]);
            }
        }
        all
    }

    /// As gVisor decides: by the first rule that holds.
    fn decided(rules: &[(bool, Conjunction)], arguments: &[u64; 6]) -> bool {
        let of_rule = |(_, one): &&(bool, Conjunction)| holds(std::slice::from_ref(one), arguments);
        rules.iter().find(of_rule).is_some_and(|(allow, _)| *allow)
    }

    #[test]
    fn gvisors_rules_in_their_order_mean_the_same_and_are_few() {
        let mut looked = 0;
        let lists = syscalls::lists().iter().chain(syscalls::groups());
        for rule in lists.flat_map(|list| list.rules) {
            let SyscallAction::AllowIf { alternatives, .. } = rule.action else {
                continue;
            };
            let rules = in_order(alternatives);
            assert!(rules.len() < 24, "{}: {}", rule.name, rules.len());
            let all: Vec<Condition> = alternatives.concat();
            let values = interesting(&all);
            for (index, first) in values.iter().enumerate() {
                let at = |step: usize| values[(index + step * 7) % values.len()];
                for arguments in [[*first; 6], [*first, at(1), at(2), at(3), at(4), at(5)]] {
                    let wanted = alternatives
                        .iter()
                        .any(|conditions| conditions.iter().all(|one| one.holds(&arguments)));
                    let found = decided(&rules, &arguments);
                    assert_eq!(found, wanted, "{} {arguments:x?}", rule.name);
                    looked += 1;
                }
            }
        }
        assert!(looked > 1000, "{looked}");
    }

    #[test]
    fn every_condition_of_every_list_means_the_same_as_comparisons_of_a_runtime() {
        let mut looked = 0;
        for list in syscalls::lists().iter().chain(syscalls::groups()) {
            for rule in list.rules {
                let SyscallAction::AllowIf { alternatives, .. } = rule.action else {
                    continue;
                };
                for conditions in alternatives {
                    let conjunctions = split(conditions);
                    let values = interesting(conditions);
                    for (index, first) in values.iter().enumerate() {
                        // Different values in different arguments.
                        let at = |step: usize| values[(index + step * 7) % values.len()];
                        for arguments in [[*first; 6], [*first, at(1), at(2), at(3), at(4), at(5)]]
                        {
                            let wanted = conditions.iter().all(|one| one.holds(&arguments));
                            assert_eq!(
                                holds(&conjunctions, &arguments),
                                wanted,
                                "{} {arguments:x?}",
                                rule.name
                            );
                            looked += 1;
                        }
                    }
                }
            }
        }
        assert!(looked > 1000, "{looked}");
    }

    #[test]
    fn a_number_is_refused_whatever_is_in_the_half_that_the_kernel_does_not_read() {
        let conditions = [Condition::NotOneOf {
            arg: 1,
            values: &[0x5412, 0x541c],
        }];
        let conjunctions = split(&conditions);
        for refused in [0x5412, 0x541c, 0x5412 | 1 << 32, 0x541c | 0xdead << 48] {
            assert!(
                !holds(&conjunctions, &[0, refused, 0, 0, 0, 0]),
                "{refused:x}"
            );
        }
        for allowed in [0x5411, 0x5413, 0, LOW] {
            assert!(
                holds(&conjunctions, &[0, allowed, 0, 0, 0, 0]),
                "{allowed:x}"
            );
        }
    }
}
