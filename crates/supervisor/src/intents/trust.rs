//! How far a cage is trusted: whether what happens is what the model's answers said.

use super::part::AnnouncedCall;
use ironcage_model::{HostName, HostRule, Trust};
use ironcage_plan::Drift;
use std::net::IpAddr;
use std::time::Duration;

/// Hosts that are told apart.
const MOST_HOSTS: usize = 256;

/// How far a cage is trusted, and what that rests on.
#[derive(Debug, Default)]
pub(super) struct TrustRecord {
    level: Trust,
    differences: u32,
    /// Hosts that were counted: each once.
    counted: Vec<String>,
}

impl TrustRecord {
    pub(super) fn level(&self) -> Trust {
        self.level
    }

    /// How long something is open that would be so for this time.
    pub(super) fn shorten(&self, time: Duration) -> Duration {
        match self.level {
            Trust::Full => time,
            Trust::Shortened | Trust::Asked | Trust::Frozen => time / 4,
        }
    }

    /// Counts a difference. Returns how many there are.
    pub(super) fn count(&mut self, bounds: Drift) -> u32 {
        self.differences = self.differences.saturating_add(1);
        let steps = [
            (bounds.shorten, Trust::Shortened),
            (bounds.ask, Trust::Asked),
            (bounds.freeze, Trust::Frozen),
        ];
        for (least, level) in steps {
            if self.differences >= least {
                self.level = self.level.max(level);
            }
        }
        self.differences
    }

    /// Whether a host was not counted yet. From now on it is.
    pub(super) fn is_new(&mut self, host: &str) -> bool {
        if self.counted.iter().any(|known| known == host) {
            return false;
        }
        if self.counted.len() >= MOST_HOSTS {
            self.counted.remove(0);
        }
        self.counted.push(host.to_owned());
        true
    }

    /// Trusts the cage no further than this. `false` where that is nothing new.
    pub(super) fn lower(&mut self, level: Trust) -> bool {
        let lower = level > self.level;
        self.level = self.level.max(level);
        lower
    }

    /// A person has looked at it: what was given at once is asked for, and the cage is stopped
    /// again after as many differences more.
    pub(super) fn review(&mut self) {
        self.level = self.level.min(Trust::Asked);
        self.differences = 0;
        self.counted.clear();
    }
}

/// Whether the calls under way say something else than a connection to this host.
pub(super) fn differs(calls: &[AnnouncedCall], host: &str) -> bool {
    let name = HostName::from_ascii(host.as_bytes()).ok();
    let address: Option<IpAddr> = host.parse().ok();
    let named = |rule: &HostRule| {
        name.as_ref().is_some_and(|name| rule.knows(name))
            || address.is_some_and(|address| rule.knows_address(address))
    };
    let names = |call: &AnnouncedCall| call.hosts.iter().any(named);
    // One that may do anything, and says nothing of where, is contradicted by nothing.
    let says = |call: &AnnouncedCall| !call.open || !call.hosts.is_empty();
    calls.iter().any(says) && !calls.iter().any(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_of_hosts_never_makes_a_cage_more_trusted() {
        let bounds = Drift {
            shorten: 2,
            ask: 3,
            freeze: 4 * MOST_HOSTS as u32,
        };
        let mut record = TrustRecord::default();
        let differ = |record: &mut TrustRecord, host: &str| match record.is_new(host) {
            true => record.count(bounds),
            false => 0,
        };
        for host in ["one.example", "two.example", "three.example", "one.example"] {
            differ(&mut record, host);
        }
        assert_eq!(record.level(), Trust::Asked);
        // A host that junk pushed out counts once more, which costs the cage, and nobody else.
        for number in 0..2 * MOST_HOSTS {
            differ(&mut record, &format!("junk{number}.example"));
        }
        assert!(differ(&mut record, "one.example") > 0);
        assert!(record.level() >= Trust::Asked);
        assert_eq!(record.counted.len(), MOST_HOSTS);
    }
}
