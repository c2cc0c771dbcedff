//! Counts connections by destination and verdict, and says what is new: each kind once at
//! once, what follows in sums. A cage that makes many cannot flood the record with them.

use ironcage_model::{NetworkVerdict, Protocol, Traffic};
use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

/// Kinds that are kept apart; the rest is counted as others.
const KINDS: usize = 512;
/// Kinds from which on paths of requests are no longer told apart.
const PATHS: usize = 256;
/// Longest text of a kind: what comes from the cage is cut.
const TEXT: usize = 300;

/// What connections have in common that are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub(crate) verdict: NetworkVerdict,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) protocol: Protocol,
    pub(crate) address: Option<String>,
    pub(crate) rule: Option<String>,
    pub(crate) reason: Option<String>,
    /// Method and path, where it is a request.
    pub(crate) request: Option<String>,
    /// What it was answered with.
    pub(crate) status: Option<u16>,
}

impl Kind {
    /// With its numbers.
    pub(crate) fn traffic(&self, connections: u64, sent: u64, received: u64) -> Traffic {
        let kind = self.clone();
        Traffic {
            verdict: kind.verdict,
            host: kind.host,
            port: kind.port,
            protocol: kind.protocol,
            address: kind.address,
            rule: kind.rule,
            reason: kind.reason,
            request: kind.request,
            status: kind.status,
            connections,
            sent,
            received,
        }
    }
}

/// Counts of one kind since they were last told.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    connections: Cell<u64>,
    sent: Cell<u64>,
    received: Cell<u64>,
}

fn add(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get().saturating_add(more));
}

impl Sums {
    /// Counts bytes that went out.
    pub(crate) fn sent(&self, bytes: u64) {
        add(&self.sent, bytes);
    }

    /// Counts bytes that came in.
    pub(crate) fn received(&self, bytes: u64) {
        add(&self.received, bytes);
    }
}

/// The counts since they were last told.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    kinds: HashMap<Kind, Rc<Sums>>,
}

fn cut(text: &mut String) {
    if text.len() > TEXT {
        let end = (0..=TEXT).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
    }
}

impl Ledger {
    /// Counts a connection. Returns where its bytes are counted, and what is to be told at
    /// once where it is the first of its kind.
    pub(crate) fn open(&mut self, mut kind: Kind) -> (Rc<Sums>, Option<Traffic>) {
        cut(&mut kind.host);
        if let Some(reason) = &mut kind.reason {
            cut(reason);
        }
        // Paths are many: they do not crowd out what hosts are reached at all.
        if self.kinds.len() >= PATHS && !self.kinds.contains_key(&kind) {
            kind.request = None;
        }
        if !self.kinds.contains_key(&kind) && self.kinds.len() >= KINDS {
            kind = Kind {
                host: "(others)".into(),
                port: 0,
                address: None,
                rule: None,
                reason: None,
                request: None,
                status: None,
                ..kind
            };
        }
        if let Some(counts) = self.kinds.get(&kind) {
            add(&counts.connections, 1);
            return (Rc::clone(counts), None);
        }
        let counts = Rc::new(Sums::default());
        let told = kind.traffic(1, 0, 0);
        self.kinds.insert(kind, Rc::clone(&counts));
        (counts, Some(told))
    }

    /// Puts back what could not be told.
    pub(crate) fn put_back(&mut self, told: &Traffic) {
        let kind = Kind {
            verdict: told.verdict,
            host: told.host.clone(),
            port: told.port,
            protocol: told.protocol,
            address: told.address.clone(),
            rule: told.rule.clone(),
            reason: told.reason.clone(),
            request: told.request.clone(),
            status: told.status,
        };
        let counts = self.kinds.entry(kind).or_default();
        add(&counts.connections, told.connections);
        add(&counts.sent, told.sent);
        add(&counts.received, told.received);
    }

    /// Takes the sums that were not told yet.
    pub(crate) fn sums(&self) -> Vec<Traffic> {
        self.kinds
            .iter()
            .filter_map(|(kind, counts)| {
                let connections = counts.connections.take();
                let (sent, received) = (counts.sent.take(), counts.received.take());
                (connections > 0 || sent > 0 || received > 0)
                    .then(|| kind.traffic(connections, sent, received))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(host: &str) -> Kind {
        Kind {
            verdict: NetworkVerdict::Allowed,
            host: host.into(),
            port: 443,
            protocol: Protocol::Tls,
            address: None,
            rule: None,
            reason: None,
            request: None,
            status: None,
        }
    }

    #[test]
    fn the_first_of_a_kind_is_told_at_once_and_the_rest_in_sums() {
        let mut ledger = Ledger::default();
        let (line, told) = ledger.open(kind("a.com"));
        assert_eq!(told.unwrap().connections, 1);
        assert!(ledger.sums().is_empty());
        assert!(ledger.open(kind("a.com")).1.is_none());
        line.sent(10);
        line.received(20);
        let sums = ledger.sums();
        assert_eq!(sums.len(), 1);
        assert_eq!(
            (sums[0].connections, sums[0].sent, sums[0].received),
            (1, 10, 20)
        );
        assert!(ledger.sums().is_empty());
        ledger.put_back(&sums[0]);
        assert_eq!(ledger.sums(), sums);
    }

    #[test]
    fn many_kinds_become_others_and_long_texts_are_cut() {
        let mut ledger = Ledger::default();
        for number in 0..2 * KINDS {
            ledger.open(kind(&format!("{number}.com")));
        }
        assert!(ledger.kinds.len() <= KINDS + 1);
        let (_, told) = Ledger::default().open(kind(&"\u{e4}".repeat(400)));
        assert!(told.unwrap().host.len() <= TEXT);
    }
}
