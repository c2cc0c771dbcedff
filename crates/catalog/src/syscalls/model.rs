//! One entry of a list of system calls.

use serde::Serialize;

/// A condition on one argument of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// All 64 bits of the argument, masked, are this value.
    MaskedEq {
        /// Which argument, from zero.
        arg: u8,
        /// The bits that count.
        mask: u64,
        value: u64,
    },
    /// The low 32 bits of the argument are one of these.
    OneOf {
        /// Which argument, from zero.
        arg: u8,
        /// In ascending order.
        values: &'static [u32],
    },
    /// The low 32 bits of the argument are none of these.
    NotOneOf {
        /// Which argument, from zero.
        arg: u8,
        /// In ascending order.
        values: &'static [u32],
    },
}

impl Condition {
    /// Whether it holds for these arguments.
    pub fn holds(&self, arguments: &[u64; 6]) -> bool {
        let argument = |arg: u8| arguments.get(usize::from(arg)).copied().unwrap_or(0);
        // The kernel reads an `int` argument from the low half of the register.
        let low = |arg: u8| (argument(arg) & u64::from(u32::MAX)) as u32;
        match self {
            Condition::MaskedEq { arg, mask, value } => argument(*arg) & mask == *value,
            Condition::OneOf { arg, values } => values.contains(&low(*arg)),
            Condition::NotOneOf { arg, values } => !values.contains(&low(*arg)),
        }
    }
}

/// What happens on a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyscallAction {
    /// It is carried out.
    Allow,
    /// It fails with this error number, without a record.
    Errno(u16),
    /// It is carried out where one of the alternatives holds.
    AllowIf {
        /// Any of these lists, of which all conditions hold.
        alternatives: &'static [&'static [Condition]],
        /// The error number where none holds.
        else_errno: u16,
    },
}

impl SyscallAction {
    /// Whether a call with these arguments is carried out.
    pub fn allows(&self, arguments: &[u64; 6]) -> bool {
        match self {
            SyscallAction::Allow => true,
            SyscallAction::Errno(_) => false,
            SyscallAction::AllowIf { alternatives, .. } => alternatives.iter().any(|conditions| {
                conditions
                    .iter()
                    .all(|condition| condition.holds(arguments))
            }),
        }
    }
}

/// One system call in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SyscallRule {
    pub name: &'static str,
    /// Its number on x86_64.
    pub number: u32,
    /// Who needs it, or what it would open.
    pub why: &'static str,
    /// What happens on it.
    pub action: SyscallAction,
}

/// A list or a group of system calls, ordered by number. What is not in it is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SyscallList {
    pub name: &'static str,
    pub about: &'static str,
    /// One rule for each number, in ascending order.
    pub rules: &'static [SyscallRule],
}

impl SyscallList {
    /// The rule for a system call, by name.
    pub fn rule(&self, name: &str) -> Option<&'static SyscallRule> {
        self.rules.iter().find(|rule| rule.name == name)
    }
}
