//! Whether what happens is what the model's answers said, and what comes of it where it is not.

use super::{Call, Intents};
use crate::RunError;
use crate::supervise::Supervision;
use ironcage_model::{EventKind, HostName, NetworkVerdict, Traffic, Trust};
use ironcage_plan::Drift;
use std::time::{Duration, Instant};

/// Hosts that are told apart.
const MOST: usize = 256;

/// How far a cage is trusted, and what that rests on.
#[derive(Debug, Default)]
pub(crate) struct Trusted {
    trust: Trust,
    differences: u32,
    /// Hosts that were counted: each once.
    counted: Vec<String>,
}

impl Trusted {
    /// How far.
    pub(crate) fn trust(&self) -> Trust {
        self.trust
    }

    /// How long something is open that would be so for this time.
    pub(super) fn shorten(&self, time: Duration) -> Duration {
        match self.trust {
            Trust::Full => time,
            Trust::Shortened | Trust::Asked | Trust::Frozen => time / 4,
        }
    }

    fn count(&mut self, bounds: Drift) -> u32 {
        self.differences = self.differences.saturating_add(1);
        let steps = [
            (bounds.shorten, Trust::Shortened),
            (bounds.ask, Trust::Asked),
            (bounds.freeze, Trust::Frozen),
        ];
        for (least, trust) in steps {
            if self.differences >= least {
                self.trust = self.trust.max(trust);
            }
        }
        self.differences
    }
}

impl Intents {
    /// A person has looked at it: what was given at once is asked for, and the cage is stopped
    /// again after as many differences more.
    pub(crate) fn look_again(&mut self) {
        self.trusted.trust = self.trusted.trust.min(Trust::Asked);
        self.trusted.differences = 0;
        self.trusted.counted.clear();
    }
}

/// Whether the calls under way say something else than a connection to this host.
fn differs(calls: &[Call], host: &str) -> bool {
    let name = HostName::from_ascii(host.as_bytes()).ok();
    let names = |call: &Call| {
        let mut hosts = call.hosts.iter();
        hosts.any(|rule| match &name {
            Some(name) => rule.knows(name),
            None => rule.to_string().starts_with(host),
        })
    };
    // One that may do anything, and says nothing of where, is contradicted by nothing.
    let says = |call: &Call| !call.open || !call.hosts.is_empty();
    calls.iter().any(says) && !calls.iter().any(names)
}

impl Supervision<'_> {
    /// Looks at what the door refused for the first time: the calls under way may have said
    /// something else. Of what comes again the door tells sums, which belong to no time.
    pub(crate) fn compare(&mut self, traffic: &Traffic, now: Instant) -> Result<(), RunError> {
        if traffic.verdict != NetworkVerdict::Denied || self.intents.calls.is_empty() {
            return Ok(());
        }
        self.forget_late_calls(now);
        // Others than the door tells apart.
        if traffic.host.starts_with('(') || !differs(&self.intents.calls, &traffic.host) {
            return Ok(());
        }
        let trusted = &mut self.intents.trusted;
        // Of one host there are several kinds: its name, its ports.
        if trusted.counted.contains(&traffic.host) {
            return Ok(());
        }
        if trusted.counted.len() >= MOST {
            trusted.counted.remove(0);
        }
        trusted.counted.push(traffic.host.clone());
        let tools: Vec<&str> = (self.intents.calls.iter())
            .map(|call| call.tool.as_str())
            .take(4)
            .collect();
        let what = format!(
            "the model called {}, which says nothing of {}, and that was connected to",
            tools.join(", "),
            traffic.host
        );
        self.count_difference(what)
    }

    /// Something was done that nobody said: here, or in a child, whose words and deeds are this
    /// cage's too. A new child does not begin anew with what is counted.
    pub(crate) fn count_difference(&mut self, what: String) -> Result<(), RunError> {
        let Some(bounds) = self.plan.leases.as_ref().map(|leases| leases.drift) else {
            return Ok(());
        };
        let trusted = &mut self.intents.trusted;
        let before = trusted.trust();
        let number = trusted.count(bounds);
        let trust = trusted.trust();
        self.recorder.write(EventKind::Drift {
            what: what.clone(),
            number,
            trust,
        })?;
        self.tell_parent_of_difference(&what);
        if trust != before {
            self.tell_children_of_trust(trust);
        }
        self.freeze_if_distrusted();
        Ok(())
    }

    /// The parent is trusted no further than this, and so is its child.
    pub(crate) fn trust_no_further(&mut self, trust: Trust) {
        let own = &mut self.intents.trusted.trust;
        if trust > *own {
            *own = trust;
            self.tell_children_of_trust(trust);
        }
        self.freeze_if_distrusted();
    }

    /// Stops a cage that is not trusted any more, as soon as that can be done.
    pub(super) fn freeze_if_distrusted(&mut self) {
        let distrusted = self.intents.trusted.trust == Trust::Frozen;
        if distrusted && !self.is_frozen() && self.freeze() {
            self.tell_of_freeze();
        }
    }
}
