//! From verdicts by number to a program.
//!
//! Verdicts that depend on the number alone are cached by the kernel in a bitmap, whatever
//! the program's length; so the program's shape matters for its load time and for the few
//! calls with argument rules. It is a binary tree over ranges of numbers with the same
//! verdict (some 70 comparisons deep seven), with argument checks behind its leaves.

use super::assemble::{
    AND, ARCHITECTURE, JUMP, JUMP_EQUAL, JUMP_NOT_LESS, LOAD_WORD, NUMBER, RETURN, argument_high,
    argument_low, branch, plain,
};
use super::{DefaultAction, Instruction};
use std::collections::BTreeMap;

/// A condition on one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// The argument, masked, is this value.
    MaskedEqual {
        /// Which argument, from zero.
        argument: u8,
        /// Bits that count.
        mask: u64,
        /// What they must be.
        value: u64,
    },
    /// The low 32 bits are one of these.
    OneOf {
        /// Which argument, from zero.
        argument: u8,
        /// The values.
        values: Vec<u32>,
    },
    /// The low 32 bits are none of these.
    NoneOf {
        /// Which argument, from zero.
        argument: u8,
        /// The values.
        values: Vec<u32>,
    },
}

/// What happens to one system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// It is let through.
    Allow,
    /// It is reported, and let through by whoever it is reported to.
    Notify,
    /// It fails with this error number, without a notification.
    Errno(u16),
    /// It is let through if all conditions of one alternative hold.
    AllowIf {
        /// Alternatives of conditions.
        alternatives: Vec<Vec<Comparison>>,
        /// Error number otherwise.
        otherwise: u16,
    },
}

pub(super) const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// From here on numbers belong to the x32 interface, or to nothing.
pub(super) const X32: u32 = 0x4000_0000;
pub(super) const KILL: u32 = 0x8000_0000;
pub(super) const ERRNO: u32 = 0x0005_0000;
const NOTIFY: u32 = 0x7fc0_0000;
pub(super) const ALLOW: u32 = 0x7fff_0000;
const EPERM: u32 = linux_raw_sys::errno::EPERM;
pub(super) const ENOSYS: u32 = linux_raw_sys::errno::ENOSYS;

/// The same step for a filter without a listener.
pub(super) fn unreported(step: Instruction) -> Instruction {
    match (step.code, step.k) {
        (RETURN, NOTIFY) => Instruction {
            k: ERRNO | EPERM,
            ..step
        },
        _ => step,
    }
}

/// A leaf of the tree: return at once, or go to a block of checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaf {
    Return(u32),
    Check(u32),
}

/// Makes the program. `known` is how many system call numbers this build knows: higher ones
/// answer ENOSYS, so that programs fall back as on an older kernel.
pub fn compile(
    actions: &BTreeMap<u32, Action>,
    refusal: DefaultAction,
    known: u32,
) -> Vec<Instruction> {
    let refused = match refusal {
        DefaultAction::Notify => NOTIFY,
        DefaultAction::Errno => ERRNO | EPERM,
    };
    let mut checks = Vec::new();
    let mut starts = BTreeMap::new();
    for (number, action) in actions {
        if let Action::AllowIf {
            alternatives,
            otherwise,
        } = action
        {
            starts.insert(*number, checks.len());
            // A plain EPERM is a refusal like any other, and so is reported where that can be
            // had. Other errors are answers that programs expect and fall back from.
            let otherwise = match u32::from(*otherwise) {
                EPERM => refused,
                errno => ERRNO | errno,
            };
            emit_checks(alternatives, otherwise, &mut checks);
        }
    }
    program(&ranges(actions, refused, known), &starts, checks)
}

/// The program of ranges of numbers, and of the checks that some of them lead to: `starts` says
/// where among `checks` those of a number begin.
pub(super) fn program(
    ranges: &[(u32, Leaf)],
    starts: &BTreeMap<u32, usize>,
    checks: Vec<Instruction>,
) -> Vec<Instruction> {
    let mut tree = Vec::new();
    emit_tree(ranges, &mut tree);
    let mut program = vec![
        plain(LOAD_WORD, ARCHITECTURE),
        branch(JUMP_EQUAL, AUDIT_ARCH_X86_64, 1, 0),
        plain(RETURN, KILL),
        plain(LOAD_WORD, NUMBER),
    ];
    let base = program.len();
    let tree_length = tree.len();
    for (index, node) in tree.into_iter().enumerate() {
        program.push(match node {
            Node::Branch(instruction) => instruction,
            Node::Leaf(Leaf::Return(value)) => plain(RETURN, value),
            Node::Leaf(Leaf::Check(number)) => {
                let start = starts.get(&number).copied().unwrap_or_default();
                plain(JUMP, (tree_length - index - 1 + start) as u32)
            }
        });
    }
    debug_assert_eq!(program.len(), base + tree_length);
    program.extend(checks);
    program
}

/// First number of each range and its leaf, from zero to the end of all numbers.
fn ranges(actions: &BTreeMap<u32, Action>, refused: u32, known: u32) -> Vec<(u32, Leaf)> {
    let mut ranges: Vec<(u32, Leaf)> = Vec::new();
    let mut push = |first: u32, leaf: Leaf| {
        if ranges.last().is_none_or(|(_, last)| *last != leaf) {
            ranges.push((first, leaf));
        }
    };
    for number in 0..known {
        push(
            number,
            match actions.get(&number) {
                None => Leaf::Return(refused),
                Some(Action::Allow) => Leaf::Return(ALLOW),
                Some(Action::Notify) => Leaf::Return(NOTIFY),
                Some(Action::Errno(errno)) => Leaf::Return(ERRNO | u32::from(*errno)),
                Some(Action::AllowIf { .. }) => Leaf::Check(number),
            },
        );
    }
    push(known, Leaf::Return(ERRNO | ENOSYS));
    push(X32, Leaf::Return(KILL));
    // -1 is what a tracer sets to skip a call: the kernel answers ENOSYS.
    push(u32::MAX, Leaf::Return(ERRNO | ENOSYS));
    ranges
}

enum Node {
    Branch(Instruction),
    Leaf(Leaf),
}

fn emit_tree(ranges: &[(u32, Leaf)], out: &mut Vec<Node>) {
    if let [(_, leaf)] = ranges {
        out.push(Node::Leaf(*leaf));
        return;
    }
    let (left, right) = ranges.split_at(ranges.len() / 2);
    let first = right.first().map_or(0, |(first, _)| *first);
    // How far the branch jumps is known when what it jumps over is there.
    let place = out.len();
    out.push(Node::Branch(branch(JUMP_NOT_LESS, first, 0, 1)));
    emit_tree(left, out);
    let length = out.len() - place - 1;
    match (u8::try_from(length), out.get_mut(place)) {
        (Ok(distance), Some(node)) => {
            *node = Node::Branch(branch(JUMP_NOT_LESS, first, distance, 0));
        }
        // Conditional jumps reach 255 instructions; beyond that a plain jump takes over.
        _ => out.insert(place + 1, Node::Branch(plain(JUMP, length as u32))),
    }
    emit_tree(right, out);
}

fn emit_checks(alternatives: &[Vec<Comparison>], otherwise: u32, out: &mut Vec<Instruction>) {
    for alternative in alternatives {
        let mut block = Vec::new();
        // From the last condition to the first, so that the distance to the end is known.
        block.push(plain(RETURN, ALLOW));
        for comparison in alternative.iter().rev() {
            let mut condition = emit_comparison(comparison, block.len());
            condition.append(&mut block);
            block = condition;
        }
        out.extend(block);
    }
    out.push(plain(RETURN, otherwise));
}

/// Code that falls through when the condition holds and else jumps over `rest` further
/// instructions, to the next alternative.
fn emit_comparison(comparison: &Comparison, rest: usize) -> Vec<Instruction> {
    let over = |extra: usize| u8::try_from(rest + extra).unwrap_or(u8::MAX);
    match comparison {
        Comparison::MaskedEqual {
            argument,
            mask,
            value,
        } => {
            let mut code = Vec::new();
            let (mask_high, mask_low) = ((mask >> 32) as u32, *mask as u32);
            if mask_high != 0 {
                code.push(plain(LOAD_WORD, argument_high(*argument)));
                if mask_high != u32::MAX {
                    code.push(plain(AND, mask_high));
                }
                let remaining = if mask_low == u32::MAX { 2 } else { 3 };
                code.push(branch(JUMP_EQUAL, (value >> 32) as u32, 0, over(remaining)));
            }
            code.push(plain(LOAD_WORD, argument_low(*argument)));
            if mask_low != u32::MAX {
                code.push(plain(AND, mask_low));
            }
            code.push(branch(JUMP_EQUAL, *value as u32, 0, over(0)));
            code
        }
        Comparison::OneOf { argument, values } => {
            let mut code = vec![plain(LOAD_WORD, argument_low(*argument))];
            for (index, value) in values.iter().enumerate() {
                let left = values.len() - index - 1;
                let miss = if left == 0 { over(0) } else { 0 };
                let hit = u8::try_from(left).unwrap_or(u8::MAX);
                code.push(branch(JUMP_EQUAL, *value, hit, miss));
            }
            code
        }
        Comparison::NoneOf { argument, values } => {
            let mut code = vec![plain(LOAD_WORD, argument_low(*argument))];
            for (index, value) in values.iter().enumerate() {
                let left = values.len() - index - 1;
                code.push(branch(JUMP_EQUAL, *value, over(left), 0));
            }
            code
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::assemble::run;
    use super::*;

    const KNOWN: u32 = 470;

    fn verdict(program: &[Instruction], number: u32, args: [u64; 6]) -> u32 {
        run(program, number, AUDIT_ARCH_X86_64, args)
    }

    #[test]
    fn every_number_gets_the_verdict_of_its_rule() {
        // Many alternating ranges, so that the tree is deeper than a conditional jump reaches.
        let actions: BTreeMap<u32, Action> = (0..KNOWN)
            .filter(|number| number % 3 != 0)
            .map(|number| {
                let action = if number % 3 == 1 {
                    Action::Allow
                } else {
                    Action::Errno(13)
                };
                (number, action)
            })
            .collect();
        let program = compile(&actions, DefaultAction::Notify, KNOWN);
        for number in 0..KNOWN {
            let expected = match number % 3 {
                0 => NOTIFY,
                1 => ALLOW,
                _ => ERRNO | 13,
            };
            assert_eq!(verdict(&program, number, [0; 6]), expected, "{number}");
        }
    }

    #[test]
    fn foreign_interfaces_are_killed_and_unknown_numbers_are_enosys() {
        let actions = BTreeMap::from([(0, Action::Allow), (39, Action::Allow)]);
        let program = compile(&actions, DefaultAction::Notify, KNOWN);
        const AUDIT_ARCH_I386: u32 = 0x4000_0003;
        assert_eq!(run(&program, 39, AUDIT_ARCH_I386, [0; 6]), KILL);
        assert_eq!(verdict(&program, 39 | X32, [0; 6]), KILL);
        assert_eq!(verdict(&program, KNOWN, [0; 6]), ERRNO | ENOSYS);
        assert_eq!(verdict(&program, u32::MAX, [0; 6]), ERRNO | ENOSYS);
        assert_eq!(verdict(&program, 39, [0; 6]), ALLOW);
    }

    #[test]
    fn argument_rules_decide_by_all_bits_that_count() {
        let family = |value| Comparison::MaskedEqual {
            argument: 0,
            mask: 0xffff_ffff,
            value,
        };
        let actions = BTreeMap::from([
            (
                41,
                Action::AllowIf {
                    alternatives: vec![
                        vec![Comparison::OneOf {
                            argument: 0,
                            values: vec![1, 2, 10],
                        }],
                        vec![
                            family(16),
                            Comparison::OneOf {
                                argument: 2,
                                values: vec![0],
                            },
                        ],
                    ],
                    otherwise: 97,
                },
            ),
            (
                302,
                Action::AllowIf {
                    alternatives: vec![
                        vec![Comparison::NoneOf {
                            argument: 1,
                            values: vec![4, 5],
                        }],
                        vec![Comparison::MaskedEqual {
                            argument: 2,
                            mask: u64::MAX,
                            value: 0,
                        }],
                    ],
                    otherwise: 1,
                },
            ),
        ]);
        let program = compile(&actions, DefaultAction::Errno, KNOWN);
        let socket = |family, protocol| verdict(&program, 41, [family, 0, protocol, 0, 0, 0]);
        assert_eq!(socket(1, 9), ALLOW);
        assert_eq!(socket(10, 9), ALLOW);
        assert_eq!(socket(16, 0), ALLOW);
        assert_eq!(socket(16, 12), ERRNO | 97);
        assert_eq!(socket(40, 0), ERRNO | 97);
        let prlimit = |resource, limit| verdict(&program, 302, [0, resource, limit, 0, 0, 0]);
        assert_eq!(prlimit(7, 0xdead_0000_0000), ALLOW);
        assert_eq!(prlimit(4, 0), ALLOW);
        assert_eq!(prlimit(4, 0xdead_0000_0000), ERRNO | 1);
        assert_eq!(prlimit(5, 0x10), ERRNO | 1);
        assert_eq!(verdict(&program, 0, [0; 6]), ERRNO | EPERM);
    }
}
