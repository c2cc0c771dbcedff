//! The taint that a scope brings to its cage: private data, untrusted content, and ways out.
//!
//! It is decided in the scope's own supervisor, by what the cage had when it was asked for; here it
//! is looked at once more by what it has when the scope is made.

use super::leases::ScopeLease;
use super::link::ScopeTaint;
use crate::RunError;
use crate::supervise::Supervision;
use crate::taint::is_way_out;
use ironcage_model::{Approver, LeaseOrigin, LeaseReason, Reason, Taint};
use std::time::Instant;

impl ScopeTaint {
    /// What the leases of a scope bring.
    pub(super) fn of(leases: &[ScopeLease]) -> ScopeTaint {
        let taints = leases.iter().map(ScopeLease::brings);
        let mut brings = leases.iter().filter(|lease| !lease.brings().is_none());
        ScopeTaint {
            taint: taints.fold(Taint::NONE, Taint::with),
            by: brings
                .next()
                .map(|lease| lease.lease().resource.to_string())
                .unwrap_or_default(),
            leads_out: leases.iter().any(|lease| is_way_out(lease.lease())),
            writes: leases.iter().filter_map(ScopeLease::written_path).collect(),
            wished: leases.iter().map(ScopeLease::lease).all(|lease| {
                lease.origin == LeaseOrigin::Operator || lease.approver == Approver::Operator
            }),
        }
    }
}

impl Supervision<'_> {
    /// Why a scope is not made that brings this, if it is not; else the cage has it from now on.
    pub(super) fn against_taint_of_scope(
        &mut self,
        brings: &ScopeTaint,
        now: Instant,
    ) -> Result<Option<Reason>, RunError> {
        if brings.leads_out
            && self.plan.asks_where_both_meet()
            && self.tainted(now)?.with(brings.taint).meets()
        {
            // LeaseDecision before something else brought the rest.
            return Ok(Some(LeaseReason::TaintChanged.into()));
        }
        if !brings.wished
            && let Some(reason) = self.against_meeting(brings.taint, now)?
        {
            return Ok(Some(reason.into()));
        }
        let because = format!("a scope of it was leased {}", brings.by);
        self.take_on(brings.taint, &because, now)?;
        Ok(None)
    }
}
