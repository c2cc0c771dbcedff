//! `ironcage net`: what went through a cage's network door, and what did not; rules of a
//! running one.
//!
//! Without `-f` it reads the record; [`watch`] tells connections as they happen, [`rules`]
//! changes what holds.

mod rules;
mod watch;

pub(super) use rules::{change_in_words, limits_in_words};

use super::audit::{find, logs, print, said};
use crate::completed::recorded_cages;
use crate::error::{CliError, CommandResult};
use crate::json;
use ironcage_audit::{Error, Reader, Record};
use ironcage_model::{EventKind, NetworkVerdict, Printable, Protocol, Traffic};
use std::collections::BTreeMap;
use std::path::Path;

/// Show connections of a cage: where to, by which rule, how many bytes, and what was refused
///
/// Every connection is decided by the network door and recorded: the first of a kind at once,
/// what follows in sums. What is refused shows what would allow it. With -f each connection of
/// a running cage is shown as it happens. The commands change what holds while a cage runs, at
/// once and until it ends; connections that no longer match are closed.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// The cage: its id or the beginning of it, its name, or `last` [default: last]
    #[arg(add = recorded_cages())]
    cage: Option<String>,
    /// Go on as the cage does, until it ends
    #[arg(short, long)]
    follow: bool,
    /// Print JSON, one object in a line
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Let connections of a running cage out to a host
    Allow(rules::Allow),
    /// Let no connection of a running cage out to a host, even where it is allowed
    Deny(rules::Deny),
    /// Take rules away that `net allow` or `net deny` added
    Remove(rules::Remove),
    /// Take away every rule that `net allow` and `net deny` added
    Reset(rules::Cage),
    /// Show the rules and limits that hold for a running cage
    Rules(rules::Show),
    /// Set limits of a running cage; those not named stay as they are
    Limit(rules::Limit),
}

/// What connections have in common that are shown in one line.
type Key = (
    bool,
    String,
    u16,
    Option<String>,
    Option<String>,
    Option<String>,
    (Option<String>, Option<u16>),
);

pub(crate) fn run(args: Args) -> CommandResult {
    match args.command {
        Some(Command::Allow(change)) => rules::allow(change),
        Some(Command::Deny(change)) => rules::deny(change),
        Some(Command::Remove(remove)) => rules::remove(remove),
        Some(Command::Reset(cage)) => rules::reset(cage),
        Some(Command::Rules(show)) => rules::show(show),
        Some(Command::Limit(limit)) => rules::limit(limit),
        None => connections(args),
    }
}

fn connections(args: Args) -> CommandResult {
    let dir = logs()?;
    let id = find(&dir, args.cage.as_deref())?;
    let path = ironcage_audit::log_path(&dir, &id);
    if !path.exists() {
        return Err(said(Error::NoSuchCage { id }));
    }
    if args.follow {
        return watch::follow(&path, &id, args.json);
    }
    let mut sums: BTreeMap<Key, Traffic> = BTreeMap::new();
    let mut ended = None;
    let mut runs = true;
    for record in read(&path, 0)? {
        match record.event.kind {
            EventKind::Exit { .. } => runs = false,
            EventKind::Network(traffic) => add(&mut sums, traffic),
            EventKind::DoorEnded { reason } => ended = Some(reason),
            _ => {}
        }
    }
    if args.json {
        return print(|out| {
            for traffic in sums.values() {
                writeln!(out, "{}", json::line(traffic)?)?;
            }
            Ok(())
        })
        .map(|()| 0);
    }
    print(|out| {
        if sums.is_empty() {
            writeln!(out, "cage {id}: no connection was made")?;
            writeln!(out, "  {NO_NETWORK}")?;
        }
        for traffic in sums.values() {
            writeln!(out, "{}", in_words(traffic))?;
            if let Some(remedy) = remedy(traffic) {
                writeln!(out, "         would allow it: {remedy}")?;
                if let Some(rule) = live(&remedy).filter(|_| runs) {
                    writeln!(
                        out,
                        "         while it runs:  ironcage net allow {id} {rule}"
                    )?;
                }
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

/// What is said where nothing went out, nor tried to.
pub(super) const NO_NETWORK: &str =
    "A cage has no network unless it is given one: --allow-host NAME lets it out to a host.";

/// The same for a cage that runs, where a flag says what would allow something.
fn live(remedy: &str) -> Option<String> {
    let host = remedy.strip_prefix("--allow-host ");
    let host = host.and_then(|rest| rest.split(", which").next());
    let request = remedy.strip_prefix("--http-allow ");
    host.map(str::to_owned)
        .or_else(|| request.map(|rule| format!("--http {rule}")))
}

fn add(sums: &mut BTreeMap<Key, Traffic>, traffic: Traffic) {
    let key = (
        traffic.verdict == NetworkVerdict::Denied,
        traffic.host.clone(),
        traffic.port,
        traffic.address.clone(),
        traffic.rule.clone(),
        traffic.reason.clone(),
        (traffic.request.clone(), traffic.status),
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
pub(super) fn read(path: &Path, from: usize) -> Result<Vec<Record>, CliError> {
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

/// Connections of one kind in one line.
pub(super) fn in_words(traffic: &Traffic) -> String {
    use std::fmt::Write as _;
    let verdict = match traffic.verdict {
        NetworkVerdict::Allowed => "allowed",
        NetworkVerdict::Denied => "denied ",
    };
    let mut text = format!("{verdict}  {}", whither(traffic));
    // Writing to a string cannot fail.
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

/// As what a connection was carried, and where to.
fn whither(traffic: &Traffic) -> String {
    use std::fmt::Write as _;
    let host = Printable::new(&traffic.host);
    let to = match (traffic.protocol, traffic.port) {
        (Protocol::Dns, _) | (_, 0) => host.to_string(),
        (_, port) if traffic.host.contains(':') => format!("[{host}]:{port}"),
        (_, port) => format!("{host}:{port}"),
    };
    let mut text = format!("{:<4}  {to}", traffic.protocol.name());
    // Writing to a string cannot fail.
    if let Some(request) = &traffic.request {
        let _ = write!(text, " {}", Printable::new(request));
    }
    if let Some(status) = traffic.status {
        let _ = write!(text, " {status}");
    }
    if let Some(address) = &traffic.address {
        let _ = write!(text, " ({})", Printable::new(address));
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
    let limit = reason.rsplit_once("(network.limits.");
    if let Some(name) = limit.and_then(|(_, rest)| rest.strip_suffix(')')) {
        let name = Printable::new(name);
        return Some(format!("a larger --network-limit {name}=..."));
    }
    if let Some(other) = other_than_a_rule(reason, &host.to_string()) {
        return Some(other);
    }
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
    if let (Some(request), true) = (&traffic.request, reason.starts_with("no rule allows ")) {
        let (method, path) = request.split_once(' ')?;
        let port = match (traffic.protocol, traffic.port) {
            (Protocol::Https, 443) | (Protocol::Http, 80) => String::new(),
            (_, port) => format!(":{port}"),
        };
        let (method, path) = (Printable::new(method), Printable::new(path));
        return Some(format!("--http-allow '{method} {host}{port}{path}'"));
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

/// What helps where no rule over hosts does.
fn other_than_a_rule(reason: &str, host: &str) -> Option<String> {
    if reason == "the name has no address outside" {
        let resolve = format!("--resolve {host}=ADDRESS");
        return Some(format!("a name that the host's DNS knows, or {resolve}"));
    }
    if reason.contains("UnknownIssuer") {
        return Some("SSL_CERT_FILE=FILE in your environment, with the server's authority".into());
    }
    if let Some(rest) = reason.strip_prefix("the address is one of ") {
        let name = Printable::new(rest.split(',').next()?);
        return Some(format!("going there as {name}, by its rules"));
    }
    let (secret, where_to) = reason
        .strip_prefix("the secret ")?
        .split_once(" is not for ")?;
    let secret = Printable::new(secret);
    let place = match where_to {
        "this parameter of the query" => "query:NAME".to_owned(),
        "this field of the body" => "body:FIELD".to_owned(),
        "credentials in the field authorization" => "basic".to_owned(),
        field if field.starts_with("the field ") => {
            format!(
                "header:{}",
                Printable::new(field.strip_prefix("the field ")?)
            )
        }
        elsewhere if elsewhere.starts_with("this host") => {
            return Some(format!("--secret {secret}@{host}, where it is to have it"));
        }
        _ => return None,
    };
    Some(format!(
        "in = [\"{place}\"] in the policy's [network.secrets.{secret}]"
    ))
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
            request: None,
            status: None,
            connections: 2,
            sent: 0,
            received: 0,
        }
    }

    #[test]
    fn what_would_allow_it_is_a_flag_that_can_be_typed() {
        let mut request = denied("a.com", 443, Protocol::Https, "no rule allows PUT /x here");
        request.request = Some("PUT /x".into());
        assert_eq!(remedy(&request).unwrap(), "--http-allow 'PUT a.com/x'");
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
        let over = denied("a.com", 80, Protocol::Http, "more (network.limits.body)");
        assert_eq!(remedy(&over).unwrap(), "a larger --network-limit body=...");
        assert!(remedy(&denied("a.com", 443, Protocol::Tls, "it is TLS for b.com")).is_none());
        for (reason, helps) in [
            ("the name has no address outside", "--resolve a.com=ADDRESS"),
            (
                "the server's TLS is not to be trusted: invalid peer certificate: UnknownIssuer",
                "SSL_CERT_FILE",
            ),
            (
                "the secret K is not for this parameter of the query",
                "in = [\"query:NAME\"]",
            ),
            (
                "the secret K is not for the field user-agent",
                "in = [\"header:user-agent\"]",
            ),
            (
                "the secret K is not for this host, or not without TLS",
                "--secret K@a.com",
            ),
            (
                "the address is one of b.com, over which there are rules",
                "as b.com",
            ),
        ] {
            let remedy = remedy(&denied("a.com", 443, Protocol::Https, reason)).unwrap();
            assert!(remedy.contains(helps), "{remedy}");
        }
        assert_eq!(live("--allow-host a.com:22").unwrap(), "a.com:22");
        assert_eq!(
            live("--http-allow 'PUT a.com/x'").unwrap(),
            "--http 'PUT a.com/x'"
        );
        assert!(live("--allow-host-port 5432").is_none());
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
