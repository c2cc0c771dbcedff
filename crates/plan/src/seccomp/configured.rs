//! A filter that somebody else wrote: rules of any action and comparison, as the configuration of an
//! OCI container has them.

use super::Instruction;
use super::assemble::{
    AND, JUMP_EQUAL, JUMP_GREATER, JUMP_NOT_LESS, LOAD_WORD, RETURN, argument_high, argument_low,
    branch, plain,
};
use super::compile::{ENOSYS, ERRNO, KILL, Leaf, X32, program};
use crate::filter::KNOWN;
use std::collections::BTreeMap;

/// What a filter answers, as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Verdict(u32);

impl Verdict {
    /// Let through.
    pub const ALLOW: Verdict = Verdict(0x7fff_0000);
    /// Let through, and written to the kernel's log.
    pub const LOG: Verdict = Verdict(0x7ffc_0000);
    /// The thread is killed.
    pub const KILL_THREAD: Verdict = Verdict(0);
    /// The process is killed.
    pub const KILL_PROCESS: Verdict = Verdict(KILL);
    /// The process gets SIGSYS.
    pub const TRAP: Verdict = Verdict(0x0003_0000);

    /// The call fails.
    pub const fn errno(number: u16) -> Verdict {
        Verdict(ERRNO | number as u32)
    }

    /// A tracer is asked; without one the call fails with ENOSYS.
    pub const fn trace(data: u16) -> Verdict {
        Verdict(0x7ff0_0000 | data as u32)
    }

    /// How far down the kernel's own order it is: of two filters the lower answer counts.
    fn leniency(self) -> i64 {
        i64::from(self.0.cast_signed())
    }
}

/// How an argument is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// It is another value.
    NotEqual,
    /// It is below the value.
    Less,
    /// It is the value or below it.
    LessOrEqual,
    /// It is the value.
    Equal,
    /// It is the value or above it.
    GreaterOrEqual,
    /// It is above the value.
    Greater,
    /// Masked by the value, it is the second value.
    MaskedEqual,
}

/// A condition on one argument, with all its 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    /// Which argument, from zero.
    pub argument: u8,
    /// How.
    pub operator: Operator,
    /// With what.
    pub value: u64,
    /// Only of `MaskedEqual`.
    pub second: u64,
}

/// What happens to a system call where all conditions hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The system call.
    pub number: u32,
    /// All of these hold.
    pub conditions: Vec<Condition>,
    /// The answer then.
    pub verdict: Verdict,
}

/// Makes the program. Rules of a call with conditions are asked in their order, then the one without;
/// of several without, the strictest counts.
pub fn compile(rules: &[Rule], default: Verdict) -> Vec<Instruction> {
    let mut by_number: BTreeMap<u32, (Vec<&Rule>, Option<Verdict>)> = BTreeMap::new();
    for rule in rules.iter().filter(|rule| rule.number < KNOWN) {
        let (conditional, plain) = by_number.entry(rule.number).or_default();
        if rule.conditions.is_empty() {
            let strictest = |known: Verdict| match known.leniency() <= rule.verdict.leniency() {
                true => known,
                false => rule.verdict,
            };
            *plain = Some(plain.map_or(rule.verdict, strictest));
        } else {
            conditional.push(rule);
        }
    }
    let mut checks = Vec::new();
    let mut starts = BTreeMap::new();
    let mut ranges: Vec<(u32, Leaf)> = Vec::new();
    let mut push = |first: u32, leaf: Leaf| {
        if ranges.last().is_none_or(|(_, last)| *last != leaf) {
            ranges.push((first, leaf));
        }
    };
    for number in 0..KNOWN {
        let (conditional, otherwise) = match by_number.get(&number) {
            None => (&[] as &[&Rule], default),
            Some((conditional, plain)) => (&conditional[..], plain.unwrap_or(default)),
        };
        if conditional.is_empty() {
            push(number, Leaf::Return(otherwise.0));
            continue;
        }
        starts.insert(number, checks.len());
        for rule in conditional {
            emit_rule(rule, &mut checks);
        }
        checks.push(plain(RETURN, otherwise.0));
        push(number, Leaf::Check(number));
    }
    // Numbers that nobody had a name for: programs fall back from ENOSYS, as on an older kernel.
    push(
        KNOWN,
        Leaf::Return(match default.leniency() >= Verdict::LOG.leniency() {
            true => default.0,
            false => ERRNO | ENOSYS,
        }),
    );
    push(X32, Leaf::Return(KILL));
    push(u32::MAX, Leaf::Return(ERRNO | ENOSYS));
    program(&ranges, &starts, checks)
}

fn emit_rule(rule: &Rule, out: &mut Vec<Instruction>) {
    let mut block = vec![plain(RETURN, rule.verdict.0)];
    for condition in rule.conditions.iter().rev() {
        let mut code = emit(condition, block.len());
        code.append(&mut block);
        block = code;
    }
    out.extend(block);
}

/// Code that falls through when the condition holds and else jumps over `rest` further instructions.
/// A call has six arguments, and so no more conditions than a conditional jump reaches over.
fn emit(condition: &Condition, rest: usize) -> Vec<Instruction> {
    let over = |extra: usize| u8::try_from(rest + extra).unwrap_or(u8::MAX);
    let (high, low) = ((condition.value >> 32) as u32, condition.value as u32);
    let load_high = plain(LOAD_WORD, argument_high(condition.argument));
    let load_low = plain(LOAD_WORD, argument_low(condition.argument));
    match condition.operator {
        Operator::Equal => vec![
            load_high,
            branch(JUMP_EQUAL, high, 0, over(2)),
            load_low,
            branch(JUMP_EQUAL, low, 0, over(0)),
        ],
        Operator::NotEqual => vec![
            load_high,
            branch(JUMP_EQUAL, high, 0, 2),
            load_low,
            branch(JUMP_EQUAL, low, over(0), 0),
        ],
        Operator::Greater | Operator::GreaterOrEqual => {
            let last = match condition.operator {
                Operator::Greater => JUMP_GREATER,
                _ => JUMP_NOT_LESS,
            };
            vec![
                load_high,
                branch(JUMP_GREATER, high, 3, 0),
                branch(JUMP_EQUAL, high, 0, over(2)),
                load_low,
                branch(last, low, 0, over(0)),
            ]
        }
        Operator::Less | Operator::LessOrEqual => {
            let last = match condition.operator {
                Operator::Less => JUMP_NOT_LESS,
                _ => JUMP_GREATER,
            };
            vec![
                load_high,
                branch(JUMP_GREATER, high, over(3), 0),
                branch(JUMP_EQUAL, high, 0, 2),
                load_low,
                branch(last, low, over(0), 0),
            ]
        }
        Operator::MaskedEqual => vec![
            load_high,
            plain(AND, high),
            branch(JUMP_EQUAL, (condition.second >> 32) as u32, 0, over(3)),
            load_low,
            plain(AND, low),
            branch(JUMP_EQUAL, condition.second as u32, 0, over(0)),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::super::assemble::run;
    use super::super::compile::AUDIT_ARCH_X86_64;
    use super::*;

    fn answer(program: &[Instruction], number: u32, first: u64) -> u32 {
        run(program, number, AUDIT_ARCH_X86_64, [first, 0, 7, 0, 0, 0])
    }

    #[test]
    fn every_operator_decides_as_its_name_says_by_all_64_bits() {
        let values = [
            0,
            1,
            5,
            6,
            u64::from(u32::MAX),
            1 << 32,
            (5 << 32) | 6,
            u64::MAX,
        ];
        type Holds = fn(u64, u64) -> bool;
        let operators: [(Operator, Holds); 7] = [
            (Operator::NotEqual, |a, b| a != b),
            (Operator::Less, |a, b| a < b),
            (Operator::LessOrEqual, |a, b| a <= b),
            (Operator::Equal, |a, b| a == b),
            (Operator::GreaterOrEqual, |a, b| a >= b),
            (Operator::Greater, |a, b| a > b),
            (Operator::MaskedEqual, |a, b| a & b == 4),
        ];
        for (operator, holds) in operators {
            for value in values {
                let condition = |argument, operator, value| Condition {
                    argument,
                    operator,
                    value,
                    second: 4,
                };
                // A second condition behind it, so that jumps are over more than one block.
                let conditions = vec![
                    condition(0, operator, value),
                    condition(2, Operator::Equal, 7),
                ];
                let rule = Rule {
                    number: 9,
                    conditions,
                    verdict: Verdict::ALLOW,
                };
                let program = compile(&[rule], Verdict::errno(1));
                for argument in values {
                    let expected = match holds(argument, value) {
                        true => Verdict::ALLOW,
                        false => Verdict::errno(1),
                    };
                    let found = answer(&program, 9, argument);
                    assert_eq!(found, expected.0, "{argument:#x} {operator:?} {value:#x}");
                }
            }
        }
    }

    #[test]
    fn the_strictest_of_plain_rules_counts_and_conditions_come_first() {
        let rule = |number, verdict| Rule {
            number,
            conditions: Vec::new(),
            verdict,
        };
        let zero = Condition {
            argument: 0,
            operator: Operator::Equal,
            value: 0,
            second: 0,
        };
        let rules = [
            rule(3, Verdict::ALLOW),
            rule(3, Verdict::KILL_PROCESS),
            rule(4, Verdict::errno(38)),
            Rule {
                number: 4,
                conditions: vec![zero],
                verdict: Verdict::ALLOW,
            },
        ];
        let program = compile(&rules, Verdict::errno(1));
        assert_eq!(answer(&program, 3, 0), Verdict::KILL_PROCESS.0);
        assert_eq!(answer(&program, 4, 0), Verdict::ALLOW.0);
        assert_eq!(answer(&program, 4, 1), Verdict::errno(38).0);
        assert_eq!(answer(&program, 5, 1), Verdict::errno(1).0);
        assert_eq!(answer(&program, 469 + 1, 1), ERRNO | ENOSYS);
        assert_eq!(answer(&program, X32 | 3, 1), KILL);
        let open = compile(&rules, Verdict::ALLOW);
        assert_eq!(answer(&open, 470, 1), Verdict::ALLOW.0);
    }
}
