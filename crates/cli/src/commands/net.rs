//! `ironcage net`: what went through a cage's network door, and what did not.
//!
//! It reads the record, as it stands or as it grows.

use super::audit::{find, logs, print, said, utc};
use crate::error::{CliError, CommandResult};
use ironcage_audit::{Error, Reader, Record};
use ironcage_model::{EventKind, NetworkVerdict, Printable, Protocol, Traffic};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// Show connections of a cage: where to, by which rule, how many bytes, and what was refused
///
/// Every connection is decided by the network door and recorded: the first of a kind at once,
/// what follows in sums. What is refused shows what would allow it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The cage: its id or the beginning of it, its name, or `last` [default: last]
    cage: Option<String>,
    /// Go on as the cage does, until it ends
    #[arg(short, long)]
    follow: bool,
}

/// How often the record is looked at while it grows.
const PACE: Duration = Duration::from_millis(200);

/// What connections have in common that are shown in one line.
type Key = (
    bool,
    String,
    u16,
    Option<String>,
    Option<String>,
    Option<String>,
);

pub(crate) fn run(args: Args) -> CommandResult {
    let dir = logs()?;
    let id = find(&dir, args.cage.as_deref())?;
    let path = ironcage_audit::log_path(&dir, &id);
    if !path.exists() {
        return Err(said(Error::NoSuchCage { id }));
    }
    if args.follow {
        return follow(&path);
    }
    let mut sums: BTreeMap<Key, Traffic> = BTreeMap::new();
    let mut ended = None;
    for record in read(&path, 0)? {
        match record.event.kind {
            EventKind::Network(traffic) => add(&mut sums, traffic),
            EventKind::DoorEnded { reason } => ended = Some(reason),
            _ => {}
        }
    }
    print(|out| {
        if sums.is_empty() {
            writeln!(out, "cage {id}: no connection was made")?;
        }
        for traffic in sums.values() {
            writeln!(out, "{}", in_words(traffic))?;
            if let Some(remedy) = remedy(traffic) {
                writeln!(out, "         would allow it: {remedy}")?;
            }
        }
        if let Some(reason) = &ended {
            let reason = Printable::new(reason);
            writeln!(out, "the network door ended before the cage: {reason}")?;
        }
        Ok(())
    })?;
    Ok(0)
}

fn add(sums: &mut BTreeMap<Key, Traffic>, traffic: Traffic) {
    let key = (
        traffic.verdict == NetworkVerdict::Denied,
        traffic.host.clone(),
        traffic.port,
        traffic.address.clone(),
        traffic.rule.clone(),
        traffic.reason.clone(),
    );
    match sums.get_mut(&key) {
        Some(known) => {
            known.connections = known.connections.saturating_add(traffic.connections);
            known.sent = known.sent.saturating_add(traffic.sent);
            known.received = known.received.saturating_add(traffic.received);
        }
        None => {
            sums.insert(key, traffic);
        }
    }
}

/// The records from a line on. A last line that is not all there yet is left for later.
fn read(path: &Path, from: usize) -> Result<Vec<Record>, CliError> {
    let mut records = Vec::new();
    for item in Reader::open(path).map_err(said)?.skip(from) {
        match item {
            Ok(record) => records.push(record),
            Err(Error::Damaged { .. }) => break,
            Err(error) => return Err(said(error)),
        }
    }
    Ok(records)
}

fn follow(path: &Path) -> CommandResult {
    let mut seen = 0;
    loop {
        let records = read(path, seen)?;
        seen += records.len();
        let over = records
            .iter()
            .any(|record| matches!(record.event.kind, EventKind::Exit { .. }));
        print(|out| records.iter().try_for_each(|record| line(out, record)))?;
        if over {
            return Ok(0);
        }
        std::thread::sleep(PACE);
    }
}

fn line(out: &mut dyn Write, record: &Record) -> io::Result<()> {
    let time = utc(record.event.time);
    match &record.event.kind {
        EventKind::Network(traffic) => writeln!(out, "{time}  {}", in_words(traffic)),
        EventKind::DoorEnded { reason } => {
            let reason = Printable::new(reason);
            writeln!(out, "{time}  the network door ended: {reason}")
        }
        _ => Ok(()),
    }
}

/// Connections of one kind in one line.
pub(super) fn in_words(traffic: &Traffic) -> String {
    use std::fmt::Write as _;
    let verdict = match traffic.verdict {
        NetworkVerdict::Allowed => "allowed",
        NetworkVerdict::Denied => "denied ",
    };
    let host = Printable::new(&traffic.host);
    let mut text = format!("{verdict}  {:<4}  ", traffic.protocol.name());
    // Writing to a string cannot fail.
    let _ = match (traffic.protocol, traffic.port) {
        (Protocol::Dns, _) | (_, 0) => write!(text, "{host}"),
        (_, port) if traffic.host.contains(':') => write!(text, "[{host}]:{port}"),
        (_, port) => write!(text, "{host}:{port}"),
    };
    if let Some(address) = &traffic.address {
        let _ = write!(text, " ({})", Printable::new(address));
    }
    let _ = write!(
        text,
        ", {}",
        super::audit::times(traffic.connections.max(1))
    );
    if traffic.sent > 0 || traffic.received > 0 {
        let (sent, received) = (traffic.sent, traffic.received);
        let _ = write!(text, ", {sent} bytes out, {received} in");
    }
    if let Some(rule) = &traffic.rule {
        let _ = write!(text, ", rule {}", Printable::new(rule));
    }
    if let Some(reason) = &traffic.reason {
        let _ = write!(text, ": {}", Printable::new(reason));
    }
    text
}

/// What would let refused connections through, where a flag does.
pub(super) fn remedy(traffic: &Traffic) -> Option<String> {
    if traffic.verdict == NetworkVerdict::Allowed || traffic.host.starts_with('(') {
        return None;
    }
    let reason = traffic.reason.as_deref().unwrap_or_default();
    let host = Printable::new(&traffic.host);
    if let Some(rule) = &traffic.rule {
        let rule = Printable::new(rule);
        return Some(format!("take the rule {rule} out of what is denied"));
    }
    if reason.starts_with("the name leads to ") || reason.starts_with("it leads to ") {
        let address = reason.split(" leads to ").nth(1)?.split(',').next()?;
        let address = Printable::new(address);
        let port = traffic.port;
        return Some(if address.to_string().contains(':') {
            format!("--allow-host '[{address}]:{port}', which names the address itself")
        } else {
            format!("--allow-host {address}:{port}, which names the address itself")
        });
    }
    if traffic.host == ironcage_model::HOST_NAME {
        return Some(format!("--allow-host-port {}", traffic.port));
    }
    match traffic.protocol {
        Protocol::Dns => Some(format!("--allow-host {host}")),
        Protocol::Tcp if reason.starts_with("no rule") || reason.starts_with("the address is") => {
            let port = traffic.port;
            Some(if traffic.host.contains(':') {
                format!("--allow-host '[{host}]:{port}'")
            } else {
                format!("--allow-host {host}:{port}")
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(host: &str, port: u16, protocol: Protocol, reason: &str) -> Traffic {
        Traffic {
            verdict: NetworkVerdict::Denied,
            host: host.into(),
            port,
            protocol,
            address: None,
            rule: None,
            reason: Some(reason.into()),
            connections: 2,
            sent: 0,
            received: 0,
        }
    }

    #[test]
    fn what_would_allow_it_is_a_flag_that_can_be_typed() {
        let name = denied("a.com", 53, Protocol::Dns, "no rule allows this host");
        assert_eq!(remedy(&name).unwrap(), "--allow-host a.com");
        let port = denied(
            "a.com",
            22,
            Protocol::Tcp,
            "no rule allows this port of the host",
        );
        assert_eq!(remedy(&port).unwrap(), "--allow-host a.com:22");
        let six = denied(
            "2001:db8::1",
            22,
            Protocol::Tcp,
            "no rule allows this address",
        );
        assert_eq!(remedy(&six).unwrap(), "--allow-host '[2001:db8::1]:22'");
        let own = denied(
            "host.ironcage",
            5432,
            Protocol::Tcp,
            "no rule allows this port",
        );
        assert_eq!(remedy(&own).unwrap(), "--allow-host-port 5432");
        let led = denied(
            "a.com",
            80,
            Protocol::Http,
            "the name leads to 10.0.0.1, which is private",
        );
        assert!(
            remedy(&led)
                .unwrap()
                .starts_with("--allow-host 10.0.0.1:80")
        );
        assert!(remedy(&denied("a.com", 443, Protocol::Tls, "it is TLS for b.com")).is_none());
    }

    #[test]
    fn names_from_the_cage_are_escaped() {
        let text = in_words(&denied("a\u{1b}[2J", 80, Protocol::Http, "b\u{7}"));
        assert!(
            !text.contains('\u{1b}') && !text.contains('\u{7}'),
            "{text}"
        );
    }
}
