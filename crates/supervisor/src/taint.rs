//! Taint: what a cage may have come into contact with, and what follows where private data and
//! untrusted content meet: what leads out and was allowed by no person is closed, before they do.
//!
//! It comes with leases, messages, a parent, a child, and with what others have written to places
//! of the host that the cage reads. It goes the same ways. Whatever brings it is opened after it is
//! on record, and after every place that the cage writes to is marked.
//!
//! Every cage looks, whatever its policy says: one that reads here and writes there passes on what
//! comes to it.

mod places;

use places::LeasedPlaces;

use crate::RunError;
use crate::channels::ChannelEvent;
use crate::children::ParentLink;
use crate::effects::Effect;
use crate::intents::IntentEvent;
use crate::scope::ScopeEvent;
use crate::supervise::{Supervision, failed};
use ironcage_model::{
    Approver, EventKind, Lease, LeaseEndCause, LeaseOrigin, LeaseReason, Printable, Resource, Taint,
};
use ironcage_plan::Plan;
use ironcage_state::{Edition, Mark, Marks};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often it is looked for what others bring, where anybody has brought something.
const LOOK: Duration = Duration::from_secs(1);
/// And where nobody has.
const LOOK_FOR_A_FIRST: Duration = Duration::from_secs(10);

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

/// What a cage may have come into contact with: a part of the supervisor. It owns what is known,
/// and returns what follows as effects.
#[derive(Debug, Default)]
pub(crate) struct CageTaint {
    taint: Taint,
    /// When it was last looked for what others bring.
    looked: Option<Instant>,
    /// The host's files that it was leased, now or before.
    places: LeasedPlaces,
}

impl CageTaint {
    /// What is known now.
    pub(crate) fn current(&self) -> Taint {
        self.taint
    }

    /// The cage takes something on. Every place that it writes to is marked before that is
    /// recorded, and what leads out is closed where private data and untrusted content meet.
    pub(crate) fn take_on(&mut self, more: Taint, because: &str) -> Vec<Effect> {
        let taint = self.taint.with(more);
        if taint == self.taint {
            return Vec::new();
        }
        self.taint = taint;
        let mut effects = self.mark();
        effects.push(Effect::Audit(EventKind::Tainted {
            taint,
            because: because.to_owned(),
        }));
        effects.push(Effect::TellRelativesOfTaint);
        if taint.meets() {
            effects.push(Effect::CloseWaysOut);
        }
        effects
    }

    /// What the cage has goes to where a lease lets it write; and what comes to where a lease lets
    /// it read is looked for from now on.
    fn leased(&mut self, resource: &Resource) -> Vec<Effect> {
        let Resource::Path { path, right } = resource else {
            return Vec::new();
        };
        self.places.add(Path::new(path), *right);
        self.mark()
    }

    /// Marks every place that the cage writes to, or wrote to by a lease.
    fn mark(&self) -> Vec<Effect> {
        if self.taint.is_none() {
            return Vec::new();
        }
        vec![Effect::MarkPlaces {
            taint: self.taint,
            leased: self.places.written().map(Path::to_owned).collect(),
        }]
    }

    /// Others have written to what it reads.
    fn found(&mut self, edition: Edition, marks: Vec<Mark>) -> Vec<Effect> {
        self.places.see(edition);
        // Somebody may have forgotten them while this cage went on writing there.
        let mut effects = self.mark();
        for mark in marks {
            let place = Printable::new(&mark.place);
            let because = match &mark.cage {
                Some(cage) => format!("it can read {place}, where cage {cage} could write"),
                None => "the file of marks cannot be read".into(),
            };
            effects.extend(self.take_on(mark.taint, &because));
        }
        effects
    }

    /// When it is to be looked next for what others bring.
    fn next_look(&self, now: Instant) -> Instant {
        let pace = match self.places.seen() {
            Some(Edition::None) => LOOK_FOR_A_FIRST,
            _ => LOOK,
        };
        self.looked.map_or(now, |at| at + pace)
    }
}

impl Supervision<'_> {
    /// What the cage has from its parent, from its start, and from what others wrote.
    pub(crate) fn begin_history(&mut self, now: Instant) -> Result<(), RunError> {
        let start = self.plan.taint.as_ref().map(|marking| marking.start);
        let inherited = self.parent.as_ref().map(ParentLink::inherited);
        let inherited = inherited.unwrap_or_default();
        self.permission_requests.count(inherited.asked, now);
        self.intent_event(IntentEvent::ParentTrust(inherited.trust), now)?;
        self.take_on(
            start.unwrap_or_default(),
            "its policy lets it read or reach that from its start",
            now,
        )?;
        self.take_on(inherited.taint, "its parent has it", now)?;
        self.taint.looked = Some(now);
        self.tainted(now).map(drop)
    }

    /// What the cage has now: others may have written to what it reads, or could read by a lease.
    pub(crate) fn tainted(&mut self, now: Instant) -> Result<Taint, RunError> {
        let read = |error| failed("read what is known of the places that it reads")(error);
        let marks = marks().map_err(read)?;
        let edition = marks.edition().map_err(read)?;
        // The same marks say the same of the same places.
        if self.taint.places.seen() == Some(&edition) {
            return Ok(self.taint.current());
        }
        let mut places = self.plan.read_places();
        places.extend(self.taint.places.read());
        let found = match edition {
            Edition::None => Vec::new(),
            Edition::Some(..) => marks.of(&places).map_err(read)?,
        };
        let effects = self.taint.found(edition, found);
        self.apply(effects, now)?;
        Ok(self.taint.current())
    }

    /// The cage takes something on.
    pub(crate) fn take_on(
        &mut self,
        more: Taint,
        because: &str,
        now: Instant,
    ) -> Result<(), RunError> {
        let effects = self.taint.take_on(more, because);
        self.apply(effects, now)
    }

    /// Marks the places that the cage writes to by its plan, and these.
    pub(crate) fn mark_places(&self, taint: Taint, leased: &[PathBuf]) -> Result<(), RunError> {
        let mut places = self.plan.filled_places();
        places.extend(leased.iter().map(PathBuf::as_path));
        let cage = self.control.id();
        let marked = marks().and_then(|marks| marks.add(&places, taint, cage));
        marked.map_err(failed("mark the places that it writes to"))
    }

    /// A lease is about to be opened.
    pub(crate) fn mark_leased(
        &mut self,
        resource: &Resource,
        now: Instant,
    ) -> Result<(), RunError> {
        let effects = self.taint.leased(resource);
        self.apply(effects, now)
    }

    /// Why something is not opened now that brings this, where private data would meet untrusted
    /// content by it: what leads out is closed first.
    pub(crate) fn against_meeting(
        &mut self,
        brings: Taint,
        now: Instant,
    ) -> Result<Option<LeaseReason>, RunError> {
        if brings.is_none() || !self.plan.asks_where_both_meet() {
            return Ok(None);
        }
        if !self.tainted(now)?.with(brings).meets() {
            return Ok(None);
        }
        self.close_ways_out(now)?;
        let exit = self.way_out();
        Ok(exit.map(|exit| LeaseReason::ClosingExits { exit }))
    }

    /// A lease of the cage's, or a scope, by which something could leave and that no person has
    /// allowed, in words.
    fn way_out(&self) -> Option<String> {
        let lease = self.leases.all().find(|lease| is_way_out(lease));
        let lease = lease.map(|lease| format!("lease {} ({})", lease.number, lease.resource));
        let scope = || self.scopes.way_out();
        lease.or_else(|| scope().map(|number| format!("the scope of command {number}")))
    }

    pub(crate) fn close_ways_out(&mut self, now: Instant) -> Result<(), RunError> {
        if !self.plan.asks_where_both_meet() {
            return Ok(());
        }
        let open = self.leases.all().filter(|lease| is_way_out(lease));
        let numbers: Vec<u32> = open.map(|lease| lease.number).collect();
        for number in numbers {
            self.end_lease(number, LeaseEndCause::TaintMet, now)?;
        }
        self.scope_event(ScopeEvent::EndWaysOut, now)
    }

    /// Looks for what others bring, and hands out messages that waited until nothing led out.
    pub(crate) fn look_at_taint(&mut self, now: Instant) -> Result<(), RunError> {
        if self.scope.is_some() {
            // The cage's supervisor does, for all of its scopes.
            return Ok(());
        }
        if now >= self.taint.next_look(now) {
            self.taint.looked = Some(now);
            self.tainted(now)?;
        }
        self.channel_event(ChannelEvent::TryAgain, now)
    }

    /// When it is to be looked next.
    pub(crate) fn next_look_at_taint(&self, now: Instant) -> Option<Instant> {
        // The cage's supervisor looks, for all of its scopes.
        (self.scope.is_none()).then(|| self.taint.next_look(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::Right;

    const PRIVATE: Taint = Taint {
        private: true,
        untrusted: false,
    };
    const UNTRUSTED: Taint = Taint {
        private: false,
        untrusted: true,
    };

    fn is_audit(effect: &Effect) -> bool {
        matches!(effect, Effect::Audit(EventKind::Tainted { .. }))
    }

    #[test]
    fn places_are_marked_before_a_taint_is_recorded_and_ways_out_closed_where_both_meet() {
        let mut part = CageTaint::default();
        let written = Resource::Path {
            path: "/srv/out".into(),
            right: Right::Write,
        };
        // Nothing to mark with yet.
        assert!(part.leased(&written).is_empty());
        let effects = part.take_on(PRIVATE, "test");
        let leased = vec![PathBuf::from("/srv/out")];
        let taint = PRIVATE;
        assert_eq!(effects.first(), Some(&Effect::MarkPlaces { taint, leased }));
        assert!(effects.get(1).is_some_and(is_audit), "{effects:?}");
        assert_eq!(effects.get(2), Some(&Effect::TellRelativesOfTaint));
        assert_eq!(effects.len(), 3);
        // The same once more is nothing new.
        assert!(part.take_on(PRIVATE, "test").is_empty());
        let effects = part.take_on(UNTRUSTED, "test");
        assert_eq!(effects.last(), Some(&Effect::CloseWaysOut));
        assert!(part.current().meets());
    }

    #[test]
    fn what_others_wrote_is_taken_on_and_looked_for_again_after_each_lease() {
        let mut part = CageTaint::default();
        let mark = Mark {
            place: "/srv/in".into(),
            taint: UNTRUSTED,
            cage: None,
        };
        let effects = part.found(Edition::None, vec![mark]);
        assert_eq!(effects.iter().filter(|effect| is_audit(effect)).count(), 1);
        assert_eq!(part.places.seen(), Some(&Edition::None));
        let now = Instant::now();
        part.looked = Some(now);
        assert_eq!(part.next_look(now), now + LOOK_FOR_A_FIRST);
        let read = Resource::Path {
            path: "/srv/more".into(),
            right: Right::Read,
        };
        assert!(!part.leased(&read).is_empty());
        assert_eq!(part.places.seen(), None);
        assert_eq!(part.next_look(now), now + LOOK);
    }
}
