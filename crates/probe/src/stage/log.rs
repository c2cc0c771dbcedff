//! The log of canaries that can report.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where something was noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    /// A stream listener with an abstract name.
    Abstract,
    /// A datagram socket with an abstract name.
    AbstractDatagram,
    /// A stream listener at a path.
    Pathname,
    /// A datagram socket at a path.
    PathDatagram,
    /// TCP on 127.0.0.1.
    Tcp4,
    /// TCP on ::1.
    Tcp6,
    /// TCP on the metadata addresses.
    Metadata,
    /// UDP on the resolver's port.
    Resolver,
    /// TCP in the network namespace whose descriptor is leaked.
    OtherNetwork,
    /// The leaked TCP connection.
    LeakedTcp,
    /// The leaked socket pair.
    LeakedPair,
    /// A signal at the canary process.
    Signal,
    /// A tracer at the canary process.
    Traced,
    /// A request at the stand-in for a sandbox's control socket.
    Control,
    /// What is no request there.
    Frames,
    /// Anything at the second sandbox.
    Sibling,
    /// A commit that the user's agent signed with the key that the policy names.
    AgentAllowed,
    /// Anything else that it signed with that key.
    AgentMisused,
    /// What it signed with another key.
    AgentOther,
    /// What would change the agent itself.
    AgentChanged,
    /// A request at the user's upstream proxy for what no rule names.
    Upstream,
}

/// A log that listeners write and the oracle reads.
#[derive(Debug, Clone, Default)]
pub(crate) struct HitLog(Arc<Mutex<Vec<(Channel, String)>>>);

impl HitLog {
    /// Notes one hit.
    pub(crate) fn note(&self, channel: Channel, text: impl Into<String>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((channel, text.into()));
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// The first hit on a channel.
    pub(crate) fn first(&self, channel: Channel) -> Option<String> {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter()
            .find(|(at, _)| *at == channel)
            .map(|(_, text)| text.clone())
    }

    /// The first hit on a channel, given a moment: listeners run in threads of their own.
    pub(crate) fn settled(&self, channel: Channel) -> Option<String> {
        const MOMENT: Duration = Duration::from_millis(60);
        let started = Instant::now();
        loop {
            let hit = self.first(channel);
            if hit.is_some() || started.elapsed() > MOMENT {
                return hit;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
