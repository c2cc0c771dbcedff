//! What a cage may have come into contact with, and what follows where private data and untrusted
//! content meet: what leads out and was allowed by no person is closed, before they do.
//!
//! It comes with leases, messages, a parent, a child, and with what others have written to places
//! of the host that the cage reads. It goes the same ways. Whatever brings it is opened after it is
//! on record, and after every place that the cage writes to is marked.
//!
//! Every cage looks, whatever its policy says: one that reads here and writes there passes on what
//! comes to it.

mod places;

pub(crate) use places::Leased;

use crate::RunError;
use crate::supervise::{Supervision, failed};
use ironcage_model::{Approver, EventKind, Lease, LeaseOrigin, Printable, Resource, Taint};
use ironcage_plan::Plan;
use ironcage_state::{Edition, Marks};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often it is looked for what others bring, where anybody has brought something.
const LOOK: Duration = Duration::from_secs(1);
/// And where nobody has.
const LOOK_FOR_A_FIRST: Duration = Duration::from_secs(10);

/// Why leases end where both meet.
const MET: &str = "private data and untrusted content met in this cage";

fn marks() -> io::Result<Marks> {
    let state = ironcage_audit::state_dir().map_err(io::Error::other)?;
    Ok(Marks::in_state(&state))
}

/// What a lease brings: by the policy, and by what others have written there.
///
/// # Errors
/// Where it cannot be read what is known of the path.
pub(crate) fn brought(plan: &Plan, resource: &Resource) -> io::Result<Taint> {
    let by_policy = plan.taint_of(resource);
    let Resource::Path { path, .. } = resource else {
        return Ok(by_policy);
    };
    let found = marks()?.of(&[Path::new(path)])?;
    let taints = found.iter().map(|mark| mark.taint);
    Ok(taints.fold(by_policy, Taint::with))
}

/// Whether something could leave by a lease that no person has allowed.
pub(crate) fn is_way_out(lease: &Lease) -> bool {
    lease.resource.leads_out()
        && lease.approver == Approver::Policy
        && lease.origin != LeaseOrigin::Operator
}

impl Supervision<'_> {
    /// What the cage has from its parent, from its start, and from what others wrote.
    pub(crate) fn begin_history(&mut self, now: Instant) -> Result<(), RunError> {
        let start = self.plan.taint.as_ref().map(|marking| marking.start);
        let inherited = self.kin.as_ref().map(|kin| kin.inherited);
        let inherited = inherited.unwrap_or_default();
        self.questions.count(inherited.asked, now);
        self.trust_no_further(inherited.trust);
        self.take_on(
            start.unwrap_or_default(),
            "its policy lets it read or reach that from its start",
            now,
        )?;
        self.take_on(inherited.taint, "its parent has it", now)?;
        self.taint_looked = Some(now);
        self.tainted(now).map(drop)
    }

    /// What the cage has now: others may have written to what it reads, or could read by a lease.
    pub(crate) fn tainted(&mut self, now: Instant) -> Result<Taint, RunError> {
        let read = |error| failed("read what is known of the places that it reads")(error);
        let marks = marks().map_err(read)?;
        let edition = marks.edition().map_err(read)?;
        // The same marks say the same of the same places.
        if self.leased.seen == Some(edition) {
            return Ok(self.taint);
        }
        let mut places = self.plan.read_places();
        places.extend(self.leased.read());
        let found = marks.of(&places).map_err(read)?;
        self.leased.seen = Some(edition);
        // Somebody may have forgotten them while this cage went on writing there.
        self.mark_places(self.taint)?;
        for mark in found {
            let place = Printable::new(&mark.place);
            let because = match &mark.cage {
                Some(cage) => format!("it can read {place}, where cage {cage} could write"),
                None => "the file of marks cannot be read".into(),
            };
            self.take_on(mark.taint, &because, now)?;
        }
        Ok(self.taint)
    }

    /// The cage takes something on.
    pub(crate) fn take_on(
        &mut self,
        more: Taint,
        because: &str,
        now: Instant,
    ) -> Result<(), RunError> {
        let taint = self.taint.with(more);
        if taint == self.taint {
            return Ok(());
        }
        self.mark_places(taint)?;
        self.taint = taint;
        self.recorder.write(EventKind::Tainted {
            taint,
            because: because.to_owned(),
        })?;
        self.tell_kin_of_taint();
        if taint.meets() {
            self.close_ways_out(now)?;
        }
        Ok(())
    }

    /// Marks every place that the cage writes to, or wrote to by a lease.
    fn mark_places(&self, taint: Taint) -> Result<(), RunError> {
        if taint.is_none() {
            return Ok(());
        }
        let mut places = self.plan.filled_places();
        places.extend(self.leased.written());
        let cage = &self.control.description.id;
        let marked = marks().and_then(|marks| marks.add(&places, taint, cage));
        marked.map_err(failed("mark the places that it writes to"))
    }

    /// What the cage has goes to where a lease lets it write; and what comes to where a lease lets
    /// it read is looked for from now on.
    pub(crate) fn mark_leased(&mut self, resource: &Resource) -> Result<(), RunError> {
        let Resource::Path { path, right } = resource else {
            return Ok(());
        };
        self.leased.add(Path::new(path), *right);
        self.mark_places(self.taint)
    }

    /// Why something is not opened now that brings this, where private data would meet untrusted
    /// content by it: what leads out is closed first.
    pub(crate) fn against_meeting(
        &mut self,
        brings: Taint,
        now: Instant,
    ) -> Result<Option<String>, RunError> {
        if brings.is_none() || !self.plan.asks_where_both_meet() {
            return Ok(None);
        }
        if !self.tainted(now)?.with(brings).meets() {
            return Ok(None);
        }
        self.close_ways_out(now)?;
        Ok(self.way_out().map(|way| {
            format!(
                "private data and untrusted content would meet by it, and {way}, by which something could leave, is being closed first; ask again"
            )
        }))
    }

    /// A lease of the cage's, or a scope, by which something could leave and that no person has
    /// allowed, in words.
    fn way_out(&self) -> Option<String> {
        let lease = self.leases.all().find(|lease| is_way_out(lease));
        let lease = lease.map(|lease| format!("lease {} ({})", lease.number, lease.resource));
        let scope = || self.scopes.way_out();
        lease.or_else(|| scope().map(|number| format!("the scope of command {number}")))
    }

    fn close_ways_out(&mut self, now: Instant) -> Result<(), RunError> {
        if !self.plan.asks_where_both_meet() {
            return Ok(());
        }
        let open = self.leases.all().filter(|lease| is_way_out(lease));
        let numbers: Vec<u32> = open.map(|lease| lease.number).collect();
        for number in numbers {
            self.end_lease(number, MET, now)?;
        }
        self.scopes.end_ways_out();
        Ok(())
    }

    /// Looks for what others bring, and hands out messages that waited until nothing led out.
    pub(crate) fn look_at_taint(&mut self, now: Instant) -> Result<(), RunError> {
        if self.scope.is_some() {
            // The cage's supervisor does, for all of its scopes.
            return Ok(());
        }
        match self.next_look_at_taint(now) {
            Some(at) if now >= at => {
                self.taint_looked = Some(now);
                self.tainted(now)?;
            }
            _ => {}
        }
        self.deliver_held_back(now)
    }

    /// When it is to be looked next.
    pub(crate) fn next_look_at_taint(&self, now: Instant) -> Option<Instant> {
        if self.scope.is_some() {
            return None;
        }
        let pace = match &self.leased.seen {
            Some(Edition::None) => LOOK_FOR_A_FIRST,
            _ => LOOK,
        };
        Some(self.taint_looked.map_or(now, |at| at + pace))
    }
}
