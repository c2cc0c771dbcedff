//! Network denials, told to the person who runs the cage: soon after they happen, and at the end.
//!
//! The audit log has each of them. These are coalesced by destination, and a bounded number is
//! kept: the agent chooses the names.

use crate::supervise::Supervision;
use ironcage_model::{NetworkReason, NetworkVerdict, Protocol, Reason, Traffic};
use ironcage_terminal::prompt::between_lines;
use std::time::{Duration, Instant};

/// Destinations that are told apart: the first, which stay, and the last, which make room. So
/// neither junk before a denial nor junk after it hides it, and as for names, those that a program
/// only looked up do not crowd out those that it was denied a connection to.
const MOST_FIRST: usize = 8;
const MOST_LAST: usize = 8;
/// How long denials are gathered before they are told: programs try again at once.
const GATHER: Duration = Duration::from_millis(700);

/// The line that a denial is told by; `None` where it says nothing to a person.
pub type DenialLine<'a> = dyn Fn(&Traffic) -> Option<String> + 'a;

/// The denials of one cage.
#[derive(Debug, Default)]
pub(crate) struct NetworkDenials {
    denied: Vec<Denied>,
    more: u64,
    due: Option<Instant>,
}

#[derive(Debug)]
struct Denied {
    traffic: Traffic,
    /// Whether it waits to be told while the cage runs.
    fresh: bool,
}

impl NetworkDenials {
    /// Counts what goes on record.
    pub(crate) fn note(&mut self, traffic: &Traffic, now: Instant) {
        if !concerns_a_person(traffic) || is_reverse(traffic) {
            return;
        }
        let same = |denied: &&mut Denied| {
            let known = &denied.traffic;
            (&known.host, known.port, &known.request)
                == (&traffic.host, traffic.port, &traffic.request)
        };
        if let Some(known) = self.denied.iter_mut().find(same) {
            let times = &mut known.traffic.connections;
            *times = times.saturating_add(traffic.connections);
            return;
        }
        let is_lookup = |traffic: &Traffic| traffic.protocol == Protocol::Dns;
        let alike = |denied: &Denied| is_lookup(&denied.traffic) == is_lookup(traffic);
        let places = self.denied.iter().enumerate();
        let places = places.filter(|(_, denied)| alike(denied));
        let mut last = places.map(|(place, _)| place).skip(MOST_FIRST);
        if let (Some(oldest), left) = (last.next(), last.count())
            && left + 1 >= MOST_LAST
        {
            let dropped = self.denied.remove(oldest).traffic.connections;
            self.more = self.more.saturating_add(dropped);
        }
        self.due.get_or_insert(now + GATHER);
        self.denied.push(Denied {
            traffic: traffic.clone(),
            fresh: true,
        });
    }

    /// When something is to be told.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.due
    }

    fn take_due(&mut self, now: Instant) -> Vec<Traffic> {
        if self.due.is_none_or(|due| now < due) {
            return Vec::new();
        }
        self.due = None;
        let fresh = self.denied.iter_mut().filter(|denied| denied.fresh);
        fresh
            .map(|denied| {
                denied.fresh = false;
                denied.traffic.clone()
            })
            .collect()
    }

    /// All of them, and how many more were denied that are not told apart.
    pub(crate) fn into_all(self) -> (Vec<Traffic>, u64) {
        let denied = self.denied.into_iter();
        (denied.map(|denied| denied.traffic).collect(), self.more)
    }
}

/// Whether a person has to do something about it: it was denied, or the host's own DNS or proxy
/// stands in its way. A server that does not answer is the program's to tell.
fn concerns_a_person(traffic: &Traffic) -> bool {
    let reason = match &traffic.reason {
        Some(Reason::Network(reason)) => Some(reason),
        _ => None,
    };
    traffic.verdict == NetworkVerdict::Denied
        || reason.is_some_and(|reason| {
            reason.is_failure() && !matches!(reason, NetworkReason::CannotConnect { .. })
        })
}

/// Whether it is the name of an address that was asked for, which programs do for their own logs.
fn is_reverse(traffic: &Traffic) -> bool {
    traffic.protocol == Protocol::Dns && traffic.host.ends_with(".arpa")
}

impl Supervision<'_> {
    /// Tells of denials that are due, where there is somebody to tell and a line for them: beside
    /// the output of a command that draws its own screen there is none, and the end tells.
    pub(crate) fn look_at_denials(&mut self, now: Instant) {
        let denied = self.audit.denials.take_due(now);
        let line = self.callbacks.denial_line;
        let Some(line) = line.filter(|_| !self.streams.is_logged()) else {
            return;
        };
        let lines: Vec<String> = denied.iter().filter_map(line).collect();
        if lines.is_empty() {
            return;
        }
        if !self.streams.has_terminal() {
            self.streams.write_error(&lines.join("\n"));
        } else if self.streams.reads_lines() && !self.prompting.is_open() {
            self.streams.show(&between_lines(&lines.join("\r\n")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(host: &str, times: u64) -> Traffic {
        Traffic {
            verdict: NetworkVerdict::Denied,
            host: host.into(),
            port: 53,
            protocol: Protocol::Dns,
            address: None,
            rule: None,
            reason: None,
            request: None,
            status: None,
            connections: times,
            sent: 0,
            received: 0,
        }
    }

    #[test]
    fn denials_of_one_host_are_one_and_told_once_while_the_cage_runs() {
        let mut denials = NetworkDenials::default();
        let now = Instant::now();
        denials.note(&denied("a.example", 1), now);
        denials.note(&denied("a.example", 5), now);
        assert_eq!(denials.take_due(now), []);
        let told = denials.take_due(now + GATHER);
        assert_eq!(told, [denied("a.example", 6)]);
        denials.note(&denied("a.example", 2), now);
        assert_eq!(denials.next(), None);
        assert_eq!(denials.into_all(), (vec![denied("a.example", 8)], 0));
    }

    #[test]
    fn allowed_traffic_and_reverse_lookups_are_not_told() {
        let mut denials = NetworkDenials::default();
        let allowed = Traffic {
            verdict: NetworkVerdict::Allowed,
            ..denied("a.example", 1)
        };
        for traffic in [allowed, denied("7.2.0.192.in-addr.arpa", 1)] {
            denials.note(&traffic, Instant::now());
        }
        assert_eq!(denials.into_all(), (Vec::new(), 0));
    }

    #[test]
    fn invented_names_are_bounded_and_counted() {
        let mut denials = NetworkDenials::default();
        for number in 0..MOST_FIRST + MOST_LAST + 3 {
            denials.note(&denied(&format!("{number}.example"), 2), Instant::now());
        }
        let (all, more) = denials.into_all();
        assert_eq!((all.len(), more), (MOST_FIRST + MOST_LAST, 6));
    }

    #[test]
    fn junk_hides_a_denied_host_neither_before_it_nor_after() {
        let connection = |host: &str| Traffic {
            port: 443,
            protocol: Protocol::Tls,
            ..denied(host, 1)
        };
        let junk = |denials: &mut NetworkDenials, of: &str| {
            for number in 0..1000 {
                denials.note(&denied(&format!("{of}{number}.example"), 1), Instant::now());
            }
        };
        let mut denials = NetworkDenials::default();
        denials.note(&denied("first.example", 1), Instant::now());
        junk(&mut denials, "a");
        denials.note(&connection("between.example"), Instant::now());
        junk(&mut denials, "b");
        denials.note(&denied("last.example", 1), Instant::now());
        let (all, more) = denials.into_all();
        for host in ["first.example", "between.example", "last.example"] {
            assert!(
                all.iter().any(|denied| denied.host == host),
                "{host}: {all:?}"
            );
        }
        assert_eq!(all.len() as u64 + more, 2003);
        // Connections to junk are junk, too: the first and the last of them are kept.
        let mut denials = NetworkDenials::default();
        for number in 0..1000 {
            denials.note(&connection(&format!("{number}.example")), Instant::now());
        }
        let (all, _) = denials.into_all();
        assert_eq!(all.len(), MOST_FIRST + MOST_LAST);
        assert_eq!(all[0].host, "0.example");
        assert_eq!(all[all.len() - 1].host, "999.example");
    }
}
