//! The findings of the examination, as data: for a table, for JSON, for an exit status.

use super::{Place, Recommendation};
use crate::Privilege;
use ironcage_model::{Enforcement, Layer};
use serde::Serialize;

/// One layer as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub layer: Layer,
    /// How far it holds here.
    #[serde(flatten)]
    pub enforcement: Enforcement,
    /// What was seen that says so.
    pub evidence: String,
    /// The command or change that mends it, where something can be mended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Something beside the layers that some cages need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Extra {
    pub name: &'static str,
    pub works: bool,
    pub evidence: String,
}

/// What this host can enforce, tried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Examination {
    /// The kernel's name for itself.
    pub kernel: String,
    /// The least kernel that Ironcage runs on.
    pub least_kernel: String,
    /// In what kind of place this is.
    pub place: Place,
    /// With which power Ironcage runs.
    pub privilege: Privilege,
    pub uid: u32,
    /// Landlock's version.
    pub landlock_abi: u32,
    /// Whether denied system calls can be reported to a supervisor.
    pub can_report_denials: bool,
    /// Memory in bytes.
    pub memory: u64,
    /// Processors.
    pub cpus: u32,
    /// One finding for every layer, in the order of `Layer::ALL`.
    pub findings: Vec<Finding>,
    /// Beside the layers.
    pub extras: Vec<Extra>,
    /// Which backend for which risk.
    pub recommendations: Vec<Recommendation>,
}

/// Why a required layer keeps a cage from starting without `--allow-degraded`, if it does: it is
/// off, or it is a filter whose denials cannot be reported.
pub fn needs_consent(
    layer: Layer,
    enforcement: &Enforcement,
    can_report_denials: bool,
) -> Option<&str> {
    match (layer, enforcement) {
        (_, Enforcement::Off(why)) => Some(why),
        (Layer::Seccomp, Enforcement::Partial(how)) if !can_report_denials => Some(how),
        _ => None,
    }
}

impl Examination {
    /// Findings of required layers that are off, or that hold so little that a start needs
    /// `--allow-degraded`: with any of these a cage does not start.
    pub fn missing(&self, required: &[Layer]) -> Vec<&Finding> {
        self.findings
            .iter()
            .filter(|finding| required.contains(&finding.layer))
            .filter(|finding| {
                let can_report = self.can_report_denials;
                needs_consent(finding.layer, &finding.enforcement, can_report).is_some()
            })
            .collect()
    }
}
