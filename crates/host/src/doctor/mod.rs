//! The deep examination of a host, behind `ironcage doctor`: what can be enforced is tried,
//! and each thing that fails is explained with the command that fixes it.
//!
//! Trials happen in children that are thrown away; the only traces on the host are a cgroup and
//! a directory in the state directory, made and removed at once.

mod diagnosis;
mod examination;
mod place;
mod recommend;
mod trials;

pub(crate) use diagnosis::userns_failure_hint;
pub use examination::{Examination, Extra, Finding, needs_consent};
pub use place::Place;
pub use recommend::Recommendation;

use crate::{HostError, LEAST_KERNEL, quick};
use std::path::Path;

/// Examines this host, and whether changes of the current directory can be kept aside in the
/// state directory. `delivery` are the messages to nf_tables with which every connection of a cage
/// is led to its egress proxy. Takes some tens of milliseconds.
pub fn examine(state: &Path, delivery: &[u8]) -> Result<Examination, HostError> {
    let facts = quick::gather()?;
    let place = Place::here();
    let results = trials::run(&facts, state, delivery);
    Ok(Examination {
        findings: diagnosis::findings(&facts, place, &results),
        extras: diagnosis::extras(&results),
        recommendations: recommend::RECOMMENDATIONS.to_vec(),
        kernel: facts.release,
        least_kernel: LEAST_KERNEL.to_string(),
        place,
        privilege: facts.privilege,
        uid: facts.uid,
        can_report_denials: facts.seccomp_notify,
        landlock_abi: facts.landlock_abi,
        memory: facts.memory,
        cpus: facts.cpus,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::Layer;

    #[test]
    fn this_host_is_examined_layer_by_layer_in_order() {
        let examination = examine(&std::env::temp_dir(), &[]).unwrap();
        let layers: Vec<Layer> = examination.findings.iter().map(|one| one.layer).collect();
        assert_eq!(layers, Layer::ALL);
        assert!(
            examination
                .findings
                .iter()
                .all(|one| !one.evidence.is_empty())
        );
    }
}
