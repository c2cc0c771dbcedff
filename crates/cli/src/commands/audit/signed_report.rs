//! An audit report with the signed heads of its logs, as a file.

use crate::error::CliError;
use ironcage_audit::{AuditKey, Digest, PublicKey, SignedHead, Statement};
use ironcage_files::{Links, read_text};
use ironcage_report::evidence::EvidenceReport;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A report of the largest period that anybody signs.
const LARGEST: u64 = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SignedReport {
    report: serde_json::Value,
    /// The signed text: the digest of `report`, and a head for each log.
    heads: String,
    /// Ed25519, in hexadecimal. Whoever verifies takes the key from elsewhere, not from here.
    pub(super) key: String,
    signature: String,
}

/// SHA-256 of the report as compact JSON.
fn digest(report: &serde_json::Value) -> Digest {
    Digest::of(report.to_string().as_bytes())
}

impl SignedReport {
    pub(super) fn sign(
        report: &EvidenceReport,
        time: u64,
        heads: Vec<SignedHead>,
        key: &AuditKey,
    ) -> Result<Self, CliError> {
        let report = serde_json::to_value(report).map_err(CliError::new)?;
        let statement = Statement {
            time,
            report: digest(&report),
            heads,
        };
        let heads = statement.to_string();
        Ok(SignedReport {
            signature: key.sign(&heads),
            key: key.public().to_string(),
            report,
            heads,
        })
    }

    pub(super) fn read(path: &Path) -> Result<Self, CliError> {
        let text = read_text(path, LARGEST, Links::Follow)
            .map_err(|error| CliError::from_error(&error))?;
        serde_json::from_str(&text).map_err(|error| {
            CliError::new(format!(
                "cannot read the report {}: {error}",
                ironcage_model::Printable::new(path)
            ))
            .hint("`ironcage audit report --framework NAME -o FILE` writes one")
        })
    }

    /// The heads, if this key signed them and they belong to this report.
    pub(super) fn check(&self, key: &PublicKey) -> Result<Statement, CliError> {
        let failed = |error: &ironcage_audit::SignError| CliError::from_error(error);
        key.check(&self.heads, &self.signature)
            .map_err(|error| failed(&error))?;
        let statement: Statement = self.heads.parse().map_err(|error| failed(&error))?;
        match statement.report == digest(&self.report) {
            true => Ok(statement),
            false => Err(CliError::new(
                "the report was changed: its digest is not the signed one",
            )),
        }
    }
}
