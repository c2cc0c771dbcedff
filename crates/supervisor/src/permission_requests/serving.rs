//! The loop's side of permission requests: it passes events to the part, and asks for the leases that a
//! person approved.

use super::{Answerer, NewRequest};
use crate::RunError;
use crate::supervise::Supervision;
use ironcage_control::{ApproveRequest, Reply};
use ironcage_model::{LeaseReason, RequestOutcome};
use std::time::Instant;

impl Supervision<'_> {
    /// Asks a person.
    pub(crate) fn raise_request(&mut self, new: NewRequest, now: Instant) -> Result<(), RunError> {
        let effects = self.permission_requests.raise(vec![new], None, now);
        self.apply(effects, now)
    }

    /// Asks a person for all that a command needs.
    pub(crate) fn raise_requests(
        &mut self,
        all: Vec<NewRequest>,
        command: &str,
        now: Instant,
    ) -> Result<(), RunError> {
        let effects = self.permission_requests.raise(all, Some(command), now);
        self.apply(effects, now)
    }

    /// Every request that waits for a person.
    pub(crate) fn list_questions(&mut self, key: u64, now: Instant) {
        let list = self.permission_requests.describe(now);
        self.control.reply(key, &Reply::Questions(list), &[]);
    }

    /// A person says yes.
    pub(crate) fn approve(
        &mut self,
        by: Answerer,
        request: &ApproveRequest,
        now: Instant,
    ) -> Result<(), RunError> {
        let effects = self.permission_requests.approve(by, request, now);
        self.apply(effects, now)
    }

    /// Asks for the lease that a person approved.
    pub(crate) fn request_approved(&mut self, number: u32, now: Instant) -> Result<(), RunError> {
        let Some(request) = self.permission_requests.take_approved(number) else {
            return Ok(());
        };
        if self.permission_requests.has_moved(&request, number) {
            let outcome = RequestOutcome::denied(LeaseReason::PathReplaced);
            return self.tell_requester(request.by, outcome);
        }
        self.request_lease(request, now)
    }

    /// A person says no.
    pub(crate) fn deny(
        &mut self,
        by: Answerer,
        number: u32,
        reason: &str,
        now: Instant,
    ) -> Result<(), RunError> {
        let effects = self.permission_requests.deny(by, number, reason, now);
        self.apply(effects, now)
    }

    /// Tells the person who answered what came of it.
    pub(crate) fn tell_answerer(
        &mut self,
        by: Answerer,
        number: u32,
        outcome: RequestOutcome,
        now: Instant,
    ) -> Result<(), RunError> {
        match by {
            Answerer::Client(key) => {
                self.tell_client(key, outcome);
                Ok(())
            }
            Answerer::Terminal => self.answered_at_prompt(number, &outcome, now),
        }
    }

    /// Ends those whose time is up.
    pub(crate) fn look_at_questions(&mut self, now: Instant) -> Result<(), RunError> {
        let effects = self.permission_requests.tick(now);
        self.apply(effects, now)
    }

    /// The cage is gone, and nobody can be answered any more.
    pub(crate) fn finish_questions(&mut self) -> Result<(), RunError> {
        let now = Instant::now();
        let effects = self.permission_requests.finish(now);
        self.apply(effects, now)
    }
}
