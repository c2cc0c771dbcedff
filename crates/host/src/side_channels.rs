//! What this host has against side channels. Looked at only where it is asked for.

use crate::quick::number;
use ironcage_sys::speculation::{Speculation, core_cookie, speculation};
use serde::Serialize;
use std::io;

/// How far one means goes here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "is", content = "why")]
pub enum Means {
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
    pub core_scheduling: Means,
    /// Loads that pass earlier stores.
    pub store_bypass: Means,
    /// Indirect branches by what was learned elsewhere.
    pub indirect_branch: Means,
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
    pub fn each(&self) -> [(&'static str, &Means); 3] {
        [
            ("core scheduling", &self.core_scheduling),
            ("control of store bypass", &self.store_bypass),
            ("control of indirect branches", &self.indirect_branch),
        ]
    }

    /// What would be needed and is not there.
    pub fn missing(&self) -> Vec<String> {
        let each = self.each().into_iter();
        let missing = each.filter_map(|(name, means)| match means {
            Means::Missing(why) => Some(format!("{name}: {why}")),
            Means::There | Means::NotNeeded(_) => None,
        });
        missing.collect()
    }
}

fn core_scheduling(answer: io::Result<u64>, threads: Option<u64>) -> Means {
    const ENODEV: i32 = 19;
    match (answer, threads) {
        (Ok(_), _) => Means::There,
        (Err(error), _) if error.raw_os_error() == Some(ENODEV) => {
            Means::NotNeeded("no core has more than one thread")
        }
        (Err(_), Some(0)) => Means::NotNeeded("no core has more than one thread"),
        (Err(_), _) => Means::Missing("the kernel was built without CONFIG_SCHED_CORE"),
    }
}

/// What the bits of PR_GET_SPECULATION_CTRL mean.
fn controlled(answer: io::Result<u32>) -> Means {
    const BY_PROCESS: u32 = 1;
    const OFF: u32 = 4 | 8;
    match answer {
        Err(_) => Means::Missing("the kernel does not know it"),
        Ok(0) => Means::NotNeeded("the processor is not affected"),
        Ok(bits) if bits & BY_PROCESS != 0 => Means::There,
        Ok(bits) if bits & OFF != 0 => Means::NotNeeded("it is off for every process"),
        Ok(_) => Means::Missing("it is on, and the kernel lets no process switch it off"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(core: Means, store: Means, branch: Means) -> SideChannelHost {
        SideChannelHost {
            core_scheduling: core,
            store_bypass: store,
            indirect_branch: branch,
        }
    }

    #[test]
    fn what_the_kernel_says_of_speculation_is_read_bit_by_bit() {
        assert!(matches!(controlled(Ok(0)), Means::NotNeeded(_)));
        // By process, and on or off.
        assert_eq!(controlled(Ok(1 | 2)), Means::There);
        assert_eq!(controlled(Ok(1 | 4)), Means::There);
        assert!(matches!(controlled(Ok(4)), Means::NotNeeded(_)));
        assert!(matches!(controlled(Ok(8)), Means::NotNeeded(_)));
        // On, and nobody can change it: that is a host on which hardened does not start.
        assert!(matches!(controlled(Ok(2)), Means::Missing(_)));
        assert!(matches!(
            controlled(Err(io::Error::from_raw_os_error(22))),
            Means::Missing(_)
        ));
    }

    #[test]
    fn core_scheduling_is_needed_only_where_cores_have_threads() {
        let wrong = |errno| Err(io::Error::from_raw_os_error(errno));
        assert_eq!(core_scheduling(Ok(0), Some(1)), Means::There);
        assert!(matches!(
            core_scheduling(wrong(19), None),
            Means::NotNeeded(_)
        ));
        assert!(matches!(
            core_scheduling(wrong(22), Some(0)),
            Means::NotNeeded(_)
        ));
        assert!(matches!(
            core_scheduling(wrong(22), Some(1)),
            Means::Missing(_)
        ));
        // Unknown is not taken for no.
        assert!(matches!(
            core_scheduling(wrong(22), None),
            Means::Missing(_)
        ));
    }

    #[test]
    fn one_missing_means_is_named() {
        let fine = host(Means::There, Means::NotNeeded("x"), Means::There);
        assert!(fine.missing().is_empty());
        let bad = host(Means::There, Means::Missing("why"), Means::There);
        assert_eq!(bad.missing(), ["control of store bypass: why"]);
    }
}
