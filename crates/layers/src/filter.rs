//! Seccomp: installs the plan's filter.

use crate::error::{Doing, LayerError};
use ironcage_model::Layer;
use ironcage_plan::seccomp::{DefaultAction, Filter, Instruction};
use ironcage_sys::seccomp;
use std::os::fd::OwnedFd;

/// A filter program, ready to be installed.
#[derive(Debug)]
pub struct Prepared {
    program: Vec<seccomp::Instruction>,
    refusal: DefaultAction,
}

impl Prepared {
    /// Takes the program over from the plan.
    pub fn new(filter: &Filter) -> Self {
        Prepared {
            program: for_kernel(&filter.program),
            refusal: filter.refusal,
        }
    }

    /// Installs it on the calling process, for good. Returns where refusals are reported.
    pub fn install(&self) -> Result<Option<OwnedFd>, LayerError> {
        let doing = || "install the system call filter".into();
        match self.refusal {
            DefaultAction::Notify => seccomp::install_with_listener(&self.program)
                .map(Some)
                .doing(Layer::Seccomp, doing),
            DefaultAction::Errno => seccomp::install_plain(&self.program)
                .map(|()| None)
                .doing(Layer::Seccomp, doing),
        }
    }
}

/// Installs a program of which nobody is told denials, for good: of a process of Ironcage's own, or
/// of a container that another engine runs.
pub fn install_own(program: &[Instruction]) -> Result<(), LayerError> {
    seccomp::install_plain(&for_kernel(program))
        .doing(Layer::Seccomp, || "install the system call filter".into())
}

fn for_kernel(program: &[Instruction]) -> Vec<seccomp::Instruction> {
    let instruction = |i: &Instruction| seccomp::Instruction {
        code: i.code,
        jt: i.jt,
        jf: i.jf,
        k: i.k,
    };
    program.iter().map(instruction).collect()
}
