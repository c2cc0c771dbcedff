//! Detects the host's side-channel mitigations. Runs only if a policy asks for them.

use crate::quick::number;
use ironcage_sys::speculation::{Speculation, core_cookie, speculation};
use serde::Serialize;
use std::io;

/// How far one means goes here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "is", content = "why")]
pub enum Mitigation {
    /// A process can ask for it.
    There,
    /// It is so for every process, or the processor does not need it.
    NotNeeded(&'static str),
    /// It would be needed and cannot be had.
    Missing(&'static str),
}

/// What is there against side channels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SideChannelHost {
    /// Two agents on two threads of one core.
    pub core_scheduling: Mitigation,
    /// Loads that pass earlier stores.
    pub store_bypass: Mitigation,
    /// Indirect branches by what was learned elsewhere.
    pub indirect_branch: Mitigation,
}

impl SideChannelHost {
    /// Asks the kernel; changes nothing.
    pub fn examine() -> SideChannelHost {
        SideChannelHost {
            core_scheduling: core_scheduling(
                core_cookie(),
                number("/sys/devices/system/cpu/smt/active"),
            ),
            store_bypass: controlled(speculation(Speculation::StoreBypass)),
            indirect_branch: controlled(speculation(Speculation::IndirectBranch)),
        }
    }

    /// Each means with its name.
    pub fn each(&self) -> [(&'static str, &Mitigation); 3] {
        [
            ("core scheduling", &self.core_scheduling),
            ("store bypass control", &self.store_bypass),
            ("indirect branch control", &self.indirect_branch),
        ]
    }

    /// The required mitigations that are missing.
    pub fn missing(&self) -> Vec<String> {
        let each = self.each().into_iter();
        let missing = each.filter_map(|(name, means)| match means {
            Mitigation::Missing(why) => Some(format!("{name}: {why}")),
            Mitigation::There | Mitigation::NotNeeded(_) => None,
        });
        missing.collect()
    }
}

fn core_scheduling(answer: io::Result<u64>, threads: Option<u64>) -> Mitigation {
    const ENODEV: i32 = ironcage_sys::rustix::io::Errno::NODEV.raw_os_error();
    match (answer, threads) {
        (Ok(_), _) => Mitigation::There,
        (Err(error), _) if error.raw_os_error() == Some(ENODEV) => {
            Mitigation::NotNeeded("no core has more than one thread")
        }
        (Err(_), Some(0)) => Mitigation::NotNeeded("no core has more than one thread"),
        (Err(_), _) => Mitigation::Missing("the kernel was built without CONFIG_SCHED_CORE"),
    }
}

/// What the bits of PR_GET_SPECULATION_CTRL mean.
fn controlled(answer: io::Result<u32>) -> Mitigation {
    const BY_PROCESS: u32 = 1;
    const OFF: u32 = 4 | 8;
    match answer {
        Err(_) => Mitigation::Missing("not supported by the kernel"),
        Ok(0) => Mitigation::NotNeeded("the CPU is not affected"),
        Ok(bits) if bits & BY_PROCESS != 0 => Mitigation::There,
        Ok(bits) if bits & OFF != 0 => Mitigation::NotNeeded("already off for every process"),
        Ok(_) => Mitigation::Missing("on, and the kernel does not allow processes to turn it off"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(core: Mitigation, store: Mitigation, branch: Mitigation) -> SideChannelHost {
        SideChannelHost {
            core_scheduling: core,
            store_bypass: store,
            indirect_branch: branch,
        }
    }

    #[test]
    fn what_the_kernel_says_of_speculation_is_read_bit_by_bit() {
        assert!(matches!(controlled(Ok(0)), Mitigation::NotNeeded(_)));
        // By process, and on or off.
        assert_eq!(controlled(Ok(1 | 2)), Mitigation::There);
        assert_eq!(controlled(Ok(1 | 4)), Mitigation::There);
        assert!(matches!(controlled(Ok(4)), Mitigation::NotNeeded(_)));
        assert!(matches!(controlled(Ok(8)), Mitigation::NotNeeded(_)));
        // On, and nobody can change it: that is a host on which hardened does not start.
        assert!(matches!(controlled(Ok(2)), Mitigation::Missing(_)));
        assert!(matches!(
            controlled(Err(io::Error::from_raw_os_error(22))),
            Mitigation::Missing(_)
        ));
    }

    #[test]
    fn core_scheduling_is_needed_only_where_cores_have_threads() {
        let wrong = |errno| Err(io::Error::from_raw_os_error(errno));
        assert_eq!(core_scheduling(Ok(0), Some(1)), Mitigation::There);
        assert!(matches!(
            core_scheduling(wrong(19), None),
            Mitigation::NotNeeded(_)
        ));
        assert!(matches!(
            core_scheduling(wrong(22), Some(0)),
            Mitigation::NotNeeded(_)
        ));
        assert!(matches!(
            core_scheduling(wrong(22), Some(1)),
            Mitigation::Missing(_)
        ));
        // Unknown is not taken for no.
        assert!(matches!(
            core_scheduling(wrong(22), None),
            Mitigation::Missing(_)
        ));
    }

    #[test]
    fn one_missing_means_is_named() {
        let fine = host(
            Mitigation::There,
            Mitigation::NotNeeded("x"),
            Mitigation::There,
        );
        assert!(fine.missing().is_empty());
        let bad = host(
            Mitigation::There,
            Mitigation::Missing("why"),
            Mitigation::There,
        );
        assert_eq!(bad.missing(), ["store bypass control: why"]);
    }
}
