//! Counts connections by destination and verdict, and says what is new: each kind once at
//! once, what follows in sums. A cage that makes many cannot flood the record with them.

use ironcage_model::{NetworkVerdict, Protocol, Reason, Traffic};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// Kinds of one class that are kept apart.
const KINDS: usize = 256;
/// Coarser rows of one class for what does not fit: by host, then by rule.
const SUMMARIES: usize = 64;
/// The host of rows of the audit log for connections that did not fit.
pub const OTHERS: &str = "(others)";
/// Longest text of a kind: what comes from the cage is cut.
const TEXT: usize = 300;

/// What connections have in common that are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TrafficEvent {
    pub(crate) verdict: NetworkVerdict,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) protocol: Protocol,
    pub(crate) address: Option<String>,
    pub(crate) rule: Option<String>,
    pub(crate) reason: Option<Reason>,
    /// Method and path, where it is a request.
    pub(crate) request: Option<String>,
    /// What it was answered with.
    pub(crate) status: Option<u16>,
}

impl TrafficEvent {
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

/// What shares a budget. Each class has its own, so that junk of one class leaves the others
/// their rows: refused names and connections do not crowd out allowed ones.
///
/// The order is that in which rows are told: if the supervisor or the disk gives up in between,
/// allowed traffic is on record first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum TrafficClass {
    Connected,
    Requested,
    Denied,
    DeniedRequest,
    Failed,
    Name,
}

impl TrafficEvent {
    fn class(&self) -> TrafficClass {
        let request = self.request.is_some() || self.status.is_some();
        match self.verdict {
            _ if self.protocol == Protocol::Dns => TrafficClass::Name,
            NetworkVerdict::Allowed if request => TrafficClass::Requested,
            NetworkVerdict::Allowed if self.reason.is_some() => TrafficClass::Failed,
            NetworkVerdict::Allowed => TrafficClass::Connected,
            NetworkVerdict::Denied if request => TrafficClass::DeniedRequest,
            NetworkVerdict::Denied => TrafficClass::Denied,
        }
    }

    /// The row for all requests of the same host, rule and outcome.
    fn without_path(&self) -> TrafficEvent {
        TrafficEvent {
            request: None,
            ..self.clone()
        }
    }

    /// The row for everything that a rule decided and that did not fit. Rules come from the
    /// policy, so the cage cannot invent them; its own text is left out.
    fn of_rule(&self) -> TrafficEvent {
        TrafficEvent {
            host: OTHERS.into(),
            port: 0,
            address: None,
            reason: None,
            request: None,
            status: None,
            ..self.clone()
        }
    }

    fn without_rule(&self) -> TrafficEvent {
        TrafficEvent {
            rule: None,
            ..self.of_rule()
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
pub(crate) struct TrafficCounters {
    classes: BTreeMap<TrafficClass, ClassRows>,
}

/// The rows of one class.
#[derive(Debug, Default)]
struct ClassRows {
    kinds: HashMap<TrafficEvent, Rc<Sums>>,
    summaries: HashMap<TrafficEvent, Summary>,
}

/// A row for several kinds. It is told at once again after its sums were taken: whoever compares
/// connections with what the model announced must not lose sight of a cage that filled the table.
#[derive(Debug, Default)]
struct Summary {
    sums: Rc<Sums>,
    told: Cell<bool>,
}

impl ClassRows {
    /// The coarser row that an unknown kind is counted in.
    fn summary_of(&self, kind: &TrafficEvent) -> TrafficEvent {
        let coarser = [kind.without_path(), kind.of_rule()];
        let fits = |row: &TrafficEvent| {
            // Only a request has a row of its host.
            (row.host == OTHERS || kind.request.is_some())
                && (self.summaries.contains_key(row) || self.summaries.len() < SUMMARIES)
        };
        let fitting = coarser.into_iter().find(fits);
        fitting.unwrap_or_else(|| kind.without_rule())
    }

    fn count(&mut self, kind: TrafficEvent) -> (Rc<Sums>, Option<Traffic>) {
        if let Some(sums) = self.kinds.get(&kind) {
            add(&sums.connections, 1);
            return (Rc::clone(sums), None);
        }
        if self.kinds.len() < KINDS {
            let sums = Rc::new(Sums::default());
            let told = kind.traffic(1, 0, 0);
            self.kinds.insert(kind, Rc::clone(&sums));
            return (sums, Some(told));
        }
        let row = self.summary_of(&kind);
        let first = row.traffic(1, 0, 0);
        let summary = self.summaries.entry(row).or_default();
        let told = summary.told.replace(true);
        if told {
            add(&summary.sums.connections, 1);
        }
        (Rc::clone(&summary.sums), (!told).then_some(first))
    }

    fn take(&self) -> Vec<Traffic> {
        let kinds = self.kinds.iter().map(|(kind, sums)| (kind, sums.as_ref()));
        let summaries = self.summaries.iter().map(|(kind, summary)| {
            summary.told.set(false);
            (kind, summary.sums.as_ref())
        });
        let taken = kinds.chain(summaries).filter_map(|(kind, sums)| {
            let connections = sums.connections.take();
            let (sent, received) = (sums.sent.take(), sums.received.take());
            (connections > 0 || sent > 0 || received > 0)
                .then(|| kind.traffic(connections, sent, received))
        });
        taken.collect()
    }
}

fn cut(text: &mut String) {
    if text.len() > TEXT {
        let end = (0..=TEXT).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
    }
}

impl TrafficCounters {
    /// Counts a connection. Returns where its bytes are counted, and what is to be told at
    /// once where it is the first of its kind.
    pub(crate) fn open(&mut self, mut kind: TrafficEvent) -> (Rc<Sums>, Option<Traffic>) {
        cut(&mut kind.host);
        if let Some(reason) = &mut kind.reason {
            reason.cut(TEXT);
        }
        self.classes.entry(kind.class()).or_default().count(kind)
    }

    /// Puts back what could not be told.
    pub(crate) fn put_back(&mut self, told: &Traffic) {
        let kind = TrafficEvent {
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
        // Told of before, so its row is there.
        let Some(rows) = self.classes.get(&kind.class()) else {
            return;
        };
        let kinds = rows.kinds.get(&kind);
        let summary = || rows.summaries.get(&kind).map(|summary| &summary.sums);
        if let Some(sums) = kinds.or_else(summary) {
            add(&sums.connections, told.connections);
            add(&sums.sent, told.sent);
            add(&sums.received, told.received);
        }
    }

    /// Takes the sums that were not told yet, what was allowed first.
    pub(crate) fn sums(&self) -> Vec<Traffic> {
        self.classes.values().flat_map(ClassRows::take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::NetworkReason;

    fn kind(host: &str) -> TrafficEvent {
        TrafficEvent {
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
        let mut counters = TrafficCounters::default();
        let (line, told) = counters.open(kind("a.com"));
        assert_eq!(told.unwrap().connections, 1);
        assert!(counters.sums().is_empty());
        assert!(counters.open(kind("a.com")).1.is_none());
        line.sent(10);
        line.received(20);
        let sums = counters.sums();
        assert_eq!(sums.len(), 1);
        assert_eq!(
            (sums[0].connections, sums[0].sent, sums[0].received),
            (1, 10, 20)
        );
        assert!(counters.sums().is_empty());
        counters.put_back(&sums[0]);
        assert_eq!(counters.sums(), sums);
    }

    fn denied(host: &str, rule: Option<&str>) -> TrafficEvent {
        TrafficEvent {
            verdict: NetworkVerdict::Denied,
            rule: rule.map(str::to_owned),
            reason: Some(
                NetworkReason::RequestNotAllowed {
                    request: host.to_owned(),
                }
                .into(),
            ),
            ..kind(host)
        }
    }

    fn request(host: &str, path: usize) -> TrafficEvent {
        TrafficEvent {
            request: Some(format!("GET /{path}")),
            status: Some(200),
            ..kind(host)
        }
    }

    fn told(counters: &mut TrafficCounters, kind: TrafficEvent) -> Traffic {
        counters.open(kind).1.expect("the first of its kind")
    }

    #[test]
    fn junk_of_every_class_leaves_the_others_their_rows() {
        let name = |number: usize| TrafficEvent {
            protocol: Protocol::Dns,
            ..denied(&format!("{number}.com"), None)
        };
        let failed = |number: usize| TrafficEvent {
            reason: Some(NetworkReason::NobodyListens.into()),
            ..kind(&format!("{number}.com"))
        };
        let junk: [(&str, &dyn Fn(usize) -> TrafficEvent); 5] = [
            ("denied", &|number| denied(&format!("{number}.com"), None)),
            ("names", &name),
            ("failed", &failed),
            ("requests", &|number| request("a.com", number)),
            ("denied requests", &|number| TrafficEvent {
                verdict: NetworkVerdict::Denied,
                ..request("a.com", number)
            }),
        ];
        for (what, make) in junk {
            let mut counters = TrafficCounters::default();
            for number in 0..4 * KINDS {
                counters.open(make(number));
            }
            let rows: usize = counters.classes.values().map(|rows| rows.kinds.len()).sum();
            assert!(rows <= KINDS, "{what}: {rows} rows");
            let told = told(&mut counters, kind("late.com"));
            assert_eq!(told.host, "late.com", "after junk: {what}");
            let sums = counters.sums();
            let left_out: u64 = sums.iter().map(|row| row.connections).sum();
            assert!(
                left_out >= 3 * KINDS as u64 - 2,
                "{what}: {left_out} counted"
            );
        }
    }

    #[test]
    fn allowed_junk_leaves_denials_and_other_rules_theirs() {
        let mut counters = TrafficCounters::default();
        let below = |number: usize| TrafficEvent {
            rule: Some("*.example.com".into()),
            ..kind(&format!("{number}.example.com"))
        };
        for number in 0..2 * KINDS {
            counters.open(below(number));
        }
        assert_eq!(told(&mut counters, denied("bad.com", None)).host, "bad.com");
        // What does not fit is still told apart by the rule that allowed it.
        let other = TrafficEvent {
            rule: Some("api.com".into()),
            ..kind("api.com")
        };
        let first = told(&mut counters, other.clone());
        assert_eq!(
            (first.host.as_str(), first.rule.as_deref()),
            (OTHERS, Some("api.com"))
        );
        assert!(counters.open(other.clone()).1.is_none());
        counters.sums();
        // Once its sums were taken, the next is told at once again.
        assert!(counters.open(other).1.is_some());
    }

    #[test]
    fn invented_rules_and_hosts_are_bounded_and_nothing_is_lost() {
        let mut counters = TrafficCounters::default();
        let mut at_once = 0;
        for number in 0..4 * KINDS {
            let host = format!("{number}.com");
            let rule = format!("rule {number}");
            let junk = [denied(&host, Some(&rule)), request(&host, number)];
            for kind in junk {
                at_once += counters.open(kind).1.map_or(0, |told| told.connections);
            }
        }
        for rows in counters.classes.values() {
            // One more than the budget: the row of those without a rule.
            assert!(rows.summaries.len() <= SUMMARIES + 1);
        }
        let later: u64 = counters.sums().iter().map(|row| row.connections).sum();
        assert_eq!(at_once + later, 8 * KINDS as u64);
    }

    #[test]
    fn allowed_traffic_is_told_before_what_was_refused() {
        let mut counters = TrafficCounters::default();
        for _ in 0..2 {
            counters.open(denied("bad.com", None));
            counters.open(kind("a.com"));
        }
        let hosts: Vec<String> = counters.sums().into_iter().map(|row| row.host).collect();
        assert_eq!(hosts, ["a.com", "bad.com"]);
    }

    #[test]
    fn long_texts_are_cut() {
        let (_, told) = TrafficCounters::default().open(kind(&"\u{e4}".repeat(400)));
        assert!(told.unwrap().host.len() <= TEXT);
    }
}
