//! Means against side channels: cores of its own, core scheduling, speculation controls.
//!
//! The plan was made on a host that has them; what fails here all the same stops the start.

use crate::error::{Doing, LayerError};
use ironcage_model::Layer;
use ironcage_plan::Hardening;
use ironcage_sys::rustix::thread::{CpuSet, sched_setaffinity};
use ironcage_sys::speculation::{Speculation, speculation, stop_speculation, take_core_cookie};

/// Applies them to the calling process and what it forks, for good as far as the system call
/// filter keeps the processors.
pub fn harden(hardening: &Hardening) -> Result<(), LayerError> {
    let mut own = CpuSet::new();
    for processor in &hardening.processors {
        own.set(*processor as usize);
    }
    sched_setaffinity(None, &own).doing(Layer::Cpu, || "pin to CPUs of its own".into())?;
    if !hardening.speculation {
        return Ok(());
    }
    for kind in [Speculation::StoreBypass, Speculation::IndirectBranch] {
        const BY_PROCESS: u32 = 1;
        let doing = || format!("control {kind:?}");
        // Where no process can control it, it is off or not there: else the plan was refused.
        if speculation(kind).doing(Layer::Cpu, doing)? & BY_PROCESS != 0 {
            stop_speculation(kind).doing(Layer::Cpu, doing)?;
        }
    }
    const ENODEV: i32 = ironcage_sys::rustix::io::Errno::NODEV.raw_os_error();
    const EINVAL: i32 = ironcage_sys::rustix::io::Errno::INVAL.raw_os_error();
    match take_core_cookie() {
        // No core has two threads, or the kernel cannot and the plan found no need.
        Err(error) if matches!(error.raw_os_error(), Some(ENODEV | EINVAL)) => Ok(()),
        other => other.doing(Layer::Cpu, || "take a core scheduling cookie".into()),
    }
}
