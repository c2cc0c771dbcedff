//! What the examination finds, as data: for a table, for JSON, for an exit status.

use super::{Place, Recommendation};
use crate::Privilege;
use ironcage_model::{Enforcement, Layer};
use serde::Serialize;

/// One layer as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The layer.
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
    /// What.
    pub name: &'static str,
    /// Whether it works here.
    pub works: bool,
    /// What was seen.
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
    /// The user.
    pub uid: u32,
    /// Landlock's version.
    pub landlock_abi: u32,
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

impl Examination {
    /// Findings of required layers that are off: with any of these a cage does not start.
    pub fn missing(&self, required: &[Layer]) -> Vec<&Finding> {
        self.findings
            .iter()
            .filter(|finding| required.contains(&finding.layer))
            .filter(|finding| matches!(finding.enforcement, Enforcement::Off(_)))
            .collect()
    }
}
