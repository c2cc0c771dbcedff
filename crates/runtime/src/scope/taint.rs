//! What a scope brings to its cage: private data, untrusted content, and ways out.
//!
//! It is decided in the scope's own supervisor, by what the cage had when it was asked for; here it
//! is looked at once more by what it has when the scope is made.

use super::link::{Brings, Word};
use super::{Scopes, leases::Wish};
use crate::RunError;

use crate::supervise::Supervision;
use crate::taint::is_way_out;
use ironcage_model::{Approver, LeaseOrigin, Taint};
use std::time::Instant;

impl Brings {
    /// What the leases of a scope bring.
    pub(super) fn of(wishes: &[Wish]) -> Brings {
        let taints = wishes.iter().map(|wish| wish.brings);
        let mut brings = wishes.iter().filter(|wish| !wish.brings.is_none());
        Brings {
            taint: taints.fold(Taint::NONE, Taint::with),
            by: brings
                .next()
                .map(|wish| wish.lease.resource.to_string())
                .unwrap_or_default(),
            leads_out: wishes.iter().any(|wish| is_way_out(&wish.lease)),
            wished: wishes.iter().all(|wish| {
                wish.lease.origin == LeaseOrigin::Operator
                    || wish.lease.approver == Approver::Operator
            }),
        }
    }
}

impl Scopes {
    /// The number of a scope by which something could leave, and which no person allowed that.
    pub(crate) fn way_out(&self) -> Option<u32> {
        let mut scopes = self.running.iter();
        let found = scopes.find(|scope| scope.leads_out && !scope.over);
        found.map(|scope| scope.number)
    }

    /// Asks those to end.
    pub(crate) fn end_ways_out(&self) {
        for scope in self.running.iter().filter(|scope| scope.leads_out) {
            // One that is gone has ended.
            let _ = scope.channel.send(&Word::End, &[]);
        }
    }
}

impl Supervision<'_> {
    /// Why a scope is not made that brings this, if it is not; else the cage has it from now on.
    pub(super) fn against_taint_of_scope(
        &mut self,
        index: usize,
        brings: &Brings,
        now: Instant,
    ) -> Result<Option<String>, RunError> {
        if brings.leads_out
            && self.plan.asks_where_both_meet()
            && self.tainted(now)?.with(brings.taint).meets()
        {
            // Decided before something else brought the rest.
            return Ok(Some(
                "private data and untrusted content have met in this cage meanwhile; ask again"
                    .into(),
            ));
        }
        if !brings.wished
            && let Some(reason) = self.against_meeting(brings.taint, now)?
        {
            return Ok(Some(reason));
        }
        let because = format!("a scope of it was leased {}", brings.by);
        self.take_on(brings.taint, &because, now)?;
        if let Some(scope) = self.scopes.running.get_mut(index) {
            scope.leads_out = brings.leads_out;
        }
        Ok(None)
    }
}
