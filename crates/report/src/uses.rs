//! Uses that the log shows, and whether each answers to an entry.

use crate::authority::{EntryUse, Unknown};
use ironcage_model::{
    Destination, EventKind, HOST_NAME, HostRule, LeftOut, NetworkVerdict, Observation, Protocol,
    Right, Traffic, Use,
};
use std::path::Path;

/// Uses on record, each with its time.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    files: Vec<(u64, Observation)>,
    connections: Vec<(u64, Traffic)>,
    observed: bool,
    left_out: bool,
}

/// When an entry was open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Open {
    pub(crate) from: u64,
    pub(crate) until: u64,
    /// Whether it lasted as long as the cage.
    pub(crate) whole_run: bool,
}

impl Open {
    fn has(self, time: u64) -> bool {
        self.whole_run || (self.from <= time && time <= self.until)
    }

    /// Sorts uses of an entry: the first in its time; or unknown where later uses of the same have
    /// no line, because only the first has one; or unused.
    fn judge(self, times: &[u64], wider: bool) -> EntryUse {
        let within = times.iter().copied().filter(|time| self.has(*time)).min();
        match within {
            Some(first) if wider => EntryUse::Within { first },
            Some(first) => EntryUse::Exact { first },
            None if times.is_empty() => EntryUse::Unused,
            None => EntryUse::Unknown {
                because: Unknown::SeenBefore,
            },
        }
    }
}

impl Uses {
    pub(crate) fn add(&mut self, time: u64, event: &EventKind) {
        match event {
            EventKind::Observed(seen) => self.files.push((time, seen.clone())),
            EventKind::Network(traffic)
                if traffic.verdict == NetworkVerdict::Allowed
                    && traffic.protocol != Protocol::Dns =>
            {
                self.connections.push((time, traffic.clone()));
            }
            EventKind::LeftOut {
                what: LeftOut::ObservedUse,
                times,
            } => self.left_out |= *times > 0,
            EventKind::Exit {
                usage: Some(usage), ..
            } => self.observed |= usage.observed,
            _ => {}
        }
    }

    /// The use of a path. `directory` says that it is known to be one.
    pub(crate) fn path(&self, path: &Path, right: Right, directory: bool, open: Open) -> EntryUse {
        let unknown = |because| EntryUse::Unknown { because };
        if !self.observed && self.files.is_empty() {
            return unknown(Unknown::NotObserved);
        }
        let (mut times, mut wider) = (Vec::new(), directory);
        for (time, seen) in &self.files {
            // Looking on the way to a file is not a use of the directory.
            let right_use = match right {
                Right::Read => matches!(seen.how, Use::Read | Use::Execute),
                Right::Write => seen.how == Use::Write,
            };
            if !seen.found || !right_use {
                continue;
            }
            let used = Path::new(&seen.what);
            if used.starts_with(path) {
                times.push(*time);
                wider |= used != path || seen.below;
            } else if seen.below && path.starts_with(used) {
                return unknown(Unknown::Incomplete);
            }
        }
        match open.judge(&times, wider) {
            EntryUse::Unused if self.left_out => unknown(Unknown::Incomplete),
            found => found,
        }
    }

    /// The use of a host by a rule, which is the text that the proxy gave as the one that decided.
    pub(crate) fn rule(&self, written: &str, rule: Option<&HostRule>, open: Open) -> EntryUse {
        let one = matches!(
            rule.map(|rule| &rule.to),
            Some(
                Destination::Name(_)
                    | Destination::Net {
                        prefix: 32 | 128,
                        ..
                    }
            )
        );
        let by = self.connections.iter().filter(|(_, traffic)| {
            traffic.protocol != Protocol::Unix && traffic.rule.as_deref() == Some(written)
        });
        let times: Vec<u64> = by.map(|(time, _)| *time).collect();
        open.judge(&times, !one)
    }

    /// The use of an open network: every host.
    pub(crate) fn open_network(&self, open: Open) -> EntryUse {
        let by = self.connections.iter().filter(|(_, traffic)| {
            let rule = traffic.rule.as_deref().map(str::parse::<HostRule>);
            rule.is_some_and(|rule| rule.is_ok_and(|rule| rule.to == Destination::Any))
        });
        let times: Vec<u64> = by.map(|(time, _)| *time).collect();
        open.judge(&times, true)
    }

    pub(crate) fn socket(&self, path: &str, open: Open) -> EntryUse {
        let by = self.connections.iter();
        let by = by.filter(|(_, to)| to.protocol == Protocol::Unix && to.host == path);
        let times: Vec<u64> = by.map(|(time, _)| *time).collect();
        open.judge(&times, false)
    }

    pub(crate) fn host_port(&self, port: &str, open: Open) -> EntryUse {
        let by = self.connections.iter();
        let by = by.filter(|(_, to)| to.host == HOST_NAME && to.port.to_string() == port);
        let times: Vec<u64> = by.map(|(time, _)| *time).collect();
        open.judge(&times, false)
    }
}
