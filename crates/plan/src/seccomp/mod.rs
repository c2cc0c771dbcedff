//! The system call filter: rules with their reasons, and the program made of them.
//!
//! The compiler is our own because every rule keeps its reason up to `ironcage plan`, and
//! because refusals are to be reported by user notification.

mod assemble;
mod compile;
pub mod configured;

#[cfg(test)]
pub(crate) use assemble::run;
pub use compile::{Action, Comparison, compile};

use ironcage_policy::syscalls::SyscallAction;
use serde::{Deserialize, Serialize};

/// One instruction of the program, as the kernel takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Jump if true.
    pub jt: u8,
    /// Jump if false.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

impl Instruction {
    /// As the kernel has it: a `struct sock_filter` of a little-endian machine.
    pub fn bytes(&self) -> [u8; 8] {
        let ([a, b], [c, d, e, f]) = (self.code.to_le_bytes(), self.k.to_le_bytes());
        [a, b, self.jt, self.jf, c, d, e, f]
    }
}

/// One system call that the filter knows, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FilterRule {
    /// Its name.
    pub syscall: &'static str,
    /// Its number.
    pub number: u32,
    /// What happens, in words: `allow`, `allow if ...`, `ENOSYS`.
    pub verdict: String,
    /// Who needs it, or why it is refused.
    pub why: &'static str,
    /// The list or group that it comes from.
    pub origin: String,
}

/// What happens to a system call that no rule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DefaultAction {
    /// It is reported to the supervisor, which answers EPERM.
    Notify,
    /// EPERM, unseen.
    Errno,
}

/// The filter of a cage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Filter {
    /// The list that it is made of.
    pub list: &'static str,
    /// Groups on top of it.
    pub groups: Vec<&'static str>,
    /// Whether the set of processors cannot be changed, because it is what holds a limit.
    pub processors_fixed: bool,
    /// Whether processes, network and IPC are shared with the host, so that the filter has to
    /// keep them apart.
    pub shared: bool,
    /// Whether files may be leased to the running cage, so that nothing of a file may outlive
    /// its mount.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub leased: bool,
    /// System calls that are reported and then carried out, because the run is observed: only
    /// those that the filter lets through by their number alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub observed: Vec<u32>,
    /// Whether `connect` to an Internet address is reported and then carried out, so that a
    /// connection which fails in the cage can be explained.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub connects: bool,
    /// What happens to the rest.
    pub refusal: DefaultAction,
    /// Whether execve is refused after the first.
    pub one_exec: bool,
    /// The program.
    #[serde(skip)]
    pub program: Vec<Instruction>,
}

impl Filter {
    /// The rules in words, in the order of system call numbers: for people, not on the way
    /// to a cage.
    pub fn rules(&self) -> Vec<FilterRule> {
        crate::filter::describe(self)
    }

    /// What happens on each system call that the filter names, for a filter that another program
    /// makes; all others are refused.
    pub fn actions(&self) -> Vec<(&'static str, SyscallAction)> {
        crate::filter::actions(self)
    }

    /// The program for a kernel that nobody listens to, as bytes: what would be reported is denied
    /// with EPERM by itself.
    pub fn unreported(&self) -> Vec<u8> {
        let program = self.program.iter();
        program
            .flat_map(|step| compile::unreported(*step).bytes())
            .collect()
    }

    /// The same with one group of system calls more, for a scope that has it as a lease; `None`
    /// where there is no such group.
    pub fn with_group(&self, name: &str) -> Option<Filter> {
        crate::filter::with_group(self, name)
    }
}
