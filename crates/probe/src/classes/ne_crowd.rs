//! The record of connections, filled with junk.

use super::ne_proxy::permitted;
use super::{Attempts, Class, Evidence, Inside, Observation, Oracle, Probe, Setup, Severity};
use crate::stage::allowed::NAME;
use ironcage_model::NetworkVerdict;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

pub(crate) const PROBES: &[Probe] = &[Probe {
    id: "NE-27",
    severity: Severity::Medium,
    title: "crowd an allowed connection out of the record by junk",
    canary: "the sandbox's own record of the run: the allowed connection, and the sum of the junk",
    layers: &["what is allowed and what is denied have rows of their own in the record"],
    references: &["CWE-778", "ATT&CK T1562"],
    setup: Setup::Crowded,
    inside: crowd,
    oracle: Oracle::Seen(|_, evidence| is_not_recorded(evidence)),
    ..Probe::of(Class::Ne)
}];

/// Junk that the record is to be filled with: more than any of its tables has rows.
const JUNK: u16 = 600;

/// Connections to as many ports as a table of the record can hold, and then the one that matters.
fn crowd(_: &Inside) -> Observation {
    const BRIEF: Duration = Duration::from_secs(2);
    const FIRST: u16 = 2000;
    let mut attempts = Attempts::new();
    let found = (NAME, 80).to_socket_addrs().ok();
    let address = found.and_then(|mut all| all.next());
    let address = address.map_or(IpAddr::from(Ipv4Addr::LOCALHOST), |found| found.ip());
    let mut answers = 0;
    for port in FIRST..FIRST + JUNK {
        let dialled = TcpStream::connect_timeout(&SocketAddr::new(address, port), BRIEF);
        answers += u32::from(dialled.is_ok());
    }
    attempts.say(false, format!("{answers} of {JUNK} junk connections"));
    permitted(&mut attempts);
    attempts.done()
}

/// Whether the record lacks the connection that was allowed, or does not count the junk.
fn is_not_recorded(evidence: &Evidence) -> Option<String> {
    // A sandbox that starts nothing has no record: that is not an escape.
    if !evidence.started() {
        return None;
    }
    let of = |verdict: NetworkVerdict| {
        let kind = evidence
            .traffic
            .iter()
            .filter(move |one| one.verdict == verdict);
        kind.filter(move |one| verdict == NetworkVerdict::Denied || one.host == NAME)
    };
    if of(NetworkVerdict::Allowed).next().is_none() {
        return Some(format!("the record has no connection to {NAME}"));
    }
    let denied: u64 = of(NetworkVerdict::Denied).map(|one| one.connections).sum();
    (denied < JUNK.into()).then(|| format!("the record has {denied} of {JUNK} denials"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside::STARTED;

    #[test]
    fn a_sandbox_that_starts_nothing_hides_nothing() {
        assert!(is_not_recorded(&Evidence::default()).is_none());
        let started = Evidence {
            output: STARTED.as_bytes().to_vec(),
            ..Evidence::default()
        };
        assert!(is_not_recorded(&started).is_some());
    }
}
