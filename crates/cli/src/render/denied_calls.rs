//! Denied system calls at the end of a run, in one line each, with the flag that would allow them.

use super::event::times;
use ironcage_catalog::syscalls;
use ironcage_model::{Denial, Printable};
use std::collections::BTreeMap;

/// Calls that are told with a flag, and programs that are named for each.
const MOST_CALLS: usize = 3;
const MOST_PROGRAMS: usize = 3;

#[derive(Default)]
struct DeniedSyscall<'a> {
    count: u64,
    programs: Vec<&'a str>,
}

/// The lines: one for each call that a group of calls allows, then one for all others.
pub(crate) fn lines(denied: &[Denial], id: &str) -> Vec<String> {
    let mut calls: BTreeMap<&str, DeniedSyscall<'_>> = BTreeMap::new();
    for denial in denied {
        let call = calls.entry(&denial.syscall).or_default();
        call.count = call.count.saturating_add(denial.count);
        call.programs.push(&denial.program);
    }
    let groups = |call: &str| {
        let mut groups = syscalls::groups().iter();
        groups.find(|group| group.rule(call).is_some())
    };
    let mut lines = Vec::new();
    let mut others = Vec::new();
    for (name, call) in calls {
        match groups(name) {
            Some(group) if lines.len() < MOST_CALLS => lines.push(format!(
                "ironcage: system call {name} refused {}, by {}; to allow: --syscall-group {}",
                times(call.count),
                programs(&call.programs),
                group.name
            )),
            _ => others.push(name),
        }
    }
    if !others.is_empty() {
        let more = others.len().saturating_sub(MOST_CALLS);
        others.truncate(MOST_CALLS);
        let names: Vec<String> = others
            .into_iter()
            .map(|name| Printable::new(name).to_string())
            .collect();
        let more = match more {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        lines.push(format!(
            "ironcage: system calls refused: {}{more}; `ironcage why {id}` explains them",
            names.join(", ")
        ));
    }
    lines
}

/// A cage chooses the names of its programs, so their number is limited.
fn programs(all: &[&str]) -> String {
    let named = all.iter().take(MOST_PROGRAMS);
    let mut named: Vec<String> = named
        .map(|program| Printable::new(program).to_string())
        .collect();
    if all.len() > MOST_PROGRAMS {
        named.push("others".into());
    }
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(syscall: &str, program: &str, count: u64) -> Denial {
        Denial {
            syscall: syscall.into(),
            program: program.into(),
            count,
        }
    }

    #[test]
    fn a_call_that_a_group_allows_is_told_with_its_flag_and_others_together() {
        let all = [
            denied("mount", "sh", 1),
            denied("ptrace", "gdb", 1),
            denied("ptrace", "strace", 2),
        ];
        assert_eq!(
            lines(&all, "c1"),
            [
                "ironcage: system call ptrace refused 3 times, by gdb, strace; to allow: --syscall-group debug",
                "ironcage: system calls refused: mount; `ironcage why c1` explains them",
            ]
        );
        assert!(lines(&[], "c1").is_empty());
    }

    #[test]
    fn names_from_the_cage_are_escaped_and_limited_in_number() {
        let mut all: Vec<Denial> = (0..9)
            .map(|i| denied("ptrace", &format!("p{i}"), 1))
            .collect();
        all.insert(0, denied("ptrace", "\u{1b}[2J", 1));
        all.extend((0..9).map(|i| denied(&format!("syscall_{i}"), "p", 1)));
        let text = lines(&all, "c1");
        assert_eq!(text.len(), 2);
        assert!(
            text[0].contains("by \\u{1b}[2J, p0, p1, others;"),
            "{text:?}"
        );
        assert!(text[1].contains("syscall_2 and 6 more"), "{text:?}");
    }
}
